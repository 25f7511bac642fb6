package gvisor_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The umounter does what it is told when it is told, and is done before the sentry
// has begun, as are most packages.
func TestUmounter(t *testing.T) {
	told, tell, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer told.Close()
	var said strings.Builder
	cmd := exec.Command("/proc/self/exe", "umount", "--sync-fd=3", "/nowhere")
	cmd.ExtraFiles, cmd.Stderr = []*os.File{told}, &said
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := tell.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if err := tell.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("there is nothing to unmount, and it ended with %v", err)
	}
	if !strings.Contains(said.String(), "init runtime ") || strings.Contains(said.String(), "init gvisor.dev/gvisor/pkg/sentry/") {
		t.Errorf("it has initialized\n%s", said.String())
	}
}
