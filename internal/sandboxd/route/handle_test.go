package route_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd/route"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

// newHandle returns a running sandbox of an engine behind HTTP, and its client.
func newHandle(t *testing.T) (*sandbox.Handle, *sandbox.Client) {
	t.Helper()
	h, _ := sandboxtest.StartFake(t)
	mux := api.NewMux(callers{})
	route.Mount(mux, h.Engine, context.Background())
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = api.NewServer(mux, nil, slog.New(slog.DiscardHandler))
	srv.Start()
	t.Cleanup(srv.Close)
	c := dialWire(t, srv.URL, nil)
	c.Token = "cay_" + sandboxtest.Default.TokenID
	sb, err := c.Create(t.Context(), sandbox.CreateParams{})
	if err != nil {
		t.Fatal(err)
	}
	return c.Sandbox(sb.ID), c
}

func TestHandle_Run(t *testing.T) {
	checktest.Long(t)
	t.Parallel()
	h, _ := newHandle(t)
	got, err := h.Run(t.Context(), sandbox.CommandParams{Argv: []string{"sh", "-c", "echo out; echo err >&2; exit 3"}})
	if err != nil || string(got.Stdout) != "out\n" || string(got.Stderr) != "err\n" || got.Exit.Code != 3 || got.Truncated {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := h.Run(t.Context(), sandbox.CommandParams{Argv: []string{"no-such-program"}}); cay.CodeOf(err) != cay.ExecutableMissing {
		t.Errorf("a missing program: %v", err)
	}
	got, err = h.Run(t.Context(), sandbox.CommandParams{Argv: []string{"head", "-c", "20000000", "/dev/zero"}})
	if err != nil || len(got.Stdout) != 16<<20 || !got.Truncated {
		t.Errorf("20 MB: %d bytes, truncated %v, %v", len(got.Stdout), got.Truncated, err)
	}
}

func TestHandle_RunIsKilledWithItsContext(t *testing.T) {
	t.Parallel()
	h, c := newHandle(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	started := make(chan struct{})
	cmd := h.Command(ctx, "sh", "-c", "echo started; exec sleep 1000")
	cmd.Stdout = writerFunc(func(p []byte) (int, error) {
		close(started)
		return len(p), nil
	})
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-started
	cancel()
	if err := cmd.Wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait: %v", err)
	}
	wantKilled(t, c, h, cmd, 9)
}

// wantKilled waits for the end of a command, which must be caused by a signal.
func wantKilled(t *testing.T, c *sandbox.Client, h *sandbox.Handle, cmd *sandbox.Cmd, sig int) {
	t.Helper()
	got, err := c.Wait(t.Context(), h.Ref(), cmd.Command.ID)
	if err != nil || got.Exit.Signal != sig {
		t.Errorf("the command ended as %+v, %v; want signal %d", got, err, sig)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestHandle_Command(t *testing.T) {
	t.Parallel()
	h, c := newHandle(t)
	t.Run("stdin to stdout", func(t *testing.T) {
		t.Parallel()
		in := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		cmd := h.Command(t.Context(), "cat")
		cmd.Stdin = bytes.NewReader(in)
		out, err := cmd.Output()
		if err != nil || !bytes.Equal(out, in) {
			t.Errorf("%d bytes became %d, %v", len(in), len(out), err)
		}
	})
	t.Run("exit status", func(t *testing.T) {
		t.Parallel()
		_, err := h.Command(t.Context(), "sh", "-c", "echo why >&2; exit 4").Output()
		var exit *sandbox.ExitError
		if !errors.As(err, &exit) || exit.Exit.Code != 4 || string(exit.Stderr) != "why\n" {
			t.Errorf("%#v", err)
		}
	})
	t.Run("stdin that nobody reads", func(t *testing.T) {
		t.Parallel()
		r, w := io.Pipe()
		defer w.Close()
		cmd := h.Command(t.Context(), "true")
		cmd.Stdin = r
		if err := cmd.Run(); err != nil {
			t.Error(err)
		}
	})
	t.Run("stdout that breaks", func(t *testing.T) {
		t.Parallel()
		cmd := h.Command(t.Context(), "yes")
		broken := errors.New("broken")
		cmd.Stdout = writerFunc(func([]byte) (int, error) { return 0, broken })
		if err := cmd.Run(); !errors.Is(err, broken) {
			t.Errorf("Run: %v", err)
		}
		wantKilled(t, c, h, cmd, 13)
	})
	t.Run("twice", func(t *testing.T) {
		t.Parallel()
		cmd := h.Command(t.Context(), "true")
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Run(); cay.CodeOf(err) != cay.Conflict {
			t.Errorf("the second time: %v", err)
		}
	})
}

func TestHandle_Files(t *testing.T) {
	t.Parallel()
	h, _ := newHandle(t)
	if err := h.WriteFile(t.Context(), "new/dir/a.txt", []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := h.ReadFile(t.Context(), "new/dir/a.txt"); err != nil || string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := h.ReadFile(t.Context(), "none"); cay.CodeOf(err) != cay.FileNotFound {
		t.Errorf("a missing file: %v", err)
	}
	if err := h.WriteFile(t.Context(), "empty", nil, 0); err != nil {
		t.Fatal(err)
	}
	if b, err := h.ReadFile(t.Context(), "empty"); err != nil || len(b) != 0 {
		t.Errorf("%q, %v", b, err)
	}
}

// tree makes a directory with a file of each type that is copied.
func tree(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tree")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "sub", "empty"), 0o755),
		os.WriteFile(filepath.Join(dir, "file"), []byte("content"), 0o640),
		os.WriteFile(filepath.Join(dir, "sub", "run.sh"), []byte("#!/bin/sh\n"), 0o755),
		os.WriteFile(filepath.Join(dir, "sub", "ä\xff"), nil, 0o644),
		os.WriteFile(filepath.Join(dir, "big"), bytes.Repeat([]byte("x"), 1<<20), 0o644),
		os.Symlink("../file", filepath.Join(dir, "sub", "link")),
		os.Link(filepath.Join(dir, "big"), filepath.Join(dir, "sub", "hard")),
		os.Link(filepath.Join(dir, "big"), filepath.Join(dir, "a hard one")),
		os.Symlink("/nowhere", filepath.Join(dir, "dangling")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for i, name := range []string{"file", "sub/run.sh", "sub/ä\xff", "big", "sub/empty", "sub"} { // sub last, because writing the files in it changes its time
		when := someTime.Truncate(time.Second).Add(time.Duration(i)*time.Minute + 123_456_789)
		if err := os.Chtimes(filepath.Join(dir, name), when, when); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// listing describes all that is below dir.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	var seen []fs.FileInfo
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, name)
		b.WriteString(rel + " " + fi.Mode().String())
		switch fi.Mode().Type() {
		case 0:
			c, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			b.WriteString(" " + strconv.Itoa(len(c)) + " " + fi.ModTime().UTC().String())
			if i := slices.IndexFunc(seen, func(s fs.FileInfo) bool { return os.SameFile(s, fi) }); i >= 0 {
				b.WriteString(" is " + seen[i].Name())
			}
			seen = append(seen, fi)
		case fs.ModeDir:
			b.WriteString(" " + fi.ModTime().UTC().String())
		case fs.ModeSymlink:
			l, err := os.Readlink(name)
			if err != nil {
				return err
			}
			b.WriteString(" " + l)
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestHandle_Copy(t *testing.T) {
	t.Parallel()
	h, _ := newHandle(t)
	ctx := t.Context()
	dir := tree(t)
	want := listing(t, dir)

	// A directory there and back again.
	if err := h.CopyTo(ctx, dir, "there"); err != nil {
		t.Fatal(err)
	}
	back := filepath.Join(t.TempDir(), "back")
	if err := h.CopyFrom(ctx, "there", back); err != nil {
		t.Fatal(err)
	}
	if got := listing(t, back); got != want {
		t.Errorf("copied back:\n%swant\n%s", got, want)
	}
	// Into directories, under their own names; the second time over existing files.
	for range 2 {
		if err := h.CopyTo(ctx, dir, "there"); err != nil {
			t.Fatal(err)
		}
		if err := h.CopyFrom(ctx, "there/tree", back); err != nil {
			t.Fatal(err)
		}
	}
	if got := listing(t, filepath.Join(back, "tree")); got != want {
		t.Errorf("copied into a directory:\n%swant\n%s", got, want)
	}
	// Files, and through links.
	if err := h.CopyTo(ctx, filepath.Join(dir, "file"), "one/"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Run(ctx, sandbox.CommandParams{Argv: []string{"sh", "-c", "touch -d '2026-11-20 12:00:00.5 UTC' one/file; ln -s one/file l1; ln -s there l2"}}); err != nil {
		t.Fatal(err)
	}
	for remote, local := range map[string]string{"one/file": "f", "l1": "f2"} {
		local = filepath.Join(back, local)
		if err := h.CopyFrom(ctx, remote, local); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(local); err != nil || string(b) != "content" {
			t.Errorf("%s: %q, %v", remote, b, err)
		}
		want := time.Date(2026, 11, 20, 12, 0, 0, 5e8, time.UTC)
		if fi := checktest.Must(os.Stat(local))(t); !fi.ModTime().Equal(want) {
			t.Errorf("%s is of %v, want %v", remote, fi.ModTime(), want)
		}
	}
	if err := h.CopyFrom(ctx, "l2", filepath.Join(back, "d2")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(back, "d2", "sub", "run.sh")); err != nil {
		t.Error(err)
	}
	// Missing files.
	if err := h.CopyTo(ctx, filepath.Join(dir, "none"), "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("from nowhere: %v", err)
	}
	if err := h.CopyFrom(ctx, "none", back); cay.CodeOf(err) != cay.FileNotFound {
		t.Errorf("of nothing: %v", err)
	}
}

func TestHandle_FS(t *testing.T) {
	t.Parallel()
	h, _ := newHandle(t)
	for name, data := range map[string]string{"root/a.txt": "a", "root/sub/b.txt": "bb", "root/sub/deep/c": ""} {
		if err := h.WriteFile(t.Context(), name, []byte(data), 0); err != nil {
			t.Fatal(err)
		}
	}
	fsys := h.FS(t.Context(), "root")
	if err := fstest.TestFS(fsys, "a.txt", "sub/b.txt", path.Join("sub", "deep", "c")); err != nil {
		t.Error(err)
	}
	if _, err := fs.Stat(fsys, "none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}
