package gvisor

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
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
	own, err := ProgramID(bytes.NewReader(program))
	if err != nil || len(own) != 32 {
		t.Errorf("this program is %q, %v", own, err)
	}
	if id, err := ProgramID(bytes.NewReader(append(program, 0))); err != nil || id != own {
		t.Errorf("with a byte after its sections it is %q, %v, not %q", id, err, own)
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
