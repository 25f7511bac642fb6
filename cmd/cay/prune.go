package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

const pruneHelp = `Free what nothing needs any more: sandboxes that have ended for good, snapshots that
the stops of sandboxes made and that none starts from, and with an admin token the
content of images without a name. Without --yes it only shows how much that is.

"cay snapshot prune" and "cay image prune" show each of them, and delete only these.`

// pruned is the result of prune.
type pruned struct {
	DryRun    bool                   `json:"dry_run"`
	Sandboxes []string               `json:"sandboxes"` // names
	Snapshots *sandbox.SnapshotPrune `json:"snapshots"`
	Images    *sandbox.ImageGC       `json:"images"` // null without an admin token
}

func newPruneCommand(a *app) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "prune", Short: "Free what nothing needs any more", Long: pruneHelp,
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().BoolVarP(&yes, "yes", "y", false, "delete them")
	return a.verb(c, func(ctx context.Context, _ []string) error {
		p, err := a.prune(ctx, !yes)
		if err != nil {
			return err
		}
		err = a.show(p, func(w io.Writer) { p.print(w) })
		if err == nil && p.DryRun && !p.empty() {
			a.note(a.json, "add --yes to delete them")
		}
		return err
	})
}

// prune deletes in the order in which the parts need each other: sandboxes, snapshots, images.
func (a *app) prune(ctx context.Context, dryRun bool) (*pruned, error) {
	p := &pruned{DryRun: dryRun, Sandboxes: []string{}}
	client := a.sandboxes()
	// Sandboxes that have ended for good are those that a list of resumable ones leaves out.
	list := func(resumable bool) ([]sandbox.Sandbox, error) {
		items, _, err := pages(0, func(n int, cursor string) (*sandbox.Page[sandbox.Sandbox], error) {
			return client.List(ctx, sandbox.ListParams{Resumable: resumable, Limit: n, Cursor: cursor})
		})
		return items, err
	}
	all, err := list(false)
	if err != nil {
		return nil, err
	}
	resumable, err := list(true)
	if err != nil {
		return nil, err
	}
	keep := make(map[string]bool)
	for _, s := range resumable {
		keep[s.ID] = true
	}
	all = slices.DeleteFunc(all, func(s sandbox.Sandbox) bool { return keep[s.ID] || !s.Status.Final() })
	for _, s := range all {
		if !dryRun {
			if err := client.DeleteWith(ctx, s.ID, sandbox.DeleteParams{}); err != nil && cay.CodeOf(err) != cay.NotFound {
				return nil, err
			}
		}
		p.Sandboxes = append(p.Sandboxes, s.Name)
	}
	if p.Snapshots, err = client.PruneSnapshots(ctx, sandbox.PruneSnapshotsParams{DryRun: dryRun}); err != nil {
		return nil, err
	}
	p.Images, err = client.Images().GC(ctx, sandbox.ImageGCParams{DryRun: dryRun})
	if cay.CodeOf(err) == cay.PermissionDenied {
		err = nil // a team's images are its own, and go when their names go
	}
	return p, err
}

func (p *pruned) empty() bool {
	return len(p.Sandboxes) == 0 && p.Snapshots.Count == 0 && (p.Images == nil || p.Images.Removed == 0)
}

func (p *pruned) print(w io.Writer) {
	t := newTable("KIND", "COUNT", "SIZE")
	t.row("sandboxes", fmt.Sprint(len(p.Sandboxes)), "")
	t.row("snapshots", fmt.Sprint(p.Snapshots.Count), bytesText(p.Snapshots.SizeBytes))
	if p.Images != nil {
		t.row("images", fmt.Sprint(p.Images.Removed), bytesText(p.Images.FreedBytes))
	}
	t.print(w)
}
