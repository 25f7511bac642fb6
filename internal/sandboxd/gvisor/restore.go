package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/machine"
)

// origin is the saved state that a machine begins with, in addition to its images. A nil
// *origin means no saved state.
type origin struct {
	kind machine.StateKind
	// files are for a pager, which must not write to them. A State precedes the files
	// whose sums it has; files before the first State are not verified, and may still be
	// growing (see lockFile).
	files openFiles
	// kept are the programs of another version that continue the state; nil: this
	// version's.
	kept *keptPrograms
	full bool // the machine whose memory it is was not restricted
	// together, if not nil, is closed when all machines that start at the same time have
	// started.
	together <-chan struct{}
}

func (o *origin) hasMemory() bool { return o != nil && o.kind == machine.MemoryState }

// diskPages returns pages if it has the contents of disks alone.
func (o *origin) diskPages(pages *os.File) *os.File {
	if o == nil || o.hasMemory() {
		return nil
	}
	return pages
}

// restricted reports whether a machine that starts as spec from o is restricted. Memory
// holds the privileges of processes, so a machine keeps those that it was saved with.
// Errors: not_supported.
func (o *origin) restricted(spec machine.Spec) (bool, error) {
	switch {
	case !o.hasMemory():
		return spec.Restricted, nil
	case o.full && spec.Restricted:
		return false, cay.Errorf(cay.NotSupported, "the machine's processes have full privileges, and cannot go on with restricted ones").
			WithHint("restore its disk, or allow full privileges")
	}
	return !o.full, nil
}

// close closes the files.
func (o *origin) close() error {
	if o == nil {
		return nil
	}
	o.kept.close()
	return o.files.Close()
}

// program is the program of the sentry that continues the state; nil: the chosen one.
func (o *origin) program() *os.File {
	if o == nil || o.kept == nil {
		return nil
	}
	return o.kept.sentry
}

// openStateFiles opens the State s in dir, and its files. It verifies the small files,
// which the sentry or cay interprets; the pager verifies the pages when they are needed.
func openStateFiles(ctx context.Context, dir string, s *machine.State) (files openFiles, err error) {
	open := func(names ...string) error {
		for _, name := range names {
			f, err := os.Open(filepath.Join(dir, name))
			if err != nil {
				return errors.Join(fmt.Errorf("open what was saved: %w", err), files.Close())
			}
			files = append(files, f)
		}
		return nil
	}
	if err := open(append([]string{machine.StateName}, filesOf(s)...)...); err != nil {
		return nil, err
	}
	for _, f := range files[1:] {
		name := filepath.Base(f.Name())
		if name == checkpointfiles.PagesFileName {
			continue
		}
		if err := s.File(name).Verify(ctx, f); err != nil {
			return nil, errors.Join(err, files.Close())
		}
	}
	return files, nil
}

// openMemory opens the state that Checkpoint saved in dir, to start spec from it. It gives
// spec the guest's program that is in the state.
func (r *Runtime) openMemory(ctx context.Context, spec *machine.Spec, dir string) (*origin, error) {
	s, err := machine.ReadState(dir)
	if err != nil {
		return nil, err
	}
	if err := canRead(s, machine.MemoryState); err != nil {
		return nil, err
	}
	if err := sameMounts(imageMounts(*spec), s.Images); err != nil {
		return nil, err
	}
	if err := sameDrives(*spec, s.Drives); err != nil {
		return nil, err
	}
	kept, err := r.openKept(ctx, spec, s.Build)
	if err != nil {
		return nil, err
	}
	files, err := openStateFiles(ctx, dir, s)
	if err != nil {
		kept.close()
		return nil, err
	}
	return &origin{kind: machine.MemoryState, files: files, kept: kept, full: s.Full}, nil
}

// openDisks opens the state of a root that SaveDisk saved in dir, unless dir is "", and
// of spec's drives, to start spec from it. The result may be nil.
func openDisks(ctx context.Context, spec machine.Spec, dir string) (_ *origin, err error) {
	var layers []*layer
	defer func() {
		for _, l := range layers {
			if err != nil {
				l.files.Close()
			}
		}
	}()
	open := func(dir, at string, sizeMB int64) error {
		if dir == "" {
			return nil
		}
		l, err := openLayer(ctx, dir, at, sizeMB)
		if err == nil {
			layers = append(layers, l)
		}
		return err
	}
	if err := open(dir, "/", spec.DiskMB); err != nil {
		return nil, err
	}
	for _, m := range spec.Mounts {
		if m.Drive != nil {
			if err := open(m.Drive.From, m.Target, m.Drive.SizeMB); err != nil {
				return nil, fmt.Errorf("drive at %s: %w", m.Target, err)
			}
		}
	}
	if len(layers) == 0 {
		return nil, nil
	}
	files, err := compose(layers)
	if err != nil {
		return nil, err
	}
	for _, l := range layers { // the pager gets another
		l.file(checkpointfiles.FSCheckpointManifestFileName).Close()
	}
	return &origin{kind: machine.DiskState, files: files}, nil
}

// canRead returns an error if this build cannot start a machine from s.
func canRead(s *machine.State, kind machine.StateKind) error {
	switch {
	case s.Kind != kind:
		return cay.Errorf(cay.Conflict, "what was saved of the machine is its %s, not its %s", s.Kind, kind)
	case s.Runtime != runtimeName:
		return cay.Errorf(cay.NotSupported, "the machine was saved by runtime %q, and this is %q", s.Runtime, runtimeName)
	case s.Arch != runtime.GOARCH:
		return cay.Errorf(cay.NotSupported, "the machine was saved on %s, and this host is %s", s.Arch, runtime.GOARCH)
	case kind == machine.DiskState && s.Version > diskVersion:
		return cay.Errorf(cay.NotSupported, "the machine's disk was saved in format %d; this build of cay knows formats up to %d", s.Version, diskVersion).
			WithHint("use the build of cay that saved it, or a later one")
	case kind == machine.MemoryState && s.Version > memoryVersion:
		return cay.Errorf(cay.NotSupported, "the machine's memory was saved in format %d; this build of cay knows formats up to %d", s.Version, memoryVersion).
			WithHint("restore its disk, or use the build of cay that saved it")
	}
	for _, name := range filesOf(s) {
		if s.File(name) == nil {
			return cay.Errorf(cay.Conflict, "what was saved of the machine is damaged: it has no %s", name)
		}
	}
	return nil
}

// SavesMemory implements machine.Runtime.
func (r *Runtime) SavesMemory() bool { return true }

// Start implements machine.Runtime.
func (r *Runtime) Start(ctx context.Context, spec machine.Spec) (machine.Instance, error) {
	return r.startDisks(ctx, spec, "")
}

// StartFrom implements machine.Runtime.
func (r *Runtime) StartFrom(ctx context.Context, spec machine.Spec, dir string) (machine.Instance, error) {
	if dir == "" {
		return nil, cay.Errorf(cay.Invalid, "the directory to start from is not given")
	}
	return r.startDisks(ctx, spec, dir)
}

func (r *Runtime) startDisks(ctx context.Context, spec machine.Spec, dir string) (_ machine.Instance, err error) {
	if err := checkMounts(spec); err != nil {
		return nil, err
	}
	from, err := openDisks(ctx, spec, dir)
	if err != nil {
		return nil, err
	}
	in, err := r.startFrom(ctx, spec, from)
	if cerr := from.close(); cerr != nil {
		r.log.Error("close what a machine was started from", "id", spec.ID, "error", cerr)
	}
	return in, err
}

// Restore implements machine.Runtime.
func (r *Runtime) Restore(ctx context.Context, spec machine.Spec, dir string) (machine.Instance, error) {
	if err := checkMounts(spec); err != nil {
		return nil, err
	}
	from, err := r.openMemory(ctx, &spec, dir)
	if err != nil {
		return nil, err
	}
	in, err := r.startFrom(ctx, spec, from)
	if code := cay.CodeOf(err); from.kept != nil && ctx.Err() == nil && (code == cay.Internal || code == cay.Unavailable) {
		err = cay.Errorf(cay.NotSupported, "the machine's memory was saved with the programs of another build of cay, which are kept, and did not continue: %w", err).
			WithHint("restore its disk, which all later builds can, or use the build of cay that saved it")
	}
	if cerr := from.close(); cerr != nil {
		r.log.Error("close what a machine was restored from", "id", spec.ID, "error", cerr)
	}
	return in, err
}

// restoreRoot gives the waiting sentry its network, and the pager's files to restore
// from.
func restoreRoot(ctx context.Context, st *state, end, pages *os.File) error {
	conn, err := connect(st)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := setNetwork(ctx, conn, end); err != nil {
		return err
	}
	opts := &boot.RestoreOpts{FilePayload: urpc.FilePayload{Files: []*os.File{pages}}, UseCheckpointGofer: true, Background: true}
	if err := callWithin(ctx, startTimeout, conn, boot.ContMgrRestore, opts); err != nil {
		return fmt.Errorf("restore the guest: %w", err)
	}
	return nil
}

// startError adds the sentry's own panic message to the reason why it did not start.
func (r *Runtime) startError(id string, err error) error {
	words := r.lastWords(id)
	if strings.Contains(words, "Deallocating more pages than allocated") {
		return errTooSmall
	}
	return fmt.Errorf("%w%s", err, words)
}

// errTooSmall is returned for a machine whose disk, or one of whose drives, is smaller
// than the saved state. openLayer detects most such machines.
var errTooSmall = cay.Errorf(cay.TooLarge, "what was saved of the disk, or of a drive, does not fit into the size it is to have").
	WithHint("give it the size it had")
