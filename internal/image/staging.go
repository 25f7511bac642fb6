package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/flock"
	"github.com/cayhq/cay/internal/image/rootfs"
)

// staging is a directory for the working files of one piece of work. Its lock tells other
// processes that the owner is alive.
type staging struct {
	dir  string
	lock *os.File
}

// newStaging makes a staging directory; close removes it.
func (s *Store) newStaging() (*staging, error) {
	// A directory that is not locked yet looks abandoned, so making one excludes
	// clearing.
	gate, err := s.stagingGate(unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	defer flock.Close(gate)
	dir, err := os.MkdirTemp(filepath.Join(s.dir, "tmp"), "")
	if err != nil {
		return nil, diskError(err)
	}
	lock, err := openLocked(dir, os.O_RDONLY|unix.O_DIRECTORY, unix.LOCK_EX)
	if err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	return &staging{dir, lock}, nil
}

func (s *Store) stagingGate(how int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(s.dir, "tmp.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, diskError(err)
	}
	// The lock is held for a few system calls only, so the wait needs no cancellation.
	if err := flock.Lock(f, how); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (st *staging) create(pattern string) (*os.File, error) {
	f, err := os.CreateTemp(st.dir, pattern+"-*")
	if err != nil {
		return nil, diskError(err)
	}
	return f, nil
}

// newTree returns an empty tree whose contents live in the staging directory,
// and a function that frees them.
func (s *Store) newTree(st *staging) (*rootfs.Tree, func(), error) {
	limits, err := s.limits()
	if err != nil {
		return nil, nil, err
	}
	spool, err := st.create("spool")
	if err != nil {
		return nil, nil, err
	}
	return rootfs.New(spool, limits), func() { spool.Close() }, nil
}

func (st *staging) close() error {
	defer flock.Close(st.lock)
	return removeTree(st.dir)
}

// closeInto closes st and puts a failure into err, unless err has an error already. The
// next Open or GC finds files that stay behind and tries to remove them.
func (st *staging) closeInto(err *error) {
	if cerr := st.close(); *err == nil {
		*err = cerr
	}
}

// clearStaging removes the staging directories of processes that have died and
// returns the number of bytes freed.
func (s *Store) clearStaging() (int64, error) {
	gate, err := s.stagingGate(unix.LOCK_EX)
	if err != nil {
		return 0, err
	}
	var dead []*staging
	dirs, err := os.ReadDir(filepath.Join(s.dir, "tmp"))
	for _, d := range dirs {
		dir := filepath.Join(s.dir, "tmp", d.Name())
		lock, err := openLocked(dir, os.O_RDONLY|unix.O_DIRECTORY, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			dead = append(dead, &staging{dir, lock})
		}
	}
	flock.Close(gate)
	var freed int64
	for _, st := range dead {
		freed += treeSize(st.dir)
		err = errors.Join(err, st.close())
	}
	return freed, err
}

// removeTree removes dir and everything below it, unless something is mounted there: a
// killed bootstrap could have left the host's /dev mounted in it.
func removeTree(dir string) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			return fmt.Errorf("%s is still mounted; unmount it, then remove %s", f[4], dir)
		}
	}
	return os.RemoveAll(dir)
}

// treeSize adds up the files below dir, as far as they can be read.
func treeSize(dir string) int64 {
	var size int64
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				size += info.Size()
			}
		}
		return nil
	})
	return size
}
