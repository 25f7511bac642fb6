package disk

import (
	"archive/tar"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"path"
	"strings"
	"time"

	"github.com/cayhq/cay"
)

const (
	whiteout       = ".wh."
	whiteoutOpaque = ".wh..wh..opq"

	paxXattr  = "SCHILY.xattr."
	paxOpaque = paxXattr + "trusted.overlay.opaque"
	paxACL    = paxXattr + "system.posix_acl_"
)

// normalize checks a header and gives it the form of ordinary archives.
func (e *entry) normalize() error {
	h := e.Header
	name, ok := cleanName(h.Name)
	if !ok {
		return invalid("%.100q is not a path in it", h.Name)
	}
	h.Name = name
	switch h.Typeflag {
	case tar.TypeDir, tar.TypeReg, tar.TypeSymlink, tar.TypeFifo, tar.TypeChar, tar.TypeBlock:
	case tar.TypeLink:
		if h.Linkname, ok = cleanName(h.Linkname); !ok || h.Linkname == "." {
			return invalid("%.100q links a path that is not in it", h.Name)
		}
	default:
		return invalid("%.100q is of the unknown type %q", h.Name, h.Typeflag)
	}
	if h.Name == "." && h.Typeflag != tar.TypeDir {
		return invalid("its root is not a directory")
	}
	if h.Uid < 0 || h.Uid > 1<<32-1 || h.Gid < 0 || h.Gid > 1<<32-1 {
		return invalid("%.100q belongs to %d:%d", h.Name, h.Uid, h.Gid)
	}
	records := map[string]string{}
	for k, v := range h.PAXRecords {
		switch {
		case strings.HasPrefix(k, paxACL): // not text, which gVisor makes it
			b, err := base64.RawStdEncoding.DecodeString(v)
			if err != nil {
				return invalid("an access list of %.100q: %w", h.Name, err)
			}
			records[k] = string(b)
		case strings.HasPrefix(k, paxXattr):
			records[k] = v
		case strings.HasPrefix(k, "GNU.sparse."):
			return invalid("%.100q has holes in the archive", h.Name)
		}
	}
	e.Header = &tar.Header{
		Typeflag: h.Typeflag, Name: h.Name, Linkname: h.Linkname, Size: h.Size, Mode: h.Mode & 0o7777, Uid: h.Uid, Gid: h.Gid,
		ModTime: time.Unix(h.ModTime.Unix(), 0), Devmajor: h.Devmajor, Devminor: h.Devminor, PAXRecords: records,
	}
	return nil
}

// cleanName makes "./a/b/" and the like "a/b".
func cleanName(name string) (string, bool) {
	rest, ok := strings.CutPrefix(name, "./")
	rest = strings.TrimSuffix(rest, "/")
	if rest == "" {
		return ".", ok
	}
	for elem := range strings.SplitSeq(rest, "/") {
		ok = ok && elem != "" && elem != "." && elem != ".."
	}
	return rest, ok && !strings.Contains(rest, "\x00")
}

// WriteLayer writes a file system as a layer of an OCI image, uncompressed.
// Holes of 64 KiB and more stay holes (as in GNU's format 1.0). Errors: as of
// Check; not_found, not_supported if a file has the name of a whiteout.
func (d *Disk) WriteLayer(ctx context.Context, mount string, w io.Writer) error {
	tw := tar.NewWriter(w)
	err := d.walk(ctx, mount, func(e *entry) error {
		if err := d.writeEntry(ctx, tw, w, e); err != nil {
			return fmt.Errorf("write %.100q: %w", e.Name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return tw.Close()
}

func (d *Disk) writeEntry(ctx context.Context, tw *tar.Writer, w io.Writer, e *entry) error {
	h := e.Header
	dir, base := path.Split(h.Name)
	if strings.HasPrefix(base, whiteout) {
		return cay.Errorf(cay.NotSupported, "a layer cannot have the file %.100q: its name says that another one was removed", h.Name).
			WithHint("rename the file and take the snapshot again")
	}
	if e.whiteout {
		return tw.WriteHeader(marker(dir+whiteout+base, h))
	}
	opaque := h.PAXRecords[paxOpaque] == "y"
	maps.DeleteFunc(h.PAXRecords, func(k, _ string) bool { return strings.HasPrefix(k, paxXattr+"trusted.overlay.") })
	if h.Typeflag != tar.TypeReg {
		h.Size = 0
		if h.Typeflag == tar.TypeDir {
			h.Name += "/"
		}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if opaque {
			return tw.WriteHeader(marker(h.Name+whiteoutOpaque, h))
		}
		return nil
	}
	all := chunks(e.pieces)
	var data uint64
	for _, c := range all {
		data += c.size
	}
	if e.size-data < minHole {
		all = []chunk{{0, e.size, e.pieces}}
		h.Size = int64(e.size)
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		return d.copyChunks(ctx, tw, all)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	return writeSparse(w, h, e.size, all, func(w io.Writer) error { return d.copyChunks(ctx, w, all) })
}

// marker returns the header of an empty file, whose name carries information about h.
func marker(name string, h *tar.Header) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(name, "./"), Mode: 0o600, ModTime: h.ModTime}
}

var zeros [64 << 10]byte

// copyChunks copies the contents of chunks to w.
func (d *Disk) copyChunks(ctx context.Context, w io.Writer, all []chunk) error {
	buf := make([]byte, 256<<10)
	fill := func(n uint64) error {
		for n > 0 {
			k, err := w.Write(zeros[:min(n, uint64(len(zeros)))])
			if err != nil {
				return err
			}
			n -= uint64(k)
		}
		return nil
	}
	for _, c := range all {
		off := c.off
		for _, p := range c.pieces {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := fill(p.off - off); err != nil {
				return err
			}
			if _, err := io.CopyBuffer(w, section(d.pages, p.at, p.at+p.size), buf); err != nil {
				return err
			}
			off = p.off + p.size
		}
		if err := fill(c.off + c.size - off); err != nil {
			return err
		}
	}
	return nil
}
