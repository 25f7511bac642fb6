package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/account"
)

const teamHelp = `Work with teams. A team is a tenant: it has its own projects, tokens and quota, and
sees nothing of others. Making and changing teams takes an admin token.`

func newTeamCommand(a *app) *cobra.Command {
	return newNoun("team", "Work with teams", teamHelp, newTeamCreate(a), newTeamList(a), newTeamQuota(a), newTeamRemove(a))
}

func newTeamCreate(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "create NAME", Short: "Make a team",
		Long: "Make a team and print its id. It has no projects and no tokens yet:",
		Example: `  team=$(cay team create red)
  cay --team $team project create web
  cay --team $team token create`,
		Args: exactly(1, "one name"), ValidArgsFunction: cobra.NoFileCompletions,
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		t, err := a.accounts().CreateTeam(ctx, account.CreateTeamParams{Name: args[0]})
		if err != nil {
			return err
		}
		return a.show(t, func(w io.Writer) { fmt.Fprintln(w, t.ID) })
	})
}

func newTeamList(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List teams",
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	return a.verb(c, func(ctx context.Context, _ []string) error {
		teams, err := all(func(p account.ListParams) (*account.Page[account.Team], error) { return a.accounts().ListTeams(ctx, p) })
		if err != nil {
			return err
		}
		return a.show(teams, func(w io.Writer) {
			table := newTable("ID", "NAME", "SANDBOXES", "VCPUS", "MEMORY", "DISK", "CREATES/MIN", "SNAPSHOTS", "IMAGES", "DOWNLOADS", "CREATED")
			for _, t := range teams {
				table.row(append([]string{t.ID, t.Name}, append(quotaCells(t.Quota), agoText(t.CreatedAt))...)...)
			}
			table.print(w)
		})
	})
}

// quotaCells are the bounds of a quota as text; 0 is no bound.
func quotaCells(q account.Quota) []string {
	cell := func(zero bool, s string) string {
		if zero {
			return "-"
		}
		return s
	}
	return []string{
		cell(q.Sandboxes == 0, fmt.Sprint(q.Sandboxes)), cell(q.VCPUs == 0, vcpuText(q.VCPUs)),
		cell(q.MemoryMB == 0, mibText(q.MemoryMB)), cell(q.DiskMB == 0, mibText(q.DiskMB)),
		cell(q.CreatesPerMinute == 0, fmt.Sprint(q.CreatesPerMinute)), cell(q.SnapshotMB == 0, mibText(q.SnapshotMB)),
		cell(q.ImageMB == 0, mibText(q.ImageMB)), cell(q.ImageDownloadMB == 0, mibText(q.ImageDownloadMB)),
	}
}

func newTeamQuota(a *app) *cobra.Command {
	var q account.Quota
	var memory, disk, snapshots, images, downloads sizeFlag
	c := &cobra.Command{
		Use: "quota TEAM", Short: "Show or change a team's quota",
		Long:    "Show what the sandboxes of a team may use at one time, and its images, or change\nthe bounds given as flags; 0 means no bound. TEAM is an id.",
		Example: "  cay team quota team_default --sandboxes 50 --memory 64GiB",
		Args:    exactly(1, "the id of a team"), ValidArgsFunction: cobra.NoFileCompletions,
	}
	fl := c.Flags()
	fl.IntVar(&q.Sandboxes, "sandboxes", 0, "running at once")
	fl.Float64Var(&q.VCPUs, "vcpus", 0, "sum of their vCPUs")
	fl.Var(&memory, "memory", "sum of their memory")
	fl.Var(&disk, "disk", "sum of their disk")
	fl.IntVar(&q.CreatesPerMinute, "creates-per-minute", 0, "created in a minute")
	fl.Var(&snapshots, "snapshots", "sum of their snapshots, of what is hibernated, and of drives")
	fl.Var(&images, "images", "disk of the images that the team has brought")
	fl.Var(&downloads, "image-downloads", "downloaded for images in a day (UTC)")
	return a.verb(c, func(ctx context.Context, args []string) error {
		client := a.accounts()
		t, err := client.GetTeam(ctx, args[0])
		if err != nil {
			return err
		}
		q.MemoryMB, q.DiskMB, q.SnapshotMB = memory.size.MiB(), disk.size.MiB(), snapshots.size.MiB()
		q.ImageMB, q.ImageDownloadMB = images.size.MiB(), downloads.size.MiB()
		next, changed := t.Quota, false
		for flag, apply := range map[string]func(){
			"sandboxes":          func() { next.Sandboxes = q.Sandboxes },
			"vcpus":              func() { next.VCPUs = q.VCPUs },
			"memory":             func() { next.MemoryMB = q.MemoryMB },
			"disk":               func() { next.DiskMB = q.DiskMB },
			"creates-per-minute": func() { next.CreatesPerMinute = q.CreatesPerMinute },
			"snapshots":          func() { next.SnapshotMB = q.SnapshotMB },
			"images":             func() { next.ImageMB = q.ImageMB },
			"image-downloads":    func() { next.ImageDownloadMB = q.ImageDownloadMB },
		} {
			if fl.Changed(flag) {
				apply()
				changed = true
			}
		}
		if changed {
			if t, err = client.SetQuota(ctx, t.ID, next); err != nil {
				return err
			}
		}
		return a.show(t.Quota, func(w io.Writer) {
			c := quotaCells(t.Quota)
			fields(w, "sandboxes", c[0], "vcpus", c[1], "memory", c[2], "disk", c[3], "creates per minute", c[4], "snapshots", c[5],
				"images", c[6], "image downloads", c[7])
		})
	})
}

func newTeamRemove(a *app) *cobra.Command {
	c := newDelete(a, "remove ID...", "Delete teams", "Delete teams with their projects and tokens, by their ids. A team that has\nsandboxes is not deleted.", "teams",
		func(ctx context.Context, c *account.Client, id string) error { return c.DeleteTeam(ctx, id) })
	c.Aliases = []string{"rm"}
	return c
}
