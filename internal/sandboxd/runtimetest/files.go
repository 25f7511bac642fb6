package runtimetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/sandbox"
)

func testFiles(t *testing.T, c *guest.Client) {
	for name, test := range map[string]func(*testing.T, *guest.Client){
		"ReadWrite":        testReadWrite,
		"ReadRefusals":     testReadRefusals,
		"WriteModes":       testWriteModes,
		"WriteRefusals":    testWriteRefusals,
		"WriteThroughLink": testWriteThroughLink,
		"InterruptedWrite": testInterruptedWrite,
		"RunWhatIsWritten": testRunWhatIsWritten,
		"Sparse":           testSparse,
		"Paths":            testPaths,
		"Stat":             testStat,
		"StrangeNames":     testStrangeNames,
		"ReadDir":          testReadDir,
		"Glob":             testGlob,
		"Mkdir":            testMkdir,
		"Rename":           testRename,
		"Copy":             testCopy,
		"Remove":           testRemove,
		"LinkAndMode":      testLinkAndMode,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, c)
		})
	}
}

func testReadWrite(t *testing.T, c *guest.Client) {
	ctx := testContext(t)
	p := dir(t, c) + "/file"
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	for _, content := range [][]byte{nil, []byte("x"), big, []byte("shorter")} {
		for _, size := range []int64{0, int64(len(content))} {
			if size == 0 && len(content) == 0 {
				size = -1
			}
			info, err := c.WriteFile(ctx, p, bytes.NewReader(content), sandbox.WriteParams{Size: size})
			checktest.OK(t, err)
			equal(t, "size", info.Size, int64(len(content)))
			equal(t, "path", info.Path, p)
			if read(t, c, p) != string(content) {
				t.Fatal("content differs")
			}
		}
	}
	write(t, c, p, "0123456789")
	for _, tt := range []struct {
		p    sandbox.ReadParams
		want string
	}{
		{sandbox.ReadParams{Offset: 3}, "3456789"},
		{sandbox.ReadParams{Offset: 3, Length: 2}, "34"},
		{sandbox.ReadParams{Length: 2}, "01"},
		{sandbox.ReadParams{Length: 1 << 62}, "0123456789"},
		{sandbox.ReadParams{Offset: 10}, ""},
		{sandbox.ReadParams{Offset: 1 << 60}, ""},
	} {
		r, info, err := c.ReadFile(ctx, p, tt.p)
		checktest.OK(t, err)
		data, err := io.ReadAll(r)
		checktest.OK(t, err)
		checktest.OK(t, r.Close())
		equal(t, fmt.Sprint(tt.p), string(data), tt.want)
		equal(t, "size of the whole", info.Size, 10)
		equal(t, "name", info.Name, "file")
	}
	if names := names(t, c, p[:len(p)-len("/file")]); !slices.Equal(names, []string{"file"}) {
		t.Errorf("left behind: %q", names)
	}
	if !realRoot(t, c) {
		return
	}
	// A file whose size is reported as 0 may still have content.
	if v := read(t, c, "/proc/version"); !strings.HasPrefix(v, "Linux") {
		t.Errorf("/proc/version reads %q", v)
	}
}

func testReadRefusals(t *testing.T, c *guest.Client) {
	d := dir(t, c)
	sh(t, c, d, "mkfifo fifo; ln -s nowhere dangling; ln -s loop loop")
	for path, code := range map[string]cay.Code{
		d: cay.Invalid, d + "/fifo": cay.Invalid, d + "/none": cay.FileNotFound,
		d + "/dangling": cay.FileNotFound, d + "/loop": cay.Invalid, "": cay.Invalid,
	} {
		_, _, err := c.ReadFile(testContext(t), path, sandbox.ReadParams{})
		checktest.Code(t, err, code)
	}
	write(t, c, d+"/file", "x")
	_, _, err := c.ReadFile(testContext(t), d+"/file", sandbox.ReadParams{Offset: -1})
	checktest.Code(t, err, cay.Invalid)
	_, _, err = c.ReadFile(testContext(t), d+"/file/below", sandbox.ReadParams{})
	checktest.Code(t, err, cay.Invalid)
}

func testWriteModes(t *testing.T, c *guest.Client) {
	ctx := testContext(t)
	d := dir(t, c)
	put := func(p sandbox.WriteParams) fs.FileMode {
		info, err := c.WriteFile(ctx, d+"/file", strings.NewReader("x"), p)
		checktest.OK(t, err)
		equal(t, "mode as stat", modeOf(t, c, d+"/file"), info.Mode)
		return info.Mode
	}
	equal(t, "default", put(sandbox.WriteParams{}), 0o644)
	equal(t, "asked for", put(sandbox.WriteParams{Mode: 0o4751}), 0o4751)
	equal(t, "kept", put(sandbox.WriteParams{}), 0o4751)
	_, err := c.WriteFile(ctx, d+"/file", strings.NewReader("x"), sandbox.WriteParams{Mode: 0o10000})
	checktest.Code(t, err, cay.Invalid)
	_, err = c.WriteFile(ctx, d+"/a/b/c", strings.NewReader("x"), sandbox.WriteParams{})
	checktest.Code(t, err, cay.FileNotFound)
	_, err = c.WriteFile(ctx, d+"/a/b/c", strings.NewReader("x"), sandbox.WriteParams{Parents: true})
	checktest.OK(t, err)
	equal(t, "mode of parents", modeOf(t, c, d+"/a/b"), 0o755)
	if canSwitchUsers(t, c) {
		info, err := c.WriteFile(ctx, d+"/p/owned", strings.NewReader("x"), sandbox.WriteParams{User: "12345:54321", Parents: true})
		checktest.OK(t, err)
		equal(t, "uid", info.UID, 12345)
		equal(t, "gid", info.GID, 54321)
		info, err = c.WriteFile(ctx, d+"/p/owned", strings.NewReader("x"), sandbox.WriteParams{})
		checktest.OK(t, err)
		equal(t, "kept uid", info.UID, 12345)
		up, err := c.Stat(ctx, d+"/p", false)
		checktest.OK(t, err)
		equal(t, "parent's uid", up.UID, 12345)
	}
}

func testWriteRefusals(t *testing.T, c *guest.Client) {
	d := dir(t, c)
	sh(t, c, d, "mkfifo fifo; mkdir sub; ln -s sub tosub")
	write(t, c, d+"/file", "x")
	for _, path := range []string{d, d + "/sub", d + "/tosub", d + "/fifo", d + "/new/", "/", d + "/file/below", ""} {
		_, err := c.WriteFile(testContext(t), path, strings.NewReader("x"), sandbox.WriteParams{})
		checktest.Code(t, err, cay.Invalid)
	}
	for _, p := range []sandbox.WriteParams{{Size: 3}, {Size: 5}, {Size: -1}} {
		_, err := c.WriteFile(testContext(t), d+"/sized", strings.NewReader("four"), p)
		checktest.Code(t, err, cay.Invalid)
	}
	if got := names(t, c, d); !slices.Equal(got, []string{"fifo", "file", "sub", "tosub"}) {
		t.Errorf("left behind: %q", got)
	}
}

func testWriteThroughLink(t *testing.T, c *guest.Client) {
	d := dir(t, c)
	sh(t, c, d, "mkdir sub; echo old > sub/file; ln -s sub/file a; ln -s a b; ln -s sub/new dangling")
	write(t, c, d+"/b", "new")
	equal(t, "target", read(t, c, d+"/sub/file"), "new")
	write(t, c, d+"/dangling", "made")
	equal(t, "made target", read(t, c, d+"/sub/new"), "made")
	for _, link := range []string{"a", "b", "dangling"} {
		info, err := c.Stat(testContext(t), d+"/"+link, false)
		checktest.OK(t, err)
		equal(t, link, info.Type, sandbox.TypeSymlink)
	}
}

// An interrupted upload leaves the old file, and nothing else.
func testInterruptedWrite(t *testing.T, c *guest.Client) {
	d := dir(t, c)
	write(t, c, d+"/file", "old")
	broken := errors.New("the source broke")
	_, err := c.WriteFile(testContext(t), d+"/file",
		io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<20)), failingReader{broken}), sandbox.WriteParams{})
	if !errors.Is(err, broken) {
		t.Fatalf("got %v, want the source's error", err)
	}
	ctx, cancel := context.WithCancel(testContext(t))
	r, w := io.Pipe()
	result := make(chan error, 1)
	go func() {
		_, err := c.WriteFile(ctx, d+"/file", r, sandbox.WriteParams{})
		r.CloseWithError(err)
		result <- err
	}()
	_, err = w.Write(bytes.Repeat([]byte("x"), 1<<20))
	checktest.OK(t, err)
	cancel()
	checktest.Code(t, <-result, cay.Canceled)
	w.Close()
	// The agent notices when the connection is closed.
	watch, err := c.Watch(testContext(t), d, sandbox.WatchParams{})
	checktest.OK(t, err)
	checktest.OK(t, watch.Close())
	sh(t, c, d, "while ls -A | grep cay-; do sleep 0.2; done")
	equal(t, "content", read(t, c, d+"/file"), "old")
}

// A program can be run as soon as it is written, even if other programs are being started
// meanwhile.
func testRunWhatIsWritten(t *testing.T, c *guest.Client) {
	d := dir(t, c)
	ctx := testContext(t)
	busy, stop := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for busy.Err() == nil {
			if cmd, err := c.Start(ctx, sandbox.CommandParams{Argv: []string{"true"}}); err == nil {
				_, _ = c.Wait(ctx, cmd.ID)
			}
		}
	}()
	for i := range 20 {
		p := fmt.Sprintf("%s/prog%d", d, i)
		_, err := c.WriteFile(ctx, p, strings.NewReader("#!/bin/sh\nexit 7\n"), sandbox.WriteParams{Mode: 0o755})
		checktest.OK(t, err)
		equal(t, "code", run(t, c, sandbox.CommandParams{Argv: []string{"./" + p[len(d)+1:]}, WorkDir: d}).exit.Code, 7)
	}
	stop()
	<-stopped
}

func testSparse(t *testing.T, c *guest.Client) {
	d := dir(t, c)
	r := run(t, c, sandbox.CommandParams{Argv: []string{"truncate", "-s", "1T", "huge"}, WorkDir: d})
	if r.exit.Code != 0 {
		t.Skipf("no sparse files here: %s", r.stderr)
	}
	body, info, err := c.ReadFile(testContext(t), d+"/huge", sandbox.ReadParams{Offset: 1<<40 - 5})
	checktest.OK(t, err)
	defer body.Close()
	equal(t, "size", info.Size, 1<<40)
	data, err := io.ReadAll(body)
	checktest.OK(t, err)
	equal(t, "tail", string(data), "\x00\x00\x00\x00\x00")
	whole, _, err := c.ReadFile(testContext(t), d+"/huge", sandbox.ReadParams{})
	checktest.OK(t, err)
	_, err = io.CopyN(io.Discard, whole, 1<<20)
	checktest.OK(t, err)
	checktest.OK(t, whole.Close())
}

func testPaths(t *testing.T, c *guest.Client) {
	ctx := testContext(t)
	d := dir(t, c)
	write(t, c, d+"/file", "x")
	for _, p := range []string{d + "/./file", d + "//file", d + "/none/../file", "/../../../.." + d + "/file"} {
		info, err := c.Stat(ctx, p, false)
		if strings.Contains(p, "none") && cay.CodeOf(err) == cay.FileNotFound {
			continue // as on a real kernel
		}
		checktest.OK(t, err)
		equal(t, p, info.Path, d+"/file")
	}
	for name, p := range map[string]string{"NUL": "a\x00b", "too long": "/" + strings.Repeat("a/", 2048), "empty": "",
		"long name": d + "/" + strings.Repeat("n", 256)} {
		t.Run(name, func(t *testing.T) {
			_, err := c.Stat(ctx, p, false)
			checktest.Code(t, err, cay.Invalid)
			_, err = c.ReadDir(ctx, p, sandbox.ReadDirParams{})
			checktest.Code(t, err, cay.Invalid)
			_, _, err = c.ReadFile(ctx, p, sandbox.ReadParams{})
			checktest.Code(t, err, cay.Invalid)
			_, err = c.WriteFile(ctx, p, strings.NewReader(""), sandbox.WriteParams{})
			checktest.Code(t, err, cay.Invalid)
			checktest.Code(t, c.Mkdir(ctx, p, sandbox.MkdirParams{}), cay.Invalid)
			checktest.Code(t, c.Rename(ctx, p, d+"/x"), cay.Invalid)
			checktest.Code(t, c.Rename(ctx, d+"/file", p), cay.Invalid)
			checktest.Code(t, c.Copy(ctx, p, d+"/x"), cay.Invalid)
			checktest.Code(t, c.Copy(ctx, d+"/file", p), cay.Invalid)
			checktest.Code(t, c.Remove(ctx, p, true), cay.Invalid)
			checktest.Code(t, c.Symlink(ctx, "x", p), cay.Invalid)
			checktest.Code(t, c.Chmod(ctx, p, 0o644), cay.Invalid)
			checktest.Code(t, c.Extract(ctx, p, strings.NewReader(""), sandbox.ExtractParams{}), cay.Invalid)
			_, err = c.Archive(ctx, p, sandbox.Tar)
			checktest.Code(t, err, cay.Invalid)
			_, err = c.Watch(ctx, p, sandbox.WatchParams{})
			checktest.Code(t, err, cay.Invalid)
		})
	}
	// Percent signs and similar characters are part of a name.
	for _, name := range []string{"%2e%2e", "a b", "a+b", "a&b=c", "a?b#c", "ünïcode", "\xc0\xae\xc0\xae"} {
		write(t, c, d+"/"+name, name)
		equal(t, "content", read(t, c, d+"/"+name), name)
	}
}

func testStat(t *testing.T, c *guest.Client) {
	ctx := testContext(t)
	d := dir(t, c)
	sh(t, c, d, "echo hello > file; ln -s file link; ln -s nowhere dangling; mkfifo fifo; mkdir sub")
	for name, want := range map[string]sandbox.FileType{"file": sandbox.TypeFile, "link": sandbox.TypeSymlink,
		"dangling": sandbox.TypeSymlink, "fifo": sandbox.TypeOther, "sub": sandbox.TypeDir} {
		info, err := c.Stat(ctx, d+"/"+name, false)
		checktest.OK(t, err)
		equal(t, name, info.Type, want)
		equal(t, "name", info.Name, name)
		equal(t, "path", info.Path, d+"/"+name)
		if info.ModTime.IsZero() {
			t.Error("no time")
		}
	}
	info, err := c.Stat(ctx, d+"/link", true)
	checktest.OK(t, err)
	equal(t, "followed", info.Type, sandbox.TypeFile)
	equal(t, "size", info.Size, 6)
	info, err = c.Stat(ctx, d+"/dangling", false)
	checktest.OK(t, err)
	equal(t, "target", info.Target, "nowhere")
	_, err = c.Stat(ctx, d+"/dangling", true)
	checktest.Code(t, err, cay.FileNotFound)
	root, err := c.Stat(ctx, "/", false)
	checktest.OK(t, err)
	equal(t, "root", root.Path, "/")
}

func testStrangeNames(t *testing.T, c *guest.Client) {
	d := dir(t, c)
	strange := []string{"new\nline", "\x1b[31mred", "\xff\xfe not utf-8", "\u202egnp.exe", "<script>", "-rf", strings.Repeat("n", 255)}
	for _, name := range strange {
		write(t, c, d+"/"+name, name)
	}
	page, err := c.ReadDir(testContext(t), d, sandbox.ReadDirParams{})
	checktest.OK(t, err)
	var got []string
	for _, e := range page.Items {
		got = append(got, e.Name)
		equal(t, "path", e.Path, d+"/"+e.Name)
		equal(t, "content", read(t, c, e.Path), e.Name)
		if (e.NameBase64 != nil) != strings.Contains(e.Name, "utf-8") {
			t.Errorf("%q: base64 %q", e.Name, e.NameBase64)
		}
	}
	slices.Sort(strange)
	if !slices.Equal(got, strange) {
		t.Errorf("got %q, want %q", got, strange)
	}
	found, err := c.Glob(testContext(t), d+"/*utf-8")
	checktest.OK(t, err)
	if !slices.Equal(found, []string{d + "/\xff\xfe not utf-8"}) {
		t.Errorf("glob found %q", found)
	}
	checktest.OK(t, c.Remove(testContext(t), d, true))
}

func testReadDir(t *testing.T, c *guest.Client) {
	ctx := testContext(t)
	d := dir(t, c)
	sh(t, c, d, "i=0; while [ $i -lt 250 ]; do : > f$i; i=$((i+1)); done; ln -s f1 zlink")
	var got []string
	p := sandbox.ReadDirParams{Limit: 100}
	pages := 0
	for {
		page, err := c.ReadDir(ctx, d, p)
		checktest.OK(t, err)
		pages++
		for _, e := range page.Items {
			got = append(got, e.Name)
			if e.Name == "zlink" && (e.Type != sandbox.TypeSymlink || e.Target != "f1") {
				t.Errorf("link listed as %+v", e)
			}
		}
		if page.Next == "" {
			break
		}
		p.Cursor = page.Next
		// A file created before the cursor meanwhile does not affect the later pages.
		write(t, c, d+"/a", "")
	}
	equal(t, "pages", pages, 3)
	equal(t, "entries", len(got), 251)
	if !slices.IsSorted(got) || len(slices.Compact(got)) != 251 {
		t.Error("not sorted, or names twice")
	}
	for _, p := range []sandbox.ReadDirParams{{Limit: -1}, {Limit: 10001}, {Cursor: "!"}} {
		_, err := c.ReadDir(ctx, d, p)
		checktest.Code(t, err, cay.Invalid)
	}
	_, err := c.ReadDir(ctx, d+"/f1", sandbox.ReadDirParams{})
	checktest.Code(t, err, cay.Invalid)
	_, err = c.ReadDir(ctx, d+"/none", sandbox.ReadDirParams{})
	checktest.Code(t, err, cay.FileNotFound)
	checktest.OK(t, c.Mkdir(ctx, d+"/empty", sandbox.MkdirParams{}))
	equal(t, "entries of an empty one", len(names(t, c, d+"/empty")), 0)
}

func testGlob(t *testing.T, c *guest.Client) {
	ctx := testContext(t)
	d := dir(t, c)
	sh(t, c, d, "mkdir -p src/a/b .hidden; touch src/x.go src/y.go src/a/z.go src/a/b/w.go src/a/b/w.txt .hidden/h.go 'we[i]rd'; ln -s src/a link; ln -s .. src/up")
	for pattern, want := range map[string][]string{
		"src/*.go":       {"src/x.go", "src/y.go"},
		"src/?.go":       {"src/x.go", "src/y.go"},
		"src/[xz].go":    {"src/x.go"},
		"src/[!x].go":    {"src/y.go"},
		"src/{x,y}.go":   {"src/x.go", "src/y.go"},
		"src/{x,q}.*":    {"src/x.go"},
		"**/*.go":        {".hidden/h.go", "src/a/b/w.go", "src/a/z.go", "src/x.go", "src/y.go"},
		"src/**/*.go":    {"src/a/b/w.go", "src/a/z.go", "src/x.go", "src/y.go"},
		"src/**/b/*":     {"src/a/b/w.go", "src/a/b/w.txt"},
		"**/b":           {"src/a/b"},
		"src/a/**":       {"src/a/b", "src/a/b/w.go", "src/a/b/w.txt", "src/a/z.go"},
		"src/a/**/**/b":  {"src/a/b"},
		"link/*.go":      {"link/z.go"},
		"none*":          nil,
		"src/x.go":       {"src/x.go"},
		"src/none.go":    nil,
		`we\[i\]rd`:      {"we[i]rd"},
		"src/x.go/*":     nil,
		"*":              {".hidden", "link", "src", "we[i]rd"},
		"src/a/../x.go":  {"src/x.go"},
		"{src,.hidden}/": {".hidden", "src"},
	} {
		got, err := c.Glob(ctx, d+"/"+pattern)
		checktest.OK(t, err)
		for i := range want {
			want[i] = d + "/" + want[i]
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", pattern, got, want)
		}
	}
	for _, bad := range []string{"[", "{a", "a{b/c}", strings.Repeat("{a,b}", 20), "\x00", ""} {
		_, err := c.Glob(ctx, bad)
		checktest.Code(t, err, cay.Invalid)
	}
	sh(t, c, d, "mkdir many; cd many; i=0; while [ $i -lt 10001 ]; do echo $i; i=$((i+1)); done | xargs touch")
	_, err := c.Glob(ctx, d+"/many/*")
	checktest.Code(t, err, cay.TooLarge)
}

func testMkdir(t *testing.T, c *guest.Client) {
	ctx := testContext(t)
	d := dir(t, c)
	checktest.OK(t, c.Mkdir(ctx, d+"/a", sandbox.MkdirParams{}))
	equal(t, "mode", modeOf(t, c, d+"/a"), 0o755)
	checktest.OK(t, c.Mkdir(ctx, d+"/b", sandbox.MkdirParams{Mode: 0o1777}))
	equal(t, "mode", modeOf(t, c, d+"/b"), 0o1777)
	checktest.Code(t, c.Mkdir(ctx, d+"/a", sandbox.MkdirParams{}), cay.AlreadyExists)
	checktest.OK(t, c.Mkdir(ctx, d+"/a", sandbox.MkdirParams{Parents: true}))
	checktest.Code(t, c.Mkdir(ctx, d+"/x/y", sandbox.MkdirParams{}), cay.FileNotFound)
	checktest.OK(t, c.Mkdir(ctx, d+"/x/y/", sandbox.MkdirParams{Parents: true, Mode: 0o700}))
	equal(t, "mode", modeOf(t, c, d+"/x/y"), 0o700)
	equal(t, "mode of the parent", modeOf(t, c, d+"/x"), 0o755)
	write(t, c, d+"/file", "")
	checktest.Code(t, c.Mkdir(ctx, d+"/file", sandbox.MkdirParams{Parents: true}), cay.AlreadyExists)
	checktest.Code(t, c.Mkdir(ctx, d+"/file/x", sandbox.MkdirParams{Parents: true}), cay.Invalid)
	checktest.Code(t, c.Mkdir(ctx, d+"/c", sandbox.MkdirParams{Mode: 0o10000}), cay.Invalid)
}

func testRename(t *testing.T, c *guest.Client) {
	ctx := testContext(t)
	d := dir(t, c)
	write(t, c, d+"/a", "a")
	write(t, c, d+"/b", "b")
	checktest.OK(t, c.Rename(ctx, d+"/a", d+"/b"))
	equal(t, "replaced", read(t, c, d+"/b"), "a")
	checktest.OK(t, c.Mkdir(ctx, d+"/sub", sandbox.MkdirParams{}))
	checktest.OK(t, c.Rename(ctx, d+"/b", d+"/sub/b"))
	checktest.OK(t, c.Rename(ctx, d+"/sub", d+"/moved"))
	equal(t, "moved", read(t, c, d+"/moved/b"), "a")
	checktest.Code(t, c.Rename(ctx, d+"/none", d+"/x"), cay.FileNotFound)
	checktest.Code(t, c.Rename(ctx, d+"/moved", d+"/moved/x"), cay.Invalid)
	write(t, c, d+"/file", "")
	checktest.Code(t, c.Rename(ctx, d+"/file", d+"/moved"), cay.Invalid)
	checktest.Code(t, c.Rename(ctx, d+"/file", d+"/none/x"), cay.FileNotFound)
}

func testCopy(t *testing.T, c *guest.Client) {
	ctx := testContext(t)
	d := dir(t, c)
	sh(t, c, d, `mkdir -p tree/sub; echo one > tree/one; chmod 4711 tree/one; ln tree/one tree/sub/hard
		ln -s ../one tree/sub/link; ln -s /nowhere tree/dangling; chmod 700 tree/sub; touch -d @86400 tree/one tree/sub
		head -c 3000000 /dev/zero > tree/big; truncate -s 10M tree/holes; echo end >> tree/holes`)
	checktest.OK(t, c.Copy(ctx, d+"/tree", d+"/copy"))
	list := `find . | sort; cat one sub/hard; readlink sub/link dangling; stat -c '%n %a %h %Y %s' one sub/hard sub/link big holes; stat -c '%n %a %Y' sub; cksum big holes`
	equal(t, "copy", sh(t, c, d+"/copy", list), sh(t, c, d+"/tree", list))
	blocks := strings.TrimSpace(sh(t, c, d, "stat -c %b copy/holes"))
	t.Logf("copy of a 10 MiB hole takes %s blocks", blocks)

	checktest.OK(t, c.Copy(ctx, d+"/tree/one", d+"/file"))
	equal(t, "file", read(t, c, d+"/file"), "one\n")
	equal(t, "mode", modeOf(t, c, d+"/file"), 0o4711)
	checktest.OK(t, c.Copy(ctx, d+"/tree/big", d+"/file"))
	checktest.Code(t, c.Copy(ctx, d+"/tree", d+"/copy"), cay.AlreadyExists)
	checktest.Code(t, c.Copy(ctx, d+"/file", d+"/copy"), cay.AlreadyExists)
	checktest.Code(t, c.Copy(ctx, d+"/tree", d+"/file"), cay.AlreadyExists)
	checktest.Code(t, c.Copy(ctx, d+"/tree", d+"/tree/sub/x"), cay.Invalid)
	checktest.Code(t, c.Copy(ctx, d+"/file", d+"/file"), cay.Invalid)
	checktest.Code(t, c.Copy(ctx, d+"/none", d+"/x"), cay.FileNotFound)
	sh(t, c, d, "mkfifo tree/fifo")
	checktest.Code(t, c.Copy(ctx, d+"/tree", d+"/failed"), cay.Invalid)
	if got := names(t, c, d); !slices.Equal(got, []string{"copy", "file", "tree"}) {
		t.Errorf("left behind: %q", got)
	}
}

func testRemove(t *testing.T, c *guest.Client) {
	ctx := testContext(t)
	d := dir(t, c)
	sh(t, c, d, `mkdir -p tree/a/b keep; echo x > tree/a/b/file; echo keep > keep/file; ln -s ../keep tree/link; ln -s keep link
		p=deep; for i in 1 2 3 4 5 6 7 8 9 10; do p=$p/dddddddddddddddddddddddddddddddddddddddddddddddddd; done; mkdir -p $p`)
	checktest.Code(t, c.Remove(ctx, d+"/tree", false), cay.Conflict)
	checktest.OK(t, c.Remove(ctx, d+"/link", true))
	checktest.OK(t, c.Remove(ctx, d+"/tree", true))
	checktest.OK(t, c.Remove(ctx, d+"/deep", true))
	equal(t, "behind the links", read(t, c, d+"/keep/file"), "keep\n")
	checktest.OK(t, c.Remove(ctx, d+"/keep/file", false))
	checktest.OK(t, c.Remove(ctx, d+"/keep", false))
	checktest.Code(t, c.Remove(ctx, d+"/keep", false), cay.FileNotFound)
	checktest.Code(t, c.Remove(ctx, d+"/keep", true), cay.FileNotFound)
	checktest.Code(t, c.Remove(ctx, "/", true), cay.Invalid)
	equal(t, "what is left", len(names(t, c, d)), 0)
}

func testLinkAndMode(t *testing.T, c *guest.Client) {
	ctx := testContext(t)
	d := dir(t, c)
	checktest.OK(t, c.Symlink(ctx, "some where", d+"/link"))
	info, err := c.Stat(ctx, d+"/link", false)
	checktest.OK(t, err)
	equal(t, "target", info.Target, "some where")
	checktest.Code(t, c.Symlink(ctx, "x", d+"/link"), cay.AlreadyExists)
	checktest.Code(t, c.Symlink(ctx, "", d+"/x"), cay.Invalid)
	write(t, c, d+"/file", "")
	checktest.OK(t, c.Chmod(ctx, d+"/file", 0o6751))
	equal(t, "mode", modeOf(t, c, d+"/file"), 0o6751)
	checktest.OK(t, c.Chmod(ctx, d+"/file", 0))
	equal(t, "no mode", modeOf(t, c, d+"/file"), 0)
	checktest.Code(t, c.Chmod(ctx, d+"/file", 0o10000), cay.Invalid)
	checktest.Code(t, c.Chmod(ctx, d+"/none", 0o644), cay.FileNotFound)
}
