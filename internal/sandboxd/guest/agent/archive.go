package agent

import (
	"archive/tar"
	"context"
	"io"
	"net/http"
	"os"
	"path"
	"slices"

	"github.com/klauspost/compress/gzip"
	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/sandbox"
)

func formatParam(r *http.Request) (sandbox.ArchiveFormat, error) {
	switch f := sandbox.ArchiveFormat(r.URL.Query().Get("format")); f {
	case "":
		return sandbox.Tar, nil
	case sandbox.Tar, sandbox.TarGz:
		return f, nil
	default:
		return "", cay.Errorf(cay.Invalid, "archive format %q is unknown", clip(string(f))).WithHint("use tar or tar.gz")
	}
}

func (s *Server) handleArchive(w http.ResponseWriter, r *http.Request) error {
	real, shown, err := s.pathParam(r, "path")
	if err != nil {
		return err
	}
	format, err := formatParam(r)
	if err != nil {
		return err
	}
	real = path.Clean(real)
	up, err := openDir(unix.AT_FDCWD, path.Dir(real), true)
	if err != nil {
		return fileError("archive", shown, err)
	}
	defer up.Close()
	var st unix.Stat_t
	if err := unix.Fstatat(int(up.Fd()), path.Base(real), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fileError("archive", shown, err)
	}
	w.Header()["Content-Type"] = []string{"application/x-tar"}
	if err := writeArchive(r.Context(), w, up, path.Base(real), format); err != nil {
		// The body has begun; a trailer says why it ends here.
		w.Header().Set(http.TrailerPrefix+guest.ErrorTrailer, string(guest.EncodeError(fileError("archive", shown, err))))
	}
	return nil
}

func writeArchive(ctx context.Context, w io.Writer, up *os.File, name string, format sandbox.ArchiveFormat) error {
	var zip *gzip.Writer
	if format == sandbox.TarGz {
		var err error
		if zip, err = gzip.NewWriterLevel(w, gzip.BestSpeed); err != nil {
			return err
		}
		w = zip
	}
	p := &packer{ctx: ctx, tw: tar.NewWriter(w), links: map[fileID]string{}}
	// The root has no name; its members are relative to itself.
	as := name
	if name == "/" {
		name, as = ".", "."
	}
	if err := p.pack(up, name, as); err != nil {
		return err
	}
	if err := p.tw.Close(); err != nil {
		return err
	}
	if zip != nil {
		return zip.Close()
	}
	return nil
}

// packer writes files to an archive. Like copier, it descends by directory descriptors
// and follows no links.
type packer struct {
	ctx   context.Context // of the request
	tw    *tar.Writer
	links map[fileID]string
}

func (p *packer) pack(dir *os.File, name, as string) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if err == unix.ENOENT {
			return nil // removed since it was listed
		}
		return err
	}
	h := &tar.Header{Name: as, Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: timeOf(st.Mtim), Format: tar.FormatPAX}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return p.packFile(dir, name, h)
	case unix.S_IFDIR:
		return p.packDir(dir, name, h)
	case unix.S_IFLNK:
		target, err := readlinkat(int(dir.Fd()), name)
		if err != nil {
			return err
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
		return p.tw.WriteHeader(h)
	}
	return nil // devices, pipes and sockets mean nothing elsewhere
}

func (p *packer) packFile(dir *os.File, name string, h *tar.Header) error {
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	id := fileID{st.Dev, st.Ino}
	if first := p.links[id]; first != "" && st.Nlink > 1 {
		h.Typeflag, h.Linkname = tar.TypeLink, first
		return p.tw.WriteHeader(h)
	}
	if st.Nlink > 1 && len(p.links) < maxLinks {
		p.links[id] = h.Name
	}
	h.Typeflag, h.Size = tar.TypeReg, st.Size
	if err := addAttrs(h, f); err != nil {
		return err
	}
	if err := p.tw.WriteHeader(h); err != nil {
		return err
	}
	n, err := copyAll(p.tw, &io.LimitedReader{R: f, N: st.Size})
	if err != nil {
		return err
	}
	if n < st.Size {
		return cay.Errorf(cay.Conflict, "%s shrank while it was packed", quote(h.Name)).WithHint("stop who writes to it, and try again")
	}
	return nil
}

func (p *packer) packDir(dir *os.File, name string, h *tar.Header) error {
	d, err := openDir(int(dir.Fd()), name, false)
	if err != nil {
		return err
	}
	defer d.Close()
	as := h.Name
	h.Typeflag, h.Name = tar.TypeDir, as+"/"
	if err := addAttrs(h, d); err != nil {
		return err
	}
	if err := p.tw.WriteHeader(h); err != nil {
		return err
	}
	for {
		names, err := d.Readdirnames(1024)
		slices.Sort(names) // the same small tree gives the same archive
		for _, n := range names {
			if err := p.pack(d, n, path.Join(as, n)); err != nil {
				return err
			}
		}
		if err == io.EOF || len(names) == 0 && err == nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// paxAttr begins the PAX records that carry extended attributes.
const paxAttr = "SCHILY.xattr."

func addAttrs(h *tar.Header, f *os.File) error {
	attrs, err := userAttrs(f)
	if err != nil {
		return err
	}
	for name, value := range attrs {
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords[paxAttr+name] = string(value)
	}
	return nil
}
