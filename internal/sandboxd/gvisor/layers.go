package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"gvisor.dev/gvisor/pkg/hostarch"
	fspb "gvisor.dev/gvisor/pkg/sentry/fscheckpoint/fscheckpoint_proto_go_proto"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/pages"
)

// A sentry can begin with one checkpoint of disks only, but a machine's root and each of
// its drives may come from different checkpoints (layers). So the pager presents one
// combined checkpoint to the sentry: files of the same name in all layers appear as one
// file (see place), and the manifest for the combined files is made here. Nothing is
// copied.

// layer is one file system of a state that SaveDisk has written.
type layer struct {
	dir string
	// saved is the mount point when the layer was saved, at the mount point in the new
	// machine.
	saved, at string
	// files are the open State, the files of filesOf, and the parts of m.
	files openFiles
	// m says where the pages are; nil: in one file.
	m *pages.Map
}

// openLayer opens the state saved in dir, of a root if at is "/", else of a drive, to
// start a machine from it. The new file system has sizeMB MB.
func openLayer(ctx context.Context, dir, at string, sizeMB int64) (*layer, error) {
	s, err := machine.ReadState(dir)
	if err != nil {
		return nil, err
	}
	if err := canRead(s, machine.DiskState); err != nil {
		return nil, err
	}
	l := &layer{dir: dir, saved: "/", at: at}
	switch {
	case at == "/" && len(s.Mounts) > 0:
		return nil, cay.Errorf(cay.Conflict, "what was saved is the drive at %s, not the root of a machine", s.Mounts[0])
	case at == "/":
	case len(s.Mounts) != 1:
		return nil, cay.Errorf(cay.Conflict, "what was saved for the drive at %s is the root of a machine", at)
	default:
		l.saved = s.Mounts[0]
	}
	if l.files, err = openStateFiles(ctx, dir, s); err != nil {
		return nil, err
	}
	if s.File(pages.MapName) != nil {
		err = l.openParts(s)
	}
	// A sentry crashes if the state does not fit; see startError.
	if size, serr := l.size(checkpointfiles.PagesFileName); err == nil && serr == nil && size > sizeMB<<20 {
		err = cay.Errorf(cay.TooLarge, "what was saved has %d MB, and does not fit into %d MB", (size+1<<20-1)>>20, sizeMB).
			WithHint("give it the size it had")
	} else if err == nil {
		err = serr
	}
	if err != nil {
		return nil, errors.Join(err, l.files.Close())
	}
	return l, nil
}

// openParts reads the layer's map, and opens the parts.
func (l *layer) openParts(s *machine.State) (err error) {
	if l.m, err = pages.ParseFile(l.files[len(l.files)-1]); err != nil {
		return cay.Errorf(cay.Conflict, "what was saved of the file system at %s is damaged: %w", l.saved, err)
	}
	for _, part := range l.m.Parts {
		if f := s.File(part.Name); f == nil || f.Size != part.Size {
			return cay.Errorf(cay.Conflict, "what was saved of the file system at %s is damaged: it has no %s of %d bytes", l.saved, part.Name, part.Size)
		}
		f, err := os.Open(filepath.Join(l.dir, part.Name))
		if err != nil {
			return fmt.Errorf("open what was saved: %w", err)
		}
		l.files = append(l.files, f)
	}
	return nil
}

// size returns how many bytes the layer has of what a sentry sees as a file of a name.
func (l *layer) size(name string) (int64, error) {
	if l.m != nil && name == checkpointfiles.PagesFileName {
		return l.m.Size(), nil
	}
	info, err := l.file(name).Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// file returns the layer's file of a name, which is not that of pages in parts.
func (l *layer) file(name string) *os.File { return l.files[1+slices.Index(diskFiles, name)] }

// find finds the layer's file system in the layer's own manifest: its tree, and its
// memory file.
func (l *layer) find() (*fspb.Tmpfs, *fspb.MemoryFile, error) {
	damaged := func(format string, args ...any) error {
		return cay.Errorf(cay.Conflict, "what was saved of the file system at %s is damaged: %w", l.saved, fmt.Errorf(format, args...))
	}
	data, err := io.ReadAll(io.NewSectionReader(l.file(checkpointfiles.FSCheckpointManifestFileName), 0, maxManifest+1))
	if err != nil {
		return nil, nil, fmt.Errorf("read manifest: %w", err)
	}
	var m fspb.Manifest
	if len(data) > maxManifest {
		return nil, nil, damaged("its manifest is longer than %d bytes", maxManifest)
	} else if err := proto.Unmarshal(data, &m); err != nil {
		return nil, nil, damaged("%w", err)
	}
	if m.Version < 1 || m.Version > diskVersion || m.PageSize != hostarch.PageSize || m.Endian != hostarch.EndianString() {
		return nil, nil, cay.Errorf(cay.NotSupported, "the disk was saved in version %d, with %s-endian pages of %d bytes; this host has version %d, %s-endian, %d bytes",
			m.Version, m.Endian, m.PageSize, diskVersion, hostarch.EndianString(), hostarch.PageSize)
	}
	t := slices.IndexFunc(m.Tmpfs, func(t *fspb.Tmpfs) bool { return t.GetResourceId().GetPath() == l.saved })
	f := slices.IndexFunc(m.MemoryFiles, func(f *fspb.MemoryFile) bool { return f.GetResourceId().GetPath() == l.saved })
	if t < 0 || f < 0 {
		return nil, nil, damaged("it has no such file system")
	}
	tree, pages := m.Tmpfs[t], m.MemoryFiles[f]
	for name, part := range map[string][2]uint64{
		checkpointfiles.FSCheckpointMultiTarFileName: {tree.TarStart, tree.TarEnd},
		checkpointfiles.PagesMetadataFileName:        {pages.PagesMetadataStart, pages.PagesMetadataEnd},
		checkpointfiles.PagesFileName:                {pages.PagesStart, pages.PagesStart},
	} {
		size, err := l.size(name)
		if err != nil {
			return nil, nil, err
		}
		if part[0] > part[1] || part[1] > uint64(size) {
			return nil, nil, damaged("it is at %d to %d of %s, which has %d bytes", part[0], part[1], name, size)
		}
	}
	return tree, pages, nil
}

// maxManifest is more than the manifest of a machine with the largest number of drives,
// in bytes.
const maxManifest = 1 << 20

// compose returns the files of all layers for a pager, which presents them to its sentry
// as one checkpoint.
func compose(layers []*layer) (openFiles, error) {
	whole := &fspb.Manifest{Version: diskVersion, PageSize: hostarch.PageSize, Endian: hostarch.EndianString()}
	begins := map[string][]int64{}
	for _, name := range diskFiles {
		var sizes []int64
		for _, l := range layers {
			size, err := l.size(name)
			if err != nil {
				return nil, err
			}
			sizes = append(sizes, size)
		}
		begins[name] = place(name, sizes)
	}
	var files openFiles
	for i, l := range layers {
		tree, pages, err := l.find()
		if err != nil {
			return nil, err
		}
		id := &fspb.ResourceID{ContainerName: tree.GetResourceId().GetContainerName(), Path: l.at}
		trees, meta := uint64(begins[checkpointfiles.FSCheckpointMultiTarFileName][i]), uint64(begins[checkpointfiles.PagesMetadataFileName][i])
		whole.Tmpfs = append(whole.Tmpfs, &fspb.Tmpfs{ResourceId: id, TarStart: trees + tree.TarStart, TarEnd: trees + tree.TarEnd})
		whole.MemoryFiles = append(whole.MemoryFiles, &fspb.MemoryFile{
			ResourceId:         id,
			PagesMetadataStart: meta + pages.PagesMetadataStart,
			PagesMetadataEnd:   meta + pages.PagesMetadataEnd,
			PagesStart:         uint64(begins[checkpointfiles.PagesFileName][i]) + pages.PagesStart,
		})
		for _, f := range l.files {
			if f != l.file(checkpointfiles.FSCheckpointManifestFileName) {
				files = append(files, f)
			}
		}
	}
	data, err := proto.Marshal(whole)
	if err != nil {
		return nil, fmt.Errorf("describe checkpoint: %w", err)
	}
	fd, err := unix.MemfdCreate("manifest", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("describe checkpoint: %w", err)
	}
	manifest := os.NewFile(uintptr(fd), checkpointfiles.FSCheckpointManifestFileName)
	if _, err := manifest.Write(data); err != nil {
		manifest.Close()
		return nil, fmt.Errorf("describe checkpoint: %w", err)
	}
	return append(openFiles{manifest}, files...), nil
}

// farApart is larger than any file of pages.
const farApart = 1 << 44

// place returns where the layers' files of one name begin in the combined file that the
// sentry sees (see compose). Files that the sentry reads from the first byte to the last
// follow one another, padded with zeros. Files of pages are farApart, so that no layer's
// offsets can reach into the pages of another layer, whatever its metadata says.
func place(name string, sizes []int64) []int64 {
	begin, next := make([]int64, len(sizes)), int64(0)
	for i, size := range sizes {
		begin[i] = next
		if name == checkpointfiles.PagesFileName {
			next += farApart
		} else {
			next += (size + machine.SumBlock - 1) / machine.SumBlock * machine.SumBlock
		}
	}
	return begin
}
