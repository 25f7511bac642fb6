package sandbox

import (
	"archive/tar"
	"context"
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

// CopyTo copies a local file, or a directory with all below it, to a path in the sandbox. If the
// path is a directory, or ends in a slash, the copy goes into that directory under its own name;
// missing parent directories are made. Symbolic links are copied as links, except local itself;
// several names of one file (hard links) stay names of one file; devices, pipes and sockets are
// left out. Files within a directory keep their modification times. Errors: invalid,
// file_not_found, no_space, sandbox_stopped, or those of the local file system.
func (h *Handle) CopyTo(ctx context.Context, local, remote string) error {
	fi, err := os.Stat(local)
	if err != nil {
		return err
	}
	abs, err := filepath.Abs(local) // names "." too
	if err != nil {
		return err
	}
	if remote, err = h.into(ctx, remote, filepath.Base(abs)); err != nil {
		return err
	}
	if fi.IsDir() {
		return h.sendDir(ctx, local, remote)
	}
	if !fi.Mode().IsRegular() {
		return cay.Errorf(cay.Invalid, "%q is neither a file nor a directory", local)
	}
	f, err := os.Open(local)
	if err != nil {
		return err
	}
	defer f.Close() // it was only read
	size := fi.Size()
	if size == 0 {
		size = -1
	}
	_, err = h.c.WriteFile(ctx, h.ref, remote, f, WriteParams{Mode: fi.Mode().Perm(), Parents: true, Size: size})
	return err
}

// into returns the destination of a copy named base, for the destination remote that the caller
// gave.
func (h *Handle) into(ctx context.Context, remote, base string) (string, error) {
	info, err := h.c.Stat(ctx, h.ref, remote, true)
	switch {
	case err == nil && info.Type == TypeDir, cay.CodeOf(err) == cay.FileNotFound && strings.HasSuffix(remote, "/"):
		return path.Join(remote, base), nil
	case err == nil, cay.CodeOf(err) == cay.FileNotFound:
		return remote, nil
	}
	return "", err
}

// sendDir packs a local directory while the sandbox unpacks it.
func (h *Handle) sendDir(ctx context.Context, local, remote string) error {
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := pack(w, local)
		w.CloseWithError(err)
		packed <- err
	}()
	err := h.c.Extract(ctx, h.ref, remote, r, ExtractParams{Format: Tar})
	r.CloseWithError(errClosed) // ends pack, if it still runs
	if perr := <-packed; err == nil || perr != nil && !errors.Is(perr, errClosed) {
		return perr
	}
	return err
}

// pack writes the content of dir as a tar archive.
func pack(w io.Writer, dir string) error {
	p := &packer{tw: tar.NewWriter(w), buf: make([]byte, 256<<10), links: map[fileID]string{}}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil || rel == "." {
			return err
		}
		fi, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		if err != nil {
			return err
		}
		return p.pack(name, filepath.ToSlash(rel), fi)
	})
	if err != nil {
		return err
	}
	return p.tw.Close()
}

// packer writes files to an archive.
type packer struct {
	tw  *tar.Writer
	buf []byte
	// links has the name in the archive of each host file that has several names. At most
	// maxLinks are recorded; further files are copied once for each of their names.
	links map[fileID]string
}

// maxLinks bounds the memory for files with several names.
const maxLinks = 1 << 18

func (p *packer) pack(name, rel string, fi fs.FileInfo) error {
	var link string
	switch fi.Mode().Type() {
	case 0, fs.ModeDir:
	case fs.ModeSymlink:
		var err error
		if link, err = os.Readlink(name); err != nil {
			return err
		}
	default:
		return nil
	}
	hdr, err := tar.FileInfoHeader(fi, link)
	if err != nil {
		return err
	}
	hdr.Name = rel
	if fi.IsDir() {
		hdr.Name += "/"
	}
	hdr.Format = tar.FormatPAX // only PAX has fractions of seconds
	hdr.AccessTime, hdr.ChangeTime = time.Time{}, time.Time{}
	hdr.Uid, hdr.Gid, hdr.Uname, hdr.Gname = 0, 0, "", "" // names here mean nothing there
	if !fi.Mode().IsRegular() {
		return p.tw.WriteHeader(hdr)
	}
	if id, several := linkedFile(fi); several {
		if first, ok := p.links[id]; ok {
			hdr.Typeflag, hdr.Linkname, hdr.Size = tar.TypeLink, first, 0
			return p.tw.WriteHeader(hdr)
		}
		if len(p.links) < maxLinks {
			p.links[id] = rel
		}
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close() // it was only read
	if err := p.tw.WriteHeader(hdr); err != nil {
		return err
	}
	n, err := io.CopyBuffer(onlyWriter{p.tw}, io.LimitReader(f, hdr.Size), p.buf)
	if err == nil && n < hdr.Size {
		err = cay.Errorf(cay.Conflict, "%q became shorter while it was copied", name)
	}
	return err
}

// onlyWriter hides a ReadFrom that would not use the buffer.
type onlyWriter struct{ io.Writer }

// CopyFrom copies a file, or a directory with all below it, from the sandbox to a local path. If
// the path is a directory, or ends in a slash, the copy goes into that directory under its own
// name. The sandbox is not trusted: no link in it can make CopyFrom write outside of the copy,
// and no set-uid bits are kept. Errors: file_not_found, invalid, sandbox_stopped, or those of
// the local file system.
func (h *Handle) CopyFrom(ctx context.Context, remote, local string) error {
	info, err := h.resolve(ctx, remote)
	if err != nil {
		return err
	}
	if fi, err := os.Stat(local); err == nil && fi.IsDir() || strings.HasSuffix(local, "/") {
		base := path.Base(path.Clean(remote))
		if !filepath.IsLocal(base) || base == "." {
			return cay.Errorf(cay.Invalid, "%q has no name to give the copy", remote).WithHint("name the copy in the local path")
		}
		local = filepath.Join(local, base)
		// An earlier copy may have left a link of that name, to redirect this copy.
		if fi, err := os.Lstat(local); err == nil && fi.Mode().Type() == fs.ModeSymlink && info.Type == TypeDir {
			return cay.Errorf(cay.Conflict, "%q is a symbolic link", local).WithHint("remove it, or name the copy in the local path")
		}
	}
	if info.Type == TypeDir {
		r, err := h.c.Archive(ctx, h.ref, info.Path, Tar)
		if err != nil {
			return err
		}
		defer r.Close() // it was only read
		return unpack(r, local)
	}
	r, _, err := h.c.ReadFile(ctx, h.ref, info.Path, ReadParams{})
	if err != nil {
		return err
	}
	defer r.Close() // it was only read
	return receive(r, local, info)
}

// resolve describes the target of a path. The FileInfo's Path is the target's path, not a
// link's.
func (h *Handle) resolve(ctx context.Context, remote string) (*FileInfo, error) {
	for range 40 { // as many links as Linux follows
		info, err := h.c.Stat(ctx, h.ref, remote, false)
		if err != nil {
			return nil, err
		}
		if info.Type != TypeSymlink {
			if len(info.NameBase64) > 0 { // Path is only for people then
				info.Path = remote
			}
			return info, nil
		}
		if path.IsAbs(info.Target) {
			remote = info.Target
		} else {
			remote = path.Dir(info.Path) + "/" + info.Target // Join would drop .. after a link
		}
	}
	return nil, cay.Errorf(cay.Invalid, "%q has too many levels of symbolic links", remote)
}

// receive writes r to the file local, which keeps its old content until r is complete.
func receive(r io.Reader, local string, info *FileInfo) (err error) {
	f, err := os.CreateTemp(filepath.Dir(local), ".cay-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name()) // err is what matters
		}
	}()
	if _, err = io.CopyBuffer(onlyWriter{f}, r, make([]byte, 256<<10)); err != nil {
		return err
	}
	if err = f.Chmod(info.Mode & 0o777); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	if err = os.Chtimes(f.Name(), info.ModTime, info.ModTime); err != nil {
		return err
	}
	return os.Rename(f.Name(), local)
}
