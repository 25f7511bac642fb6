package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

const snapshotHelp = `Work with snapshots: copies of what is in a sandbox, on disk, that sandboxes start
from. SNAPSHOT is a name or an id.`

func newSnapshotCommand(a *app) *cobra.Command {
	return newNoun("snapshot", "Work with snapshots", snapshotHelp,
		newSnapshotCreate(a), newSnapshotList(a), newSnapshotGet(a), newSnapshotTree(a), newSnapshotRemove(a), newSnapshotPrune(a),
		newSnapshotExport(a), newSnapshotImport(a))
}

// completeSnapshots offers the names of snapshots, and ids of snapshots without
// a name, for the first n arguments; n < 0 for all.
func (a *app) completeSnapshots(n int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if n >= 0 && len(args) >= n {
			return nil, cobra.ShellCompDirectiveDefault
		}
		page, err := a.sandboxes().ListSnapshots(cmd.Context(), sandbox.SnapshotListParams{Limit: 200})
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var refs []string
		for _, s := range page.Items {
			refs = append(refs, snapshotRef(&s))
		}
		return refs, cobra.ShellCompDirectiveNoFileComp
	}
}

// snapshotRef returns a snapshot's name, or its id.
func snapshotRef(s *sandbox.Snapshot) string {
	if s.Name != "" {
		return s.Name
	}
	return s.ID
}

type snapshotCreateOptions struct {
	memory, replace, stop, withoutNetwork, quiet bool
	name                                         string
	expiration                                   spanFlag
}

const snapshotCreateHelp = `Save what is in a sandbox that runs, and print the snapshot's id once it is on disk.
The sandbox goes on, but for moments in which it stands still.

It has the files; with --memory the processes, too, which then go on in every
sandbox that starts from it. The files start with any later version of cay, the
processes with this one only.`

func newSnapshotCreate(a *app) *cobra.Command {
	var o snapshotCreateOptions
	c := &cobra.Command{
		Use: "create SANDBOX", Short: "Save what is in a sandbox", Long: snapshotCreateHelp,
		Example: `  cay snapshot create web --name ready
  cay snapshot create web --memory --expiration 7d`,
		Args: exactly(1, "one sandbox"), ValidArgsFunction: a.completeSandboxes(1),
	}
	fl := c.Flags()
	fl.BoolVar(&o.memory, "memory", false, "save the processes with their memory, too")
	fl.StringVar(&o.name, "name", "", "name of the snapshot")
	fl.BoolVar(&o.replace, "replace", false, "take the name from the snapshot that has it")
	fl.Var(&o.expiration, "expiration", "how long it is kept, as in 12h or 7d, or never (default as the sandbox's)")
	fl.BoolVar(&o.stop, "stop", false, "stop the sandbox once it is saved")
	fl.BoolVar(&o.withoutNetwork, "without-network", false, "leave out the sandbox's network policy, which sandboxes that start from it would have")
	fl.BoolVarP(&o.quiet, "quiet", "q", false, "print the id only")
	return a.verb(c, func(ctx context.Context, args []string) error {
		p := sandbox.SnapshotParams{Name: o.name, Replace: o.replace, Expiration: o.expiration.value(), Stop: o.stop, WithoutNetwork: o.withoutNetwork}
		if o.memory {
			p.Kind = sandbox.MemorySnapshot
		}
		if err := p.Validate(); err != nil {
			return &exitError{exitUsage, err}
		}
		s, err := a.sandboxes().CreateSnapshot(ctx, args[0], p)
		if err != nil {
			return err
		}
		a.note(o.quiet || a.json, "%s in %s; %s stood still for %s", bytesText(s.SizeBytes), shortDuration(s.Duration), s.SandboxName, shortDuration(s.Paused))
		return a.show(s, func(w io.Writer) { fmt.Fprintln(w, s.ID) })
	})
}

type snapshotListOptions struct {
	sandbox, name, project string
	deleted, quiet         bool
}

func newSnapshotList(a *app) *cobra.Command {
	var o snapshotListOptions
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List snapshots", Long: "List snapshots, newest first.",
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	fl := c.Flags()
	fl.StringVar(&o.sandbox, "sandbox", "", "only those of this sandbox")
	fl.StringVar(&o.name, "name", "", "only the one with this name")
	fl.BoolVar(&o.deleted, "deleted", false, "also those that were deleted")
	fl.StringVar(&o.project, "project", "", "those of this project, by id; \"*\" for all of the team")
	fl.BoolVarP(&o.quiet, "quiet", "q", false, "print ids only")
	return a.verb(c, func(ctx context.Context, _ []string) error { return o.run(ctx, a) })
}

func (o *snapshotListOptions) run(ctx context.Context, a *app) error {
	p := sandbox.SnapshotListParams{ProjectID: o.project, Sandbox: o.sandbox, Name: o.name, Deleted: o.deleted}
	if err := p.Validate(); err != nil {
		return &exitError{exitUsage, err}
	}
	c := a.sandboxes()
	items, _, err := pages(0, func(n int, cursor string) (*sandbox.Page[sandbox.Snapshot], error) {
		p.Limit, p.Cursor = n, cursor
		return c.ListSnapshots(ctx, p)
	})
	if err != nil {
		return err
	}
	return a.show(items, func(w io.Writer) {
		if o.quiet {
			for _, s := range items {
				fmt.Fprintln(w, s.ID)
			}
			return
		}
		t := newTable("ID", "NAME", "KIND", "SANDBOX", "SIZE", "CREATED", "EXPIRES")
		for _, s := range items {
			t.row(s.ID, s.Name, snapshotKind(&s), snapshotSource(&s), bytesText(s.SizeBytes), agoText(s.CreatedAt), agoPtr(s.ExpiresAt))
		}
		t.print(w)
	})
}

// snapshotKind returns the kind of a snapshot, and whether it is automatic or
// deleted.
func snapshotKind(s *sandbox.Snapshot) string {
	switch {
	case s.Status == sandbox.SnapshotDeleted:
		return string(s.Kind) + " (deleted)"
	case s.Automatic:
		return string(s.Kind) + " (automatic)"
	}
	return string(s.Kind)
}

func snapshotSource(s *sandbox.Snapshot) string {
	switch {
	case s.SandboxName != "":
		return s.SandboxName
	case s.SandboxID == "":
		return "(imported)"
	}
	return s.SandboxID
}

func newSnapshotGet(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "get SNAPSHOT", Short: "Show a snapshot",
		Long: "Show a snapshot. One that was deleted is found by its id for 30 days.",
		Args: exactly(1, "one snapshot"), ValidArgsFunction: a.completeSnapshots(1),
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		s, err := a.sandboxes().GetSnapshot(ctx, args[0])
		if err != nil {
			return err
		}
		return a.show(s, func(w io.Writer) { describeSnapshot(w, s) })
	})
}

func describeSnapshot(w io.Writer, s *sandbox.Snapshot) {
	expires := agoPtr(s.ExpiresAt)
	if s.ExpiresAt == nil {
		expires = never
	}
	fields(w,
		"id", s.ID, "name", s.Name, "project", s.ProjectID,
		"kind", snapshotKind(s), "status", string(s.Status),
		"parent", s.ParentID, "sandbox", snapshotSource(s), "session", s.SessionID,
		"image", imageText(&sandbox.Sandbox{Image: s.Image, Runtime: s.Runtime}), "digest", s.Digest,
		"user", s.User, "workdir", s.WorkDir,
		"vcpus", vcpuText(s.VCPUs), "memory", mibText(s.MemoryMB), "disk", mibText(s.DiskMB),
		"build", s.Build, "size", bytesText(s.SizeBytes),
		"created", agoText(s.CreatedAt), "last used", agoPtr(s.LastUsedAt), "expires", expires,
		"took", durationText(s.Duration), "stood still", durationText(s.Paused),
	)
}

// removal deletes one object for a command of newRemoval.
type removal func(ctx context.Context, c *sandbox.Client, ref string, force bool) error

// newRemoval returns a command that deletes each of the named objects, continues
// after a failure, and prints the deleted ones. forced describes the effect of
// --force, apart from ignoring objects that do not exist.
func newRemoval(a *app, kind, short, long, forced string, complete cobra.CompletionFunc, do removal) *cobra.Command {
	var quiet, force bool
	c := &cobra.Command{
		Use: "remove " + kind + "...", Aliases: []string{"rm"}, Short: short, Long: long,
		Args: atLeast(1, "one or more names or ids"), ValidArgsFunction: complete,
	}
	c.Flags().BoolVarP(&force, "force", "f", false, forced+"one that is not there is no error")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print nothing")
	return a.verb(c, func(ctx context.Context, args []string) error {
		client := a.sandboxes()
		done := []string{}
		var errs []error
		for _, ref := range args {
			if ctx.Err() != nil {
				break
			}
			if err := do(ctx, client, ref, force); err != nil && !(force && cay.CodeOf(err) == cay.NotFound) {
				errs = append(errs, err)
				continue
			}
			done = append(done, ref)
		}
		err := a.show(done, func(w io.Writer) {
			if !quiet {
				for _, ref := range done {
					fmt.Fprintln(w, clean(ref))
				}
			}
		})
		return a.reportAll(append(errs, err)...)
	})
}

func newSnapshotRemove(a *app) *cobra.Command {
	return newRemoval(a, "SNAPSHOT", "Delete snapshots",
		`Delete snapshots. Sandboxes that have started from one go on. One that a persistent
sandbox is to start from the next time stays, unless --force: then that sandbox
cannot be resumed until "cay sandbox update --snapshot" has it start from another,
or from its image.`, "also one that a sandbox is to start from; ",
		a.completeSnapshots(-1),
		func(ctx context.Context, c *sandbox.Client, ref string, force bool) error {
			_, err := c.DeleteSnapshot(ctx, ref, sandbox.DeleteSnapshotParams{Force: force})
			return err
		})
}
