package gvisor

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

var testSpec = machine.Spec{
	ID: "sbx_1", Hostname: "box", RootFS: "/images/root.erofs",
	Mounts: []machine.Mount{{Source: "/images/tool.erofs", Target: "/.cay"}, {Source: "/images/node.erofs", Target: "/vercel/runtimes/node24"}},
	VCPUs:  1.5, MemoryMB: 512, DiskMB: 1024, Network: sandbox.Network{Mode: sandbox.DenyAll},
	Init: []string{"/.cay/cay-guest"}, GuestConfig: []byte(`{"x":1}`),
}

// tree is a directory that looks like a mounted cgroup file system.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// written returns the contents of the files below dir, by path.
func written(t *testing.T, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		got[strings.TrimPrefix(path, dir+"/")] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestCgroups_V1(t *testing.T) {
	root := t.TempDir()
	mounts := map[string]string{}
	for _, name := range wanted {
		mounts[name] = filepath.Join(root, name)
		if err := os.Mkdir(mounts[name], 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c, err := useCgroups(mounts, tree(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	g, err := c.create("sbx_1", resources(testSpec))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"cpu/cay/sbx_1/cpu.cfs_period_us":              "100000",
		"cpu/cay/sbx_1/cpu.cfs_quota_us":               "150000",
		"memory/cay/sbx_1/memory.limit_in_bytes":       "536870912",
		"memory/cay/sbx_1/memory.memsw.limit_in_bytes": "536870912",
		"pids/cay/sbx_1/pids.max":                      "6164",
	}
	if got := written(t, root); !maps.Equal(got, want) {
		t.Errorf("written:\n%q\nwant\n%q", got, want)
	}
	if into, err := g.cloneInto(); into != nil || err != nil {
		t.Errorf("cloneInto = %v, %v; version 1 cannot", into, err)
	}
	if _, err := os.Stat(filepath.Join(mounts["cpuacct"], "cay", "sbx_1")); err != nil {
		t.Errorf("cpuacct: %v", err)
	}
}

// Controllers may share a tree, as cpu and cpuacct do on most hosts of version 1.
func TestCgroups_V1Shared(t *testing.T) {
	root := t.TempDir()
	mounts := map[string]string{}
	for _, name := range wanted {
		mounts[name] = root
	}
	c, err := useCgroups(mounts, "")
	if err != nil {
		t.Fatal(err)
	}
	g, err := c.create("sbx_1", resources(testSpec))
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "cay", "sbx_1")
	if got := written(t, dir); got["pids.max"] != "6164" || got["memory.limit_in_bytes"] != "536870912" {
		t.Errorf("written: %q", got)
	}
	if err := g.add(os.Getpid()); err != nil {
		t.Fatal(err)
	}
	if got := written(t, dir)["cgroup.procs"]; got != strconv.Itoa(os.Getpid()) {
		t.Errorf("its processes are %q", got)
	}
}

func TestCgroups_V2(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{"cgroup.controllers": "cpuset cpu io memory hugetlb pids\n"})
	c, err := useCgroups(map[string]string{"memory": "/elsewhere"}, root) // a hybrid host: not enough of version 1
	if err != nil {
		t.Fatal(err)
	}
	g, err := c.create("sbx_1", resources(testSpec))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"cgroup.controllers":         "cpuset cpu io memory hugetlb pids\n",
		"cgroup.subtree_control":     "+cpu +memory +pids",
		"cay/cgroup.subtree_control": "+cpu +memory +pids",
		"cay/sbx_1/cpu.max":          "150000 100000",
		"cay/sbx_1/memory.max":       "536870912",
		"cay/sbx_1/memory.swap.max":  "0",
		"cay/sbx_1/memory.oom.group": "1",
		"cay/sbx_1/pids.max":         "6164",
	}
	if got := written(t, root); !maps.Equal(got, want) {
		t.Errorf("written:\n%q\nwant\n%q", got, want)
	}
	into, err := g.cloneInto()
	if err != nil || into == nil {
		t.Fatalf("cloneInto = %v, %v", into, err)
	}
	into.Close()

	for name, content := range map[string]string{
		"cpu.stat":       "usage_usec 1500000\nuser_usec 1000000\n",
		"memory.current": "1048576\n", "memory.peak": "2097152\n",
		"memory.events": "low 0\nhigh 0\nmax 3\noom 1\noom_kill 0\noom_group_kill 0\n",
	} {
		if err := write(g.dir(""), name, content); err != nil {
			t.Fatal(err)
		}
	}
	if u := g.usage(); u.cpu.Milliseconds() != 1500 || u.memory != 1<<20 || u.memoryPeak != 2<<20 {
		t.Errorf("usage = %+v", u)
	}
	if g.oomKilled() {
		t.Error("oomKilled without a kill")
	}
	if err := write(g.dir(""), "memory.events", "oom 1\noom_kill 2\n"); err != nil {
		t.Fatal(err)
	}
	if !g.oomKilled() {
		t.Error("not oomKilled after a kill")
	}
}

func TestCgroups_Unusable(t *testing.T) {
	t.Parallel()
	for name, v2 := range map[string]string{
		"nothing is mounted": "",
		"no controllers":     tree(t, nil),
		"no memory":          tree(t, map[string]string{"cgroup.controllers": "cpu pids"}),
	} {
		if _, err := useCgroups(nil, v2); cay.CodeOf(err) != cay.NotSupported {
			t.Errorf("%s: %v, want not_supported", name, err)
		}
	}
}

// gVisor sizes the guest's view of CPUs and memory by the limits that it is given.
func TestSentryLimits(t *testing.T) {
	t.Parallel()
	g := &group{res: resources(testSpec)}
	l := g.forSentry(8)
	quota, _ := l.CPUQuota()
	period, _ := l.CPUPeriod()
	memory, _ := l.MemoryLimit()
	cpus, _ := l.NumCPU()
	if quota != 150_000 || period != 100_000 || memory != 512<<20 || cpus != 8 {
		t.Errorf("quota %d, period %d, memory %d, cpus %d", quota, period, memory, cpus)
	}
	if (*group)(nil).forSentry(8) != nil {
		t.Error("a machine without limits has some")
	}
}

func TestOCISpec(t *testing.T) {
	t.Parallel()
	s := ociSpec(testSpec, "/state/sbx_1")
	for _, m := range s.Mounts {
		if m.Type == "bind" || slices.Contains(m.Options, "bind") {
			t.Errorf("%s is a host directory", m.Destination)
		}
		if m.Type == "erofs" && !slices.Contains(m.Options, "ro") {
			t.Errorf("%s is writable", m.Destination)
		}
	}
	restricted := testSpec
	restricted.Restricted = true
	for _, spec := range []machine.Spec{testSpec, restricted} {
		c := ociSpec(spec, "/state/sbx_1").Process.Capabilities
		for _, set := range [][]string{c.Bounding, c.Effective, c.Permitted} {
			if slices.Contains(set, "CAP_NET_RAW") == spec.Restricted {
				t.Errorf("restricted %t: the guest has %q", spec.Restricted, set)
			}
		}
	}
	if len(s.Process.Capabilities.Ambient) != 0 || len(s.Process.Capabilities.Inheritable) != 0 {
		t.Error("capabilities survive a change of user")
	}
	if !slices.Contains(s.Process.Env, `CAY_GUEST_CONFIG={"x":1}`) {
		t.Errorf("environment of init: %q", s.Process.Env)
	}
	if s.Hooks != nil {
		t.Error("hooks would run on the host")
	}
	if got, want := mountConfs(testSpec), "erofs:anon:size=1024m,erofs:none,erofs:none"; got != want {
		t.Errorf("mountConfs = %q, want %q", got, want)
	}
}
