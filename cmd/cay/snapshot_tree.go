package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

const snapshotTreeHelp = `Draw where a snapshot comes from and what came of it: its ancestors, and from there
the newest child of each. Of a sandbox, it is the snapshot it starts from next.

Each ○ is made of the one above it, and ● is the one asked for; ├─ are others made
of the ○ or ● above them.`

func newSnapshotTree(a *app) *cobra.Command {
	var limit int
	c := &cobra.Command{
		Use: "tree SNAPSHOT|SANDBOX", Short: "Draw a snapshot's ancestors and descendants", Long: snapshotTreeHelp,
		Args: exactly(1, "one snapshot or sandbox"), ValidArgsFunction: a.completeSnapshots(1),
	}
	c.Flags().IntVar(&limit, "limit", 10, "how many generations to go up, and down; at most 100")
	return a.verb(c, func(ctx context.Context, args []string) error {
		p := sandbox.SnapshotTreeParams{Limit: limit}
		if err := p.Validate(); err != nil || limit == 0 {
			return &exitError{exitUsage, cay.Errorf(cay.Invalid, "--limit %d is not 1 to 100", limit)}
		}
		client := a.sandboxes()
		up, err := ancestors(ctx, client, args[0], p)
		if err != nil {
			return err
		}
		p.Descendants = true
		down, err := client.SnapshotTree(ctx, up.Anchor.Snapshot.ID, p)
		if err != nil {
			return err
		}
		family := familyTree{Anchor: up.Anchor, Ancestors: up.Nodes, Older: up.Next, Descendants: down.Nodes, Newer: down.Next}
		return a.show(family, func(w io.Writer) { family.draw(w) })
	})
}

// ancestors walks to the root from a snapshot, or from a sandbox's snapshot.
func ancestors(ctx context.Context, c *sandbox.Client, ref string, p sandbox.SnapshotTreeParams) (*sandbox.SnapshotTree, error) {
	tree, err := c.SnapshotTree(ctx, ref, p)
	if cay.CodeOf(err) != cay.NotFound {
		return tree, err
	}
	s, serr := c.Get(ctx, ref)
	switch {
	case cay.CodeOf(serr) == cay.NotFound:
		return nil, cay.Errorf(cay.NotFound, "no snapshot and no sandbox is named %q", ref).WithHint(`see "cay snapshot list"`)
	case serr != nil:
		return nil, serr
	case s.SnapshotID == "":
		return nil, cay.Errorf(cay.NotFound, "sandbox %s has no snapshot yet", s.Name).WithHint(`stopping it makes one, if it is persistent; so does "cay snapshot create"`)
	}
	return c.SnapshotTree(ctx, s.SnapshotID, p)
}

// familyTree is a snapshot with the paths to the root and to the newest
// descendant.
type familyTree struct {
	Anchor      sandbox.SnapshotNode   `json:"anchor"`
	Ancestors   []sandbox.SnapshotNode `json:"ancestors"`       // the parent first
	Older       string                 `json:"older,omitempty"` // the last of them, if it has a parent that is not here
	Descendants []sandbox.SnapshotNode `json:"descendants"`
	Newer       string                 `json:"newer,omitempty"`
}

// draw prints the tree from its root down: a line of snapshots, each the child
// of the one before, and the siblings beside them.
func (f *familyTree) draw(w io.Writer) {
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	row := func(lead string, s *sandbox.Snapshot) {
		name := clean(s.Name)
		if name == "" {
			name = "-"
		}
		fmt.Fprintln(tw, strings.Join([]string{
			lead + s.ID, name, snapshotKind(s), clean(snapshotSource(s)), bytesText(s.SizeBytes), agoText(s.CreatedAt),
		}, "\t"))
	}
	up := slices.Clone(f.Ancestors)
	slices.Reverse(up)
	if f.Older != "" {
		fmt.Fprintf(tw, "┆  older ones: cay snapshot tree %s\n", f.Older)
	}
	for _, node := range slices.Concat(up, []sandbox.SnapshotNode{f.Anchor}, f.Descendants) {
		for _, s := range node.Siblings {
			row("├─ ", &s)
		}
		if hidden := node.Count - 1 - len(node.Siblings); hidden > 0 {
			fmt.Fprintf(tw, "├─ … %d more\t\t\t\t\t\n", hidden) // with all columns, to keep their widths
		}
		lead := "○  "
		if node.Snapshot.ID == f.Anchor.Snapshot.ID {
			lead = "●  "
		}
		row(lead, &node.Snapshot)
	}
	if f.Newer != "" {
		fmt.Fprintf(tw, "┆  newer ones: cay snapshot tree %s\n", f.Newer)
	}
	tw.Flush()
}
