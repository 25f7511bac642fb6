package image

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/flock"
	"github.com/cayhq/cay/internal/sandboxd/image/rootfs"
)

// GCReport is what a GC has removed.
type GCReport struct {
	Images []string // digests
	Bytes  int64    // of everything
}

const (
	blobAge = 24 * time.Hour      // after which nobody is expected to continue a download
	toolAge = 30 * 24 * time.Hour // without use
)

// GC removes images that have no name, no lease in any process, and that keep,
// if not nil, does not want kept; and what was left by work that has died or was given up:
// working files at once, downloads after a day.
func (s *Store) GC(ctx context.Context, keep func(digest string) bool) (GCReport, error) {
	var report GCReport
	freed, err := s.clearStaging()
	if err != nil {
		return report, err
	}
	report.Bytes += freed
	images, err := filepath.Glob(filepath.Join(s.dir, "images", "*.erofs"))
	if err != nil {
		return report, err
	}
	for _, path := range images {
		if err := ctx.Err(); err != nil {
			return report, err
		}
		d, ok := parseDigest("sha256:" + strings.TrimSuffix(filepath.Base(path), ".erofs"))
		if !ok || keep != nil && keep(string(d)) {
			continue
		}
		freed, err := s.collect(d)
		if err != nil {
			return report, err
		}
		if freed > 0 {
			report.Images = append(report.Images, string(d))
			report.Bytes += freed
		}
	}
	for dir, age := range map[string]time.Duration{"blobs": blobAge, "tools": toolAge, "locks": 0} {
		freed, err := s.removeOld(ctx, dir, age)
		report.Bytes += freed
		if err != nil {
			return report, err
		}
	}
	return report, nil
}

// collect removes an image nobody has a use for, and returns its size.
func (s *Store) collect(d rootfs.Digest) (int64, error) {
	file, err := openLocked(s.imagePath(d), os.O_RDONLY, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, flock.ErrLocked) || errors.Is(err, fs.ErrNotExist) {
		return 0, nil // leased, or removed by another GC
	}
	if err != nil {
		return 0, err
	}
	defer flock.Close(file)
	// A name is only given under a lease, so this holds until we let go.
	refs, err := s.refs()
	if err != nil || len(refs[d]) > 0 {
		return 0, err
	}
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	// The content goes last: without its metadata it is not an image any more,
	// and the next GC finds it.
	if err := os.Remove(s.recordPath(d)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	return info.Size(), os.Remove(s.imagePath(d))
}

// removeOld removes the files of a directory that are not locked and have not
// changed for some time.
func (s *Store) removeOld(ctx context.Context, dir string, age time.Duration) (int64, error) {
	dir = filepath.Join(s.dir, dir)
	files, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	var freed int64
	for _, e := range files {
		if err := ctx.Err(); err != nil {
			return freed, err
		}
		path := filepath.Join(dir, e.Name())
		f, err := openLocked(path, os.O_RDONLY, unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, flock.ErrLocked) || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return freed, err
		}
		info, err := f.Stat()
		if err == nil && time.Since(info.ModTime()) >= age {
			if err = os.Remove(path); err == nil {
				freed += info.Size()
			}
		}
		flock.Close(f)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return freed, err
		}
	}
	return freed, nil
}
