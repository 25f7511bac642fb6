package runtimetest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
)

func testDrives(t *testing.T, cfg Config) {
	for name, test := range map[string]func(*testing.T, Config){
		"New":       testNewDrive,
		"Moved":     testMovedDrive,
		"Together":  testDrivesTogether,
		"ReadOnly":  testReadOnlyDrive,
		"Full":      testFullDrive,
		"Damaged":   testDamagedDrive,
		"Refused":   testRefusedDrive,
		"Adopted":   testAdoptedDrive,
		"InMemory":  testDriveInMemory,
		"Unmounted": testUnmountedDrive,
	} {
		t.Run(name, func(t *testing.T) { test(t, cfg) })
	}
}

// drive returns a mount of a 16 MB drive. The mount is below the working directory, where
// commands find it on all Runtimes.
func drive(name, from string) machine.Mount {
	return machine.Mount{Target: "/work/" + name, Drive: &machine.DriveSpec{SizeMB: 16, From: from}}
}

// saveDrive saves a drive of a machine.
func (m tested) saveDrive(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	s, err := m.SaveDisk(testContext(t), machine.SaveParams{Dir: dir, Mounts: []string{"/work/" + name}, MaxBytes: 1 << 30})
	checktest.OK(t, err)
	equal(t, "kind", s.Kind, machine.DiskState)
	if !slices.Equal(s.Mounts, []string{"/work/" + name}) || len(s.Images) > 0 {
		t.Errorf("it is of %q, and needs %v", s.Mounts, s.Images)
	}
	return dir
}

// with returns the spec of another machine like m, with other drives.
func (cfg Config) with(m tested, drives ...machine.Mount) machine.Spec {
	spec := cfg.again(m)
	spec.Mounts = slices.DeleteFunc(slices.Clone(spec.Mounts), func(m machine.Mount) bool { return m.Drive != nil })
	spec.Mounts = append(spec.Mounts, drives...)
	return spec
}

// startWith starts another machine like m, with other drives.
func (cfg Config) startWith(t *testing.T, r machine.Runtime, m tested, drives ...machine.Mount) tested {
	t.Helper()
	spec := cfg.with(m, drives...)
	in, err := r.Start(testContext(t), spec)
	checktest.OK(t, err)
	return own(t, in, spec, m.token)
}

func testNewDrive(t *testing.T, cfg Config) {
	m := cfg.start(t, cfg.New(t, t.TempDir()), drive("a/deep", ""), drive("b", ""))
	equal(t, "drives", sh(t, m.client, "", "stat -c '%a %u' a/deep b; ls -A a/deep b; echo x > a/deep/x; cat a/deep/x; ls -A b"),
		"755 0\n755 0\na/deep:\n\nb:\nx\n")
}

// A saved drive has all of its files and no others, and can be mounted elsewhere; a saved
// root does not include its drives.
func testMovedDrive(t *testing.T, cfg Config) {
	ctx := testContext(t)
	r := cfg.New(t, t.TempDir())
	m := cfg.start(t, r, drive("data", ""))
	sh(t, m.client, "", "echo root > root; cd data; echo first > file; chmod 640 file; ln -s file link; mkdir -p a/b; echo deep > a/b/c; head -c 3000000 /dev/urandom > big; chmod 711 .")
	sum := sh(t, m.client, "", "cksum < data/big")
	for i, at := range []string{"else/where", "data"} {
		dir := m.saveDrive(t, []string{"data", "else/where"}[i])
		sh(t, m.client, "", "cd "+[]string{"data", "else/where"}[i]+"; echo changed > file")
		_, err := machine.VerifyState(ctx, dir)
		checktest.OK(t, err)
		n := cfg.startWith(t, r, m, drive(at, dir))
		checktest.OK(t, os.RemoveAll(dir))
		equal(t, "files", sh(t, n.client, "", "cd "+at+"; cat link a/b/c; stat -c %a file .; ls -A; cksum < big; test ! -e /work/root -a ! -e ../root && echo alone"),
			[]string{"first", "second"}[i]+"\ndeep\n640\n711\na\nbig\nfile\nlink\n"+sum+"alone\n")
		equal(t, "in the source", sh(t, m.client, "", "cat "+[]string{"data", "else/where"}[i]+"/file"), "changed\n")
		sh(t, n.client, "", "echo second > "+at+"/file; chmod 640 "+at+"/file")
		m = n
	}
	root, _ := m.saveDisk(t)
	spec := cfg.with(m)
	in, err := r.StartFrom(ctx, spec, root)
	checktest.OK(t, err)
	equal(t, "without the drive", sh(t, own(t, in, spec, m.token).client, "", "ls -A data"), "")
}

// Start from a saved root and several drives of different machines, one of them new.
func testDrivesTogether(t *testing.T, cfg Config) {
	ctx := testContext(t)
	r := cfg.New(t, t.TempDir())
	m := cfg.start(t, r, drive("a", ""), drive("b", ""))
	write := func(m tested, files ...string) {
		for _, f := range files {
			sh(t, m.client, "", "echo "+f+" > "+f+"; head -c 700001 /dev/urandom > "+f+".big; cksum < "+f+".big > "+f+".sum")
		}
	}
	write(m, "r", "a/f", "b/f")
	root, _ := m.saveDisk(t)
	a, b := m.saveDrive(t, "a"), m.saveDrive(t, "b")
	other := cfg.start(t, r, drive("z", ""))
	write(other, "r", "z/f")
	z := other.saveDrive(t, "z")
	spec := cfg.with(m, drive("z", z), drive("c", b), drive("b", a), drive("n", ""), drive("c2", b))
	in, err := r.StartFrom(ctx, spec, root)
	checktest.OK(t, err)
	n := own(t, in, spec, m.token)
	equal(t, "files", sh(t, n.client, "", "cat r b/f c/f c2/f z/f; for f in r b/f c/f c2/f z/f; do cksum < $f.big | cmp - $f.sum; done; ls -A n a; echo 2 > n/f; echo 2 > c2/f; cat c/f"),
		"r\na/f\nb/f\nb/f\nz/f\na:\n\nn:\nb/f\n")
	// Once more, from the second machine.
	again, _ := n.saveDisk(t)
	spec = cfg.with(m, drive("n", n.saveDrive(t, "n")), drive("c2", n.saveDrive(t, "c2")), drive("b", n.saveDrive(t, "b")))
	in, err = r.StartFrom(ctx, spec, again)
	checktest.OK(t, err)
	equal(t, "files", sh(t, own(t, in, spec, m.token).client, "", "cat r n/f c2/f b/f; cksum < b/f.big | cmp - b/f.sum; cksum < c2/f.big | cmp - c2/f.sum"), "r\n2\n2\na/f\n")
}

func testReadOnlyDrive(t *testing.T, cfg Config) {
	ctx := testContext(t)
	r := cfg.New(t, t.TempDir())
	m := cfg.start(t, r, drive("data", ""))
	sh(t, m.client, "", "echo x > data/file")
	dir := m.saveDrive(t, "data")
	d := drive("ro", dir)
	d.Drive.ReadOnly = true
	for range 2 { // two machines at the same time
		n := cfg.startWith(t, r, m, d)
		equal(t, "content", sh(t, n.client, "", "cat ro/file"), "x\n")
		if cfg.Caps.Enforces {
			equal(t, "written", sh(t, n.client, "", "for f in ro/file ro/new; do echo y 2>/dev/null > $f; done; rm ro/file 2>/dev/null; chmod 777 ro 2>/dev/null; cat ro/file; ls -A ro"), "x\nfile\n")
		}
		to := t.TempDir()
		_, err := n.SaveDisk(ctx, machine.SaveParams{Dir: to, Mounts: []string{"/work/ro"}})
		checktest.Code(t, err, cay.Invalid)
		wantEmpty(t, to)
	}
}

// A full drive fails only its own writes, and has space again after a deletion.
func testFullDrive(t *testing.T, cfg Config) {
	if !cfg.Caps.Enforces {
		t.Skip("this runtime's drives have no size")
	}
	ctx := testContext(t)
	r := cfg.New(t, t.TempDir())
	m := cfg.start(t, r, drive("data", ""))
	const fill = "head -c 20000000 /dev/zero | tr '\\0' x > data/big; stat -c %s data/big; echo y > data/more || echo full; rm data/big; echo y > data/more && echo room; echo z > root && echo elsewhere"
	equal(t, "filled", sh(t, m.client, "", "{ "+fill+"; } 2>/dev/null"), "16777216\nfull\nroom\nelsewhere\n")
	sh(t, m.client, "", "head -c 12000000 /dev/urandom > data/big")
	dir := m.saveDrive(t, "data")
	// Loaded content counts.
	n := cfg.startWith(t, r, m, drive("data", dir))
	equal(t, "filled", sh(t, n.client, "", "{ head -c 6000000 /dev/zero > data/new; test $(stat -c %s data/new) -lt 4800000 && echo full; } 2>/dev/null"), "full\n")
	// The drive may grow, but not shrink below the size of its content.
	large := drive("data", dir)
	large.Drive.SizeMB = 32
	n = cfg.startWith(t, r, m, large)
	sh(t, n.client, "", "head -c 20000000 /dev/zero > data/new")
	small := drive("data", dir)
	small.Drive.SizeMB = 8
	ids, err := r.List(ctx)
	checktest.OK(t, err)
	_, err = r.Start(ctx, cfg.with(m, small))
	checktest.Code(t, err, cay.TooLarge)
	// Also if the content reserves more than was written.
	sh(t, m.client, "", "rm data/big; fallocate -l 12000000 data/reserved")
	small.Drive.From = m.saveDrive(t, "data")
	_, err = r.Start(ctx, cfg.with(m, small))
	checktest.Code(t, err, cay.TooLarge)
	wantList(t, r, ids...)
}

// No machine starts with a drive that is damaged or is not one.
func testDamagedDrive(t *testing.T, cfg Config) {
	ctx := testContext(t)
	r := cfg.New(t, t.TempDir())
	m := cfg.start(t, r, drive("data", ""))
	sh(t, m.client, "", "echo x > data/file")
	dir := m.saveDrive(t, "data")
	root, _ := m.saveDisk(t)
	s, err := machine.ReadState(dir)
	checktest.OK(t, err)
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, dir string)
		want   cay.Code
	}{
		{"Absent", func(t *testing.T, dir string) { checktest.OK(t, os.RemoveAll(dir)) }, cay.NotFound},
		{"NoManifest", func(t *testing.T, dir string) { checktest.OK(t, os.Remove(filepath.Join(dir, machine.StateName))) }, cay.NotFound},
		{"OtherRuntime", func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, machine.StateName), `"runtime":"`, `"runtime":"another-`)
		}, cay.NotSupported},
		{"Missing", func(t *testing.T, dir string) { checktest.OK(t, os.Remove(filepath.Join(dir, s.Files[0].Name))) }, cay.Conflict},
		{"Truncated", func(t *testing.T, dir string) { halve(t, filepath.Join(dir, s.Files[0].Name)) }, cay.Conflict},
		{"Flipped", func(t *testing.T, dir string) { flip(t, filepath.Join(dir, s.Files[0].Name), s.Files[0].Size/2) }, cay.Conflict},
		{"Root", func(t *testing.T, dir string) {
			checktest.OK(t, os.RemoveAll(dir))
			checktest.OK(t, os.CopyFS(dir, os.DirFS(root)))
		}, cay.Conflict},
	} {
		t.Run(c.name, func(t *testing.T) {
			bad := filepath.Join(t.TempDir(), "state")
			checktest.OK(t, os.CopyFS(bad, os.DirFS(dir)))
			c.damage(t, bad)
			_, err := r.Start(ctx, cfg.with(m, drive("good", dir), drive("data", bad)))
			checktest.Code(t, err, c.want)
			if err != nil && !strings.Contains(err.Error(), "/work/data") {
				t.Errorf("the error does not say which drive: %v", err)
			}
			wantList(t, r, m.ID())
		})
	}
	_, err = r.StartFrom(ctx, cfg.with(m), dir)
	checktest.Code(t, err, cay.Conflict)
	wantList(t, r, m.ID())
}

func testRefusedDrive(t *testing.T, cfg Config) {
	ctx := testContext(t)
	r := cfg.New(t, t.TempDir())
	m := cfg.start(t, r, drive("data", ""))
	sh(t, m.client, "", "head -c 3000000 /dev/urandom > data/big")
	dir := t.TempDir()
	for _, p := range []machine.SaveParams{
		{Mounts: []string{"/work"}}, {Mounts: []string{"/"}}, {Mounts: []string{"/work/data", "/work/data"}},
		{Mounts: []string{"/work/data"}, Images: images(m.spec)},
	} {
		p.Dir = dir
		_, err := m.SaveDisk(ctx, p)
		checktest.Code(t, err, cay.Invalid)
		wantEmpty(t, dir)
	}
	_, err := m.SaveDisk(ctx, machine.SaveParams{Dir: dir, Mounts: []string{"/work/data"}, MaxBytes: 1 << 20})
	checktest.Code(t, err, cay.TooLarge)
	wantEmpty(t, dir)
	equal(t, "afterwards", sh(t, m.client, "", "ls data"), "big\n")
	for _, bad := range []machine.Mount{
		{Target: "/work/x", Drive: &machine.DriveSpec{}},
		{Target: "/work/x", Drive: &machine.DriveSpec{SizeMB: 1}, Source: "/nonexistent"},
	} {
		_, err := r.Start(ctx, cfg.with(m, bad))
		checktest.Code(t, err, cay.Invalid)
	}
	wantList(t, r, m.ID())
}

func testAdoptedDrive(t *testing.T, cfg Config) {
	ctx := testContext(t)
	state := t.TempDir()
	old := cfg.New(t, state)
	m := cfg.start(t, old, drive("data", ""))
	sh(t, m.client, "", "echo x > data/file")
	checktest.OK(t, m.Detach())
	m.client.CloseIdleConnections()
	checktest.OK(t, old.Close())
	r := cfg.New(t, state)
	in, err := r.Adopt(ctx, m.ID())
	checktest.OK(t, err)
	n := attach(t, in, m.spec, m.token)
	dir := n.saveDrive(t, "data")
	equal(t, "content", sh(t, cfg.startWith(t, r, n, drive("data", dir)).client, "", "cat data/file"), "x\n")
	checktest.OK(t, in.Destroy(ctx))
}

// Drives are saved with a machine's memory.
func testDriveInMemory(t *testing.T, cfg Config) {
	ctx := testContext(t)
	r := cfg.New(t, t.TempDir())
	if !r.SavesMemory() {
		t.Skip("this runtime does not save memory")
	}
	m := cfg.start(t, r, drive("data", ""), drive("more", ""))
	sh(t, m.client, "", "echo x > data/file; head -c 3000000 /dev/urandom > more/big")
	sum := sh(t, m.client, "", "cksum < more/big")
	dir := t.TempDir()
	_, err := m.Checkpoint(ctx, machine.SaveParams{Dir: dir, Images: images(m.spec)})
	checktest.OK(t, err)
	other := drive("data", "")
	other.Drive.SizeMB = 17
	for _, drives := range [][]machine.Mount{{}, {drive("data", "")}, {drive("more", ""), other}} {
		_, err := r.Restore(ctx, cfg.with(m, drives...), dir)
		checktest.Code(t, err, cay.Invalid)
		_, err = m.Fork(ctx, machine.ForkParams{Specs: []machine.Spec{cfg.with(m, drives...)}})
		checktest.Code(t, err, cay.Invalid)
	}
	wantList(t, r, m.ID())
	spec := cfg.again(m)
	in, err := r.Restore(ctx, spec, dir)
	checktest.OK(t, err)
	n := own(t, in, spec, m.token)
	forked, err := m.Fork(ctx, machine.ForkParams{Specs: []machine.Spec{cfg.again(m)}})
	checktest.OK(t, err)
	for _, n := range []tested{n, own(t, forked.Instances[0], m.spec, m.token)} {
		equal(t, "content", sh(t, n.client, "", "cat data/file; cksum < more/big; echo y >> data/file"), "x\n"+sum)
		later := cfg.startWith(t, r, n, drive("data", n.saveDrive(t, "data")))
		equal(t, "content", sh(t, later.client, "", "cat data/file"), "x\ny\n")
	}
	equal(t, "content of the source", sh(t, m.client, "", "cat data/file"), "x\n")
}

// Saving a drive that the guest has unmounted fails.
func testUnmountedDrive(t *testing.T, cfg Config) {
	if !cfg.Caps.Enforces {
		t.Skip("this runtime's drives are not mounted")
	}
	ctx := testContext(t)
	r := cfg.New(t, t.TempDir())
	m := cfg.start(t, r, drive("data", ""))
	sh(t, m.client, "", "umount data")
	dir := t.TempDir()
	_, err := m.SaveDisk(ctx, machine.SaveParams{Dir: dir, Mounts: []string{"/work/data"}})
	checktest.Code(t, err, cay.Conflict)
	wantEmpty(t, dir)
	equal(t, "afterwards", sh(t, m.client, "", "echo hello"), "hello\n")
}
