package blob

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/flock"
)

// lockDir opens the directory at path and locks it. If the directory was removed between
// opening and locking, the error is fs.ErrNotExist.
func lockDir(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := flock.Lock(f, how); err != nil {
		f.Close()
		return nil, err
	}
	here, err := f.Stat()
	if err == nil {
		var there fs.FileInfo
		if there, err = os.Lstat(path); err == nil && !os.SameFile(here, there) {
			err = fs.ErrNotExist
		}
	}
	if err != nil {
		flock.Close(f)
		return nil, err
	}
	return f, nil
}

// syncPath syncs a file, or the names in a directory, to the disk.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
