// Package plan decides which models and providers a call tries, in order: by the operator's
// rules, the key's scope, guards, the options of the request, and how endpoints have fared.
package plan
