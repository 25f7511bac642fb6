package disk

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/seedtest"
)

// saved has the four files that the runtime saves, written as gVisor writes them.
type saved struct{ manifest, trees, meta, pages []byte }

func (s saved) open(l Limits) (*Disk, error) {
	d := &Disk{
		trees: bytes.NewReader(s.trees), meta: bytes.NewReader(s.meta), pages: bytes.NewReader(s.pages),
		size: map[string]int64{treesName: int64(len(s.trees)), metaName: int64(len(s.meta)), pagesName: int64(len(s.pages))},
	}
	return d, d.open(s.manifest, l)
}

func number(b []byte, num protowire.Number, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), n)
}

func message(b []byte, num protowire.Number, m []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), m)
}

const page = 4096

// memRange is a range of a memory file; it has pages if content is not nil.
type memRange struct {
	start   uint64
	pages   uint64
	content []byte
}

// add appends a file system.
func (s *saved) add(mount string, ranges []memRange, archive []byte) {
	id := message(message(nil, 1, []byte("root")), 2, []byte(mount))
	meta := number(nil, 1, 1)
	meta = message(meta, 2, number(nil, 1, 1)) // a chunk
	file := number(message(nil, 1, id), 2, uint64(len(s.meta)))
	pagesStart := uint64(len(s.pages))
	for _, r := range ranges {
		m := number(number(nil, 1, r.start*page), 2, (r.start+r.pages)*page)
		m = number(m, 3, 2)
		if r.content != nil {
			m = number(m, 5, 1)
			s.pages = append(s.pages, r.content...)
			s.pages = append(s.pages, make([]byte, r.pages*page-uint64(len(r.content)))...)
		}
		meta = message(meta, 3, m)
	}
	meta = message(meta, 8, number(number(nil, 1, 5), 2, 6))
	s.meta = append(binary.LittleEndian.AppendUint64(s.meta, uint64(len(meta))), meta...)
	file = number(file, 3, uint64(len(s.meta)))
	if pagesStart > 0 { // as protobuf does
		file = number(file, 4, pagesStart)
	}
	if s.manifest == nil {
		s.manifest = message(number(message(number(nil, 1, 1), 2, []byte("VERSION_MISSING")), 3, page), 4, []byte("little"))
	}
	s.manifest = message(s.manifest, 5, file)
	tree := message(nil, 1, id)
	if len(s.trees) > 0 {
		tree = number(tree, 2, uint64(len(s.trees)))
	}
	s.trees = append(s.trees, archive...)
	s.manifest = message(s.manifest, 6, number(tree, 3, uint64(len(s.trees))))
}

// content is a regular file's content in the archive.
func content(size uint64, runs ...run) string {
	b := binary.LittleEndian.AppendUint64(nil, size)
	for _, r := range runs {
		for _, n := range []uint64{r.start, r.end, r.value} {
			b = binary.LittleEndian.AppendUint64(b, n)
		}
	}
	return string(b)
}

type member struct {
	tar.Header
	content string
}

func archiveOf(t testing.TB, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		if m.Typeflag == 0 {
			m.Typeflag = tar.TypeReg
		}
		m.Size = int64(len(m.content))
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

// file describes a member of a layer in one line, beside its content.
func layer(t testing.TB, d *Disk, mount string) (lines []string, contents map[string]string) {
	t.Helper()
	var b bytes.Buffer
	if err := d.WriteLayer(t.Context(), mount, &b); err != nil {
		t.Fatal(err)
	}
	contents = map[string]string{}
	for tr := tar.NewReader(&b); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return lines, contents
		}
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf("%c %o %d:%d %s %s %d %d,%d", h.Typeflag, h.Mode, h.Uid, h.Gid, h.Name, h.Linkname, h.ModTime.Unix(), h.Devmajor, h.Devminor))
		for k, v := range h.PAXRecords {
			if strings.HasPrefix(k, paxXattr) {
				lines = append(lines, fmt.Sprintf("  %s=%q", strings.TrimPrefix(k, paxXattr), v))
			}
		}
		if h.Typeflag == tar.TypeReg {
			head, err := io.ReadAll(io.LimitReader(tr, 1<<20))
			if err != nil {
				t.Fatal(err)
			}
			contents[h.Name] = string(head)
			if h.Size > 1<<20 {
				contents[h.Name] = fmt.Sprintf("%d bytes", h.Size)
			}
		}
	}
}

func TestWriteLayer(t *testing.T) {
	t.Parallel()
	var s saved
	acl := []byte{2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255}
	xattr := func(kv ...string) map[string]string {
		m := map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			m[paxXattr+kv[i]] = kv[i+1]
		}
		return m
	}
	s.add("/", []memRange{{0, 1, []byte("hello")}, {1, 1, nil}, {2, 1, bytes.Repeat([]byte{'x'}, page)}, {3, 1, bytes.Repeat([]byte{'y'}, page)}, {9, 1, []byte("far")}}, archiveOf(t,
		member{Header: tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755}},
		member{Header: tar.Header{Typeflag: tar.TypeDir, Name: "./etc/", Mode: 0o1777, Uid: 5, PAXRecords: xattr("trusted.overlay.opaque", "y", "user.a", "b")}},
		member{tar.Header{Name: "./etc/f", Mode: 0o6751, Uid: 1234, Gid: 4321, PAXRecords: xattr("system.posix_acl_access", base64.RawStdEncoding.EncodeToString(acl))}, content(5, run{0, page, 0})},
		member{Header: tar.Header{Typeflag: tar.TypeLink, Name: "./etc/hard", Linkname: "./etc/f"}},
		member{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: "./etc/sym", Linkname: "a b/../ü", Mode: 0o777}},
		member{Header: tar.Header{Typeflag: tar.TypeChar, Name: "./etc/gone"}},
		member{Header: tar.Header{Typeflag: tar.TypeLink, Name: "./etc/too", Linkname: "./etc/gone"}},
		member{Header: tar.Header{Typeflag: tar.TypeChar, Name: "./null", Devmajor: 1, Devminor: 3}},
		member{Header: tar.Header{Typeflag: tar.TypeFifo, Name: "./fifo"}},
		member{tar.Header{Name: "./empty"}, content(0)},
		member{tar.Header{Name: "./nul"}, content(7, run{0, page, page})},
		member{tar.Header{Name: "./two"}, content(2*page+10, run{0, 2 * page, 2 * page}, run{2 * page, 3 * page, 0})},
		member{tar.Header{Name: "./swapped"}, content(2*page, run{0, page, 3 * page}, run{page, 2 * page, 2 * page})},
		member{tar.Header{Name: "./holes", Mode: 0o644, Uid: 3 << 20, Gid: 7, PAXRecords: xattr("user.k", "v\n=")}, content(1<<19, run{0, page, 0}, run{200 * 1024, 200*1024 + page, 9 * page})},
		member{tar.Header{Name: "./sparse"}, content(8<<40, run{4 << 40, 4<<40 + page, 9 * page})},
		member{tar.Header{Name: "./" + strings.Repeat("n", 250) + "\xff"}, content(1, run{0, page, 0})},
	))
	s.add("/data", []memRange{{0, 1, []byte("data")}}, archiveOf(t,
		member{Header: tar.Header{Typeflag: tar.TypeDir, Name: "./"}},
		member{tar.Header{Name: "./f"}, content(4, run{0, page, 0})}))
	d, err := s.open(Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if got := d.Mounts(); !slices.Equal(got, []string{"/", "/data"}) {
		t.Errorf("mounts are %q", got)
	}
	if err := d.Check(t.Context()); err != nil {
		t.Error(err)
	}
	lines, contents := layer(t, d, "/")
	want := `5 755 0:0 ./  0 0,0
5 1777 5:0 etc/  0 0,0
  user.a="b"
0 600 0:0 etc/.wh..wh..opq  0 0,0
0 6751 1234:4321 etc/f  0 0,0
  system.posix_acl_access="\x02\x00\x00\x00\x01\x00\x06\x00\xff\xff\xff\xff"
1 0 0:0 etc/hard etc/f 0 0,0
2 777 0:0 etc/sym a b/../ü 0 0,0
0 600 0:0 etc/.wh.gone  0 0,0
0 600 0:0 etc/.wh.too  0 0,0
3 0 0:0 null  0 1,3
6 0 0:0 fifo  0 0,0
0 0 0:0 empty  0 0,0
0 0 0:0 nul  0 0,0
0 0 0:0 two  0 0,0
0 0 0:0 swapped  0 0,0
0 644 3145728:7 holes  0 0,0
  user.k="v\n="
0 0 0:0 sparse  0 0,0
0 0 0:0 ` + strings.Repeat("n", 250) + "\xff  0 0,0"
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("the layer has\n%s\nwant\n%s", got, want)
	}
	x, y := strings.Repeat("x", page), strings.Repeat("y", page)
	holes := make([]byte, 1<<19)
	copy(holes, "hello")
	copy(holes[200*1024:], "far")
	for name, want := range map[string]string{
		"etc/f": "hello", "empty": "", "nul": strings.Repeat("\x00", 7), "two": x + y + "hello\x00\x00\x00\x00\x00", "swapped": y + x,
		"holes": string(holes), "sparse": fmt.Sprintf("%d bytes", int64(8)<<40), "etc/.wh.gone": "", strings.Repeat("n", 250) + "\xff": "h",
	} {
		if got := contents[name]; got != want {
			t.Errorf("%.20s has %.100q, want %.100q", name, got, want)
		}
	}
	if _, contents = layer(t, d, "/data"); contents["f"] != "data" {
		t.Errorf("the other file system has %q", contents)
	}
	if err := d.WriteLayer(t.Context(), "/none", io.Discard); cay.CodeOf(err) != cay.NotFound {
		t.Errorf("no such file system: %v", err)
	}
}

func TestDisk_hostile(t *testing.T) {
	t.Parallel()
	root := member{Header: tar.Header{Typeflag: tar.TypeDir, Name: "./"}}
	with := func(ranges []memRange, members ...member) func() saved {
		return func() (s saved) {
			s.add("/", ranges, archiveOf(t, append([]member{root}, members...)...))
			return s
		}
	}
	change := func(f func(*saved)) func() saved {
		return func() saved {
			s := with([]memRange{{0, 1, []byte("x")}}, member{tar.Header{Name: "./f"}, content(1, run{0, page, 0})})()
			f(&s)
			return s
		}
	}
	header := func(fields ...[]byte) func() saved {
		return change(func(s *saved) { s.manifest = slices.Concat(fields...) })
	}
	good := slices.Concat(number(nil, 1, 1), number(nil, 3, page), message(nil, 4, []byte("little")))
	id := message(nil, 1, message(nil, 2, []byte("/")))
	for name, tt := range map[string]struct {
		saved func() saved
		want  cay.Code
	}{
		"good":                  {change(func(*saved) {}), ""},
		"no manifest":           {header(), cay.NotSupported},
		"no protobuf":           {header([]byte("\xff\xff")), cay.Invalid},
		"version 2":             {change(func(s *saved) { s.manifest[1] = 2 }), cay.NotSupported},
		"big endian":            {header(number(nil, 1, 1), number(nil, 3, page), message(nil, 4, []byte("big"))), cay.NotSupported},
		"pages of 5000 bytes":   {header(number(nil, 1, 1), number(nil, 3, 5000), message(nil, 4, []byte("little"))), cay.Invalid},
		"no memory file":        {header(good, message(nil, 6, id)), cay.Invalid},
		"a tree beyond the end": {header(good, message(nil, 5, id), message(nil, 6, number(id, 3, 1<<40))), cay.Invalid},
		"a tree backwards":      {header(good, message(nil, 5, id), message(nil, 6, number(number(id, 2, 2), 3, 1))), cay.Invalid},
		"ranges beyond the end": {header(good, message(nil, 5, number(id, 3, 1<<40)), message(nil, 6, id)), cay.Invalid},
		"pages beyond the end":  {header(good, message(nil, 5, number(id, 4, 1<<40)), message(nil, 6, id)), cay.Invalid},
		"no ranges":             {change(func(s *saved) { s.meta = nil }), cay.Invalid},
		"ranges cut off":        {change(func(s *saved) { binary.LittleEndian.PutUint64(s.meta, 1000) }), cay.Invalid},
		"a huge length":         {change(func(s *saved) { binary.LittleEndian.PutUint64(s.meta, math.MaxUint64) }), cay.Invalid},
		"ranges of version 2":   {change(func(s *saved) { s.meta[9] = 2 }), cay.Invalid},
		"pages cut off":         {change(func(s *saved) { s.pages = s.pages[:page-1] }), cay.Invalid},
		"ranges out of order":   {with([]memRange{{5, 1, []byte{1}}, {2, 1, []byte{1}}}), cay.Invalid},
		"ranges that overlap":   {with([]memRange{{1, 3, []byte{1}}, {2, 1, []byte{1}}}), cay.Invalid},
		"an empty range":        {with([]memRange{{1, 0, []byte{}}}), cay.Invalid},
		"no tar":                {change(func(s *saved) { s.trees = bytes.Repeat([]byte{7}, len(s.trees)) }), cay.Invalid},
		"a path out of it":      {with(nil, member{tar.Header{Name: "./../f"}, content(0)}), cay.Invalid},
		"an absolute path":      {with(nil, member{tar.Header{Name: "/f"}, content(0)}), cay.Invalid},
		"a link out of it":      {with(nil, member{Header: tar.Header{Typeflag: tar.TypeLink, Name: "./f", Linkname: "../../etc/passwd"}}), cay.Invalid},
		"a root that is none":   {with(nil, member{tar.Header{Name: "./."}, content(0)}), cay.Invalid},
		"a content too short":   {with(nil, member{tar.Header{Name: "./f"}, "1234567"}), cay.Invalid},
		"half a run":            {with(nil, member{tar.Header{Name: "./f"}, content(9) + "12345678"}), cay.Invalid},
		"a negative size":       {with(nil, member{tar.Header{Name: "./f"}, content(1 << 63)}), cay.Invalid},
		"a run backwards":       {with(nil, member{tar.Header{Name: "./f"}, content(9, run{2, 1, 0})}), cay.Invalid},
		"runs that overlap":     {with(nil, member{tar.Header{Name: "./f"}, content(9, run{0, 5, 0}, run{4, 6, 0})}), cay.Invalid},
		"a run that overflows":  {with(nil, member{tar.Header{Name: "./f"}, content(9, run{0, 9, math.MaxUint64 - 3})}), cay.Invalid},
		"too many runs":         {with(nil, member{tar.Header{Name: "./f"}, content(99, run{0, 1, 0}, run{1, 2, 0}, run{2, 3, 0}, run{3, 4, 0}, run{4, 5, 0})}), cay.Invalid},
		"too many files": {with(nil, member{tar.Header{Name: "./a"}, content(0)}, member{tar.Header{Name: "./b"}, content(0)},
			member{tar.Header{Name: "./c"}, content(0)}, member{tar.Header{Name: "./d"}, content(0)}), cay.TooLarge},
		"too many ranges":        {with([]memRange{{0, 1, []byte{1}}, {2, 1, []byte{1}}, {4, 1, []byte{1}}, {6, 1, []byte{1}}, {8, 1, []byte{1}}}), cay.Invalid},
		"the name of a whiteout": {with(nil, member{tar.Header{Name: "./.wh.f"}, content(0)}), cay.NotSupported},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, err := tt.saved().open(Limits{Ranges: 4, Entries: 4})
			if err == nil {
				for _, mount := range d.Mounts() {
					if err = d.WriteLayer(t.Context(), mount, io.Discard); err != nil {
						break
					}
				}
			}
			if cay.CodeOf(err) != tt.want {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	var s saved
	s.add("/", nil, archiveOf(t, member{Header: tar.Header{Typeflag: tar.TypeDir, Name: "./"}}))
	files := map[string][]byte{manifestName: s.manifest, treesName: s.trees, metaName: s.meta, pagesName: s.pages}
	dir := t.TempDir()
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d, err := Open(dir, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := d.Check(ctx); err != nil {
		t.Error(err)
	}
	cancel()
	if err := d.Check(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Check after the caller left: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	for name := range files {
		if err := os.Rename(filepath.Join(dir, name), filepath.Join(dir, "away")); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, Limits{}); cay.CodeOf(err) != cay.Invalid {
			t.Errorf("without %s: %v, want invalid", name, err)
		}
		if err := os.Rename(filepath.Join(dir, "away"), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// The layer has the same contents for any runs of a file, with pages anywhere.
func TestWriteLayer_contents(t *testing.T) {
	t.Parallel()
	seedtest.Check(t, func(r *rapid.T) {
		// Files get pages from a memory file in turns, as far as they have any.
		var ranges []memRange
		want := map[string]string{}
		members := []member{{Header: tar.Header{Typeflag: tar.TypeDir, Name: "./"}}}
		next := uint64(0)
		for i := range rapid.IntRange(1, 4).Draw(r, "files") {
			pages := rapid.IntRange(0, 120).Draw(r, "pages")
			size := uint64(max(0, pages*page-rapid.IntRange(0, page-1).Draw(r, "less")))
			b := make([]byte, pages*page)
			var runs []run
			for p := 0; p < pages; {
				hole := rapid.SampledFrom([]int{0, 0, 1, 20}).Draw(r, "hole")
				n := min(rapid.IntRange(1, 8).Draw(r, "run"), pages-p-hole)
				if n <= 0 {
					break
				}
				p += hole
				next += uint64(rapid.IntRange(0, 2).Draw(r, "gap"))
				m := memRange{start: next, pages: uint64(n)}
				if rapid.IntRange(0, 3).Draw(r, "committed") > 0 {
					m.content = bytes.Repeat([]byte{byte('a' + len(ranges)%26)}, n*page)
					copy(b[p*page:], m.content)
				}
				ranges = append(ranges, m)
				runs = append(runs, run{uint64(p * page), uint64((p + n) * page), next * page})
				p, next = p+n, next+uint64(n)
			}
			name := fmt.Sprint("f", i)
			want[name] = string(b[:size])
			members = append(members, member{tar.Header{Name: "./" + name}, content(size, runs...)})
		}
		var s saved
		s.add("/", ranges, archiveOf(t, members...))
		d, err := s.open(Limits{})
		if err != nil {
			r.Fatal(err)
		}
		if _, got := layer(t, d, "/"); !maps.Equal(got, want) {
			for name := range want {
				if got[name] != want[name] {
					r.Errorf("%s differs: %d bytes, want %d", name, len(got[name]), len(want[name]))
				}
			}
		}
	})
}

// Many small holes are filled with zeros, so that the number of chunks is bounded.
func TestChunks_bounded(t *testing.T) {
	t.Parallel()
	var pieces []piece
	for i := range uint64(maxChunks + 10) {
		pieces = append(pieces, piece{off: i * 2 * minHole, at: i * page, size: page})
	}
	all := chunks(pieces)
	if len(all) > maxChunks {
		t.Errorf("%d chunks", len(all))
	}
	n := 0
	for _, c := range all {
		n += len(c.pieces)
	}
	if n != len(pieces) {
		t.Errorf("%d of %d pieces are in chunks", n, len(pieces))
	}
}

// For any bytes, there is a readable layer, or an error with a code.
func FuzzDisk(f *testing.F) {
	var s saved
	s.add("/", []memRange{{0, 1, []byte("hello")}, {1, 1, nil}, {7, 2, []byte("far")}}, archiveOf(f,
		member{Header: tar.Header{Typeflag: tar.TypeDir, Name: "./", PAXRecords: map[string]string{paxOpaque: "y"}}},
		member{tar.Header{Name: "./f", PAXRecords: map[string]string{paxACL + "access": "AgAA"}}, content(5, run{0, page, 0})},
		member{tar.Header{Name: "./sparse"}, content(1<<20, run{1 << 19, 1<<19 + page, 7 * page})},
		member{Header: tar.Header{Typeflag: tar.TypeLink, Name: "./hard", Linkname: "./f"}}))
	f.Add(s.manifest, s.trees, s.meta, s.pages)
	f.Add([]byte{}, []byte{}, []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, manifest, trees, meta, pages []byte) {
		d, err := saved{manifest, trees, meta, pages}.open(Limits{Ranges: 100, Entries: 100})
		if err != nil {
			if cay.CodeOf(err) == cay.Internal {
				t.Errorf("%v has no code", err)
			}
			return
		}
		for _, mount := range d.Mounts() {
			w := &bounded{left: 4 << 20}
			err := d.WriteLayer(t.Context(), mount, w)
			if errors.Is(err, errBounded) {
				continue
			}
			if err != nil {
				if cay.CodeOf(err) == cay.Internal {
					t.Errorf("%v has no code", err)
				}
				continue
			}
			for tr := tar.NewReader(&w.Buffer); ; {
				_, err := tr.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
					t.Fatalf("the layer cannot be read: %v", err)
				}
			}
		}
	})
}

var errBounded = errors.New("enough")

// bounded accepts only a bounded number of bytes.
type bounded struct {
	bytes.Buffer
	left int
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, errBounded
	}
	return b.Buffer.Write(p)
}
