package gvisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cgroup"

	"github.com/cayhq/cay"
)

// parentGroup holds the cgroups of all machines of this host.
const parentGroup = "cay"

// wanted are the controllers that bound a machine. cpuacct is a part of cpu in
// version 2.
var wanted = []string{"cpu", "cpuacct", "memory", "pids"}

// cgroups makes and finds machines' cgroups in the host's hierarchy, of version 1 (a tree
// for each controller) or 2 (one tree). A nil *cgroups makes nil groups, whose methods do
// nothing.
type cgroups struct {
	v2 bool
	// parents are the directories that hold machines' groups: by controller in
	// version 1, a single one under "" in version 2.
	parents map[string]string
}

// openCgroups finds the host's hierarchy. Errors: not_supported if a controller is
// missing or inaccessible.
func openCgroups() (*cgroups, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	defer f.Close()
	v1, v2 := map[string]string{}, ""
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// 36 35 98:0 /root /mount/point options - type source super,options
		before, after, ok := strings.Cut(lines.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 5 || len(right) < 3 {
			continue
		}
		switch right[0] {
		case "cgroup":
			for _, name := range strings.Split(right[2], ",") {
				if slices.Contains(wanted, name) {
					v1[name] = left[4]
				}
			}
		case "cgroup2":
			v2 = left[4]
		}
	}
	return useCgroups(v1, v2)
}

// useCgroups prepares the parent groups in the trees mounted at v1 (by controller) or, if
// these lack a wanted controller, at v2.
func useCgroups(v1 map[string]string, v2 string) (*cgroups, error) {
	if len(v1) == len(wanted) {
		c := &cgroups{parents: map[string]string{}}
		for name, mount := range v1 {
			dir := filepath.Join(mount, parentGroup)
			if err := mkdir(dir); err != nil {
				return nil, unusable(err)
			}
			c.parents[name] = dir
		}
		return c, nil
	}
	if v2 == "" {
		return nil, unusable(errors.New("no cgroup file system with cpu, memory and pids is mounted"))
	}
	have, err := os.ReadFile(filepath.Join(v2, "cgroup.controllers"))
	if err != nil {
		return nil, unusable(err)
	}
	for _, name := range []string{"cpu", "memory", "pids"} {
		if !slices.Contains(strings.Fields(string(have)), name) {
			return nil, unusable(fmt.Errorf("controller %s is not available at %s", name, v2))
		}
	}
	dir := filepath.Join(v2, parentGroup)
	if err := mkdir(dir); err != nil {
		return nil, unusable(err)
	}
	for _, d := range []string{v2, dir} {
		if err := write(d, "cgroup.subtree_control", "+cpu +memory +pids"); err != nil {
			return nil, unusable(err)
		}
	}
	return &cgroups{v2: true, parents: map[string]string{"": dir}}, nil
}

func unusable(err error) error {
	return cay.Errorf(cay.NotSupported, "CPU, memory and task limits cannot be enforced: %w", err).
		WithHint("sandboxes need cgroup v1 or v2 with cpu, memory and pids; --insecure-no-limits runs without limits")
}

// group is one machine's cgroup.
type group struct {
	v2   bool
	dirs map[string]string // like cgroups.parents
	res  *specs.LinuxResources
}

func (c *cgroups) group(id string) *group {
	g := &group{v2: c.v2, dirs: make(map[string]string, len(c.parents))}
	for name, parent := range c.parents {
		g.dirs[name] = filepath.Join(parent, id)
	}
	return g
}

// create makes a group with limits. On failure it removes the group.
func (c *cgroups) create(id string, res *specs.LinuxResources) (*group, error) {
	if c == nil {
		return nil, nil
	}
	g := c.group(id)
	g.res = res
	if err := g.install(); err != nil {
		return nil, errors.Join(err, g.remove())
	}
	return g, nil
}

// open returns the group a machine has, or had.
func (c *cgroups) open(id string) *group {
	if c == nil {
		return nil
	}
	return c.group(id)
}

func (g *group) install() error {
	for _, dir := range g.trees() {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	for _, f := range g.limits() {
		if err := write(g.dir(f.controller), f.name, f.value); err != nil && !(f.optional && errors.Is(err, fs.ErrNotExist)) {
			return err
		}
	}
	return nil
}

type limit struct {
	controller, name, value string
	optional                bool // absent from some kernels
}

// limits returns the files that hold g.res, in the order in which they must be written.
func (g *group) limits() []limit {
	cpu, memory := g.res.CPU, strconv.FormatInt(*g.res.Memory.Limit, 10)
	quota, period := strconv.FormatInt(*cpu.Quota, 10), strconv.FormatUint(*cpu.Period, 10)
	pids := strconv.FormatInt(g.res.Pids.Limit, 10)
	if g.v2 {
		return []limit{
			{"cpu", "cpu.max", quota + " " + period, false},
			{"memory", "memory.max", memory, false},
			{"memory", "memory.swap.max", "0", true},
			{"memory", "memory.oom.group", "1", true}, // all of the machine or nothing
			{"pids", "pids.max", pids, false},
		}
	}
	return []limit{
		{"cpu", "cpu.cfs_period_us", period, false},
		{"cpu", "cpu.cfs_quota_us", quota, false},
		{"memory", "memory.limit_in_bytes", memory, false},
		{"memory", "memory.memsw.limit_in_bytes", memory, true},
		{"pids", "pids.max", pids, false},
	}
}

func (g *group) dir(controller string) string {
	if g.v2 {
		return g.dirs[""]
	}
	return g.dirs[controller]
}

// add moves a process and its descendants into the group. The processes must not run
// tenant code yet, because children made meanwhile could be missed.
//
// Meanwhile Linux keeps all processes from starting and ending threads, and waits until
// all CPUs have noticed: 10 ms for a machine. A process that moves its own threads avoids
// that wait, but one thread busy-waits (yields the CPU in a loop) until the other threads
// have moved (syscall.AllThreadsSyscall), and 20 processes that do so at once take three
// times as long to start.
func (g *group) add(pid int) error {
	if g == nil {
		return nil
	}
	moved := map[int]bool{}
	for {
		before := len(moved)
		for _, p := range descendants(pid) {
			if moved[p] {
				continue
			}
			for _, dir := range g.trees() {
				if err := write(dir, "cgroup.procs", strconv.Itoa(p)); err != nil && !errors.Is(err, unix.ESRCH) {
					return err
				}
			}
			moved[p] = true
		}
		if len(moved) == before {
			return nil
		}
	}
}

// descendants returns pid and its living descendants.
func descendants(pid int) []int {
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", all[i]))
		for _, t := range tasks {
			b, err := os.ReadFile(t)
			if err != nil {
				continue // the thread has ended
			}
			for _, s := range strings.Fields(string(b)) {
				if n, err := strconv.Atoi(s); err == nil {
					all = append(all, n)
				}
			}
		}
	}
	return all
}

// cloneInto returns the group's directory, in which the kernel can start a process
// directly (CLONE_INTO_CGROUP, version 2 only), or nil.
func (g *group) cloneInto() (*os.File, error) {
	if g == nil || !g.v2 {
		return nil, nil
	}
	return os.Open(g.dirs[""])
}

// processes lists the group's processes.
func (g *group) processes() ([]int, error) {
	b, err := os.ReadFile(filepath.Join(g.dir("pids"), "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, s := range strings.Fields(string(b)) {
		pid, err := strconv.Atoi(s)
		if err != nil {
			return nil, fmt.Errorf("process id %q in cgroup: %w", s, err)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// kill kills all processes of the group and waits for their end.
func (g *group) kill(ctx context.Context) error {
	if g == nil {
		return nil
	}
	for {
		pids, err := g.processes()
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if err := killProcess(ctx, pid); err != nil {
				return err
			}
		}
	}
}

// killProcess kills a process and waits until it has ended.
func killProcess(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	for {
		const step = 100 // ms: how often ctx is looked at
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, step)
		switch {
		case n > 0:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for process %d: %w", pid, err)
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
}

// end kills the remaining processes of the group and removes it.
func (g *group) end(ctx context.Context) error {
	if err := g.kill(ctx); err != nil {
		return err
	}
	return g.remove()
}

// removeTimeout bounds the time in which the kernel frees a group whose last process has
// just ended. Version 1 has no event for it.
const removeTimeout = 5 * time.Second

// trees returns the group's directories without repetition: cpu and cpuacct may share
// one.
func (g *group) trees() []string {
	return slices.Compact(slices.Sorted(maps.Values(g.dirs)))
}

// remove deletes the group, whose processes must have ended. A missing group is no error.
func (g *group) remove() error {
	if g == nil {
		return nil
	}
	var errs []error
	for _, dir := range g.trees() {
		errs = append(errs, rmdir(dir))
	}
	return errors.Join(errs...)
}

func rmdir(dir string) error {
	deadline := time.Now().Add(removeTimeout)
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
		time.Sleep(pause)
	}
}

// oomKilled reports whether the kernel has killed a process of the group because memory
// ran out.
func (g *group) oomKilled() bool {
	if g == nil {
		return false
	}
	file := "memory.oom_control"
	if g.v2 {
		file = "memory.events"
	}
	return g.keyed("memory", file, "oom_kill") > 0
}

// watchOOM returns a file from which eight bytes can be read each time the group runs out
// of memory. It returns nil in version 2, where the kernel by itself kills all processes
// of a group or none. In version 1 the kernel kills one process of its choice, which
// leaves the machine broken but running.
func (g *group) watchOOM() (*os.File, error) {
	if g == nil || g.v2 {
		return nil, nil
	}
	control, err := os.Open(filepath.Join(g.dir("memory"), "memory.oom_control"))
	if err != nil {
		return nil, err
	}
	defer control.Close()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create eventfd: %w", err)
	}
	event := os.NewFile(uintptr(fd), "oom")
	if err := write(g.dir("memory"), "cgroup.event_control", fmt.Sprintf("%d %d", fd, control.Fd())); err != nil {
		return nil, errors.Join(err, event.Close())
	}
	return event, nil
}

// usage is the CPU time and memory of the group's processes.
type usage struct {
	cpu                time.Duration
	memory, memoryPeak int64
}

func (g *group) usage() usage {
	if g == nil {
		return usage{}
	}
	if g.v2 {
		return usage{
			cpu:    time.Duration(g.keyed("cpu", "cpu.stat", "usage_usec")) * time.Microsecond,
			memory: g.number("memory", "memory.current"), memoryPeak: g.number("memory", "memory.peak"),
		}
	}
	return usage{
		cpu:    time.Duration(g.number("cpuacct", "cpuacct.usage")),
		memory: g.number("memory", "memory.usage_in_bytes"), memoryPeak: g.number("memory", "memory.max_usage_in_bytes"),
	}
}

// number reads a file that holds a number; 0 if it cannot.
func (g *group) number(controller, file string) int64 {
	b, err := os.ReadFile(filepath.Join(g.dir(controller), file))
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// keyed reads the number behind key in a file of "key number" lines; 0 if it cannot.
func (g *group) keyed(controller, file, key string) int64 {
	b, err := os.ReadFile(filepath.Join(g.dir(controller), file))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			if n, err := strconv.ParseInt(v, 10, 64); err == nil {
				return n
			}
		}
	}
	return 0
}

// forSentry presents the limits to gVisor, which sizes the guest's view of CPUs and
// memory by them. gVisor does nothing else with the cgroup; every other operation would
// return errLimitsOnly.
func (g *group) forSentry(cpus int) cgroup.Cgroup {
	if g == nil {
		return nil
	}
	return sentryLimits{res: g.res, cpus: cpus}
}

type sentryLimits struct {
	res  *specs.LinuxResources
	cpus int
}

var _ cgroup.Cgroup = sentryLimits{}

func (l sentryLimits) CPUQuota() (int64, error)     { return *l.res.CPU.Quota, nil }
func (l sentryLimits) CPUPeriod() (int64, error)    { return int64(*l.res.CPU.Period), nil }
func (l sentryLimits) NumCPU() (int, error)         { return l.cpus, nil }
func (l sentryLimits) MemoryLimit() (uint64, error) { return uint64(*l.res.Memory.Limit), nil }

var errLimitsOnly = errors.New("a machine's cgroup is not gVisor's to change")

func (sentryLimits) Install(*specs.LinuxResources) error { return errLimitsOnly }
func (sentryLimits) Update(*specs.LinuxResources) error  { return errLimitsOnly }
func (sentryLimits) Uninstall() error                    { return errLimitsOnly }
func (sentryLimits) Join() (func(), error)               { return nil, errLimitsOnly }
func (sentryLimits) CloneIntoCgroup() (*os.File, error)  { return nil, errLimitsOnly }
func (sentryLimits) CPUUsage() (uint64, error)           { return 0, errLimitsOnly }
func (sentryLimits) MakePath(string) string              { return "" }

func mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func write(dir, file, value string) error {
	return os.WriteFile(filepath.Join(dir, file), []byte(value), 0o644)
}
