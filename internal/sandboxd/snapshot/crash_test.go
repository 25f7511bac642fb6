package snapshot_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/blob/blobtest"
	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/internal/sandboxd/snapshot"
	"github.com/cayhq/cay/internal/seedtest"
)

// crashEnv makes the test binary a process that works on the snapshots in a
// directory until it is killed.
const crashEnv = "CAY_SNAPSHOT_TEST_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashEnv); dir != "" {
		fmt.Fprintln(os.Stderr, work(dir))
		os.Exit(1)
	}
	leaktest.Main(m)
}

// work commits, imports, deletes and collects snapshots. It prints each snapshot that
// exists and each that it is about to delete.
func work(dir string) error {
	ctx := context.Background()
	blobs, err := blob.OpenDir(dir, blob.DirOptions{})
	if err != nil {
		return err
	}
	s := snapshot.New(blobs)
	live := map[string]bool{}
	for i := 0; ; i++ {
		written, imported := fmt.Sprint("snap_w", i), fmt.Sprint("snap_i", i)
		d, err := s.Create(ctx, 0)
		if err != nil {
			return err
		}
		for _, f := range []string{"disk/a", "disk/b", "memory/c"} {
			w, err := d.Writer(f)
			if err != nil {
				return err
			}
			_, err = io.WriteString(w, strings.Repeat(f+written, 1000))
			if err := errors.Join(err, w.Close()); err != nil {
				return err
			}
		}
		if _, err := d.Commit(ctx, manifest(written, snapshot.Memory)); err != nil {
			return err
		}
		fmt.Println("+", written)
		var archive bytes.Buffer
		if err := s.Export(ctx, written, &archive); err != nil {
			return err
		}
		if _, err := s.Import(ctx, &archive, snapshot.ImportParams{ID: imported}); err != nil {
			return err
		}
		fmt.Println("+", imported)
		fmt.Println("-", written)
		if i%2 == 0 {
			err = s.Delete(ctx, written)
		} else {
			live[imported] = true
			_, err = s.Collect(ctx, live, 0)
		}
		if err != nil {
			return err
		}
		if i%2 == 0 {
			fmt.Println("-", imported)
			if err := s.Delete(ctx, imported); err != nil {
				return err
			}
		}
	}
}

// TestCrash kills a process at any point of its work, again and again over one directory.
// Every snapshot is complete or absent, and every snapshot that the process reported as
// committed is present, unless it was to be deleted.
func TestCrash(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := blobtest.FastDir(t)
	random := seedtest.Rand(t)
	for round := range 20 {
		cmd := exec.CommandContext(t.Context(), exe)
		cmd.Env = append(os.Environ(), crashEnv+"="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		said := map[string]bool{}
		lines := bufio.NewScanner(out)
		for n := 1 + random.IntN(40); lines.Scan(); n-- {
			sign, id, _ := strings.Cut(lines.Text(), " ")
			said[id] = sign == "+"
			if n == 0 {
				// By now the process is somewhere after that line.
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		err = cmd.Wait()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("the process was not killed: %v", err)
		}
		s := openStore(t, dir)
		if _, err := s.blobs.Clean(t.Context(), 0); err != nil {
			t.Error(err)
		}
		there, err := s.blobs.List(t.Context(), blob.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, info := range there {
			snap, err := s.Open(t.Context(), info.Name)
			if err != nil {
				t.Errorf("round %d: %v", round, err)
				continue
			}
			if err := snap.Verify(t.Context()); err != nil {
				t.Errorf("round %d: %v", round, err)
			}
			snap.Close()
			delete(said, info.Name)
		}
		for id, was := range said {
			if was {
				t.Errorf("round %d: %s was there and is not", round, id)
			}
		}
		if content, err := os.ReadDir(filepath.Join(dir, "data")); err != nil || len(content) != len(there) {
			t.Errorf("round %d: %d directories are left of %d snapshots, %v", round, len(content), len(there), err)
		}
		if r, err := s.Collect(t.Context(), nil, 0); err != nil || len(r.Removed) != len(there) {
			t.Errorf("round %d: %+v, %v", round, r, err)
		}
		nothingLeft(t, s)
	}
}

// BenchmarkCommit commits, verifies and exports 100 MiB that are in memory.
func BenchmarkCommit(b *testing.B) {
	s := openStore(b, blobtest.FastDir(b))
	content := make([]byte, 100<<20)
	for i := range content {
		content[i] = byte(i * 7)
	}
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		d, err := s.Create(b.Context(), 100<<20)
		if err != nil {
			b.Fatal(err)
		}
		dir, err := d.DiskDir()
		if err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "pages.img"), content, 0o600); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		m, err := d.Commit(b.Context(), manifest(fmt.Sprint("snap_", i), snapshot.Filesystem))
		if err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		b.StopTimer()
		snap, err := s.Open(b.Context(), m.ID)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(time.Since(began).Microseconds()), "open-us")
		began = time.Now()
		if err := snap.Verify(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "verify-ms")
		snap.Close()
		if err := s.Delete(b.Context(), m.ID); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
