package main

import (
	"context"
	"io"
	"slices"
	"sync"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// sandboxFlags are the flags of every command that makes a sandbox.
type sandboxFlags struct {
	image, runtime string
	snapshot       string
	files          bool
	drives         []string
	vcpus          float64
	memory, disk   sizeFlag
	network        modeFlag
	policy         networkFlags
	tags           []string
	project        string
	privileges     string
}

func (f *sandboxFlags) register(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&f.image, "image", "", "image to start from; pulled if it is missing (default the default image)")
	fl.StringVar(&f.runtime, "runtime", "", "language runtime on the default image: node22, node24, node26 or python3.13 (default node24)")
	fl.StringVar(&f.snapshot, "snapshot", "", "snapshot to start from instead of an image, by id or name")
	fl.BoolVar(&f.files, "files", false, "with --snapshot, begin with its files alone, without its processes")
	fl.StringArrayVar(&f.drives, "drive", nil, driveUsage)
	fl.Float64Var(&f.vcpus, "vcpus", 0, "CPU limit, 0.1 to 64 (default 2)")
	fl.Var(&f.memory, "memory", "memory limit, as in 512MiB (default 2GiB for each vCPU)")
	fl.Var(&f.disk, "disk", "how much may be written, as in 10GiB (default 8GiB)")
	fl.Var(&f.network, "network", "allow-all or deny-all (default allow-all, or the snapshot's policy)")
	f.policy.register(c, "policy")
	fl.StringArrayVar(&f.tags, "tag", nil, "label the sandbox, as KEY=VALUE")
	fl.StringVar(&f.privileges, "privileges", "", "restricted takes raw sockets, packet sockets and nftables from root in the sandbox: Docker does not work then (default what the daemon allows)")
	fl.StringVar(&f.project, "project", "", "project to make it in, by id")
	mustComplete(c, "runtime", sandbox.Runtimes...)
	mustComplete(c, "privileges", string(sandbox.FullPrivileges), string(sandbox.RestrictedPrivileges))
	mustComplete(c, "network", string(sandbox.AllowAll), string(sandbox.DenyAll))
}

// mustComplete makes the shell offer values for a flag.
func mustComplete(c *cobra.Command, flag string, values ...string) {
	if err := c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag is not defined
	}
}

func (f *sandboxFlags) params(stdin io.Reader) (sandbox.CreateParams, error) {
	tags, err := parseTags(f.tags)
	if err != nil {
		return sandbox.CreateParams{}, err
	}
	network, _, err := f.policy.network(stdin, f.network.mode, "policy")
	if err != nil {
		return sandbox.CreateParams{}, err
	}
	mounts, err := parseMounts(f.drives)
	if err != nil {
		return sandbox.CreateParams{}, err
	}
	p := sandbox.CreateParams{
		Snapshot: f.snapshot, FilesOnly: f.files, Mounts: mounts,
		Image: f.image, Runtime: f.runtime, VCPUs: f.vcpus, MemoryMB: f.memory.size.MiB(), DiskMB: f.disk.size.MiB(),
		Network: network, Tags: tags, ProjectID: f.project, Privileges: sandbox.Privileges(f.privileges),
	}
	return p, p.Validate()
}

// The names of the default image and runtime.
const (
	defaultImage   = "debian"
	defaultRuntime = "node24"
)

// ensureImages builds or pulls the images that a sandbox needs, showing
// progress. The daemon would do so anyway, but silently.
func (a *app) ensureImages(ctx context.Context, c *sandbox.Client, p sandbox.CreateParams, quiet bool) error {
	if p.Snapshot != "" {
		return nil // it has its image
	}
	refs := []string{p.Image}
	if p.Image == "" {
		refs = []string{defaultImage, p.Runtime}
		if p.Runtime == "" {
			refs[1] = defaultRuntime
		}
	}
	images := c.Images()
	var missing []string
	for _, ref := range refs {
		_, err := images.Get(ctx, ref)
		switch {
		case cay.CodeOf(err) == cay.NotFound:
			missing = append(missing, ref)
		case err != nil:
			return err
		}
	}
	if len(missing) == 0 {
		return nil
	}
	// The runtime is downloaded while the image is made. Progress is shown of the image, which
	// takes longer.
	ctx, cancel := context.WithCancel(ctx)
	var others sync.WaitGroup
	defer others.Wait()
	defer cancel()
	failed := make(chan error, len(missing))
	for _, ref := range missing {
		if isBuilt(ref) {
			a.note(quiet, "building %s, once on this machine", ref)
		} else {
			a.note(quiet, "pulling %s", ref)
		}
	}
	for _, ref := range missing[1:] {
		others.Go(func() { failed <- obtainImage(ctx, images, ref, nil) })
	}
	prog := a.newProgress(quiet)
	err := obtainImage(ctx, images, missing[0], prog)
	prog.done()
	for range missing[1:] {
		if err != nil {
			return err
		}
		err = <-failed
	}
	return err
}

// isBuilt reports whether cay builds the image that ref names.
func isBuilt(ref string) bool {
	return ref == defaultImage || slices.Contains(sandbox.Runtimes, ref)
}

// obtainImage builds or pulls an image that is missing, with prog, if that is not nil.
func obtainImage(ctx context.Context, images *sandbox.Images, ref string, prog *progress) (err error) {
	if isBuilt(ref) {
		_, err = images.Build(ctx, ref, prog.image)
	} else {
		_, err = images.Pull(ctx, ref, prog.image)
	}
	if err != nil {
		if _, gerr := images.Get(ctx, ref); gerr == nil {
			return nil // somebody else was faster
		}
	}
	return err
}

// note prints a message about the progress on standard error.
func (a *app) note(quiet bool, format string, args ...any) {
	if !quiet {
		a.warn(format, args...)
	}
}
