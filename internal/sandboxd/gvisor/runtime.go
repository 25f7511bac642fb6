package gvisor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"sync"
	"sync/atomic"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/cleanup"
	gvlog "gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/flag"
	gvsandbox "gvisor.dev/gvisor/runsc/sandbox"
	"gvisor.dev/gvisor/runsc/specutils"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/network"
	"github.com/cayhq/cay/internal/sandboxd/programs"
)

// Config describes a Runtime.
type Config struct {
	// StateDir has a directory for each machine, and the unnamed files that machines
	// write to.
	StateDir string
	// Egress is the way out of guests. It must be closed after the Runtime. Nil means an
	// Egress of the Runtime's own, with the defaults of network.EgressConfig.
	Egress *network.Egress
	// NoLimits runs machines without CPU, memory and task limits where cgroups cannot be
	// used. Without NoLimits, New fails there.
	NoLimits bool
	// Programs keeps the programs that saved memory needs. Nil: memory is restored only by
	// a Runtime with the same programs.
	Programs *programs.Store
	Logger   *slog.Logger
}

// Runtime implements machine.Runtime.
type Runtime struct {
	cfg     Config
	log     *slog.Logger
	cgroups *cgroups
	egress  *network.Egress
	own     bool         // egress is to be closed
	table   *os.File     // see growFileTable
	loading atomic.Int32 // pagers that load

	mu   sync.Mutex        // guards held
	held map[string]func() // releases the kept programs that a machine runs, by machine id
}

// emptyDir is a directory in StateDir: the root of pagers. No machine has its name.
const emptyDir = ".empty"

var _ machine.Runtime = (*Runtime)(nil)

var initLog sync.Once

// New returns a Runtime over cfg.StateDir, which it creates. Errors: not_supported if
// this process cannot start sandboxes (not root, no usable cgroups, a StateDir on a file
// system mounted noexec).
func New(cfg Config) (*Runtime, error) {
	initLog.Do(func() { gvlog.SetTarget(&gvlog.GoogleEmitter{Writer: &gvlog.Writer{Next: io.Discard}}) })
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cgoEnabled {
		return nil, cay.Errorf(cay.NotSupported, "this build of cay uses cgo, with which gVisor does not start").
			WithHint("build it with make, or with CGO_ENABLED=0")
	}
	if os.Geteuid() != 0 {
		return nil, cay.Errorf(cay.NotSupported, "starting sandboxes needs root, and this process runs as user %d", os.Geteuid()).
			WithHint("run it as root, or use a daemon that does (CAY_URL and CAY_TOKEN)")
	}
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("create runtime directory: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(cfg.StateDir, &fs); err != nil {
		return nil, fmt.Errorf("look at runtime directory: %w", err)
	}
	if fs.Flags&unix.ST_NOEXEC != 0 {
		return nil, cay.Errorf(cay.NotSupported, "sandboxes' programs cannot run from %s: its file system is mounted with noexec", cfg.StateDir).
			WithHint("mount it without, or choose another data directory")
	}
	if err := os.Mkdir(filepath.Join(cfg.StateDir, emptyDir), 0); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("create runtime directory: %w", err)
	}
	cg, err := openCgroups()
	if err != nil {
		if !cfg.NoLimits {
			return nil, err
		}
		cg = nil
	}
	table, err := growFileTable()
	if err != nil {
		return nil, err
	}
	r := &Runtime{cfg: cfg, log: cfg.Logger, cgroups: cg, egress: cfg.Egress, table: table, held: make(map[string]func())}
	if r.egress == nil {
		if r.egress, err = network.NewEgress(network.EgressConfig{Logger: cfg.Logger}); err != nil {
			table.Close()
			return nil, err
		}
		r.own = true
	}
	if err := r.holdAll(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Close implements machine.Runtime.
func (r *Runtime) Close() error {
	if r.own {
		r.egress.Close()
	}
	return r.table.Close()
}

// state is the part of a machine's state that outlives this process, in state.json.
type state struct {
	ID      string             `json:"id"`
	Sandbox *gvsandbox.Sandbox `json:"sandbox"`
	Links   int                `json:"links"` // network links given to the sentry so far; names the next
	// Link is the inode of the daemon's end of the link, of which the sentry keeps a copy;
	// 0: it keeps none.
	Link   uint64                `json:"link,omitempty"`
	Limits *specs.LinuxResources `json:"limits"`
	Mounts []string              `json:"mounts"` // where images are, beside the root
	Drives []machine.StateDrive  `json:"drives,omitempty"`
	// Full says that the machine is not restricted; see machine.Spec.Restricted.
	Full bool `json:"full,omitempty"`
	// Origin is the kind of state that the machine started from; "" if from its image
	// alone.
	Origin machine.StateKind `json:"origin,omitempty"`
	// Tool is the file with the guest's program; "" if an earlier version started the
	// machine.
	Tool string `json:"tool,omitempty"`
	// Programs are the kept programs of another version that the machine runs, as a
	// programs.Pair; "" if it was started with this daemon's.
	Programs string `json:"programs,omitempty"`
}

func (r *Runtime) dir(id string) string { return filepath.Join(r.cfg.StateDir, id) }

// sentryConfig is gVisor's configuration for the machine that lives in dir.
func sentryConfig(dir string, restricted bool) (*config.Config, error) {
	fs := flag.NewFlagSet("cay", flag.ContinueOnError)
	config.RegisterFlags(fs)
	flags := map[string]string{
		"root":           dir,
		"panic-log":      filepath.Join(dir, "panic.log"),
		"network":        "none",  // no host network; the link is added over the control socket
		"directfs":       "false", // no host files to access, so the sentry can be nobody
		"ignore-cgroups": "true",  // see cgroup.go
		"host-settings":  "ignore",
		"allow-suid":     "true", // sudo
		"overlay2":       "none",
		// Restore and its callers check the properties that must not differ when a
		// machine continues from a checkpoint.
		"restore-spec-validation": "ignore",
		"sidecar-usage-policy":    "LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK", // the sentry is this binary
	}
	if !restricted {
		maps.Copy(flags, fullFlags)
	}
	for name, value := range flags {
		if err := fs.Set(name, value); err != nil {
			return nil, fmt.Errorf("set gVisor option %s=%s: %w", name, value, err)
		}
	}
	return config.NewFromFlags(fs)
}

// validID is compiled at first use, so never in a helper process.
var validID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9_]{1,64}$`) })

// startFrom is Start with a saved state to begin with; from is nil to begin with the
// image alone.
func (r *Runtime) startFrom(ctx context.Context, spec machine.Spec, from *origin) (machine.Instance, error) {
	in, err := r.start(ctx, spec, from)
	switch {
	case errors.Is(err, unix.ENOSPC) && cay.CodeOf(err) != cay.NoSpace:
		return nil, cay.Errorf(cay.NoSpace, "the host's disk is full: %w", err).WithHint("the operator has to make room below %s", r.cfg.StateDir)
	case err != nil:
		return nil, err
	}
	return in, nil
}

func (r *Runtime) start(ctx context.Context, spec machine.Spec, from *origin) (_ *instance, err error) {
	var pager *loader
	defer func() { err = pager.explain(err) }() // when nothing of the machine is left
	if !validID().MatchString(spec.ID) {
		return nil, cay.Errorf(cay.Invalid, "machine id %q is not 1 to 64 of a-z 0-9 _", spec.ID)
	}
	if spec.Restricted, err = from.restricted(spec); err != nil {
		return nil, err
	}
	dir := r.dir(spec.ID)
	if err := os.Mkdir(dir, 0o700); errors.Is(err, os.ErrExist) {
		return nil, cay.Errorf(cay.AlreadyExists, "machine %q exists", spec.ID)
	} else if err != nil {
		return nil, fmt.Errorf("create machine directory: %w", err)
	}
	cu := cleanup.Make(func() {
		if err := os.RemoveAll(dir); err != nil {
			r.log.Error("machine directory is left over", "dir", dir, "error", err)
		}
	})
	defer cu.Clean()

	oci := ociSpec(spec, dir)
	if err := writeJSON(filepath.Join(dir, "config.json"), oci); err != nil {
		return nil, err
	}
	conf, err := sentryConfig(dir, spec.Restricted)
	if err != nil {
		return nil, err
	}

	group, err := r.cgroups.create(spec.ID, oci.Linux.Resources)
	if err != nil {
		return nil, fmt.Errorf("create cgroup: %w", err)
	}
	cu.Add(func() {
		if err := group.end(context.WithoutCancel(ctx)); err != nil {
			r.log.Error("cgroup is left over", "id", spec.ID, "error", err)
		}
	})

	var pages *os.File // a pager's socket
	if from != nil {
		started := make(chan struct{})
		over := sync.OnceFunc(func() { close(started) })
		defer over()
		if pager, err = r.startLoader(from, group, started); err != nil {
			return nil, err
		}
		pages = pager.pages
		defer pages.Close()
		if from.together == nil {
			cu.Add(func() { // between the ends of the sentry, which ends the pager, and of its cgroup
				over()
				_ = pager.failure() // explain tells
			})
		}
	}
	link, err := r.newLink(spec.ID, spec.Network)
	if err != nil {
		return nil, err
	}
	defer link.closeEnds()
	cu.Add(func() { link.Close() })
	sb, err := r.startSentry(conf, oci, spec, group, sentryFiles{program: from.program(), pages: from.diskPages(pages), link: link.ours})
	if err != nil {
		return nil, err
	}
	cu.Add(func() {
		if err := sb.DestroyContainer(spec.ID); err != nil {
			r.log.Error("sentry is left over", "id", spec.ID, "error", err)
		}
	})
	st := &state{ID: spec.ID, Sandbox: sb, Links: 1, Link: link.inode, Limits: oci.Linux.Resources, Mounts: imageMounts(spec), Drives: spec.Drives(), Full: !spec.Restricted}
	if from != nil {
		st.Origin = from.kind
	}
	if i := toolMount(spec); i >= 0 {
		st.Tool = spec.Mounts[i].Source
	}
	if from != nil && from.kept != nil {
		st.Programs = from.kept.pair.String()
		r.hold(spec.ID, from.kept.pair)
		cu.Add(func() { r.unhold(spec.ID) })
	}
	if err := errors.Join(writeJSON(filepath.Join(dir, "state.json"), st), markPause(dir, markRunning)); err != nil {
		return nil, err
	}
	if from.hasMemory() {
		err = restoreRoot(ctx, st, link.guests, pages)
	} else {
		err = startRoot(ctx, st, link.guests)
	}
	if err != nil {
		return nil, r.startError(spec.ID, err)
	}
	in, err := newInstance(r, st, group, link.Link, pager)
	if err != nil {
		return nil, err
	}
	in.started = true
	if from.hasMemory() { // the guest has listened since before the checkpoint
		cu.Release()
		return in, nil
	}
	if err := in.awaitReady(ctx); err != nil {
		cu.Release()
		return nil, errors.Join(err, in.Destroy(context.WithoutCancel(ctx)))
	}
	cu.Release()
	return in, nil
}

// sentryFiles are files of which a sentry gets copies.
type sentryFiles struct {
	program *os.File // the program that it executes; nil: the chosen one
	pages   *os.File // the socket of a pager that has the contents of the disk; may be nil
	link    *os.File // the daemon's end of the link; see keptLink
}

// startSentry starts the sentry process inside the cgroup and returns when the sentry
// waits for the order to start the guest.
func (r *Runtime) startSentry(conf *config.Config, oci *specs.Spec, spec machine.Spec, group *group, files sentryFiles) (*gvsandbox.Sandbox, error) {
	var confs specutils.GoferMountConfFlags
	if err := confs.Set(mountConfs(spec)); err != nil {
		return nil, fmt.Errorf("describe mounts: %w", err)
	}
	hints, err := boot.NewPodMountHints(oci)
	if err != nil {
		return nil, fmt.Errorf("read mount hints: %w", err)
	}
	// sandbox.New takes these over, and closes them, also when it fails.
	images := make([]*os.File, 0, 2+len(spec.Mounts))
	closeImages := cleanup.Make(func() {
		for _, f := range images {
			f.Close()
		}
	})
	defer closeImages.Clean()
	sources := []string{spec.RootFS}
	for _, m := range spec.Mounts {
		if m.Drive == nil {
			sources = append(sources, m.Source)
		}
	}
	for _, path := range sources {
		f, err := os.Open(path)
		if err != nil {
			return nil, cay.Errorf(cay.Unavailable, "open image: %w", err)
		}
		if len(images) == 0 { // one image with all files is enough
			if f, err = aboveProgram(f, cmp.Or(files.program, chosen.file)); err != nil {
				return nil, err
			}
		}
		images = append(images, f)
	}
	if files.pages != nil { // see pagedDisk
		pager, err := duplicate(files.pages)
		if err != nil {
			return nil, err
		}
		images = append(images, pager)
	}
	var disks openFiles // of the root, and of the drives
	for range 1 + len(spec.Drives()) {
		disk, err := newDisk(r.cfg.StateDir)
		if err != nil {
			return nil, errors.Join(err, disks.Close())
		}
		disks = append(disks, disk)
	}
	kept, err := duplicate(files.link)
	if err != nil {
		return nil, errors.Join(err, disks.Close())
	}
	closeImages.Release()

	args := &gvsandbox.Args{
		ID: spec.ID, Spec: oci, BundleDir: r.dir(spec.ID),
		IOFiles: images, GoferFilestoreFiles: disks, SinkFiles: []*os.File{kept},
		GoferMountConfs: confs, MountHints: hints,
		Cgroup: group.forSentry(runtime.NumCPU()),
	}
	into, err := group.cloneInto()
	if err != nil {
		return nil, fmt.Errorf("open cgroup: %w", err)
	}
	if into != nil {
		defer into.Close()
		args.CloneIntoCgroupFD = into
	}
	var sb *gvsandbox.Sandbox
	err = startProgram(files.program, func() (err error) {
		sb, err = gvsandbox.New(conf, args)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("start sentry: %w%s", err, r.lastWords(spec.ID))
	}
	sb.CgroupJSON.Cgroup = nil // the limits that we passed must not be stored in state.json
	if into == nil {
		if err := group.add(sb.Getpid()); err != nil {
			return nil, errors.Join(fmt.Errorf("move sentry into its cgroup: %w", err), sb.DestroyContainer(spec.ID))
		}
	}
	return sb, nil
}

// newDisk returns an unnamed file for the data of a machine's overlay.
func newDisk(dir string) (*os.File, error) {
	fd, err := unnamed(dir)
	if err != nil {
		return nil, err
	}
	// The sentry's system call filter does not let the sentry do this itself.
	pgalloc.IMAWorkAroundForMemFile(uintptr(fd))
	return os.NewFile(uintptr(fd), "disk"), nil
}

// unnamed opens an empty file without a name, which the kernel frees when the last
// process closes it.
func unnamed(dir string) (int, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) {
		f, err := os.CreateTemp(dir, "disk-*")
		if err != nil {
			return -1, fmt.Errorf("create disk file: %w", err)
		}
		if err := os.Remove(f.Name()); err != nil {
			f.Close()
			return -1, fmt.Errorf("unlink disk file: %w", err)
		}
		fd, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		f.Close()
		if err != nil {
			return -1, fmt.Errorf("duplicate disk file: %w", err)
		}
	} else if err != nil {
		return -1, fmt.Errorf("create disk file in %s: %w", dir, err)
	}
	return fd, nil
}

// List implements machine.Runtime.
func (r *Runtime) List(context.Context) ([]string, error) {
	entries, err := os.ReadDir(r.cfg.StateDir)
	if err != nil {
		return nil, fmt.Errorf("list machines: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() && validID().MatchString(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

func (r *Runtime) load(id string) (*state, error) {
	b, err := os.ReadFile(filepath.Join(r.dir(id), "state.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, cay.Errorf(cay.NotFound, "machine %s is not there", id)
	}
	if err != nil {
		return nil, fmt.Errorf("read machine state: %w", err)
	}
	var st state
	if err := json.Unmarshal(b, &st); err != nil {
		return nil, cay.Errorf(cay.NotFound, "machine %s cannot be found: its state is damaged: %w", id, err)
	}
	st.Sandbox.SetRootDir(r.dir(id))
	return &st, nil
}

// Adopt implements machine.Runtime.
func (r *Runtime) Adopt(ctx context.Context, id string) (machine.Instance, error) {
	st, err := r.load(id)
	if err != nil {
		return nil, err
	}
	switch runs, err := isSentry(st.Sandbox.Getpid(), id); {
	case err != nil:
		return nil, fmt.Errorf("adopt machine %s: %w", id, err)
	case !runs:
		return nil, cay.Errorf(cay.NotFound, "machine %s no longer runs", id)
	}
	in, err := r.adopt(ctx, st)
	if errors.Is(err, errNoSocket) {
		// Only Destroy removes the socket, before it kills the sentry.
		return nil, cay.Errorf(cay.NotFound, "machine %s was being destroyed", id)
	}
	if err != nil {
		return nil, fmt.Errorf("adopt machine %s: %w", id, err)
	}
	return in, nil
}

func (r *Runtime) adopt(ctx context.Context, st *state) (*instance, error) {
	link, err := r.adoptLink(ctx, st)
	if err != nil {
		return nil, err
	}
	group := r.cgroups.open(st.ID)
	if group != nil {
		group.res = st.Limits
	}
	in, err := newInstance(r, st, group, link, nil)
	if err != nil {
		return nil, errors.Join(err, link.Close())
	}
	return in, nil
}

// Reap implements machine.Runtime.
func (r *Runtime) Reap(ctx context.Context, id string) error {
	if !validID().MatchString(id) {
		return cay.Errorf(cay.Invalid, "machine id %q is not 1 to 64 of a-z 0-9 _", id)
	}
	group := r.cgroups.open(id)
	// All processes in the cgroup belong to the machine, also when a start was cut short
	// before the state was written.
	if err := group.kill(ctx); err != nil {
		return fmt.Errorf("end machine %s: %w", id, err)
	}
	// The daemon may have died before it moved the sentry there, or there are no limits.
	pids, err := sentries(id)
	if err != nil {
		return fmt.Errorf("look for machine %s: %w", id, err)
	}
	for _, pid := range pids {
		if err := killProcess(ctx, pid); err != nil {
			return fmt.Errorf("end machine %s: %w", id, err)
		}
	}
	if err := group.remove(); err != nil {
		return fmt.Errorf("remove cgroup of %s: %w", id, err)
	}
	if err := os.RemoveAll(r.dir(id)); err != nil {
		return fmt.Errorf("remove machine directory: %w", err)
	}
	r.unhold(id)
	return nil
}

func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", filepath.Base(path), err)
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
