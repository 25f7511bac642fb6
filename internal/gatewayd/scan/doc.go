// Package scan reads a request's JSON in one pass, and edits it without decoding it.
package scan
