package host

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
)

// limits are the CPUs and the memory that cgroups leave to this process.
type limits struct {
	cpus    float64
	cpu     *group  // the group with the tightest CPU bound; nil if no group bounds CPUs, or it counts no CPU time
	bounded []group // the groups that bound memory
}

// group is one cgroup, either of version 2 or in one hierarchy of version 1.
type group struct {
	dir    string
	v2     bool
	memory int64 // limit, in bytes
}

// limits reads the limits of all cgroups that contain the process, from its own cgroup up
// to the mounted root; in a container the mounted root is the container's cgroup. A
// process outside any cgroup has no limits.
func (r *Reader) limits() (limits, error) {
	l := limits{cpus: machineCPUs()}
	groups, err := r.groups()
	if err != nil {
		return l, err
	}
	for _, g := range groups {
		cpus, err := g.cpus()
		if err != nil {
			return l, err
		}
		if cpus < l.cpus {
			l.cpus, l.cpu = cpus, nil
			// A hierarchy of version 1 may count no CPU time: then the machine's time is used.
			if _, ok, err := g.cpuTime(); err != nil {
				return l, err
			} else if ok {
				l.cpu = &g
			}
		}
		if g.memory, err = g.memoryLimit(); err != nil {
			return l, err
		}
		if g.memory < math.MaxInt64 {
			l.bounded = append(l.bounded, g)
		}
	}
	return l, nil
}

// spender returns the directory of the cgroup whose CPU time is measured, "" for the
// machine.
func (l limits) spender() string {
	if l.cpu == nil {
		return ""
	}
	return l.cpu.dir
}

// work returns the CPU time of the group that bounds the CPUs, or else of the machine.
func (l limits) work(fs procfs.FS) (work, error) {
	if l.cpu == nil {
		return machineWork(fs)
	}
	used, _, err := l.cpu.cpuTime()
	if err != nil {
		return work{}, err
	}
	now := time.Now()
	return work{at: now, of: l.cpu.dir, used: used.Seconds(), had: float64(now.UnixNano()) / 1e9 * l.cpus}, nil
}

// memory returns the total and the available memory, in bytes, within the groups' limits.
func (l limits) memory(fs procfs.FS) (total, available int64, err error) {
	m, err := fs.Meminfo()
	if err != nil {
		return 0, 0, err
	}
	if m.MemTotalBytes == nil || m.MemAvailableBytes == nil {
		return 0, 0, errors.New("the kernel does not tell how much memory there is")
	}
	total, available = int64(*m.MemTotalBytes), int64(*m.MemAvailableBytes)
	for _, g := range l.bounded {
		used, err := g.memoryUsed()
		if err != nil {
			return 0, 0, err
		}
		total, available = min(total, g.memory), min(available, max(0, g.memory-used))
	}
	return total, available, nil
}

// groups returns the cgroups that contain the process.
func (r *Reader) groups() ([]group, error) {
	own, err := os.ReadFile(filepath.Join(r.proc, "self", "cgroup"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // a kernel without
	} else if err != nil {
		return nil, err
	}
	mounts, err := os.ReadFile(filepath.Join(r.proc, "self", "mountinfo"))
	if err != nil {
		return nil, err
	}
	paths := parseGroups(own)
	var all []group
	for _, m := range parseMounts(mounts) {
		path, ok := paths[m.controller]
		if !ok {
			continue
		}
		below, err := filepath.Rel(m.root, path)
		if err != nil || below == ".." || strings.HasPrefix(below, "../") {
			below = "." // the process's group is outside the mounted part: the mounted root is the nearest readable group
		}
		for at := below; ; at = filepath.Dir(at) {
			g := group{dir: filepath.Join(m.dir, at), v2: m.controller == ""}
			if !slices.Contains(all, g) { // cpu and cpuacct are the same hierarchy
				all = append(all, g)
			}
			if at == "." {
				break
			}
		}
	}
	return all, nil
}

// parseGroups reads /proc/self/cgroup; see cgroups(7). It has a line
// "5:cpu,cpuacct:/path" for each hierarchy. The result has the path by controller, "" for
// version 2.
func parseGroups(text []byte) map[string]string {
	paths := map[string]string{}
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for _, c := range strings.Split(parts[1], ",") {
			paths[c] = filepath.Clean("/" + parts[2])
		}
	}
	return paths
}

// mount is a mounted hierarchy of cgroups: its group root is mounted at dir.
type mount struct {
	dir, root, controller string // controller is "" for version 2
}

// unescape undoes the escapes in paths of /proc/self/mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// parseMounts reads the trees that matter here from /proc/self/mountinfo.
func parseMounts(text []byte) []mount {
	var all []mount
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		// 36 35 98:0 /root /mount/point options - type source super,options
		before, after, ok := strings.Cut(lines.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 5 || len(right) < 3 {
			continue
		}
		m := mount{dir: unescape.Replace(left[4]), root: unescape.Replace(left[3])}
		switch right[0] {
		case "cgroup2":
			all = append(all, m)
		case "cgroup":
			for _, c := range strings.Split(right[2], ",") {
				if c == "cpu" || c == "memory" {
					m.controller = c
					all = append(all, m)
				}
			}
		}
	}
	return all
}

// read returns the text of one of the group's files, "" if the file is absent: the root
// cgroup has no limit files, and a version 1 hierarchy has only its own controllers'
// files.
func (g group) read(name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(g.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(b)), err
}

// number reads a file with one number; def stands for no number.
func (g group) number(name string, def int64) (int64, error) {
	text, err := g.read(name)
	if err != nil || text == "" || text == "max" {
		return def, err
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		if strings.HasPrefix(text, "-") { // -1 means no limit
			return def, nil
		}
		return 0, fmt.Errorf("%s: %w", filepath.Join(g.dir, name), err)
	}
	return int64(min(n, math.MaxInt64)), nil
}

// field reads a number from a file of lines "name number", 0 if the name is absent.
func (g group) field(file, name string) (int64, error) {
	text, err := g.read(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == name {
			return strconv.ParseInt(v, 10, 64)
		}
	}
	return 0, nil
}

// cpus returns how many CPUs the group may use, +Inf if the group has no limit.
func (g group) cpus() (float64, error) {
	var quota, period int64
	var err error
	if g.v2 {
		var text string
		if text, err = g.read("cpu.max"); err != nil {
			return 0, err
		}
		if n, _ := fmt.Sscanf(text, "%d %d", &quota, &period); n != 2 {
			return math.Inf(1), nil // "max", or nothing
		}
	} else {
		if quota, err = g.number("cpu.cfs_quota_us", 0); err != nil {
			return 0, err
		}
		if period, err = g.number("cpu.cfs_period_us", 0); err != nil {
			return 0, err
		}
	}
	if quota <= 0 || period <= 0 {
		return math.Inf(1), nil
	}
	return float64(quota) / float64(period), nil
}

// cpuTime returns the CPU time the group has used; ok is false if the group does not
// count it.
func (g group) cpuTime() (used time.Duration, ok bool, err error) {
	if g.v2 {
		us, err := g.field("cpu.stat", "usage_usec")
		return time.Duration(us) * time.Microsecond, us > 0, err
	}
	ns, err := g.number("cpuacct.usage", -1)
	return time.Duration(ns), ns >= 0, err
}

// unlimited is the smallest memory limit that means "no limit" in version 1, where the
// kernel shows the largest number of whole pages.
const unlimited = math.MaxInt64 &^ (1<<20 - 1)

// memoryLimit returns the group's memory limit in bytes, math.MaxInt64 if it has none.
func (g group) memoryLimit() (int64, error) {
	name := "memory.limit_in_bytes"
	if g.v2 {
		name = "memory.max"
	}
	n, err := g.number(name, math.MaxInt64)
	if n >= unlimited {
		n = math.MaxInt64
	}
	return n, err
}

// memoryUsed returns the memory the group uses, in bytes, without the inactive page cache,
// which the kernel reclaims when other processes need memory.
func (g group) memoryUsed() (int64, error) {
	name, idle := "memory.usage_in_bytes", "total_inactive_file"
	if g.v2 {
		name, idle = "memory.current", "inactive_file"
	}
	used, err := g.number(name, 0)
	if err != nil {
		return 0, err
	}
	cached, err := g.field("memory.stat", idle)
	return max(0, used-cached), err
}
