package sandbox

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/cayhq/cay"
)

// unpack creates dir from an archive of a single directory that a sandbox sent.
// It drops the first element of each name, which is that directory's name. All
// work goes through an os.Root, so that no name or link leads out of dir.
func unpack(r io.Reader, dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() // a directory has nothing left to write
	u := &unpacker{root: root, buf: make([]byte, 256<<10)}
	tr := tar.NewReader(r)
	for {
		hdr, err := tr.Next()
		if err == io.EOF {
			return u.finish()
		}
		if err != nil {
			return cay.Errorf(cay.Internal, "the sandbox sent an archive that cannot be read: %w", err)
		}
		if err := u.member(hdr, tr); err != nil {
			return err
		}
	}
}

type unpacker struct {
	root *os.Root
	buf  []byte
	dirs []dirAttrs
}

// dirAttrs are the attributes of a directory, set when all its files are
// written.
type dirAttrs struct {
	name string
	mode fs.FileMode
	time time.Time
}

func (u *unpacker) member(hdr *tar.Header, content io.Reader) error {
	name, ok := memberName(hdr.Name)
	if !ok {
		return cay.Errorf(cay.Invalid, "the sandbox sent an archive with a member named %q", hdr.Name)
	}
	mode := fs.FileMode(hdr.Mode) & 0o777
	if name == "." {
		u.dirs = append(u.dirs, dirAttrs{name, mode, hdr.ModTime})
		return nil
	}
	if err := u.root.MkdirAll(path.Dir(name), 0o777); err != nil {
		return err
	}
	switch hdr.Typeflag {
	case tar.TypeDir:
		if fi, err := u.root.Lstat(name); err == nil && !fi.IsDir() {
			if err := u.root.Remove(name); err != nil {
				return err
			}
		}
		if err := u.root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		u.dirs = append(u.dirs, dirAttrs{name, mode, hdr.ModTime})
		return nil
	case tar.TypeReg:
		return u.file(name, mode, hdr.ModTime, content)
	case tar.TypeSymlink:
		if err := u.clear(name); err != nil {
			return err
		}
		return u.root.Symlink(hdr.Linkname, name)
	case tar.TypeLink:
		target, ok := memberName(hdr.Linkname)
		if !ok {
			return cay.Errorf(cay.Invalid, "the sandbox sent an archive with a link to %q", hdr.Linkname)
		}
		if err := u.clear(name); err != nil {
			return err
		}
		return u.root.Link(target, name)
	}
	return nil // devices and pipes stay where they are
}

func (u *unpacker) file(name string, mode fs.FileMode, mtime time.Time, content io.Reader) error {
	if err := u.clear(name); err != nil {
		return err
	}
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(onlyWriter{f}, content, u.buf)
	if err == nil {
		err = f.Chmod(mode)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return u.root.Chtimes(name, mtime, mtime)
}

// clear removes an existing file or empty directory that is in the way of a new
// file.
func (u *unpacker) clear(name string) error {
	if err := u.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// finish sets the attributes of directories, innermost first.
func (u *unpacker) finish() error {
	for i := len(u.dirs) - 1; i >= 0; i-- {
		d := u.dirs[i]
		// A later member may have replaced the directory by a link.
		if fi, err := u.root.Lstat(d.name); err != nil || !fi.IsDir() {
			continue
		}
		if err := u.root.Chmod(d.name, d.mode|0o700); err != nil {
			return err
		}
		if err := u.root.Chtimes(d.name, d.time, d.time); err != nil {
			return err
		}
	}
	return nil
}

// memberName returns a name of an archive without its first element, and false
// if it is absolute or leads upwards. "." is the directory itself.
func memberName(name string) (string, bool) {
	name = strings.TrimSuffix(name, "/")
	_, rest, below := strings.Cut(strings.TrimPrefix(name, "./"), "/")
	if path.IsAbs(name) || strings.ContainsRune(name, 0) {
		return "", false
	}
	if !below {
		return ".", name != ".."
	}
	rest = path.Clean(rest)
	return rest, filepath.IsLocal(name) && filepath.IsLocal(rest)
}
