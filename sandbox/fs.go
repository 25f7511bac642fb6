package sandbox

import (
	"context"
	"io"
	"io/fs"
	"path"
	"time"

	"github.com/cayhq/cay"
)

var (
	_ fs.StatFS     = (*fileSystem)(nil)
	_ fs.ReadDirFS  = (*fileSystem)(nil)
	_ fs.ReadFileFS = (*fileSystem)(nil)
	_ fs.ReadLinkFS = (*fileSystem)(nil)
)

// FS returns the files below a directory of the sandbox as an fs.FS, which
// caches nothing: every call asks the sandbox. The fs.FS can be used until ctx
// ends. As with os.DirFS, links may lead out of dir, though never out of the
// sandbox. The error for a missing file is fs.ErrNotExist; other errors are
// *cay.Error. Opening a large file does not read it.
func (h *Handle) FS(ctx context.Context, dir string) fs.FS {
	return &fileSystem{ctx, h, dir}
}

// fileSystem keeps the context that it was made with, because fs.FS passes
// none.
type fileSystem struct {
	ctx context.Context
	h   *Handle
	dir string
}

// at returns the path of name in the sandbox.
func (f *fileSystem) at(op, name string) (string, error) {
	if !fs.ValidPath(name) {
		return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	return path.Join(f.dir, name), nil
}

func pathError(op, name string, err error) error {
	if cay.CodeOf(err) == cay.FileNotFound {
		err = fs.ErrNotExist
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

func (f *fileSystem) stat(op, name string, follow bool) (*fileInfo, error) {
	p, err := f.at(op, name)
	if err != nil {
		return nil, err
	}
	info, err := f.h.c.Stat(f.ctx, f.h.ref, p, follow)
	if err != nil {
		return nil, pathError(op, name, err)
	}
	return &fileInfo{*info, path.Base(name)}, nil
}

// Open implements fs.FS.
func (f *fileSystem) Open(name string) (fs.File, error) {
	info, err := f.stat("open", name, true)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return &openDir{f: f, name: name, info: info}, nil
	}
	return &openFile{f: f, name: name, info: info}, nil
}

// Stat implements fs.StatFS.
func (f *fileSystem) Stat(name string) (fs.FileInfo, error) { return f.info("stat", name, true) }

// Lstat implements fs.ReadLinkFS.
func (f *fileSystem) Lstat(name string) (fs.FileInfo, error) { return f.info("lstat", name, false) }

func (f *fileSystem) info(op, name string, follow bool) (fs.FileInfo, error) {
	info, err := f.stat(op, name, follow)
	if err != nil {
		return nil, err // not a nil *fileInfo in an interface
	}
	return info, nil
}

// ReadLink implements fs.ReadLinkFS.
func (f *fileSystem) ReadLink(name string) (string, error) {
	info, err := f.stat("readlink", name, false)
	if err != nil {
		return "", err
	}
	if info.info.Type != TypeSymlink {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrInvalid}
	}
	return info.info.Target, nil
}

// ReadFile implements fs.ReadFileFS.
func (f *fileSystem) ReadFile(name string) ([]byte, error) {
	p, err := f.at("open", name)
	if err != nil {
		return nil, err
	}
	b, err := f.h.ReadFile(f.ctx, p)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	return b, nil
}

// ReadDir implements fs.ReadDirFS.
func (f *fileSystem) ReadDir(name string) ([]fs.DirEntry, error) {
	d := &openDir{f: f, name: name}
	return d.ReadDir(-1)
}

// openDir is an open directory, whose pages are read on demand.
type openDir struct {
	f      *fileSystem
	name   string
	info   *fileInfo
	cursor string
	ended  bool
	left   []fs.DirEntry // read, not yet returned
}

func (d *openDir) Stat() (fs.FileInfo, error) { return d.info, nil }
func (d *openDir) Close() error               { return nil }
func (d *openDir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.name, Err: cay.Errorf(cay.Invalid, "it is a directory")}
}

// ReadDir implements fs.ReadDirFile.
func (d *openDir) ReadDir(n int) ([]fs.DirEntry, error) {
	p, err := d.f.at("readdir", d.name)
	if err != nil {
		return nil, err
	}
	for !d.ended && (n <= 0 || len(d.left) < n) {
		page, err := d.f.h.c.ReadDir(d.f.ctx, d.f.h.ref, p, ReadDirParams{Cursor: d.cursor})
		if err != nil {
			out := d.left
			d.left = nil
			return out, pathError("readdir", d.name, err)
		}
		for _, info := range page.Items {
			name := info.Name
			if len(info.NameBase64) > 0 {
				name = string(info.NameBase64)
			}
			d.left = append(d.left, fs.FileInfoToDirEntry(&fileInfo{info, name}))
		}
		d.cursor, d.ended = page.Next, page.Next == ""
	}
	if n <= 0 {
		n = len(d.left)
	} else if len(d.left) == 0 {
		return nil, io.EOF
	}
	n = min(n, len(d.left))
	out := d.left[:n:n]
	d.left = d.left[n:]
	return out, nil
}

// openFile is a file whose content is requested at the first Read.
type openFile struct {
	f    *fileSystem
	name string
	info *fileInfo
	r    io.ReadCloser
	done bool
}

func (o *openFile) Stat() (fs.FileInfo, error) { return o.info, nil }

func (o *openFile) Read(p []byte) (int, error) {
	if o.done {
		return 0, &fs.PathError{Op: "read", Path: o.name, Err: fs.ErrClosed}
	}
	if o.r == nil {
		at, err := o.f.at("read", o.name)
		if err != nil {
			return 0, err
		}
		if o.r, _, err = o.f.h.c.ReadFile(o.f.ctx, o.f.h.ref, at, ReadParams{}); err != nil {
			return 0, pathError("read", o.name, err)
		}
	}
	n, err := o.r.Read(p)
	if err != nil && err != io.EOF {
		err = pathError("read", o.name, err)
	}
	return n, err
}

func (o *openFile) Close() error {
	if o.done {
		return &fs.PathError{Op: "close", Path: o.name, Err: fs.ErrClosed}
	}
	o.done = true
	if o.r == nil {
		return nil
	}
	return o.r.Close()
}

// fileInfo implements fs.FileInfo. Sys returns the FileInfo.
type fileInfo struct {
	info FileInfo
	name string
}

func (i *fileInfo) Name() string       { return i.name }
func (i *fileInfo) Size() int64        { return i.info.Size }
func (i *fileInfo) ModTime() time.Time { return i.info.ModTime }
func (i *fileInfo) IsDir() bool        { return i.info.Type == TypeDir }
func (i *fileInfo) Sys() any           { return &i.info }

func (i *fileInfo) Mode() fs.FileMode {
	m := i.info.Mode & 0o777
	for bit, mode := range map[fs.FileMode]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if i.info.Mode&bit != 0 {
			m |= mode
		}
	}
	switch i.info.Type {
	case TypeDir:
		m |= fs.ModeDir
	case TypeSymlink:
		m |= fs.ModeSymlink
	case TypeOther:
		m |= fs.ModeIrregular
	}
	return m
}
