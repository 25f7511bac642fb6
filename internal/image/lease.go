package image

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/flock"
	"github.com/cayhq/cay/internal/image/rootfs"
	"github.com/cayhq/cay/sandbox"
)

// Lease keeps GC, in this or another process, from removing the file of an image. It ends
// with Release, or with the process.
type Lease struct {
	Image sandbox.Image
	Path  string // of the EROFS file

	mu   sync.Mutex
	file *os.File // holds the lock; nil once released
}

// Release ends the lease. Calling it again does nothing.
func (l *Lease) Release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		flock.Close(l.file)
		l.file = nil
	}
}

// usedEvery is the precision of the time of an image's last use.
const usedEvery = time.Minute

// Acquire leases an image that is in the store. ref is a name or a digest.
// Errors: not_found, invalid (no valid reference).
func (s *Store) Acquire(ctx context.Context, ref string) (*Lease, error) {
	d, err := s.resolve(ref)
	if err != nil {
		return nil, err
	}
	return s.lease(ctx, ref, d)
}

// lease leases an image by its digest, without a check of rights. ref is the name for
// errors.
func (s *Store) lease(ctx context.Context, ref string, d rootfs.Digest) (*Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	file, err := openLocked(s.imagePath(d), os.O_RDONLY, unix.LOCK_SH)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, s.notFound(ref)
	}
	if err != nil {
		return nil, err
	}
	l := &Lease{Path: s.imagePath(d), file: file}
	img, err := s.describe(d)
	if err != nil {
		l.Release()
		if errors.Is(err, fs.ErrNotExist) {
			err = s.notFound(ref)
		}
		return nil, err
	}
	if now := time.Now(); now.Sub(img.UsedAt) >= usedEvery {
		if err := os.Chtimes(s.recordPath(d), now, now); err != nil {
			l.Release()
			return nil, err
		}
		img.UsedAt = now
	}
	l.Image = *img
	return l, nil
}
