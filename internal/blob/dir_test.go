package blob_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/blob/blobtest"
	"github.com/cayhq/cay/internal/leaktest"
)

// childEnv makes the test binary one of the programs in children instead.
const childEnv = "CAY_BLOB_TEST_CHILD"

// children are the programs of other processes in tests. They get the store and the
// arguments of the command, and run until they finish or are killed.
var children = map[string]func(s *blob.Dir, args []string) error{
	// live writes the blob "new", deletes "old", and dies at the given point.
	"live": func(s *blob.Dir, args []string) error {
		ctx := context.Background()
		dieAt(s, args[0])
		d, err := s.Create(ctx, 0)
		if err != nil {
			return err
		}
		for _, name := range []string{"a", "sub/b"} {
			w, err := d.Writer(name)
			if err != nil {
				return err
			}
			if _, err := io.WriteString(w, "new"); err != nil {
				return err
			}
			if err := w.Close(); err != nil {
				return err
			}
		}
		if _, err := d.Commit(ctx, "new"); err != nil {
			return err
		}
		return s.Delete(ctx, "old")
	},
	// reduce reduces the blob "old", and dies at the given point.
	"reduce": func(s *blob.Dir, args []string) error {
		dieAt(s, args[0])
		_, err := s.Reduce(context.Background(), "old", func(file string) bool { return file == "sub/b" }, map[string][]byte{"a": []byte("new")})
		return err
	},
	// lease takes a lease, prints a line, and holds the lease until stdin ends.
	"lease": func(s *blob.Dir, args []string) error {
		l, err := s.Local(context.Background(), args[0])
		if err != nil {
			return err
		}
		defer l.Release()
		fmt.Println(l.Dir)
		_, err = io.Copy(io.Discard, os.Stdin)
		return err
	},
}

// dieAt makes a store kill this process at a point.
func dieAt(s *blob.Dir, at string) {
	s.Reached(func(point string) {
		if point == at {
			// Not os.Exit: nothing may run after this.
			if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
				panic(err)
			}
			select {}
		}
	})
}

func TestMain(m *testing.M) {
	if child, ok := children[os.Getenv(childEnv)]; ok {
		s, err := blob.OpenDir(os.Args[1], blob.DirOptions{})
		if err == nil {
			err = child(s, os.Args[2:])
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leaktest.Main(m)
}

// child returns a command that runs one of children. The test kills it at the end of the
// test if it still runs.
func child(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, args...)
	cmd.Env = append(os.Environ(), childEnv+"="+name)
	cmd.Stderr = os.Stderr
	return cmd
}

func open(t testing.TB, dir string, o blob.DirOptions) *blob.Dir {
	t.Helper()
	s, err := blob.OpenDir(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDir(t *testing.T) {
	t.Parallel()
	blobtest.Run(t, func(t *testing.T) blob.Store { return open(t, t.TempDir(), blob.DirOptions{}) })
}

// TestDir_killed kills a process at every step of a blob's life. After cleaning, the
// directory has either the old state or the new one, and nothing else.
func TestDir_killed(t *testing.T) {
	t.Parallel()
	for i, point := range blob.Points {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := open(t, dir, blob.DirOptions{})
			blobtest.Put(t, s, "old", map[string]string{"a": "old", "sub/b": "old"})
			err := child(t, "live", dir, point).Run()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("the child did not come to %q: %v", point, err)
			}
			s = open(t, dir, blob.DirOptions{})
			want := map[string]bool{
				"new": i >= slices.Index(blob.Points, "named"),
				"old": i < slices.Index(blob.Points, "unnamed"),
			}
			check := func() {
				t.Helper()
				for name, there := range want {
					l, err := s.Local(t.Context(), name)
					if !there {
						if cay.CodeOf(err) != cay.NotFound {
							t.Errorf("%s: %v, want not_found", name, err)
						}
						continue
					}
					if err != nil {
						t.Errorf("%s: %v", name, err)
						continue
					}
					if got := blobtest.Read(t, l.Dir); len(got) != 2 || got["a"] != name || got["sub/b"] != name {
						t.Errorf("%s has %q", name, got)
					}
					l.Release()
				}
			}
			check()
			if _, err := s.Clean(t.Context(), time.Hour); err != nil {
				t.Error(err)
			}
			// Every directory is younger than grace, so no directory may count as a
			// leftover yet.
			content, err := os.ReadDir(filepath.Join(dir, "data"))
			if err != nil || len(content) != 2 {
				t.Errorf("there are %d directories within the time of grace, %v", len(content), err)
			}
			if _, err := s.Clean(t.Context(), 0); err != nil {
				t.Error(err)
			}
			check()
			blobs, err := s.List(t.Context(), blob.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if content, err = os.ReadDir(filepath.Join(dir, "data")); err != nil || len(content) != len(blobs) {
				t.Errorf("%d directories are left of %d blobs, %v", len(content), len(blobs), err)
			}
		})
	}
}

// A process that is killed while it reduces a blob leaves the old state or the new state
// of the blob, and nothing else after cleaning.
func TestDir_Reduce_killed(t *testing.T) {
	t.Parallel()
	points := []string{"created", "a file on disk", "content on disk", "link made", "renamed", "partly removed"}
	for i, point := range points {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := open(t, dir, blob.DirOptions{})
			blobtest.Put(t, s, "old", map[string]string{"a": "old", "c": "old", "sub/b": "old"})
			err := child(t, "reduce", dir, point).Run()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("the child did not come to %q: %v", point, err)
			}
			s = open(t, dir, blob.DirOptions{})
			want := map[string]string{"a": "old", "c": "old", "sub/b": "old"}
			if i >= slices.Index(points, "renamed") {
				want = map[string]string{"a": "new", "sub/b": "old"}
			}
			for range 2 {
				l, err := s.Local(t.Context(), "old")
				if err != nil {
					t.Fatal(err)
				}
				if got := blobtest.Read(t, l.Dir); !maps.Equal(got, want) {
					t.Errorf("it has %q, want %q", got, want)
				}
				l.Release()
				if _, err := s.Clean(t.Context(), 0); err != nil {
					t.Error(err)
				}
			}
			if content, err := os.ReadDir(filepath.Join(dir, "data")); err != nil || len(content) != 1 {
				t.Errorf("%d directories are left of one blob, %v", len(content), err)
			}
		})
	}
}

// Directories that makeDir makes are on the disk, including their parents.
func TestMakeDir(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "a", "b", "c")
	for _, want := range [][]string{{dir, filepath.Join(dir, "a"), filepath.Join(dir, "a", "b")}, nil} {
		var synced []string
		err := blob.MakeDir(path, func(path string) error {
			synced = append(synced, path)
			return nil
		})
		if err != nil || !slices.Equal(synced, want) {
			t.Errorf("synced %q, want %q, %v", synced, want, err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("made %+v, %v", info, err)
	}
}

// A lease holds across processes, and ends with its process.
func TestDir_otherProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, blob.DirOptions{})
	blobtest.Put(t, s, "one", map[string]string{"f": "content"})
	cmd := child(t, "lease", dir, "one")
	stdin, err := cmd.StdinPipe() // held open: the child waits until stdin ends
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	leased, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Clean(t.Context(), 0); err != nil || n > 0 {
		t.Errorf("Clean removed %d bytes, %v, although another process has a lease", n, err)
	}
	if got := blobtest.Read(t, strings.TrimSpace(leased))["f"]; got != "content" {
		t.Errorf("the leased blob has %q", got)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if n, err := s.Clean(t.Context(), 0); err != nil || n != 7 {
		t.Errorf("Clean removed %d bytes, %v, although the holder is dead", n, err)
	}
}

func TestDir_reserve(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, blob.DirOptions{Reserve: 100 << 20})
	free := int64(200 << 20)
	s.SetAvailable(func(string) (int64, error) { return free, nil })
	create := func(size int64, want cay.Code) blob.Draft {
		t.Helper()
		d, err := s.Create(t.Context(), size)
		if cay.CodeOf(err) != want {
			t.Errorf("Create of %d MiB: %v, want %q", size>>20, err, want)
		}
		return d
	}
	create(101<<20, cay.NoSpace)
	first := create(60<<20, "")
	create(60<<20, cay.NoSpace) // for the first may need it
	second := create(40<<20, "")
	if err := first.Abort(); err != nil {
		t.Fatal(err)
	}
	w, err := second.Writer("f")
	if err != nil {
		t.Fatal(err)
	}
	piece := make([]byte, 1<<20)
	if _, err := w.Write(piece); err != nil {
		t.Fatal(err)
	}
	free = 99 << 20 // other programs write, too
	for n := 0; ; n++ {
		if _, err := w.Write(piece); cay.CodeOf(err) == cay.NoSpace {
			break
		} else if err != nil || n > 8 {
			t.Fatalf("after %d MiB more: %v, want no_space", n, err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Commit(t.Context(), "one"); cay.CodeOf(err) != cay.NoSpace {
		t.Errorf("Commit: %v, want no_space", err)
	}
	free = 200 << 20
	if _, err := second.Commit(t.Context(), "one"); err != nil {
		t.Errorf("Commit after room was made: %v", err)
	}
	if err := create(100<<20, "").Abort(); err != nil { // nothing is promised any more
		t.Error(err)
	}
}

func TestDir_full(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("needs a small file system: mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	s := open(t, dir, blob.DirOptions{})
	blobtest.Put(t, s, "kept", map[string]string{"f": "content"})
	if _, err := s.Create(t.Context(), 2<<20); cay.CodeOf(err) != cay.NoSpace {
		t.Errorf("Create: %v, want no_space", err)
	}
	d, err := s.Create(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	w, err := d.Writer("f")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(w, bytes.NewReader(make([]byte, 2<<20))); cay.CodeOf(err) != cay.NoSpace {
		t.Errorf("wrote %d bytes, %v, want no_space", n, err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if err := d.Abort(); err != nil {
		t.Error(err)
	}
	if l, err := s.Local(t.Context(), "kept"); err != nil {
		t.Error(err)
	} else {
		l.Release()
	}
	blobtest.Put(t, s, "next", map[string]string{"f": strings.Repeat("x", 500<<10)})
}

func TestOpenDir_version(t *testing.T) {
	t.Parallel()
	write := func(t *testing.T, content string) string {
		t.Helper()
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "version.json"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	t.Run("a newer one is left alone", func(t *testing.T) {
		t.Parallel()
		dir := write(t, `{"version":99}`)
		if _, err := blob.OpenDir(dir, blob.DirOptions{}); cay.CodeOf(err) != cay.NotSupported || !strings.Contains(err.Error(), "99") {
			t.Errorf("got %v, want not_supported", err)
		}
	})
	for _, content := range []string{"", "{}", "x", `{"version":-1}`, `{"version":"1"}`, `{"version":1,"other":2}`} {
		t.Run("damaged "+content, func(t *testing.T) {
			t.Parallel()
			if _, err := blob.OpenDir(write(t, content), blob.DirOptions{}); err == nil {
				t.Error("no error")
			}
		})
	}
	t.Run("an older one is migrated, once and in order", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		if err := blob.Migrate(dir, nil); err != nil { // version 1
			t.Fatal(err)
		}
		var ran []string
		broken := errors.New("broken off")
		fail := true
		steps := []func(string) error{
			func(string) error { ran = append(ran, "1 to 2"); return nil },
			func(string) error {
				ran = append(ran, "2 to 3")
				if fail {
					return broken
				}
				return nil
			},
		}
		if err := blob.Migrate(dir, steps); !errors.Is(err, broken) {
			t.Errorf("got %v, want the migration's error", err)
		}
		fail = false
		for range 2 {
			if err := blob.Migrate(dir, steps); err != nil {
				t.Error(err)
			}
		}
		if want := []string{"1 to 2", "2 to 3", "2 to 3"}; !slices.Equal(ran, want) {
			t.Errorf("ran %q, want %q", ran, want)
		}
		if err := blob.Migrate(dir, nil); cay.CodeOf(err) != cay.NotSupported {
			t.Errorf("the older program: %v, want not_supported", err)
		}
	})
}

func TestDir_damaged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, blob.DirOptions{})
	for name, to := range map[string]string{"out": "/etc", "up": "../../x", "deep": "../data/../names", "lost": "../data/none"} {
		if err := os.Symlink(to, filepath.Join(dir, "names", name)); err != nil {
			t.Fatal(err)
		}
		want := cay.Internal // the directory is not as this program leaves it
		if name == "lost" {
			want = cay.Conflict
		}
		if l, err := s.Local(t.Context(), name); cay.CodeOf(err) != want {
			t.Errorf("a link to %s leads to %+v, %v", to, l, err)
		}
	}
}

// An accepted name stays in the directory and leads to the bytes written.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"snap_1", "..", "a/b", "a\x00b", "-rf", "A.b_c-d", strings.Repeat("a", 200), "\u202e", "con", "a/b/c/d"} {
		f.Add(s, s)
	}
	s := open(f, blobtest.FastDir(f), blob.DirOptions{})
	f.Fuzz(func(t *testing.T, name, file string) {
		if blob.CheckFile(file) != nil {
			file = "f"
		}
		d, err := s.Create(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		blobtest.Write(t, d, map[string]string{file: name})
		_, err = d.Commit(t.Context(), name)
		if valid := blob.CheckName(name) == nil; valid != (err == nil) {
			t.Fatalf("valid is %v, but Commit: %v", valid, err)
		}
		if err != nil {
			if err := d.Abort(); err != nil {
				t.Error(err)
			}
			return
		}
		l, err := s.Local(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if got := blobtest.Read(t, l.Dir); len(got) != 1 || got[file] != name {
			t.Errorf("the blob has %q", got)
		}
		l.Release()
		if err := s.Delete(t.Context(), name); err != nil {
			t.Error(err)
		}
	})
}
