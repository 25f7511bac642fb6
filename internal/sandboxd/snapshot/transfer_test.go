package snapshot_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/blob/blobtest"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/pages"
	"github.com/cayhq/cay/internal/sandboxd/snapshot"
)

func TestExport(t *testing.T) {
	t.Parallel()
	s, other := newStore(t), newStore(t)
	m := put(t, s.Store, manifest("snap_a", snapshot.Memory))
	archive := export(t, s.Store, "snap_a")
	if !bytes.Equal(archive, export(t, s.Store, "snap_a")) {
		t.Error("exported twice, it differs")
	}
	// The archive's members, as any tar program reads them.
	tr := tar.NewReader(bytes.NewReader(archive))
	var members []string
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		members = append(members, h.Name)
	}
	if want := []string{"manifest.json", "manifest.sha256", "disk/multitar.img", "disk/pages.img", "memory/pages.img"}; !slices.Equal(members, want) {
		t.Errorf("the archive has %q, want %q", members, want)
	}

	all, err := other.Import(t.Context(), bytes.NewReader(archive), snapshot.ImportParams{ID: "snap_all", Name: "new", Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	want := *m
	want.ID, want.Name, want.Origin, want.Source, want.Parent = "snap_all", "new", "snap_a", "", ""
	if !reflect.DeepEqual(all, &want) {
		t.Errorf("imported %+v, want %+v", all, want)
	}
	files, err := other.Import(t.Context(), bytes.NewReader(archive), snapshot.ImportParams{ID: "snap_files"})
	if err != nil {
		t.Fatal(err)
	}
	if files.Kind != snapshot.Filesystem || files.VCPUs != 0 || files.MemoryMB != 0 || files.Build.ID != "" || len(files.Files) != 2 {
		t.Errorf("without its memory it is %+v", files)
	}
	for _, m := range []*snapshot.Manifest{all, files} {
		snap, err := other.Open(t.Context(), m.ID)
		if err != nil {
			t.Fatal(err)
		}
		if err := snap.Verify(t.Context()); err != nil {
			t.Error(err)
		}
		if !reflect.DeepEqual(&snap.Manifest, m) {
			t.Errorf("opened %+v, imported %+v", snap.Manifest, m)
		}
		snap.Close()
	}
	if _, err := other.Import(t.Context(), bytes.NewReader(archive), snapshot.ImportParams{ID: "snap_files"}); cay.CodeOf(err) != cay.AlreadyExists {
		t.Errorf("an id twice: %v", err)
	}
	if _, err := other.Import(t.Context(), bytes.NewReader(archive), snapshot.ImportParams{ID: "other"}); cay.CodeOf(err) != cay.Invalid {
		t.Errorf("a bad id: %v", err)
	}
}

// member is a member of an archive to import.
type member struct {
	tar.Header
	content string
}

func members(t testing.TB, archive []byte) []member {
	t.Helper()
	var all []member
	for tr := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, member{*h, string(b)})
	}
}

func archiveOf(t testing.TB, members []member) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		if m.Typeflag == tar.TypeReg {
			m.Size = int64(len(m.content))
		}
		m.Format = tar.FormatUnknown
		if err := w.WriteHeader(&m.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, m.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// saveParts writes a snapshot with pages in parts, over another one.
func saveParts(t *testing.T, s *snapshot.Store, id, over, content string) *snapshot.Manifest {
	t.Helper()
	d := checktest.Must(s.Create(t.Context(), 0))(t)
	dir := checktest.Must(d.DiskDir())(t)
	var base *pages.Map
	var shared []machine.StateFile
	if over != "" {
		d.Base = checktest.Must(s.Open(t.Context(), over))(t)
		defer d.Base.Close()
		base = checktest.Must(pages.ReadMap(filepath.Join(d.Base.DiskDir(), pages.MapName)))(t)
		state := checktest.Must(machine.ReadState(d.Base.DiskDir()))(t)
		for _, p := range base.Shared() {
			checktest.OK(t, os.Link(filepath.Join(d.Base.DiskDir(), p.Name), filepath.Join(dir, p.Name)))
			shared = append(shared, *state.File(p.Name))
		}
	}
	part := checktest.Must(os.Create(filepath.Join(dir, pages.NewPart())))(t)
	defer part.Close()
	w := pages.NewWriter(base, filepath.Base(part.Name()), part)
	checktest.OK(t, w.Write(strings.NewReader(content), 0, uint64(len(content)), true))
	m := checktest.Must(w.Close())(t)
	places := checktest.Must(os.Create(filepath.Join(dir, pages.MapName)))(t)
	defer places.Close()
	checktest.Must(places.Write(m.Encode()))(t)
	checktest.OK(t, machine.SealState(t.Context(), dir, &machine.State{Format: machine.PartsFormat, Kind: machine.DiskState, Runtime: "test"}, []*os.File{part, places}, shared...))
	return checktest.Must(d.Commit(t.Context(), manifest(id, snapshot.Filesystem)))(t)
}

// A snapshot that shares pages with another one is exported with all its pages, and with
// none of the other's.
func TestExport_Parts(t *testing.T) {
	t.Parallel()
	s, other := newStore(t), newStore(t)
	const secret = "a secret that was deleted"
	block := func(b byte) string { return strings.Repeat(string(b), pages.BlockSize) }
	first := block('a') + block('b') + block('c') + secret
	second := block('a') + block('x') + block('c') + "short"
	saveParts(t, s.Store, "snap_a", "", first)
	m := saveParts(t, s.Store, "snap_b", "snap_a", second)
	if size := m.Size(); size > int64(len(first)+pages.BlockSize+10000) {
		t.Errorf("the second snapshot has %d bytes", size)
	}
	snap := checktest.Must(s.Open(t.Context(), "snap_b"))(t)
	defer snap.Close()
	checktest.OK(t, snap.Verify(t.Context()))

	archive := export(t, s.Store, "snap_b")
	if !bytes.Equal(archive, export(t, s.Store, "snap_b")) {
		t.Error("exported twice, it differs")
	}
	if bytes.Contains(archive, []byte(secret)) {
		t.Error("the archive has what was deleted before")
	}
	imported := checktest.Must(other.Import(t.Context(), bytes.NewReader(archive), snapshot.ImportParams{ID: "snap_c"}))(t)
	if len(imported.Files) != 2 {
		t.Errorf("the archive has %+v", imported.Files)
	}
	got := checktest.Must(other.Open(t.Context(), "snap_c"))(t)
	defer got.Close()
	checktest.Must(machine.VerifyState(t.Context(), got.DiskDir()))(t)
	if b := checktest.Must(os.ReadFile(filepath.Join(got.DiskDir(), pages.WholeName)))(t); string(b) != second {
		t.Errorf("%d bytes were imported, not the %d that were saved", len(b), len(second))
	}

	// Damage of a part that both have is found.
	damaged := checktest.Must(pages.ReadMap(filepath.Join(snap.DiskDir(), pages.MapName)))(t).Parts[1].Name
	checktest.OK(t, os.Chmod(filepath.Join(snap.DiskDir(), damaged), 0o600))
	checktest.OK(t, os.WriteFile(filepath.Join(snap.DiskDir(), damaged), []byte(strings.ToUpper(first)), 0o600))
	if err := s.Export(t.Context(), "snap_b", io.Discard); cay.CodeOf(err) != cay.Conflict {
		t.Errorf("exported damaged pages: %v", err)
	}
}

func TestImport_hostile(t *testing.T) {
	t.Parallel()
	source := newStore(t)
	put(t, source.Store, manifest("snap_a", snapshot.Filesystem))
	good := export(t, source.Store, "snap_a")
	change := func(f func(m []member) []member) []byte { return archiveOf(t, f(members(t, good))) }
	// claim changes the manifest, and its sum with it.
	claim := func(f func(*snapshot.Manifest)) []byte {
		return change(func(all []member) []member {
			var m snapshot.Manifest
			if err := json.Unmarshal([]byte(all[0].content), &m); err != nil {
				t.Fatal(err)
			}
			f(&m)
			b, err := json.MarshalIndent(m, "", "\t")
			if err != nil {
				t.Fatal(err)
			}
			all[0].content = string(b) + "\n"
			all[1].content = sumOf([]byte(all[0].content))
			return all
		})
	}
	for name, tt := range map[string]struct {
		archive []byte
		params  snapshot.ImportParams
		want    cay.Code
	}{
		"nothing":              {archive: nil, want: cay.Invalid},
		"no archive":           {archive: []byte(strings.Repeat("no archive", 100)), want: cay.Invalid},
		"an empty one":         {archive: archiveOf(t, nil), want: cay.Invalid},
		"cut in the manifest":  {archive: good[:600], want: cay.Invalid},
		"cut in the last file": {archive: good[:len(good)-1024-512+5], want: cay.Invalid},
		"cut before the end":   {archive: good[:len(good)-1024-512], want: cay.Invalid},
		"no manifest":          {archive: change(func(m []member) []member { return m[1:] }), want: cay.Invalid},
		"no sum":               {archive: change(func(m []member) []member { return append(m[:1], m[2:]...) }), want: cay.Invalid},
		"a file is missing":    {archive: change(func(m []member) []member { return m[:3] }), want: cay.Invalid},
		"a file twice":         {archive: change(func(m []member) []member { return append(m, m[3]) }), want: cay.Invalid},
		"another order":        {archive: change(func(m []member) []member { m[2], m[3] = m[3], m[2]; return m }), want: cay.Invalid},
		"a path out of it":     {archive: change(func(m []member) []member { m[3].Name = "../../etc/cron.d/x"; return m }), want: cay.Invalid},
		"an absolute path":     {archive: change(func(m []member) []member { m[3].Name = "/etc/passwd"; return m }), want: cay.Invalid},
		"a symbolic link": {archive: change(func(m []member) []member {
			m[3].Typeflag, m[3].Linkname, m[3].content, m[3].Size = tar.TypeSymlink, "/etc/passwd", "", 0
			return m
		}), want: cay.Invalid},
		"a hard link": {archive: change(func(m []member) []member {
			m[3].Typeflag, m[3].Linkname, m[3].content, m[3].Size = tar.TypeLink, "manifest.json", "", 0
			return m
		}), want: cay.Invalid},
		"other content":           {archive: change(func(m []member) []member { m[3].content = "PAGES of the disk"; return m }), want: cay.Invalid},
		"another size":            {archive: change(func(m []member) []member { m[3].content += "x"; return m }), want: cay.Invalid},
		"another manifest":        {archive: change(func(m []member) []member { m[0].content += " "; return m }), want: cay.Invalid},
		"a huge manifest":         {archive: change(func(m []member) []member { m[0].content = strings.Repeat(" ", 2<<20); return m }), want: cay.Invalid},
		"a newer version":         {archive: claim(func(m *snapshot.Manifest) { m.Version = 2 }), want: cay.NotSupported},
		"version 0":               {archive: claim(func(m *snapshot.Manifest) { m.Version = 0 }), want: cay.Invalid},
		"a claimed path out":      {archive: claim(func(m *snapshot.Manifest) { m.Files[1].Path = "disk/../../x" }), want: cay.Invalid},
		"files of no part":        {archive: claim(func(m *snapshot.Manifest) { m.Files[1].Path = "x/y" }), want: cay.Invalid},
		"the manifest as a file":  {archive: claim(func(m *snapshot.Manifest) { m.Files[1].Path = "manifest.json" }), want: cay.Invalid},
		"a file claimed twice":    {archive: claim(func(m *snapshot.Manifest) { m.Files[1] = m.Files[0] }), want: cay.Invalid},
		"a negative size":         {archive: claim(func(m *snapshot.Manifest) { m.Files[1].Size = -1 }), want: cay.Invalid},
		"sizes that overflow":     {archive: claim(func(m *snapshot.Manifest) { m.Files[0].Size, m.Files[1].Size = math.MaxInt64, math.MaxInt64 }), want: cay.Invalid},
		"a huge file":             {archive: claim(func(m *snapshot.Manifest) { m.Files[1].Size = 1 << 60 }), want: cay.TooLarge},
		"larger than is allowed":  {archive: good, params: snapshot.ImportParams{MaxBytes: 16}, want: cay.TooLarge},
		"more than the disk has":  {archive: claim(func(m *snapshot.Manifest) { m.Files[1].Size = 1 << 60 }), params: snapshot.ImportParams{MaxBytes: math.MaxInt64}, want: cay.NoSpace},
		"no files":                {archive: claim(func(m *snapshot.Manifest) { m.Files = nil }), want: cay.Invalid},
		"pages in parts":          {archive: claim(func(m *snapshot.Manifest) { m.Files[1].Path = "disk/pages.map" }), want: cay.Invalid},
		"memory in the wrong one": {archive: claim(func(m *snapshot.Manifest) { m.Files[1].Path = "memory/pages.img" }), want: cay.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			tt.params.ID = "snap_b"
			m, err := s.Import(t.Context(), bytes.NewReader(tt.archive), tt.params)
			if cay.CodeOf(err) != tt.want {
				t.Errorf("got %+v, %v; want %s", m, err, tt.want)
			}
			nothingLeft(t, s)
		})
	}
	t.Run("only memory", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		d, err := s.Create(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		blobtest.Write(t, d, memoryFiles)
		if _, err := d.Commit(t.Context(), manifest("snap_m", snapshot.Memory)); err != nil {
			t.Fatal(err)
		}
		archive := export(t, s.Store, "snap_m")
		if _, err := s.Import(t.Context(), bytes.NewReader(archive), snapshot.ImportParams{ID: "snap_b"}); cay.CodeOf(err) != cay.NotSupported {
			t.Errorf("got %v, want not_supported", err)
		}
		if _, err := s.Import(t.Context(), bytes.NewReader(archive), snapshot.ImportParams{ID: "snap_b", Memory: true}); err != nil {
			t.Error(err)
		}
	})
	t.Run("the caller leaves", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		ctx, cancel := context.WithCancel(t.Context())
		// The first half of the archive; then the reader blocks until it is canceled.
		r, w := io.Pipe()
		go func() {
			w.Write(good[:len(good)/2])
			cancel()
			w.CloseWithError(context.Canceled)
		}()
		if _, err := s.Import(ctx, r, snapshot.ImportParams{ID: "snap_b"}); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want that it was canceled", err)
		}
		nothingLeft(t, s)
	})
}

func nothingLeft(t testing.TB, s store) {
	t.Helper()
	for _, d := range []string{"data", "names"} {
		entries, err := os.ReadDir(filepath.Join(s.dir, d))
		if err != nil || len(entries) > 0 {
			t.Errorf("%s has %d entries, %v", d, len(entries), err)
		}
	}
}

// Arbitrary bytes make either a complete snapshot or nothing.
func FuzzImport(f *testing.F) {
	source := newStore(f)
	put(f, source.Store, manifest("snap_a", snapshot.Memory))
	good := export(f, source.Store, "snap_a")
	f.Add(good)
	f.Add(good[:1500])
	f.Add(good[512:])
	s := openStore(f, blobtest.FastDir(f))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, err := s.Import(t.Context(), bytes.NewReader(b), snapshot.ImportParams{ID: "snap_b", Memory: len(b)%2 == 0, MaxBytes: 1 << 20})
		if err != nil {
			switch code := cay.CodeOf(err); code {
			case cay.Invalid, cay.NotSupported, cay.TooLarge:
			default:
				t.Errorf("%v has the code %s", err, code)
			}
			nothingLeft(t, s)
			return
		}
		snap, err := s.Open(t.Context(), "snap_b")
		if err != nil {
			t.Fatal(err)
		}
		defer snap.Close()
		if err := snap.Verify(t.Context()); err != nil {
			t.Error(err)
		}
		if err := s.Delete(t.Context(), "snap_b"); err != nil {
			t.Error(err)
		}
	})
}

// promises adds up the disk space that drafts reserve.
type promises struct {
	blob.Store
	held atomic.Int64
}

func (p *promises) Create(ctx context.Context, size int64) (blob.Draft, error) {
	d, err := p.Store.Create(ctx, size)
	if err == nil {
		p.held.Add(size)
	}
	return promised{d, p, size}, err
}

type promised struct {
	blob.Draft
	of   *promises
	size int64
}

func (d promised) Abort() error {
	d.of.held.Add(-d.size)
	return d.Draft.Abort()
}

// An archive that arrives slowly reserves no disk space.
func TestImport_PromisesNothing(t *testing.T) {
	t.Parallel()
	from := newStore(t)
	put(t, from.Store, manifest("snap_a", snapshot.Filesystem))
	archive := export(t, from.Store, "snap_a")
	dir, err := blob.OpenDir(t.TempDir(), blob.DirOptions{})
	if err != nil {
		t.Fatal(err)
	}
	blobs := &promises{Store: dir}
	begun := false
	r := readerFunc(func(p []byte) (int, error) {
		if held := blobs.held.Load(); begun && held != 0 {
			t.Errorf("%d bytes are kept while it comes", held)
		}
		n := copy(p[:min(len(p), 64)], archive)
		if archive = archive[n:]; n == 0 {
			return 0, io.EOF
		}
		return n, nil
	})
	if _, err := snapshot.New(blobs).Import(t.Context(), r, snapshot.ImportParams{ID: "snap_b", Check: func(*snapshot.Manifest) error {
		begun = true
		return nil
	}}); err != nil {
		t.Fatal(err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
