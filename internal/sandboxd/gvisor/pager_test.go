package gvisor

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/sandboxd/machine"
)

// pagerRuntime returns a Runtime with the fields that a pager needs.
func pagerRuntime(t *testing.T) *Runtime {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("pagers need root")
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, emptyDir), 0); err != nil {
		t.Fatal(err)
	}
	return &Runtime{cfg: Config{StateDir: dir}, log: slog.New(slog.DiscardHandler)}
}

// A pager is in its machine's cgroup also in version 2, and ends with the sentry's end of
// the socket.
func TestPager_CgroupV2(t *testing.T) {
	r := pagerRuntime(t)
	tree := t.TempDir()
	if err := unix.Mount("cgroup2", tree, "cgroup2", 0, ""); err != nil {
		t.Skip("this host has no cgroup v2: ", err)
	}
	t.Cleanup(func() { unix.Unmount(tree, unix.MNT_DETACH) })
	g := &group{v2: true, dirs: map[string]string{"": filepath.Join(tree, "cay-test-pager")}}
	if err := os.Mkdir(g.dirs[""], 0o755); err != nil {
		t.Fatal(err)
	}
	p, end, err := r.startPager(loads, 0, g, nil)
	if err != nil {
		t.Fatal(g.remove(), err)
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.cmd.Process.Pid))
	if err != nil || !strings.Contains(string(b), "0::/cay-test-pager\n") {
		t.Errorf("the pager is in\n%s, %v", b, err)
	}
	if err := end.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.wait(); err != nil {
		t.Errorf("the pager: %v", err)
	}
	if err := g.end(t.Context()); err != nil {
		t.Error(err)
	}
}

// A pager ends with the socket, and reports why if it ends earlier.
func TestPager_Ends(t *testing.T) {
	r := pagerRuntime(t)
	for _, does := range []string{loads, saves} {
		p, end, err := r.startPager(does, 0, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := end.Close(); err != nil {
			t.Fatal(err)
		}
		if err := p.wait(); err != nil {
			t.Errorf("%s: %v", does, err)
		}
	}
	path := filepath.Join(t.TempDir(), machine.StateName)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	empty, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer empty.Close()
	p, end, err := r.startPager(loads, 0, nil, openFiles{empty})
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	if err := p.wait(); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("without a manifest: %v", err)
	}
}
