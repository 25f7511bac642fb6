package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

func newSnapshotExport(a *app) *cobra.Command {
	var quiet bool
	c := &cobra.Command{
		Use: "export SNAPSHOT [FILE]", Short: "Write a snapshot to a file",
		Long: `Write a snapshot to one file, for "cay snapshot import" here or elsewhere. Without
FILE, or with "-", it goes to standard output. FILE appears, or changes, once it is
complete.

The image the snapshot is of is not in the file; an import needs the same one.`,
		Example: "  cay snapshot export ready ready.snapshot\n  cay snapshot export ready | ssh other cay snapshot import --name ready",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return usage(cmd, "it takes a snapshot and at most one file")
			}
			return nil
		},
		ValidArgsFunction: a.completeSnapshots(1),
	}
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "show no progress")
	return a.verb(c, func(ctx context.Context, args []string) error {
		file := "-"
		if len(args) == 2 {
			file = args[1]
		}
		switch {
		case file == "-" && a.json:
			return &exitError{exitUsage, cay.Errorf(cay.Invalid, "--json does not go together with writing to standard output")}
		case file == "-" && isTerminal(a.stdout):
			return usage(c, "standard output is a terminal; name a file")
		}
		return a.exportSnapshot(ctx, args[0], file, quiet || a.json)
	})
}

// exported is the output of export with --json.
type exported struct {
	Snapshot string `json:"snapshot"`
	File     string `json:"file"`
	Bytes    int64  `json:"size_bytes"`
}

func (a *app) exportSnapshot(ctx context.Context, ref, file string, quiet bool) error {
	src, err := a.sandboxes().ExportSnapshot(ctx, ref)
	if err != nil {
		return err
	}
	defer src.Close() // it was only read
	p := a.newProgress(quiet || !isTerminal(a.stderr))
	counted := &countingReader{r: src, p: p, name: clean(ref)}
	if file == "-" {
		_, err = io.Copy(a.stdout, counted)
		p.done()
		return err
	}
	err = writeWhole(file, counted)
	p.done()
	if err != nil {
		return err
	}
	return a.show(exported{ref, file, counted.n}, func(w io.Writer) {
		fmt.Fprintf(w, "%s, %s\n", clean(file), bytesText(counted.n))
	})
}

// writeWhole writes r to a file and syncs it to disk; after an error no file is
// left. Only the owner can read the file, because it may contain secrets.
func writeWhole(file string, r io.Reader) error {
	dir, name := filepath.Split(file)
	f, err := os.CreateTemp(dir, "."+name+".*")
	if err != nil {
		return cay.Errorf(cay.Invalid, "cannot write %s: %w", file, reasonOf(err))
	}
	_, err = io.Copy(f, r)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

// reasonOf returns err without the operation and the path, for a message with
// its own names.
func reasonOf(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// countingReader shows the progress of reading r; total 0 means unknown.
type countingReader struct {
	r        io.Reader
	p        *progress
	name     string
	n, total int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	c.p.step(c.name, c.n, c.total)
	return n, err
}

type snapshotImportOptions struct {
	name, project string
	memory, quiet bool
	expiration    spanFlag
}

func newSnapshotImport(a *app) *cobra.Command {
	var o snapshotImportOptions
	c := &cobra.Command{
		Use: "import [FILE]", Short: "Make a snapshot of a file",
		Long: `Make a snapshot of a file that "cay snapshot export" wrote, and print its id. Without
FILE, or with "-", it comes from standard input.

It is one of files, also if the file has processes. --memory takes those over, too:
they then run with the trust this daemon has in its own, so it takes an admin token,
and a file you trust as you trust cay.`,
		Example: "  cay snapshot import ready.snapshot --name ready",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage(cmd, "it takes at most one file")
			}
			return nil
		},
	}
	fl := c.Flags()
	fl.StringVar(&o.name, "name", "", "name of the snapshot")
	fl.BoolVar(&o.memory, "memory", false, "take over the processes, too")
	fl.Var(&o.expiration, "expiration", "how long it is kept, as in 12h or 7d, or never (default never)")
	fl.StringVar(&o.project, "project", "", "project to make it in, by id")
	fl.BoolVarP(&o.quiet, "quiet", "q", false, "show no progress")
	return a.verb(c, func(ctx context.Context, args []string) error {
		src := a.stdin
		switch {
		case len(args) == 1 && args[0] != "-":
			f, err := os.Open(args[0])
			if err != nil {
				return cay.Errorf(cay.Invalid, "cannot import: %w", err)
			}
			defer f.Close()
			src = f
		case isTerminal(a.stdin):
			return usage(c, "standard input is a terminal; name a file")
		}
		return o.run(ctx, a, src)
	})
}

func (o *snapshotImportOptions) run(ctx context.Context, a *app, src *os.File) error {
	p := sandbox.ImportParams{ProjectID: o.project, Name: o.name, Memory: o.memory, Expiration: o.expiration.value()}
	if err := p.Validate(); err != nil {
		return &exitError{exitUsage, err}
	}
	total := int64(0)
	if info, err := src.Stat(); err == nil && info.Mode().IsRegular() {
		total = info.Size()
	}
	prog := a.newProgress(o.quiet || a.json || !isTerminal(a.stderr))
	s, err := a.sandboxes().ImportSnapshot(ctx, &countingReader{r: src, p: prog, name: "import", total: total}, p)
	prog.done()
	if err != nil {
		return err
	}
	return a.show(s, func(w io.Writer) { fmt.Fprintln(w, s.ID) })
}
