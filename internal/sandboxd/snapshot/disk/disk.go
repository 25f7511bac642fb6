package disk

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/pages"
)

// The names of the files.
const (
	manifestName = "fscheckpoint.pb"
	treesName    = "multitar.img"
	metaName     = "pages_meta.img"
	pagesName    = "pages.img"
)

const (
	maxManifest = 1 << 20 // bytes
	maxMounts   = 64
	// maxWhiteouts bounds the names of hard-linked whiteouts, which are few.
	maxWhiteouts = 16 << 20 // bytes
)

// Limits bound the memory for reading. Zero fields take the default.
type Limits struct {
	Ranges  int // of pages, for each file system, and of pieces of a file; default 1,000,000
	Entries int // files of a file system; default 1,000,000
}

// Disk has the files that a sandbox wrote to its file systems.
type Disk struct {
	limits      Limits
	manifest    manifest
	trees       io.ReaderAt
	meta, pages io.ReaderAt
	size        map[string]int64 // of the files
	close       []io.Closer
}

// Open opens the files in a directory. Errors: invalid if they are damaged, not_supported
// if their version or machine is unknown here.
func Open(dir string, l Limits) (*Disk, error) {
	files := map[string]*os.File{}
	d := &Disk{size: map[string]int64{}}
	names := []string{manifestName, treesName, metaName, pagesName}
	parts, err := pages.Open(dir)
	switch {
	case err == nil:
		d.pages, d.size[pagesName], d.close = parts, parts.Size(), []io.Closer{parts}
		names = names[:3]
	case !errors.Is(err, fs.ErrNotExist):
		return nil, invalid("%w", err)
	}
	for _, name := range names {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return nil, errors.Join(invalid("%w", err), d.Close())
		}
		d.close = append(d.close, f)
		files[name] = f
		info, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, d.Close())
		}
		d.size[name] = info.Size()
	}
	if d.size[manifestName] > maxManifest {
		return nil, errors.Join(invalid("%s has %d bytes", manifestName, d.size[manifestName]), d.Close())
	}
	b, err := io.ReadAll(files[manifestName])
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	d.trees, d.meta = files[treesName], files[metaName]
	if d.pages == nil {
		d.pages = files[pagesName]
	}
	if err := d.open(b, l); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// open reads the manifest b; the other fields of d are set.
func (d *Disk) open(b []byte, l Limits) (err error) {
	if l.Ranges == 0 {
		l.Ranges = 1_000_000
	}
	if l.Entries == 0 {
		l.Entries = 1_000_000
	}
	d.limits = l
	if d.manifest, err = parseManifest(b); err != nil {
		return invalid("%s: %w", manifestName, err)
	}
	switch m := d.manifest; {
	case m.version != 1:
		return cay.Errorf(cay.NotSupported, "the files of the snapshot have the format %d, and this cay reads 1", m.version)
	case m.endian != "little":
		return cay.Errorf(cay.NotSupported, "the files of the snapshot are of a machine with the byte order %.20q", m.endian)
	case m.pageSize < 4096 || m.pageSize > 1<<21 || m.pageSize&(m.pageSize-1) != 0:
		return invalid("%s: the pages have %d bytes", manifestName, m.pageSize)
	}
	for _, t := range d.manifest.trees {
		f := d.memoryOf(t.mount)
		switch {
		case f == nil:
			return invalid("%s: %.100q has no memory file", manifestName, t.mount)
		case t.start > t.end || t.end > uint64(d.size[treesName]):
			return invalid("%s: %.100q is at %d to %d of %s", manifestName, t.mount, t.start, t.end, treesName)
		case f.metaStart > f.metaEnd || f.metaEnd > uint64(d.size[metaName]):
			return invalid("%s: %.100q is at %d to %d of %s", manifestName, t.mount, f.metaStart, f.metaEnd, metaName)
		case f.pagesStart > uint64(d.size[pagesName]):
			return invalid("%s: %.100q is at %d of %s", manifestName, t.mount, f.pagesStart, pagesName)
		}
	}
	return nil
}

func invalid(format string, args ...any) error {
	return cay.Errorf(cay.Invalid, "the files of the snapshot are damaged: %w", fmt.Errorf(format, args...))
}

// Close closes the files.
func (d *Disk) Close() error {
	var errs []error
	for _, c := range d.close {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// Mounts returns the mount points of the file systems, sorted; "/" is the root.
func (d *Disk) Mounts() []string {
	var mounts []string
	for _, t := range d.manifest.trees {
		mounts = append(mounts, t.mount)
	}
	slices.Sort(mounts)
	return mounts
}

func (d *Disk) memoryOf(mount string) *memoryFile {
	i := slices.IndexFunc(d.manifest.memory, func(f memoryFile) bool { return f.mount == mount })
	if i < 0 {
		return nil
	}
	return &d.manifest.memory[i]
}

// Check reads everything except the contents of files. Errors: invalid if something is
// damaged, too_large.
func (d *Disk) Check(ctx context.Context) error {
	for _, mount := range d.Mounts() {
		if err := d.walk(ctx, mount, func(*entry) error { return nil }); err != nil {
			return err
		}
	}
	return nil
}

// entry is a file of a file system.
type entry struct {
	*tar.Header // without its size
	size        uint64
	pieces      []piece // of a regular file, sorted
	whiteout    bool    // says that a file of the image was removed
}

// walk calls f for each file of a file system, directories before the files in them.
func (d *Disk) walk(ctx context.Context, mount string, f func(*entry) error) error {
	i := slices.IndexFunc(d.manifest.trees, func(t tree) bool { return t.mount == mount })
	if i < 0 {
		return cay.Errorf(cay.NotFound, "the snapshot has no files of %.100q", mount)
	}
	t, memory := d.manifest.trees[i], d.memoryOf(mount)
	pages, err := readPages(section(d.meta, memory.metaStart, memory.metaEnd), memory.pagesStart, d.manifest.pageSize, d.limits.Ranges)
	if err != nil {
		return invalid("%s of %.100q: %w", metaName, mount, err)
	}
	if l := len(pages); l > 0 {
		if last := pages[l-1]; last.at+(last.end-last.start) > uint64(d.size[pagesName]) {
			return invalid("%s has %d bytes, fewer than %s needs", pagesName, d.size[pagesName], metaName)
		}
	}
	// gVisor makes all its whiteouts hard links of the first one.
	whiteouts, names := map[string]bool{}, 0
	tr := tar.NewReader(bufio.NewReaderSize(section(d.trees, t.start, t.end), 64<<10))
	for n := 0; ; n++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return invalid("%s of %.100q: %w", treesName, mount, err)
		}
		if n == d.limits.Entries {
			return cay.Errorf(cay.TooLarge, "the snapshot has more than %d files", d.limits.Entries)
		}
		e := &entry{Header: h}
		if err := e.normalize(); err != nil {
			return err
		}
		e.whiteout = isWhiteout(e.Header) || e.Typeflag == tar.TypeLink && whiteouts[e.Linkname]
		if isWhiteout(e.Header) {
			whiteouts[e.Name] = true
			if names += len(e.Name); names > maxWhiteouts {
				return cay.Errorf(cay.TooLarge, "the names of the files that were removed have more than %d bytes", maxWhiteouts)
			}
		}
		if h.Typeflag == tar.TypeReg {
			if e.size, e.pieces, err = readRuns(tr, h.Size, pages, d.limits.Ranges); err != nil {
				return invalid("%.100q: %w", h.Name, err)
			}
		}
		if err := f(e); err != nil {
			return err
		}
	}
}

// isWhiteout reports whether a header is that of the device by which overlays mark a
// removed file.
func isWhiteout(h *tar.Header) bool {
	return h.Typeflag == tar.TypeChar && h.Devmajor == 0 && h.Devminor == 0
}

func section(r io.ReaderAt, start, end uint64) *io.SectionReader {
	return io.NewSectionReader(r, int64(start), int64(end-start))
}
