package blob

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/flock"
)

// Dir is a Store in a directory of this machine.
//
//	version.json      the version of this layout; see migrations
//	lock              held while a directory is opened or migrated
//	data/<random>/    the files of a blob, or of a draft
//	names/<name>      a symbolic link to ../data/<random>: the blob exists
//
// Content never moves, so that paths stay valid while they are leased; the link is made
// when all files are on the disk, and making it twice fails. A lock (flock) on the
// content says that it is in use: exclusive for a draft and for removing, shared for a
// lease. Content without a name and without a lock is a leftover.
type Dir struct {
	path      string
	reserve   int64
	available func(path string) (int64, error)
	reached   func(point string) // for tests that crash

	mu     sync.Mutex          // guards what follows
	drafts map[*draft]struct{} // of this process
}

var _ Store = (*Dir)(nil)

// DirOptions are the settings of a Dir.
type DirOptions struct {
	// Reserve is how many bytes of the file system blobs leave free. Default: 0.
	Reserve int64
}

// OpenDir opens the store in a directory, which it makes if need be. Errors:
// not_supported if a newer version wrote there.
func OpenDir(path string, o DirOptions) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	for _, dir := range []string{path, filepath.Join(path, "data"), filepath.Join(path, "names")} {
		if err := makeDir(dir, syncPath); err != nil {
			return nil, diskError(err)
		}
	}
	if err := migrate(path, migrations); err != nil {
		return nil, err
	}
	return &Dir{path: path, reserve: o.Reserve, available: available, reached: func(string) {}, drafts: map[*draft]struct{}{}}, nil
}

// makeDir makes a directory and its missing parents, and makes each durable by syncing
// the directory that contains it.
func makeDir(path string, sync func(path string) error) error {
	err := os.Mkdir(path, 0o700)
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil
	case errors.Is(err, fs.ErrNotExist):
		if err := makeDir(filepath.Dir(path), sync); err != nil {
			return err
		}
		return makeDir(path, sync)
	case err != nil:
		return err
	}
	return sync(filepath.Dir(path))
}

func (d *Dir) dataPath(id string) string   { return filepath.Join(d.path, "data", id) }
func (d *Dir) namePath(name string) string { return filepath.Join(d.path, "names", name) }

// target returns the target of the link of a blob with that content.
func target(id string) string { return "../data/" + id }

// resolve returns the content a name stands for.
func (d *Dir) resolve(name string) (id string, err error) {
	if err := CheckName(name); err != nil {
		return "", err
	}
	link, err := os.Readlink(d.namePath(name))
	if errors.Is(err, fs.ErrNotExist) {
		return "", notFound(name)
	}
	if err != nil {
		return "", err
	}
	id, ok := strings.CutPrefix(link, target(""))
	if !ok || !element.MatchString(id) {
		return "", fmt.Errorf("%s is not a link to a blob, but to %q", d.namePath(name), link)
	}
	return id, nil
}

func notFound(name string) error {
	return cay.Errorf(cay.NotFound, "there is no blob %q", name)
}

// Stat implements Store.
func (d *Dir) Stat(ctx context.Context, name string) (Info, error) {
	l, err := d.Local(ctx, name)
	if err != nil {
		return Info{}, err
	}
	defer l.Release()
	return l.Info, nil
}

// Local implements Store.
func (d *Dir) Local(ctx context.Context, name string) (*Lease, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		id, err := d.resolve(name)
		if err != nil {
			return nil, err
		}
		dir := d.dataPath(id)
		// The process that has just committed the content, or found it deleted, soon
		// unlocks it.
		lock, err := lockDir(dir, unix.LOCK_SH)
		gone := errors.Is(err, fs.ErrNotExist)
		if err != nil && !gone {
			return nil, err
		}
		// Content stays only if it still has its name after it was locked.
		switch again, nameErr := d.resolve(name); {
		case nameErr == nil && again == id && gone:
			return nil, cay.Errorf(cay.Conflict, "the content of the blob %q is missing", name).
				WithHint("restore the data directory from a backup")
		case nameErr != nil || again != id:
			if !gone {
				d.release(name, id, lock)
			}
			if nameErr != nil {
				return nil, nameErr
			}
			continue
		}
		info := Info{Name: name}
		_, info.Size, err = files(dir)
		if err == nil {
			info.CreatedAt, err = d.created(name)
		}
		if err != nil {
			d.release(name, id, lock)
			return nil, err
		}
		return NewLease(info, dir, sync.OnceFunc(func() { d.release(name, id, lock) })), nil
	}
}

// release unlocks content, and removes it if its name has gone and it is not in use.
func (d *Dir) release(name, id string, lock *os.File) {
	flock.Close(lock)
	if now, err := d.resolve(name); cay.CodeOf(err) == cay.NotFound || err == nil && now != id {
		_, _ = d.removeData(id) // Clean removes the rest
	}
}

func (d *Dir) created(name string) (time.Time, error) {
	link, err := os.Lstat(d.namePath(name))
	if errors.Is(err, fs.ErrNotExist) {
		return time.Time{}, notFound(name)
	}
	if err != nil {
		return time.Time{}, err
	}
	return link.ModTime(), nil
}

// Open implements Store.
func (d *Dir) Open(ctx context.Context, name, file string) (File, error) {
	if err := CheckFile(file); err != nil {
		return nil, err
	}
	l, err := d.Local(ctx, name)
	if err != nil {
		return nil, err
	}
	defer l.Release() // an open file stays readable without the lease
	f, err := os.Open(filepath.Join(l.Dir, file))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, cay.Errorf(cay.NotFound, "the blob %q has no file %q", name, file)
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = cay.Errorf(cay.NotFound, "the blob %q has no file %q, but a directory", name, file)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return openFile{f, info.Size()}, nil
}

type openFile struct {
	*os.File
	size int64
}

func (f openFile) Size() int64 { return f.size }

// Delete implements Store.
func (d *Dir) Delete(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	id, err := d.resolve(name)
	if err != nil {
		return err
	}
	if err := os.Remove(d.namePath(name)); errors.Is(err, fs.ErrNotExist) {
		return notFound(name)
	} else if err != nil {
		return err
	}
	d.reached("unnamed")
	// Before the content is removed: a name that came back after a crash would lead
	// nowhere.
	if err := syncPath(filepath.Join(d.path, "names")); err != nil {
		return err
	}
	d.reached("unnamed on disk")
	_, err = d.removeData(id)
	return err
}

// removeData removes content that has no name, unless it is in use, and
// returns how many bytes it had.
func (d *Dir) removeData(id string) (int64, error) {
	lock, err := lockDir(d.dataPath(id), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, flock.ErrLocked) || errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer flock.Close(lock)
	return d.removeLocked(id)
}

func (d *Dir) removeLocked(id string) (int64, error) {
	dir := d.dataPath(id)
	names, size, err := files(dir)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			return 0, err
		}
		d.reached("partly removed")
	}
	return size, os.RemoveAll(dir)
}

// List implements Store.
func (d *Dir) List(ctx context.Context, o ListOptions) ([]Info, error) {
	entries, err := os.ReadDir(filepath.Join(d.path, "names"))
	if err != nil {
		return nil, err
	}
	var all []Info
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), o.Prefix) {
			continue
		}
		if !o.Before.IsZero() {
			t, err := d.created(e.Name())
			if cay.CodeOf(err) == cay.NotFound || err == nil && !t.Before(o.Before) {
				continue
			}
			if err != nil {
				return nil, err
			}
		}
		info, err := d.Stat(ctx, e.Name())
		if cay.CodeOf(err) == cay.NotFound {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		all = append(all, info)
	}
	return all, nil
}

// Clean implements Store.
func (d *Dir) Clean(ctx context.Context, grace time.Duration) (freed int64, err error) {
	entries, err := os.ReadDir(filepath.Join(d.path, "data"))
	if err != nil {
		return 0, err
	}
	named, err := d.named()
	if err != nil {
		return 0, err
	}
	leftovers := map[string]*os.File{}
	defer func() {
		for _, lock := range leftovers {
			flock.Close(lock)
		}
	}()
	for _, e := range entries {
		id := e.Name()
		if named[id] {
			continue
		}
		lock, err := lockDir(d.dataPath(id), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, flock.ErrLocked) || errors.Is(err, fs.ErrNotExist) {
			continue // a draft, a lease, or another process that removes it
		}
		if err != nil {
			return 0, err
		}
		info, err := lock.Stat()
		if err != nil || time.Since(info.ModTime()) < grace {
			flock.Close(lock)
			if err != nil {
				return 0, err
			}
			continue
		}
		leftovers[id] = lock
	}
	// A draft stays locked until it has its name. The leftovers that we hold locked now
	// can get no name any more, but a leftover may have got its name before we locked it.
	if named, err = d.named(); err != nil {
		return 0, err
	}
	for id := range leftovers {
		if named[id] {
			continue
		}
		if err := ctx.Err(); err != nil {
			return freed, err
		}
		n, err := d.removeLocked(id)
		freed += n
		if err != nil {
			return freed, err
		}
	}
	return freed, nil
}

// named returns the contents that have a name.
func (d *Dir) named() (map[string]bool, error) {
	entries, err := os.ReadDir(filepath.Join(d.path, "names"))
	if err != nil {
		return nil, err
	}
	ids := make(map[string]bool, len(entries))
	for _, e := range entries {
		id, err := d.resolve(e.Name())
		if cay.CodeOf(err) == cay.NotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		ids[id] = true
	}
	return ids, nil
}

// newID names content.
func newID() string { return strings.ToLower(rand.Text()) }

// files returns the paths of the files in dir, sorted, and their total size. Files that
// are removed while it runs count as absent.
func files(dir string) (paths []string, size int64, err error) {
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		paths, size = append(paths, rel), size+info.Size()
		return nil
	})
	slices.Sort(paths)
	return paths, size, err
}
