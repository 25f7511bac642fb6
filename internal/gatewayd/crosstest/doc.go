// Package crosstest contains the test that crosses all wire formats: each recorded answer
// of a provider is decoded by its own format, encoded by every surface, and decoded
// again. The meaning must be unchanged; a table lists what a format cannot express, with
// the reason. The package has tests only.
package crosstest
