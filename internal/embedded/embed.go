// Package embedded carries the programs of sandboxes inside the cay binary, if
// they existed when cay was built. The cay binary can run in place of each missing
// program.
package embedded

import "embed"

// The directory always has its README, so that this builds without the programs.
//
//go:embed all:files
var files embed.FS

// Guest returns the static cay-guest program, or nil if this build has none; then
// the cay binary's guest command takes its place.
func Guest() []byte { return program("cay-guest") }

// Sentry returns the static cay-sentry program, or nil if this build has none;
// then the cay binary executes itself.
func Sentry() []byte { return program("cay-sentry") }

func program(name string) []byte {
	b, err := files.ReadFile("files/" + name)
	if err != nil {
		return nil
	}
	return b
}
