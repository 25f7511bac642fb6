package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// packTar writes what is in dir to w as a tar archive: files, directories and
// symbolic links, with their modes and times but not their owners.
func packTar(w io.Writer, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	tw := tar.NewWriter(w)
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name == "." {
			return nil
		}
		return packMember(tw, root, name, d)
	})
	if err != nil {
		return fmt.Errorf("read %s: %w", dir, err)
	}
	return tw.Close()
}

func packMember(tw *tar.Writer, root *os.Root, name string, d fs.DirEntry) error {
	fi, err := d.Info()
	if err != nil {
		return err
	}
	target := ""
	switch {
	case fi.Mode()&fs.ModeSymlink != 0:
		if target, err = root.Readlink(name); err != nil {
			return err
		}
	case !fi.Mode().IsRegular() && !fi.IsDir():
		return nil // a socket, pipe or device means nothing elsewhere
	}
	h, err := tar.FileInfoHeader(fi, target)
	if err != nil {
		return err
	}
	h.Name = name
	if fi.IsDir() {
		h.Name += "/"
	}
	h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", ""
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	if !fi.Mode().IsRegular() {
		return nil
	}
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := io.Copy(tw, io.LimitReader(f, h.Size))
	if err == nil && n < h.Size {
		err = fmt.Errorf("%s became shorter while it was read", name)
	}
	return err
}

// unpackTar writes an archive that comes from a sandbox, and so may be hostile,
// into dir. Its first path element, the directory that was asked for, is
// dropped. Nothing is written outside of dir, whatever names and links the
// archive holds; set-id bits are not kept. It returns how many devices, pipes
// and sockets were left out.
func unpackTar(r io.Reader, dir string) (skipped int, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, err
	}
	defer root.Close()
	modes := make(map[string]fs.FileMode) // of directories, set last: they may forbid writing
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return skipped, fmt.Errorf("read the archive: %w", err)
		}
		name, ok := memberName(h.Name)
		if !ok {
			return skipped, fmt.Errorf("the archive holds a file named %q", h.Name)
		}
		if name == "." && h.Typeflag != tar.TypeDir {
			return skipped, fmt.Errorf("the archive holds %q, which is not the directory asked for", h.Name)
		}
		done, err := unpackMember(root, name, h, tr, modes)
		if err != nil {
			return skipped, err
		}
		if !done {
			skipped++
		}
	}
	for name, mode := range modes {
		if err := root.Chmod(name, mode); err != nil {
			return skipped, err
		}
	}
	return skipped, nil
}

// memberName returns a member's path below the directory that was asked for.
func memberName(name string) (string, bool) {
	name = path.Clean(strings.TrimPrefix(name, "./"))
	_, rest, below := strings.Cut(name, "/")
	if !below {
		return ".", filepath.IsLocal(name)
	}
	return rest, filepath.IsLocal(name)
}

func unpackMember(root *os.Root, name string, h *tar.Header, content io.Reader, modes map[string]fs.FileMode) (done bool, err error) {
	mode := fs.FileMode(h.Mode).Perm()
	if h.Typeflag == tar.TypeDir {
		if err := root.MkdirAll(name, 0o700); err != nil {
			return false, err
		}
		if name != "." {
			modes[name] = mode
		}
		return true, nil
	}
	if err := root.MkdirAll(path.Dir(name), 0o777); err != nil {
		return false, err
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeSymlink, tar.TypeLink:
	default:
		return false, nil
	}
	// What is in the way goes first: writing through an old link would change its target.
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	switch h.Typeflag {
	case tar.TypeSymlink:
		return true, root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		old, ok := memberName(h.Linkname)
		if !ok {
			return false, fmt.Errorf("the archive holds a link to %q", h.Linkname)
		}
		return true, root.Link(old, name)
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return false, err
	}
	_, err = io.Copy(f, content)
	if err = errors.Join(err, f.Chmod(mode), f.Close()); err != nil {
		return false, fmt.Errorf("write %s: %w", name, err)
	}
	return true, root.Chtimes(name, h.ModTime, h.ModTime)
}
