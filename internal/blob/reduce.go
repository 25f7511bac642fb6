package blob

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// replacement is the temporary link, in the directory of the content, that is about to be
// renamed to the link of a blob.
const replacement = ".name"

// Reduce implements Store. It creates content that shares the remaining files with the
// old content, and points the blob's link to the new content. It may use the reserve,
// because it frees more than it takes.
func (d *Dir) Reduce(ctx context.Context, name string, keep func(file string) bool, write map[string][]byte) (_ Info, err error) {
	l, err := d.Local(ctx, name)
	if err != nil {
		return Info{}, err
	}
	defer l.Release() // removes the old content, unless it is in use
	w, err := d.begin(ctx, 0, func(*draft, int64) error { return nil })
	if err != nil {
		return Info{}, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("reduce blob %q: %w", name, errors.Join(diskError(err), w.Abort()))
		}
	}()
	if err := w.link(l.Dir, keep); err != nil {
		return Info{}, err
	}
	for file, content := range write {
		if err := CheckFile(file); err != nil {
			return Info{}, err
		}
		if err := os.WriteFile(filepath.Join(w.dir, file), content, 0o600); err != nil {
			return Info{}, err
		}
	}
	size, err := w.sync(ctx)
	if err != nil {
		return Info{}, err
	}
	link := filepath.Join(w.dir, replacement)
	if err := os.Symlink(target(w.id), link); err != nil {
		return Info{}, err
	}
	d.reached("link made")
	if err := os.Rename(link, d.namePath(name)); err != nil {
		return Info{}, err
	}
	d.reached("renamed")
	// From here on the new content belongs to the blob, even if a later step fails.
	err = syncPath(filepath.Join(d.path, "names"))
	info := Info{Name: name, Size: size}
	if err == nil {
		info.CreatedAt, err = d.created(name)
	}
	d.release(name, w.id, w.lock)
	w.lock = nil
	return info, err
}

// link adds to a draft the files of another directory for which keep returns true.
func (w *draft) link(from string, keep func(file string) bool) error {
	paths, _, err := files(from)
	if err != nil {
		return err
	}
	for _, file := range paths {
		if !keep(filepath.ToSlash(file)) {
			continue
		}
		path := filepath.Join(w.dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.Link(filepath.Join(from, file), path); err != nil {
			return err
		}
	}
	return nil
}
