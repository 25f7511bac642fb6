package rootfs

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/cayhq/cay"
)

// The on-disk format, https://docs.kernel.org/filesystems/erofs.html. An image is the
// superblock's block, the inodes (each followed directly by a short link or directory),
// then the data of long directories and of files.
const (
	blockSize  = 4096
	superMagic = 0xe0f5e1e2
	superStart = 1024
	inodeSize  = 64 // the extended form, which has 32-bit owners and a time
	slotSize   = 32 // a nid counts slots
	direntSize = 12

	featureChecksum = 1
	formatPlain     = 1 | 0<<1 // extended inode, data in blocks
	formatInline    = 1 | 2<<1 // extended inode, data behind the inode
)

type superblock struct {
	Magic, Checksum, FeatureCompat uint32
	BlockBits, ExtSlots            uint8
	RootNid                        uint16
	Inodes, BuildTime              uint64
	BuildTimeNsec, Blocks          uint32
	MetaBlock, XattrBlock          uint32
	UUID, VolumeName               [16]byte
	FeatureIncompat                uint32
	_                              [44]byte
}

type diskInode struct {
	Format, XattrCount, Mode, _ uint16
	Size                        uint64
	Block, Ino, UID, GID        uint32
	Mtime                       uint64
	MtimeNsec, Nlink            uint32
	_                           [16]byte
}

// inode is a node with its place in the image.
type inode struct {
	*node
	pos    int64 // bytes from the start of the inodes
	nlink  uint32
	inline bool
	size   int64
	block  uint32 // first block of the data, unless inline
	parent *inode // of a directory
	names  []string
}

func (i *inode) nid() uint64 { return uint64(i.pos / slotSize) }

// image is a layout: every inode in the order of nids.
type image struct {
	inodes []*inode
	byNode map[*node]*inode
	uuid   [16]byte
	end    int64 // bytes of inodes
	blocks int64
}

// Digest is the hash of an image's content: "sha256:" and 64 hex digits.
type Digest string

// Hex is the digest without its algorithm.
func (d Digest) Hex() string { return string(d)[len("sha256:"):] }

// WriteTo writes the tree as an EROFS image with the given UUID to f, which must be
// empty, and returns the digest of the image.
func (t *Tree) WriteTo(f *os.File, uuid [16]byte) (Digest, error) {
	if err := t.spool.Flush(); err != nil {
		return "", err
	}
	img := layOut(t.root)
	img.uuid = uuid
	if img.blocks > 1<<32-1 {
		return "", cay.Errorf(cay.TooLarge, "the image has %d blocks of %d bytes, more than the format can hold", img.blocks, blockSize)
	}
	out := newSparseFile(f)
	sum := sha256.New()
	if err := img.write(io.MultiWriter(out, sum), t.content); err != nil {
		return "", err
	}
	if err := out.Flush(); err != nil {
		return "", err
	}
	return Digest("sha256:" + hex.EncodeToString(sum.Sum(nil))), nil
}

// layOut gives every inode its place.
func layOut(root *node) *image {
	// Slots 0 and 1 stay empty: 0 is an invalid inode number elsewhere.
	img := &image{byNode: map[*node]*inode{}, end: inodeSize}
	r := img.place(root)
	r.parent = r
	img.placeChildren(r)

	metaBlocks := blocksOf(img.end)
	next := 1 + metaBlocks
	for _, i := range img.inodes {
		if i.inline || i.size == 0 {
			continue
		}
		i.block = uint32(next)
		next += blocksOf(i.size)
	}
	img.blocks = next
	return img
}

func (img *image) place(n *node) *inode {
	i := &inode{node: n}
	switch {
	case n.isDir():
		i.names = append(slices.Collect(maps.Keys(n.children)), ".", "..")
		slices.Sort(i.names)
		i.size = dirSize(i.names)
		i.nlink = 2
	case n.isSymlink():
		i.size = int64(len(n.target))
	default:
		i.size = n.size
	}
	// Contents of files are never inline: they could not be mapped.
	i.inline = !n.isRegular() && inodeSize+i.size <= blockSize
	need := int64(inodeSize)
	if i.inline {
		need += i.size
	}
	if img.end%blockSize+need > blockSize { // inline data must not cross a block
		img.end = blocksOf(img.end) * blockSize
	}
	i.pos = img.end
	img.end = (img.end + need + inodeSize - 1) / inodeSize * inodeSize
	img.inodes = append(img.inodes, i)
	img.byNode[n] = i
	return i
}

// placeChildren places a directory's children side by side, then theirs.
func (img *image) placeChildren(dir *inode) {
	var dirs []*inode
	for _, name := range dir.names {
		n := dir.children[name].node
		if n == nil { // "." and ".."
			continue
		}
		i := img.byNode[n]
		if i == nil {
			i = img.place(n)
		}
		if n.isDir() {
			i.parent = dir
			dir.nlink++
			dirs = append(dirs, i)
		} else {
			i.nlink++
		}
	}
	for _, d := range dirs {
		img.placeChildren(d)
	}
}

func (img *image) write(w io.Writer, content func(*node) io.Reader) error {
	if err := img.writeSuper(w); err != nil {
		return err
	}
	var pos int64
	pad := func(to int64) error {
		_, err := io.CopyN(w, zeroReader{}, to-pos)
		pos = to
		return err
	}
	for _, i := range img.inodes {
		if err := pad(i.pos); err != nil {
			return err
		}
		b := i.encode()
		if i.inline {
			b = append(b, img.data(i)...)
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
		pos += int64(len(b))
	}
	if err := pad(blocksOf(img.end) * blockSize); err != nil {
		return err
	}
	for _, i := range img.inodes {
		if i.inline || i.size == 0 {
			continue
		}
		var r io.Reader
		if i.isRegular() {
			r = content(i.node)
		} else {
			r = bytes.NewReader(img.data(i))
		}
		if n, err := io.Copy(w, r); err != nil {
			return err
		} else if n != i.size {
			return fmt.Errorf("%d of %d bytes of a file are there: %w", n, i.size, io.ErrUnexpectedEOF)
		}
		pos += i.size
		if err := pad((pos + blockSize - 1) / blockSize * blockSize); err != nil {
			return err
		}
	}
	return nil
}

func (img *image) writeSuper(w io.Writer) error {
	b := make([]byte, blockSize)
	s := superblock{
		Magic: superMagic, FeatureCompat: featureChecksum, BlockBits: 12,
		RootNid: uint16(img.inodes[0].nid()), Inodes: uint64(len(img.inodes)),
		Blocks: uint32(img.blocks), MetaBlock: 1, UUID: img.uuid,
	}
	if _, err := binary.Encode(b[superStart:], binary.LittleEndian, &s); err != nil {
		return err
	}
	// The kernel's checksum is CRC-32C without the final inversion.
	crc := ^crc32.Checksum(b[superStart:], crc32.MakeTable(crc32.Castagnoli))
	binary.LittleEndian.PutUint32(b[superStart+4:], crc)
	_, err := w.Write(b)
	return err
}

func (i *inode) encode() []byte {
	d := diskInode{
		Format: formatPlain, Mode: i.mode, Size: uint64(i.size), Block: i.block, Ino: uint32(i.nid()),
		UID: i.uid, GID: i.gid, Mtime: uint64(i.mtime.Unix()), MtimeNsec: uint32(i.mtime.Nanosecond()), Nlink: i.nlink,
	}
	if i.inline {
		d.Format = formatInline
	}
	b, err := binary.Append(make([]byte, 0, inodeSize), binary.LittleEndian, &d)
	if err != nil {
		panic(err) // a struct of fixed size cannot fail
	}
	return b
}

// data is the content of a link or directory.
func (img *image) data(i *inode) []byte {
	if i.isSymlink() {
		return []byte(i.target)
	}
	b := make([]byte, 0, i.size)
	for block := range dirBlocks(i.names) {
		if n := len(b) % blockSize; n != 0 {
			b = append(b, make([]byte, blockSize-n)...)
		}
		off := len(block) * direntSize
		for _, name := range block {
			to := i
			switch name {
			case ".":
			case "..":
				to = i.parent
			default:
				to = img.byNode[i.children[name].node]
			}
			b = binary.LittleEndian.AppendUint64(b, to.nid())
			b = binary.LittleEndian.AppendUint16(b, uint16(off))
			b = append(b, to.fileType(), 0)
			off += len(name)
		}
		for _, name := range block {
			b = append(b, name...)
		}
	}
	return b
}

func (i *inode) fileType() byte {
	switch {
	case i.isDir():
		return 2
	case i.isSymlink():
		return 7
	default:
		return 1
	}
}

// dirBlocks divides the sorted names of a directory into blocks.
func dirBlocks(names []string) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		start, used := 0, 0
		for k, name := range names {
			n := direntSize + len(name)
			if used+n > blockSize {
				if !yield(names[start:k]) {
					return
				}
				start, used = k, 0
			}
			used += n
		}
		yield(names[start:])
	}
}

func dirSize(names []string) int64 {
	var size int64
	for block := range dirBlocks(names) {
		size = blocksOf(size) * blockSize
		for _, name := range block {
			size += int64(direntSize + len(name))
		}
	}
	return size
}

func blocksOf(size int64) int64 { return (size + blockSize - 1) / blockSize }

// zeroReader never ends.
type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
