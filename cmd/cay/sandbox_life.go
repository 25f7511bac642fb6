package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/sandbox"
)

func newSandboxPause(a *app) *cobra.Command {
	return newSandboxVerb(a, "pause", "Freeze all processes of sandboxes",
		"Freeze all processes of sandboxes; their memory is kept, and their timeouts go on.\n\"cay sandbox hibernate\" frees their memory, too.",
		func(ctx context.Context, c *sandbox.Client, ref string) (*sandbox.Sandbox, error) {
			return c.Pause(ctx, ref)
		})
}

func newSandboxHibernate(a *app) *cobra.Command {
	return newSandboxVerb(a, "hibernate", "Save sandboxes with their processes and free their memory",
		"Save sandboxes with their processes on disk, and free the memory and CPU they use.\nWhat needs one next, or \"cay sandbox resume\", lets it go on where it was.",
		func(ctx context.Context, c *sandbox.Client, ref string) (*sandbox.Sandbox, error) {
			return c.Hibernate(ctx, ref)
		})
}

func newSandboxResume(a *app) *cobra.Command {
	var p sandbox.ResumeParams
	c := newSandboxVerb(a, "resume", "Make sandboxes run",
		`Make sandboxes run: those that are paused or hibernated go on, persistent ones
that have stopped start from what was saved of them, and those that run are left
alone. With --anew those that are not persistent start, too, without what was not
saved.`,
		func(ctx context.Context, c *sandbox.Client, ref string) (*sandbox.Sandbox, error) {
			return c.Resume(ctx, ref, p)
		})
	c.Flags().BoolVar(&p.Fresh, "anew", false, "start also those that are not persistent: from their last snapshot, else from their image")
	c.Flags().BoolVar(&p.FilesOnly, "files", false, "start hibernated ones from their files alone, without their processes")
	return c
}

// sessionPage is how many sessions are shown unless the user asks for all.
const sessionPage = 50

func newSandboxSessions(a *app) *cobra.Command {
	var everything bool
	c := &cobra.Command{
		Use: "sessions SANDBOX", Short: "List the runs of a sandbox",
		Long: fmt.Sprintf("List the sessions of a sandbox, newest first: its runs, each from a start to a stop.\nWithout --all, the newest %d.", sessionPage),
		Args: exactly(1, "one sandbox"), ValidArgsFunction: a.completeSandboxes(1),
	}
	c.Flags().BoolVarP(&everything, "all", "a", false, "all of them")
	return a.verb(c, func(ctx context.Context, args []string) error {
		client := a.sandboxes()
		limit := sessionPage
		if everything {
			limit = 0
		}
		items, more, err := pages(limit, func(n int, cursor string) (*sandbox.Page[sandbox.Session], error) {
			return client.Sessions(ctx, args[0], sandbox.SessionParams{Limit: n, Cursor: cursor})
		})
		if err != nil {
			return err
		}
		err = a.show(items, func(w io.Writer) {
			t := newTable("ID", "STATUS", "STARTED", "RAN FOR", "CPU TIME", "FROM", "SAVED AS")
			// Snapshots that sandboxes hibernate in are not shown as snapshots.
			hidden := make(map[string]bool)
			for _, s := range items {
				hidden[s.SnapshotID] = s.Status == sandbox.Hibernated
			}
			text := func(id, otherwise string) string {
				switch {
				case id == "":
					return otherwise
				case hidden[id]:
					return "hibernation"
				}
				return id
			}
			for _, s := range items {
				t.row(s.ID, sessionStatus(&s), agoPtr(s.StartedAt), durationText(s.Usage.WallTime), durationText(s.Usage.ActiveCPU),
					text(s.SourceID, "image"), text(s.SnapshotID, ""))
			}
			t.print(w)
		})
		a.note(!more || a.json, "there are older ones; --all shows them")
		return err
	})
}

func sessionStatus(s *sandbox.Session) string {
	return statusText(&sandbox.Sandbox{Status: s.Status, Reason: s.Reason})
}

// pages reads a list to its end, or until it has limit items (0: all), and
// reports whether there is more.
func pages[T any](limit int, list func(n int, cursor string) (*sandbox.Page[T], error)) (items []T, more bool, err error) {
	items = []T{}
	for cursor := ""; ; {
		n := 200
		if limit > 0 {
			n = min(n, limit-len(items))
		}
		page, err := list(n, cursor)
		if err != nil {
			return nil, false, err
		}
		items = append(items, page.Items...)
		cursor = page.Next
		if cursor == "" || limit > 0 && len(items) >= limit {
			return items, cursor != "", nil
		}
	}
}

func newSandboxPool(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "pool", Short: "Show the stocks of booted machines",
		Long: "Show the daemon's pools: machines that have booted and were never used, from which\nsandboxes are made in milliseconds. It takes an admin token.",
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	return a.verb(c, func(ctx context.Context, _ []string) error {
		pools, err := a.sandboxes().Pools(ctx)
		if err != nil {
			return err
		}
		if pools == nil {
			pools = []sandbox.Pool{}
		}
		return a.show(pools, func(w io.Writer) {
			t := newTable("IMAGE", "VCPUS", "MEMORY", "DISK", "READY", "STARTING", "CLAIMED", "MISSED", "PROBLEM")
			for _, p := range pools {
				t.row(imageText(&sandbox.Sandbox{Image: p.Image, Runtime: p.Runtime}), vcpuText(p.VCPUs), mibText(p.MemoryMB), mibText(p.DiskMB),
					fmt.Sprintf("%d / %d", p.Ready, p.Target), fmt.Sprint(p.Starting), fmt.Sprint(p.Claims), fmt.Sprint(p.Misses), p.Problem)
			}
			t.print(w)
		})
	})
}
