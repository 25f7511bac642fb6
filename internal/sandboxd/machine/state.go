package machine

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// StateKind says which part of a machine was saved.
type StateKind string

// The kinds of states.
const (
	// MemoryState is a whole machine: processes, their memory, its disk. Only the build
	// that wrote it can read it.
	MemoryState StateKind = "memory"
	// DiskState is the files of a machine's root or of a drive. Later builds can read it.
	DiskState StateKind = "disk"
)

const (
	// StateFormat is the highest version of the manifest that this build reads.
	StateFormat = PartsFormat
	// PartsFormat is the version of states that share files with earlier states. This build
	// writes version 1 for others, which earlier builds read, too.
	PartsFormat = 2
	// StateName is the name of the manifest in a state's directory.
	StateName = "state.json"
	// SumBlock is the number of bytes that each of StateFile.Sums covers. A reader that
	// needs only a part of a file can check that part alone.
	SumBlock = 64 << 10

	maxManifest   = 64 << 20 // bytes; enough for the sums of 0.5 TB
	maxStateFiles = 64
)

// State is the manifest of a saved machine: it names the files in its directory, and is
// itself the file StateName, which is written last. A directory without it is incomplete.
//
// The sums detect damage, not tampering: an attacker who can write to the directory can
// also write a matching manifest.
type State struct {
	Format  int       `json:"format"`
	Kind    StateKind `json:"kind"`
	Runtime string    `json:"runtime"` // the only runtime that can read it
	Arch    string    `json:"arch"`    // GOARCH
	// Version is the version of the runtime's own format, for a DiskState.
	Version int `json:"version,omitempty"`
	// Build identifies the program's build, for a MemoryState.
	Build string `json:"build,omitempty"`
	// Images is SaveParams.Images.
	Images map[string]string `json:"images"`
	// Mounts is SaveParams.Mounts: the path of the drive, if a drive was saved.
	Mounts []string `json:"mounts,omitempty"`
	// Drives are the machine's drives, in a MemoryState.
	Drives []StateDrive `json:"drives,omitempty"`
	// Full says, in a MemoryState, that the machine was not Spec.Restricted. Earlier
	// versions of cay started all machines restricted.
	Full    bool        `json:"full,omitempty"`
	Files   []StateFile `json:"files"`
	SavedAt time.Time   `json:"saved_at"`
	// Paused is how long the machine was paused for the save. In a DiskState it is the
	// duration of the save, during which only writes to the disk had to wait.
	Paused sandbox.Duration `json:"paused_ms"`
}

// StateDrive is a drive of a machine.
type StateDrive struct {
	Target   string `json:"target"`
	SizeMB   int64  `json:"size_mb"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// Drives returns the drives of a machine, sorted by mount path, nil if it has none.
func (s Spec) Drives() []StateDrive {
	var drives []StateDrive
	for _, m := range s.Mounts {
		if d := m.Drive; d != nil {
			drives = append(drives, StateDrive{Target: m.Target, SizeMB: d.SizeMB, ReadOnly: d.ReadOnly})
		}
	}
	slices.SortFunc(drives, func(a, b StateDrive) int { return strings.Compare(a.Target, b.Target) })
	return drives
}

// StateFile is one file of a State.
type StateFile struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	// Sums are the CRC-32C checksums of each SumBlock bytes, as 4 bytes in big-endian
	// order. They cost a tenth of cryptographic sums, which would have no benefit: see
	// State.
	Sums []byte `json:"sums"`
}

// File returns the file of a name, nil if there is none.
func (s *State) File(name string) *StateFile {
	i := slices.IndexFunc(s.Files, func(f StateFile) bool { return f.Name == name })
	if i < 0 {
		return nil
	}
	return &s.Files[i]
}

// Bytes returns the total size of the files, without the manifest.
func (s *State) Bytes() int64 {
	var n int64
	for _, f := range s.Files {
		n += f.Size
	}
	return n
}

// CheckImages reports whether a machine with the given images, by mount point, can start
// from s. Errors: conflict, naming the first image that differs.
func (s *State) CheckImages(images map[string]string) error {
	for _, at := range slices.Sorted(maps.Keys(s.Images)) {
		if got, ok := images[at]; !ok {
			return cay.Errorf(cay.Conflict, "what was saved needs an image at %s, and there is none", at)
		} else if got != s.Images[at] {
			return cay.Errorf(cay.Conflict, "what was saved needs image %s at %s, not %s", s.Images[at], at, got)
		}
	}
	for _, at := range slices.Sorted(maps.Keys(images)) {
		if _, ok := s.Images[at]; !ok {
			return cay.Errorf(cay.Conflict, "what was saved has no image at %s", at)
		}
	}
	return nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func damaged(format string, args ...any) error {
	return cay.Errorf(cay.Conflict, "what was saved of the machine is damaged: "+format, args...).
		WithHint("delete it, and start from another one")
}

// SealState completes a state whose files in dir are written: it fills in s.Files,
// s.SavedAt, and s.Format unless the caller has set it, writes the manifest, and syncs files
// and dir. shared are further files in dir, which an earlier state has, too, with the sums
// there. The caller renames dir, and syncs its parent.
//
// SealState reads the files for their sums while they are being written to the disk, so
// mostly from the page cache. The machine has continued long before.
func SealState(ctx context.Context, dir string, s *State, files []*os.File, shared ...StateFile) error {
	s.Format, s.SavedAt = max(s.Format, 1), time.Now().UTC()
	s.Files = make([]StateFile, len(files))
	g, ctx := errgroup.WithContext(ctx)
	for i, f := range files {
		g.Go(f.Sync)
		g.Go(func() (err error) {
			s.Files[i], err = sumFile(ctx, f)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("seal what was saved: %w", err)
	}
	s.Files = append(s.Files, shared...)
	data, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode manifest: %w", err)
	}
	m, err := os.OpenFile(filepath.Join(dir, StateName), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	_, err = m.Write(data)
	if err := errors.Join(err, m.Sync(), m.Close()); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return nil
}

func sumFile(ctx context.Context, f *os.File) (StateFile, error) {
	info, err := f.Stat()
	if err != nil {
		return StateFile{}, err
	}
	return SumReader(ctx, filepath.Base(f.Name()), f, info.Size())
}

// SumReader returns the StateFile of a name and a content of size bytes.
func SumReader(ctx context.Context, name string, r io.ReaderAt, size int64) (StateFile, error) {
	sf := StateFile{Name: name, Size: size}
	buf := make([]byte, 16*SumBlock)
	for off := int64(0); off < sf.Size; off += int64(len(buf)) {
		if ctx.Err() != nil {
			return StateFile{}, context.Cause(ctx)
		}
		part := buf[:min(int64(len(buf)), sf.Size-off)]
		if _, err := r.ReadAt(part, off); err != nil {
			return StateFile{}, err
		}
		for block := range slices.Chunk(part, SumBlock) {
			sf.Sums = binary.BigEndian.AppendUint32(sf.Sums, crc32.Checksum(block, castagnoli))
		}
	}
	return sf, nil
}

// Check reports whether data is the file's content at off, a multiple of SumBlock. Data
// must end at such a multiple, too, or at the end of the file.
func (f StateFile) Check(data []byte, off int64) bool {
	end := off + int64(len(data))
	if off%SumBlock != 0 || off < 0 || end > f.Size || end%SumBlock != 0 && end != f.Size {
		return false
	}
	sums := f.Sums[off/SumBlock*4:]
	for block := range slices.Chunk(data, SumBlock) {
		if binary.BigEndian.Uint32(sums) != crc32.Checksum(block, castagnoli) {
			return false
		}
		sums = sums[4:]
	}
	return true
}

// Verify reads an open file and compares its sums. Errors: conflict if the file is
// damaged.
func (f StateFile) Verify(ctx context.Context, r io.ReaderAt) error {
	buf := make([]byte, min(f.Size, 16*SumBlock))
	for off := int64(0); off < f.Size; off += int64(len(buf)) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		part := buf[:min(int64(len(buf)), f.Size-off)]
		if n, err := r.ReadAt(part, off); n < len(part) {
			return damaged("%s cannot be read beyond byte %d: %w", f.Name, off+int64(n), err)
		}
		if !f.Check(part, off) {
			return damaged("%s differs between bytes %d and %d", f.Name, off, off+int64(len(part)))
		}
	}
	return nil
}

// ParseState parses a manifest and checks that it is consistent. Errors: not_supported if
// a later build wrote it, conflict if it is damaged.
func ParseState(data []byte) (*State, error) {
	var head struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, damaged("%s: %w", StateName, err)
	}
	if head.Format > StateFormat {
		return nil, cay.Errorf(cay.NotSupported, "what was saved of the machine is in format %d; this build of cay knows formats up to %d", head.Format, StateFormat).
			WithHint("use the build of cay that saved it, or a later one")
	}
	var s State
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		return nil, damaged("%s: %w", StateName, err)
	}
	if s.Format < 1 || (s.Kind != MemoryState && s.Kind != DiskState) || len(s.Files) > maxStateFiles {
		return nil, damaged("%s has format %d, kind %q and %d files", StateName, s.Format, s.Kind, len(s.Files))
	}
	seen := map[string]bool{StateName: true}
	for _, f := range s.Files {
		if f.Name != filepath.Base(f.Name) || !filepath.IsLocal(f.Name) || f.Name == "." || seen[f.Name] {
			return nil, damaged("%s names a file %q", StateName, f.Name)
		}
		seen[f.Name] = true
		if f.Size < 0 || int64(len(f.Sums)) != (f.Size/SumBlock+min(f.Size%SumBlock, 1))*4 {
			return nil, damaged("%s has %d bytes of sums for the %d bytes of %s", StateName, len(f.Sums), f.Size, f.Name)
		}
	}
	return &s, nil
}

// ReadState reads the manifest in dir, and checks that the named files exist with their
// sizes, without reading them. Errors: not_found if there is no manifest, as in an
// incomplete directory, and those of ParseState.
func ReadState(dir string) (*State, error) {
	f, err := os.Open(filepath.Join(dir, StateName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, cay.Errorf(cay.NotFound, "nothing complete was saved there: %s is missing", StateName)
	}
	if err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	if err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	if len(data) > maxManifest {
		return nil, damaged("%s has more than %d bytes", StateName, maxManifest)
	}
	s, err := ParseState(data)
	if err != nil {
		return nil, err
	}
	for _, f := range s.Files {
		info, err := os.Lstat(filepath.Join(dir, f.Name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, damaged("%s is missing", f.Name)
		case err != nil:
			return nil, fmt.Errorf("look for saved files: %w", err)
		case !info.Mode().IsRegular() || info.Size() != f.Size:
			return nil, damaged("%s has %d bytes instead of %d", f.Name, info.Size(), f.Size)
		}
	}
	return s, nil
}

// VerifyState is ReadState that also reads and checks all files, which takes about as
// long as copying them.
func VerifyState(ctx context.Context, dir string) (*State, error) {
	s, err := ReadState(dir)
	if err != nil {
		return nil, err
	}
	for _, sf := range s.Files {
		f, err := os.Open(filepath.Join(dir, sf.Name))
		if err != nil {
			return nil, fmt.Errorf("read saved files: %w", err)
		}
		err = sf.Verify(ctx, f)
		f.Close()
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}
