package backup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/flock"
)

// Marker is the file of a data directory whose restore is not finished.
const Marker = "restore.json"

// Unfinished returns an error if a restore into the directory was not finished. Errors:
// conflict.
func Unfinished(dir string) error {
	_, err := os.Lstat(filepath.Join(dir, Marker))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	return cay.Errorf(cay.Conflict, "the restore into %s was not finished, so parts of the installation are missing there", dir).
		WithHint("delete everything in %s and restore again", dir)
}

// Target is where a backup is restored to.
type Target struct {
	Dir string // does not exist, or is empty
	// Stores are the stores of blobs that a data directory has.
	Stores []string
	// Keys are files with keys to restore in place of those of the backup, by name.
	Keys map[string][]byte

	reached func(point string) // for tests that crash; may be nil
}

// Restore writes the backup into an empty directory. If Restore fails, the directory is
// as before; if the process dies, the directory has a Marker. Errors: conflict (the directory is
// not empty, or a daemon uses it), no_space, invalid (the file has changed since Open).
func (a *Archive) Restore(ctx context.Context, t Target) (err error) {
	if t.reached == nil {
		t.reached = func(string) {}
	}
	if err := Unfinished(t.Dir); err != nil {
		return err
	}
	for _, p := range a.Manifest.Parts {
		if rest, ok := strings.CutPrefix(p.Name, blobDir); ok {
			if store, _, _ := strings.Cut(rest, "/"); !slices.Contains(t.Stores, store) {
				return cay.Errorf(cay.Invalid, "the backup has a store %q, which this cay does not know", store)
			}
		}
	}
	_, err = os.Lstat(t.Dir)
	fresh := errors.Is(err, fs.ErrNotExist)
	if err := os.MkdirAll(t.Dir, 0o700); err != nil {
		return cay.Errorf(cay.Invalid, "the data directory cannot be made: %w", err)
	}
	if err := checkEmpty(t.Dir); err != nil {
		return err
	}
	unlock, err := lock(t.Dir)
	if err != nil {
		return err
	}
	r := &restore{a: a, t: t}
	defer func() {
		if err != nil {
			err = errors.Join(named(err, a.file.Name()), r.undo(fresh))
		}
		err = errors.Join(err, unlock())
	}()
	if err := r.mark(); err != nil {
		return err
	}
	if _, err := a.walk(ctx, func(name string, size int64, body io.Reader) error { return r.part(ctx, name, size, body) }); err != nil {
		return err
	}
	if err := r.commitBlob(ctx); err != nil {
		return err
	}
	files := a.keys.Files
	if t.Keys != nil {
		files = t.Keys
	}
	for name, content := range files {
		path := filepath.Join(t.Dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return diskError(err)
		}
		if err := r.file(path, bytes.NewReader(content)); err != nil {
			return err
		}
		if err := syncPath(filepath.Dir(path)); err != nil {
			return err
		}
	}
	return r.finish()
}

// checkEmpty returns an error unless a directory is empty; lost+found is part of a disk, and
// the lock is left behind by a daemon that has refused to start.
func checkEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != "lost+found" && e.Name() != lockName {
			return cay.Errorf(cay.Conflict, "the data directory %s is not empty: it has %q", dir, e.Name()).
				WithHint("restore into another directory, or move this one away")
		}
	}
	return nil
}

// lockName is the lock of a data directory; see daemon.New.
const lockName = "daemon.lock"

// restore writes the parts of a backup.
type restore struct {
	a *Archive
	t Target

	stores map[string]blob.Store
	blob   string // the store/name of draft
	draft  blob.Draft
}

func (r *restore) mark() error {
	b, err := json.Marshal(map[string]any{"backup": r.a.file.Name(), "started_at": time.Now().UTC()})
	if err != nil {
		return err
	}
	if err := r.file(filepath.Join(r.t.Dir, Marker), strings.NewReader(string(b)+"\n")); err != nil {
		return err
	}
	if err := errors.Join(syncPath(r.t.Dir), syncPath(filepath.Dir(r.t.Dir))); err != nil {
		return err
	}
	r.t.reached("marked")
	return nil
}

// part writes a part to its place.
func (r *restore) part(ctx context.Context, name string, size int64, body io.Reader) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	defer r.t.reached("part")
	dir, rest, _ := strings.Cut(name, "/")
	switch dir + "/" {
	case databaseDir, fileDir:
		return r.file(filepath.Join(r.t.Dir, rest), body)
	case imageDir:
		path := filepath.Join(r.t.Dir, "images", filepath.FromSlash(rest))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return diskError(err)
		}
		if err := r.file(path, body); err != nil {
			return err
		}
		return syncPath(filepath.Dir(path))
	}
	store, rest, _ := strings.Cut(rest, "/")
	blobName, file, _ := strings.Cut(rest, "/")
	if err := r.draftFor(ctx, store, blobName); err != nil {
		return err
	}
	w, err := r.draft.Writer(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, body)
	return errors.Join(err, w.Close())
}

// draftFor commits the draft of another blob, and begins the draft of a blob.
func (r *restore) draftFor(ctx context.Context, store, name string) error {
	if r.blob == store+"/"+name && r.draft != nil {
		return nil
	}
	if err := r.commitBlob(ctx); err != nil {
		return err
	}
	s := r.stores[store]
	if s == nil {
		var err error
		if s, err = blob.OpenDir(filepath.Join(r.t.Dir, store), blob.DirOptions{}); err != nil {
			return err
		}
		if r.stores == nil {
			r.stores = map[string]blob.Store{}
		}
		r.stores[store] = s
	}
	d, err := s.Create(ctx, 0)
	if err != nil {
		return err
	}
	r.blob, r.draft = store+"/"+name, d
	return nil
}

func (r *restore) commitBlob(ctx context.Context) error {
	if r.draft == nil {
		return nil
	}
	_, name, _ := strings.Cut(r.blob, "/")
	_, err := r.draft.Commit(ctx, name)
	if err == nil {
		r.draft = nil
	}
	return err
}

// file writes a file that only its owner can read, and syncs it.
func (r *restore) file(path string, body io.Reader) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return diskError(err)
	}
	_, err = io.Copy(f, body)
	return diskError(errors.Join(err, f.Sync(), f.Close()))
}

func (r *restore) finish() error {
	if err := syncPath(r.t.Dir); err != nil {
		return err
	}
	r.t.reached("written")
	if err := os.Remove(filepath.Join(r.t.Dir, Marker)); err != nil {
		return err
	}
	return syncPath(r.t.Dir)
}

// undo empties the directory. The marker is removed last.
func (r *restore) undo(fresh bool) error {
	var errs []error
	if r.draft != nil {
		errs = append(errs, r.draft.Abort())
	}
	entries, err := os.ReadDir(r.t.Dir)
	errs = append(errs, err)
	for _, e := range entries {
		if e.Name() != Marker && e.Name() != "lost+found" && e.Name() != lockName {
			errs = append(errs, os.RemoveAll(filepath.Join(r.t.Dir, e.Name())))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove what was restored: %w", err)
	}
	if err := os.Remove(filepath.Join(r.t.Dir, Marker)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if fresh {
		return os.RemoveAll(r.t.Dir)
	}
	return nil
}

func diskError(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return cay.Errorf(cay.NoSpace, "the disk of the data directory is full: %w", err)
	}
	return err
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// lock locks a directory against daemons, as daemon.New does.
func lock(dir string) (unlock func() error, err error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock.Lock(f, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if err == flock.ErrLocked {
			err = cay.Errorf(cay.Conflict, "a daemon uses the data directory %q", dir).WithHint("restore into another directory")
		}
		return nil, err
	}
	return func() error { return flock.Close(f) }, nil
}
