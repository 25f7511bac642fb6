// Package imagetest gives tests the real default image and runtimes, from one
// store that all test packages share and that outlives a test run.
package imagetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/image"
	"github.com/cayhq/cay/sandbox"
)

// Dir is the directory of the shared store: $CAY_TEST_IMAGES, or .cache/images
// in the root of the repository.
func Dir(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv("CAY_TEST_IMAGES"); dir != "" {
		return dir
	}
	mod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		t.Fatalf("find the root of the repository: %v", err)
	}
	return filepath.Join(filepath.Dir(strings.TrimSpace(string(mod))), ".cache", "images")
}

// Open opens the shared store.
func Open(t testing.TB) *image.Store {
	t.Helper()
	s, err := image.Open(Dir(t), image.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Acquire leases an image of the shared store until the test ends. It builds the image
// first if the image is missing or outdated, once for all packages under test. If the
// image cannot be made because a program is missing, the test is skipped with the reason.
func Acquire(t testing.TB, ref string) *image.Lease {
	t.Helper()
	s := Open(t)
	progress := func(p sandbox.ImageProgress) {
		if p.Phase != "download" {
			t.Logf("%s: %s %s", ref, p.Phase, p.Item)
		}
	}
	if outdated, err := s.Outdated(t.Context(), ref); err != nil && cay.CodeOf(err) != cay.NotFound {
		t.Fatalf("image %s: %v", ref, err)
	} else if outdated {
		if _, err := s.Build(t.Context(), ref, progress); err != nil {
			t.Fatalf("image %s: %v", ref, err)
		}
		// The old image is large; its users have leases.
		if _, err := s.GC(t.Context(), false); err != nil {
			t.Logf("clean up after rebuilding %s: %v", ref, err)
		}
	}
	lease, err := s.Ensure(t.Context(), ref, progress)
	// In CI everything is installed: a skip there would hide a broken installation.
	if cay.CodeOf(err) == cay.NotSupported && os.Getenv("CI") == "" {
		t.Skipf("image %s: %v", ref, err)
	}
	if err != nil {
		t.Fatalf("image %s: %v", ref, err)
	}
	t.Cleanup(lease.Release)
	return lease
}
