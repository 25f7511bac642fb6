package runtimetest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

// images returns the images that a test states for a machine.
func images(spec machine.Spec) map[string]string {
	all := map[string]string{"/": "root image"}
	for _, m := range spec.Mounts {
		if m.Drive == nil {
			all[m.Target] = filepath.Base(m.Source)
		}
	}
	return all
}

// again returns the spec of another machine like m.
func (cfg Config) again(m tested) machine.Spec {
	spec, _ := cfg.spec()
	spec.GuestConfig, spec.RootFS, spec.Mounts = m.spec.GuestConfig, m.spec.RootFS, m.spec.Mounts
	return spec
}

// own destroys the machine in when the test ends.
func own(t *testing.T, in machine.Instance, spec machine.Spec, token string) tested {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := in.Destroy(ctx); err != nil {
			t.Error(err)
		}
	})
	return attach(t, in, spec, token)
}

func (m tested) saveDisk(t *testing.T) (string, *machine.State) {
	t.Helper()
	dir := t.TempDir()
	s, err := m.SaveDisk(testContext(t), machine.SaveParams{Dir: dir, Images: images(m.spec), MaxBytes: 1 << 30})
	checktest.OK(t, err)
	return dir, s
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	checktest.OK(t, err)
	if len(left) > 0 {
		t.Errorf("left in the directory: %v", left)
	}
}

// The next machine has the files that a machine wrote, and so has the one after it; each
// is independent. Its mounts may differ.
func testDiskState(t *testing.T, cfg Config) {
	ctx := testContext(t)
	r := cfg.New(t, t.TempDir())
	m := cfg.start(t, r)
	sh(t, m.client, "", "echo first > file; chmod 640 file; ln -s file link; mkdir -p a/b; echo deep > a/b/c; head -c 3000000 /dev/urandom > big")
	sum := sh(t, m.client, "", "cksum < big")
	for i := range 2 {
		dir, s := m.saveDisk(t)
		equal(t, "kind", s.Kind, machine.DiskState)
		if s.Bytes() < 3000000 || s.SavedAt.IsZero() || s.Paused <= 0 {
			t.Errorf("implausible: %+v", s)
		}
		checktest.OK(t, s.CheckImages(images(m.spec)))
		read, err := machine.VerifyState(ctx, dir)
		checktest.OK(t, err)
		equal(t, "bytes", read.Bytes(), s.Bytes())
		write(t, m.client, "file", "changed\n")
		spec := cfg.again(m)
		if n := len(spec.Mounts); n > 0 && i == 0 {
			spec.Mounts = append(spec.Mounts[:n:n], machine.Mount{Source: spec.Mounts[0].Source, Target: "/more/images"})
		} else if n > 0 {
			spec.Mounts = spec.Mounts[:n-1]
		}
		in, err := r.StartFrom(ctx, spec, dir)
		checktest.OK(t, err)
		checktest.OK(t, os.RemoveAll(dir))
		n := own(t, in, spec, m.token)
		equal(t, "files", sh(t, n.client, "", "cat link a/b/c; stat -c %a file; cksum < big"), fmt.Sprintf("%s\ndeep\n640\n%s",
			[]string{"first", "second"}[i], sum))
		equal(t, "in the source", sh(t, m.client, "", "cat file"), "changed\n")
		write(t, n.client, "file", "second\n")
		sh(t, n.client, "", "chmod 640 file")
		m = n
	}
}

// No machine starts from damaged or incomplete state, and a failed start leaves nothing.
func testDamagedState(t *testing.T, cfg Config) {
	ctx := testContext(t)
	r := cfg.New(t, t.TempDir())
	m := cfg.start(t, r)
	write(t, m.client, "file", "content")
	dir, s := m.saveDisk(t)
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, dir string)
		want   cay.Code
	}{
		{"NoManifest", func(t *testing.T, dir string) { checktest.OK(t, os.Remove(filepath.Join(dir, machine.StateName))) }, cay.NotFound},
		{"NoManifestAtAll", func(t *testing.T, dir string) { checktest.OK(t, os.RemoveAll(dir)) }, cay.NotFound},
		{"HalfManifest", func(t *testing.T, dir string) { halve(t, filepath.Join(dir, machine.StateName)) }, cay.Conflict},
		{"LaterFormat", func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, machine.StateName), fmt.Sprintf(`"format":%d`, s.Format), fmt.Sprintf(`"format":%d`, machine.StateFormat+1))
		}, cay.NotSupported},
		{"OtherRuntime", func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, machine.StateName), `"runtime":"`, `"runtime":"another-`)
		}, cay.NotSupported},
		{"OtherKind", func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, machine.StateName), `"kind":"disk"`, `"kind":"memory"`)
		}, cay.Conflict},
		{"Missing", func(t *testing.T, dir string) { checktest.OK(t, os.Remove(filepath.Join(dir, s.Files[0].Name))) }, cay.Conflict},
		{"Truncated", func(t *testing.T, dir string) { halve(t, filepath.Join(dir, s.Files[len(s.Files)-1].Name)) }, cay.Conflict},
		{"Flipped", func(t *testing.T, dir string) { flip(t, filepath.Join(dir, s.Files[0].Name), s.Files[0].Size/2) }, cay.Conflict},
	} {
		t.Run(c.name, func(t *testing.T) {
			bad := filepath.Join(t.TempDir(), "state")
			checktest.OK(t, os.CopyFS(bad, os.DirFS(dir)))
			c.damage(t, bad)
			_, err := r.StartFrom(ctx, cfg.again(m), bad)
			checktest.Code(t, err, c.want)
			wantList(t, r, m.ID())
		})
	}
	_, err := r.StartFrom(ctx, m.spec, dir)
	checktest.Code(t, err, cay.AlreadyExists)
	wantList(t, r, m.ID())
}

func halve(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	checktest.OK(t, err)
	checktest.OK(t, os.Truncate(path, info.Size()/2))
}

func flip(t *testing.T, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	checktest.OK(t, err)
	defer f.Close()
	var b [1]byte
	_, err = f.ReadAt(b[:], at)
	checktest.OK(t, err)
	b[0] ^= 1
	_, err = f.WriteAt(b[:], at)
	checktest.OK(t, err)
}

func edit(t *testing.T, path, old, new string) {
	t.Helper()
	data, err := os.ReadFile(path)
	checktest.OK(t, err)
	if !strings.Contains(string(data), old) {
		t.Fatalf("%s has no %s", path, old)
	}
	checktest.OK(t, os.WriteFile(path, []byte(strings.Replace(string(data), old, new, 1)), 0o600))
}

// A save that is refused leaves nothing, and the machine continues.
func testRefusedSave(t *testing.T, cfg Config) {
	ctx := testContext(t)
	r := cfg.New(t, t.TempDir())
	m := cfg.start(t, r)
	sh(t, m.client, "", "head -c 3000000 /dev/urandom > big")
	full := t.TempDir()
	checktest.OK(t, os.WriteFile(filepath.Join(full, "x"), nil, 0o600))
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	saves := map[string]func(context.Context, machine.SaveParams) (*machine.State, error){"disk": m.SaveDisk}
	if r.SavesMemory() {
		saves["memory"] = m.Checkpoint
	}
	for kind, save := range saves {
		_, err := save(ctx, machine.SaveParams{Dir: full, Images: images(m.spec)})
		checktest.Code(t, err, cay.Invalid)
		dir := t.TempDir()
		_, err = save(ctx, machine.SaveParams{Dir: dir, Images: images(m.spec), MaxBytes: 1 << 20})
		checktest.Code(t, err, cay.TooLarge)
		wantEmpty(t, dir)
		_, err = save(ctx, machine.SaveParams{Dir: dir, Images: map[string]string{"/else": "x"}})
		checktest.Code(t, err, cay.Invalid)
		wantEmpty(t, dir)
		if _, err = save(canceled, machine.SaveParams{Dir: dir, Images: images(m.spec)}); err == nil {
			t.Errorf("%s was saved though nobody wanted it", kind)
		}
		wantEmpty(t, dir)
		equal(t, "afterwards", sh(t, m.client, "", "echo hello"), "hello\n")
	}
	dir := t.TempDir()
	checktest.OK(t, m.Destroy(ctx))
	_, err := m.SaveDisk(ctx, machine.SaveParams{Dir: dir, Images: images(m.spec)})
	checktest.Code(t, err, cay.Unavailable)
	wantEmpty(t, dir)
}

// counter reads the output of a counting program in any machine that has the program.
type counter struct {
	id     string
	cursor int64
}

func counting(t *testing.T, m tested) counter {
	t.Helper()
	cmd, err := m.client.Start(testContext(t), sandbox.CommandParams{Argv: []string{"sh", "-c", "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done"}})
	checktest.OK(t, err)
	return counter{id: cmd.ID}
}

// next returns the next line.
func (c *counter) next(t *testing.T, m tested) string {
	t.Helper()
	o, err := m.client.Output(testContext(t), c.id, sandbox.OutputParams{Cursor: c.cursor, Follow: true})
	checktest.OK(t, err)
	defer o.Close()
	for {
		ev, err := o.Next()
		checktest.OK(t, err)
		if ev.Exit != nil {
			t.Fatalf("the counter ended: %+v", ev.Exit)
		}
		if line, _, ok := strings.Cut(string(ev.Data), "\n"); ok {
			c.cursor += int64(len(line)) + 1
			return line
		}
	}
}

// A machine's processes continue in another machine.
func testMemoryState(t *testing.T, cfg Config) {
	ctx := testContext(t)
	r := cfg.New(t, t.TempDir())
	m := cfg.start(t, r)
	dir := t.TempDir()
	if !r.SavesMemory() {
		_, err := m.Checkpoint(ctx, machine.SaveParams{Dir: dir, Images: images(m.spec)})
		checktest.Code(t, err, cay.NotSupported)
		wantEmpty(t, dir)
		_, err = m.Fork(ctx, machine.ForkParams{Specs: []machine.Spec{cfg.again(m)}})
		checktest.Code(t, err, cay.NotSupported)
		_, err = r.Restore(ctx, cfg.again(m), dir)
		checktest.Code(t, err, cay.NotSupported)
		wantList(t, r, m.ID())
		return
	}
	source := counting(t, m)
	equal(t, "line", source.next(t, m), "1")
	copied := source
	s, err := m.Checkpoint(ctx, machine.SaveParams{Dir: dir, Images: images(m.spec)})
	checktest.OK(t, err)
	equal(t, "kind", s.Kind, machine.MemoryState)
	equal(t, "line", source.next(t, m), "2")
	disk, _ := m.saveDisk(t)
	_, err = r.Restore(ctx, cfg.again(m), disk)
	checktest.Code(t, err, cay.Conflict)
	_, err = r.StartFrom(ctx, cfg.again(m), dir)
	checktest.Code(t, err, cay.Conflict)
	wantList(t, r, m.ID())

	spec := cfg.again(m)
	in, err := r.Restore(ctx, spec, dir)
	checktest.OK(t, err)
	n := own(t, in, spec, m.token)
	equal(t, "line", copied.next(t, n), "2")

	other := filepath.Join(t.TempDir(), "state")
	checktest.OK(t, os.CopyFS(other, os.DirFS(dir)))
	edit(t, filepath.Join(other, machine.StateName), `"build":"`, `"build":"x`)
	_, err = r.Restore(ctx, cfg.again(m), other)
	checktest.Code(t, err, cay.NotSupported)
	wantList(t, r, m.ID(), n.ID())
}

func testFork(t *testing.T, cfg Config) {
	ctx := testContext(t)
	r := cfg.New(t, t.TempDir())
	m := cfg.start(t, r)
	if !r.SavesMemory() {
		t.Skip("this runtime does not save memory")
	}
	source := counting(t, m)
	equal(t, "line", source.next(t, m), "1")
	_, err := m.Fork(ctx, machine.ForkParams{})
	checktest.Code(t, err, cay.Invalid)
	_, err = m.Fork(ctx, machine.ForkParams{Specs: []machine.Spec{cfg.again(m)}, MaxBytes: 1 << 20})
	checktest.Code(t, err, cay.TooLarge)
	_, err = m.Fork(ctx, machine.ForkParams{Specs: []machine.Spec{cfg.again(m), m.spec}})
	checktest.Code(t, err, cay.AlreadyExists)
	wantList(t, r, m.ID())
	specs := []machine.Spec{cfg.again(m), cfg.again(m)}
	forked, err := m.Fork(ctx, machine.ForkParams{Specs: specs})
	checktest.OK(t, err)
	if forked.Bytes <= 0 || forked.Paused <= 0 || forked.Started <= 0 {
		t.Errorf("implausible: %+v", forked)
	}
	for i, in := range forked.Instances {
		equal(t, "id", in.ID(), specs[i].ID)
		copied := source
		equal(t, "line", copied.next(t, own(t, in, specs[i], m.token)), "2")
	}
	equal(t, "line of the source", source.next(t, m), "2")
}
