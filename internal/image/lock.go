package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/flock"
)

// openLocked opens the file at path and locks it. It returns the file that is at path
// while the lock is held: if the file was removed between open and lock, openLocked tries
// again.
func openLocked(path string, flag, how int) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, flag, 0o600)
		if err != nil {
			return nil, err
		}
		if err := flock.Lock(f, how); err != nil {
			f.Close()
			return nil, err
		}
		same, err := isAt(f, path)
		if same {
			return f, nil
		}
		f.Close()
		if err != nil {
			return nil, err
		}
	}
}

// isAt reports whether path still names f.
func isAt(f *os.File, path string) (bool, error) {
	there, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	here, err := f.Stat()
	return err == nil && os.SameFile(here, there), err
}

// lockKey waits for the exclusive lock of a key and returns a function that unlocks it.
// waiting is called once if another process holds the lock.
func (s *Store) lockKey(ctx context.Context, key string, waiting func()) (unlock func(), err error) {
	path := filepath.Join(s.dir, "locks", hashKey(key))
	// A blocked flock cannot be cancelled, and the kernel does not notify when a lock
	// becomes free, so processes have to poll.
	const interval = 50 * time.Millisecond
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for first := true; ; first = false {
		f, err := openLocked(path, os.O_RDWR|os.O_CREATE, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() {
				// Removed while held: a waiter opens a new file.
				_ = os.Remove(path)
				flock.Close(f)
			}, nil
		}
		if !errors.Is(err, flock.ErrLocked) {
			return nil, fmt.Errorf("lock %q: %w", key, err)
		}
		if first && waiting != nil {
			waiting()
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
	}
}

// publish moves the staged file f to path and returns the file open, with a shared lock.
// An existing file at path stays, because its name stands for the same content.
func (s *Store) publish(f *os.File, path string) (*os.File, error) {
	staged, err := openLocked(f.Name(), os.O_RDONLY, unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	for {
		err = os.Link(f.Name(), path)
		if err == nil {
			return staged, syncDir(filepath.Dir(path))
		}
		if !errors.Is(err, fs.ErrExist) {
			flock.Close(staged)
			return nil, err
		}
		// If GC is just removing the file at path, we link our file again.
		there, err := openLocked(path, os.O_RDONLY, unix.LOCK_SH)
		if err == nil {
			flock.Close(staged)
			return there, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			flock.Close(staged)
			return nil, err
		}
	}
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
