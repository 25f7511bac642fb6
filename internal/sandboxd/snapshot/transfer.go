package snapshot

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/pages"
)

// Export writes a snapshot to w, as a tar archive: the manifest, its sum, and
// the files in the manifest's order. The same snapshot gives the same bytes. If
// it fails, the archive has no end and Import refuses it. Errors: not_found,
// invalid, conflict if the snapshot is damaged.
func (s *Store) Export(ctx context.Context, id string, w io.Writer) error {
	snap, err := s.Open(ctx, id)
	if err != nil {
		return err
	}
	defer snap.Close()
	return snap.Export(ctx, w)
}

// Export is Store.Export of an open snapshot. Pages in parts are exported as one file, so
// that the archive has nothing but what the snapshot has: parts also have pages of earlier
// snapshots.
func (snap *Snapshot) Export(ctx context.Context, w io.Writer) (err error) {
	m, content := snap.Manifest, map[string]io.Reader{}
	if slices.ContainsFunc(snap.Files, func(f File) bool { return f.Path == mapPath }) {
		pages, err := snap.whole(ctx, &m, content)
		if err != nil {
			return err
		}
		defer pages.Close()
	}
	manifest, err := m.encode()
	if err != nil {
		return err
	}
	tw := tar.NewWriter(w)
	header := func(name string, size int64) error {
		// PAX has room for any size; small files get the same format.
		return tw.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600, ModTime: snap.CreatedAt.Truncate(1e9), Format: tar.FormatPAX,
		})
	}
	for _, f := range []struct {
		name    string
		content []byte
	}{{manifestFile, manifest}, {sumFile, manifestSum(manifest)}} {
		if err := header(f.name, int64(len(f.content))); err != nil {
			return err
		}
		if _, err := tw.Write(f.content); err != nil {
			return err
		}
	}
	for _, f := range m.Files {
		if err := header(f.Path, f.Size); err != nil {
			return err
		}
		if r := content[f.Path]; r != nil {
			_, _, err = sumCopy(ctx, r, tw)
		} else {
			err = snap.copyFile(ctx, f, tw)
		}
		if err != nil {
			return err
		}
	}
	return tw.Close()
}

// The paths of files that an archive has in another form than the snapshot.
const (
	mapPath   = diskPart + "/" + pages.MapName
	wholePath = diskPart + "/" + pages.WholeName
	statePath = diskPart + "/" + machine.StateName
)

// whole turns the manifest of a snapshot with pages in parts into one with all pages in one
// file, and adds the content of the files that differ. The caller closes the result.
func (snap *Snapshot) whole(ctx context.Context, m *Manifest, content map[string]io.Reader) (io.Closer, error) {
	m.Files = nil
	for _, f := range snap.Files {
		switch {
		case path.Dir(f.Path) == diskPart && pages.IsPart(path.Base(f.Path)), f.Path == mapPath:
			if err := snap.copyFile(ctx, f, io.Discard); err != nil { // it may be damaged
				return nil, err
			}
		case f.Path != statePath:
			m.Files = append(m.Files, f)
		}
	}
	state, r, err := pages.Whole(ctx, snap.DiskDir())
	if err != nil {
		return nil, damaged(snap.ID, "%w", err)
	}
	for at, open := range map[string]func() io.Reader{
		statePath: func() io.Reader { return bytes.NewReader(state) },
		wholePath: func() io.Reader { return io.NewSectionReader(r, 0, r.Size()) },
	} {
		f := File{Path: at}
		if f.Size, f.Sum, err = sumCopy(ctx, open(), io.Discard); err != nil {
			return nil, errors.Join(err, r.Close())
		}
		m.Files, content[at] = append(m.Files, f), open()
	}
	slices.SortFunc(m.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return r, nil
}

// ImportParams are the properties of the new snapshot.
type ImportParams struct {
	ID   string // of the new snapshot
	Name string // likewise; may be empty
	// Memory says whether to import the memory in the archive. The runtime trusts the
	// memory as it trusts itself, so the archive's author must be trusted like the
	// operator. If false, Import makes a snapshot of the kind Filesystem.
	Memory bool
	// Check, if not nil, is called before any file is read, with the manifest of the new
	// snapshot. Import returns its error.
	Check func(*Manifest) error
	// MaxBytes is the largest total size of the files, in bytes. Default: 64 GiB.
	MaxBytes int64
}

const defaultMaxBytes = 64 << 30

// Import makes a snapshot of an archive that Export wrote. The snapshot has no parent and
// no source. Errors: invalid if the archive has another format or is damaged;
// not_supported if a newer version wrote it, or if it has only memory and p.Memory is
// false; too_large, no_space, already_exists.
func (s *Store) Import(ctx context.Context, r io.Reader, p ImportParams) (*Manifest, error) {
	if err := checkID(p.ID); err != nil {
		return nil, err
	}
	if p.MaxBytes == 0 {
		p.MaxBytes = defaultMaxBytes
	}
	in := &archive{tr: tar.NewReader(contextReader{ctx, r})}
	old, err := in.manifest()
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(old.Files, func(f File) bool { return f.Path == mapPath }) {
		return nil, cay.Errorf(cay.Invalid, "the archive has pages in parts, which no export has")
	}
	m := *old
	m.ID, m.Name, m.Origin, m.Source, m.Parent, m.Version = p.ID, p.Name, old.ID, "", "", ManifestVersion
	if !p.Memory && m.Kind == Memory {
		if !old.HasDisk() {
			return nil, cay.Errorf(cay.NotSupported, "the snapshot in the archive has only memory, which is not to be taken over").
				WithHint("allow memory, if you trust whoever made the archive like yourself")
		}
		m = m.withoutMemory()
	}
	if m.Size() > p.MaxBytes {
		return nil, cay.Errorf(cay.TooLarge, "the snapshot in the archive has %d bytes, more than %d", m.Size(), p.MaxBytes)
	}
	if p.Check != nil {
		if err := p.Check(&m); err != nil {
			return nil, err
		}
	}
	// Import checks for disk space here, but reserves no space, because an archive can
	// arrive slowly. Writing the files checks again.
	room, err := s.Create(ctx, m.Size())
	if err != nil {
		return nil, err
	}
	if err := room.Abort(); err != nil {
		return nil, err
	}
	d, err := s.Create(ctx, 0)
	if err != nil {
		return nil, err
	}
	if err := in.files(d, old, &m); err != nil {
		return nil, errors.Join(err, d.Abort())
	}
	if err := d.commit(ctx, &m); err != nil {
		return nil, errors.Join(err, d.Abort())
	}
	return &m, nil
}

// archive reads an archive that Export wrote.
type archive struct {
	tr *tar.Reader
}

// next reads the header of the next member, which must have the given name.
func (a *archive) next(name string) (*tar.Header, error) {
	h, err := a.tr.Next()
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, cay.Errorf(cay.Invalid, "the archive ends before %s: %w", name, io.ErrUnexpectedEOF)
	case errors.Is(err, tar.ErrHeader):
		return nil, cay.Errorf(cay.Invalid, "not an archive of a snapshot, or a damaged one: %w", err)
	case err != nil && !errors.Is(err, tar.ErrInsecurePath):
		return nil, err
	case h.Name != name:
		return nil, cay.Errorf(cay.Invalid, "the archive has the member %.100q where %q should be", h.Name, name).
			WithHint("only what cay itself exported can be imported")
	case h.Typeflag != tar.TypeReg || sparse(h):
		return nil, cay.Errorf(cay.Invalid, "the member %q of the archive is not a regular file", name)
	}
	return h, nil
}

// sparse reports whether a member has holes, so that its size exceeds its bytes in the
// archive.
func sparse(h *tar.Header) bool {
	for k := range h.PAXRecords {
		if strings.HasPrefix(k, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// small reads a member that is no larger than a manifest.
func (a *archive) small(name string) ([]byte, error) {
	h, err := a.next(name)
	if err != nil {
		return nil, err
	}
	if h.Size > maxManifest {
		return nil, cay.Errorf(cay.Invalid, "the member %q of the archive has %d bytes, more than %d", name, h.Size, maxManifest)
	}
	b, err := io.ReadAll(a.tr)
	return b, truncated(name, err)
}

// truncated gives its code to the error of an archive that ends within a member.
func truncated(name string, err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return cay.Errorf(cay.Invalid, "the archive ends in the middle of %s: %w", name, err)
	}
	return err
}

func (a *archive) manifest() (*Manifest, error) {
	b, err := a.small(manifestFile)
	if err != nil {
		return nil, err
	}
	sum, err := a.small(sumFile)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(sum, manifestSum(b)) {
		return nil, cay.Errorf(cay.Invalid, "the archive is damaged: its manifest does not have the sum it should")
	}
	return ParseManifest(b)
}

// files reads the files of the manifest old and writes the files of m.
func (a *archive) files(d *Draft, old, m *Manifest) error {
	wanted := m.Files
	for _, f := range old.Files {
		h, err := a.next(f.Path)
		if err != nil {
			return err
		}
		if h.Size != f.Size {
			return cay.Errorf(cay.Invalid, "the archive is damaged: %s has %d bytes instead of %d", f.Path, h.Size, f.Size)
		}
		if len(wanted) == 0 || wanted[0] != f {
			continue
		}
		wanted = wanted[1:]
		if err := a.file(d, f); err != nil {
			return err
		}
	}
	if h, err := a.tr.Next(); err == nil {
		return cay.Errorf(cay.Invalid, "the archive has the member %.100q after all that should be in it", h.Name)
	} else if !errors.Is(err, io.EOF) {
		return cay.Errorf(cay.Invalid, "the archive does not end where it should: %w", err)
	}
	return nil
}

func (a *archive) file(d *Draft, f File) error {
	w, err := d.Writer(f.Path)
	if err != nil {
		return err
	}
	h := xxhash.New()
	_, err = io.CopyBuffer(io.MultiWriter(w, h), a.tr, make([]byte, 256<<10))
	if err := errors.Join(truncated(f.Path, err), w.Close()); err != nil {
		return fmt.Errorf("import %s: %w", f.Path, err)
	}
	if sumText(h.Sum64()) != f.Sum {
		return cay.Errorf(cay.Invalid, "the archive is damaged: %s does not have the content it should", f.Path)
	}
	return nil
}
