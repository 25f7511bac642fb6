package rootfs

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"
)

// AddImage adds an image that WriteTo wrote to the tree, rooted at dir, as a layer of its
// own. AddImage makes dir and its parents real directories, replacing anything else. r
// has size bytes, and the contents of files stay in r: r must not change or be closed
// before the tree is written.
func (t *Tree) AddImage(ctx context.Context, r io.ReaderAt, size int64, dir string) error {
	t.layer++
	img := &reader{ctx: ctx, tree: t, r: r, size: size, nodes: map[uint64]*node{}}
	b, err := img.bytes(superStart, int64(binary.Size(superblock{})))
	if err != nil {
		return err
	}
	var s superblock
	if _, err := binary.Decode(b, binary.LittleEndian, &s); err != nil {
		return fmt.Errorf("read image: %w", err)
	}
	if s.Magic != superMagic || s.BlockBits != 12 || s.FeatureIncompat != 0 {
		return fmt.Errorf("read image: it is not one this package wrote")
	}
	img.meta = int64(s.MetaBlock) * blockSize
	root, err := img.node(uint64(s.RootNid))
	if err != nil {
		return err
	}
	if !root.isDir() {
		return fmt.Errorf("read image: its root is not a directory")
	}
	at := t.root
	if dir = clean(dir); dir != "" {
		t.MountPoint(dir, 0o755, false)
		at = t.stat(dir)
	}
	at.mode, at.uid, at.gid, at.mtime = root.mode, root.uid, root.gid, root.mtime
	for name, e := range root.children {
		at.children[name] = e
	}
	return nil
}

// reader makes nodes of an image.
type reader struct {
	ctx   context.Context
	tree  *Tree
	r     io.ReaderAt
	size  int64
	meta  int64 // where inodes begin
	nodes map[uint64]*node
}

func (i *reader) bytes(off, n int64) ([]byte, error) {
	if off < 0 || n < 0 || n > i.size || off > i.size-n {
		return nil, fmt.Errorf("read image: %d bytes at %d are not in its %d", n, off, i.size)
	}
	b := make([]byte, n)
	if _, err := i.r.ReadAt(b, off); err != nil {
		return nil, fmt.Errorf("read image: %w", err)
	}
	return b, nil
}

// node reads an inode, and all inodes below it. A file with several names is one node.
func (i *reader) node(nid uint64) (*node, error) {
	if n := i.nodes[nid]; n != nil {
		if n.isDir() {
			return nil, fmt.Errorf("read image: a directory has two names")
		}
		return n, nil
	}
	if err := i.ctx.Err(); err != nil {
		return nil, err
	}
	if nid > uint64(i.size/slotSize) {
		return nil, fmt.Errorf("read image: there is no inode %d", nid)
	}
	pos := i.meta + int64(nid)*slotSize
	b, err := i.bytes(pos, inodeSize)
	if err != nil {
		return nil, err
	}
	var d diskInode
	if _, err := binary.Decode(b, binary.LittleEndian, &d); err != nil {
		return nil, fmt.Errorf("read image: %w", err)
	}
	data := int64(d.Block) * blockSize
	switch {
	case d.Format == formatInline:
		data = pos + inodeSize
	case d.Format != formatPlain || d.XattrCount != 0:
		return nil, fmt.Errorf("read image: the inode %d is of the unknown format %d", nid, d.Format)
	}
	n := &node{mode: d.Mode, uid: d.UID, gid: d.GID, mtime: time.Unix(int64(d.Mtime), int64(d.MtimeNsec))}
	i.nodes[nid] = n
	size := int64(d.Size)
	switch d.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		if size < 0 || data > i.size-size {
			return nil, fmt.Errorf("read image: the file of inode %d is not in it", nid)
		}
		n.from, n.off, n.size = i.r, data, size
		if err := i.tree.addBytes(size); err != nil {
			return nil, err
		}
	case unix.S_IFLNK:
		target, err := i.bytes(data, size)
		if err != nil {
			return nil, err
		}
		n.target = string(target)
	case unix.S_IFDIR:
		n.children = map[string]entry{}
		if err := i.children(n, data, size); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("read image: the inode %d is of the unknown type %#o", nid, d.Mode)
	}
	return n, nil
}

// children reads the blocks of a directory: entries, then their names.
func (i *reader) children(dir *node, data, size int64) error {
	all, err := i.bytes(data, size)
	if err != nil {
		return err
	}
	for len(all) > 0 {
		block := all[:min(len(all), blockSize)]
		all = all[len(block):]
		if len(block) < direntSize {
			return fmt.Errorf("read image: a directory ends in the middle of an entry")
		}
		count := int(binary.LittleEndian.Uint16(block[8:])) / direntSize
		if count*direntSize > len(block) {
			return fmt.Errorf("read image: a directory has more entries than room")
		}
		for k := range count {
			e := block[k*direntSize:]
			start, end := int(binary.LittleEndian.Uint16(e[8:])), len(block)
			if k+1 < count {
				end = int(binary.LittleEndian.Uint16(e[direntSize+8:]))
			}
			if start > end || end > len(block) {
				return fmt.Errorf("read image: a name in a directory is not in its block")
			}
			name, _, _ := bytes.Cut(block[start:end], []byte{0}) // the last name is padded
			if s := string(name); s == "." || s == ".." {
				continue
			}
			child, err := i.node(binary.LittleEndian.Uint64(e))
			if err != nil {
				return err
			}
			if len(name) == 0 || bytes.IndexByte(name, '/') >= 0 {
				return fmt.Errorf("read image: %q is not a name", name)
			}
			if err := i.tree.link(dir, string(name), child); err != nil {
				return err
			}
		}
	}
	return nil
}
