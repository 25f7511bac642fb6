package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// boot makes the directory in $1 the root of new namespaces and starts systemd in them, with
// $2 as its cgroup, which is the root of the machine's only cgroup tree. /dev is the machine's
// own, since units change it.
const boot = `set -e
echo $$ >"$2/cgroup.procs"
exec unshare --mount --pid --fork --kill-child --uts --ipc --cgroup --propagation private sh -c '
set -e
read -r pid rest </proc/self/stat
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"; mount --rbind /sys "$1/sys"
umount -l "$1/sys/fs/cgroup"; mount -t cgroup2 cgroup2 "$1/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$1/run"; mount -t tmpfs -o mode=755 tmpfs "$1/dev"
for n in null zero full random urandom tty; do touch "$1/dev/$n"; mount --bind "/dev/$n" "$1/dev/$n"; done
mkdir "$1/dev/pts" "$1/dev/shm"; mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$1/dev/pts"
ln -s pts/ptmx "$1/dev/ptmx"; ln -s /proc/self/fd "$1/dev/fd"
cd "$1"; mkdir -p .old; pivot_root . .old; umount -l /.old; rmdir /.old
echo entered $pid
exec env -i PATH="$PATH" container=cay NOTIFY_SOCKET=/root/booted /usr/lib/systemd/systemd
' sh "$1"`

// systemAddress is where the daemon of newSystem listens.
const systemAddress = "127.0.0.1:17270"

// notHere are units that would change this machine, whose kernel the new one shares.
var notHere = []string{
	"systemd-sysctl.service", "systemd-modules-load.service", "systemd-tmpfiles-setup-dev.service", "systemd-tmpfiles-setup-dev-early.service",
	"systemd-journald-audit.socket", "systemd-remount-fs.service", "systemd-binfmt.service", "proc-sys-fs-binfmt_misc.automount",
	"systemd-random-seed.service", "systemd-logind.service", "console-getty.service", "getty.target", "systemd-pstore.service",
	"dev-hugepages.mount", "dev-mqueue.mount", "sys-kernel-config.mount", "sys-kernel-debug.mount", "sys-kernel-tracing.mount", "sys-fs-fuse-connections.mount",
}

// newSystem makes a Debian 13 whose process 1 is systemd, in a process namespace and a
// cgroup of its own. It has the network of this machine, and the controllers of cgroups that
// this machine has in version 2.
func newSystem(t *testing.T) *machine {
	t.Helper()
	m := unpackMachine(t)
	tree := "/sys/fs/cgroup"
	if _, err := os.Stat(tree + "/unified"); err == nil {
		tree += "/unified"
	}
	if _, err := os.Stat(tree + "/cgroup.procs"); err != nil {
		t.Skip("this machine has no cgroups of version 2: ", err)
	}
	// systemd raises these limits of the kernel, which this machine shares.
	for _, name := range []string{"/proc/sys/fs/nr_open", "/proc/sys/fs/file-max"} {
		before, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.WriteFile(name, before, 0o644); err != nil {
				t.Error(err)
			}
		})
	}
	group := filepath.Join(tree, filepath.Base(m.dir))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeGroups(t, group) })
	// The images of tests, if "make images" has made them, save the time of making them.
	if _, err := os.Stat("../.cache/images"); err == nil {
		output(t, ".", nil, "install", "-d", "-m", "0700", filepath.Join(m.dir, "var/lib/cay"))
		output(t, ".", nil, "cp", "-a", "../.cache/images", filepath.Join(m.dir, "var/lib/cay/images"))
	}
	for _, unit := range notHere {
		if err := os.Symlink("/dev/null", filepath.Join(m.dir, "etc/systemd/system", unit)); err != nil {
			t.Fatal(err)
		}
	}
	// The network is this machine's, on which another daemon may serve.
	vars := new(strings.Builder)
	fmt.Fprintf(vars, "CAY_LISTEN=%s\n", systemAddress)
	m.url, m.env = "http://"+systemAddress, append(m.env, "CAY_URL=http://"+systemAddress)
	for _, v := range m.env {
		if strings.HasPrefix(v, "NPM_CONFIG_REGISTRY=") {
			fmt.Fprintln(vars, v)
		}
	}
	if b, err := os.ReadFile(filepath.Join(group, "cgroup.controllers")); err != nil || !strings.Contains(string(b), "memory") {
		t.Logf("no limits of sandboxes: the controllers of version 2 are %q (%v)", b, err)
		vars.WriteString("CAY_INSECURE_NO_LIMITS=true\n")
	}
	for name, text := range map[string]string{"etc/default/cay": vars.String(), "etc/systemd/journald.conf.d/test.conf": "[Journal]\nAudit=no\n"} {
		path := filepath.Join(m.dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	booted, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(m.dir, "root/booted"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer booted.Close()
	m.enter(exec.Command("sh", "-c", boot, "sh", m.dir, group))
	m.spaces = []string{"--pid", "--uts", "--ipc", "--cgroup"}
	if err := booted.SetReadDeadline(time.Now().Add(3 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	for b := make([]byte, 4096); ; {
		n, err := booted.Read(b)
		if err != nil {
			t.Fatalf("systemd has not booted: %v", err)
		}
		if slices.Contains(strings.Split(string(b[:n]), "\n"), "READY=1") {
			return m
		}
	}
}

// removeGroups removes a cgroup and those below it, whose processes have ended.
func removeGroups(t *testing.T, group string) {
	var all []string
	err := filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	for _, path := range slices.Backward(all) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
}

// The unit under systemd itself, with the rights and the filter of system calls that it has
// there: the package starts it, the daemon hands over to a later version, is killed, reloads,
// and goes with the package.
func TestInstall_Systemd(t *testing.T) {
	m := newSystem(t)
	pkg := m.bring(dist(t, "cay_*_"+nativeArch()+".deb"))
	t.Cleanup(func() {
		if t.Failed() {
			out, err := m.try("journalctl", "--no-pager", "-u", "cay", "-n", "100")
			t.Logf("the journal: %s (%v)", out, err)
		}
	})
	if _, err := os.Stat(filepath.Join(m.dir, "var/lib/cay/images")); err == nil {
		m.run("apt-get", "install", "-qy", "--no-install-recommends", pkg)
	} else { // the default image is to be made
		m.run("apt-get", "update", "-q")
		m.run("apt-get", "install", "-qy", pkg)
	}
	m.active("99.0.0", false)
	m.run("sh", "-c", "cay doctor || true")
	m.run("cay", "run", "--", "node", "-e", "console.log(6*7)")
	m.run("cay", "sandbox", "create", "works", "--persistent")
	m.run("cay", "sandbox", "exec", "works", "--", "sh", "-c", "echo kept > note")

	newer, first := m.bring(later(t, "cay_99.0.0_"+nativeArch()+".deb")), m.mainPID()
	asked := ask(m)
	m.run("apt-get", "install", "-qy", newer)
	t.Logf("while the later version took over: %s", asked())
	m.active("99.0.0", true)
	if now := m.mainPID(); now == first {
		t.Errorf("the main process is still %s", now)
	}
	m.run("systemctl", "reload", "cay")
	m.run("systemctl", "restart", "cay")
	m.active("99.0.0", true)
	if out := m.run("cay", "sandbox", "exec", "works", "--", "cat", "note"); out != "kept\n" {
		t.Errorf("after the restart: %q", out)
	}
	// systemd starts a daemon again that was killed.
	before := m.mainPID()
	m.run("systemctl", "kill", "--kill-whom=main", "-s", "KILL", "cay")
	m.run("sh", "-c", "until [ \"$(systemctl show -P MainPID cay)\" != "+before+" ] && systemctl is-active -q cay; do sleep 0.2; done")
	if out := m.run("cay", "sandbox", "exec", "works", "--", "cat", "note"); out != "kept\n" {
		t.Errorf("after the kill: %q", out)
	}
	m.run("systemctl", "status", "--no-pager", "cay")
	m.run("apt-get", "purge", "-qy", "cay")
	if out, err := m.try("systemctl", "is-active", "cay"); err == nil {
		t.Errorf("after the purge the unit is %s", out)
	}
	m.run("sh", "-c", "! test -e /var/lib/cay")
}

// active checks that the unit is active, and whether its daemon is of a version.
func (m *machine) active(version string, want bool) {
	m.t.Helper()
	m.run("systemctl", "is-active", "cay")
	var status struct{ Version string }
	if err := json.Unmarshal([]byte(m.run("cay", "status", "--json")), &status); err != nil || (status.Version == version) != want {
		m.t.Errorf("the daemon is of version %q, %v", status.Version, err)
	}
}

// mainPID returns the id of the unit's main process.
func (m *machine) mainPID() string {
	m.t.Helper()
	return strings.TrimSpace(m.run("systemctl", "show", "-P", "MainPID", "cay"))
}
