package template

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/cayhq/cay"
)

// maxEntries bounds the files of one step. The guest has the same bound.
const maxEntries = 1_000_000

// copied has the files of one source of a step, to unpack below a directory.
type copied struct {
	Dir   string // in the sandbox
	Files []file // directories before their files
	// Into is the name of the single file inside the destination, if the
	// destination is a directory. Empty: the file replaces whatever is at its path.
	Into string
}

// file is a copied file. Name, Mode, Link and Sum are part of the step's key.
type file struct {
	Name string // below copied.Dir
	Mode fs.FileMode
	Link string // target of a symbolic link
	Sum  string // SHA-256 of a regular file

	src  string // below the template's directory
	size int64
	time time.Time
}

// scan finds the files that a step copies. It resolves everything through root, so
// that no link leads out of root; copied links must also stay within root. Errors:
// invalid.
func scan(ctx context.Context, root *os.Root, s Step, ignored func(string) (bool, bool)) ([]copied, error) {
	if ignored == nil {
		ignored = func(string) (bool, bool) { return false, false }
	}
	sources := []string(s.Copy)
	if s.Merge {
		var err error
		if sources, err = expand(root, s.Copy, ignored); err != nil {
			return nil, err
		}
		if len(sources) > 1 && !strings.HasSuffix(s.to(), "/") {
			return nil, cay.Errorf(cay.Invalid, "%d files cannot all be called %q: end it in a slash to copy them into it", len(sources), s.To)
		}
	}
	var all []copied
	n := 0
	for _, src := range sources {
		c, err := scanOne(ctx, root, s, path.Clean(filepath.ToSlash(src)), ignored, &n)
		if err != nil {
			return nil, fmt.Errorf("copy %q: %w", src, err)
		}
		all = append(all, c)
	}
	return all, nil
}

// expand finds the paths that match patterns.
func expand(root *os.Root, patterns []string, ignored func(string) (bool, bool)) (paths []string, err error) {
	for _, pattern := range patterns {
		found := []string{path.Clean(filepath.ToSlash(pattern))}
		if strings.ContainsAny(pattern, "*?[") {
			if found, err = fs.Glob(root.FS(), found[0]); err != nil {
				return nil, cay.Errorf(cay.Invalid, "%q is not a pattern: %w", pattern, err)
			}
		}
		found = slices.DeleteFunc(found, func(p string) bool { drop, all := ignored(p); return drop && all })
		if len(found) == 0 {
			return nil, cay.Errorf(cay.Invalid, "there is no %q in the directory that is copied from, or it is ignored", pattern)
		}
		paths = append(paths, found...)
	}
	return paths, nil
}

func scanOne(ctx context.Context, root *os.Root, s Step, src string, ignored func(string) (bool, bool), n *int) (copied, error) {
	info, err := root.Stat(src)
	if err != nil {
		return copied{}, localError(err)
	}
	to := s.to()
	into := ""
	if s.Merge && info.IsDir() {
		to = path.Clean(to)
	} else if strings.HasSuffix(to, "/") {
		to = path.Join(to, path.Base(src))
	} else {
		to = path.Clean(to)
		if s.Merge {
			into = path.Base(src)
		}
	}
	if !info.IsDir() {
		if !info.Mode().IsRegular() {
			return copied{}, cay.Errorf(cay.Invalid, "it is neither a file nor a directory")
		}
		if *n++; *n > maxEntries {
			return copied{}, tooMany()
		}
		f, err := regular(ctx, root, path.Base(to), src, info)
		f.chmod(s.Mode)
		return copied{path.Dir(to), []file{f}, into}, err
	}
	c := copied{Dir: to}
	// The directory itself may be a link, which WalkDir follows only at its root.
	err = fs.WalkDir(root.FS(), src, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return localError(err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if p == src {
			return nil
		}
		if excluded(s.Exclude, p) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if drop, all := ignored(p); drop {
			if d.IsDir() && all {
				return fs.SkipDir
			}
			return nil
		}
		if *n++; *n > maxEntries {
			return tooMany()
		}
		name := p
		if src != "." {
			name = strings.TrimPrefix(p, src+"/")
		}
		f, ok, err := entry(ctx, root, name, p, d)
		if ok {
			f.chmod(s.Mode)
			c.Files = append(c.Files, f)
		}
		return err
	})
	return c, err
}

// chmod replaces the permission bits, except for links, unless mode is nil.
func (f *file) chmod(mode *fs.FileMode) {
	if mode != nil && f.Mode.Type() != fs.ModeSymlink {
		f.Mode = f.Mode.Type() | mode.Perm()
	}
}

func tooMany() error {
	return cay.Errorf(cay.TooLarge, "there are more than %d files", maxEntries).WithHint("exclude what is not needed")
}

// entry describes a file below a copied directory; ok is false for devices, pipes
// and sockets, which are left out.
func entry(ctx context.Context, root *os.Root, name, p string, d fs.DirEntry) (f file, ok bool, err error) {
	info, err := d.Info()
	if err != nil {
		return file{}, false, localError(err)
	}
	switch info.Mode().Type() {
	case 0:
		f, err := regular(ctx, root, name, p, info)
		return f, err == nil, err
	case fs.ModeDir:
		return file{Name: name, Mode: fs.ModeDir | info.Mode().Perm(), src: p, time: info.ModTime()}, true, nil
	case fs.ModeSymlink:
		target, err := root.Readlink(p)
		if err != nil {
			return file{}, false, localError(err)
		}
		if path.IsAbs(target) || !filepath.IsLocal(path.Join(path.Dir(p), target)) {
			return file{}, false, cay.Errorf(cay.Invalid, "the link %q leads to %q, out of the template's directory", p, target).
				WithHint("exclude it, or make the link in a step of its own: ln -s")
		}
		return file{Name: name, Mode: fs.ModeSymlink, Link: target, src: p, time: info.ModTime()}, true, nil
	}
	return file{}, false, nil
}

// regular describes a regular file, which it reads completely.
func regular(ctx context.Context, root *os.Root, name, p string, info fs.FileInfo) (file, error) {
	f := file{Name: name, Mode: info.Mode().Perm(), src: p, size: info.Size(), time: info.ModTime()}
	r, err := openRegular(root, p)
	if err != nil {
		return file{}, err
	}
	defer r.Close()
	h := sha256.New()
	if f.size, err = io.Copy(h, contextReader{ctx, r}); err != nil {
		return file{}, localError(err)
	}
	f.Sum = hex.EncodeToString(h.Sum(nil))
	return f, nil
}

// openRegular opens a file that was a regular file, without blocking if a pipe has
// replaced it.
func openRegular(root *os.Root, p string) (*os.File, error) {
	f, err := root.OpenFile(p, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, localError(err)
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, changed(p)
	}
	return f, nil
}

func changed(p string) error {
	return cay.Errorf(cay.Conflict, "%q changed during the build", p).WithHint("build again when nothing writes to it")
}

// localError adds a code to an error of a local file.
func localError(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return cay.Errorf(cay.Invalid, "%w", err)
}

// excluded reports whether a pattern matches a path, or its last element.
func excluded(patterns []string, p string) bool {
	for _, pattern := range patterns {
		pattern = strings.TrimSuffix(strings.TrimPrefix(pattern, "./"), "/")
		name := p
		if !strings.Contains(pattern, "/") {
			name = path.Base(p)
		}
		if ok, err := doublestar.Match(pattern, name); ok && err == nil { // the pattern was validated
			return true
		}
	}
	return false
}

// pack writes files as a tar archive. It fails if a file has changed since it was
// scanned: the layer's key is made of the scanned content.
func pack(ctx context.Context, w io.Writer, root *os.Root, files []file) error {
	tw := tar.NewWriter(w)
	h := sha256.New()
	buf := make([]byte, 256<<10)
	for _, f := range files {
		if err := packOne(ctx, tw, root, f, h, buf); err != nil {
			return err
		}
	}
	return tw.Close()
}

func packOne(ctx context.Context, tw *tar.Writer, root *os.Root, f file, h hash.Hash, buf []byte) error {
	hdr := &tar.Header{
		Typeflag: tar.TypeReg, Name: f.Name, Mode: int64(f.Mode.Perm()), Size: f.size, Linkname: f.Link,
		ModTime: f.time, Format: tar.FormatPAX, // other formats have no fractions of seconds
	}
	switch f.Mode.Type() {
	case fs.ModeDir:
		hdr.Typeflag, hdr.Name = tar.TypeDir, f.Name+"/"
		return tw.WriteHeader(hdr)
	case fs.ModeSymlink:
		hdr.Typeflag, hdr.Mode = tar.TypeSymlink, 0o777
		return tw.WriteHeader(hdr)
	}
	r, err := openRegular(root, f.src)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := tw.WriteHeader(hdr); err != nil {
		return err
	}
	h.Reset()
	n, err := io.CopyBuffer(onlyWriter{io.MultiWriter(tw, h)}, io.LimitReader(contextReader{ctx, r}, f.size), buf)
	switch {
	case err != nil:
		return err
	case n != f.size || hex.EncodeToString(h.Sum(nil)) != f.Sum:
		return changed(f.src)
	}
	return nil
}

// onlyWriter hides a ReadFrom that would not use the buffer.
type onlyWriter struct{ io.Writer }

// contextReader reads until its context ends.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
