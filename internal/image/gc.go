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
	"github.com/cayhq/cay/internal/image/rootfs"
	"github.com/cayhq/cay/sandbox"
)

// GCReport says what a GC has removed, or would remove.
type GCReport struct {
	Images []sandbox.Image // without names
	Bytes  int64           // of everything
}

const (
	blobAge = 24 * time.Hour      // a download is not expected to be resumed after that
	toolAge = 30 * 24 * time.Hour // without use
)

// GC removes images that have no name and no lease in any process, and that
// Options.Needed does not report as needed. It also removes leftovers of work that has
// died or was given up: working files at once, downloads after a day. With dry it only
// reports.
func (s *Store) GC(ctx context.Context, dry bool) (GCReport, error) {
	var report GCReport
	if !dry {
		freed, err := s.clearStaging()
		if err != nil {
			return report, err
		}
		report.Bytes += freed
	}
	images, err := filepath.Glob(filepath.Join(s.dir, "images", "*.erofs"))
	if err != nil {
		return report, err
	}
	for _, path := range images {
		d, ok := parseDigest("sha256:" + strings.TrimSuffix(filepath.Base(path), ".erofs"))
		if !ok {
			continue
		}
		img, err := s.load(d)
		if errors.Is(err, fs.ErrNotExist) {
			img, err = &sandbox.Image{Digest: string(d)}, nil // half removed, or half there
		}
		if err != nil {
			return report, err
		}
		freed, err := s.collect(ctx, d, dry)
		if err != nil {
			return report, err
		}
		if freed > 0 {
			img.SizeBytes = freed
			report.Images = append(report.Images, *img)
			report.Bytes += freed
		}
	}
	for dir, age := range map[string]time.Duration{"blobs": blobAge, "tools": toolAge, "locks": 0, "owners": 2 * 24 * time.Hour} {
		freed, err := s.removeOld(ctx, dir, age, dry)
		report.Bytes += freed
		if err != nil {
			return report, err
		}
	}
	return report, nil
}

// collect removes an image that is not in use, unless dry, and returns its size.
func (s *Store) collect(ctx context.Context, d rootfs.Digest, dry bool) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if needed, err := s.opts.Needed(ctx, string(d)); needed || err != nil {
		return 0, err
	}
	file, err := openLocked(s.imagePath(d), os.O_RDONLY, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, flock.ErrLocked) || errors.Is(err, fs.ErrNotExist) {
		return 0, nil // leased, or removed by another GC
	}
	if err != nil {
		return 0, err
	}
	defer flock.Close(file)
	// A name can be given only under a lease, so the image gets none until we unlock it.
	if named, err := s.isNamed(d); named || err != nil {
		return 0, err
	}
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	if dry {
		return info.Size(), nil
	}
	// The content is removed last: without its record it is no image any more, and the
	// next GC finds it.
	if err := os.Remove(s.recordPath(d)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	return info.Size(), os.Remove(s.imagePath(d))
}

// removeOld removes the files of a directory that are not locked and have not changed for
// age, unless dry.
func (s *Store) removeOld(ctx context.Context, dir string, age time.Duration, dry bool) (int64, error) {
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
			if !dry {
				err = os.Remove(path)
			}
			if err == nil {
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
