package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// systemFiles reads and replaces files of a machine's own configuration. An image, or
// root in the guest, may have put anything in their place: no file makes systemFiles
// block, and located paths are below /etc, /usr and /var, whatever links point to.
type systemFiles struct {
	root string // "" for the real root
}

// maxSystemLinks is how many links a path may lead through, as on Linux.
const maxSystemLinks = 40

// locate returns the target of a path, with all links resolved within the root. Missing
// path elements stay in the result. It fails for targets outside the directories that hold
// a system's own files.
func (s systemFiles) locate(name string) (string, error) {
	at, rest := "", strings.Split(name, "/")
	missing := false
	for links := 0; len(rest) > 0; {
		elem := rest[0]
		rest = rest[1:]
		switch elem {
		case "", ".":
			continue
		case "..":
			at = strings.TrimSuffix(path.Dir("/"+at), "/")
			continue
		}
		if missing { // and all below it
			at += "/" + elem
			continue
		}
		target, err := readlinkat(unix.AT_FDCWD, s.root+at+"/"+elem)
		switch err {
		case nil:
		case unix.EINVAL, unix.ENOENT: // no link
			missing = err == unix.ENOENT
			at += "/" + elem
			continue
		default:
			return "", fmt.Errorf("%s: %w", name, err)
		}
		if links++; links > maxSystemLinks {
			return "", fmt.Errorf("%s: %w", name, syscall.ELOOP)
		}
		if path.IsAbs(target) {
			at = ""
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	for _, dir := range []string{"/etc/", "/usr/", "/var/"} {
		if strings.HasPrefix(at, dir) {
			return at, nil
		}
	}
	return "", fmt.Errorf("%s: it leads to %q, which is left alone", name, clip(at+"/"))
}

// read reads a regular file of at most limit bytes, into a slice with capacity for room
// more bytes.
func (s systemFiles) read(real string, limit, room int) ([]byte, error) {
	f, st, err := openRegular(s.root + real)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st.Size > int64(limit) {
		return nil, syscall.EFBIG
	}
	data := make([]byte, st.Size, int(st.Size)+room)
	n, err := io.ReadFull(f, data)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, reason(err)
	}
	return data[:n], nil
}

// has reports whether a file has the content and attributes that write would give it. An
// unchanged file does not make the disk differ from the saved disk.
func (s systemFiles) has(real string, content []byte) bool {
	var st unix.Stat_t
	err := unix.Lstat(s.root+real, &st)
	if err != nil || st.Mode != unix.S_IFREG|0o644 || st.Nlink != 1 || int(st.Uid) != os.Geteuid() || int(st.Gid) != os.Getegid() {
		return false
	}
	is, err := s.read(real, len(content), 0)
	return err == nil && bytes.Equal(is, content)
}

// write atomically replaces the file real, unless it is a directory, by a file with the
// given content. With mkdir it makes a missing directory.
func (s systemFiles) write(real string, content []byte, mkdir bool) error {
	return s.replace(real, mkdir, func(tmp string) error { return create(tmp, content) })
}

// create makes a file; it fails if the file exists.
func create(name string, content []byte) error {
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	})
	if err != nil {
		return err
	}
	f := rawFile(fd)
	_, err = f.Write(content)
	return errors.Join(reason(err), f.Close())
}

// edit changes the content of a regular file of at most limit bytes, and keeps owner and
// mode. It leaves missing files and files of other types alone, and files that change
// returns unchanged.
func (s systemFiles) edit(real string, limit int, change func([]byte) []byte) error {
	var st unix.Stat_t
	if err := unix.Lstat(s.root+real, &st); err != nil {
		if err == unix.ENOENT || err == unix.ENOTDIR {
			return nil
		}
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	before, err := s.read(real, limit, 0)
	if err != nil {
		return err
	}
	after := change(before)
	if bytes.Equal(before, after) {
		return nil
	}
	return s.replace(real, false, func(tmp string) error {
		if err := create(tmp, after); err != nil {
			return err
		}
		// In this order, because a change of owner clears bits of the mode.
		if err := unix.Lchown(tmp, int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
		return unix.Chmod(tmp, st.Mode&0o7777)
	})
}

// link makes a symbolic link, if it is not there.
func (s systemFiles) link(real, target string) error {
	if is, err := readlinkat(unix.AT_FDCWD, s.root+real); err == nil && is == target {
		return nil
	}
	return s.replace(real, true, func(tmp string) error { return unix.Symlink(target, tmp) })
}

// replace replaces a file by the file that make makes at tmp.
func (s systemFiles) replace(real string, mkdir bool, make func(tmp string) error) error {
	name := s.root + real
	tmp := path.Dir(name) + "/.cay-" + path.Base(name)
	err := make(tmp)
	switch {
	case err == unix.ENOENT && mkdir:
		if err = os.MkdirAll(path.Dir(name), 0o755); err == nil {
			err = make(tmp)
		}
	case err == unix.EEXIST: // left by a call that was cut short
		if err = os.RemoveAll(tmp); err == nil {
			err = make(tmp)
		}
	}
	if err == nil {
		err = unix.Rename(tmp, name)
	}
	if err != nil && err != unix.ENOENT {
		_ = os.RemoveAll(tmp) // the first error is returned
	}
	return reason(err)
}

// reason returns err without the path that Go adds: callers add the guest's path.
func reason(err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return err
}
