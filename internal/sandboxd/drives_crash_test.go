package sandboxd_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

// driveLife prints each step before it tries the step, and after the answer.
func driveLife(ctx context.Context, dir, point string) error {
	e, _, _, err := crashEngine(ctx, dir)
	if err != nil {
		return err
	}
	e.Reached(dying(point))
	if err := e.Open(ctx); err != nil {
		return err
	}
	var box string
	mount := []sandbox.Mount{{Path: "/workspace/d", Drive: "data"}}
	create := func(name string) func() error {
		return func() error {
			s, err := e.Create(ctx, sandbox.CreateParams{Name: name, Mounts: mount})
			if err == nil {
				box = s.ID
			}
			return err
		}
	}
	write := func(text string) func() error {
		return func() error {
			_, err := e.WriteFile(ctx, box, "d/file", strings.NewReader(text), sandbox.WriteParams{Size: int64(len(text))})
			return err
		}
	}
	save := func() error { _, err := e.SaveDrive(ctx, "data"); return err }
	stop := func() error { _, err := e.Stop(ctx, box); return err }
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"create", func() error { _, err := e.CreateDrive(ctx, sandbox.CreateDriveParams{Name: "data"}); return err }},
		{"box", create("")},
		{"write 1", write("1")}, {"save 1", save},
		{"write 2", write("2")}, {"save 2", save},
		{"clone", func() error {
			_, err := e.CreateDrive(ctx, sandbox.CreateDriveParams{Name: "clone", From: "data"})
			return err
		}},
		{"write 3", write("3")}, {"save 3", stop},
		{"keeper", create("keeper")},
		{"write 4", write("4")}, {"save 4", stop},
		{"remove", func() error { return e.DeleteDrive(ctx, "clone") }},
	} {
		fmt.Println("try", step.name)
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Println("did", step.name)
	}
	return nil
}

// TestCrash_Drives checks that at whatever point the daemon is killed, a drive has the
// content saved before or the content that was being saved, no sandbox has the drive, and
// nothing else is left.
func TestCrash_Drives(t *testing.T) {
	checktest.Long(t)
	for _, c := range []struct {
		point string
		times int // how often the daemon reaches the point
	}{
		{"drive-created", 2}, {"drive-saving", 5}, {"drive-written", 5}, {"drive-committed", 5}, {"drive-switched", 5},
		{"drive-dropped", 5}, {"drive-copied", 1}, {"drive-removed", 1},
		{"inserted", 2}, {"started", 2}, {"running", 2}, {"stopping", 2}, {"destroyed", 2}, {"ended", 2},
	} {
		for n := 1; n <= c.times; n++ {
			t.Run(fmt.Sprint(c.point, "-", n), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				said := make(map[string]bool)
				for _, line := range crash(t, "drives", dir, fmt.Sprint(c.point, " ", n)) {
					said[line] = true
				}
				checkDrives(t, dir, said)
			})
		}
	}
}

func checkDrives(t *testing.T, dir string, said map[string]bool) {
	e, d, _ := recovered(t, dir)
	ctx := sandboxtest.As(t.Context(), sandboxtest.Default)

	// holds returns the content of a drive, and checks that the drive can be written to.
	holds := func(ref string) (string, bool) {
		t.Helper()
		got, err := e.GetDrive(ctx, ref)
		if cay.CodeOf(err) == cay.NotFound {
			return "", false
		}
		if err != nil {
			t.Fatal(err)
		}
		if got.SandboxID != "" {
			t.Errorf("drive %s is held by %s", ref, got.SandboxID)
		}
		s, err := e.Create(ctx, sandbox.CreateParams{Mounts: []sandbox.Mount{{Path: "/workspace/d", Drive: ref}}})
		if err != nil {
			t.Fatal(err)
		}
		out, err := e.Exec(ctx, s.ID, sandbox.CommandParams{Argv: []string{"sh", "-c", "if test -e d/file; then cat d/file; fi"}})
		if err != nil {
			t.Fatal(err)
		}
		text := sandboxtest.ReadText(t, out)
		if err := e.Delete(ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		return text, true
	}
	text, there := holds("data")
	if !there && said["did create"] {
		t.Error("the drive is lost")
	}
	saved, tried := 0, 0
	for i := 1; i <= 4; i++ {
		n := strconv.Itoa(i)
		if said["did save "+n] {
			saved = i
		}
		if said["try save "+n] || i == 2 && said["try clone"] {
			tried = i
		}
	}
	if got, _ := strconv.Atoi(text); got < saved || got > tried {
		t.Errorf("the drive has %q, want %d to %d", text, saved, tried)
	}
	text, there = holds("clone")
	switch {
	case there && text != "2":
		t.Errorf("the clone has %q", text)
	case there && said["did remove"], !there && said["did clone"] && !said["try remove"]:
		t.Errorf("the clone is there: %v", there)
	}

	for _, drive := range []string{"data", "clone"} {
		if err := e.DeleteDrive(ctx, drive); err != nil && cay.CodeOf(err) != cay.NotFound {
			t.Error(err)
		}
	}
	if _, err := e.SweepDrives(ctx, 0); err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"names", "data"} {
		left, err := os.ReadDir(filepath.Join(dir, "drives", sub))
		if err != nil || len(left) != 0 {
			t.Errorf("of drives that were removed, %v is left: %v, %v", sub, left, err)
		}
	}
	if err := d.Check(ctx); err != nil {
		t.Error(err)
	}
}
