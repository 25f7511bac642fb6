package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/account"
)

func newTokenApprove(a *app) *cobra.Command {
	var project string
	c := &cobra.Command{
		Use: "approve CODE", Short: "Let a program that logs in have a token",
		Long: `Let a program that asks for a login, and shows CODE, have a token of the team. The
token is good for 30 days, and the program can renew it. Approve only what you have
started yourself.`,
		Example: "  cay token approve BCDF-GHJK --project prj_default",
		Args:    exactly(1, "the code that the program shows"), ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().StringVar(&project, "project", "", "bind its token to a project, by id or name (default all of the team)")
	return a.verb(c, func(ctx context.Context, args []string) error {
		var p account.ApproveParams
		if project != "" {
			var err error
			if p.ProjectID, err = findProject(ctx, a.accounts(), project); err != nil {
				return err
			}
		}
		l, err := a.accounts().ApproveDeviceLogin(ctx, args[0], p)
		if err != nil {
			return err
		}
		return a.show(l, func(w io.Writer) {
			scope := l.TeamID
			if l.ProjectID != "" {
				scope += ", project " + l.ProjectID
			}
			fmt.Fprintf(w, "approved: %s, from %s, gets a token of %s\n", loginName(l), l.Address, scope)
		})
	})
}

func newTokenDeny(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "deny CODE", Short: "Refuse a program that logs in a token",
		Long: `Refuse the program that shows CODE a token, also after it was approved and before
the program has it.`,
		Args: exactly(1, "the code that the program shows"), ValidArgsFunction: cobra.NoFileCompletions,
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		l, err := a.accounts().DenyDeviceLogin(ctx, args[0])
		if err != nil {
			return err
		}
		return a.show(l, func(w io.Writer) { fmt.Fprintf(w, "denied: %s, from %s\n", loginName(l), l.Address) })
	})
}

// loginName returns a program's own name for itself.
func loginName(l *account.DeviceLogin) string {
	if l.Agent != "" {
		return l.Agent
	}
	return l.ClientID
}
