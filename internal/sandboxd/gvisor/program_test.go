package gvisor

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
)

func TestOpenProgram(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte("#!/bin/true"), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := openProgram(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// When a child is about to execute the program, the sentry's own files are below
	// tableFile.
	if f.Fd() < tableFile {
		t.Errorf("it is open as descriptor %d, want %d or above", f.Fd(), tableFile)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := openProgram(path); err == nil {
		t.Error("a file that cannot be executed is a program")
	}
}

func TestProgramID(t *testing.T) {
	t.Parallel()
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	own, err := buildID()
	if id, err2 := ProgramID(bytes.NewReader(program)); err != nil || err2 != nil || id != own || len(id) != 32 {
		t.Errorf("this program is %q, %v, and from memory %q, %v", own, err, id, err2)
	}
	seen := map[string]bool{own: true}
	for _, other := range [][]byte{nil, program[:1000], []byte("no program")} { // without the linker's build id
		id, err := ProgramID(bytes.NewReader(other))
		if err != nil || seen[id] {
			t.Errorf("%d bytes are %q, %v", len(other), id, err)
		}
		seen[id] = true
	}
}

// Saved memory is read by builds with the same programs and the same code that reads it.
func TestMemoryID(t *testing.T) {
	t.Parallel()
	sources := func(text string) fs.FS {
		return fstest.MapFS{"restore.go": {Data: []byte(text)}, "note.txt": {Data: []byte(text)}}
	}
	same := memoryID("sentry", "guest", sources("a"))
	if again := memoryID("sentry", "guest", sources("a")); again != same || len(same) != 32 {
		t.Errorf("%q, then %q", same, again)
	}
	for what, other := range map[string]string{
		"sentry": memoryID("sentry2", "guest", sources("a")),
		"guest":  memoryID("sentry", "guest2", sources("a")),
		"source": memoryID("sentry", "guest", sources("b")),
	} {
		if other == same {
			t.Errorf("another %s does not change the id", what)
		}
	}
	if own := memoryID("sentry", "guest", restorers); own == memoryID("sentry", "guest", fstest.MapFS{}) {
		t.Error("no sources are embedded")
	}
}
