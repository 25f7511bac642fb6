package gvisor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"gvisor.dev/gvisor/pkg/hostarch"
	fspb "gvisor.dev/gvisor/pkg/sentry/fscheckpoint/fscheckpoint_proto_go_proto"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/pages"
)

// savedDisk returns a layer that was saved at a path, with contents of the given sizes. A
// root has its pages in parts.
func savedDisk(t *testing.T, saved, at string, tree, meta, size int, change func(*fspb.Manifest)) (*layer, map[string][]byte) {
	t.Helper()
	inParts := at == "/"
	id := &fspb.ResourceID{ContainerName: "box", Path: saved}
	m := &fspb.Manifest{Version: 1, PageSize: hostarch.PageSize, Endian: hostarch.EndianString(),
		Tmpfs:       []*fspb.Tmpfs{{ResourceId: id, TarStart: 0, TarEnd: uint64(tree)}},
		MemoryFiles: []*fspb.MemoryFile{{ResourceId: id, PagesMetadataEnd: uint64(meta)}},
	}
	if change != nil {
		change(m)
	}
	manifest, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	contents := map[string][]byte{
		checkpointfiles.FSCheckpointManifestFileName: manifest, checkpointfiles.FSCheckpointMultiTarFileName: random(tree),
		checkpointfiles.PagesMetadataFileName: random(meta), checkpointfiles.PagesFileName: random(size),
	}
	dir := t.TempDir()
	var files openFiles
	create := func(name string, content []byte) *os.File {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(content); err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
		return f
	}
	for _, name := range diskFiles {
		if name != checkpointfiles.PagesFileName || !inParts {
			create(name, contents[name])
		}
	}
	if inParts { // the second save changes one byte
		now := contents[checkpointfiles.PagesFileName]
		before := bytes.Clone(now)
		before[len(before)/2]++
		var m *pages.Map
		for _, content := range [][]byte{before, now} {
			name := pages.NewPart()
			w := pages.NewWriter(m, name, create(name, nil))
			if err := w.Write(bytes.NewReader(content), 0, uint64(len(content)), true); err != nil {
				t.Fatal(err)
			}
			if m, err = w.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if len(m.Parts) != 2 && size > pages.BlockSize {
			t.Fatalf("%d parts", len(m.Parts))
		}
		create(pages.MapName, m.Encode())
	}
	s := &machine.State{Kind: machine.DiskState}
	if err := machine.SealState(t.Context(), dir, s, files); err != nil {
		t.Fatal(err)
	}
	if err := files.Close(); err != nil {
		t.Fatal(err)
	}
	l := &layer{dir: dir, saved: saved, at: at}
	if l.files, err = openStateFiles(t.Context(), dir, s); err != nil {
		t.Fatal(err)
	}
	if inParts {
		if err := l.openParts(s); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { l.files.Close() })
	return l, contents
}

// At the offsets that the combined manifest names, a sentry reads through a pager exactly
// the bytes of each layer.
func TestCompose(t *testing.T) {
	const block = machine.SumBlock
	root, rootHas := savedDisk(t, "/", "/", 1000, 300, 5*block+4096, nil)
	a, aHas := savedDisk(t, "/old", "/data", 2*block, block+1, 4096, nil)
	b, bHas := savedDisk(t, "/old", "/more", 1, 1, 0, nil)
	files, err := compose([]*layer{root, a, b})
	if err != nil {
		t.Fatal(err)
	}
	defer files[0].Close()
	s := &checkpointServer{does: loads, files: map[string][]servedFile{}}
	if err := s.addFiles(files[1:]); err != nil {
		t.Fatal(err)
	}
	s.files[checkpointfiles.FSCheckpointManifestFileName] = []servedFile{{File: files[0]}}
	var m fspb.Manifest
	data, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", files[0].Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	readers := map[string]*pageReader{}
	mem := memory(t)
	for _, name := range diskFiles {
		r, err := s.OpenRead(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		if _, err := r.RegisterDestinationFD(int32(mem.Fd()), 0, nil); err != nil {
			t.Fatal(err)
		}
		readers[name] = r.(*pageReader)
	}
	read := func(name string, off, n int64) []byte {
		t.Helper()
		r := readers[name]
		var all []byte
		for n > 0 {
			part := min(n, int64(r.maxRead))
			half := uint64(part / 2)
			r.AddReadv(0, off, uint64(part), r.dsts[0], []memmap.FileRange{{Start: 1 << 20, End: 1<<20 + half}, {Start: 0, End: uint64(part) - half}}, nil)
			cs, err := r.Wait(nil, 1)
			if err != nil || cs[0].Err != nil || cs[0].N != uint64(part) {
				t.Fatalf("%s at %d: %+v, %v", name, off, cs, err)
			}
			buf := make([]byte, part)
			if _, err := mem.ReadAt(buf[:half], 1<<20); err != nil {
				t.Fatal(err)
			}
			if _, err := mem.ReadAt(buf[half:], 0); err != nil {
				t.Fatal(err)
			}
			all, off, n = append(all, buf...), off+part, n-part
		}
		return all
	}
	for i, want := range []struct {
		at  string
		has map[string][]byte
	}{{"/", rootHas}, {"/data", aHas}, {"/more", bHas}} {
		tree, at := m.Tmpfs[i], m.MemoryFiles[i]
		if tree.ResourceId.Path != want.at || at.ResourceId.Path != want.at || tree.ResourceId.ContainerName != "box" {
			t.Errorf("layer %d is %v and %v, want %s", i, tree, at, want.at)
		}
		for name, got := range map[string][]byte{
			checkpointfiles.FSCheckpointMultiTarFileName: read(checkpointfiles.FSCheckpointMultiTarFileName, int64(tree.TarStart), int64(tree.TarEnd-tree.TarStart)),
			checkpointfiles.PagesMetadataFileName:        read(checkpointfiles.PagesMetadataFileName, int64(at.PagesMetadataStart), int64(at.PagesMetadataEnd-at.PagesMetadataStart)),
			checkpointfiles.PagesFileName:                read(checkpointfiles.PagesFileName, int64(at.PagesStart), int64(len(want.has[checkpointfiles.PagesFileName]))),
		} {
			if !bytes.Equal(got, want.has[name]) {
				t.Errorf("%s of %s: %d bytes, not the right ones", name, want.at, len(got))
			}
		}
		// After the last page of a layer there is nothing, in particular no page of the
		// next layer.
		r := readers[checkpointfiles.PagesFileName]
		r.AddRead(0, int64(at.PagesStart)+int64(len(want.has[checkpointfiles.PagesFileName])), r.dsts[0], memmap.FileRange{Start: 0, End: 4096}, nil)
		if cs, err := r.Wait(nil, 1); err != nil || cs[0].N != 0 || !errors.Is(cs[0].Err, io.EOF) {
			t.Errorf("after the pages of %s: %+v, %v", want.at, cs, err)
		}
	}
	// The combined file has no holes.
	whole := read(checkpointfiles.FSCheckpointMultiTarFileName, 0, 3*block+1)
	if !bytes.Equal(whole[1000:block], make([]byte, block-1000)) || !bytes.Equal(whole[block:3*block], aHas[checkpointfiles.FSCheckpointMultiTarFileName]) {
		t.Error("the trees do not follow one another")
	}
}

func TestCompose_Damaged(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*fspb.Manifest)
		want   cay.Code
	}{
		"nothing there":      {func(m *fspb.Manifest) { m.Tmpfs, m.MemoryFiles = nil, nil }, cay.Conflict},
		"no ids":             {func(m *fspb.Manifest) { m.Tmpfs[0].ResourceId, m.MemoryFiles[0].ResourceId = nil, nil }, cay.Conflict},
		"another mount":      {func(m *fspb.Manifest) { m.Tmpfs[0].ResourceId = &fspb.ResourceID{Path: "/else"} }, cay.Conflict},
		"no memory":          {func(m *fspb.Manifest) { m.MemoryFiles = nil }, cay.Conflict},
		"tree beyond end":    {func(m *fspb.Manifest) { m.Tmpfs[0].TarEnd = 101 }, cay.Conflict},
		"tree backwards":     {func(m *fspb.Manifest) { m.Tmpfs[0].TarStart, m.Tmpfs[0].TarEnd = 9, 8 }, cay.Conflict},
		"ranges beyond end":  {func(m *fspb.Manifest) { m.MemoryFiles[0].PagesMetadataEnd = 1 << 63 }, cay.Conflict},
		"pages beyond end":   {func(m *fspb.Manifest) { m.MemoryFiles[0].PagesStart = farApart }, cay.Conflict},
		"a later version":    {func(m *fspb.Manifest) { m.Version = 2 }, cay.NotSupported},
		"larger pages":       {func(m *fspb.Manifest) { m.PageSize = 1 << 16 }, cay.NotSupported},
		"another byte order": {func(m *fspb.Manifest) { m.Endian = "big" }, cay.NotSupported},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := savedDisk(t, "/", "/", 100, 100, 4096, c.change)
			if files, err := compose([]*layer{l}); cay.CodeOf(err) != c.want {
				t.Errorf("got %v, %v, want %s", files, err, c.want)
			}
		})
	}
}

// A reader of a file that is being written waits for each part, and gets an error if the
// file is not completed.
func TestGrowingFiles(t *testing.T) {
	for _, whole := range []bool{true, false} {
		files, err := unnamedFiles(t.TempDir(), []string{checkpointfiles.StateFileName, checkpointfiles.PagesFileName})
		if err != nil {
			t.Fatal(err)
		}
		defer files.Close()
		if err := files.lock(); err != nil {
			t.Fatal(err)
		}
		read, err := files.readOnly()
		if err != nil {
			t.Fatal(err)
		}
		defer read.Close()
		loader := &checkpointServer{does: loads, files: map[string][]servedFile{
			checkpointfiles.StateFileName: {{File: read[0]}}, checkpointfiles.PagesFileName: {{File: read[1]}},
		}}
		writer := &checkpointServer{does: saves, files: map[string][]servedFile{
			checkpointfiles.StateFileName: {{File: files[0]}}, checkpointfiles.PagesFileName: {{File: files[1]}},
		}}
		mem, content := memory(t), random(3*4096)
		if _, err := mem.WriteAt(content, 0); err != nil {
			t.Fatal(err)
		}
		w, err := writer.OpenWrite(checkpointfiles.PagesFileName)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		src, err := w.RegisterSourceFD(int32(mem.Fd()), 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := loader.OpenRead(checkpointfiles.PagesFileName)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		to := memory(t)
		dst, err := r.RegisterDestinationFD(int32(to.Fd()), 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		type result struct {
			n   uint64
			err error
		}
		got := make(chan result, 2)
		go func() {
			for off := range int64(2) {
				r.AddRead(0, off*8192, dst, memmap.FileRange{Start: uint64(off) * 8192, End: uint64(off)*8192 + 4096}, nil)
				cs, err := r.Wait(nil, 1)
				if err == nil {
					err = cs[0].Err
				}
				got <- result{cs[0].N, err}
			}
		}()
		opened := make(chan error, 1)
		go func() {
			_, err := loader.OpenRead(checkpointfiles.StateFileName)
			opened <- err
		}()
		waits := func() {
			t.Helper()
			select {
			case x := <-got:
				t.Fatalf("read what is not written: %+v", x)
			case err := <-opened:
				t.Fatalf("opened what is not complete: %v", err)
			case <-time.After(30 * time.Millisecond):
			}
		}
		waits()
		w.AddWrite(0, src, memmap.FileRange{Start: 0, End: 8192}, nil)
		if cs, err := w.Wait(nil, 1); err != nil || cs[0].Err != nil {
			t.Fatal(cs, err)
		}
		if x := <-got; x.n != 4096 || x.err != nil {
			t.Fatalf("the first pages: %+v", x)
		}
		waits()
		if whole {
			w.AddWrite(0, src, memmap.FileRange{Start: 8192, End: 3 * 4096}, nil)
			if cs, err := w.Wait(nil, 1); err != nil || cs[0].Err != nil {
				t.Fatal(cs, err)
			}
			if x := <-got; x.n != 4096 || x.err != nil {
				t.Fatalf("the last pages: %+v", x)
			}
			all := make([]byte, len(content))
			if _, err := to.ReadAt(all, 0); err != nil || !bytes.Equal(slices.Concat(all[:4096], all[8192:]), slices.Concat(content[:4096], content[8192:])) {
				t.Errorf("other bytes were read: %v", err)
			}
		}
		if err := files.unlock(whole); err != nil {
			t.Fatal(err)
		}
		if err := <-opened; err != nil {
			t.Error(err)
		}
		if !whole {
			if x := <-got; x.n != 0 || !errors.Is(x.err, io.EOF) {
				t.Errorf("pages that never came: %+v", x)
			}
		}
	}
}

// memory is a sentry's file.
func memory(t *testing.T) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("sentry", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	mem := os.NewFile(uintptr(fd), "sentry")
	t.Cleanup(func() { mem.Close() })
	return mem
}

// Row S4: a sentry's errors about another processor, or at its end, are translated into
// words for users.
func TestSentryError(t *testing.T) {
	for text, want := range map[string]cay.Code{
		`urpc method "containerManager.Restore" failed: incompatible FeatureSet: feature amx_tile` + "\ngoroutine 1 [running]": cay.NotSupported,
		`urpc method "containerManager.StartRoot" failed: EOF`:                                                                 cay.Unavailable,
		"read unix: connection reset by peer":                                                                                  cay.Internal,
		"failed to save: no checkpointable filesystems":                                                                        cay.Conflict,
		"something else\ngoroutine 7 [running]":                                                                                cay.Internal,
	} {
		err := sentryError(errors.New(text))
		if cay.CodeOf(err) != want || strings.Contains(err.Error(), "goroutine") {
			t.Errorf("%q became %v (%s), want %s", text, err, cay.CodeOf(err), want)
		}
	}
	for _, err := range []error{io.EOF, unix.EPIPE, unix.ECONNRESET} {
		if got := sentryError(err); cay.CodeOf(got) != cay.Unavailable {
			t.Errorf("%v became %v", err, got)
		}
	}
	if err := sentryError(nil); err != nil {
		t.Error(err)
	}
}
