package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

type sandboxForkOptions struct {
	count               int
	names               []string
	files               bool
	vcpus               float64
	memory              sizeFlag
	timeout, idle       time.Duration
	env, envFiles, tags []string
	ports, drives       []string
	network             modeFlag
	policy              networkFlags
	keep                keepFlags
	quiet               bool
}

const forkHelp = `Make copies of a sandbox, or sandboxes from a snapshot, and print their names once
all of them answer. What is not said is as in the source.

Copies of a sandbox that runs go on with its processes, from the same moment, each
with an identity, a network and previews of its own; the source stands still for a
moment. Copies of one that has stopped begin with its files.`

func newSandboxFork(a *app) *cobra.Command {
	var o sandboxForkOptions
	c := &cobra.Command{
		Use:   "fork SANDBOX|SNAPSHOT",
		Short: "Copy a sandbox, also while it runs",
		Long:  forkHelp,
		Example: `  cay sandbox fork web --count 10
  cay sandbox fork web --name web-a --name web-b -e VARIANT=test --network deny-all
  cay sandbox fork snap_4hq0bn1rbm0ecn2vqp8f --files`,
		Args:              exactly(1, "one sandbox or snapshot"),
		ValidArgsFunction: a.completeSandboxes(1),
	}
	fl := c.Flags()
	fl.IntVarP(&o.count, "count", "n", 0, "how many copies (default 1, or one for each --name)")
	fl.StringArrayVar(&o.names, "name", nil, "name of a copy (default the source's and a number)")
	fl.BoolVar(&o.files, "files", false, "begin with the files as they were last saved, without processes")
	fl.Float64Var(&o.vcpus, "vcpus", 0, "CPU limit of each")
	fl.Var(&o.memory, "memory", "memory limit of each, as in 512MiB")
	fl.DurationVar(&o.timeout, "timeout", 0, "stop each after that time")
	fl.DurationVar(&o.idle, "idle-timeout", 0, "stop each when nothing happened in it for that long")
	fl.StringArrayVarP(&o.env, "env", "e", nil, "variables of all commands, as KEY=VALUE or KEY, instead of the source's")
	fl.StringArrayVar(&o.envFiles, "env-file", nil, "the variables in a file of KEY=VALUE lines, instead of the source's")
	fl.StringArrayVar(&o.tags, "tag", nil, "labels, as KEY=VALUE, instead of the source's")
	fl.StringArrayVarP(&o.ports, "port", "p", nil, "ports to serve previews of, as PORT or PORT:private, instead of the source's")
	fl.StringArrayVar(&o.drives, "drive", nil, "drives to mount, as NAME:PATH, NAME:PATH:ro or NAME:PATH:copy, instead of the source's")
	fl.Var(&o.network, "network", "allow-all or deny-all, instead of the source's policy")
	o.policy.register(c, "policy")
	o.keep.register(c)
	fl.BoolVarP(&o.quiet, "quiet", "q", false, "print names only")
	mustComplete(c, "network", string(sandbox.AllowAll), string(sandbox.DenyAll))
	return a.verb(c, func(ctx context.Context, args []string) error {
		p, err := o.params(a.stdin, fl.Changed)
		if err != nil {
			return &exitError{exitUsage, err}
		}
		return o.run(ctx, a, args[0], p)
	})
}

func (o *sandboxForkOptions) params(stdin io.Reader, changed func(flag string) bool) (p sandbox.ForkParams, err error) {
	p.Count, p.Names = o.count, o.names
	if changed("count") && o.count == 0 {
		return p, cay.Errorf(cay.Invalid, "--count is 0; it must be more than 0")
	}
	if o.files {
		p.Kind = sandbox.FilesystemSnapshot
	}
	if changed("vcpus") {
		p.VCPUs = &o.vcpus
	}
	if changed("memory") {
		mib := o.memory.size.MiB()
		p.MemoryMB = &mib
	}
	if p.Timeout, err = changedDuration("timeout", o.timeout, changed); err != nil {
		return p, err
	}
	if p.IdleTimeout, err = changedDuration("idle-timeout", o.idle, changed); err != nil {
		return p, err
	}
	if p.Env, err = parseEnv(o.envFiles, o.env, os.LookupEnv); err != nil {
		return p, err
	}
	if p.Tags, err = parseTags(o.tags); err != nil {
		return p, err
	}
	for _, text := range o.ports {
		port, err := parsePort(text)
		if err != nil {
			return p, err
		}
		p.Ports = append(p.Ports, port)
	}
	if p.Mounts, err = parseMounts(o.drives); err != nil {
		return p, err
	}
	network, given, err := o.policy.network(stdin, o.network.mode, "policy")
	if err != nil {
		return p, err
	}
	if given {
		p.Network = &network
	}
	p.SnapshotExpiration = o.keep.expiration.value()
	if p.Persistent, err = o.keep.persistence(); err != nil {
		return p, err
	}
	if p.Retention, err = o.keep.newRetention(); err != nil {
		return p, err
	}
	return p, p.Validate()
}

// changedDuration returns the value of a flag that was given; nil if not given.
func changedDuration(flag string, d time.Duration, changed func(string) bool) (*sandbox.Duration, error) {
	if !changed(flag) {
		return nil, nil
	}
	v, err := durationValue("--"+flag, d, true)
	return &v, err
}

func (o *sandboxForkOptions) run(ctx context.Context, a *app, ref string, p sandbox.ForkParams) error {
	c := a.sandboxes()
	ref, err := forkable(ctx, c, ref)
	if err != nil {
		return err
	}
	f, err := c.Fork(ctx, ref, p)
	if err != nil {
		return err
	}
	a.note(o.quiet || a.json, "%s", forkText(f))
	return a.show(f, func(w io.Writer) {
		for _, s := range f.Sandboxes {
			fmt.Fprintln(w, s.Name)
		}
	})
}

// forkable returns ref if it is a sandbox's, and the id of the snapshot that has
// that name otherwise.
func forkable(ctx context.Context, c *sandbox.Client, ref string) (string, error) {
	if strings.HasPrefix(ref, "snap_") || strings.HasPrefix(ref, "sbx_") {
		return ref, nil
	}
	_, err := c.Get(ctx, ref)
	if cay.CodeOf(err) != cay.NotFound {
		return ref, err
	}
	snap, serr := c.GetSnapshot(ctx, ref)
	switch {
	case serr == nil:
		return snap.ID, nil
	case cay.CodeOf(serr) == cay.NotFound:
		return "", cay.Errorf(cay.NotFound, "no sandbox and no snapshot is named %q", ref).WithHint(`see "cay sandbox list -a" and "cay snapshot list"`)
	}
	return "", serr
}

// forkText describes the cost of a fork.
func forkText(f *sandbox.Fork) string {
	what := "with the files of " + f.SnapshotID
	switch {
	case f.Kind == sandbox.MemorySnapshot:
		what = "with all processes"
	case f.SnapshotID == "":
		what = "with the files of the image"
	}
	text := fmt.Sprintf("%s %s in %s", plural(len(f.Sandboxes), "copy", "copies"), what, shortDuration(f.Phases.Ready))
	if f.CopiedBytes > 0 {
		text += fmt.Sprintf("; %s were copied", bytesText(f.CopiedBytes))
	}
	if f.Phases.Paused > 0 {
		text += fmt.Sprintf("; the source stood still for %s", shortDuration(f.Phases.Paused))
	}
	return text
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// shortDuration returns a duration in milliseconds, or in seconds from one
// second on.
func shortDuration(d sandbox.Duration) string {
	t := time.Duration(d)
	if t >= time.Second {
		return t.Round(10 * time.Millisecond).String()
	}
	return t.Round(time.Millisecond).String()
}
