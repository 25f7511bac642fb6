package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/account"
)

// tree writes files below a new directory, in which "@" stands for that directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(files[name], "@", dir)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const gib = 1 << 30

// machine returns the files of /proc for a machine with 8 GiB of memory, 5 GiB available.
func machine(more map[string]string) map[string]string {
	files := map[string]string{
		"proc/stat":      "cpu 100 0 100 700 100 0 0 0 0 0\n",
		"proc/loadavg":   "0.50 0.25 0.125 1/100 42\n",
		"proc/meminfo":   fmt.Sprintf("MemTotal: %d kB\nMemAvailable: %d kB\n", 8*gib/1024, 5*gib/1024),
		"proc/self/stat": "42 (cay) S 1 1 1 0 -1 0 0 0 0 0 10 10 0 0 20 0 1 0 100 1000000 256 18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n",
	}
	maps.Copy(files, more)
	return files
}

// reader returns a Reader of the machine in dir, with /proc/self as a symbolic link.
func reader(t *testing.T, dir string) *Reader {
	t.Helper()
	if err := os.Rename(filepath.Join(dir, "proc/self"), filepath.Join(dir, "proc/42")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("42", filepath.Join(dir, "proc/self")); err != nil {
		t.Fatal(err)
	}
	return newReader(filepath.Join(dir, "proc"), dir)
}

// Limits come from all groups, from the process's own group up to the mounted root.
func TestReader_Limits(t *testing.T) {
	t.Parallel()
	if runtime.NumCPU() < 2 {
		t.Skip("a limit of 1.5 CPUs is none here")
	}
	const v2 = "30 23 0:26 / @/cg rw - cgroup2 cgroup2 rw\n"
	all := float64(runtime.NumCPU())
	for name, test := range map[string]struct {
		files            map[string]string
		cpus             float64
		total, available int64
	}{
		"none": {nil, all, 8 * gib, 5 * gib},
		"a group without limits": {map[string]string{
			"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": v2, "cg/a/cpu.max": "max 100000\n", "cg/a/memory.max": "max\n",
		}, all, 8 * gib, 5 * gib},
		"its own": {map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": v2, "cg/a/b/cpu.max": "150000 100000\n", "cg/a/b/cpu.stat": "usage_usec 5\n",
			"cg/a/b/memory.max": strconv.Itoa(2 * gib), "cg/a/b/memory.current": strconv.Itoa(gib), "cg/a/b/memory.stat": "file 9\ninactive_file " + strconv.Itoa(gib/2) + "\n",
		}, 1.5, 2 * gib, 1.5 * gib},
		"of one above": {map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": v2, "cg/a/cpu.max": "50000 100000\n", "cg/a/b/cpu.max": "150000 100000\n",
			"cg/a/memory.max": strconv.Itoa(gib), "cg/a/memory.current": strconv.Itoa(2 * gib), "cg/a/b/memory.max": strconv.Itoa(3 * gib),
		}, 0.5, gib, 0},
		"of a container": {map[string]string{
			"proc/self/cgroup": "0::/pod/x\n", "proc/self/mountinfo": "30 23 0:26 /pod/x @/cg rw - cgroup2 cgroup2 rw\n",
			"cg/cpu.max": "150000 100000\n", "cg/memory.max": strconv.Itoa(gib),
		}, 1.5, gib, gib},
		"of a container that sees no names": {map[string]string{
			"proc/self/cgroup": "0::/../y\n", "proc/self/mountinfo": "30 23 0:26 /../x @/cg rw - cgroup2 cgroup2 rw\n",
			"cg/cpu.max": "150000 100000\n",
		}, 1.5, 8 * gib, 5 * gib},
		"version 1": {map[string]string{
			"proc/self/cgroup":          "4:memory:/a\n3:cpu,cpuacct:/b\n1:name=systemd:/\n0::/\n",
			"proc/self/mountinfo":       "30 23 0:26 / @/m rw shared:1 - cgroup cgroup rw,memory\n31 23 0:27 / @/c\\040d rw - cgroup cgroup rw,cpu,cpuacct\n",
			"m/a/memory.limit_in_bytes": strconv.Itoa(3 * gib), "m/memory.limit_in_bytes": "9223372036854771712", "m/a/memory.usage_in_bytes": strconv.Itoa(gib),
			"m/a/memory.stat": "total_inactive_file " + strconv.Itoa(gib) + "\n", "c d/b/cpu.cfs_quota_us": "150000", "c d/b/cpu.cfs_period_us": "100000", "c d/cpu.cfs_quota_us": "-1",
		}, 1.5, 3 * gib, 3 * gib},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, err := reader(t, tree(t, machine(test.files))).Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if h.CPUs != test.cpus || h.MemoryTotalBytes != test.total || h.MemoryAvailableBytes != test.available {
				t.Errorf("%v CPUs, %d of %d bytes; want %v, %d of %d", h.CPUs, h.MemoryAvailableBytes, h.MemoryTotalBytes, test.cpus, test.available, test.total)
			}
			if h.Load != [3]float64{0.5, 0.25, 0.125} || h.DaemonMemoryBytes != 256*int64(os.Getpagesize()) || h.DiskTotalBytes <= 0 || h.DiskFreeBytes > h.DiskTotalBytes {
				t.Errorf("the rest is %+v", h)
			}
		})
	}
}

// CPUBusy covers the time since the previous reading.
func TestReader_Busy(t *testing.T) {
	t.Parallel()
	dir := tree(t, machine(nil))
	r := reader(t, dir)
	stat := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "proc/stat"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	stat("cpu 150 0 110 800 120 0 5 15 0 0\n") // of 200 ticks 80 were used
	h, err := r.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if h.CPUBusy == nil || math.Abs(*h.CPUBusy-0.4) > 1e-9 {
		t.Errorf("busy is %v, want 0.4", h.CPUBusy)
	}
	stat("cpu 250 0 110 800 120 0 5 15 0 0\n")
	if again, err := r.Read(t.Context()); err != nil || !reflect.DeepEqual(again, h) {
		t.Errorf("a second reading is %+v, %v; want that of before", again, err)
	}
	r.last = account.Host{} // a second later
	if h, err = r.Read(t.Context()); err != nil || h.CPUBusy == nil || *h.CPUBusy != 1 {
		t.Errorf("then %+v, %v; want all", h, err)
	}
	r.last = account.Host{}
	if h, err = r.Read(t.Context()); err != nil || h.CPUBusy != nil {
		t.Errorf("where nothing is counted it is %v, %v; want nil", h.CPUBusy, err)
	}
}

// A reading older than a minute begins no window. A caller whose context has ended gets
// an error instead of waiting for a new window.
func TestReader_Glance(t *testing.T) {
	t.Parallel()
	r := reader(t, tree(t, machine(nil)))
	r.work.at = time.Now().Add(-time.Hour)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Read(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	r.work.at = time.Now().Add(-time.Hour)
	h, err := r.Read(t.Context())
	if err != nil || h.CPUWindowMS < glance.Milliseconds() || h.CPUWindowMS > lately.Milliseconds() {
		t.Errorf("window of %d ms, %v", h.CPUWindowMS, err)
	}
}

// The machine that runs the test has the values that every machine has.
func TestReader_Here(t *testing.T) {
	t.Parallel()
	h, err := NewReader(t.TempDir()).Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if h.CPUWindowMS < glance.Milliseconds() {
		t.Errorf("the CPUs were looked at for %d ms", h.CPUWindowMS)
	}
	if h.CPUs <= 0 || h.MemoryTotalBytes <= 0 || h.MemoryAvailableBytes > h.MemoryTotalBytes || h.DaemonMemoryBytes <= 0 || h.DiskTotalBytes <= 0 || h.ReadAt.IsZero() {
		t.Errorf("%+v", h)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("4:memory:/a\n0::/\n"), []byte("30 23 0:26 / /sys rw - cgroup2 cgroup2 rw\n"))
	f.Fuzz(func(t *testing.T, groups, mounts []byte) {
		for c, path := range parseGroups(groups) {
			if !filepath.IsAbs(path) || strings.Contains(c, ",") {
				t.Errorf("%q is at %q", c, path)
			}
		}
		for _, m := range parseMounts(mounts) {
			if m.controller != "" && m.controller != "cpu" && m.controller != "memory" {
				t.Errorf("%+v", m)
			}
		}
	})
}
