package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

type sandboxUpdateOptions struct {
	vcpus         float64
	memory        sizeFlag
	timeout, idle time.Duration
	env, envFiles []string
	noEnv         bool
	drives        []string
	noDrives      bool
	snapshot      string
	runtime       string
	keep          keepFlags
	saveEvery     time.Duration
}

const updateHelp = `Change what a sandbox is in its next session, and what is kept of it, and print its
name. What is not said stays. The idle timeout changes at once.

A persistent sandbox that runs is saved when it stops, and starts from that: stop it
first to have it start from another snapshot.

"cay sandbox network", "ports", "tag" and "extend" change it while it runs.`

func newSandboxUpdate(a *app) *cobra.Command {
	var o sandboxUpdateOptions
	c := &cobra.Command{
		Use:   "update SANDBOX",
		Short: "Change a sandbox's settings",
		Long:  updateHelp,
		Example: `  cay sandbox update web --timeout 2h --memory 8GiB --keep 5,30d
  cay sandbox update web -e STAGE=prod
  cay sandbox update web --snapshot before-upgrade`,
		Args:              exactly(1, "one sandbox"),
		ValidArgsFunction: a.completeSandboxes(1),
	}
	fl := c.Flags()
	fl.Float64Var(&o.vcpus, "vcpus", 0, "CPU limit, 0.1 to 64")
	fl.Var(&o.memory, "memory", "memory limit, as in 512MiB")
	fl.DurationVar(&o.timeout, "timeout", 0, "stop it after that time")
	fl.DurationVar(&o.idle, "idle-timeout", 0, "stop it when nothing happened in it for that long; 0 for never")
	fl.StringArrayVarP(&o.env, "env", "e", nil, "variables of all its commands instead of those it has, as KEY=VALUE or KEY")
	fl.StringArrayVar(&o.envFiles, "env-file", nil, "the variables in a file of KEY=VALUE lines, instead of those it has")
	fl.BoolVar(&o.noEnv, "no-env", false, "set no variables")
	fl.StringArrayVar(&o.drives, "drive", nil, "drives to mount instead of those it has, as NAME:PATH, NAME:PATH:ro or NAME:PATH:copy")
	fl.BoolVar(&o.noDrives, "no-drives", false, "mount none")
	fl.StringVar(&o.runtime, "runtime", "", "runtime instead of the one it has: node22, node24, node26 or python3.13; its files stay")
	fl.StringVar(&o.snapshot, "snapshot", "", "start from that snapshot, by id or name; from its image if empty")
	o.keep.register(c)
	registerSaveEvery(c, &o.saveEvery)
	fl.Lookup("keep").Usage += "; default for no rule of its own"
	return a.verb(c, func(ctx context.Context, args []string) error {
		if fl.NFlag() == 0 {
			return usage(c, "there is nothing to change")
		}
		return o.run(ctx, a, args[0], fl.Changed)
	})
}

func (o *sandboxUpdateOptions) run(ctx context.Context, a *app, ref string, changed func(flag string) bool) error {
	p, err := o.params(changed)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	s, err := a.sandboxes().Update(ctx, ref, p)
	if err != nil {
		return err
	}
	return a.show(s, func(w io.Writer) { fmt.Fprintln(w, s.Name) })
}

func (o *sandboxUpdateOptions) params(changed func(flag string) bool) (p sandbox.UpdateParams, err error) {
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
	if changed("idle-timeout") {
		idle := sandbox.Duration(o.idle)
		p.IdleTimeout = &idle
	}
	if p.Env, err = parseEnv(o.envFiles, o.env, os.LookupEnv); err != nil {
		return p, err
	}
	if p.Mounts, err = parseMounts(o.drives); err != nil {
		return p, err
	}
	switch {
	case o.noEnv && p.Env != nil:
		return p, cay.Errorf(cay.Invalid, "--env and --no-env do not go together")
	case o.noDrives && p.Mounts != nil:
		return p, cay.Errorf(cay.Invalid, "--drive and --no-drives do not go together")
	}
	if o.noEnv {
		p.Env = map[string]string{} // not nil, which would mean no change
	}
	if o.noDrives {
		p.Mounts = []sandbox.Mount{}
	}
	if changed("runtime") {
		p.Runtime = &o.runtime
	}
	if changed("snapshot") {
		p.SnapshotID = &o.snapshot
	}
	p.SnapshotExpiration = o.keep.expiration.value()
	if changed("save-every") {
		every := sandbox.Duration(o.saveEvery)
		p.SaveEvery = &every
	}
	if p.Persistent, err = o.keep.persistence(); err != nil {
		return p, err
	}
	if p.Retention, err = o.keep.retention(); err != nil {
		return p, err
	}
	return p, p.Validate()
}
