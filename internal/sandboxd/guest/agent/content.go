package agent

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
)

// copyBuffers are for moving files.
var copyBuffers = sync.Pool{New: func() any { b := make([]byte, guest.CopyBuffer); return &b }}

// copyAll copies with a large buffer, whatever shortcuts the two offer.
func copyAll(w io.Writer, r io.Reader) (int64, error) {
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, *buf)
}

func (s *Server) handleReadFile(w http.ResponseWriter, r *http.Request) error {
	real, shown, err := s.pathParam(r, "path")
	if err != nil {
		return err
	}
	offset, err := intParam(r, "offset")
	if err != nil {
		return err
	}
	length, err := intParam(r, "length")
	if err != nil {
		return err
	}
	f, st, err := openRegular(real)
	if errors.Is(err, errNotRegular) {
		return cay.Errorf(cay.Invalid, "read %s: it is not a regular file", quote(shown))
	}
	if err != nil {
		return fileError("read", shown, err)
	}
	var opened io.Closer = f
	defer func() { opened.Close() }() // it was only read
	entry := entryOf(&st, path.Base(shown))
	entry.Path = []byte(shown)
	info, err := json.Marshal(entry)
	if err != nil {
		return err
	}
	if offset > 0 && (offset < st.Size || st.Size == 0) {
		if _, err := unix.Seek(int(f), offset, io.SeekStart); err != nil {
			return fileError("read", shown, err)
		}
	}
	h := w.Header()
	h["Content-Type"] = []string{"application/octet-stream"}
	h[guest.InfoHeader] = []string{string(info)}
	if st.Size == 0 {
		// Files of /proc and the like have no size, but content.
		if length == 0 {
			length = 1<<63 - 1
		}
		_, err := copyAll(w, io.LimitReader(f, length))
		if err != nil {
			h.Set(http.TrailerPrefix+guest.ErrorTrailer, string(guest.EncodeError(fileError("read", shown, err))))
		}
		return nil
	}
	n := max(st.Size-offset, 0)
	if length > 0 {
		n = min(n, length)
	}
	h["Content-Length"] = []string{strconv.FormatInt(n, 10)}
	if n == 0 {
		return nil
	}
	// The length is announced, so a later failure can only be shown by closing the
	// connection.
	if n <= smallFile {
		// sendfile(2) would send the content after the head, in a separate packet.
		content := make([]byte, n)
		if _, err := io.ReadFull(f, content); err != nil {
			return &begunError{err}
		}
		if _, err := w.Write(content); err != nil {
			return &begunError{err}
		}
		return nil
	}
	large := os.NewFile(uintptr(f), real)
	opened = large
	if sent, err := io.Copy(w, &io.LimitedReader{R: large, N: n}); err != nil || sent < n {
		return &begunError{errors.Join(err, io.ErrUnexpectedEOF)}
	}
	return nil
}

// smallFile is the size, in bytes, up to which a file is read before the answer is sent.
const smallFile = 16 << 10

func (s *Server) handleWriteFile(w http.ResponseWriter, r *http.Request) error {
	real, shown, err := s.pathParam(r, "path")
	if err != nil {
		return err
	}
	mode, err := modeParam(r)
	if err != nil {
		return err
	}
	user := r.URL.Query().Get("user")
	own, err := s.owner(user)
	if err != nil {
		return err
	}
	size := int64(-1)
	if flagParam(r, "size") {
		if size, err = intParam(r, "size"); err != nil {
			return err
		}
	}
	if strings.HasSuffix(real, "/") || path.Base(shown) == "/" {
		return cay.Errorf(cay.Invalid, "write %s: the path names a directory", quote(shown))
	}
	if real, err = writeTarget(real); err != nil {
		return fileError("write", shown, err)
	}
	if flagParam(r, "parents") {
		if err := makeParents(path.Dir(real), 0o755, own); err != nil {
			return fileError("write", shown, err)
		}
	}
	f, err := createAtomic(real, mode, own, user != "")
	if err != nil {
		return fileError("write", shown, err)
	}
	defer f.abort()
	n, err := copyAll(f.file, r.Body)
	if err != nil {
		if _, ok := errors.AsType[*os.PathError](err); ok {
			return fileError("write", shown, err)
		}
		return cay.Errorf(cay.Canceled, "write %s: the upload broke off after %d bytes", quote(shown), n)
	}
	if size >= 0 && n != size {
		return cay.Errorf(cay.Invalid, "write %s: %d bytes arrived, not the %d announced", quote(shown), n, size)
	}
	st, err := f.commit()
	if err != nil {
		return fileError("write", shown, err)
	}
	entry := entryOf(st, path.Base(shown))
	entry.Path = []byte(shown)
	return writeJSON(w, entry)
}

// writeTarget follows a final symbolic link, and further links, as open(2) does. The file
// need not exist.
func writeTarget(real string) (string, error) {
	for range 40 {
		target, err := readlinkat(unix.AT_FDCWD, real)
		if err == unix.EINVAL || err == unix.ENOENT {
			return real, nil
		}
		if err != nil {
			return "", err
		}
		if path.IsAbs(target) {
			real = target
		} else {
			real = real[:strings.LastIndexByte(real, '/')+1] + target
		}
	}
	return "", syscall.ELOOP
}

// atomicFile is a file that gets its name when it is complete.
type atomicFile struct {
	file rawFile // -1 when it was closed
	dir  int     // descriptor of the directory
	tmp  string
	name string
	mode uint32
	done bool
}

// tempPrefix begins the names of files that are not complete yet.
const tempPrefix = ".cay-"

// createAtomic begins to replace or make a file. Mode 0 means the old file's mode, else
// 0644; unless chown is set, an old file's owner stays.
func createAtomic(real string, mode uint32, own owner, chown bool) (*atomicFile, error) {
	i := strings.LastIndexByte(real, '/')
	f := &atomicFile{name: real[i+1:], mode: mode, tmp: tempPrefix + rand.Text()}
	if f.name == "" || f.name == "." || f.name == ".." {
		return nil, syscall.EISDIR
	}
	var err error
	if f.dir, err = ignoringEINTR(func() (int, error) {
		return unix.Open(real[:i+1], unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}); err != nil {
		return nil, err
	}
	var old unix.Stat_t
	switch err := unix.Fstatat(f.dir, f.name, &old, unix.AT_SYMLINK_NOFOLLOW); {
	case err == unix.ENOENT:
		set(&f.mode, 0o644)
	case err != nil:
		unix.Close(f.dir)
		return nil, err
	case old.Mode&unix.S_IFMT == unix.S_IFDIR:
		unix.Close(f.dir)
		return nil, syscall.EISDIR
	case old.Mode&unix.S_IFMT != unix.S_IFREG:
		unix.Close(f.dir)
		return nil, errNotRegular
	default:
		set(&f.mode, old.Mode&0o7777)
		if !chown {
			own = owner{int(old.Uid), int(old.Gid)}
		}
	}
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Openat(f.dir, f.tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	})
	if err != nil {
		unix.Close(f.dir)
		return nil, err
	}
	f.file = rawFile(fd)
	if own.uid >= 0 {
		// Without the right to change owners, failing to keep an old owner is no error.
		if err := unix.Fchown(fd, own.uid, own.gid); err != nil && (chown || os.Geteuid() == 0) {
			f.abort()
			return nil, err
		}
	}
	return f, nil
}

// commit gives the complete file its name.
func (f *atomicFile) commit() (*unix.Stat_t, error) {
	fd := int(f.file)
	var st unix.Stat_t
	// Last, because a change of owner clears set-id bits.
	if err := unix.Fchmod(fd, f.mode); err != nil {
		return nil, err
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	f.file = -1
	if err := unix.Close(fd); err != nil {
		return nil, err
	}
	// A child forked meanwhile has the file open for writing until its exec, which would
	// make executing the file fail with ETXTBSY.
	syscall.ForkLock.RLock()
	//lint:ignore SA2001 whoever holds the lock has let go of it now, which is all we want
	syscall.ForkLock.RUnlock()
	if err := unix.Renameat(f.dir, f.tmp, f.dir, f.name); err != nil {
		return nil, err
	}
	f.done = true
	return &st, nil
}

// abort removes the file unless it was committed, and frees all resources.
func (f *atomicFile) abort() {
	if f.file >= 0 {
		_ = f.file.Close() // the file is removed below
	}
	if !f.done {
		_ = unix.Unlinkat(f.dir, f.tmp, 0) // gone is gone
	}
	unix.Close(f.dir)
}

// makeParents makes a directory and its missing parents, owned by own.
func makeParents(dir string, mode uint32, own owner) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err == nil {
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return syscall.ENOTDIR
		}
		return nil
	}
	if up := path.Dir(dir); up != dir {
		if err := makeParents(up, mode, own); err != nil {
			return err
		}
	}
	if err := makeDir(dir, mode, own); err != nil && err != unix.EEXIST {
		return err
	}
	return nil
}

// MakeWorkDir makes the working directory if it is missing, owned by the user. If the
// user does not exist yet, the directory belongs to root.
func (s *Server) MakeWorkDir() error {
	real, shown, err := s.resolve(s.self().workDir)
	if err != nil {
		return err
	}
	own, err := s.owner("")
	if err != nil {
		own = owner{-1, -1}
	}
	if err := makeParents(path.Clean(real), 0o755, own); err != nil {
		return fileError("make working directory", shown, err)
	}
	return nil
}

// Own gives directories, such as the roots of new drives, to the default user. If the
// user does not exist yet, the directories stay root's. Failures appear in the health
// that the daemon asks for.
func (s *Server) Own(dirs []string) {
	if len(dirs) == 0 {
		return
	}
	own, err := s.owner("")
	if err != nil {
		return
	}
	for _, dir := range dirs {
		real, shown, err := s.resolve(dir)
		if err == nil && own.uid >= 0 {
			err = unix.Lchown(path.Clean(real), own.uid, own.gid)
		}
		if err != nil {
			s.Report(fileError("give to the default user", shown, err))
		}
	}
}

// makeDir makes one directory, with the mode and owner asked for, or none.
func makeDir(dir string, mode uint32, own owner) error {
	if err := unix.Mkdir(dir, 0o700); err != nil {
		return err
	}
	var err error
	if own.uid >= 0 {
		err = unix.Lchown(dir, own.uid, own.gid)
	}
	if err == nil {
		err = unix.Chmod(dir, mode)
	}
	if err != nil {
		_ = unix.Rmdir(dir) // the directory is empty, or in other use by now
	}
	return err
}

func timeOf(ts unix.Timespec) time.Time { return time.Unix(ts.Unix()).UTC() }
