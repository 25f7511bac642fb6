package rootfs

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"math"
	"path"
	"strings"

	"github.com/cayhq/cay"
)

const (
	whiteout       = ".wh."
	whiteoutMeta   = ".wh..wh."
	whiteoutOpaque = ".wh..wh..opq"
)

// Apply applies an uncompressed tar archive to the tree, with the whiteouts of OCI
// layers: ".wh.NAME" hides NAME, ".wh..wh..opq" all other files in its directory, in both
// cases only files of earlier layers.
//
// Owners, times, set-id and sticky bits are kept. Devices, fifos and sockets are left
// out, as are extended attributes: a sandbox has a /dev of its own and the reader of the
// image has no attributes. Errors: invalid, too_large.
func (t *Tree) Apply(ctx context.Context, r io.Reader) error {
	t.layer++
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		switch {
		case errors.Is(err, io.EOF):
			return ctx.Err()
		case errors.Is(err, tar.ErrInsecurePath):
			// Any name is harmless here.
		case errors.Is(err, tar.ErrHeader):
			return cay.Errorf(cay.Invalid, "not a tar archive, or a damaged one: %w", err)
		case err != nil:
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := t.applyMember(h, tr); err != nil {
			return err
		}
	}
}

// ApplyPrefix unpacks the members of a tar archive below prefix over the tree at dir,
// without whiteouts. npm packages have this layout: all members begin with "package/".
func (t *Tree) ApplyPrefix(ctx context.Context, r io.Reader, prefix, dir string) error {
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return ctx.Err()
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return err
		}
		name, ok := strings.CutPrefix(clean(h.Name), prefix)
		if !ok {
			continue
		}
		// npm gives unpacked files these modes, whatever the archive says.
		attr := Attr{Mode: 0o644 | uint16(h.Mode&0o111), ModTime: epoch}
		switch h.Typeflag {
		case tar.TypeReg:
			err = t.WriteFile(path.Join(dir, name), tr, h.Size, attr)
		default:
			continue
		}
		if err != nil {
			return err
		}
	}
}

func (t *Tree) applyMember(h *tar.Header, r io.Reader) error {
	name := clean(h.Name)
	if base := path.Base(name); strings.HasPrefix(base, whiteout) {
		return t.applyWhiteout(name, base)
	}
	if h.Uid < 0 || h.Uid > math.MaxUint32 || h.Gid < 0 || h.Gid > math.MaxUint32 {
		return cay.Errorf(cay.Invalid, "the owner %d:%d of %q in the image is out of range", h.Uid, h.Gid, h.Name)
	}
	attr := Attr{Mode: uint16(h.Mode & 0o7777), UID: uint32(h.Uid), GID: uint32(h.Gid), ModTime: h.ModTime}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont:
		return t.WriteFile(name, r, h.Size, attr)
	case tar.TypeDir:
		return t.Mkdir(name, attr)
	case tar.TypeSymlink:
		attr.Mode = 0o777
		return t.Symlink(name, h.Linkname, attr)
	case tar.TypeLink:
		return t.Link(name, h.Linkname)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo, tar.TypeXGlobalHeader:
		return t.count()
	default:
		return cay.Errorf(cay.Invalid, "%q in the image is of the unknown type %q", h.Name, h.Typeflag)
	}
}

func (t *Tree) applyWhiteout(name, base string) error {
	if err := t.count(); err != nil {
		return err
	}
	dir, _, err := t.lookupParent(name)
	if err != nil || dir == nil {
		return err
	}
	if base == whiteoutOpaque {
		t.hideLower(dir)
		return nil
	}
	if strings.HasPrefix(base, whiteoutMeta) {
		return nil // bookkeeping of AUFS
	}
	hidden := strings.TrimPrefix(base, whiteout)
	if hidden == "" || hidden == "." || hidden == ".." {
		return cay.Errorf(cay.Invalid, "the whiteout %q in the image hides no file", name)
	}
	if e := dir.children[hidden]; e.node != nil && t.hide(e) {
		delete(dir.children, hidden)
	}
	return nil
}

// hide removes the files of earlier layers below e and reports whether e itself must be
// removed, too.
func (t *Tree) hide(e entry) bool {
	if e.isDir() {
		t.hideLower(e.node)
	}
	return e.layer < t.layer && len(e.children) == 0
}

// hideLower removes the files of earlier layers from dir.
func (t *Tree) hideLower(dir *node) {
	for name, e := range dir.children {
		if t.hide(e) {
			delete(dir.children, name)
		}
	}
}
