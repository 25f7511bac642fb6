package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/checkpoint"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/pages"
	"github.com/cayhq/cay/sandbox"
)

// runtimeName is State.Runtime of every State that this package saves.
const runtimeName = "gvisor"

// diskVersion is the version of gVisor's own format of disks, which gVisor writes into
// its own manifest.
const diskVersion = 1

// A checkpoint consists of one of two sets of files.
var (
	// memoryFiles have a whole machine: the sentry's own objects, which only the same
	// build can read; the places of the pages of memory and disk; and the pages.
	memoryFiles = []string{
		checkpointfiles.StateFileName, checkpointfiles.PagesMetadataFileName, checkpointfiles.PagesFileName,
	}
	// diskFiles have the files of file systems: a manifest; the trees as tar archives, in
	// which a file says where its pages are; the places of the pages; and the pages, unless
	// they are in parts (see package pages).
	diskFiles = []string{
		checkpointfiles.FSCheckpointManifestFileName, checkpointfiles.FSCheckpointMultiTarFileName,
		checkpointfiles.PagesMetadataFileName, checkpointfiles.PagesFileName,
	}
)

// filesOf returns the names of the files that s must have, except parts of pages.
func filesOf(s *machine.State) []string {
	switch {
	case s.Kind == machine.MemoryState:
		return memoryFiles
	case s.File(pages.MapName) != nil:
		return append(slices.Clone(diskFiles[:3]), pages.MapName)
	}
	return diskFiles
}

// newFiles returns the names of the files of a new state.
func newFiles(kind machine.StateKind) []string {
	if kind == machine.MemoryState {
		return memoryFiles
	}
	return append(slices.Clone(diskFiles[:3]), pages.NewPart(), pages.MapName)
}

// openFiles are the open files of a checkpoint, in the order of the set.
type openFiles []*os.File

// Close closes the files.
func (files openFiles) Close() error {
	var errs []error
	for _, f := range files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// bytes is the size of the files together.
func (files openFiles) bytes() (n int64, err error) {
	for _, f := range files {
		info, err := f.Stat()
		if err != nil {
			return 0, err
		}
		n += info.Size()
	}
	return n, nil
}

// createFiles makes the files of a checkpoint in dir. On failure it removes them.
func createFiles(dir string, names []string) (openFiles, error) {
	var files openFiles
	for _, name := range names {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("create checkpoint: %w", err), files.discard())
		}
		files = append(files, f)
	}
	return files, nil
}

// discard closes and removes files that createFiles has made.
func (files openFiles) discard() error {
	err := files.Close()
	for _, f := range files {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

// unnamedFiles makes files that are deleted when no process has them open any more.
func unnamedFiles(dir string, names []string) (openFiles, error) {
	var files openFiles
	for _, name := range names {
		fd, err := unnamed(dir)
		if err != nil {
			return nil, errors.Join(err, files.Close())
		}
		files = append(files, os.NewFile(uintptr(fd), name))
	}
	return files, nil
}

// readOnly opens the files again, for reading only.
func (files openFiles) readOnly() (openFiles, error) {
	var again openFiles
	for _, f := range files {
		fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open checkpoint: %w", err), again.Close())
		}
		again = append(again, os.NewFile(uintptr(fd), f.Name()))
	}
	return again, nil
}

// memoryVersion is the version of the files of a MemoryState, as far as cay itself decides
// about them: their set, what the pager writes and reads, and the specification that a
// machine is restored with. The rest is decided by the programs of the machine.
const memoryVersion = 1

// unknownBuild is in the states of machines whose programs could not be found. No build
// restores their memory.
const unknownBuild = "unknown"

// Checkpoint implements machine.Instance.
func (in *instance) Checkpoint(ctx context.Context, p machine.SaveParams) (*machine.State, error) {
	if len(p.Mounts) > 0 {
		return nil, cay.Errorf(cay.Invalid, "a machine's memory is saved with all its mounts, not with %q", p.Mounts)
	}
	// Whoever records the state keeps the programs from being removed until then.
	build, err := in.keepPrograms(ctx)
	if err != nil {
		return nil, fmt.Errorf("save machine %s: %w", in.st.ID, err)
	}
	return in.saveState(ctx, p, &machine.State{Kind: machine.MemoryState, Version: memoryVersion, Build: build})
}

// SaveDisk implements machine.Instance.
func (in *instance) SaveDisk(ctx context.Context, p machine.SaveParams) (*machine.State, error) {
	return in.saveState(ctx, p, &machine.State{Format: machine.PartsFormat, Kind: machine.DiskState, Version: diskVersion})
}

func (in *instance) saveState(ctx context.Context, p machine.SaveParams, s *machine.State) (*machine.State, error) {
	if err := in.checkSave(p); err != nil {
		return nil, err
	}
	s.Runtime, s.Arch, s.Images, s.Mounts = runtimeName, runtime.GOARCH, p.Images, p.Mounts
	if s.Kind == machine.MemoryState {
		s.Drives, s.Full = in.st.Drives, in.st.Full
	}
	saved, err := in.writeState(ctx, p, s)
	if errors.Is(err, errEncoding) && ctx.Err() == nil {
		saved, err = in.writeState(ctx, p, s)
	}
	return saved, err
}

// writeState writes a state into an empty directory. On failure it empties the directory.
func (in *instance) writeState(ctx context.Context, p machine.SaveParams, s *machine.State) (_ *machine.State, err error) {
	var base *baseDisk
	if s.Kind == machine.DiskState {
		if base, err = openBase(p); err != nil {
			in.r.log.WarnContext(ctx, "a disk is saved without the blocks of its last save", "id", in.st.ID, "error", err)
		}
		defer base.close()
	}
	files, err := createFiles(p.Dir, newFiles(s.Kind))
	if err != nil {
		return nil, hostError(errors.Join(err, base.discard()))
	}
	var shared []machine.StateFile
	if s.Paused, err = in.save(ctx, s.Kind, p.Mounts, files, base, p.MaxBytes); err == nil && s.Kind == machine.DiskState {
		shared, err = base.used(files[len(files)-1])
	}
	if err == nil {
		err = machine.SealState(ctx, p.Dir, s, files, shared...)
	}
	if err != nil {
		if rm := os.Remove(filepath.Join(p.Dir, machine.StateName)); !errors.Is(rm, os.ErrNotExist) {
			err = errors.Join(err, rm)
		}
		return nil, hostError(errors.Join(err, files.discard(), base.discard()))
	}
	return s, hostError(files.Close())
}

func (in *instance) checkSave(p machine.SaveParams) error {
	if p.MaxBytes < 0 {
		return cay.Errorf(cay.Invalid, "a bound of %d bytes is negative", p.MaxBytes)
	}
	left, err := os.ReadDir(p.Dir)
	if err != nil {
		return fmt.Errorf("look into directory to save to: %w", err)
	}
	if len(left) > 0 {
		return cay.Errorf(cay.Invalid, "the directory to save to is not empty, it has %q", left[0].Name())
	}
	switch {
	case len(p.Mounts) > 0:
		return in.checkDrive(p)
	case in.st.Mounts == nil: // started by a build that did not keep them
		return nil
	}
	return sameMounts(in.st.Mounts, p.Images)
}

// checkDrive returns an error unless p.Mounts names exactly one writable drive.
func (in *instance) checkDrive(p machine.SaveParams) error {
	if len(p.Mounts) > 1 || len(p.Images) > 0 {
		return cay.Errorf(cay.Invalid, "drives are saved one by one and have no images; %q with images of %d mounts were to be", p.Mounts, len(p.Images))
	}
	i := slices.IndexFunc(in.st.Drives, func(d machine.StateDrive) bool { return d.Target == p.Mounts[0] })
	switch {
	case i < 0:
		return cay.Errorf(cay.Invalid, "the machine has no drive at %s", p.Mounts[0])
	case in.st.Drives[i].ReadOnly:
		return cay.Errorf(cay.Invalid, "the drive at %s is read-only: there is nothing to save", p.Mounts[0])
	}
	return nil
}

// save makes the sentry write a checkpoint into files, through a pager, which has ended
// when save returns. The pager shares pages with base, if it is not nil. save does not sync
// the files.
func (in *instance) save(ctx context.Context, kind machine.StateKind, mounts []string, files openFiles, base *baseDisk, maxBytes int64) (took sandbox.Duration, err error) {
	in.saving.Lock()
	defer in.saving.Unlock()
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	w, end, err := in.r.startWriter(slices.Concat(files, base.file()), maxBytes)
	if err != nil {
		return 0, err
	}
	// gVisor has no call to cancel a save, but a save fails without its files.
	defer context.AfterFunc(ctx, func() { _ = w.refuse() })()
	began := time.Now()
	payload := urpc.FilePayload{Files: []*os.File{end}}
	if kind == machine.MemoryState {
		err = in.call(boot.ContMgrCheckpoint, &control.SaveOpts{
			FilePayload: payload, UseCheckpointGofer: true, HavePagesFile: true,
			Metadata: statefile.CompressionLevelNone.ToMetadata(),
			// Without Resume the sentry kills the machine after the save, even if it
			// could not write the checkpoint.
			Resume: true,
		})
	} else {
		args := &boot.FSSaveArgs{FilePayload: payload, UseCheckpointGofer: true}
		for _, m := range mounts {
			args.Paths = append(args.Paths, checkpoint.ResourceID{Path: m})
		}
		err = in.call(boot.ContMgrFSSave, args)
	}
	took = sandbox.Duration(time.Since(began))
	end.Close()
	// The writer knows best why it failed.
	werr := w.wait()
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.Is(err, errBrokenOff):
		err = errors.Join(in.crashed(), werr)
	case werr != nil:
		err = werr
	}
	if err != nil {
		return 0, fmt.Errorf("save machine %s: %w", in.st.ID, err)
	}
	return took, nil
}

// crashTime is how long a crashing sentry has to say why.
const crashTime = 5 * time.Second

// crashed waits for the end of a machine whose sentry has broken off a call, and returns
// why the machine ended. A sentry breaks off a call when it crashes, for example because
// the pager that saves was killed while the sentry opened the files of its memory.
func (in *instance) crashed() error {
	timer := time.NewTimer(crashTime)
	defer timer.Stop()
	select {
	case <-in.watched:
	case <-timer.C: // it has only hung up, and is no sentry any more
		if err := in.st.Sandbox.DestroyContainer(in.st.ID); err != nil {
			return fmt.Errorf("end sentry that does not answer: %w", err)
		}
		<-in.watched
	}
	if in.detached.Load() {
		return cay.Errorf(cay.Unavailable, "the machine has ended meanwhile")
	}
	return cay.Errorf(cay.Unavailable, "the machine has ended meanwhile: %s", in.exit.Message)
}

// errBrokenOff is the error of a call that was sent and got no answer.
var errBrokenOff = errors.New("the sentry does not answer")

// call calls the sentry.
func (in *instance) call(method string, args any) error {
	select {
	case <-in.done:
		return cay.Errorf(cay.Unavailable, "machine %s has ended", in.st.ID)
	default:
	}
	conn, err := connect(in.st)
	if err != nil {
		return err
	}
	defer conn.Close()
	err = conn.Call(method, args, nil)
	var said urpc.RemoteError
	// gVisor's error for a missing answer wraps no other error, so its text is compared.
	if err != nil && !errors.As(err, &said) && strings.HasPrefix(err.Error(), "urpc method ") {
		return fmt.Errorf("%w: %v", errBrokenOff, err)
	}
	return sentryError(err)
}

// sentryError turns an error of a sentry, which is a text with stack traces, into an
// error that can be returned to callers.
func sentryError(err error) error {
	if err == nil {
		return nil
	}
	first, _, _ := strings.Cut(err.Error(), "\n")
	switch {
	case strings.HasSuffix(first, ": EOF"), errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE):
		return cay.Errorf(cay.Unavailable, "the machine has ended meanwhile")
	case strings.Contains(first, "no checkpointable filesystems"):
		return cay.Errorf(cay.Conflict, "the drive is not mounted any more: the guest has unmounted it")
	case strings.Contains(first, "incompatible FeatureSet"):
		return cay.Errorf(cay.NotSupported, "the machine was saved on a processor with features that this host's does not have").
			WithHint("restore its disk, or restore it on a host like the one it was saved on")
	}
	if strings.Contains(first, "encoding error: reflect") {
		return fmt.Errorf("%w: %s", errEncoding, first)
	}
	return errors.New(first)
}

// errEncoding is the sentry's error when it cannot save a machine because some object is
// in transition: for example, rarely, its network right after an adoption. The machine
// goes on.
var errEncoding = errors.New("the machine is not in a state to be saved")

// hostError gives an error its code: no_space if the host's disk is full.
func hostError(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return cay.Errorf(cay.NoSpace, "the host's disk is full: %w", err).WithHint("the operator has to make room where snapshots are kept")
	}
	return err
}
