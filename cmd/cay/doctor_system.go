package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// system has the properties of a host by which it runs the daemon as a service, or inside
// of a container.
type system struct {
	status    string       // text of /proc/self/status
	container string       // the kind of container that this process is in; "" for none
	userns    func() error // makes a user namespace, as each sandbox does
	clock     func() (synced bool, err error)
}

func thisSystem() system {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		status = nil // the check then misses what it looks for, and says so
	}
	return system{status: string(status), container: containerKind(os.Getenv), userns: tryNamespace, clock: clockSynced}
}

// containerKind names the container that this process is in, by the marks that container
// managers leave.
func containerKind(env func(string) string) string {
	if kind := env("container"); kind != "" {
		return kind
	}
	if env("KUBERNETES_SERVICE_HOST") != "" {
		return "kubernetes"
	}
	for file, kind := range map[string]string{"/run/.containerenv": "podman", "/.dockerenv": "docker"} {
		if _, err := os.Stat(file); err == nil {
			return kind
		}
	}
	return ""
}

// tryNamespace starts this program in a user namespace of its own, in which only nobody is
// known, as in a sandbox's. Root's own id would take another capability.
func tryNamespace() error {
	uid, gid := os.Geteuid(), os.Getegid()
	if uid == 0 {
		uid, gid = 65534, 65534
	}
	cmd := exec.Command("/proc/self/exe", "version")
	cmd.Args[0] = os.Args[0] // named after the file, it would be a sentry
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}},
	}
	return cmd.Run()
}

// clockSynced reports whether the kernel's clock follows another clock.
func clockSynced() (bool, error) {
	var t unix.Timex // Modes 0: it only reads
	state, err := unix.Adjtimex(&t)
	return err == nil && state != unix.TIME_ERROR, err
}

// Capabilities that starting a sandbox takes, by their bit.
var neededCapabilities = []struct {
	bit  uint
	name string
}{{unix.CAP_KILL, "KILL"}, {unix.CAP_SETGID, "SETGID"}, {unix.CAP_SETUID, "SETUID"}}

// missingCapabilities returns the needed capabilities that this process has not; known is
// false if it cannot say.
func missingCapabilities(status string) (missing []string, known bool) {
	have := uint64(0)
	for line := range strings.Lines(status) {
		if text, is := strings.CutPrefix(line, "CapEff:"); is {
			n, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
			have, known = n, err == nil
		}
	}
	for _, c := range neededCapabilities {
		if have&(1<<c.bit) == 0 {
			missing = append(missing, c.name)
		}
	}
	return missing, known
}

// checkCapabilities looks for rights that containers and units take away.
func checkCapabilities(h host) finding {
	f := finding{Check: "rights", Verdict: ok, Detail: "not in a container"}
	if h.system.container != "" {
		f.Detail = "in a container (" + h.system.container + ")"
	}
	missing, known := missingCapabilities(h.system.status)
	if !known {
		return finding{"rights", warn, f.Detail + ", and this process's capabilities are not known", "mount /proc"}
	}
	if len(missing) > 0 {
		f.Verdict, f.Detail = fail, f.Detail+", without the capabilities "+strings.Join(missing, ", ")
		f.Fix = "start the container with --cap-add " + strings.Join(missing, ",") + "; a unit needs them in CapabilityBoundingSet"
	}
	return f
}

// checkNamespaces tries to make a user namespace, and looks for the reason if it cannot.
func checkNamespaces(h host) finding {
	err := h.system.userns()
	if err == nil {
		return finding{Check: "namespaces", Verdict: ok, Detail: "user namespaces can be made"}
	}
	f := finding{Check: "namespaces", Verdict: fail, Detail: fmt.Sprintf("user namespaces cannot be made: %v", err)}
	value := func(name string) string {
		b, err := h.readFile("/proc/sys/" + name)
		if err != nil {
			return "" // the kernel has no such setting
		}
		return strings.TrimSpace(string(b))
	}
	missing, known := missingCapabilities(h.system.status)
	switch {
	case known && len(missing) > 0:
		f.Fix = "it takes the capabilities " + strings.Join(missing, ", ")
	case value("kernel/apparmor_restrict_unprivileged_userns") == "1":
		f.Fix = "AppArmor forbids them: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, also in /etc/sysctl.d/60-cay.conf"
	case value("kernel/unprivileged_userns_clone") == "0":
		f.Fix = "sysctl -w kernel.unprivileged_userns_clone=1, also in /etc/sysctl.d/60-cay.conf"
	case value("user/max_user_namespaces") == "0":
		f.Fix = "sysctl -w user.max_user_namespaces=100000, also in /etc/sysctl.d/60-cay.conf"
	case h.system.container != "":
		f.Fix = "the container's filter of system calls forbids them: --security-opt seccomp=unconfined, in Kubernetes seccompProfile: {type: Unconfined}"
	default:
		f.Fix = "leave the chroot, if this is one: the kernel makes none there"
	}
	return f
}

// unitDirs are the directories of units, the strongest first.
var unitDirs = []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system"}

// unitNeeds are lines of the unit without which sandboxes end with the daemon, or lose
// their limits.
var unitNeeds = []string{"Type=notify", "KillMode=process", "Delegate=yes"}

// checkUnit looks at the unit of the daemon, if there is one. A machine without is
// no fault: a daemon can be started otherwise.
func checkUnit(h host) (finding, bool) {
	for _, dir := range unitDirs {
		path := filepath.Join(dir, "cay.service")
		b, err := h.readFile(path)
		if err != nil {
			continue
		}
		lines := strings.Split(string(b), "\n")
		for _, want := range unitNeeds {
			if !slices.Contains(lines, want) {
				return finding{"unit", warn, path + " has no " + want, "systemctl edit cay, and add it below [Service]; the package's unit has it"}, true
			}
		}
		return finding{Check: "unit", Verdict: ok, Detail: path}, true
	}
	return finding{}, false
}

// checkClock looks for a clock that nobody sets: timeouts do not depend on it, but tokens,
// certificates and schedules do.
func checkClock(h host) finding {
	switch synced, err := h.system.clock(); {
	case err != nil:
		return finding{"clock", warn, fmt.Sprintf("it is not known whether it is right: %v", err), "allow adjtimex"}
	case !synced:
		return finding{"clock", warn, "it follows no other clock", "timedatectl set-ntp true, or install systemd-timesyncd or chrony"}
	}
	return finding{Check: "clock", Verdict: ok, Detail: "it follows another clock"}
}

// checkDelegation looks for controllers that the root of cgroup v2 does not pass down, and
// that this process cannot pass down.
func checkDelegation(h host, root string) finding {
	b, err := h.readFile(filepath.Join(root, "cgroup.subtree_control"))
	if err != nil {
		return finding{"delegation", warn, err.Error(), "mount the cgroup tree with read and write"}
	}
	on := strings.Fields(string(b))
	missing := slices.DeleteFunc(slices.Clone(controllers), func(c string) bool { return slices.Contains(on, c) })
	if len(missing) == 0 {
		return finding{Check: "delegation", Verdict: ok, Detail: strings.Join(controllers, ", ") + " are passed down at " + root}
	}
	if err := h.writable(filepath.Join(root, "cgroup.subtree_control")); err != nil {
		return finding{"delegation", fail, fmt.Sprintf("%s: %v", root, err), "Delegate=yes in the unit; a container needs its own cgroup tree, writable"}
	}
	return finding{Check: "delegation", Verdict: ok, Detail: "the daemon switches " + strings.Join(missing, ", ") + " on when it starts"}
}
