package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

const doctorHelp = `Check whether this machine can run sandboxes, and say how to fix what is amiss.

Exit codes: 0 all that is needed is there, 1 something is missing, 2 wrong usage.`

// verdict is the result of a check. Only fail makes doctor exit with 1.
type verdict string

const (
	ok   verdict = "ok"
	warn verdict = "warn" // sandboxes run, but not all of cay does
	fail verdict = "fail"
)

// finding is the result of one check.
type finding struct {
	Check   string  `json:"check"`
	Verdict verdict `json:"verdict"`
	Detail  string  `json:"detail"`
	Fix     string  `json:"fix,omitempty"`
}

func newDoctorCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "doctor", Short: "Check whether this machine can run sandboxes", Long: doctorHelp,
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	return a.verb(c, func(ctx context.Context, _ []string) error {
		cfg, err := config.Load(config.Sources{File: os.Getenv("CAY_CONFIG"), Env: os.Getenv})
		if err != nil {
			return err
		}
		findings := examine(thisHost(cfg))
		daemon := a.checkDaemon(ctx)
		findings = append(findings, daemon)
		if daemon.Verdict == ok {
			findings = append(findings, a.checkSnapshots(ctx))
		}
		err = a.show(findings, func(w io.Writer) { printFindings(w, findings, a.colour()) })
		if err == nil && slices.ContainsFunc(findings, func(f finding) bool { return f.Verdict == fail }) {
			return &exitError{code: exitGeneral}
		}
		return err
	})
}

// colour reports whether standard output supports colours.
func (a *app) colour() bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(a.stdout)
}

func printFindings(w io.Writer, findings []finding, colour bool) {
	paint := map[verdict]string{ok: "\x1b[32m", warn: "\x1b[33m", fail: "\x1b[31m"}
	for _, f := range findings {
		mark := fmt.Sprintf("%-4s", f.Verdict)
		if colour {
			mark = paint[f.Verdict] + mark + "\x1b[0m"
		}
		fmt.Fprintf(w, "%s  %-10s  %s\n", mark, f.Check, clean(f.Detail))
		if f.Fix != "" {
			fmt.Fprintf(w, "%18s%s\n", "", f.Fix)
		}
	}
}

// host has the properties that doctor checks, as a value that tests can make up.
type host struct {
	os, release string
	uid         int
	mounts      string // text of /proc/self/mountinfo
	meminfo     string // text of /proc/meminfo
	lookPath    func(string) (string, error)
	readFile    func(string) ([]byte, error)
	writable    func(dir string) error
	diskFree    func(dir string) (int64, error)
	executable  func(dir string) error // an error if nothing may be executed below
	data        string
	system      system
}

func thisHost(cfg config.Config) host {
	var uts unix.Utsname
	release := ""
	if unix.Uname(&uts) == nil {
		release = unix.ByteSliceToString(uts.Release[:])
	}
	read := func(path string) string {
		b, err := os.ReadFile(path)
		if err != nil {
			return "" // the checks then miss what they look for, and say so
		}
		return string(b)
	}
	return host{
		os: runtime.GOOS, release: release, uid: os.Geteuid(),
		mounts: read("/proc/self/mountinfo"), meminfo: read("/proc/meminfo"),
		lookPath: exec.LookPath,
		readFile: os.ReadFile,
		writable: func(dir string) error { return unix.Access(dir, unix.W_OK) },
		diskFree: func(dir string) (int64, error) {
			var s unix.Statfs_t
			err := unix.Statfs(dir, &s)
			return int64(s.Bavail) * s.Bsize, err
		},
		executable: func(dir string) error {
			var s unix.Statfs_t
			err := unix.Statfs(dir, &s)
			if err == nil && s.Flags&unix.ST_NOEXEC != 0 {
				return errors.New("its file system is mounted with noexec")
			}
			return err
		},
		data:   cfg.Data,
		system: thisSystem(),
	}
}

// examine runs all checks of the machine.
func examine(h host) []finding {
	all := []finding{checkKernel(h), checkRoot(h), checkCapabilities(h), checkNamespaces(h), checkCgroups(h)}
	if root := unifiedRoot(h); root != "" {
		all = append(all, checkDelegation(h, root))
	}
	if unit, found := checkUnit(h); found {
		all = append(all, unit)
	}
	return append(all,
		checkTool(h, "mmdebstrap", "the default image cannot be built; images can be pulled and imported"),
		checkData(h), checkDisk(h), checkMemory(h), checkClock(h),
	)
}

// minKernel is the oldest kernel with the system calls that start and end
// machines: pidfd_open(2) came with 5.3, CLONE_INTO_CGROUP with 5.7.
var minKernel = [2]int{5, 7}

func checkKernel(h host) finding {
	f := finding{Check: "kernel", Verdict: ok, Detail: h.os + " " + h.release}
	if h.os != "linux" {
		f.Verdict, f.Fix = fail, "sandboxes run on Linux; use a daemon there with CAY_URL and CAY_TOKEN"
		return f
	}
	var major, minor int
	if _, err := fmt.Sscanf(h.release, "%d.%d", &major, &minor); err != nil || major < minKernel[0] || major == minKernel[0] && minor < minKernel[1] {
		f.Verdict, f.Fix = fail, fmt.Sprintf("use Linux %d.%d or newer", minKernel[0], minKernel[1])
	}
	return f
}

func checkRoot(h host) finding {
	if h.uid == 0 {
		return finding{Check: "user", Verdict: ok, Detail: "root"}
	}
	return finding{"user", fail, fmt.Sprintf("user id %d, not root", h.uid), "run the daemon, or cay run without one, as root"}
}

var controllers = []string{"cpu", "memory", "pids"}

// checkCgroups looks for the controllers that bound a sandbox, in cgroup v1 or v2.
func checkCgroups(h host) finding {
	dirs, unified := make(map[string]string), make(map[string]string) // by controller
	for line := range strings.Lines(h.mounts) {
		before, after, found := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !found || len(left) < 6 || len(right) < 3 {
			continue
		}
		dir := left[4]
		switch right[0] {
		case "cgroup":
			for _, c := range strings.Split(right[2], ",") {
				dirs[c] = dir
			}
		case "cgroup2":
			b, err := h.readFile(filepath.Join(dir, "cgroup.controllers"))
			if err != nil {
				continue
			}
			for _, c := range strings.Fields(string(b)) {
				unified[c] = dir
			}
		}
	}
	version := "v1"
	if unified[controllers[0]] != "" {
		dirs, version = unified, "v2"
	}
	for _, c := range controllers {
		fix := "enable it, or start the daemon with --insecure-no-limits to run sandboxes unbounded"
		if dirs[c] == "" {
			return finding{"cgroups", fail, fmt.Sprintf("there is no %s controller", c), fix}
		}
		if err := h.writable(dirs[c]); err != nil {
			return finding{"cgroups", fail, fmt.Sprintf("%s controller at %s: %v", c, dirs[c], err), "run as root, outside of a container or in a privileged one"}
		}
	}
	return finding{Check: "cgroups", Verdict: ok, Detail: version + " with " + strings.Join(controllers, ", ")}
}

// unifiedRoot returns where a cgroup v2 tree with the controllers of sandboxes is mounted,
// "" if there is none.
func unifiedRoot(h host) string {
	for line := range strings.Lines(h.mounts) {
		before, after, _ := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if len(left) < 6 || len(right) == 0 || right[0] != "cgroup2" {
			continue
		}
		if b, err := h.readFile(filepath.Join(left[4], "cgroup.controllers")); err == nil && slices.Contains(strings.Fields(string(b)), controllers[0]) {
			return left[4]
		}
	}
	return ""
}

// checkTool looks for a program, whose Debian package has the same name. effect
// describes cay without the program.
func checkTool(h host, tool, effect string) finding {
	path, err := h.lookPath(tool)
	if err != nil {
		return finding{tool, warn, "not found: " + effect, "apt install " + tool}
	}
	return finding{Check: tool, Verdict: ok, Detail: path}
}

func checkData(h host) finding {
	dir := existing(h.data)
	if err := h.writable(dir); err != nil {
		return finding{"data", fail, fmt.Sprintf("%s: %v", dir, err), "make it writable, or choose another directory with CAY_DATA"}
	}
	if err := h.executable(dir); err != nil {
		return finding{"data", fail, fmt.Sprintf("%s: %v", dir, err), "sandboxes' programs run from there: mount it without, or choose another directory with CAY_DATA"}
	}
	return finding{Check: "data", Verdict: ok, Detail: h.data}
}

// existing returns the directory itself or its nearest existing parent.
func existing(dir string) string {
	for {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

func checkDisk(h host) finding {
	free, err := h.diskFree(existing(h.data))
	if err != nil {
		return finding{"disk", fail, fmt.Sprintf("free space of %s: %v", h.data, err), "choose another directory with CAY_DATA"}
	}
	return amount("disk", free, 1<<30, 10<<30, "free space, or choose a directory on a larger disk with CAY_DATA")
}

func checkMemory(h host) finding {
	s := bufio.NewScanner(strings.NewReader(h.meminfo))
	for s.Scan() {
		rest, found := strings.CutPrefix(s.Text(), "MemAvailable:")
		if !found {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		if err == nil {
			return amount("memory", kib<<10, 512<<20, 2<<30, "end other programs, or use a larger machine")
		}
	}
	return finding{"memory", warn, "how much is available is not known", "mount /proc"}
}

func amount(check string, have, need, want int64, fix string) finding {
	f := finding{Check: check, Verdict: ok, Detail: bytesText(have) + " free"}
	switch {
	case have < need:
		f.Verdict, f.Fix = fail, fix
	case have < want:
		f.Verdict, f.Fix = warn, fix
	}
	return f
}

// manyOld is the size of unneeded snapshots from which doctor warns, in bytes.
const manyOld = 1 << 30

// checkSnapshots asks the daemon for unneeded snapshots.
func (a *app) checkSnapshots(ctx context.Context) finding {
	ctx, cancel := context.WithTimeout(ctx, daemonTimeout)
	defer cancel()
	old, err := a.sandboxes().PruneSnapshots(ctx, sandbox.PruneSnapshotsParams{ProjectID: "*", DryRun: true})
	if err != nil {
		return finding{"snapshots", warn, err.Error(), hintOf(err)}
	}
	f := finding{Check: "snapshots", Verdict: ok, Detail: fmt.Sprintf("%d old ones that nothing starts from, %s", old.Count, bytesText(old.SizeBytes))}
	if old.SizeBytes >= manyOld {
		f.Verdict, f.Fix = warn, "\"cay snapshot prune\" shows them, and deletes them with --yes"
	}
	return f
}

const daemonTimeout = 5 * time.Second

// checkDaemon asks the daemon for its version. A machine without a daemon is no
// fault: cay run works without.
func (a *app) checkDaemon(ctx context.Context) finding {
	url, meant := a.url, true
	if url == "" {
		url = os.Getenv("CAY_URL")
	}
	if url == "" {
		url, meant = wire.DefaultURL, false
		if !listening(ctx, url) {
			return finding{"daemon", warn, "none answers at " + url, "start one with \"cay serve\"; \"cay run\" works without"}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, daemonTimeout)
	defer cancel()
	info, err := a.accounts().Daemon(ctx)
	if err != nil {
		f := finding{"daemon", warn, err.Error(), hintOf(err)}
		if meant {
			f.Verdict = fail
		}
		return f
	}
	f := finding{Check: "daemon", Verdict: ok, Detail: fmt.Sprintf("%s at %s", info.Version, url)}
	if info.Version != cay.Version() {
		f.Verdict, f.Fix = warn, "it is not of this version, "+cay.Version()+"; restart it after an upgrade"
	}
	return f
}
