package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/sandbox"
)

const driveHelp = `Work with drives: file systems that outlive the sandboxes they are mounted into, by
"cay sandbox create --drive". DRIVE is a name or an id.

One sandbox at a time has a drive read-write; what it wrote is saved when it stops.
Any number of others read what was last saved, or write to copies of it.`

func newDriveCommand(a *app) *cobra.Command {
	return newNoun("drive", "Work with drives", driveHelp,
		newDriveCreate(a), newDriveList(a), newDriveGet(a), newDriveSave(a), newDriveClone(a), newDriveRemove(a))
}

// completeDrives offers the names of drives for the first n arguments; n < 0 for
// all.
func (a *app) completeDrives(n int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if n >= 0 && len(args) >= n {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		page, err := a.sandboxes().ListDrives(cmd.Context(), sandbox.DriveListParams{NamePrefix: prefix, Limit: 200})
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var names []string
		for _, d := range page.Items {
			names = append(names, d.Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func newDriveCreate(a *app) *cobra.Command {
	var size sizeFlag
	var project string
	c := &cobra.Command{
		Use: "create NAME", Short: "Create an empty drive", Long: "Create an empty drive and print its name.",
		Example: "  cay drive create data --size 10GiB\n  cay sandbox create web --drive data:/data",
		Args:    exactly(1, "one name"), ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().Var(&size, "size", "how much it may hold, as in 10GiB (default 1GiB)")
	c.Flags().StringVar(&project, "project", "", "project to make it in, by id")
	return a.verb(c, func(ctx context.Context, args []string) error {
		return a.createDrive(ctx, sandbox.CreateDriveParams{Name: args[0], MaxMB: size.size.MiB(), ProjectID: project})
	})
}

func newDriveClone(a *app) *cobra.Command {
	var size sizeFlag
	c := &cobra.Command{
		Use: "clone DRIVE NAME", Short: "Make a copy of a drive",
		Long: "Make a drive of what another holds now, also while a sandbox has that, and print\nits name.",
		Args: exactly(2, "a drive and the name of the copy"), ValidArgsFunction: a.completeDrives(1),
	}
	c.Flags().Var(&size, "size", "how much it may hold, as in 10GiB (default as the other)")
	return a.verb(c, func(ctx context.Context, args []string) error {
		return a.createDrive(ctx, sandbox.CreateDriveParams{From: args[0], Name: args[1], MaxMB: size.size.MiB()})
	})
}

func (a *app) createDrive(ctx context.Context, p sandbox.CreateDriveParams) error {
	if err := p.Validate(); err != nil {
		return &exitError{exitUsage, err}
	}
	d, err := a.sandboxes().CreateDrive(ctx, p)
	if err != nil {
		return err
	}
	return a.show(d, func(w io.Writer) { fmt.Fprintln(w, d.Name) })
}

type driveListOptions struct {
	prefix, project string
	quiet           bool
}

func newDriveList(a *app) *cobra.Command {
	var o driveListOptions
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List drives", Long: "List drives, newest first.",
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	fl := c.Flags()
	fl.StringVar(&o.prefix, "prefix", "", "only those whose name begins so")
	fl.StringVar(&o.project, "project", "", "those of this project, by id; \"*\" for all of the team")
	fl.BoolVarP(&o.quiet, "quiet", "q", false, "print names only")
	return a.verb(c, func(ctx context.Context, _ []string) error { return o.run(ctx, a) })
}

func (o *driveListOptions) run(ctx context.Context, a *app) error {
	p := sandbox.DriveListParams{ProjectID: o.project, NamePrefix: o.prefix}
	if err := p.Validate(); err != nil {
		return &exitError{exitUsage, err}
	}
	c := a.sandboxes()
	items, _, err := pages(0, func(n int, cursor string) (*sandbox.Page[sandbox.Drive], error) {
		p.Limit, p.Cursor = n, cursor
		return c.ListDrives(ctx, p)
	})
	if err != nil {
		return err
	}
	return a.show(items, func(w io.Writer) {
		if o.quiet {
			for _, d := range items {
				fmt.Fprintln(w, d.Name)
			}
			return
		}
		t := newTable("NAME", "SIZE", "SAVED", "WRITTEN BY", "CREATED")
		for _, d := range items {
			t.row(d.Name, bytesText(d.SizeBytes)+" / "+mibText(d.MaxMB), agoPtr(d.SavedAt), d.SandboxName, agoText(d.CreatedAt))
		}
		t.print(w)
	})
}

func newDriveGet(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "get DRIVE", Short: "Show a drive",
		Args: exactly(1, "one drive"), ValidArgsFunction: a.completeDrives(1),
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		d, err := a.sandboxes().GetDrive(ctx, args[0])
		if err != nil {
			return err
		}
		return a.show(d, func(w io.Writer) {
			fields(w,
				"name", d.Name, "id", d.ID, "project", d.ProjectID,
				"may hold", mibText(d.MaxMB), "saved", agoPtr(d.SavedAt), "saved size", bytesText(d.SizeBytes),
				"written by", d.SandboxName, "cloned from", d.ParentID,
				"created", agoText(d.CreatedAt),
			)
		})
	})
}

func newDriveSave(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "save DRIVE", Short: "Save what a drive holds now",
		Long: "Save what a drive holds now, without waiting for the sandbox that writes to it to\nstop, so that others see it; and print how large it is.",
		Args: exactly(1, "one drive"), ValidArgsFunction: a.completeDrives(1),
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		d, err := a.sandboxes().SaveDrive(ctx, args[0])
		if err != nil {
			return err
		}
		return a.show(d, func(w io.Writer) { fmt.Fprintln(w, bytesText(d.SizeBytes)) })
	})
}

func newDriveRemove(a *app) *cobra.Command {
	return newRemoval(a, "DRIVE", "Delete drives",
		"Delete drives and what they hold. One that a sandbox writes to stays.", "",
		a.completeDrives(-1),
		func(ctx context.Context, c *sandbox.Client, ref string, _ bool) error { return c.DeleteDrive(ctx, ref) })
}
