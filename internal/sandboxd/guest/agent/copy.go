package agent

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
)

// copyTree copies a file, or a directory with its contents, to a path that does not exist
// or is a file to replace. The copy is made under a temporary name in the same directory
// and renamed when it is complete; a failed copy is removed.
//
// It descends by directory descriptors and follows no links below from, so links that
// change meanwhile cannot lead it elsewhere.
func copyTree(ctx context.Context, from, to string) error {
	from, to = path.Clean(from), path.Clean(to)
	var src unix.Stat_t
	if err := unix.Lstat(from, &src); err != nil {
		return err
	}
	isDir := src.Mode&unix.S_IFMT == unix.S_IFDIR
	var dst unix.Stat_t
	switch err := unix.Lstat(to, &dst); {
	case err == unix.ENOENT:
	case err != nil:
		return err
	case dst.Mode&unix.S_IFMT == unix.S_IFDIR || isDir:
		return unix.EEXIST
	case dst.Ino == src.Ino && dst.Dev == src.Dev:
		return cay.Errorf(cay.Invalid, "copy: %s and %s are the same file", quote(path.Base(from)), quote(path.Base(to)))
	}
	c := &copier{ctx: ctx, links: map[fileID]string{}}
	var err error
	if c.top, err = openDir(unix.AT_FDCWD, path.Dir(to), true); err != nil {
		return err
	}
	defer c.top.Close()
	srcDir, err := openDir(unix.AT_FDCWD, path.Dir(from), true)
	if err != nil {
		return err
	}
	defer srcDir.Close()
	if isDir {
		if err := c.notInside(fileID{src.Dev, src.Ino}); err != nil {
			return err
		}
	}
	tmp := tempPrefix + rand.Text()
	if err := c.copy(int(srcDir.Fd()), path.Base(from), int(c.top.Fd()), tmp, tmp); err != nil {
		return errors.Join(err, removeAt(context.WithoutCancel(ctx), c.top, tmp))
	}
	if err := unix.Renameat(int(c.top.Fd()), tmp, int(c.top.Fd()), path.Base(to)); err != nil {
		return errors.Join(err, removeAt(context.WithoutCancel(ctx), c.top, tmp))
	}
	return nil
}

type fileID struct{ dev, ino uint64 }

// maxLinks bounds how many files with several names are remembered; each name of a
// further such file gets a copy of its own.
const maxLinks = 1 << 16

type copier struct {
	ctx   context.Context // of the copyTree call
	top   *os.File        // the directory the copy is made in
	links map[fileID]string
}

// notInside refuses a target within the source.
func (c *copier) notInside(src fileID) error {
	at := int(c.top.Fd())
	dir := "."
	for {
		var st unix.Stat_t
		if err := unix.Fstatat(at, dir, &st, 0); err != nil {
			return err
		}
		if (fileID{st.Dev, st.Ino}) == src {
			return cay.Errorf(cay.Invalid, "a directory cannot be copied into itself")
		}
		var up unix.Stat_t
		if err := unix.Fstatat(at, dir+"/..", &up, 0); err != nil {
			return err
		}
		if up.Ino == st.Ino && up.Dev == st.Dev || len(dir) > 4000 {
			return nil
		}
		dir += "/.."
	}
}

// copy copies a file or directory; rel is the copy's path below the top.
func (c *copier) copy(srcDir int, name string, dstDir int, as, rel string) error {
	if err := c.ctx.Err(); err != nil {
		return &begunError{err}
	}
	var st unix.Stat_t
	if err := unix.Fstatat(srcDir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return c.copyDir(srcDir, name, dstDir, as, rel, &st)
	case unix.S_IFLNK:
		target, err := readlinkat(srcDir, name)
		if err != nil {
			return err
		}
		if err := unix.Symlinkat(target, dstDir, as); err != nil {
			return err
		}
		if err := chownAt(dstDir, as, &st); err != nil {
			return err
		}
		return setTimes(dstDir, as, &st)
	case unix.S_IFREG:
		id := fileID{st.Dev, st.Ino}
		if first := c.links[id]; first != "" && st.Nlink > 1 {
			return unix.Linkat(int(c.top.Fd()), first, dstDir, as, 0)
		}
		if err := c.copyFile(srcDir, name, dstDir, as); err != nil {
			return err
		}
		if st.Nlink > 1 && len(c.links) < maxLinks && len(rel) < guest.MaxPath {
			c.links[id] = rel
		}
		return nil
	}
	return cay.Errorf(cay.Invalid, "%s is a device, pipe or socket, which is not copied", quote(name))
}

func (c *copier) copyDir(srcDir int, name string, dstDir int, as, rel string, st *unix.Stat_t) error {
	from, err := openDir(srcDir, name, false)
	if err != nil {
		return err
	}
	defer from.Close()
	if err := unix.Mkdirat(dstDir, as, 0o700); err != nil {
		return err
	}
	to, err := openDir(dstDir, as, false)
	if err != nil {
		return err
	}
	defer to.Close()
	for {
		names, err := from.Readdirnames(1024)
		for _, n := range names {
			if err := c.copy(int(from.Fd()), n, int(to.Fd()), n, rel+"/"+n); err != nil {
				return err
			}
		}
		if err == io.EOF || len(names) == 0 && err == nil {
			break
		}
		if err != nil {
			return err
		}
	}
	if err := copyAttrs(from, to); err != nil {
		return err
	}
	return finishCopy(to, dstDir, as, st)
}

func (c *copier) copyFile(srcDir int, name string, dstDir int, as string) error {
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Openat(srcDir, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return err
	}
	from := os.NewFile(uintptr(fd), name)
	defer from.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return syscall.EAGAIN // replaced since it was looked at
	}
	fd, err = ignoringEINTR(func() (int, error) {
		return unix.Openat(dstDir, as, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	})
	if err != nil {
		return err
	}
	to := os.NewFile(uintptr(fd), as)
	defer to.Close()
	if err := c.copyBytes(to, from, st.Size); err != nil {
		return err
	}
	if err := copyAttrs(from, to); err != nil {
		return err
	}
	return finishCopy(to, dstDir, as, &st)
}

// copyBytes copies content. It skips holes that the file system reports. It does not
// write large runs of zeros, which makes holes where the file system reports none.
func (c *copier) copyBytes(to, from *os.File, size int64) error {
	pooled := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(pooled)
	buf := *pooled
	dataEnd := int64(0) // no hole before this offset
	for at := int64(0); at < size; {
		if err := c.ctx.Err(); err != nil {
			return &begunError{err}
		}
		if at >= dataEnd {
			data, err := unix.Seek(int(from.Fd()), at, unix.SEEK_DATA)
			if err == unix.ENXIO {
				break // a hole to the end
			}
			dataEnd = size
			if err == nil {
				at = data
				if hole, err := unix.Seek(int(from.Fd()), at, unix.SEEK_HOLE); err == nil && hole > at {
					dataEnd = hole
				}
			}
		}
		n, err := from.ReadAt(buf[:min(int64(len(buf)), dataEnd-at, size-at)], at)
		if n > 0 && !allZero(buf[:n]) {
			if _, err := to.WriteAt(buf[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
		if err == io.EOF {
			size = at // it shrank
		} else if err != nil {
			return err
		}
	}
	return to.Truncate(size)
}

func allZero(b []byte) bool {
	var zeros [4096]byte
	for len(b) > len(zeros) {
		if !bytes.Equal(b[:len(zeros)], zeros[:]) {
			return false
		}
		b = b[len(zeros):]
	}
	return bytes.Equal(b, zeros[:len(b)])
}

func chownAt(dir int, name string, st *unix.Stat_t) error {
	err := unix.Fchownat(dir, name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.EPERM && os.Geteuid() != 0 {
		return nil
	}
	return err
}

func setTimes(dir int, name string, st *unix.Stat_t) error {
	return unix.UtimesNanoAt(dir, name, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

// finishCopy sets owner, mode and times, in this order, because a change of owner clears
// set-id bits.
func finishCopy(to *os.File, dir int, as string, st *unix.Stat_t) error {
	fd := int(to.Fd())
	if err := unix.Fchown(fd, int(st.Uid), int(st.Gid)); err != nil && (err != unix.EPERM || os.Geteuid() == 0) {
		return err
	}
	if err := unix.Fchmod(fd, st.Mode&0o7777); err != nil {
		return err
	}
	return setTimes(dir, as, st)
}

// copyAttrs copies attributes of the user's namespace.
func copyAttrs(from, to *os.File) error {
	attrs, err := userAttrs(from)
	if err != nil {
		return err
	}
	for name, value := range attrs {
		if err := unix.Fsetxattr(int(to.Fd()), name, value, 0); err != nil && !noAttrs(err) {
			return err
		}
	}
	return nil
}

// maxAttrs bounds the names and each value of a file's attributes.
const maxAttrs = 64 << 10

// userAttrs reads the user.* attributes of a file. The attributes of overlay file systems
// have a meaning to the kernel, and are not the user's.
func userAttrs(f *os.File) (map[string][]byte, error) {
	fd := int(f.Fd())
	size, err := unix.Flistxattr(fd, nil)
	if err != nil && !noAttrs(err) {
		return nil, err
	}
	if size <= 0 {
		return nil, nil
	}
	buf := make([]byte, min(size+256, maxAttrs))
	if size, err = unix.Flistxattr(fd, buf); err != nil {
		return nil, err
	}
	attrs := map[string][]byte{}
	for name := range strings.SplitSeq(string(buf[:size]), "\x00") {
		if !allowedAttr(name) {
			continue
		}
		value := make([]byte, maxAttrs)
		n, err := unix.Fgetxattr(fd, name, value)
		if err == unix.ENODATA {
			continue // removed since
		}
		if err != nil {
			return nil, err
		}
		attrs[name] = append([]byte(nil), value[:n]...)
	}
	return attrs, nil
}

func allowedAttr(name string) bool {
	return strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.")
}

// noAttrs reports whether an error means that the file system has no attributes.
func noAttrs(err error) bool {
	return errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS)
}
