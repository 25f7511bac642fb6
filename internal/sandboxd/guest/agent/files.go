package agent

import (
	"container/heap"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/sandbox"
)

func (s *Server) handleStat(w http.ResponseWriter, r *http.Request) error {
	real, shown, err := s.pathParam(r, "path")
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if flagParam(r, "follow") {
		err = unix.Stat(real, &st)
	} else {
		err = unix.Lstat(real, &st)
	}
	if err != nil {
		return fileError("stat", shown, err)
	}
	entry := entryOf(&st, path.Base(shown))
	entry.Path = []byte(shown)
	if entry.Type == sandbox.TypeSymlink {
		target, err := readlinkat(unix.AT_FDCWD, real)
		if err != nil {
			return fileError("read link", shown, err)
		}
		entry.Target = []byte(target)
	}
	return writeJSON(w, entry)
}

const maxPage = 10000

func (s *Server) handleReadDir(w http.ResponseWriter, r *http.Request) error {
	real, shown, err := s.pathParam(r, "path")
	if err != nil {
		return err
	}
	limit, err := intParam(r, "limit")
	if err != nil {
		return err
	}
	if limit > maxPage {
		return cay.Errorf(cay.Invalid, "limit %d is not within 1 to %d", limit, maxPage)
	}
	set(&limit, guest.DefaultPage)
	cursor := r.URL.Query().Get("cursor")
	after, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(after) > unix.NAME_MAX {
		return cay.Errorf(cay.Invalid, "cursor %q is not from a page before", clip(cursor))
	}
	dir, err := openDir(unix.AT_FDCWD, real, true)
	if err != nil {
		return fileError("list", shown, err)
	}
	defer dir.Close()
	names, more, err := firstNames(r, dir, string(after), int(limit))
	if err != nil {
		return fileError("list", shown, err)
	}
	page := guest.DirPage{Dir: []byte(shown), Entries: make([]guest.FileEntry, 0, len(names))}
	size := 0
	for i, name := range names {
		if size > guest.MaxPageBytes {
			more, names = true, names[:i]
			break
		}
		entry, err := statAt(int(dir.Fd()), name)
		if err == unix.ENOENT {
			continue // removed since
		}
		if err != nil {
			return fileError("stat", path.Join(shown, name), err)
		}
		size += len(entry.Name) + len(entry.Target)
		page.Entries = append(page.Entries, entry)
	}
	if more {
		page.Next = base64.RawURLEncoding.EncodeToString([]byte(names[len(names)-1]))
	}
	return writeJSON(w, page)
}

func statAt(dir int, name string) (guest.FileEntry, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return guest.FileEntry{}, err
	}
	entry := entryOf(&st, name)
	if entry.Type == sandbox.TypeSymlink {
		target, err := readlinkat(dir, name)
		if err != nil && err != unix.EINVAL { // EINVAL: replaced by a file of another type since
			return guest.FileEntry{}, err
		}
		entry.Target = []byte(target)
	}
	return entry, nil
}

// firstNames returns the first limit names after a name, sorted, and whether there are
// more. It needs no more memory than that, however large the directory is.
func firstNames(r *http.Request, dir *os.File, after string, limit int) (names []string, more bool, err error) {
	var largest nameHeap // the limit smallest names so far, largest first
	for {
		if err := r.Context().Err(); err != nil {
			return nil, false, &begunError{err}
		}
		batch, err := dir.Readdirnames(1024)
		for _, name := range batch {
			switch {
			case name <= after && after != "":
			case len(largest) < limit:
				heap.Push(&largest, name)
			case name < largest[0]:
				more = true
				largest[0] = name
				heap.Fix(&largest, 0)
			default:
				more = true
			}
		}
		if err == io.EOF || len(batch) == 0 && err == nil {
			break
		}
		if err != nil {
			return nil, false, err
		}
	}
	slices.Sort(largest)
	return largest, more, nil
}

type nameHeap []string

func (h nameHeap) Len() int           { return len(h) }
func (h nameHeap) Less(i, j int) bool { return h[i] > h[j] }
func (h nameHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *nameHeap) Push(v any)        { *h = append(*h, v.(string)) }
func (h *nameHeap) Pop() any {
	old := *h
	v := old[len(old)-1]
	*h = old[:len(old)-1]
	return v
}

func (s *Server) handleMkdir(w http.ResponseWriter, r *http.Request) error {
	real, shown, err := s.pathParam(r, "path")
	if err != nil {
		return err
	}
	mode, err := modeParam(r)
	if err != nil {
		return err
	}
	set(&mode, 0o755)
	own, err := s.owner(r.URL.Query().Get("user"))
	if err != nil {
		return err
	}
	if flagParam(r, "parents") {
		if err := makeParents(path.Dir(path.Clean(real)), 0o755, own); err != nil {
			return fileError("make directory", shown, err)
		}
	}
	err = makeDir(real, mode, own)
	if err == unix.EEXIST && flagParam(r, "parents") {
		var st unix.Stat_t
		if unix.Stat(real, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			return nil
		}
	}
	if err != nil {
		return fileError("make directory", shown, err)
	}
	return nil
}

func (s *Server) handleRename(w http.ResponseWriter, r *http.Request) error {
	from, fromShown, err := s.pathParam(r, "from")
	if err != nil {
		return err
	}
	to, toShown, err := s.pathParam(r, "to")
	if err != nil {
		return err
	}
	err = unix.Rename(from, to)
	if err == unix.EXDEV {
		// On another file system: the copy gets its name when it is complete.
		if err := copyTree(r.Context(), from, to); err != nil {
			return fileError("move to", toShown, err)
		}
		if err := removeTree(r.Context(), from); err != nil {
			return fileError("remove", fromShown, err)
		}
		return nil
	}
	if err != nil {
		return twoPathError("rename", fromShown, toShown, err)
	}
	return nil
}

// twoPathError is fileError for an operation on two paths.
func twoPathError(verb, from, to string, err error) error {
	if _, ok := errors.AsType[*cay.Error](err); ok {
		return err
	}
	return cay.Errorf(codeOf(err), "%s %s to %s: %s", verb, quote(from), quote(to), reasonOf(err))
}

func (s *Server) handleCopy(w http.ResponseWriter, r *http.Request) error {
	from, fromShown, err := s.pathParam(r, "from")
	if err != nil {
		return err
	}
	to, toShown, err := s.pathParam(r, "to")
	if err != nil {
		return err
	}
	if err := copyTree(r.Context(), from, to); err != nil {
		return twoPathError("copy", fromShown, toShown, err)
	}
	return nil
}

func (s *Server) handleRemove(w http.ResponseWriter, r *http.Request) error {
	real, shown, err := s.pathParam(r, "path")
	if err != nil {
		return err
	}
	if shown == "/" {
		return cay.Errorf(cay.Invalid, "the root directory cannot be removed")
	}
	var st unix.Stat_t
	if err := unix.Lstat(real, &st); err != nil {
		return fileError("remove", shown, err)
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	switch {
	case !isDir:
		err = unix.Unlink(real)
	case flagParam(r, "recursive"):
		err = removeTree(r.Context(), real)
	default:
		err = unix.Rmdir(real)
		if err == syscall.ENOTEMPTY {
			return cay.Errorf(cay.Conflict, "remove %s: the directory is not empty", quote(shown)).WithHint("remove it recursively")
		}
	}
	if err != nil {
		return fileError("remove", shown, err)
	}
	return nil
}

func (s *Server) handleSymlink(w http.ResponseWriter, r *http.Request) error {
	target := r.URL.Query().Get("target")
	if target == "" || len(target) > guest.MaxPath-1 || strings.ContainsRune(target, 0) {
		return cay.Errorf(cay.Invalid, "target %s is not 1 to %d bytes without NUL", quote(target), guest.MaxPath-1)
	}
	real, shown, err := s.pathParam(r, "path")
	if err != nil {
		return err
	}
	own, err := s.owner("")
	if err != nil {
		return err
	}
	if err := unix.Symlink(target, real); err != nil {
		return fileError("link", shown, err)
	}
	if own.uid >= 0 {
		if err := unix.Lchown(real, own.uid, own.gid); err != nil {
			return fileError("change owner of", shown, err)
		}
	}
	return nil
}

func (s *Server) handleChmod(w http.ResponseWriter, r *http.Request) error {
	real, shown, err := s.pathParam(r, "path")
	if err != nil {
		return err
	}
	mode, err := modeParam(r)
	if err != nil {
		return err
	}
	if err := unix.Chmod(real, mode); err != nil {
		return fileError("change mode of", shown, err)
	}
	return nil
}
