package gvisor_test

import (
	"os/exec"
	"regexp"
	"strconv"
	"testing"
)

// A child of the daemon starts with room for a sentry's file descriptors.
func TestFileTable(t *testing.T) {
	newRuntime(t, t.TempDir())
	status, err := exec.Command("cat", "/proc/self/status").Output()
	if err != nil {
		t.Fatal(err)
	}
	size := regexp.MustCompile(`(?m)^FDSize:\s+([0-9]+)$`).FindSubmatch(status)
	if size == nil {
		t.Fatalf("no size in\n%s", status)
	}
	// A child that inherits a high descriptor by chance has 256; the next size is 512.
	if n, err := strconv.Atoi(string(size[1])); err != nil || n < 512 {
		t.Errorf("a child begins with a table of %s file descriptors (%v), want 512 or more", size[1], err)
	}
}
