package gvisor

import (
	"fmt"
	"math"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cayhq/cay/internal/sandboxd/machine"
)

// configEnv carries Spec.GuestConfig to the guest's init.
const configEnv = "CAY_GUEST_CONFIG"

// capabilities are the capabilities of root in a restricted guest: all but raw sockets.
// They exist in the sentry's own kernel and mean nothing to the host.
var capabilities = []string{
	"CAP_AUDIT_CONTROL", "CAP_AUDIT_READ", "CAP_AUDIT_WRITE", "CAP_BLOCK_SUSPEND",
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID",
	"CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_KILL", "CAP_LEASE", "CAP_LINUX_IMMUTABLE",
	"CAP_MKNOD", "CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST",
	"CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_ADMIN",
	"CAP_SYS_BOOT", "CAP_SYS_CHROOT", "CAP_SYS_NICE", "CAP_SYS_PTRACE",
	"CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG",
}

// fullCapabilities are the capabilities of root in any other guest. The link's reader
// judges each packet by itself, so a guest that can write raw packets reaches no more than
// a guest that cannot; see the endpoint of package network.
var fullCapabilities = append(slices.Clone(capabilities), "CAP_NET_RAW")

// capabilitiesOf returns the capabilities of root in the guest of s.
func capabilitiesOf(s machine.Spec) []string {
	if s.Restricted {
		return capabilities
	}
	return fullCapabilities
}

// fullFlags are gVisor's flags for guests that are not restricted: raw sockets, packet
// sockets that can send, and nftables, by which Debian's iptables works. Without these
// flags dockerd does not start. gVisor marks nftables as a flag for tests, because its
// nftables lacks some of Linux's; see docs/upgrades.md.
var fullFlags = map[string]string{"net-raw": "true", "allow-packet-socket-write": "true", "TESTONLY-nftables": "true"}

// ociSpec is the OCI configuration of a machine's one container.
func ociSpec(s machine.Spec, bundle string) *specs.Spec {
	mounts := []specs.Mount{
		{Type: "proc", Source: "proc", Destination: "/proc"},
		{Type: "sysfs", Source: "sysfs", Destination: "/sys", Options: []string{"ro", "nosuid", "noexec", "nodev"}},
		{Type: "tmpfs", Source: "shm", Destination: "/dev/shm", Options: []string{"mode=1777"}},
		{Type: "cgroup", Source: "cgroup", Destination: "/sys/fs/cgroup"},
	}
	for _, m := range s.Mounts {
		mounts = append(mounts, ociMount(m))
	}
	capabilities := capabilitiesOf(s)
	return &specs.Spec{
		Version: "1.1.0",
		Process: &specs.Process{
			Args: s.Init,
			Cwd:  "/",
			Env:  []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", configEnv + "=" + string(s.GuestConfig)},
			Capabilities: &specs.LinuxCapabilities{
				Bounding: capabilities, Effective: capabilities, Permitted: capabilities,
			},
			// By default gVisor sets the daemon's own limit. A descriptor in the guest
			// takes no descriptor of the host, only the sandbox's memory.
			Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: maxFiles, Hard: maxFiles}},
		},
		Root:     &specs.Root{Path: bundle},
		Hostname: s.Hostname,
		Mounts:   mounts,
		Annotations: map[string]string{
			"dev.gvisor.spec.rootfs.source":  s.RootFS,
			"dev.gvisor.spec.rootfs.type":    "erofs",
			"dev.gvisor.spec.rootfs.overlay": "memory", // the hint only; the real medium is the file store of mountConfs
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace}, {Type: specs.NetworkNamespace},
			},
			Resources: resources(s),
		},
	}
}

// maxFiles is how many descriptors a process of a guest may have open.
const maxFiles = 1 << 20

// ociMount returns the OCI configuration of a mount. A drive is a tmpfs whose data is in
// a host file, which is the result if gVisor is told to lay an overlay over nothing: see
// mountConfs.
func ociMount(m machine.Mount) specs.Mount {
	if m.Drive == nil {
		return specs.Mount{Type: "erofs", Source: m.Source, Destination: m.Target, Options: []string{"ro"}}
	}
	options := []string{"mode=0755", "nosuid", fmt.Sprintf("size=%dm", m.Drive.SizeMB)}
	if m.Drive.ReadOnly {
		options = append(options, "ro")
	}
	return specs.Mount{Type: "bind", Source: "drive", Destination: m.Target, Options: options}
}

const (
	cpuPeriod = 100_000 // microseconds: the kernel's default CFS period

	// maxGuestTasks is how many processes and threads a guest may have. Measured: each
	// takes up to three tasks on the host, in addition to about 20 tasks of the sentry
	// itself.
	maxGuestTasks = 2048
)

// resources are a machine's host limits. gVisor's cgroup package writes them as
// cgroup v1 or v2 files.
func resources(s machine.Spec) *specs.LinuxResources {
	var (
		period = uint64(cpuPeriod)
		quota  = int64(math.Round(s.VCPUs * cpuPeriod))
		memory = s.MemoryMB << 20
		tasks  = int64(3*maxGuestTasks + 20)
	)
	return &specs.LinuxResources{
		CPU:    &specs.LinuxCPU{Quota: &quota, Period: &period},
		Memory: &specs.LinuxMemory{Limit: &memory, Swap: &memory},
		Pids:   &specs.LinuxPids{Limit: tasks},
	}
}

// mountConfs says how the sentry serves the root and the mounts: the root with a writable
// overlay whose data is in a host file, bounded in size; images read-only; and drives as
// an overlay over nothing, with the data in a host file.
func mountConfs(s machine.Spec) string {
	confs := fmt.Sprintf("erofs:anon:size=%dm", s.DiskMB)
	for _, m := range s.Mounts {
		if m.Drive != nil {
			confs += ",none:anon"
		} else {
			confs += ",erofs:none"
		}
	}
	return confs
}
