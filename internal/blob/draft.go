package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/flock"
)

// draft is a Draft of a Dir.
type draft struct {
	store *Dir
	id    string
	dir   string
	size  int64 // as announced by the writer

	mu   sync.Mutex // guards what follows
	lock *os.File   // on dir; nil once committed or aborted
	open int        // writers
}

// Create implements Store.
func (d *Dir) Create(ctx context.Context, size int64) (Draft, error) {
	w, err := d.begin(ctx, size, d.promise)
	if err != nil {
		return nil, err
	}
	return w, nil
}

// begin makes the directory of a draft, if promise has room for its size.
func (d *Dir) begin(ctx context.Context, size int64, promise func(w *draft, size int64) error) (*draft, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		id := newID()
		w := &draft{store: d, id: id, dir: d.dataPath(id), size: size}
		if err := promise(w, size); err != nil {
			return nil, err
		}
		if err := os.Mkdir(w.dir, 0o700); err != nil {
			d.forget(w)
			return nil, diskError(err)
		}
		d.reached("created")
		lock, err := lockDir(w.dir, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			w.lock = lock
			return w, nil
		}
		d.forget(w)
		// A Clean without grace took it for a leftover.
		if !errors.Is(err, flock.ErrLocked) && !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(err, os.Remove(w.dir))
		}
	}
}

var errEnded = errors.New("the draft of a blob was committed or aborted")

// Dir implements Draft.
func (w *draft) Dir() (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lock == nil {
		return "", errEnded
	}
	return w.dir, nil
}

// Writer implements Draft.
func (w *draft) Writer(file string) (io.WriteCloser, error) {
	if err := CheckFile(file); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lock == nil {
		return nil, errEnded
	}
	path := filepath.Join(w.dir, file)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, diskError(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil, cay.Errorf(cay.AlreadyExists, "the blob has a file %q already", file)
	}
	if err != nil {
		return nil, diskError(err)
	}
	w.open++
	return &fileWriter{w: w, f: f}, nil
}

// fileWriter writes a file of a draft. Writers of one draft may be used
// concurrently.
type fileWriter struct {
	w      *draft
	f      *os.File
	left   int64 // bytes to write until the next look at the space left
	closed bool
}

// spaceEvery is how many bytes a writer writes between two checks of the available disk
// space.
const spaceEvery = 8 << 20

// Write implements io.Writer.
func (f *fileWriter) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		if f.left == 0 {
			if err := f.w.store.checkSpace(0); err != nil {
				return n, err
			}
			f.left = spaceEvery
		}
		m, err := f.f.Write(p[:min(int64(len(p)), f.left)])
		n, p, f.left = n+m, p[m:], f.left-int64(m)
		if err != nil {
			return n, diskError(err)
		}
	}
	f.w.store.reached("partly written")
	return n, nil
}

// Close implements io.Closer.
func (f *fileWriter) Close() error {
	if f.closed {
		return fs.ErrClosed
	}
	f.closed = true
	f.w.mu.Lock()
	f.w.open--
	f.w.mu.Unlock()
	return diskError(f.f.Close())
}

// Commit implements Draft.
func (w *draft) Commit(ctx context.Context, name string) (Info, error) {
	if err := CheckName(name); err != nil {
		return Info{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.lock == nil:
		return Info{}, errEnded
	case w.open > 0:
		return Info{}, fmt.Errorf("commit blob %q: %d of its files are still open", name, w.open)
	}
	size, err := w.sync(ctx)
	if err != nil {
		return Info{}, fmt.Errorf("commit blob %q: %w", name, diskError(err))
	}
	d := w.store
	// Files written into Dir did not pass through Writer, which checks the space.
	if err := d.checkSpace(0); err != nil {
		return Info{}, err
	}
	if err := os.Symlink(target(w.id), d.namePath(name)); errors.Is(err, fs.ErrExist) {
		return Info{}, cay.Errorf(cay.AlreadyExists, "there is a blob %q already", name)
	} else if err != nil {
		return Info{}, diskError(err)
	}
	d.reached("named")
	err = syncPath(filepath.Join(d.path, "names"))
	info := Info{Name: name, Size: size}
	if err == nil {
		info.CreatedAt, err = d.created(name)
	}
	if cay.CodeOf(err) == cay.NotFound { // deleted meanwhile
		info.CreatedAt, err = time.Now(), nil
	}
	if err != nil {
		return Info{}, errors.Join(diskError(err), os.Remove(d.namePath(name)))
	}
	d.reached("committed")
	d.forget(w)
	d.release(name, w.id, w.lock)
	w.lock = nil
	return info, nil
}

// sync makes the files of a draft durable and unwritable, and returns their size.
func (w *draft) sync(ctx context.Context) (size int64, err error) {
	var dirs []string
	err = filepath.WalkDir(w.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		rel, err := filepath.Rel(w.dir, path)
		if err != nil {
			return err
		}
		if rel != "." {
			if err := CheckFile(filepath.ToSlash(rel)); err != nil {
				return err
			}
		}
		switch {
		case e.IsDir():
			dirs = append(dirs, path)
			return nil
		case !e.Type().IsRegular():
			return cay.Errorf(cay.Invalid, "%q is not a regular file", rel)
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		size += info.Size()
		if err := os.Chmod(path, 0o400); err != nil {
			return err
		}
		err = syncPath(path)
		w.store.reached("a file on disk")
		return err
	})
	if err != nil {
		return 0, err
	}
	for i := len(dirs) - 1; i >= 0; i-- { // subdirectories first
		if err := syncPath(dirs[i]); err != nil {
			return 0, err
		}
	}
	err = syncPath(filepath.Dir(w.dir))
	w.store.reached("content on disk")
	return size, err
}

// Abort implements Draft.
func (w *draft) Abort() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lock == nil {
		return nil
	}
	w.store.forget(w)
	_, err := w.store.removeLocked(w.id)
	err = errors.Join(err, flock.Close(w.lock))
	w.lock = nil
	return err
}
