package fake

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

const (
	runtimeName = "fake"
	diskName    = "root.tar"
	diskVersion = 1
)

var errNoMemory = cay.Errorf(cay.NotSupported, "the fake runtime cannot save the memory of machines")

// SavesMemory implements machine.Runtime: processes of the host cannot be saved.
func (r *Runtime) SavesMemory() bool { return false }

// Restore implements machine.Runtime.
func (r *Runtime) Restore(context.Context, machine.Spec, string) (machine.Instance, error) {
	return nil, errNoMemory
}

// Checkpoint implements machine.Instance.
func (i *instance) Checkpoint(context.Context, machine.SaveParams) (*machine.State, error) {
	return nil, errNoMemory
}

// Fork implements machine.Instance.
func (i *instance) Fork(context.Context, machine.ForkParams) (*machine.Forked, error) {
	return nil, errNoMemory
}

// StartFrom implements machine.Runtime.
func (r *Runtime) StartFrom(ctx context.Context, spec machine.Spec, dir string) (machine.Instance, error) {
	s, f, err := openState(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if len(s.Mounts) > 0 {
		return nil, cay.Errorf(cay.Conflict, "what was saved is the drive at %s, not the root of a machine", s.Mounts[0])
	}
	return r.start(ctx, spec, func(root string) error { return unpack(root, f) })
}

// openState opens the archive saved in dir.
func openState(ctx context.Context, dir string) (*machine.State, *os.File, error) {
	s, err := machine.VerifyState(ctx, dir)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case s.Kind != machine.DiskState:
		return nil, nil, cay.Errorf(cay.Conflict, "what was saved of the machine is its %s, not its disk", s.Kind)
	case s.Runtime != runtimeName:
		return nil, nil, cay.Errorf(cay.NotSupported, "the machine was saved by runtime %q, and this is %q", s.Runtime, runtimeName)
	case s.Version > diskVersion || len(s.Files) != 1 || s.Files[0].Name != diskName:
		return nil, nil, cay.Errorf(cay.NotSupported, "the machine's disk was saved in format %d", s.Version)
	}
	f, err := os.Open(filepath.Join(dir, diskName))
	return s, f, err
}

func sameMounts(spec machine.Spec, images map[string]string) error {
	want := []string{"/"}
	for _, m := range spec.Mounts {
		if m.Drive == nil {
			want = append(want, m.Target)
		}
	}
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(images)); !slices.Equal(got, want) {
		return cay.Errorf(cay.Invalid, "images are given for %q, and the machine has them at %q", got, want)
	}
	return nil
}

// SaveDisk implements machine.Instance. The machine is paused meanwhile.
func (i *instance) SaveDisk(ctx context.Context, p machine.SaveParams) (*machine.State, error) {
	if err := i.checkSave(p); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(p.Dir, diskName), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := &machine.State{Kind: machine.DiskState, Runtime: runtimeName, Arch: runtime.GOARCH, Version: diskVersion, Images: p.Images, Mounts: p.Mounts}
	root, without := filepath.Join(i.m.dir, "root"), i.m.spec.Drives()
	if len(p.Mounts) > 0 {
		root, without = filepath.Join(root, p.Mounts[0]), nil
	}
	began := time.Now()
	wasPaused := i.m.setPaused(true)
	err = pack(ctx, &bounded{f, p.MaxBytes}, root, without)
	if !wasPaused {
		i.m.setPaused(false)
	}
	s.Paused = sandbox.Duration(time.Since(began))
	if err == nil {
		err = machine.SealState(ctx, p.Dir, s, []*os.File{f})
	}
	if err != nil {
		if rm := os.Remove(filepath.Join(p.Dir, machine.StateName)); !errors.Is(rm, fs.ErrNotExist) {
			err = errors.Join(err, rm)
		}
		if errors.Is(err, unix.ENOSPC) {
			err = cay.Errorf(cay.NoSpace, "the disk is full: %w", err)
		}
		return nil, errors.Join(err, os.Remove(f.Name()))
	}
	return s, nil
}

func (i *instance) checkSave(p machine.SaveParams) error {
	if i.m.ended() {
		return cay.Errorf(cay.Unavailable, "machine %q has ended", i.ID())
	}
	if p.MaxBytes < 0 {
		return cay.Errorf(cay.Invalid, "a bound of %d bytes is negative", p.MaxBytes)
	}
	left, err := os.ReadDir(p.Dir)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return cay.Errorf(cay.Invalid, "the directory to save to is not empty, it has %q", left[0].Name())
	}
	if len(p.Mounts) > 0 {
		return i.checkDrive(p)
	}
	return sameMounts(i.m.spec, p.Images)
}

// bounded is a writer that fails instead of writing more than left bytes in all; 0: no
// bound.
type bounded struct {
	w    io.Writer
	left int64
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.left != 0 {
		if b.left -= int64(len(p)); b.left <= 0 {
			b.left = -1
			return 0, cay.Errorf(cay.TooLarge, "the machine's disk is larger than what may be saved")
		}
	}
	return b.w.Write(p)
}

// pack writes a directory's files, directories and symbolic links as a tar archive,
// without the content of drives.
func pack(ctx context.Context, w io.Writer, root string, drives []machine.StateDrive) error {
	tw := tar.NewWriter(w)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		var link string
		switch {
		case info.Mode().Type() == fs.ModeSymlink:
			if link, err = os.Readlink(path); err != nil {
				return err
			}
		case !info.IsDir() && !info.Mode().IsRegular():
			return nil
		}
		h, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		if h.Name, err = filepath.Rel(root, path); err != nil {
			return err
		}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if info.IsDir() && slices.ContainsFunc(drives, func(d machine.StateDrive) bool { return filepath.Join(root, d.Target) == path }) {
			return fs.SkipDir
		}
		if !info.Mode().IsRegular() {
			return nil
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.CopyN(tw, f, info.Size())
		return err
	})
	if err != nil {
		return err
	}
	return tw.Close()
}

// unpack extracts an archive of pack into a directory that it creates.
func unpack(dir string, r io.Reader) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	var dirs []*tar.Header // to set their modes last, which may forbid writing into them
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(h.Name, 0o700)
			dirs = append(dirs, h)
		case tar.TypeSymlink:
			err = root.Symlink(h.Linkname, h.Name)
		case tar.TypeReg:
			err = unpackFile(root, h, tr)
		default:
			err = fmt.Errorf("unexpected entry %q", h.Name)
		}
		if err != nil {
			return err
		}
	}
	for _, h := range slices.Backward(dirs) {
		if err := root.Chmod(h.Name, h.FileInfo().Mode()); err != nil {
			return err
		}
	}
	return nil
}

func unpackFile(root *os.Root, h *tar.Header, r io.Reader) error {
	f, err := root.OpenFile(h.Name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	err = errors.Join(err, f.Chmod(h.FileInfo().Mode()), f.Close())
	if err != nil {
		return err
	}
	return root.Chtimes(h.Name, time.Time{}, h.ModTime)
}
