package daemon

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/flock"
)

// lockFile opens path, created if missing, with a lock that ends with the file
// or this process. It returns nil if another process has the lock.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := flock.Lock(f, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if err == flock.ErrLocked {
			return nil, nil
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}
