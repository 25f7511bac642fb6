package flock_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/flock"
)

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	a, b := open(), open()
	for _, f := range []*os.File{a, b} {
		if err := flock.Lock(f, unix.LOCK_SH|unix.LOCK_NB); err != nil {
			t.Fatalf("two who share: %v", err)
		}
	}
	if err := flock.Lock(a, unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, flock.ErrLocked) {
		t.Errorf("alone, while another shares: %v", err)
	}
	b.Close()
	if err := flock.Lock(a, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Errorf("alone, once the other is gone: %v", err)
	}
	a.Close()
	if err := flock.Lock(a, unix.LOCK_SH); err == nil || errors.Is(err, flock.ErrLocked) {
		t.Errorf("of a closed file: %v", err)
	}
}

// TestClose: a lock ends with Close even if another process still has the file
// open, as a child has between fork and exec.
func TestClose(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	a, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	inherited, err := unix.Dup(int(a.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(inherited)
	if err := flock.Lock(a, unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if err := flock.Close(a); err != nil {
		t.Fatal(err)
	}
	b, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := flock.Lock(b, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Errorf("after the other was closed: %v", err)
	}
}
