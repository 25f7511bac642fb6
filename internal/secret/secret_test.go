package secret_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/secret"
)

func open(t *testing.T, file string) *secret.Box {
	t.Helper()
	b, err := secret.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBox(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "secret.key")
	b := open(t, file)
	plain := []byte("Bearer sk-very-secret")
	sealed := b.Seal(plain, "sandbox a")
	if bytes.Contains(sealed, plain) || bytes.Equal(sealed, b.Seal(plain, "sandbox a")) {
		t.Error("the same bytes are sealed the same way, or not at all")
	}
	// The key is kept.
	again := open(t, file)
	if got, err := again.Open(sealed, "sandbox a"); err != nil || !bytes.Equal(got, plain) {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err := again.Open(b.Seal(nil, "x"), "x"); err != nil || len(got) != 0 {
		t.Errorf("nothing, sealed, opens as %q, %v", got, err)
	}
	if !bytes.Equal(b.Key("links"), again.Key("links")) || bytes.Equal(b.Key("links"), b.Key("other")) {
		t.Error("derived keys are not the same for the same purpose only")
	}

	other := open(t, filepath.Join(t.TempDir(), "secret.key"))
	for name, try := range map[string]func() ([]byte, error){
		"other owner": func() ([]byte, error) { return b.Open(sealed, "sandbox b") },
		"other key":   func() ([]byte, error) { return other.Open(sealed, "sandbox a") },
		"cut":         func() ([]byte, error) { return b.Open(sealed[:len(sealed)-1], "sandbox a") },
		"short":       func() ([]byte, error) { return b.Open(sealed[:5], "sandbox a") },
		"empty":       func() ([]byte, error) { return b.Open(nil, "sandbox a") },
		"version":     func() ([]byte, error) { return b.Open(append([]byte{9}, sealed[1:]...), "sandbox a") },
		"flipped": func() ([]byte, error) {
			damaged := bytes.Clone(sealed)
			damaged[len(damaged)/2] ^= 1
			return b.Open(damaged, "sandbox a")
		},
	} {
		if got, err := try(); err == nil || !strings.Contains(err.Error(), "sandbox") {
			t.Errorf("%s: it opened as %q, %v", name, got, err)
		}
	}
}

func TestOpen_Permissions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "secret.key")
	open(t, file)
	mode := func() os.FileMode {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode().Perm()
	}
	if mode() != 0o600 {
		t.Errorf("the key's mode is %v", mode())
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	open(t, file)
	if mode() != 0o600 {
		t.Errorf("the key's mode stays %v", mode())
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("beside the key there is more: %v, %v", entries, err)
	}
}

func TestOpen_Damaged(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "secret.key")
	open(t, file)
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(whole)
	flipped[40] ^= 1
	for name, content := range map[string][]byte{
		"empty": nil, "cut": whole[:50], "flipped": flipped, "longer": append(bytes.TrimSpace(whole), "00"...),
		"random": bytes.Repeat([]byte{7}, 32),
	} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := secret.Open(file); cay.CodeOf(err) != cay.Internal || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := secret.Open(filepath.Join(t.TempDir(), "missing", "secret.key")); err == nil {
		t.Error("a key was made in a directory that is missing")
	}
}

// Concurrent calls that create the key get the same key.
func TestOpen_Race(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "secret.key")
	var wg sync.WaitGroup
	boxes := make([]*secret.Box, 8)
	for i := range boxes {
		wg.Go(func() { boxes[i], _ = secret.Open(file) })
	}
	wg.Wait()
	for _, b := range boxes {
		if b == nil || !bytes.Equal(b.Key("x"), boxes[0].Key("x")) {
			t.Fatal("the boxes differ")
		}
	}
}
