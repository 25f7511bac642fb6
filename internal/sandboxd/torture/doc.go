// Package torture holds one installation, with real machines, to what cay says
// of itself while its daemon is killed over and over, wherever it may be: a
// persistent sandbox is never lost, what was written to it is there, what goes on
// goes on, and nothing is left behind. It has tests only.
//
// `make crash` kills it 200 times; `go test` a few times.
package torture
