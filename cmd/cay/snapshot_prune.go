package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/sandbox"
)

const snapshotPruneHelp = `Delete the snapshots that stops of persistent sandboxes made and that no sandbox
starts from the next time. Without --yes it only shows which ones those are, and
what that would free. Snapshots that somebody made stay.`

func newSnapshotPrune(a *app) *cobra.Command {
	var (
		p     sandbox.PruneSnapshotsParams
		older spanFlag
		yes   bool
	)
	c := &cobra.Command{
		Use: "prune", Short: "Delete the snapshots that stops made and nothing needs", Long: snapshotPruneHelp,
		Example: `  cay snapshot prune
  cay snapshot prune --older-than 7d --yes`,
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	fl := c.Flags()
	fl.Var(&older, "older-than", "only those that are older, as 12h or 7d")
	fl.BoolVarP(&yes, "yes", "y", false, "delete them")
	fl.StringVar(&p.ProjectID, "project", "", "those of this project, by id; \"*\" for all of the team")
	return a.verb(c, func(ctx context.Context, _ []string) error {
		p.OlderThan, p.DryRun = older.span, !yes
		if err := p.Validate(); err != nil {
			return &exitError{exitUsage, err}
		}
		pruned, err := a.sandboxes().PruneSnapshots(ctx, p)
		if err != nil {
			return err
		}
		err = a.show(pruned, func(w io.Writer) { printPruned(w, pruned, p.DryRun) })
		if err == nil && p.DryRun && pruned.Count > 0 {
			a.note(a.json, "add --yes to delete them")
		}
		return err
	})
}

func printPruned(w io.Writer, p *sandbox.SnapshotPrune, dryRun bool) {
	if dryRun && p.Count > 0 {
		t := newTable("ID", "SANDBOX", "SIZE", "CREATED", "EXPIRES")
		for _, s := range p.Snapshots {
			t.row(s.ID, snapshotSource(&s), bytesText(s.SizeBytes), agoText(s.CreatedAt), agoPtr(s.ExpiresAt))
		}
		t.print(w)
		if more := p.Count - len(p.Snapshots); more > 0 {
			fmt.Fprintf(w, "and %d more\n", more)
		}
	}
	fmt.Fprintf(w, "%d snapshots, %s\n", p.Count, bytesText(p.SizeBytes))
}
