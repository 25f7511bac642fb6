package agent

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/sandboxd/guest"
)

// gVisor saves and restores the network stack of the first network namespace only. A save
// leaves the endpoints of every other stack frozen, and a restore waits for them for
// ever. Bridges that have forwarded packets, and TUN devices, cannot be saved at all, and
// other interfaces are missing after a restore. So the daemon asks for these obstacles
// before it saves memory.
//
// A further namespace is harmless as long as no packet was ever sent in it and no process
// in it has an IP socket: browsers and bubblewrap keep their children in such namespaces.

func (s *Server) handleObstacles(w http.ResponseWriter, _ *http.Request) error {
	var o guest.Obstacles
	if s.isInit() { // elsewhere the machine is not the Server's
		var err error
		if o.Obstacles, err = obstacles("/proc"); err != nil {
			return err
		}
	}
	return writeJSON(w, o)
}

// obstacles names the parts of the machine that cannot be saved with its memory, at most
// guest.MaxObstacles.
func obstacles(proc string) ([]string, error) {
	found, err := devices()
	if err != nil {
		return nil, err
	}
	own, err := inode(filepath.Join(proc, "self/ns/net"))
	if err != nil {
		return nil, fileError("stat", "/proc/self/ns/net", err)
	}
	others, err := namespaces(proc, own)
	if err != nil {
		return nil, err
	}
	var ip map[string]bool // read when needed
	for _, ns := range others {
		if len(found) >= guest.MaxObstacles {
			break
		}
		used := len(ns.pids) == 0 // the interfaces of a namespace can be listed only from inside
		for i, pid := range ns.pids {
			if i == 0 {
				used = carried(filepath.Join(proc, strconv.Itoa(pid), "net/dev"))
			}
			if used {
				break
			}
			if ip == nil {
				ip = ipSockets(proc)
			}
			used = hasSocket(filepath.Join(proc, strconv.Itoa(pid), "fd"), ip)
		}
		if used {
			found = append(found, ns.String())
		}
	}
	return found[:min(len(found), guest.MaxObstacles)], nil
}

// namespace is a network namespace other than the first.
type namespace struct {
	pids []int  // of the processes in it
	path string // its mount point, if no process is in it
}

func (ns *namespace) String() string {
	if len(ns.pids) == 0 {
		return "the network namespace " + ns.path
	}
	command, _ := commandOf(ns.pids[0])
	return fmt.Sprintf("the network namespace of process %d (%s)", ns.pids[0], command)
}

// namespaces returns the network namespaces that have a process or a mount, except the
// namespace with the inode own, in the order of their inodes.
func namespaces(proc string, own uint64) ([]*namespace, error) {
	byInode := make(map[uint64]*namespace)
	at := func(n uint64) *namespace {
		if byInode[n] == nil {
			byInode[n] = new(namespace)
		}
		return byInode[n]
	}
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, fileError("list", "/proc", err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		n, err := inode(filepath.Join(proc, e.Name(), "ns/net"))
		if err != nil || n == own {
			continue // the process has ended
		}
		ns := at(n)
		ns.pids = append(ns.pids, pid)
	}
	mounts, err := os.ReadFile(filepath.Join(proc, "self/mountinfo"))
	if err != nil {
		return nil, fileError("read", "/proc/self/mountinfo", err)
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if len(fields) < 5 || !strings.Contains(line, " - nsfs ") {
			continue
		}
		n, err := inode(fields[4])
		if err != nil || n == own || !isNetwork(fields[4]) {
			continue // it was unmounted meanwhile, or is of another kind
		}
		if ns := at(n); len(ns.pids) == 0 {
			ns.path = fields[4]
		}
	}
	var all []*namespace
	for _, n := range slices.Sorted(maps.Keys(byInode)) {
		all = append(all, byInode[n])
	}
	return all, nil
}

// isNetwork reports whether a file is a network namespace. Source: ioctl_ns(2).
func isNetwork(path string) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	return err != nil || kind == unix.CLONE_NEWNET
}

func inode(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, err
	}
	return st.Ino, nil
}

// carried reports whether an interface in a table like /proc/net/dev has carried a
// packet, or is not a loopback interface.
func carried(path string) bool {
	table, err := os.ReadFile(path)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH)
	}
	for line := range bytes.Lines(table) {
		name, counts, ok := strings.Cut(string(line), ":")
		if !ok {
			continue // a heading
		}
		fields := strings.Fields(counts)
		const received, sent = 1, 9
		if strings.TrimSpace(name) != "lo" || len(fields) <= sent || fields[received] != "0" || fields[sent] != "0" {
			return true
		}
	}
	return false
}

// ipSockets returns the links of all IP sockets in /proc/PID/fd, as "socket:[7]".
func ipSockets(proc string) map[string]bool {
	links := make(map[string]bool)
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6"} {
		f, err := os.Open(filepath.Join(proc, "self/net", table))
		if err != nil {
			continue // without IPv6 there are fewer
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			const inode = 9
			if fields := strings.Fields(lines.Text()); len(fields) > inode {
				links["socket:["+fields[inode]+"]"] = true
			}
		}
		f.Close()
	}
	return links
}

// hasSocket reports whether a link in a directory is among links.
func hasSocket(dir string, links map[string]bool) bool {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false // the process has ended
	}
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		link, err := os.Readlink(filepath.Join(dir, e.Name()))
		return err == nil && links[link]
	})
}

// ownLink matches the names of the sandbox's own interfaces: each daemon that adopts
// the sandbox adds one.
var ownLink = regexp.MustCompile(`^eth[0-9]+$`)

// devices names the interfaces of this network namespace except loopback and the
// sandbox's link. gVisor reports no kind for that link and for TUN devices.
func devices() ([]string, error) {
	table, err := syscall.NetlinkRIB(syscall.RTM_GETLINK, syscall.AF_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	messages, err := syscall.ParseNetlinkMessage(table)
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	var found []string
	for _, m := range messages {
		if m.Header.Type != syscall.RTM_NEWLINK {
			continue
		}
		attrs, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			return nil, fmt.Errorf("list network interfaces: %w", err)
		}
		var name, kind string
		for _, a := range attrs {
			switch a.Attr.Type {
			case syscall.IFLA_IFNAME:
				name = string(bytes.TrimRight(a.Value, "\x00"))
			case unix.IFLA_LINKINFO:
				kind = linkKind(a.Value)
			}
		}
		switch {
		case kind == "bridge":
			found = append(found, "the bridge "+name)
		case kind == "" && name != "lo" && !ownLink.MatchString(name):
			found = append(found, "the TUN device "+name)
		case kind != "":
			found = append(found, fmt.Sprintf("the network interface %s (%s)", name, kind))
		}
	}
	return found, nil
}

// linkKind returns IFLA_INFO_KIND of a nested attribute IFLA_LINKINFO, "" if it is
// absent. Source: rtnetlink(7), linux/if_link.h.
func linkKind(nested []byte) string {
	for len(nested) >= unix.SizeofRtAttr {
		size, typ := int(binary.NativeEndian.Uint16(nested)), binary.NativeEndian.Uint16(nested[2:])
		if size < unix.SizeofRtAttr || size > len(nested) {
			return ""
		}
		if typ == unix.IFLA_INFO_KIND {
			return string(bytes.TrimRight(nested[unix.SizeofRtAttr:size], "\x00"))
		}
		nested = nested[min((size+3)&^3, len(nested)):]
	}
	return ""
}
