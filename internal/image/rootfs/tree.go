package rootfs

import (
	"bytes"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
)

// Limits bound the size of a tree. Exceeding one is too_large.
type Limits struct {
	Entries int   // files, directories and links, whiteouts included
	Bytes   int64 // of file contents, including files hidden by later layers
	Full    error // the error if there are more bytes; nil: too_large
}

const (
	maxName     = 255  // bytes in one element, as in Linux
	maxPath     = 4096 // bytes in a path or the target of a link, as in Linux
	maxSymlinks = 40   // followed in a look-up, as in Linux
)

// Tree is a file tree under construction. It must not be used concurrently.
type Tree struct {
	root    *node
	spool   *sparseFile
	limits  Limits
	entries int
	bytes   int64 // of file contents
	layer   int
}

// node is an inode. Hard links are several entries with one node.
type node struct {
	mode     uint16 // type and permission bits, as st_mode
	uid, gid uint32
	mtime    time.Time
	children map[string]entry // of a directory
	target   string           // of a symbolic link
	from     io.ReaderAt      // that has the content of a regular file; nil: the spool
	off      int64            // where in it
	size     int64
}

// entry is a name in a directory.
type entry struct {
	*node
	layer int // the layer that put it there
}

func (n *node) isDir() bool     { return n.mode&unix.S_IFMT == unix.S_IFDIR }
func (n *node) isSymlink() bool { return n.mode&unix.S_IFMT == unix.S_IFLNK }
func (n *node) isRegular() bool { return n.mode&unix.S_IFMT == unix.S_IFREG }

// New returns a tree with an empty root directory. Contents of files are stored in spool,
// which must be empty, readable and writable, and which the caller closes.
func New(spool *os.File, limits Limits) *Tree {
	return &Tree{root: newDir(), spool: newSparseFile(spool), limits: limits}
}

// epoch is the time of files without a time in any archive.
var epoch = time.Unix(0, 0)

func newDir() *node {
	return &node{mode: unix.S_IFDIR | 0o755, mtime: epoch, children: map[string]entry{}}
}

// Attr is the metadata of a file.
type Attr struct {
	Mode     uint16 // permission bits, set-id and sticky included
	UID, GID uint32
	ModTime  time.Time
}

func (a Attr) apply(n *node) {
	n.mode = n.mode&unix.S_IFMT | a.Mode&0o7777
	n.uid, n.gid, n.mtime = a.UID, a.GID, a.ModTime
}

// Mkdir makes a directory, or changes the attributes of an existing one. A file of
// another type at that name is replaced.
func (t *Tree) Mkdir(name string, a Attr) error {
	name = clean(name)
	if name == "" {
		a.apply(t.root)
		return nil
	}
	dir, base, err := t.parent(name)
	if err != nil {
		return err
	}
	n := dir.children[base].node
	if n == nil || !n.isDir() {
		n = newDir()
	}
	a.apply(n)
	return t.link(dir, base, n)
}

// Symlink makes a symbolic link, replacing any file at that name.
func (t *Tree) Symlink(name, target string, a Attr) error {
	if len(target) == 0 || len(target) >= maxPath {
		return cay.Errorf(cay.Invalid, "the link %q has a target of %d bytes", name, len(target))
	}
	n := &node{mode: unix.S_IFLNK, target: target}
	a.apply(n)
	return t.put(name, n)
}

// Link gives the file old, which must not be a directory, another name.
func (t *Tree) Link(name, old string) error {
	dir, base, err := t.lookupParent(clean(old))
	if err != nil {
		return err
	}
	if dir == nil || dir.children[base].node == nil {
		return cay.Errorf(cay.Invalid, "the hard link %q points to %q, which does not exist", name, old)
	}
	n := dir.children[base].node
	if n.isDir() {
		return cay.Errorf(cay.Invalid, "the hard link %q points to the directory %q", name, old)
	}
	return t.put(name, n)
}

// WriteFile makes a regular file with size bytes of r, replacing any file at that name.
func (t *Tree) WriteFile(name string, r io.Reader, size int64, a Attr) error {
	if err := t.addBytes(size); err != nil {
		return err
	}
	n := &node{mode: unix.S_IFREG, off: t.spool.size, size: size}
	a.apply(n)
	if _, err := io.CopyN(t.spool, r, size); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	return t.put(name, n)
}

// addBytes accounts for the content of one more file.
func (t *Tree) addBytes(size int64) error {
	if size < 0 || size > t.limits.Bytes-t.bytes {
		if t.limits.Full != nil {
			return t.limits.Full
		}
		return cay.Errorf(cay.TooLarge, "the image's files are larger than %d bytes", t.limits.Bytes)
	}
	t.bytes += size
	return nil
}

// content returns a reader of a regular file's content, once the spool is flushed.
func (t *Tree) content(n *node) io.Reader {
	from := n.from
	if from == nil {
		from = t.spool.f
	}
	return io.NewSectionReader(from, n.off, n.size)
}

// ReadFile returns the contents of a regular file of at most max bytes, following links.
// Errors: file_not_found, too_large.
func (t *Tree) ReadFile(name string, max int64) ([]byte, error) {
	n := t.stat(name)
	switch {
	case n == nil || !n.isRegular():
		return nil, cay.Errorf(cay.FileNotFound, "the image has no file %q", name)
	case n.size > max:
		return nil, cay.Errorf(cay.TooLarge, "the image's %q has %d bytes, more than %d", name, n.size, max)
	}
	if err := t.spool.Flush(); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	_, err := io.Copy(&b, t.content(n))
	return b.Bytes(), err
}

// Remove removes name and everything below it. A missing name is no error.
func (t *Tree) Remove(name string) error {
	dir, base, err := t.lookupParent(clean(name))
	if err != nil || dir == nil {
		return err
	}
	delete(dir.children, base)
	return nil
}

// MountPoint makes name a real, empty directory at exactly that path: it replaces links
// on the way and at the end, so that a later mount appears there. With keep, the contents
// of an existing directory stay.
func (t *Tree) MountPoint(name string, mode uint16, keep bool) {
	dir := t.root
	for elem := range strings.SplitSeq(clean(name), "/") {
		n := dir.children[elem].node
		if n == nil || !n.isDir() {
			n = newDir()
			dir.children[elem] = entry{n, t.layer}
		}
		dir = n
	}
	if !keep {
		*dir = *newDir()
	}
	dir.mode = unix.S_IFDIR | mode
}

// stat returns the node of name, links followed, or nil.
func (t *Tree) stat(name string) *node {
	n, _ := t.walk(clean(name), false, new(int))
	return n
}

// clean turns the name of an archive member into a path relative to the root
// that has no "..", and "" for the root itself.
func clean(name string) string { return path.Clean("/" + name)[1:] }

// put places n at name, making missing parents, replacing any file at that name.
func (t *Tree) put(name string, n *node) error {
	name = clean(name)
	if name == "" {
		return cay.Errorf(cay.Invalid, "the archive replaces the root directory by something else")
	}
	dir, base, err := t.parent(name)
	if err != nil {
		return err
	}
	return t.link(dir, base, n)
}

func (t *Tree) link(dir *node, base string, n *node) error {
	if len(base) > maxName {
		return cay.Errorf(cay.Invalid, "the file name %.40q... has more than %d bytes", base, maxName)
	}
	if err := t.count(); err != nil {
		return err
	}
	dir.children[base] = entry{n, t.layer}
	return nil
}

// count accounts for one more thing an archive made us do.
func (t *Tree) count() error {
	if t.entries++; t.entries > t.limits.Entries {
		return cay.Errorf(cay.TooLarge, "the image has more than %d files", t.limits.Entries)
	}
	return nil
}

// parent returns the directory that holds name, making missing directories.
func (t *Tree) parent(name string) (*node, string, error) {
	d, base := path.Split(name)
	n, err := t.walk(strings.TrimSuffix(d, "/"), true, new(int))
	return n, base, err
}

// lookupParent is parent without making directories: nil if the directory is missing.
func (t *Tree) lookupParent(name string) (*node, string, error) {
	if name == "" {
		return nil, "", nil
	}
	d, base := path.Split(name)
	n, err := t.walk(strings.TrimSuffix(d, "/"), false, new(int))
	if err != nil || n == nil || !n.isDir() {
		return nil, "", err
	}
	return n, base, nil
}

// walk resolves a relative path as a process chrooted into the tree would, following
// links. With create, walk makes missing directories and returns a directory; without
// create, it returns nil if the path does not exist.
func (t *Tree) walk(name string, create bool, links *int) (*node, error) {
	if len(name) > maxPath {
		return nil, cay.Errorf(cay.Invalid, "a path of the image has more than %d bytes: %.60q...", maxPath, name)
	}
	// stack has the directories from the root to the current one, for "..".
	stack := []*node{t.root}
	rest := name
	for rest != "" {
		var elem string
		elem, rest, _ = strings.Cut(rest, "/")
		dir := stack[len(stack)-1]
		switch {
		case elem == "" || elem == ".":
			continue
		case elem == "..":
			if len(stack) > 1 {
				stack = stack[:len(stack)-1]
			}
			continue
		case !dir.isDir():
			if create {
				return nil, cay.Errorf(cay.Invalid, "the path %q of the image leads through a file", name)
			}
			return nil, nil
		}
		n := dir.children[elem].node
		switch {
		case n == nil && !create:
			return nil, nil
		case n == nil:
			n = newDir()
			if err := t.link(dir, elem, n); err != nil {
				return nil, err
			}
		case n.isSymlink():
			if *links++; *links > maxSymlinks {
				return nil, cay.Errorf(cay.Invalid, "the path %q of the image leads through too many links", name)
			}
			if rest != "" {
				rest = n.target + "/" + rest
			} else {
				rest = n.target
			}
			if len(rest) > 2*maxPath {
				return nil, cay.Errorf(cay.Invalid, "the path %q of the image becomes too long through links", name)
			}
			if strings.HasPrefix(n.target, "/") {
				stack = stack[:1]
			}
			continue
		}
		stack = append(stack, n)
	}
	n := stack[len(stack)-1]
	if create && !n.isDir() {
		return nil, cay.Errorf(cay.Invalid, "the path %q of the image leads through a file", name)
	}
	return n, nil
}
