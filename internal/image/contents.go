package image

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/flock"
	"github.com/cayhq/cay/internal/image/rootfs"
)

// Content is an image in the store, with the names that all owners have given.
type Content struct {
	Digest string
	Refs   []string
	Size   int64
}

// Contents lists all images, also those without a name, and with their files the paths of
// the files that make up the images and names, by their path in a store. The images stay
// until release is called. It is for backups.
func (s *Store) Contents(ctx context.Context, withFiles bool) (images []Content, files map[string]string, release func(), err error) {
	var locks []*os.File
	release = func() {
		for _, f := range locks {
			flock.Close(f)
		}
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	files = map[string]string{}
	refs, err := s.allRefs(files)
	if err != nil {
		return nil, nil, nil, err
	}
	paths, err := filepath.Glob(filepath.Join(s.dir, "images", "*.erofs"))
	if err != nil {
		return nil, nil, nil, err
	}
	for _, path := range paths {
		if err := ctx.Err(); err != nil {
			return nil, nil, nil, err
		}
		d, ok := parseDigest("sha256:" + strings.TrimSuffix(filepath.Base(path), ".erofs"))
		if !ok {
			continue
		}
		f, err := openLocked(path, os.O_RDONLY, unix.LOCK_SH)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, nil, err
		}
		locks = append(locks, f)
		img, err := s.load(d)
		if errors.Is(err, fs.ErrNotExist) {
			continue // half removed, or half there
		}
		if err != nil {
			return nil, nil, nil, err
		}
		images = append(images, Content{string(d), refs[d], img.SizeBytes})
		files["images/"+d.Hex()+".erofs"] = path
		files["images/"+d.Hex()+".json"] = s.recordPath(d)
	}
	if !withFiles {
		files = nil
	}
	return images, files, release, nil
}

// allRefs reads the names that all owners have given, and adds their files to files.
func (s *Store) allRefs(files map[string]string) (map[rootfs.Digest][]string, error) {
	owners, err := s.owners()
	if err != nil {
		return nil, err
	}
	all := map[rootfs.Digest][]string{}
	for _, o := range owners {
		refs, err := o.ownRefs()
		if err != nil {
			return nil, err
		}
		for _, ref := range slices.Sorted(maps.Keys(refs)) {
			all[refs[ref]] = append(all[refs[ref]], ref)
			path := o.refPath(ref)
			rel, err := filepath.Rel(s.dir, path)
			if err != nil {
				return nil, err
			}
			files[filepath.ToSlash(rel)] = path
		}
	}
	return all, nil
}
