package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
)

const projectHelp = `Work with the projects of a team. A project groups sandboxes; their names are
unique within one.`

func newProjectCommand(a *app) *cobra.Command {
	return newNoun("project", "Work with projects", projectHelp, newProjectCreate(a), newProjectList(a), newProjectRemove(a))
}

func newProjectCreate(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "create NAME", Short: "Make a project",
		Long: "Make a project in the team the token speaks for, and print its id.",
		Args: exactly(1, "one name"), ValidArgsFunction: cobra.NoFileCompletions,
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		p, err := a.accounts().CreateProject(ctx, account.CreateProjectParams{Name: args[0]})
		if err != nil {
			return err
		}
		return a.show(p, func(w io.Writer) { fmt.Fprintln(w, p.ID) })
	})
}

func newProjectList(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List projects",
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	return a.verb(c, func(ctx context.Context, _ []string) error {
		projects, err := all(func(p account.ListParams) (*account.Page[account.Project], error) {
			return a.accounts().ListProjects(ctx, p)
		})
		if err != nil {
			return err
		}
		return a.show(projects, func(w io.Writer) {
			t := newTable("ID", "NAME", "TEAM", "CREATED")
			for _, p := range projects {
				t.row(p.ID, p.Name, p.TeamID, agoText(p.CreatedAt))
			}
			t.print(w)
		})
	})
}

func newProjectRemove(a *app) *cobra.Command {
	c := newDelete(a, "remove ID...", "Delete projects", "Delete projects and the tokens bound to them, by their ids. A project that has\nsandboxes is not deleted.", "projects",
		func(ctx context.Context, c *account.Client, id string) error { return c.DeleteProject(ctx, id) })
	c.Aliases = []string{"rm"}
	return c
}

// findProject returns the id of the project with an id or a name, among the
// projects that the client's token reaches. Errors: not_found.
func findProject(ctx context.Context, c *account.Client, ref string) (string, error) {
	projects, err := all(func(p account.ListParams) (*account.Page[account.Project], error) { return c.ListProjects(ctx, p) })
	if err != nil {
		return "", err
	}
	named := ""
	for _, p := range projects {
		switch ref {
		case p.ID: // before a name that looks like it
			return p.ID, nil
		case p.Name:
			named = p.ID
		}
	}
	if named == "" {
		return "", cay.Errorf(cay.NotFound, "project %q not found", ref).
			WithHint("cay project list shows them; cay project create makes one")
	}
	return named, nil
}
