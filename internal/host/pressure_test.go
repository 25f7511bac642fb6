package host

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// CPUWait is the kernel's pressure stall time, or else derived from the number of
// runnable processes.
func TestCPUWait(t *testing.T) {
	t.Parallel()
	proc := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(proc, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	running := func(n int) { write("stat", fmt.Sprintf("cpu 1 2 3 4 5 6 7 8 9 10\nprocs_running %d\n", n)) }
	synctest.Test(t, func(t *testing.T) {
		var s stall
		want := func(d time.Duration) {
			t.Helper()
			if got := s.read(proc); got != d {
				t.Errorf("something has waited for %v, want %v", got, d)
			}
		}
		want(0) // nothing is known
		running(1)
		want(0)
		running(100000)
		time.Sleep(time.Second)
		want(0) // it was well before
		time.Sleep(time.Second)
		want(time.Second)
		running(1)
		time.Sleep(time.Second)
		want(time.Second)
		time.Sleep(time.Second)
		want(time.Second)
		write("pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=3000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
		want(3 * time.Second)
	})
}
