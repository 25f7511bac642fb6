// Package embedded carries the programs of sandboxes inside the cay binary, if
// they existed when cay was built. The cay binary can run in place of each missing
// program.
package embedded

import "embed"

// The directory always has its README, so that this builds without the programs.
//
//go:embed all:files
var files embed.FS

// Guest returns the static cay-guest program, or nil if this build has none; the
// cay binary's own guest command does the same then.
func Guest() []byte { return program("cay-guest") }

// Sentry returns the static cay-sentry program, or nil if this build has none; the
// cay binary executes itself then.
func Sentry() []byte { return program("cay-sentry") }

func program(name string) []byte {
	b, err := files.ReadFile("files/" + name)
	if err != nil {
		return nil
	}
	return b
}
