package gvisor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/gvisor"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/pages"
	"github.com/cayhq/cay/sandbox"
)

// Row S1: no two copies of a machine get the same random numbers from the kernel, neither
// in programs that ran before the fork nor in new programs. Only generators that a
// program seeded itself continue alike; such a program must be told of the fork.
func TestAttack_SameRandom(t *testing.T) {
	t.Parallel()
	f := openForkable(t, nil)
	running, err := f.Start(t.Context(), sandbox.CommandParams{Stdin: true, Argv: []string{"python3", "-uc", `
import os, random, secrets, sys
random.seed(7)
print("ready")
sys.stdin.readline()
print("kernel", os.urandom(16).hex(), secrets.token_hex(16))
print("seeded", random.random())
print("end")
`}})
	if err != nil {
		t.Fatal(err)
	}
	f.said(t, running.ID, "ready")
	seen, seeded := map[string]string{}, map[string]bool{}
	for _, b := range append(f.fork(t, 2), f.box) {
		if _, err := b.Identify(t.Context(), guest.IdentityRequest{Sandbox: b.ID(), Hostname: "box"}, f.token); err != nil {
			t.Fatal(err)
		}
		if err := b.WriteStdin(t.Context(), running.ID, strings.NewReader("go\n"), false); err != nil {
			t.Fatal(err)
		}
		said := f.allOf(t, b, running.ID)
		random, code := b.root(t, `cd /tmp
head -c 16 /dev/urandom | od -An -tx1; head -c 16 /dev/random | od -An -tx1
cat /proc/sys/kernel/random/uuid
python3 -c 'import random, uuid; print(random.getrandbits(64), uuid.uuid4())'
basename $(mktemp -u); echo $RANDOM$RANDOM$RANDOM$RANDOM
cat /etc/machine-id`)
		if code != 0 {
			t.Fatal(random)
		}
		for line := range strings.Lines(said + random) {
			switch words := strings.Fields(line); {
			case len(words) == 2 && words[0] == "seeded":
				seeded[words[1]] = true
			case len(words) < 1 || words[0] == "ready" || words[0] == "end":
			case seen[line] != "":
				t.Errorf("%s and %s both have %q", seen[line], b.ID(), line)
			default:
				seen[line] = b.ID()
			}
		}
	}
	if len(seeded) != 1 {
		t.Errorf("generators that were seeded before a fork go on as %v: docs and this test say alike", seeded)
	}
}

// allOf returns a command's output up to its end.
func (f *forkable) allOf(t *testing.T, b box, id string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := b.Output(ctx, id, sandbox.OutputParams{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	var text strings.Builder
	for {
		ev, err := out.Next()
		if errors.Is(err, io.EOF) || err == nil && ev.Exit != nil {
			return text.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		text.Write(ev.Data)
	}
}

// Row S4: a drive's state written by a compromised sentry, or forged by a user, must not
// show a machine the pages of another drive; the only allowed result is an error.
func TestAttack_HostileDrive(t *testing.T) {
	t.Parallel()
	f := openForkable(t, func(s *machine.Spec) {
		s.Mounts = append(s.Mounts, machine.Mount{Target: "/a", Drive: &machine.DriveSpec{SizeMB: 64}},
			machine.Mount{Target: "/b", Drive: &machine.DriveSpec{SizeMB: 64}})
	})
	if out, code := f.root(t, "head -c 3000000 /dev/urandom > /a/f; head -c 3000000 /dev/urandom > /b/f"); code != 0 {
		t.Fatal(out)
	}
	save := func(at string) string {
		dir := t.TempDir()
		if _, err := f.Instance.SaveDisk(t.Context(), machine.SaveParams{Dir: dir, Mounts: []string{at}}); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	a, b := save("/a"), save("/b")
	for name, change := range map[string]func(name string, b []byte) []byte{
		"ranges of more pages than there are": func(name string, b []byte) []byte {
			if pages.IsPart(name) {
				return b[:len(b)/2]
			}
			return b
		},
		"no pages": func(name string, b []byte) []byte {
			if pages.IsPart(name) {
				return nil
			}
			return b
		},
		"a map of noise": func(name string, b []byte) []byte {
			if name == pages.MapName {
				return bytes.Repeat([]byte{0xf6}, 100)
			}
			return b
		},
		"a map of fewer pages": func(name string, b []byte) []byte {
			if name == pages.MapName {
				return b[:len(b)-320]
			}
			return b
		},
		"a tree cut off": func(name string, b []byte) []byte {
			if name == "multitar.img" {
				return b[:len(b)/2]
			}
			return b
		},
		"no manifest": func(name string, b []byte) []byte {
			if name == "fscheckpoint.pb" {
				return nil
			}
			return b
		},
		"a manifest of noise": func(name string, b []byte) []byte {
			if name == "fscheckpoint.pb" {
				return bytes.Repeat([]byte{0xf6}, 100)
			}
			return b
		},
	} {
		t.Run(name, func(t *testing.T) {
			spec := f.another()
			spec.Mounts = append(spec.Mounts[:1:1], machine.Mount{Target: "/a", Drive: &machine.DriveSpec{SizeMB: 64, From: resealed(t, a, change)}},
				machine.Mount{Target: "/b", Drive: &machine.DriveSpec{SizeMB: 64, From: b}})
			in, err := f.runtime.Start(t.Context(), spec)
			if err == nil {
				select {
				case <-in.Done():
					if x := in.Exit(); x.Reason != sandbox.ReasonCrashed || !strings.Contains(x.Message, "could not be loaded") {
						t.Errorf("exit %+v", x)
					}
				case <-time.After(time.Minute):
					t.Error("the machine goes on")
				}
				if err := in.Destroy(t.Context()); err != nil {
					t.Fatal(err)
				}
			} else if strings.Contains(err.Error(), "goroutine") {
				t.Errorf("the error has a stack: %v", err)
			}
			if ids, err := f.runtime.List(t.Context()); err != nil || len(ids) != 1 {
				t.Errorf("left: %q, %v", ids, err)
			}
		})
	}
}

// resealed returns a copy of a state with changed contents, and matching sums.
func resealed(t *testing.T, from string, change func(name string, b []byte) []byte) string {
	t.Helper()
	s, err := machine.ReadState(from)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var files []*os.File
	for _, sf := range s.Files {
		b, err := os.ReadFile(filepath.Join(from, sf.Name))
		if err != nil {
			t.Fatal(err)
		}
		file, err := os.Create(filepath.Join(dir, sf.Name))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := file.Write(change(sf.Name, b)); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	if err := machine.SealState(t.Context(), dir, s, files); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Root in the guest cannot make a drive larger, and its changes to a read-only drive stay
// in its own machine.
func TestAttack_RemountedDrive(t *testing.T) {
	t.Parallel()
	f := openForkable(t, func(s *machine.Spec) {
		s.Mounts = append(s.Mounts, machine.Mount{Target: "/data", Drive: &machine.DriveSpec{SizeMB: 8}})
	})
	out, _ := f.root(t, `mount -o remount,size=1g /data; mount -o remount,size=1g,nr_inodes=0 none /data
head -c 100000000 /dev/zero > /data/big; stat -c %s /data/big; mkdir -p /other; mount --bind /data /other; head -c 100000000 /dev/zero > /other/big; stat -c %s /other/big`)
	if !strings.Contains(out, "8388608\n") || strings.Contains(out, "100000000\n") {
		t.Errorf("a drive of 8 MiB: %s", out)
	}
	f.root(t, "rm /data/big; echo x > /data/file")
	dir := t.TempDir()
	if _, err := f.Instance.SaveDisk(t.Context(), machine.SaveParams{Dir: dir, Mounts: []string{"/data"}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"x\n", "x\n"} { // whatever the earlier machine did
		spec := f.another()
		spec.Mounts = append(spec.Mounts[:1:1], machine.Mount{Target: "/data", Drive: &machine.DriveSpec{SizeMB: 8, From: dir, ReadOnly: true}})
		in, err := f.runtime.Start(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		b := f.own(t, in)
		if got, _ := b.root(t, "cat /data/file; { mount -o remount,rw /data; echo y > /data/file; } 2>/dev/null"); got != want {
			t.Errorf("a read-only drive has %q, want %q", got, want)
		}
		if _, err := in.SaveDisk(t.Context(), machine.SaveParams{Dir: t.TempDir(), Mounts: []string{"/data"}}); cay.CodeOf(err) != cay.Invalid {
			t.Errorf("it is saved: %v", err)
		}
	}
}

// Row S13: the saved state of a disk contains neither deleted files nor the guest's
// token.
func TestAttack_DeletedSecrets(t *testing.T) {
	t.Parallel()
	f := openForkable(t, nil)
	const secret = "sk-live-of-a-deleted-file"
	if out, code := f.root(t, `cd /vercel/sandbox
for i in $(seq 200); do echo `+secret[:8]+`""`+secret[8:]+` $i; done > small; head -c 100000 small > /tmp/other; cat small small small > large
rm small /tmp/other; echo kept > kept
python3 - <<P
f = open("large", "r+"); f.truncate(100)
f = open("large", "w"); f.write("over")
P
sync`); code != 0 {
		t.Fatal(out)
	}
	dir := f.saveDisk(t)
	for _, what := range []string{secret, f.token, "CAY_GUEST_CONFIG"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			b, err := os.ReadFile(path)
			if bytes.Contains(b, []byte(what)) {
				t.Errorf("%s has %s", d.Name(), what)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Row S6: if a sentry crashes during a save, for example because its writer ends while it
// opens the files, the machine's end is known when the save returns.
func TestCheckpoint_CrashedSentry(t *testing.T) {
	t.Parallel()
	f := openForkable(t, nil)
	err := gvisor.SaveHalf(t.Context(), f.Instance, t.TempDir())
	select {
	case <-f.Done():
	default:
		t.Fatalf("the machine is not seen to have ended: %v", err)
	}
	if x := f.Exit(); x.Reason != sandbox.ReasonCrashed || !strings.Contains(x.Message, "panic") || cay.CodeOf(err) != cay.Unavailable || !strings.Contains(err.Error(), x.Message) {
		t.Errorf("%v; exit %+v", err, x)
	}
	if _, err := f.Instance.Checkpoint(t.Context(), f.params(t)); cay.CodeOf(err) != cay.Unavailable {
		t.Errorf("saved after its end: %v", err)
	}
}

// Row S6: a writer that is killed at any point of a checkpoint leaves nothing, and the
// machine goes on, or is known to have crashed; the same holds for forks.
func TestCheckpoint_KilledWriter(t *testing.T) {
	open := func() (*forkable, *sandbox.Command, int64, int) {
		f := openForkable(t, nil)
		if out, code := f.root(t, "head -c 100000000 /dev/urandom > /big"); code != 0 {
			t.Fatal(out)
		}
		cmd, cursor, last := counting(t, f.box)
		return f, cmd, cursor, last
	}
	f, cmd, cursor, last := open()
	for _, after := range []time.Duration{0, 3, 10, 20, 30, 50, 80} {
		p := f.params(t)
		for name, save := range map[string]func() error{
			"checkpoint": func() error { _, err := f.Instance.Checkpoint(t.Context(), p); return err },
			"disk":       func() error { _, err := f.Instance.SaveDisk(t.Context(), p); return err },
			"fork": func() error {
				forked, err := f.Instance.Fork(t.Context(), machine.ForkParams{Specs: []machine.Spec{f.another(), f.another()}})
				if err == nil {
					for _, in := range forked.Instances {
						err = errors.Join(err, in.Destroy(t.Context()))
					}
				}
				return err
			},
		} {
			stop := make(chan struct{})
			killed := make(chan int)
			go func() { killed <- killWriter(stop, after*time.Millisecond) }()
			err := save()
			close(stop)
			if n := <-killed; n > 0 && err == nil {
				t.Logf("%s: killed when it was done, %v after it began", name, after*time.Millisecond)
			} else if err != nil && strings.Contains(err.Error(), "goroutine") {
				t.Errorf("%s: the error has a stack: %v", name, err)
			}
			left, rerr := os.ReadDir(p.Dir)
			if rerr != nil || err != nil && len(left) > 0 {
				t.Errorf("%s: %v, left %v, %v", name, err, left, rerr)
			}
			if err == nil && len(left) > 0 { // then the state must be whole
				if _, err := machine.VerifyState(t.Context(), p.Dir); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				p = f.params(t)
			}
			select {
			case <-f.Done(): // see pager: there is a moment for that when memory is saved
				if name == "disk" || cay.CodeOf(err) != cay.Unavailable {
					t.Fatalf("%s: %v, and the machine ended: %+v", name, err, f.Exit())
				}
				t.Logf("%s: %v", name, err)
				f, cmd, cursor, last = open()
				p = f.params(t)
			default:
			}
			if ids, err := f.runtime.List(t.Context()); err != nil || len(ids) != 1 {
				t.Errorf("%s: machines %q, %v", name, ids, err)
			}
		}
		goesOn(t, "machine", f.box, cmd, cursor, last)
	}
	goesOn(t, "copy", f.restore(t, f.checkpoint(t)), cmd, cursor, last)
}

// killWriter kills the first saving pager of this process, with the delay after, and
// returns how many saving pagers there were.
func killWriter(stop chan struct{}, after time.Duration) (n int) {
	for {
		select {
		case <-stop:
			return n
		default:
		}
		all, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			return n
		}
		for _, path := range all {
			if b, err := os.ReadFile(path); err != nil || !strings.HasPrefix(string(b), "cay-pager\x00save\x00") {
				continue
			}
			var pid, parent int
			var comm, state string
			b, err := os.ReadFile(filepath.Join(filepath.Dir(path), "stat"))
			if err != nil {
				continue
			}
			if _, err := fmt.Sscan(string(b), &pid, &comm, &state, &parent); err != nil || parent != os.Getpid() || state == "Z" {
				continue
			}
			timer := time.NewTimer(after)
			defer timer.Stop()
			select {
			case <-timer.C:
				if unix.Kill(pid, unix.SIGKILL) == nil {
					n++
				}
			case <-stop:
			}
			return n
		}
	}
}

// savingEnv makes a test binary a daemon, to be killed, that adopts a machine and saves
// it again and again: its value is the state directory, the machine's id and the
// directory to save in.
const savingEnv = "CAY_TEST_SAVE"

func savingDaemon(args string) error {
	words := strings.Split(args, ":")
	out := os.Stdout
	if err := gvisor.DetachStdio(); err != nil {
		return err
	}
	r, err := gvisor.New(gvisor.Config{StateDir: words[0]})
	if err != nil {
		return err
	}
	in, err := r.Adopt(context.Background(), words[1])
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		dir := filepath.Join(words[2], fmt.Sprint(i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(out, "saving"); err != nil {
			return err
		}
		save := in.SaveDisk
		if i%2 == 1 {
			save = in.Checkpoint
		}
		if _, err := save(context.Background(), machine.SaveParams{Dir: dir, Images: map[string]string{"/": "image", "/.cay": "mount"}}); err != nil {
			return err
		}
	}
}

// Row S6: a daemon that is killed at any point of a checkpoint leaves whole states, or
// states that are recognized as incomplete, and the machine goes on under the next
// daemon.
func TestCheckpoint_KilledDaemon(t *testing.T) {
	var f *forkable
	withoutStdio(t, func() { f = openForkable(t, nil) })
	if out, code := f.root(t, "head -c 50000000 /dev/urandom > /big"); code != 0 {
		t.Fatal(out)
	}
	cmd, cursor, last := counting(t, f.box)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	whole, half := 0, 0
	for i, after := range []time.Duration{0, 2, 5, 10, 20, 30, 50, 70, 100, 150} {
		f.CloseIdleConnections()
		if err := f.Detach(); err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		daemon := exec.Command(self)
		daemon.Env = append(os.Environ(), savingEnv+"="+f.dir+":"+f.ID()+":"+dir)
		out, err := daemon.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		daemon.Stderr = t.Output()
		if err := daemon.Start(); err != nil {
			t.Fatal(err)
		}
		saves := 2 + i%2 // the last save is cut short
		if _, err := io.ReadFull(out, make([]byte, saves*len("saving\n"))); err != nil {
			t.Fatal(err)
		}
		<-time.After(after * time.Millisecond) // the moment to kill the daemon
		if err := daemon.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		daemon.Wait()
		in, err := f.runtime.Adopt(t.Context(), f.ID())
		if err != nil {
			t.Fatal(err)
		}
		f.box = box{in, guest.NewClient(in.DialGuest, f.token), f.runtime}
		goesOn(t, "machine", f.box, cmd, cursor, last)
		states, err := filepath.Glob(dir + "/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, state := range states {
			s, err := machine.ReadState(state)
			switch {
			case cay.CodeOf(err) == cay.NotFound:
				half++
				continue
			case err != nil:
				t.Fatal(err)
			}
			whole++
			if _, err := machine.VerifyState(t.Context(), state); err != nil {
				t.Error(err)
			}
			if s.Kind == machine.MemoryState && i < 2 {
				goesOn(t, "copy", f.restore(t, state), cmd, cursor, last)
			}
		}
	}
	// The machine can still be saved: no process holds the sentry's pages.
	goesOn(t, "copy", f.restore(t, f.checkpoint(t)), cmd, cursor, last)
	f.own(t, f.Instance)
	if t.Logf("%d whole states, %d that are none", whole, half); whole == 0 || half == 0 {
		t.Error("the daemon was not killed at different points")
	}
}

// Row S10: a pause in the middle of a terminal session, an upload and a download
// is a wait, and nothing is lost.
func TestPause_Streams(t *testing.T) {
	t.Parallel()
	f := openForkable(t, nil)
	terminal, err := f.Start(t.Context(), sandbox.CommandParams{Argv: []string{"bash", "--norc"}, PTY: &sandbox.WindowSize{Cols: 80, Rows: 24}})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.WriteStdin(t.Context(), terminal.ID, strings.NewReader("echo $((40+1))\n"), false); err != nil {
		t.Fatal(err)
	}
	f.said(t, terminal.ID, "41")
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	body, upload := io.Pipe()
	wrote := make(chan error, 1)
	go func() {
		_, err := f.WriteFile(t.Context(), "uploaded", body, sandbox.WriteParams{})
		wrote <- err
	}()
	if _, err := upload.Write(content[:len(content)/2]); err != nil {
		t.Fatal(err)
	}
	if out, code := f.root(t, "head -c 30000000 /dev/zero > /vercel/sandbox/large"); code != 0 {
		t.Fatal(out)
	}
	download, _, err := f.ReadFile(t.Context(), "large", sandbox.ReadParams{})
	if err != nil {
		t.Fatal(err)
	}
	defer download.Close()
	if err := f.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	typed := make(chan error, 1)
	go func() {
		typed <- f.WriteStdin(t.Context(), terminal.ID, strings.NewReader("echo $((40+2))\n"), false)
	}()
	go func() {
		_, err := upload.Write(content[len(content)/2:])
		upload.CloseWithError(err)
	}()
	select {
	case err := <-wrote:
		t.Fatalf("a paused machine took an upload to its end: %v", err)
	case err := <-typed:
		t.Fatalf("a paused machine took input: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	if err := f.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-typed; err != nil {
		t.Error(err)
	}
	f.said(t, terminal.ID, "42")
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	f.want(t, "upload", "stat -c %s /vercel/sandbox/uploaded; tail -c 4 /vercel/sandbox/uploaded", fmt.Sprintf("%d\ncdef", len(content)))
	if n, err := io.Copy(io.Discard, download); err != nil || n != 30000000 {
		t.Errorf("downloaded %d bytes, %v", n, err)
	}
}
