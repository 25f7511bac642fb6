package disk

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cayhq/cay"
)

// sample returns the disk of TestSame, with the layout of its own files given by order
// and at.
func sample(t *testing.T, change func(map[string]*member) map[string]*member, order []string, at uint64) *Disk {
	t.Helper()
	dir := func(name string) *member {
		return &member{Header: tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}}
	}
	old := time.Unix(1577934245, 0)
	members := map[string]*member{
		"root": dir("./"), "etc": dir("./etc/"),
		"f":     {tar.Header{Name: "./f", Mode: 0o644, Uid: 3, Gid: 4, ModTime: old, PAXRecords: map[string]string{paxXattr + "user.a": "b"}}, content(5, run{0, page, at * page})},
		"hard":  {Header: tar.Header{Typeflag: tar.TypeLink, Name: "./hard", Linkname: "./f"}},
		"sym":   {Header: tar.Header{Typeflag: tar.TypeSymlink, Name: "./sym", Linkname: "to\xff"}},
		"null":  {Header: tar.Header{Typeflag: tar.TypeChar, Name: "./null", Devmajor: 1, Devminor: 3}},
		"holes": {tar.Header{Name: "./holes"}, content(1<<19, run{0, page, at * page}, run{40960, 40960 + page, (at + 1) * page})},
		"gone":  {Header: tar.Header{Typeflag: tar.TypeChar, Name: "./gone"}},
		"too":   {Header: tar.Header{Typeflag: tar.TypeLink, Name: "./too", Linkname: "./gone"}},
		"boot":  {tar.Header{Name: "./etc/boot", ModTime: time.Unix(int64(at), 0)}, content(2, run{0, page, (at + 2) * page})},
	}
	if change != nil {
		members = change(members)
	}
	var all []member
	for _, name := range order {
		if m := members[name]; m != nil {
			all = append(all, *m)
		}
	}
	for name, m := range members {
		if !slices.Contains(order, name) {
			all = append(all, *m)
		}
	}
	var s saved
	boot := []byte{'0' + byte(at), 'b'}
	ranges := []memRange{{at, 1, []byte("hello")}, {at + 1, 1, []byte("far")}, {at + 2, 1, boot}, {at + 3, 1, []byte("HELLO")}}
	if at > 0 {
		ranges = append([]memRange{{0, 1, []byte("of no file")}}, ranges...)
	}
	s.add("/", ranges, archiveOf(t, all...))
	d, err := s.open(Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

var (
	sampleOrder  = []string{"root", "etc", "f", "hard", "sym", "null", "holes", "gone", "too", "boot"}
	sampleIgnore = Volatile{Times: []string{"etc/boot"}, Contents: map[string]func([]byte) []byte{"etc/boot": func(b []byte) []byte { return b[1:] }}}
)

func TestSame(t *testing.T) {
	t.Parallel()
	type members = map[string]*member
	// swapped has the same files in another order, with the other name of f first.
	swapped := func(m members) members {
		m["f"].Name, m["hard"].Name, m["hard"].Linkname = "./hard", "./f", "./hard"
		m["gone"].Name, m["too"].Name, m["too"].Linkname = "./too", "./gone", "./too"
		return m
	}
	type edit = func(members)
	for name, c := range map[string]struct {
		same bool
		edit edit
	}{
		"nothing": {true, func(members) {}},
		"a hole that is written as zeros": {true, func(m members) {
			m["holes"].content = content(1<<19, run{0, page, 5 * page}, run{page, 2 * page, 90 * page}, run{40960, 40960 + page, 6 * page})
		}},
		"time of a whiteout": {true, func(m members) { m["gone"].ModTime = time.Unix(9, 0) }},
		"content":            {false, func(m members) { m["f"].content = content(5, run{0, page, 8 * page}) }},
		"content elsewhere": {false, func(m members) {
			m["holes"].content = content(1<<19, run{0, page, 5 * page}, run{45056, 45056 + page, 6 * page})
		}},
		"content removed": {false, func(m members) { m["f"].content = content(5) }},
		"size":            {false, func(m members) { m["f"].content = content(6, run{0, page, 5 * page}) }},
		"size of a hole": {false, func(m members) {
			m["holes"].content = content(1<<20, run{0, page, 5 * page}, run{40960, 40960 + page, 6 * page})
		}},
		"mode":                           {false, func(m members) { m["f"].Mode = 0o4644 }},
		"mode of a directory":            {false, func(m members) { m["etc"].Mode = 0o700 }},
		"owner":                          {false, func(m members) { m["f"].Uid = 0 }},
		"group":                          {false, func(m members) { m["f"].Gid = 0 }},
		"time":                           {false, func(m members) { m["f"].ModTime = time.Unix(1577934246, 0) }},
		"attribute":                      {false, func(m members) { m["f"].PAXRecords = map[string]string{paxXattr + "user.a": "c"} }},
		"no attribute":                   {false, func(m members) { m["f"].PAXRecords = nil }},
		"link":                           {false, func(m members) { m["sym"].Linkname = "to\xfe" }},
		"device":                         {false, func(m members) { m["null"].Devminor = 4 }},
		"type":                           {false, func(m members) { m["null"].Typeflag = tar.TypeBlock }},
		"removed":                        {false, func(m members) { delete(m, "null") }},
		"removed link":                   {false, func(m members) { delete(m, "hard") }},
		"removed of the image":           {false, func(m members) { delete(m, "too") }},
		"new":                            {false, func(m members) { m["new"] = &member{tar.Header{Name: "./new"}, content(0)} }},
		"new of a name that was removed": {false, func(m members) { m["too"] = &member{tar.Header{Name: "./too"}, content(0)} }},
		"renamed":                        {false, func(m members) { m["null"].Name = "./null2" }},
		"copy for a link": {false, func(m members) {
			m["hard"] = &member{tar.Header{Name: m["hard"].Name, Mode: 0o644, Uid: 3, Gid: 4, ModTime: m["f"].ModTime, PAXRecords: m["f"].PAXRecords}, m["f"].content}
		}},
		"what counts of a file that changes": {false, func(m members) { m["boot"].content = content(2, run{0, page, 8 * page}) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := sample(t, nil, sampleOrder, 0)
			order := []string{"root", "etc", "sym", "null", "f", "hard", "boot", "holes", "gone", "too"}
			b := sample(t, func(m members) members { c.edit(swapped(m)); return m }, order, 5)
			for _, pair := range [][2]*Disk{{a, b}, {b, a}} {
				if same, err := Same(t.Context(), pair[0], pair[1], sampleIgnore); err != nil || same != c.same {
					t.Errorf("same: %v, %v; want %v", same, err, c.same)
				}
			}
		})
	}
}

func TestSame_otherMounts(t *testing.T) {
	t.Parallel()
	var s saved
	s.add("/data", []memRange{{0, 1, []byte("x")}}, archiveOf(t, member{Header: tar.Header{Typeflag: tar.TypeDir, Name: "./"}}))
	d, err := s.open(Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if same, err := Same(t.Context(), sample(t, nil, sampleOrder, 0), d, Volatile{}); same || err != nil {
		t.Errorf("same: %v, %v", same, err)
	}
}

// A damaged disk equals no disk, not even itself.
func TestSame_damaged(t *testing.T) {
	t.Parallel()
	d := sample(t, func(m map[string]*member) map[string]*member {
		m["stray"] = &member{Header: tar.Header{Typeflag: tar.TypeLink, Name: "./stray", Linkname: "./nothing"}}
		return m
	}, sampleOrder, 0)
	if same, err := Same(t.Context(), d, d, sampleIgnore); same || cay.CodeOf(err) != cay.Invalid {
		t.Errorf("same: %v, %v", same, err)
	}
	d = sample(t, nil, sampleOrder, 0)
	d.pages = bytes.NewReader(nil)
	if same, err := Same(t.Context(), d, d, sampleIgnore); same || err == nil {
		t.Errorf("without its pages, same: %v, %v", same, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d = sample(t, nil, sampleOrder, 0)
	if same, err := Same(ctx, d, d, sampleIgnore); same || !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v, %v", same, err)
	}
}

// Only 2 disks with many files are compared at a time, and disks with very many files
// never.
func TestSame_many(t *testing.T) {
	c := &comparison{}
	admits := func(n int, want bool) {
		t.Helper()
		if got := c.admits(n); got != want {
			t.Errorf("%d files are admitted: %v, want %v", n, got, want)
		}
	}
	members := []member{{Header: tar.Header{Typeflag: tar.TypeDir, Name: "./"}}}
	for i := range fewCompared {
		members = append(members, member{Header: tar.Header{Typeflag: tar.TypeFifo, Name: fmt.Sprint("./", i)}})
	}
	var s saved
	s.add("/", []memRange{{0, 1, []byte("x")}}, archiveOf(t, members...))
	d, err := s.open(Limits{})
	if err != nil {
		t.Fatal(err)
	}
	same := func(want bool) {
		t.Helper()
		if is, err := Same(t.Context(), d, d, Volatile{}); err != nil || is != want {
			t.Errorf("same: %v, %v; want %v", is, err, want)
		}
	}
	for range cap(large) {
		large <- struct{}{}
	}
	admits(fewCompared, true)
	admits(fewCompared+1, false)
	same(false)
	<-large
	admits(fewCompared+1, true)
	admits(maxCompared, true)
	admits(maxCompared+1, false)
	c.end()
	same(true)
	for range cap(large) - 1 {
		<-large
	}
	if len(large) != 0 {
		t.Errorf("%d places are still taken", len(large))
	}
}
