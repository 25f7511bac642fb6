package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/internal/sandboxd/guest/initd"
	"github.com/cayhq/cay/internal/sandboxd/gvisor"
)

// reexec does not return if this process was started as one of cay's helpers: a
// sentry.
func reexec() { gvisor.HandleReexec() }

// newGuestCommand returns the hidden command that is PID 1 in a sandbox, for
// builds without the small guest program embedded.
func newGuestCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "guest", Short: "Be the init of a sandbox", Hidden: true,
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	return a.verb(c, func(context.Context, []string) error {
		if code := initd.Main(); code != 0 {
			return &exitError{code, nil}
		}
		return nil
	})
}
