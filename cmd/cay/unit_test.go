package main

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
)

func TestParsePlace(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]place{
		"-":          {"", "-"},
		"a":          {"", "a"},
		"./a:b":      {"", "./a:b"},
		"/a:b":       {"", "/a:b"},
		":a":         {"", ":a"},
		"box:a":      {"box", "a"},
		"box:/a:b":   {"box", "/a:b"},
		"box:.":      {"box", "."},
		"sbx_1:/tmp": {"sbx_1", "/tmp"},
	} {
		if got, err := parsePlace(text); err != nil || got != want {
			t.Errorf("%q: got %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "box:"} {
		if got, err := parsePlace(text); cay.CodeOf(err) != cay.Invalid {
			t.Errorf("%q: got %+v, %v; want invalid", text, got, err)
		}
	}
}

func TestParseCopySpec(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]string{
		"a:b": {"a", "b"}, "a:b:c": {"a:b", "c"}, "/x/y:/z": {"/x/y", "/z"}, ".:.": {".", "."},
	} {
		src, dst, err := parseCopySpec("--copy", text)
		if err != nil || [2]string{src, dst} != want {
			t.Errorf("%q: got %q %q, %v; want %q", text, src, dst, err, want)
		}
	}
	for _, text := range []string{"", "a", "a:", ":b", ":"} {
		if _, _, err := parseCopySpec("--copy", text); cay.CodeOf(err) != cay.Invalid {
			t.Errorf("%q: %v, want invalid", text, err)
		}
	}
}

func TestParseEnv(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(file, []byte("# c\n\nA=1\r\n  B=a b = c \nHOME_X\nE=\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	lookup := func(k string) (string, bool) { return "from here", k == "HOME_X" }
	got, err := parseEnv([]string{file}, []string{"A=2", "C="}, lookup)
	want := map[string]string{"A": "2", "B": "a b = c ", "HOME_X": "from here", "C": "", "E": ""}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("got %q, %v; want %q", got, err, want)
	}
	for _, pair := range []string{"", "=x", "A B=1", "UNSET"} {
		if _, err := parseEnv(nil, []string{pair}, lookup); cay.CodeOf(err) != cay.Invalid {
			t.Errorf("%q: %v, want invalid", pair, err)
		}
	}
	// The value may be a secret: errors name the variable only.
	if _, err := parseEnv(nil, []string{"A B=s3cret"}, lookup); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("got %v", err)
	}
}

func TestClean(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`plain "text" ✓ é`:   `plain "text" ✓ é`,
		"\x1b[2Jx":           `\x1b[2Jx`,
		"a\nb\t":             `a\nb\t`,
		"\u202egnp.exe":      `\u202egnp.exe`,
		"bad \xff \x1b":      `bad \xff \x1b`,
		"\x1b]52;c;\a \"q\"": `\x1b]52;c;\a "q"`,
	} {
		if got := clean(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestCapture_CutsBetweenCharacters(t *testing.T) {
	t.Parallel()
	var c capture
	for range maxCapture/3 + 1 {
		if _, err := c.Write([]byte("€")); err != nil {
			t.Fatal(err)
		}
	}
	if got := string(c.text()); !c.truncated || strings.Trim(got, "€") != "" || len(got) > maxCapture {
		t.Fatalf("%d bytes, truncated %v, ends in %q", len(got), c.truncated, got[len(got)-3:])
	}
}

func TestChangeTags(t *testing.T) {
	t.Parallel()
	before := map[string]string{"a": "1", "b": "2"}
	got, err := changeTags(before, []string{"c=3=4", "a-", "b="})
	if want := map[string]string{"b": "", "c": "3=4"}; err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("got %v, %v", got, err)
	}
	if len(before) != 2 || before["a"] != "1" {
		t.Fatalf("the old tags have changed to %v", before)
	}
}

const cgroupV1 = `31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
41 31 0:37 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
`

func goodHost() host {
	return host{
		os: "linux", release: "6.1.0-13-amd64", mounts: cgroupV1, meminfo: "MemTotal: 9 kB\nMemAvailable:    8388608 kB\n",
		lookPath:   func(name string) (string, error) { return "/usr/bin/" + name, nil },
		readFile:   files(map[string]string{"/sys/fs/cgroup/unified/cgroup.controllers": "hugetlb\n"}),
		writable:   func(string) error { return nil },
		diskFree:   func(string) (int64, error) { return 100 << 30, nil },
		executable: func(string) error { return nil },
		data:       "/var/lib/cay",
		system: system{
			status: "Name:\tcay\nCapEff:\t00000000000000e0\n",
			userns: func() error { return nil },
			clock:  func() (bool, error) { return true, nil },
		},
	}
}

// files has the contents of files, by path.
func files(content map[string]string) func(string) ([]byte, error) {
	return func(path string) ([]byte, error) {
		text, ok := content[path]
		if !ok {
			return nil, os.ErrNotExist
		}
		return []byte(text), nil
	}
}

const goodUnit = "[Service]\nType=notify\nKillMode=process\nDelegate=yes\n"

// useV2 makes h a host with cgroup v2, whose root passes down the controllers in on.
func useV2(h *host, on string) {
	h.mounts = "26 23 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
	h.readFile = files(map[string]string{
		"/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n", "/sys/fs/cgroup/cgroup.subtree_control": on,
	})
}

// forbid makes h a host on which user namespaces cannot be made, because a kernel setting
// has a value.
func forbid(h *host, setting, value string) {
	h.system.userns = func() error { return os.ErrPermission }
	h.readFile = files(map[string]string{"/proc/sys/" + setting: value + "\n"})
}

func TestExamine(t *testing.T) {
	t.Parallel()
	no := func(string) (string, error) { return "", errors.New("not found") }
	for _, tc := range []struct {
		name    string
		spoil   func(h *host)
		check   string
		verdict verdict
		detail  string
	}{
		{"V1", func(*host) {}, "cgroups", ok, "v1 with cpu"},
		{"V2", func(h *host) {
			useV2(h, "")
		}, "cgroups", ok, "v2 with cpu"},
		{"Rights", func(h *host) { h.system.container = "podman" }, "rights", ok, "podman"},
		{"RightsMissing", func(h *host) { h.system.status = "CapEff:\t0000000000000020\n" }, "rights", fail, "SETGID, SETUID"},
		{"RightsUnknown", func(h *host) { h.system.status = "" }, "rights", warn, "not known"},
		{"Namespaces", func(*host) {}, "namespaces", ok, "can be made"},
		{"NamespacesAppArmor", func(h *host) { forbid(h, "kernel/apparmor_restrict_unprivileged_userns", "1") }, "namespaces", fail, "permission"},
		{"NamespacesDebian", func(h *host) { forbid(h, "kernel/unprivileged_userns_clone", "0") }, "namespaces", fail, "permission"},
		{"NamespacesNone", func(h *host) { forbid(h, "user/max_user_namespaces", "0") }, "namespaces", fail, "permission"},
		{"NamespacesFilter", func(h *host) { forbid(h, "", ""); h.system.container = "docker" }, "namespaces", fail, "permission"},
		{"NamespacesChroot", func(h *host) { forbid(h, "", "") }, "namespaces", fail, "permission"},
		{"Delegated", func(h *host) { useV2(h, "cpu memory pids") }, "delegation", ok, "passed down"},
		{"NotDelegatedYet", func(h *host) { useV2(h, "memory") }, "delegation", ok, "switches cpu, pids on"},
		{"NotDelegated", func(h *host) {
			useV2(h, "memory")
			h.writable = func(string) error { return os.ErrPermission }
		}, "delegation", fail, "permission"},
		{"Unit", func(h *host) { h.readFile = files(map[string]string{"/usr/lib/systemd/system/cay.service": goodUnit}) }, "unit", ok, "/usr/lib"},
		{"UnitKills", func(h *host) {
			h.readFile = files(map[string]string{"/usr/lib/systemd/system/cay.service": goodUnit, "/etc/systemd/system/cay.service": "Type=notify\n"})
		}, "unit", warn, "/etc/systemd/system/cay.service has no KillMode=process"},
		{"Clock", func(*host) {}, "clock", ok, "follows another"},
		{"ClockFree", func(h *host) { h.system.clock = func() (bool, error) { return false, nil } }, "clock", warn, "no other clock"},
		{"NoPids", func(h *host) { h.mounts = strings.ReplaceAll(cgroupV1, "rw,pids", "rw,devices") }, "cgroups", fail, "no pids"},
		{"ReadOnly", func(h *host) { h.writable = func(string) error { return os.ErrPermission } }, "cgroups", fail, "cpu controller"},
		{"NoProc", func(h *host) { h.mounts, h.meminfo = "", "" }, "cgroups", fail, "no cpu"},
		{"Darwin", func(h *host) { h.os = "darwin" }, "kernel", fail, "darwin"},
		{"OldKernel", func(h *host) { h.release = "4.9.0" }, "kernel", fail, "4.9.0"},
		{"OddKernel", func(h *host) { h.release = "unknown" }, "kernel", fail, "unknown"},
		{"User", func(h *host) { h.uid = 1000 }, "user", fail, "1000"},
		{"NoDebstrap", func(h *host) { h.lookPath = no }, "mmdebstrap", warn, "not found"},
		{"DataReadOnly", func(h *host) { h.writable = func(string) error { return os.ErrPermission } }, "data", fail, "permission"},
		{"DataNoExec", func(h *host) { h.executable = func(string) error { return errors.New("noexec") } }, "data", fail, "noexec"},
		{"DiskLow", func(h *host) { h.diskFree = func(string) (int64, error) { return 5 << 30, nil } }, "disk", warn, "5.0 GiB"},
		{"DiskFull", func(h *host) { h.diskFree = func(string) (int64, error) { return 5 << 20, nil } }, "disk", fail, "5.0 MiB"},
		{"MemoryLow", func(h *host) { h.meminfo = "MemAvailable: 1048576 kB\n" }, "memory", warn, "1.0 GiB"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := goodHost()
			tc.spoil(&h)
			for _, f := range examine(h) {
				if f.Check != tc.check {
					continue
				}
				if f.Verdict != tc.verdict || !strings.Contains(f.Detail, tc.detail) || (f.Fix == "") != (f.Verdict == ok) {
					t.Fatalf("got %+v, want %s with %q", f, tc.verdict, tc.detail)
				}
				return
			}
			t.Fatalf("there is no check %s", tc.check)
		})
	}
}

func FuzzParsePlace(f *testing.F) {
	f.Add("box:/a")
	f.Add("./a:b")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePlace(text)
		if err == nil && (p.path == "" || strings.ContainsAny(p.sandbox, "/:")) {
			t.Fatalf("%q: %+v", text, p)
		}
	})
}

// Times of "docker logs" are those that docker's own command line takes.
func TestDockerTime(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 27, 8, 0, 0, 5, time.UTC)
	for value, want := range map[string]string{
		"10m": "1795765800.000000005", "1795766400": "1795766400", "1795766400.25": "1795766400.25",
		"2026-11-27T08:00:00Z": "1795766400.000000000", "2026-11-27T09:00:00.5+01:00": "1795766400.500000000",
		"2026-11-27": unixText(time.Date(2026, 11, 27, 0, 0, 0, 0, time.Local)), "tomorrow": "", "": "",
	} {
		if got, err := dockerTime(value, now); got != want || (err != nil) != (want == "") {
			t.Errorf("%q is %q, %v; want %q", value, got, err, want)
		}
	}
}
