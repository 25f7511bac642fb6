package runtimetest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

func testArchives(t *testing.T, c *guest.Client) {
	for name, test := range map[string]func(*testing.T, *guest.Client){
		"RoundTrip": testRoundTrip,
		"Hostile":   testHostileArchives,
		"Limits":    testArchiveLimits,
		"Owners":    testArchiveOwners,
		"Replace":   testArchiveReplace,
		"Relink":    testArchiveRelink,
		"Attrs":     testArchiveAttrs,
		"ArchiveOf": testArchiveOf,

		"ContentOnly": testContentOnly,
		"ToRoot":      testExtractToRoot,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, c)
		})
	}
}

func testRoundTrip(t *testing.T, c *guest.Client) {
	ctx := testContext(t)
	d := dir(t, c)
	sh(t, c, d, `mkdir -p tree/sub/empty; echo one > tree/one; chmod 4751 tree/one; ln tree/one tree/sub/hard; ln -s ../one tree/sub/link
		head -c 3000000 /dev/zero > tree/big; touch -d @86400 tree/one tree/sub; mkfifo tree/fifo
		echo long > tree/`+strings.Repeat("l", 200)+`; printf x > "$(printf 'tree/\377bytes')"; rm tree/fifo`)
	for _, format := range []sandbox.ArchiveFormat{sandbox.Tar, sandbox.TarGz, ""} {
		r, err := c.Archive(ctx, d+"/tree", format)
		checktest.OK(t, err)
		into := fmt.Sprintf("%s/new-%s/deeper", d, format)
		checktest.OK(t, c.Extract(ctx, into, r, sandbox.ExtractParams{Format: format}))
		checktest.OK(t, r.Close())
		list := `find . | sort | od -c; cat one sub/hard; readlink sub/link; stat -c '%n %a %h %Y %s' one sub/hard big; stat -c '%n %a %Y' sub; cksum big`
		equal(t, "unpacked "+string(format), sh(t, c, into+"/tree", list), sh(t, c, d+"/tree", list))
	}
	_, err := c.Archive(ctx, d+"/tree", "zip")
	checktest.Code(t, err, cay.Invalid)
	_, err = c.Archive(ctx, d+"/none", sandbox.Tar)
	checktest.Code(t, err, cay.FileNotFound)
	checktest.Code(t, c.Extract(ctx, d, strings.NewReader(""), sandbox.ExtractParams{Format: "zip"}), cay.Invalid)
}

// pack makes an archive. The content of a regular member is its name.
func pack(t *testing.T, members ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range members {
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 && h.Typeflag != tar.TypeXGlobalHeader {
			h.Mode = 0o644
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(h.Name))
		}
		checktest.OK(t, w.WriteHeader(&h))
		if h.Typeflag == tar.TypeReg {
			_, err := io.WriteString(w, h.Name)
			checktest.OK(t, err)
		}
	}
	checktest.OK(t, w.Close())
	return b.Bytes()
}

func testHostileArchives(t *testing.T, c *guest.Client) {
	for name, members := range map[string][]tar.Header{
		"absolute":            {{Name: "/tmp/cay-hostile"}},
		"parent":              {{Name: "../escaped"}},
		"parent inside":       {{Name: "a/../../escaped"}},
		"absolute link":       {{Name: "out", Typeflag: tar.TypeSymlink, Linkname: "/tmp"}, {Name: "out/cay-hostile"}},
		"relative link":       {{Name: "out", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "out/escaped"}},
		"link to link":        {{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "b"}, {Name: "b", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "a/escaped"}},
		"directory by link":   {{Name: "out", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "out/escaped/", Typeflag: tar.TypeDir}},
		"mode by link":        {{Name: "out", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "out/", Typeflag: tar.TypeDir, Mode: 0o777}},
		"hard link outside":   {{Name: "hard", Typeflag: tar.TypeLink, Linkname: "../secret"}},
		"hard link absolute":  {{Name: "hard", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}},
		"hard link by link":   {{Name: "out", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "hard", Typeflag: tar.TypeLink, Linkname: "out/secret"}},
		"character device":    {{Name: "dev", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}},
		"block device":        {{Name: "dev", Typeflag: tar.TypeBlock, Devmajor: 8}},
		"pipe":                {{Name: "pipe", Typeflag: tar.TypeFifo}},
		"the directory":       {{Name: "."}},
		"file as a directory": {{Name: "file"}, {Name: "file/below"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := dir(t, c)
			write(t, c, d+"/secret", "secret")
			checktest.OK(t, c.Mkdir(testContext(t), d+"/in", sandbox.MkdirParams{}))
			err := c.Extract(testContext(t), d+"/in", bytes.NewReader(pack(t, members...)), sandbox.ExtractParams{})
			checktest.Code(t, err, cay.Invalid)
			equal(t, "outside", strings.Join(names(t, c, d), " "), "in secret")
			equal(t, "mode outside", modeOf(t, c, d), 0o777)
			equal(t, "secret", read(t, c, d+"/secret"), "secret")
			if got := sh(t, c, d, "stat -c %h secret"); strings.TrimSpace(got) != "1" {
				t.Error("a hard link was made to a file outside")
			}
		})
	}
	d := dir(t, c)
	good := pack(t, tar.Header{Name: "good"})
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, err := z.Write(good)
	checktest.OK(t, err)
	checktest.OK(t, z.Close())
	for name, tt := range map[string]struct {
		data   []byte
		format sandbox.ArchiveFormat
	}{
		"garbage":        {bytes.Repeat([]byte("garbage!"), 1000), sandbox.Tar},
		"cut":            {good[:514], sandbox.Tar},
		"not gzip":       {good, sandbox.TarGz},
		"cut gzip":       {zipped.Bytes()[:zipped.Len()-12], sandbox.TarGz},
		"gzip, not told": {zipped.Bytes(), sandbox.Tar},
	} {
		err := c.Extract(testContext(t), d, bytes.NewReader(tt.data), sandbox.ExtractParams{Format: tt.format})
		if cay.CodeOf(err) != cay.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func testArchiveLimits(t *testing.T, c *guest.Client) {
	d := dir(t, c)
	var many []tar.Header
	for i := range 20 {
		many = append(many, tar.Header{Name: fmt.Sprintf("file%02d", i)})
	}
	ar := pack(t, many...)
	for i, tt := range []struct {
		p      sandbox.ExtractParams
		code   cay.Code
		stayed int
		says   string
	}{
		{sandbox.ExtractParams{MaxEntries: 20, MaxBytes: 120}, "", 20, ""},
		{sandbox.ExtractParams{MaxEntries: 19}, cay.TooLarge, 19, "more than 19 members; members unpacked before, which stay: 19"},
		{sandbox.ExtractParams{MaxBytes: 119}, cay.TooLarge, 19, "more than 119 bytes of content; members unpacked before, which stay: 19"},
		{sandbox.ExtractParams{MaxBytes: 5}, cay.TooLarge, 0, "no member was unpacked"},
		{sandbox.ExtractParams{MaxBytes: -1}, cay.Invalid, 0, ""},
	} {
		into := fmt.Sprintf("%s/%d", d, i)
		checktest.OK(t, c.Mkdir(testContext(t), into, sandbox.MkdirParams{}))
		err := c.Extract(testContext(t), into, bytes.NewReader(ar), tt.p)
		equal(t, fmt.Sprint(tt.p), cay.CodeOf(err), tt.code)
		equal(t, fmt.Sprint(tt.p, " stayed"), len(names(t, c, into)), tt.stayed)
		if err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%+v: %q does not say %q", tt.p, err, tt.says)
		}
	}
	// The limit applies to the size that a member's header states, even if less data
	// follows.
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	checktest.OK(t, w.WriteHeader(&tar.Header{Name: "bomb", Typeflag: tar.TypeReg, Size: 1 << 40, Format: tar.FormatPAX}))
	checktest.Code(t, c.Extract(testContext(t), d, &b, sandbox.ExtractParams{}), cay.TooLarge)
	_, err := c.Stat(testContext(t), d+"/bomb", false)
	checktest.Code(t, err, cay.FileNotFound)
	// The limit applies to the decompressed size.
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	w = tar.NewWriter(z)
	checktest.OK(t, w.WriteHeader(&tar.Header{Name: "zeros", Typeflag: tar.TypeReg, Size: 8 << 20}))
	_, err = w.Write(make([]byte, 8<<20))
	checktest.OK(t, err)
	checktest.OK(t, w.Close())
	checktest.OK(t, z.Close())
	err = c.Extract(testContext(t), d, &zipped, sandbox.ExtractParams{Format: sandbox.TarGz, MaxBytes: 1 << 20})
	checktest.Code(t, err, cay.TooLarge)
}

func testArchiveOwners(t *testing.T, c *guest.Client) {
	d := dir(t, c)
	ar := pack(t, tar.Header{Name: "sub/file", Uid: 777, Gid: 888, ModTime: time.Unix(86400, 0)})
	me, err := c.Stat(testContext(t), d, false)
	checktest.OK(t, err)
	checktest.OK(t, c.Extract(testContext(t), d, bytes.NewReader(ar), sandbox.ExtractParams{}))
	info, err := c.Stat(testContext(t), d+"/sub/file", false)
	checktest.OK(t, err)
	equal(t, "uid", info.UID, me.UID)
	equal(t, "time", info.ModTime.Unix(), 86400)
	if !canSwitchUsers(t, c) {
		return
	}
	checktest.OK(t, c.Extract(testContext(t), d, bytes.NewReader(ar), sandbox.ExtractParams{KeepOwner: true}))
	info, err = c.Stat(testContext(t), d+"/sub/file", false)
	checktest.OK(t, err)
	equal(t, "kept uid", info.UID, 777)
	equal(t, "kept gid", info.GID, 888)
	checktest.OK(t, c.Extract(testContext(t), d, bytes.NewReader(ar), sandbox.ExtractParams{User: "12345"}))
	info, err = c.Stat(testContext(t), d+"/sub/file", false)
	checktest.OK(t, err)
	equal(t, "given uid", info.UID, 12345)
}

// With ContentOnly only regular files are extracted, without owners, times and
// attributes.
func testContentOnly(t *testing.T, c *guest.Client) {
	d := dir(t, c)
	p := sandbox.ExtractParams{ContentOnly: true}
	me, err := c.Stat(testContext(t), d, false)
	checktest.OK(t, err)
	sh(t, c, d, "mkdir -p in; echo old > in/file; chmod 600 in/file; touch -d @86400 in/file")
	start := time.Now().Add(-time.Minute)
	ar := pack(t, tar.Header{Name: "./sub//deep/file", Mode: 0o4751, Uid: 777, Gid: 888, ModTime: time.Unix(86400, 0)},
		tar.Header{Name: "file", Format: tar.FormatPAX, PAXRecords: map[string]string{"SCHILY.xattr.user.x": "value", "mtime": "86400"}},
		tar.Header{Name: "file", Mode: 0o640})
	checktest.OK(t, c.Extract(testContext(t), d+"/in", bytes.NewReader(ar), p))
	for name, mode := range map[string]fs.FileMode{"in/sub/deep/file": 0o4751, "in/file": 0o640, "in/sub/deep": 0o755} {
		info, err := c.Stat(testContext(t), d+"/"+name, false)
		checktest.OK(t, err)
		equal(t, "owner of "+name, info.UID, me.UID)
		equal(t, "mode of "+name, info.Mode, mode)
		if info.ModTime.Before(start) {
			t.Errorf("time of %s: %v", name, info.ModTime)
		}
	}
	equal(t, "the last of one name", read(t, c, d+"/in/file"), "file")
	for name, h := range map[string]tar.Header{
		"directory":     {Name: "new/", Typeflag: tar.TypeDir},
		"symbolic link": {Name: "new", Typeflag: tar.TypeSymlink, Linkname: "file"},
		"hard link":     {Name: "new", Typeflag: tar.TypeLink, Linkname: "file"},
		"device":        {Name: "new", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3},
		"pipe":          {Name: "new", Typeflag: tar.TypeFifo},
		"global header": {Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"path": "new"}},
		"absolute":      {Name: d + "/in/new"},
		"parent":        {Name: "../new"},
		"itself":        {Name: "."},
	} {
		err := c.Extract(testContext(t), d+"/in", bytes.NewReader(pack(t, h)), p)
		if cay.CodeOf(err) != cay.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	equal(t, "in it", strings.Join(names(t, c, d+"/in"), " "), "file sub")
}

// No link leads out of the root directory, so in an extraction to the root links are
// followed as usual.
func testExtractToRoot(t *testing.T, c *guest.Client) {
	d := dir(t, c)
	rel := strings.TrimPrefix(d, "/")
	checktest.OK(t, c.Mkdir(testContext(t), d+"/real", sandbox.MkdirParams{}))
	checktest.OK(t, c.Symlink(testContext(t), d+"/real", d+"/absolute"))
	checktest.OK(t, c.Symlink(testContext(t), strings.Repeat("../", 40)+rel+"/real", d+"/relative"))
	ar := pack(t, tar.Header{Name: rel + "/absolute/a"}, tar.Header{Name: rel + "/relative/sub/b"})
	checktest.OK(t, c.Extract(testContext(t), "/", bytes.NewReader(ar), sandbox.ExtractParams{}))
	equal(t, "in it", strings.Join(names(t, c, d+"/real"), " "), "a sub")
	checktest.OK(t, c.Symlink(testContext(t), d+"/loop", d+"/loop"))
	checktest.Code(t, c.Extract(testContext(t), "/", bytes.NewReader(pack(t, tar.Header{Name: rel + "/loop/a"})), sandbox.ExtractParams{}), cay.Invalid)
}

// A member replaces an existing file, and never goes through a link.
func testArchiveReplace(t *testing.T, c *guest.Client) {
	d := dir(t, c)
	sh(t, c, d, "mkdir in full; echo outside > outside; ln -s ../outside in/file; mkdir in/sub; touch in/sub/x; ln -s sub in/tosub")
	ar := pack(t, tar.Header{Name: "file"}, tar.Header{Name: "sub/", Typeflag: tar.TypeDir, Mode: 0o711}, tar.Header{Name: "tosub/new"})
	checktest.OK(t, c.Extract(testContext(t), d+"/in", bytes.NewReader(ar), sandbox.ExtractParams{}))
	equal(t, "outside", read(t, c, d+"/outside"), "outside\n")
	equal(t, "file", read(t, c, d+"/in/file"), "file")
	equal(t, "mode of the directory", modeOf(t, c, d+"/in/sub"), 0o711)
	equal(t, "in it", strings.Join(names(t, c, d+"/in/sub"), " "), "new x")
}

// A name refers to its last member in the archive, however many directories were entered
// before.
func testArchiveRelink(t *testing.T, c *guest.Client) {
	d := dir(t, c)
	var members []tar.Header
	for i := range 200 {
		members = append(members, tar.Header{Name: fmt.Sprintf("many/%d/file%d", i%100, i)})
	}
	link := func(to string) tar.Header {
		return tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: to}
	}
	members = append(members, link("many/0"), tar.Header{Name: "link/a"}, tar.Header{Name: "link/sub/b"},
		link("many/1"), tar.Header{Name: "link/a"}, tar.Header{Name: "link/sub/b"})
	checktest.OK(t, c.Extract(testContext(t), d, bytes.NewReader(pack(t, members...)), sandbox.ExtractParams{}))
	for i := range 2 {
		equal(t, "linked", strings.Join(names(t, c, fmt.Sprintf("%s/many/%d", d, i)), " "), fmt.Sprintf("a file%d file%d sub", i, 100+i))
	}
	equal(t, "the last", strings.Join(names(t, c, d+"/many/99"), " "), "file199 file99")
	ar := pack(t, tar.Header{Name: "link/c"}, tar.Header{Name: "link"}, tar.Header{Name: "link/d"})
	checktest.Code(t, c.Extract(testContext(t), d, bytes.NewReader(ar), sandbox.ExtractParams{}), cay.Invalid)
	equal(t, "linked", strings.Join(names(t, c, d+"/many/1"), " "), "a c file1 file101 sub")
}

func testArchiveAttrs(t *testing.T, c *guest.Client) {
	d := dir(t, c)
	ar := pack(t, tar.Header{Name: "file", Format: tar.FormatPAX, PAXRecords: map[string]string{
		"SCHILY.xattr.user.kept":            "value",
		"SCHILY.xattr.user.overlay.opaque":  "y",
		"SCHILY.xattr.security.capability":  "x",
		"SCHILY.xattr.trusted.overlay.opaq": "y",
	}})
	checktest.OK(t, c.Extract(testContext(t), d, bytes.NewReader(ar), sandbox.ExtractParams{}))
	checktest.OK(t, c.Copy(testContext(t), d+"/file", d+"/copy"))
	r, err := c.Archive(testContext(t), d+"/copy", sandbox.Tar)
	checktest.OK(t, err)
	defer r.Close()
	h, err := tar.NewReader(r).Next()
	checktest.OK(t, err)
	for name := range h.PAXRecords {
		if strings.Contains(name, "xattr") && name != "SCHILY.xattr.user.kept" {
			t.Errorf("attribute %s", name)
		}
	}
	if h.PAXRecords["SCHILY.xattr.user.kept"] != "value" {
		t.Log("this file system has no attributes")
	}
}

func testArchiveOf(t *testing.T, c *guest.Client) {
	d := dir(t, c)
	write(t, c, d+"/file", "content")
	sh(t, c, d, "mkfifo pipe; ln -s file link")
	for name, want := range map[string]string{"file": "file", "link": "link", "": strings.TrimPrefix(d[strings.LastIndex(d, "/"):], "/") + "/"} {
		r, err := c.Archive(testContext(t), d+"/"+name, sandbox.Tar)
		checktest.OK(t, err)
		h, err := tar.NewReader(r).Next()
		checktest.OK(t, err)
		equal(t, "first member", h.Name, want)
		checktest.OK(t, r.Close())
	}
}

// A machine without enough memory for an archive's content refuses the archive, and goes
// on.
func testArchiveBombs(t *testing.T, cfg Config) {
	spec, token := cfg.spec()
	spec.MemoryMB = 256
	spec.Mounts = append(slices.Clip(spec.Mounts), machine.Mount{Target: "/drive", Drive: &machine.DriveSpec{SizeMB: 512}})
	in, err := cfg.New(t, t.TempDir()).Start(testContext(t), spec)
	checktest.OK(t, err)
	c := own(t, in, spec, token).client
	var total int64
	if realRoot(t, c) {
		_, err := fmt.Sscan(sh(t, c, "", "sed -n 's/^MemTotal: *//p' /proc/meminfo"), &total)
		checktest.OK(t, err)
	}
	if !cfg.Caps.Enforces {
		t.Skip("this runtime's machines have no bound of their memory")
	}
	if total == 0 || total > spec.MemoryMB<<10 {
		t.Fatalf("the machine has %d KiB of memory, want %d MiB at most", total, spec.MemoryMB)
	}
	long := strings.Repeat("x", 4000)
	for name, tt := range map[string]struct {
		dir  string
		data []byte
	}{
		"content in memory": {"/dev/shm/bomb", bomb(t, 1, func(int) tar.Header { return tar.Header{Name: "zeros", Size: 512 << 20} })},
		"many in memory":    {"/dev/shm/many", bomb(t, 1000, func(i int) tar.Header { return tar.Header{Name: fmt.Sprintf("%d/zeros", i), Size: 512 << 10} })},
		"links": {"/tmp/bomb", bomb(t, 60_000, func(i int) tar.Header {
			return tar.Header{Typeflag: tar.TypeSymlink, Name: fmt.Sprint(i), Linkname: long}
		})},
	} {
		err := c.Extract(testContext(t), tt.dir, bytes.NewReader(tt.data), sandbox.ExtractParams{Format: sandbox.TarGz})
		if cay.CodeOf(err) != cay.NoSpace {
			t.Fatalf("%s: %v, want no_space", name, err)
		}
		t.Logf("%s: %v", name, err)
		sh(t, c, "", "test ! -e /dev/shm/bomb/zeros && rm -rf "+tt.dir)
	}
	// The content of a drive is not in memory.
	large := bomb(t, 1, func(int) tar.Header { return tar.Header{Name: "zeros", Size: 400 << 20} })
	checktest.OK(t, c.Extract(testContext(t), "/drive", bytes.NewReader(large), sandbox.ExtractParams{Format: sandbox.TarGz}))
	select {
	case <-in.Done():
		t.Errorf("it has ended: %+v", in.Exit())
	default:
	}
}

// bomb makes a compressed archive of n files full of zeros.
func bomb(t *testing.T, n int, member func(i int) tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	checktest.OK(t, err)
	w := tar.NewWriter(z)
	zeros := make([]byte, 1<<20)
	for i := range n {
		h := member(i)
		h.Mode = 0o644
		checktest.OK(t, w.WriteHeader(&h))
		for left := h.Size; left > 0; left -= int64(len(zeros)) {
			_, err := w.Write(zeros[:min(left, int64(len(zeros)))])
			checktest.OK(t, err)
		}
	}
	checktest.OK(t, w.Close())
	checktest.OK(t, z.Close())
	return b.Bytes()
}
