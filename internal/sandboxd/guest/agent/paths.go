package agent

import (
	"errors"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/sandbox"
)

// resolve checks a path of a request. It returns the path for the kernel, and the path to
// show: absolute and clean. With the real root, ".." after a link has the kernel's
// meaning.
func (s *Server) resolve(p string) (real, shown string, err error) {
	for elem := range strings.SplitSeq(p, "/") {
		// gVisor does not always say so by itself.
		if len(elem) > unix.NAME_MAX {
			return "", "", cay.Errorf(cay.Invalid, "path %q has a name of %d bytes; at most %d are allowed", clip(p), len(elem), unix.NAME_MAX)
		}
	}
	return s.absolute(p)
}

// absolute is resolve for paths that may be patterns.
func (s *Server) absolute(p string) (real, shown string, err error) {
	switch {
	case strings.ContainsRune(p, 0):
		return "", "", cay.Errorf(cay.Invalid, "path %q contains a NUL byte", clip(p))
	case len(p) > guest.MaxPath:
		return "", "", cay.Errorf(cay.Invalid, "path %q has %d bytes; at most %d are allowed", clip(p), len(p), guest.MaxPath)
	}
	if !path.IsAbs(p) {
		p = strings.TrimSuffix(s.self().workDir, "/") + "/" + p
	}
	shown = path.Clean(p)
	if s.cfg.Root == "/" {
		return p, shown, nil
	}
	real = s.cfg.Root + shown
	if strings.HasSuffix(p, "/") && shown != "/" {
		real += "/"
	}
	return real, shown, nil
}

// pathParam resolves a path in the query, which must be present.
func (s *Server) pathParam(r *http.Request, name string) (real, shown string, err error) {
	p := r.URL.Query().Get(name)
	if p == "" {
		return "", "", cay.Errorf(cay.Invalid, "%s is empty", name)
	}
	return s.resolve(p)
}

func flagParam(r *http.Request, name string) bool { return r.URL.Query().Get(name) != "" }

// modeParam reads permission bits; 0 is "not given". Errors: invalid.
func modeParam(r *http.Request) (uint32, error) {
	m, err := intParam(r, "mode")
	if err == nil && m > 0o7777 {
		err = cay.Errorf(cay.Invalid, "mode %#o has more than permission bits (07777)", m)
	}
	return uint32(m), err
}

// owner is the owner of a new file; -1 leaves the owner to the kernel.
type owner struct{ uid, gid int }

func (s *Server) owner(user string) (owner, error) {
	a, err := s.account(user)
	if err != nil || a == nil {
		return owner{-1, -1}, err
	}
	return owner{int(a.uid), int(a.gid)}, nil
}

// fileError returns an error that names the operation, the path and the reason, with a
// code.
func fileError(verb, shown string, err error) error {
	if _, ok := errors.AsType[*cay.Error](err); ok {
		return err
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return cay.Errorf(codeOf(err), "%s %s: %w", verb, quote(shown), errno)
	}
	return cay.Errorf(codeOf(err), "%s %s: %s", verb, quote(shown), reasonOf(err))
}

func codeOf(err error) cay.Code {
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return cay.Internal
	}
	switch errno {
	case syscall.ENOENT:
		return cay.FileNotFound
	case syscall.EEXIST:
		return cay.AlreadyExists
	case syscall.ENOSPC, syscall.EDQUOT:
		return cay.NoSpace
	case syscall.EFBIG, syscall.EOVERFLOW:
		return cay.TooLarge
	case syscall.ENOTDIR, syscall.EISDIR, syscall.ENAMETOOLONG, syscall.ELOOP, syscall.EINVAL, syscall.EXDEV, syscall.ENXIO, syscall.ENODEV:
		return cay.Invalid
	case syscall.ENOTEMPTY, syscall.EBUSY, syscall.ETXTBSY:
		return cay.Conflict
	case syscall.EACCES, syscall.EPERM, syscall.EROFS:
		return cay.PermissionDenied
	case syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN, syscall.EINTR, syscall.EIO, syscall.ESTALE:
		return cay.Unavailable
	case syscall.ENOSYS, syscall.EOPNOTSUPP:
		return cay.NotSupported
	}
	return cay.Internal
}

// reasonOf returns the kernel's text for an error, without the paths that Go adds, which
// would mislead because they have the root as a prefix.
func reasonOf(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	return err.Error()
}

func quote(p string) string { return "\"" + clip(p) + "\"" }

// openRegular opens a regular file for reading. It does not block on a pipe or the like.
func openRegular(real string) (rawFile, unix.Stat_t, error) {
	var st unix.Stat_t
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Open(real, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return -1, st, err
	}
	f := rawFile(fd)
	err = unix.Fstat(fd, &st)
	switch {
	case err != nil:
	case st.Mode&unix.S_IFMT == unix.S_IFREG:
		return f, st, nil
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		err = syscall.EISDIR
	default:
		err = errNotRegular
	}
	_ = f.Close() // it was not read
	return -1, st, err
}

var errNotRegular = cay.Errorf(cay.Invalid, "it is not a regular file")

func ignoringEINTR[T any](do func() (T, error)) (T, error) {
	for {
		v, err := do()
		if err != syscall.EINTR {
			return v, err
		}
	}
}

func inodeOf(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}

// entryOf describes a file by the result of fstat.
func entryOf(st *unix.Stat_t, name string) guest.FileEntry {
	e := guest.FileEntry{
		Name: []byte(name),
		Type: sandbox.TypeOther,
		Size: st.Size,
		Mode: st.Mode & 0o7777,
		UID:  st.Uid,
		GID:  st.Gid,
	}
	e.ModTime = timeOf(st.Mtim)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.Type = sandbox.TypeFile
	case unix.S_IFDIR:
		e.Type = sandbox.TypeDir
	case unix.S_IFLNK:
		e.Type = sandbox.TypeSymlink
	}
	return e
}

// readlinkat reads a link's target of any length.
func readlinkat(dir int, name string) (string, error) {
	buf := make([]byte, guest.MaxPath)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}
