package programs_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd/programs"
)

// open returns a store over dir.
func open(t *testing.T, dir string) *programs.Store {
	t.Helper()
	return programs.New(checktest.Must(blob.OpenDir(dir, blob.DirOptions{}))(t))
}

// program returns the file of a program with the given content, and its id.
func program(t *testing.T, content string) (*os.File, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	checktest.OK(t, os.WriteFile(path, []byte(content), 0o700))
	f := checktest.Must(os.Open(path))(t)
	t.Cleanup(func() { f.Close() })
	return f, checktest.Must(programs.ID(f))(t)
}

func TestStore(t *testing.T) {
	t.Parallel()
	ctx, dir := t.Context(), t.TempDir()
	s := open(t, dir)
	f, id := program(t, "#!/bin/sh\n")
	for range 2 { // the second time it is there
		checktest.OK(t, s.Add(ctx, id, f))
	}
	path := checktest.Must(s.Path(ctx, id))(t)
	if got := checktest.Must(os.ReadFile(path))(t); string(got) != "#!/bin/sh\n" {
		t.Errorf("the program is %q", got)
	}
	if mode := checktest.Must(os.Stat(path))(t).Mode(); mode != 0o555 {
		t.Errorf("the mode of the program is %v", mode)
	}
	_, err := s.Path(ctx, "00000000000000000000000000000000")
	checktest.Code(t, err, cay.NotFound)
	for _, id := range []string{"", "../../etc/passwd", id + "x"} {
		_, err := s.Path(ctx, id)
		checktest.Code(t, err, cay.NotFound)
	}
}

// A program whose file does not have the content that its id says is never executed.
func TestStore_Damaged(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := open(t, t.TempDir())
	f, id := program(t, "one")
	checktest.OK(t, s.Add(ctx, id, f))
	path := checktest.Must(s.Path(ctx, id))(t)
	checktest.OK(t, os.Chmod(path, 0o755))
	checktest.OK(t, os.WriteFile(path, []byte("another"), 0o755))
	_, err := s.Path(ctx, id)
	checktest.Code(t, err, cay.Conflict)

	other, _ := program(t, "two")
	if err := s.Add(ctx, "11111111111111111111111111111111", other); err == nil {
		t.Error("a program was stored under the id of another")
	}
}

func TestStore_Collect(t *testing.T) {
	t.Parallel()
	ctx, dir := t.Context(), t.TempDir()
	s := open(t, dir)
	freed := 0
	s.OnFree(func() { freed++ })
	var ids []string
	for _, content := range []string{"needed", "held", "neither"} {
		f, id := program(t, content)
		checktest.OK(t, s.Add(ctx, id, f))
		ids = append(ids, id)
	}
	needed := map[string]bool{ids[0]: true}
	release, again := s.Hold(ids[1]), s.Hold(ids[1], ids[0])
	for _, step := range []struct {
		first func()
		want  []string
		freed int
	}{
		{func() {}, ids[2:], 0},
		{release, nil, 0},
		{release, nil, 0}, // which counts once
		{again, ids[1:2], 1},
	} {
		step.first()
		if freed != step.freed {
			t.Errorf("%d calls of OnFree's function, want %d", freed, step.freed)
		}
		if got := checktest.Must(s.Collect(ctx, needed))(t); !slices.Equal(got, step.want) {
			t.Errorf("removed %q, want %q", got, step.want)
		}
	}
	s = open(t, dir) // a later process
	checktest.Must(s.Path(ctx, ids[0]))(t)
	_, err := s.Path(ctx, ids[1])
	checktest.Code(t, err, cay.NotFound)
}

func TestParsePair(t *testing.T) {
	t.Parallel()
	p := programs.Pair{Sentry: string(bytes.Repeat([]byte("a"), 32)), Guest: string(bytes.Repeat([]byte("0"), 32))}
	if got, ok := programs.ParsePair(p.String()); !ok || got != p {
		t.Errorf("got %v, %t", got, ok)
	}
	for _, text := range []string{"", "unknown", p.Sentry, p.String() + "0", p.Sentry + "-" + p.Guest, "../" + p.String()[3:]} {
		if got, ok := programs.ParsePair(text); ok {
			t.Errorf("%q is %v", text, got)
		}
	}
}
