// Package rootfstest reads EROFS images back in tests, with the reader that
// sandboxes use and, where installed, the checker of erofs-utils.
package rootfstest

import (
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/erofs"
)

// File is a file of an image.
type File struct {
	Mode     uint16 // as st_mode
	UID, GID uint32
	Nlink    uint32
	Nid      uint64 // equal for hard links
	Mtime    int64  // seconds
	Target   string // of a symbolic link
	Data     []byte // of a regular file; valid until the test ends
}

// Perm is the mode without the type.
func (f File) Perm() uint16 { return f.Mode & 0o7777 }

// Tree is an image by absolute path; the root is "/".
type Tree map[string]File

// Paths returns all paths, sorted.
func (t Tree) Paths() []string { return slices.Sorted(maps.Keys(t)) }

// Read reads the image at path, and checks that every name can also be looked up.
func Read(t testing.TB, name string) Tree {
	t.Helper()
	if fsck, err := exec.LookPath("fsck.erofs"); err == nil {
		if out, err := exec.Command(fsck, name).CombinedOutput(); err != nil {
			t.Fatalf("fsck.erofs: %v\n%s", err, out)
		}
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	img, err := erofs.OpenImage(f)
	if err != nil {
		f.Close()
		t.Fatalf("open image: %v", err)
	}
	t.Cleanup(img.Close)
	tree := Tree{}
	read(t, img, img.RootNid(), img.RootNid(), "/", tree)
	return tree
}

func read(t testing.TB, img *erofs.Image, nid, parent uint64, name string, tree Tree) {
	t.Helper()
	inode, err := img.Inode(nid)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	f := File{
		Mode: inode.Mode(), UID: inode.UID(), GID: inode.GID(), Nlink: inode.Nlink(),
		Nid: nid, Mtime: int64(inode.Mtime()),
	}
	switch f.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		if f.Target, err = inode.Readlink(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	case unix.S_IFREG:
		if _, err := inode.DataOffset(); err != nil {
			t.Fatalf("%s cannot be mapped: %v", name, err)
		}
		ranges, err := inode.DataRanges()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		f.Data = ranges[0].Bytes
	}
	tree[name] = f
	if !inode.IsDir() {
		return
	}
	subdirs := uint32(0)
	err = inode.IterDirents(func(elem string, _ uint8, child uint64) error {
		if got, err := inode.Lookup(elem); err != nil || got != child {
			t.Errorf("look up %q in %s: nid %d, %v; listed with nid %d", elem, name, got, err, child)
		}
		switch {
		case elem == "." && child != nid, elem == ".." && child != parent:
			t.Errorf("%q in %s has nid %d", elem, name, child)
		case elem == "." || elem == "..":
		default:
			p := path.Join(name, elem)
			read(t, img, child, nid, p, tree)
			if tree[p].Mode&unix.S_IFMT == unix.S_IFDIR {
				subdirs++
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("list %s: %v", name, err)
	}
	if f.Nlink != 2+subdirs {
		t.Errorf("%s has %d subdirectories but %d links", name, subdirs, f.Nlink)
	}
}
