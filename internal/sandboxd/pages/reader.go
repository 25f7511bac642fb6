package pages

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Reader reads the pages of a saved disk.
type Reader struct {
	m     *Map
	files []*os.File
}

// Open opens the pages in the directory of a saved disk that has a map. The error wraps
// fs.ErrNotExist if there is no map.
func Open(dir string) (*Reader, error) {
	m, err := ReadMap(filepath.Join(dir, MapName))
	if err != nil {
		return nil, err
	}
	r := &Reader{m: m}
	for _, p := range m.Parts {
		f, err := os.Open(filepath.Join(dir, p.Name))
		if err != nil {
			return nil, errors.Join(err, r.Close())
		}
		r.files = append(r.files, f)
		info, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, r.Close())
		}
		if info.Size() != p.Size {
			return nil, errors.Join(damaged("%s has %d bytes instead of %d", p.Name, info.Size(), p.Size), r.Close())
		}
	}
	return r, nil
}

// ReadMap reads a file with a map.
func ReadMap(path string) (*Map, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ParseFile(f)
}

// ParseFile reads a map from an open file.
func ParseFile(f *os.File) (*Map, error) {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, MaxMap+1))
	if err != nil {
		return nil, fmt.Errorf("read map of pages: %w", err)
	}
	return Parse(b)
}

// Size is how many bytes of pages there are.
func (r *Reader) Size() int64 { return r.m.Size() }

// ReadAt implements io.ReaderAt.
func (r *Reader) ReadAt(b []byte, off int64) (done int, err error) {
	for done < len(b) {
		part, at, n := r.m.Find(off+int64(done), int64(len(b)-done))
		if n == 0 {
			return done, io.EOF
		}
		m, err := r.files[part].ReadAt(b[done:done+int(n)], at)
		done += m
		if int64(m) < n {
			return done, fmt.Errorf("read at %d of %s: %w", at, r.m.Parts[part].Name, err)
		}
	}
	return done, nil
}

// Close closes the files.
func (r *Reader) Close() error {
	var errs []error
	for _, f := range r.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
