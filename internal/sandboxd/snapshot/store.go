package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/sandboxd/snapshot/disk"
)

// Store keeps snapshots in a store of blobs.
type Store struct {
	blobs blob.Store
}

// New returns the store of the snapshots among blobs.
func New(blobs blob.Store) *Store { return &Store{blobs} }

// Draft is a snapshot being written. Its creator must call Commit or Abort.
type Draft struct {
	blob.Draft
	// Base is an open snapshot whose files the new one may have as hard links. Commit takes
	// over the sums of these. It may be nil.
	Base *Snapshot
}

// Create begins a snapshot of about size bytes. Errors: no_space.
func (s *Store) Create(ctx context.Context, size int64) (*Draft, error) {
	d, err := s.blobs.Create(ctx, size)
	if err != nil {
		return nil, err
	}
	return &Draft{Draft: d}, nil
}

// DiskDir makes the directory for the files that the sandbox wrote to its disk.
func (d *Draft) DiskDir() (string, error) { return d.part(diskPart) }

// MemoryDir makes the directory for its memory.
func (d *Draft) MemoryDir() (string, error) { return d.part(memoryPart) }

func (d *Draft) part(name string) (string, error) {
	dir, err := d.Dir()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, name)
	return dir, os.Mkdir(dir, 0o700)
}

// Commit makes a snapshot of the files that are in the directories now, described by m;
// Commit sets the version and the files in m. Errors: invalid, already_exists, no_space.
func (d *Draft) Commit(ctx context.Context, m Manifest) (*Manifest, error) {
	dir, err := d.Dir()
	if err != nil {
		return nil, err
	}
	m.Version, m.CreatedAt = ManifestVersion, m.CreatedAt.UTC().Round(0)
	if m.Files, err = d.sumFiles(ctx, dir); err != nil {
		return nil, fmt.Errorf("commit snapshot %s: %w", m.ID, err)
	}
	return &m, d.commit(ctx, &m)
}

// commit adds the manifest to files that match its sums.
func (d *Draft) commit(ctx context.Context, m *Manifest) error {
	b, err := m.encode()
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name    string
		content []byte
	}{{manifestFile, b}, {sumFile, manifestSum(b)}} {
		w, err := d.Writer(f.name)
		if err != nil {
			return err
		}
		_, err = w.Write(f.content)
		if err := errors.Join(err, w.Close()); err != nil {
			return err
		}
	}
	_, err = d.Draft.Commit(ctx, m.ID)
	return err
}

// manifestSum is the content of the file sumFile.
func manifestSum(manifest []byte) []byte {
	sum := sha256.Sum256(manifest)
	return []byte(hex.EncodeToString(sum[:]) + "  " + manifestFile + "\n")
}

// sumFiles describes the files in a directory.
func (d *Draft) sumFiles(ctx context.Context, dir string) ([]File, error) {
	var files []File
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		if !e.Type().IsRegular() {
			return cay.Errorf(cay.Invalid, "%q is not a regular file", rel)
		}
		if f, ok, err := d.Base.same(rel, e); ok || err != nil {
			files = append(files, f)
			return err
		}
		f := File{Path: filepath.ToSlash(rel)}
		f.Size, f.Sum, err = sumFileAt(ctx, p, io.Discard)
		files = append(files, f)
		return err
	})
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return files, err
}

// same returns what snap has at a path, and whether that is the file e.
func (snap *Snapshot) same(rel string, e fs.DirEntry) (File, bool, error) {
	if snap == nil {
		return File{}, false, nil
	}
	i := slices.IndexFunc(snap.Files, func(f File) bool { return f.Path == filepath.ToSlash(rel) })
	if i < 0 {
		return File{}, false, nil
	}
	info, err := e.Info()
	if err != nil {
		return File{}, false, err
	}
	its, err := os.Lstat(filepath.Join(snap.lease.Dir, rel))
	return snap.Files[i], err == nil && os.SameFile(info, its), err
}

// sumFileAt copies a file to w and returns its size and sum.
func sumFileAt(ctx context.Context, path string, w io.Writer) (int64, string, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, "", err
	}
	defer f.Close()
	return sumCopy(ctx, f, w)
}

// sumCopy copies r to w and returns its size and sum.
func sumCopy(ctx context.Context, r io.Reader, w io.Writer) (int64, string, error) {
	h := xxhash.New()
	n, err := io.CopyBuffer(io.MultiWriter(h, w), contextReader{ctx, r}, make([]byte, 256<<10))
	return n, sumText(h.Sum64()), err
}

func sumText(sum uint64) string { return fmt.Sprintf("xxh64:%016x", sum) }

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

// Snapshot is an open snapshot. Its files stay until Close.
type Snapshot struct {
	Manifest
	lease *blob.Lease
}

// Open opens a snapshot, which stays readable even if it is deleted meanwhile. It checks
// the manifest and the sizes of the files. Errors: not_found, invalid (no valid id),
// conflict if it is damaged, not_supported if a newer version wrote it.
func (s *Store) Open(ctx context.Context, id string) (*Snapshot, error) {
	return s.OpenPart(ctx, id, AllParts)
}

// Part is a part of a snapshot's files.
type Part string

// The parts of snapshots.
const (
	AllParts   Part = ""
	DiskPart   Part = diskPart
	MemoryPart Part = memoryPart
)

// OpenPart is Open for one part: the files of other parts are not checked, and may be
// damaged or missing.
func (s *Store) OpenPart(ctx context.Context, id string, part Part) (*Snapshot, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	lease, err := s.blobs.Local(ctx, id)
	if cay.CodeOf(err) == cay.NotFound {
		return nil, notFound(id)
	}
	if err != nil {
		return nil, fmt.Errorf("open snapshot %s: %w", id, err)
	}
	m, err := readManifest(id, lease.Dir, part)
	if err != nil {
		lease.Release()
		return nil, err
	}
	return &Snapshot{*m, lease}, nil
}

func notFound(id string) error {
	return cay.Errorf(cay.NotFound, "snapshot %q not found", id)
}

func damaged(id, format string, args ...any) error {
	return cay.Errorf(cay.Conflict, "the snapshot %s is damaged: %w", id, fmt.Errorf(format, args...)).
		WithHint("delete it; what was exported of it can be imported again")
}

func readManifest(id, dir string, part Part) (*Manifest, error) {
	b, err := readSmall(filepath.Join(dir, manifestFile))
	if err != nil {
		return nil, damaged(id, "read its manifest: %w", err)
	}
	sum, err := readSmall(filepath.Join(dir, sumFile))
	if err != nil {
		return nil, damaged(id, "read the sum of its manifest: %w", err)
	}
	if !bytes.Equal(sum, manifestSum(b)) {
		return nil, damaged(id, "its manifest does not have the sum it should")
	}
	m, err := ParseManifest(b)
	if cay.CodeOf(err) == cay.NotSupported {
		return nil, err
	}
	if err != nil {
		return nil, damaged(id, "%w", err)
	}
	if m.ID != id {
		return nil, damaged(id, "its manifest is that of %s", m.ID)
	}
	for _, f := range m.Files {
		if part != AllParts && !strings.HasPrefix(f.Path, string(part)+"/") {
			continue
		}
		info, err := os.Lstat(filepath.Join(dir, f.Path))
		if err != nil {
			return nil, damaged(id, "%w", err)
		}
		if !info.Mode().IsRegular() || info.Size() != f.Size {
			return nil, damaged(id, "%s has %d bytes instead of %d", f.Path, info.Size(), f.Size)
		}
	}
	return m, nil
}

// readSmall reads a file no larger than a manifest.
func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	if err == nil && len(b) > maxManifest {
		err = fmt.Errorf("%s has more than %d bytes", path, maxManifest)
	}
	return b, err
}

// Close lets go of the files.
func (s *Snapshot) Close() { s.lease.Release() }

// DiskDir returns the directory with the files of the sandbox's disk, if HasDisk.
func (s *Snapshot) DiskDir() string { return filepath.Join(s.lease.Dir, diskPart) }

// MemoryDir returns the directory with the memory, for snapshots of the kind Memory.
func (s *Snapshot) MemoryDir() string { return filepath.Join(s.lease.Dir, memoryPart) }

// Verify reads all files. Errors: conflict if one is damaged.
func (s *Snapshot) Verify(ctx context.Context) error {
	for _, f := range s.Files {
		if err := s.copyFile(ctx, f, io.Discard); err != nil {
			return err
		}
	}
	return nil
}

// copyFile copies a file to w and checks it.
func (s *Snapshot) copyFile(ctx context.Context, f File, w io.Writer) error {
	n, sum, err := sumFileAt(ctx, filepath.Join(s.lease.Dir, f.Path), w)
	switch {
	case err != nil:
		return fmt.Errorf("read %s: %w", path.Join(s.ID, f.Path), err)
	case n != f.Size || sum != f.Sum:
		return damaged(s.ID, "%s does not have the content it should", f.Path)
	}
	return nil
}

// Delete removes a snapshot. Callers that have opened it can continue to read it. Errors:
// not_found, invalid.
func (s *Store) Delete(ctx context.Context, id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	err := s.blobs.Delete(ctx, id)
	if cay.CodeOf(err) == cay.NotFound {
		return notFound(id)
	}
	return err
}

// DropMemory turns a snapshot of the kind Memory into one of the kind Filesystem, and
// returns its manifest. Callers that have opened it can continue to read it. DropMemory
// returns the manifest of a Filesystem snapshot unchanged. The snapshot must not be
// deleted meanwhile. Errors: as Open; not_supported if it has no files beside the memory;
// no_space.
func (s *Store) DropMemory(ctx context.Context, id string) (*Manifest, error) {
	snap, err := s.OpenPart(ctx, id, DiskPart)
	if err != nil {
		return nil, err
	}
	defer snap.Close()
	switch {
	case snap.Kind == Filesystem:
		return &snap.Manifest, nil
	case !snap.HasDisk():
		return nil, cay.Errorf(cay.NotSupported, "the snapshot %s has only memory, and no files to keep", id)
	}
	m := snap.withoutMemory()
	b, err := m.encode()
	if err != nil {
		return nil, err
	}
	_, err = s.blobs.Reduce(ctx, id, inDisk, map[string][]byte{manifestFile: b, sumFile: manifestSum(b)})
	return &m, err
}

// WriteLayer writes the files of a snapshot as a layer of an OCI image: a tar archive of
// the differences from the image at a mount point, "/" for the root. It needs no runtime.
// Errors: not_found if there are no files of that mount; and errors of package disk.
func (s *Snapshot) WriteLayer(ctx context.Context, mount string, w io.Writer) error {
	if !s.HasDisk() {
		return cay.Errorf(cay.NotFound, "the snapshot %s has only memory, and no files", s.ID)
	}
	d, err := disk.Open(s.DiskDir(), disk.Limits{})
	if err != nil {
		return fmt.Errorf("read the files of snapshot %s: %w", s.ID, err)
	}
	return errors.Join(d.WriteLayer(ctx, mount, w), d.Close())
}
