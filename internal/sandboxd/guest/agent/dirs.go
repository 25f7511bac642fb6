package agent

import (
	"context"
	"io"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
)

// openDir opens a directory, below the directory at if at is a descriptor. Without
// follow, a symbolic link is ELOOP.
//
// openDir does not pass O_DIRECTORY: with it gVisor follows a final link in spite of
// O_NOFOLLOW. For the same reason os.Root and os.RemoveAll confine nothing in a sandbox,
// and are not used here.
func openDir(at int, name string, follow bool) (*os.File, error) {
	flags := unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
	if !follow {
		flags |= unix.O_NOFOLLOW
	}
	fd, err := ignoringEINTR(func() (int, error) { return unix.Openat(at, name, flags, 0) })
	if err == unix.ENXIO {
		err = unix.ENOTDIR // a socket, or a device without driver
	}
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		unix.Close(fd)
		return nil, syscall.ENOTDIR
	}
	return os.NewFile(uintptr(fd), name), nil
}

// openBeneath opens a directory below root. It follows links, but refuses absolute links
// and links that lead out of root, unless whole is set: then root is the machine's /.
func openBeneath(root *os.File, name string, whole bool) (*os.File, error) {
	var stack []*os.File // the open directories from root down to the current one
	top := func() *os.File {
		if len(stack) == 0 {
			return root
		}
		return stack[len(stack)-1]
	}
	defer func() {
		for _, f := range stack {
			f.Close()
		}
	}()
	rest := strings.Split(name, "/")
	for links := 0; len(rest) > 0; {
		elem := rest[0]
		rest = rest[1:]
		switch elem {
		case "", ".":
			continue
		case "..":
			if len(stack) == 0 && whole {
				continue
			}
			if len(stack) == 0 {
				return nil, escapes(name)
			}
			top().Close()
			stack = stack[:len(stack)-1]
			continue
		}
		d, err := openDir(int(top().Fd()), elem, false)
		if err == nil {
			stack = append(stack, d)
			continue
		}
		if err != syscall.ELOOP {
			return nil, err
		}
		target, err := readlinkat(int(top().Fd()), elem)
		if err != nil {
			return nil, err
		}
		if links++; links > 40 {
			return nil, syscall.ELOOP
		}
		if path.IsAbs(target) {
			if !whole {
				return nil, escapes(name)
			}
			for ; len(stack) > 0; stack = stack[:len(stack)-1] {
				top().Close()
			}
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	if len(stack) == 0 {
		return openDir(int(root.Fd()), ".", false)
	}
	d := top()
	stack = stack[:len(stack)-1]
	return d, nil
}

func escapes(name string) error {
	return cay.Errorf(cay.Invalid, "member %s leads outside of the directory", quote(name))
}

// removeTree removes a file, or a directory with all below it.
func removeTree(ctx context.Context, real string) error {
	up, name := path.Split(path.Clean(real))
	dir, err := openDir(unix.AT_FDCWD, up, true)
	if err != nil {
		return err
	}
	defer dir.Close()
	return removeAt(ctx, dir, name)
}

// removeAt descends by directory descriptors and follows no links, so links that change
// meanwhile cannot lead it elsewhere. A file that is gone already is no error.
func removeAt(ctx context.Context, dir *os.File, name string) error {
	if err := ctx.Err(); err != nil {
		return &begunError{err}
	}
	err := unix.Unlinkat(int(dir.Fd()), name, 0)
	if err == nil || err == unix.ENOENT {
		return nil
	}
	if err != unix.EISDIR && err != unix.EPERM {
		return err
	}
	sub, openErr := openDir(int(dir.Fd()), name, false)
	if openErr != nil {
		if openErr == unix.ENOTDIR || openErr == unix.ELOOP {
			return err // not a directory: unlinking itself failed
		}
		return openErr
	}
	defer sub.Close()
	for {
		names, err := sub.Readdirnames(1024)
		for _, n := range names {
			if err := removeAt(ctx, sub, n); err != nil {
				return err
			}
		}
		if len(names) == 0 {
			if err != nil && err != io.EOF {
				return err
			}
			break
		}
		// Removing entries may have moved entries that were not read yet.
		if _, err := sub.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
	if err := unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR); err != unix.ENOENT {
		return err
	}
	return nil
}
