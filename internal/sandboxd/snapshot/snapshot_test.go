package snapshot_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/blob/blobtest"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd/snapshot"
	"github.com/cayhq/cay/internal/seedtest"
)

type store struct {
	*snapshot.Store
	blobs *blob.Dir
	dir   string
}

func newStore(t testing.TB) store {
	t.Helper()
	return openStore(t, t.TempDir())
}

func openStore(t testing.TB, dir string) store {
	t.Helper()
	blobs, err := blob.OpenDir(dir, blob.DirOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return store{snapshot.New(blobs), blobs, dir}
}

// only is the single blob's directory.
func (s store) only(t testing.TB) string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(s.dir, "data", "*"))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("there are %q, %v; want one", dirs, err)
	}
	return dirs[0]
}

var digest = "sha256:" + strings.Repeat("0123456789abcdef", 4)

func manifest(id string, kind snapshot.Kind) snapshot.Manifest {
	m := snapshot.Manifest{
		ID: id, Name: "installed", Kind: kind, CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
		Source: "sbx_1", Parent: "snap_0", Image: digest, DiskMB: 1024,
		Runtimes: []snapshot.Runtime{{Target: "/vercel/runtimes/node24", Digest: digest}},
		Build:    snapshot.Build{Cay: "v1", GVisor: "v0", Arch: "amd64"},
	}
	if kind == snapshot.Memory {
		m.VCPUs, m.MemoryMB, m.Build.ID = 0.5, 512, "build"
	}
	return m
}

var (
	diskFiles   = map[string]string{"disk/pages.img": "pages of the disk", "disk/multitar.img": ""}
	memoryFiles = map[string]string{"memory/pages.img": strings.Repeat("memory", 100)}
)

// put writes a snapshot as the runtime would.
func put(t testing.TB, s *snapshot.Store, m snapshot.Manifest) *snapshot.Manifest {
	t.Helper()
	d, err := s.Create(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	fill := func(dir string, err error, files map[string]string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		for name, content := range files {
			if err := os.WriteFile(filepath.Join(dir, filepath.Base(name)), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	dir, err := d.DiskDir()
	fill(dir, err, diskFiles)
	if m.Kind == snapshot.Memory {
		dir, err = d.MemoryDir()
		fill(dir, err, memoryFiles)
	}
	got, err := d.Commit(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func export(t testing.TB, s *snapshot.Store, id string) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := s.Export(t.Context(), id, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestStore(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	m := put(t, s.Store, manifest("snap_a", snapshot.Memory))
	snap, err := s.Open(t.Context(), "snap_a")
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Close()
	if !reflect.DeepEqual(&snap.Manifest, m) {
		t.Errorf("opened %+v, committed %+v", snap.Manifest, m)
	}
	if want := int64(17 + 600); m.Size() != want || m.Version != snapshot.ManifestVersion || !m.HasDisk() {
		t.Errorf("committed %+v, want %d bytes", m, want)
	}
	if err := s.Delete(t.Context(), "snap_a"); err != nil {
		t.Fatal(err)
	}
	if err := snap.Verify(t.Context()); err != nil {
		t.Errorf("Verify after Delete: %v", err)
	}
	for dir, want := range map[string]string{snap.DiskDir(): "pages of the disk", snap.MemoryDir(): memoryFiles["memory/pages.img"]} {
		if b, err := os.ReadFile(filepath.Join(dir, "pages.img")); err != nil || string(b) != want {
			t.Errorf("%s has %q, %v", dir, b, err)
		}
	}
	for what, f := range map[string]func(string) error{
		"Open":   func(id string) error { _, err := s.Open(t.Context(), id); return err },
		"Delete": func(id string) error { return s.Delete(t.Context(), id) },
		"Export": func(id string) error { return s.Export(t.Context(), id, io.Discard) },
	} {
		for id, want := range map[string]cay.Code{"snap_a": cay.NotFound, "a": cay.Invalid, "snap_../x": cay.Invalid, "": cay.Invalid} {
			if err := f(id); cay.CodeOf(err) != want {
				t.Errorf("%s(%q): %v, want %s", what, id, err, want)
			}
		}
	}
}

func TestStore_DropMemory(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	m := manifest("snap_a", snapshot.Memory)
	m.Guest = &snapshot.Guest{User: "u", Token: "secret"}
	put(t, s.Store, m)
	before, err := s.Open(t.Context(), "snap_a")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second finds it done
		got, err := s.DropMemory(t.Context(), "snap_a")
		if err != nil {
			t.Fatal(err)
		}
		snap, err := s.Open(t.Context(), "snap_a")
		if err != nil {
			t.Fatal(err)
		}
		if err := snap.Verify(t.Context()); err != nil {
			t.Error(err)
		}
		if !reflect.DeepEqual(&snap.Manifest, got) || got.Kind != snapshot.Filesystem || got.Size() != 17 || got.Guest.User != "u" || got.Guest.Token != "" {
			t.Errorf("it is %+v, said to be %+v", snap.Manifest, got)
		}
		snap.Close()
	}
	if err := before.Verify(t.Context()); err != nil {
		t.Errorf("who had it open before: %v", err)
	}
	before.Close()
	if files := blobtest.Read(t, s.only(t)); len(files) != 4 {
		t.Errorf("its files are %q", files)
	}
	_, err = s.DropMemory(t.Context(), "snap_b")
	checktest.Code(t, err, cay.NotFound)
}

func TestDraft_invalid(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for name, change := range map[string]func(*snapshot.Manifest){
		"id":              func(m *snapshot.Manifest) { m.ID = "snap_A" },
		"kind":            func(m *snapshot.Manifest) { m.Kind = "other" },
		"name":            func(m *snapshot.Manifest) { m.Name = "\xff" },
		"long name":       func(m *snapshot.Manifest) { m.Name = strings.Repeat("a", 257) },
		"no time":         func(m *snapshot.Manifest) { m.CreatedAt = time.Time{} },
		"source":          func(m *snapshot.Manifest) { m.Source = "../x" },
		"parent":          func(m *snapshot.Manifest) { m.Parent = "sbx_1" },
		"image":           func(m *snapshot.Manifest) { m.Image = "debian" },
		"no disk size":    func(m *snapshot.Manifest) { m.DiskMB = 0 },
		"vCPUs of none":   func(m *snapshot.Manifest) { m.VCPUs = 1 },
		"NaN vCPUs":       func(m *snapshot.Manifest) { m.VCPUs = math.NaN() },
		"memory of none":  func(m *snapshot.Manifest) { m.MemoryMB = 1 },
		"build of files":  func(m *snapshot.Manifest) { m.Build.ID = "build" },
		"runtime":         func(m *snapshot.Manifest) { m.Runtimes[0].Target = "relative" },
		"runtime's image": func(m *snapshot.Manifest) { m.Runtimes[0].Digest = "x" },
		"no memory files": func(m *snapshot.Manifest) { m.Kind, m.VCPUs, m.MemoryMB, m.Build.ID = snapshot.Memory, 1, 1, "b" },
	} {
		m := manifest("snap_a", snapshot.Filesystem)
		change(&m)
		d, err := s.Create(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		dir, err := d.DiskDir()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Commit(t.Context(), m); cay.CodeOf(err) != cay.Invalid {
			t.Errorf("%s: %v, want invalid", name, err)
		}
		if err := d.Abort(); err != nil {
			t.Error(err)
		}
	}
	d, err := s.Create(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Abort()
	if _, err := d.Commit(t.Context(), manifest("snap_a", snapshot.Filesystem)); cay.CodeOf(err) != cay.Invalid {
		t.Errorf("a snapshot without files: %v", err)
	}
}

// Open finds the damage that is cheap to find, Verify finds the rest, and damaged
// snapshots are not exported.
func TestStore_damaged(t *testing.T) {
	t.Parallel()
	write := func(name, content string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			t.Helper()
			path := filepath.Join(dir, name)
			if err := os.Chmod(path, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			t.Helper()
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	// replace changes the manifest, and writes its new sum.
	replace := func(from, to string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			t.Helper()
			b, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
			if err != nil || !bytes.Contains(b, []byte(from)) {
				t.Fatalf("no %q in %s, %v", from, b, err)
			}
			b = bytes.Replace(b, []byte(from), []byte(to), 1)
			write("manifest.json", string(b))(t, dir)
			write("manifest.sha256", sumOf(b))(t, dir)
		}
	}
	for name, tt := range map[string]struct {
		damage       func(*testing.T, string)
		open, verify cay.Code
	}{
		"a file is shorter":         {write("disk/pages.img", "pages"), cay.Conflict, ""},
		"a file differs":            {write("disk/pages.img", "PAGES of the disk"), "", cay.Conflict},
		"a file is missing":         {remove("disk/pages.img"), cay.Conflict, ""},
		"no manifest":               {remove("manifest.json"), cay.Conflict, ""},
		"no sum":                    {remove("manifest.sha256"), cay.Conflict, ""},
		"another manifest":          {write("manifest.json", "{}"), cay.Conflict, ""},
		"a huge manifest":           {write("manifest.json", strings.Repeat(" ", 2<<20)), cay.Conflict, ""},
		"of another snapshot":       {replace("snap_a", "snap_b"), cay.Conflict, ""},
		"an unknown field":          {replace(`"kind"`, `"more": 1, "kind"`), cay.Conflict, ""},
		"a field twice":             {replace(`"kind"`, `"kind": "memory", "kind"`), cay.Conflict, ""},
		"a path out of it":          {replace(`"disk/pages.img"`, `"disk/../../x"`), cay.Conflict, ""},
		"a newer version":           {replace(`"version": 1`, `"version": 2`), cay.NotSupported, ""},
		"a newer version, and more": {replace(`"version": 1`, `"version": 2, "more": {}`), cay.NotSupported, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			put(t, s.Store, manifest("snap_a", snapshot.Filesystem))
			tt.damage(t, s.only(t))
			snap, err := s.Open(t.Context(), "snap_a")
			if cay.CodeOf(err) != tt.open {
				t.Fatalf("Open: %v, want %q", err, tt.open)
			}
			var archive bytes.Buffer
			if err := s.Export(t.Context(), "snap_a", &archive); err == nil {
				t.Error("it was exported")
			}
			if _, err := newStore(t).Import(t.Context(), &archive, snapshot.ImportParams{ID: "snap_b"}); cay.CodeOf(err) != cay.Invalid {
				t.Errorf("what was exported of it: %v, want invalid", err)
			}
			if snap != nil {
				if err := snap.Verify(t.Context()); cay.CodeOf(err) != tt.verify {
					t.Errorf("Verify: %v, want %q", err, tt.verify)
				}
				snap.Close()
			}
			if err := s.Delete(t.Context(), "snap_a"); err != nil {
				t.Errorf("Delete: %v", err)
			}
		})
	}
}

func sumOf(manifest []byte) string {
	sum := sha256.Sum256(manifest)
	return hex.EncodeToString(sum[:]) + "  manifest.json\n"
}

func TestManifest_Refused(t *testing.T) {
	t.Parallel()
	m := manifest("snap_a", snapshot.Memory)
	m.Files = []snapshot.File{{Path: "disk/f"}, {Path: "memory/f"}}
	refused := cay.Errorf(cay.NotSupported, "written by another build")
	for _, want := range []string{"from its files", "use the cay that wrote it"} {
		var e *cay.Error
		err := m.Refused(refused)
		if cay.CodeOf(err) != cay.NotSupported || !errors.As(err, &e) || !strings.Contains(e.Hint, want) || !strings.Contains(e.Message, "another build") || !strings.Contains(e.Message, "v1") {
			t.Errorf("got %#v, want not_supported, the version and %q", err, want)
		}
		m.Files = m.Files[1:]
	}
	for _, err := range []error{nil, io.EOF, cay.Errorf(cay.Conflict, "damaged")} {
		if got := m.Refused(err); got != err {
			t.Errorf("%v became %v", err, got)
		}
	}
}

func TestThisBuild(t *testing.T) {
	t.Parallel()
	if b := snapshot.ThisBuild(); b.ID != "" || b.Cay == "" || b.Arch == "" {
		t.Errorf("this is %+v", b)
	}
}

func TestStore_Collect(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for _, id := range []string{"snap_live", "snap_dead"} {
		put(t, s.Store, manifest(id, snapshot.Filesystem))
	}
	blobtest.Put(t, s.blobs, "drive_1", map[string]string{"f": "not ours"})
	left, err := s.blobs.Create(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer left.Abort()
	live := map[string]bool{"snap_live": true, "snap_lost": true}
	r, err := s.Collect(t.Context(), live, time.Hour)
	if err != nil || len(r.Removed) > 0 || !slices.Equal(r.Missing, []string{"snap_lost"}) {
		t.Errorf("within the time of grace: %+v, %v", r, err)
	}
	if r, err = s.Collect(t.Context(), live, 0); err != nil || !slices.Equal(r.Removed, []string{"snap_dead"}) || r.Bytes == 0 {
		t.Errorf("after it: %+v, %v", r, err)
	}
	infos, err := s.blobs.List(t.Context(), blob.ListOptions{})
	if err != nil || len(infos) != 2 || infos[0].Name != "drive_1" || infos[1].Name != "snap_live" {
		t.Errorf("left are %+v, %v", infos, err)
	}
	if len(live) != 2 {
		t.Error("the caller's map has changed")
	}
}

// anyManifest draws a manifest and the contents of its files.
func anyManifest(t *rapid.T) (snapshot.Manifest, map[string]string) {
	digests := rapid.Custom(func(t *rapid.T) string { return "sha256:" + rapid.StringMatching(`[0-9a-f]{64}`).Draw(t, "digest") })
	text := rapid.StringN(0, 40, 256)
	m := snapshot.Manifest{
		ID:        rapid.StringMatching(`snap_[a-z0-9]{1,20}`).Draw(t, "id"),
		Name:      text.Draw(t, "name"),
		Kind:      rapid.SampledFrom([]snapshot.Kind{snapshot.Filesystem, snapshot.Memory}).Draw(t, "kind"),
		CreatedAt: time.Unix(rapid.Int64Range(0, 1<<35).Draw(t, "seconds"), rapid.Int64Range(0, 999999999).Draw(t, "nanoseconds")).UTC(),
		Source:    rapid.StringMatching(`([a-z0-9_]{1,20})?`).Draw(t, "source"),
		Parent:    rapid.StringMatching(`(snap_[a-z0-9]{1,20})?`).Draw(t, "parent"),
		Image:     digests.Draw(t, "image"),
		DiskMB:    rapid.Int64Range(1, 1<<40).Draw(t, "disk"),
		Build:     snapshot.Build{Cay: text.Draw(t, "cay"), GVisor: text.Draw(t, "gvisor"), Arch: "amd64"},
	}
	for range rapid.IntRange(0, 3).Draw(t, "runtimes") {
		m.Runtimes = append(m.Runtimes, snapshot.Runtime{Target: "/" + text.Draw(t, "target"), Digest: digests.Draw(t, "runtime")})
	}
	parts := []string{"disk"}
	if m.Kind == snapshot.Memory {
		m.VCPUs = rapid.Float64Range(0.001, 1024).Draw(t, "vcpus")
		m.Build.ID = rapid.StringMatching(`[a-z0-9]{1,20}`).Draw(t, "build")
		m.MemoryMB = rapid.Int64Range(1, 1<<40).Draw(t, "memory")
		m.Guest = &snapshot.Guest{Token: text.Draw(t, "token"), Env: rapid.MapOfN(text, text, 1, 3).Draw(t, "env")}
		parts = []string{"memory"}
		if rapid.Bool().Draw(t, "with its files") {
			parts = append(parts, "disk")
		}
	}
	files := map[string]string{}
	for _, part := range parts {
		for name, content := range rapid.MapOfN(rapid.StringMatching(`[a-z0-9][a-zA-Z0-9_.-]{0,10}`), rapid.StringN(0, 2000, -1), 1, 5).Draw(t, part) {
			files[part+"/"+name] = content
		}
	}
	return m, files
}

// A committed snapshot can be opened, exported, imported and exported again without
// losing a byte.
func TestStore_roundTrip(t *testing.T) {
	t.Parallel()
	s, other := openStore(t, blobtest.FastDir(t)), openStore(t, blobtest.FastDir(t))
	seedtest.Check(t, func(r *rapid.T) {
		m, files := anyManifest(r)
		for i := range m.Runtimes {
			if len(m.Runtimes[i].Target) > 256 {
				m.Runtimes[i].Target = "/"
			}
		}
		d, err := s.Create(t.Context(), 0)
		if err != nil {
			r.Fatal(err)
		}
		blobtest.Write(t, d, files)
		put, err := d.Commit(t.Context(), m)
		if err != nil {
			r.Fatal(errors.Join(err, d.Abort()))
		}
		archive := export(t, s.Store, m.ID)
		got, err := other.Import(t.Context(), bytes.NewReader(archive), snapshot.ImportParams{ID: m.ID, Name: m.Name, Memory: true})
		if err != nil {
			r.Fatal(err)
		}
		want := *put
		want.Origin, want.Source, want.Parent = m.ID, "", ""
		if !reflect.DeepEqual(got, &want) {
			r.Errorf("imported %+v, want %+v", got, want)
		}
		snap, err := other.Open(t.Context(), m.ID)
		if err != nil {
			r.Fatal(err)
		}
		all := blobtest.Read(t, filepath.Dir(snap.DiskDir()))
		delete(all, "manifest.json")
		delete(all, "manifest.sha256")
		if !maps.Equal(all, files) {
			r.Errorf("imported the files %q, want %q", all, files)
		}
		if err := snap.Verify(t.Context()); err != nil {
			r.Error(err)
		}
		snap.Close()
		for _, s := range []*snapshot.Store{s.Store, other.Store} {
			if err := s.Delete(t.Context(), m.ID); err != nil {
				r.Error(err)
			}
		}
	})
}

// Every manifest that is accepted, from arbitrary bytes, has one encoding.
func FuzzParseManifest(f *testing.F) {
	s := newStore(f)
	put(f, s.Store, manifest("snap_a", snapshot.Memory))
	b, err := os.ReadFile(filepath.Join(s.only(f), "manifest.json"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte(`{"version":1e99}`))
	f.Add(bytes.ToUpper(b))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := snapshot.ParseManifest(b)
		if err != nil {
			if code := cay.CodeOf(err); code != cay.Invalid && code != cay.NotSupported {
				t.Errorf("%v has the code %s", err, code)
			}
			return
		}
		again, err := json.MarshalIndent(m, "", "\t")
		if err != nil || !bytes.Equal(append(again, '\n'), b) {
			t.Errorf("accepted %q, which would be written as %q, %v", b, again, err)
		}
	})
}
