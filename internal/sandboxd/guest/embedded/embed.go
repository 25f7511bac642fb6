// Package embedded carries the cay-guest binary inside the cay binary, if it
// was there when cay was built.
package embedded

import "embed"

// The directory always has its README, so that this builds without the binary.
//
//go:embed all:files
var files embed.FS

// Binary returns the static cay-guest program, or nil if this build has none;
// the cay binary's own guest command does the same then.
func Binary() []byte {
	b, err := files.ReadFile("files/cay-guest")
	if err != nil {
		return nil
	}
	return b
}
