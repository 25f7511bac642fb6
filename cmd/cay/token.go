package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
)

const tokenHelp = `Work with the tokens of a team. An admin token reaches every team: choose one with
--team.`

func newTokenCommand(a *app) *cobra.Command {
	return newNoun("token", "Work with tokens", tokenHelp, newTokenCreate(a), newTokenList(a), newTokenRevoke(a), newTokenApprove(a), newTokenDeny(a))
}

type tokenCreateOptions struct {
	project string
	admin   bool
	jwt     bool
	rights  []string
	expires time.Duration
}

func newTokenCreate(a *app) *cobra.Command {
	var o tokenCreateOptions
	c := &cobra.Command{
		Use: "create [NAME]", Short: "Make a token",
		Long: `Make a token and print its secret, which is shown this once. NAME says what it is
for.

--jwt makes the secret a JSON Web Token that the daemon has signed, for clients
that take nothing else, such as VERCEL_OIDC_TOKEN. It is of one project (by default
the default project) and says so in its claims owner_id and project_id; it is good
for ten years if --expires does not say. It is revoked like any other.

--right gives a token of a project what it may not do by itself: images:write brings
images and removes those of the team. Other tokens may do all of that.`,
		Example: "  export CAY_TOKEN=$(cay token create ci --expires 720h)",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage(cmd, "it takes at most one name")
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().StringVar(&o.project, "project", "", "bind it to a project, by id or name (default all of the team)")
	c.Flags().BoolVar(&o.admin, "admin", false, "make an admin token; takes one")
	c.Flags().BoolVar(&o.jwt, "jwt", false, "make the secret a JSON Web Token, for one project")
	c.Flags().StringArrayVar(&o.rights, "right", nil, "what a token of a project may do, too: images:write; may be repeated")
	c.Flags().DurationVar(&o.expires, "expires", 0, "how long it is good for (default for ever, or as long as the token that makes it)")
	return a.verb(c, func(ctx context.Context, args []string) error {
		p := account.CreateTokenParams{Admin: o.admin, JWT: o.jwt}
		for _, r := range o.rights {
			p.Rights = append(p.Rights, account.Right(r))
		}
		if len(args) == 1 {
			p.Name = args[0]
		}
		if c.Flags().Changed("expires") {
			if o.expires <= 0 {
				return &exitError{exitUsage, cay.Errorf(cay.Invalid, "--expires is %v; it must be more than 0", o.expires)}
			}
			at := time.Now().Add(o.expires)
			p.ExpiresAt = &at
		}
		if o.project != "" {
			var err error
			if p.ProjectID, err = findProject(ctx, a.accounts(), o.project); err != nil {
				return err
			}
		}
		t, err := a.accounts().CreateToken(ctx, p)
		if err != nil {
			return err
		}
		return a.show(t, func(w io.Writer) { fmt.Fprintln(w, t.Secret) })
	})
}

// all reads every page of a list.
func all[T any](list func(account.ListParams) (*account.Page[T], error)) ([]T, error) {
	items := []T{}
	for p := (account.ListParams{Limit: 200}); ; {
		page, err := list(p)
		if err != nil {
			return nil, err
		}
		items = append(items, page.Items...)
		if p.Cursor = page.Next; p.Cursor == "" {
			return items, nil
		}
	}
}

func newTokenList(a *app) *cobra.Command {
	var quiet bool
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List tokens",
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print ids only")
	return a.verb(c, func(ctx context.Context, _ []string) error {
		tokens, err := all(func(p account.ListParams) (*account.Page[account.Token], error) {
			return a.accounts().ListTokens(ctx, p)
		})
		if err != nil {
			return err
		}
		return a.show(tokens, func(w io.Writer) {
			if quiet {
				for _, t := range tokens {
					fmt.Fprintln(w, t.ID)
				}
				return
			}
			table := newTable("ID", "NAME", "SCOPE", "CREATED", "EXPIRES", "USED")
			for _, t := range tokens {
				scope := "team"
				switch {
				case t.Admin:
					scope = "admin"
				case t.ProjectID != "":
					scope = t.ProjectID
				}
				for _, r := range t.Rights {
					scope += " " + string(r)
				}
				table.row(t.ID, t.Name, scope, agoText(t.CreatedAt), agoPtr(t.ExpiresAt), agoPtr(t.LastUsedAt))
			}
			table.print(w)
		})
	})
}

func newTokenRevoke(a *app) *cobra.Command {
	return newDelete(a, "revoke ID...", "Make tokens invalid", "Make tokens invalid at once, by their ids.", "tokens",
		func(ctx context.Context, c *account.Client, id string) error { return c.DeleteToken(ctx, id) })
}

// newDelete returns a command that deletes each object named.
func newDelete(a *app, use, short, long, kind string, do func(ctx context.Context, c *account.Client, id string) error) *cobra.Command {
	var quiet bool
	c := &cobra.Command{
		Use: use, Short: short, Long: long,
		Args: atLeast(1, "the ids of one or more "+kind), ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print nothing")
	return a.verb(c, func(ctx context.Context, args []string) error {
		client := a.accounts()
		done := []string{}
		var errs []error
		for _, id := range args {
			if err := do(ctx, client, id); err != nil {
				errs = append(errs, err)
				continue
			}
			done = append(done, id)
		}
		err := a.show(done, func(w io.Writer) {
			if !quiet {
				for _, id := range done {
					fmt.Fprintln(w, id)
				}
			}
		})
		return a.reportAll(append(errs, err)...)
	})
}
