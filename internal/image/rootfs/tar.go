package rootfs

import (
	"archive/tar"
	"context"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
)

// WriteTar writes the tree as a tar archive, which is a layer of an OCI image. Apply makes
// an equal tree of it, and equal trees give equal archives. Errors: not_supported (a file
// whose name means a removed file in a layer).
func (t *Tree) WriteTar(ctx context.Context, w io.Writer) error {
	if err := t.spool.Flush(); err != nil {
		return err
	}
	tw := &tarWriter{Writer: tar.NewWriter(w), ctx: ctx, tree: t, names: map[*node]string{}}
	if err := tw.write("", t.root); err != nil {
		return err
	}
	return tw.Close()
}

type tarWriter struct {
	*tar.Writer
	ctx   context.Context
	tree  *Tree
	names map[*node]string // the first name of each file
}

// write writes n, and everything below it, as the member name.
func (w *tarWriter) write(name string, n *node) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	if strings.HasPrefix(path.Base(name), whiteout) {
		return cay.Errorf(cay.NotSupported, "the image has a file %q, which a layer of an OCI image cannot have", name)
	}
	h := &tar.Header{Name: name, Mode: int64(n.mode & 0o7777), Uid: int(n.uid), Gid: int(n.gid), ModTime: n.mtime}
	if n.mtime.Nanosecond() != 0 {
		h.Format = tar.FormatPAX // the only one with fractions of a second
	}
	first, again := w.names[n]
	switch {
	case n.isDir():
		h.Typeflag, h.Name = tar.TypeDir, "./"+name
		if name != "" {
			h.Name = name + "/"
		}
	case again:
		h.Typeflag, h.Linkname = tar.TypeLink, first
	case n.isSymlink():
		h.Typeflag, h.Linkname = tar.TypeSymlink, n.target
	case n.isRegular():
		h.Typeflag, h.Size = tar.TypeReg, n.size
	default:
		return cay.Errorf(cay.NotSupported, "the image's file %q is of the unknown type %#o", name, n.mode&unix.S_IFMT)
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeReg {
		if _, err := io.Copy(w, w.tree.content(n)); err != nil {
			return err
		}
	}
	if !n.isDir() {
		w.names[n] = name
		return nil
	}
	for _, base := range slices.Sorted(maps.Keys(n.children)) {
		if err := w.write(path.Join(name, base), n.children[base].node); err != nil {
			return err
		}
	}
	return nil
}
