package pages_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd/pages"
	"github.com/cayhq/cay/internal/seedtest"
)

const pageSize = 4096

// memory is a memory file: pages by their number.
type memory map[uint64][]byte

// ranges calls f for each run of adjacent pages, in the order of offsets.
func (m memory) ranges(f func(off uint64, content []byte)) {
	var all []uint64
	for page := range m {
		all = append(all, page)
	}
	slices.Sort(all)
	for i := 0; i < len(all); {
		content := m[all[i]]
		n := 1
		for i+n < len(all) && all[i+n] == all[i]+uint64(n) {
			content = slices.Concat(content, m[all[i+n]])
			n++
		}
		f(all[i]*pageSize, content)
		i += n
	}
}

// at returns a file with content from an offset on.
func at(off uint64, content []byte) io.ReaderAt {
	return &shifted{bytes.NewReader(content), int64(off)}
}

type shifted struct {
	*bytes.Reader
	off int64
}

func (s *shifted) ReadAt(b []byte, off int64) (int, error) { return s.Reader.ReadAt(b, off-s.off) }

// save saves m into dir, like a runtime that shares blocks with the save in base.
func (m memory) save(t testing.TB, base, dir string) *pages.Map {
	t.Helper()
	var from *pages.Map
	if base != "" {
		from = checktest.Must(pages.ReadMap(filepath.Join(base, pages.MapName)))(t)
		for _, p := range from.Shared() {
			checktest.OK(t, os.Link(filepath.Join(base, p.Name), filepath.Join(dir, p.Name)))
		}
	}
	name := pages.NewPart()
	f := checktest.Must(os.Create(filepath.Join(dir, name)))(t)
	defer f.Close()
	w := pages.NewWriter(from, name, f)
	m.ranges(func(off uint64, content []byte) {
		src := at(off, content)
		for n := uint64(len(content)); n > 0; { // in pieces, which need not end where blocks do
			part := min(n, 5*pageSize)
			checktest.OK(t, w.Write(src, off, part, true))
			off, n = off+part, n-part
		}
	})
	saved := checktest.Must(w.Close())(t)
	checktest.OK(t, os.WriteFile(filepath.Join(dir, pages.MapName), saved.Encode(), 0o600))
	entries := checktest.Must(os.ReadDir(dir))(t)
	for _, e := range entries {
		if pages.IsPart(e.Name()) && !slices.ContainsFunc(saved.Parts, func(p pages.Part) bool { return p.Name == e.Name() }) {
			checktest.OK(t, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return saved
}

// check compares what was saved in dir with m.
func (m memory) check(t testing.TB, dir string) {
	t.Helper()
	r := checktest.Must(pages.Open(dir))(t)
	defer r.Close()
	got := checktest.Must(io.ReadAll(io.NewSectionReader(r, 0, r.Size())))(t)
	var want []byte
	m.ranges(func(_ uint64, content []byte) { want = append(want, content...) })
	if !bytes.Equal(got, want) {
		t.Fatalf("read %d bytes that are not the %d that were saved", len(got), len(want))
	}
}

func (m memory) change(random *rand.Rand, pages, among int) {
	for range pages {
		page := uint64(random.IntN(among))
		if random.IntN(8) == 0 {
			delete(m, page)
			continue
		}
		content := make([]byte, pageSize)
		binary.LittleEndian.PutUint64(content[random.IntN(500)*8:], random.Uint64())
		m[page] = content
	}
}

// TestWriter saves a memory file again and again, each time after a few changes. Every save
// that was kept has its own content, has few parts, and they have at most twice its bytes.
func TestWriter(t *testing.T) {
	t.Parallel()
	random := seedtest.Rand(t)
	m, dirs, was := memory{}, []string{""}, []memory{nil}
	m.change(random, 900, 600)
	for i := range seedtest.Rounds(t, 30) {
		dir := t.TempDir()
		saved := m.save(t, dirs[len(dirs)-1], dir)
		var bytes int64
		for _, p := range saved.Parts {
			bytes += p.Size
		}
		if len(saved.Parts) > pages.MaxParts || bytes > 2*saved.Size()+saved.Parts[0].Size {
			t.Errorf("save %d has %d parts of %d bytes, for %d bytes", i, len(saved.Parts), bytes, saved.Size())
		}
		copied := memory{}
		for page, content := range m {
			copied[page] = content
		}
		dirs, was = append(dirs, dir), append(was, copied)
		if gone := 1 + random.IntN(len(dirs)-1); gone < len(dirs)-1 && dirs[gone] != "" { // a deleted snapshot
			checktest.OK(t, os.RemoveAll(dirs[gone]))
			dirs[gone] = ""
		}
		copied.check(t, dir)
		m.change(random, random.IntN(60), 600)
	}
	for i, dir := range dirs {
		if dir != "" {
			was[i].check(t, dir)
		}
	}
}

// A save writes the blocks that have changed, and nothing if none has.
func TestWriter_Changed(t *testing.T) {
	t.Parallel()
	m, first, second, third := memory{}, t.TempDir(), t.TempDir(), t.TempDir()
	for page := range uint64(1000) {
		m[page] = bytes.Repeat([]byte{byte(page)}, pageSize)
	}
	if saved := m.save(t, "", first); saved.Parts[0].Size != 1000*pageSize {
		t.Errorf("the first save has %d bytes", saved.Parts[0].Size)
	}
	m[500] = bytes.Repeat([]byte("x"), pageSize)
	delete(m, 40) // the pages behind it are elsewhere in the file of all pages
	if saved := m.save(t, first, second); saved.Parts[0].Size != 2*pages.BlockSize-pageSize {
		t.Errorf("the second save adds %d bytes", saved.Parts[0].Size)
	}
	if saved := m.save(t, second, third); saved.Parts[0].Size != 0 {
		t.Errorf("a save without a change adds %d bytes", saved.Parts[0].Size)
	}
	checktest.OK(t, os.RemoveAll(first))
	m.check(t, third)
}

// Pages that must not be compared are not.
func TestWriter_NotCompared(t *testing.T) {
	t.Parallel()
	out := checktest.Must(os.Create(filepath.Join(t.TempDir(), "part")))(t)
	defer out.Close()
	content := bytes.Repeat([]byte("p"), 3*pages.BlockSize)
	w := pages.NewWriter(nil, pages.NewPart(), out)
	checktest.OK(t, w.Write(at(0, content), 0, uint64(len(content)), false))
	base := checktest.Must(w.Close())(t)
	checktest.OK(t, out.Truncate(0))
	w = pages.NewWriter(base, pages.NewPart(), out)
	checktest.OK(t, w.Write(at(0, content), 0, uint64(len(content)), true))
	saved := checktest.Must(w.Close())(t)
	if written := checktest.Must(os.ReadFile(out.Name()))(t); !bytes.Equal(written, content) || len(saved.Parts) != 1 {
		t.Errorf("wrote %d bytes in %d parts", len(written), len(saved.Parts))
	}
}

// full has room for one block.
type full struct{}

func (full) WriteAt(b []byte, off int64) (int, error) {
	if off+int64(len(b)) > pages.BlockSize {
		return 0, errors.New("full")
	}
	return len(b), nil
}

func TestWriter_Full(t *testing.T) {
	t.Parallel()
	w := pages.NewWriter(nil, pages.NewPart(), full{})
	checktest.OK(t, w.Write(at(0, make([]byte, 2*pages.BlockSize)), 0, 2*pages.BlockSize, true))
	if _, err := w.Close(); err == nil {
		t.Error("the last block was lost")
	}
}

// Pages that cannot be read are an error, not a hole.
func TestWriter_Unreadable(t *testing.T) {
	t.Parallel()
	w := pages.NewWriter(nil, pages.NewPart(), full{})
	checktest.OK(t, w.Write(at(0, make([]byte, pageSize)), 0, 2*pageSize, true))
	if _, err := w.Close(); !errors.Is(err, io.EOF) {
		t.Errorf("read beyond the end: %v", err)
	}
}

func TestOpen_Damaged(t *testing.T) {
	t.Parallel()
	if _, err := pages.Open(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a map: %v", err)
	}
	for name, damage := range map[string]func(dir, part string) error{
		"no part":       func(dir, part string) error { return os.Remove(filepath.Join(dir, part)) },
		"a part is cut": func(dir, part string) error { return os.Truncate(filepath.Join(dir, part), pageSize) },
		"no bytes":      func(dir, _ string) error { return os.Truncate(filepath.Join(dir, pages.MapName), 0) },
		"half a map":    func(dir, _ string) error { return os.Truncate(filepath.Join(dir, pages.MapName), 60) },
	} {
		t.Run(name, func(t *testing.T) {
			m, dir := memory{0: make([]byte, pageSize), 7: make([]byte, pageSize)}, t.TempDir()
			saved := m.save(t, "", dir)
			checktest.OK(t, damage(dir, saved.Parts[0].Name))
			if r, err := pages.Open(dir); err == nil {
				r.Close()
				t.Error("opened it")
			}
		})
	}
}

// FuzzParse reads maps that anybody may have written. Encode returns the bytes of each valid
// map again, and Find names no page outside of its part.
func FuzzParse(f *testing.F) {
	m := memory{0: make([]byte, pageSize), 7: make([]byte, pageSize), 40: make([]byte, pageSize)}
	first, second := f.TempDir(), f.TempDir()
	f.Add(m.save(f, "", first).Encode())
	m[40] = []byte(strings.Repeat("x", pageSize))
	f.Add(m.save(f, first, second).Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := pages.Parse(b)
		if err != nil {
			return
		}
		if again := m.Encode(); !bytes.Equal(again, b) {
			t.Fatalf("%q becomes %q", b, again)
		}
		for off := int64(0); off < m.Size(); {
			part, at, n := m.Find(off, 1<<20)
			if n <= 0 || at < 0 || at+n > m.Parts[part].Size {
				t.Fatalf("page %d is %d bytes at %d of %+v", off, n, at, m.Parts[part])
			}
			off += n
		}
		if part, at, n := m.Find(m.Size(), 1); n != 0 {
			t.Fatal(fmt.Sprint("beyond the end: ", part, at, n))
		}
	})
}

// Two saves have exactly the blocks in common that the second one took over.
func TestCommon(t *testing.T) {
	t.Parallel()
	m, first, second := memory{}, t.TempDir(), t.TempDir()
	for page := range uint64(100) {
		m[page] = bytes.Repeat([]byte{1 + byte(page)}, pageSize)
	}
	m.save(t, "", first)
	m[40] = bytes.Repeat([]byte("x"), pageSize)
	delete(m, 90)
	m.save(t, first, second)
	a, b := checktest.Must(pages.Open(first))(t), checktest.Must(pages.Open(second))(t)
	defer a.Close()
	defer b.Close()
	common := checktest.Must(pages.CommonOf(a, b))(t)
	for page := range int64(100) {
		part, at, n := common.Where(a, page*pageSize, pageSize)
		ok := n == pageSize
		changed := page/16 == 40/16 || page/16 == 90/16
		if ok == changed {
			t.Errorf("page %d is in common: %v", page, ok)
		}
		off := page * pageSize
		if page > 90 {
			off -= pageSize
		}
		if part2, at2, n2 := common.Where(b, off, pageSize); page != 90 && (part2 != part || at2 != at || n2 != n) {
			t.Errorf("page %d is at %s %d and at %s %d, %d bytes", page, part, at, part2, at2, n2)
		}
	}
	for _, off := range []int64{-1, a.Size()} {
		if _, _, n := common.Where(a, off, 1); n > 0 {
			t.Errorf("%d is in common", off)
		}
	}
	if _, _, n := common.Where(a, pages.BlockSize-1, 2); n != 1 {
		t.Errorf("%d bytes are in the first block", n)
	}
	if _, _, n := (*pages.Common)(nil).Where(a, 0, 1); n > 0 {
		t.Error("nothing has a block")
	}
}
