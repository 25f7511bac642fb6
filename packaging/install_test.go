package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// machine is a new Debian in a mount namespace of its own, with the programs of a minimal
// installation, as a user meets it. It shares network, processes and cgroups with this
// machine.
type machine struct {
	t    *testing.T
	dir  string
	pid  string // of the process that keeps the namespace
	env  []string
	unit *service
}

// enter makes the directory in $1 the root of a mount namespace. A change of the root alone
// would not do: the kernel makes no user namespaces for processes in one.
const enter = `set -e
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"; mount --rbind /sys "$1/sys"; mount --rbind /dev "$1/dev"; mount -t tmpfs tmpfs "$1/run"
cd "$1"; mkdir -p .old; pivot_root . .old; umount -l /.old; rmdir /.old
echo entered
exec sleep infinity`

// newMachine makes a Debian 13. Its archive is kept in .cache.
func newMachine(t *testing.T) *machine {
	t.Helper()
	long(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	base, err := filepath.Abs("../.cache/install-test/trixie.tar")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(base); errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(base), 0o755); err != nil {
			t.Fatal(err)
		}
		output(t, ".", nil, "mmdebstrap", "--variant=minbase", "--include=ca-certificates,systemd", "--format=tar", "trixie", base+".new")
		if err := os.Rename(base+".new", base); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp("", "cay-install-*")
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, dir: dir, env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "DEBIAN_FRONTEND=noninteractive"}}
	output(t, ".", nil, "tar", "-xf", base, "-C", dir)
	// How this machine reaches the archives.
	for _, f := range []string{"/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt"} {
		b, err := os.ReadFile(f)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, f), b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// Node.js comes from a registry of npm, which a machine without npm has to name.
	if out, err := exec.Command("npm", "config", "get", "registry").Output(); err == nil {
		m.env = append(m.env, "NPM_CONFIG_REGISTRY="+strings.TrimSpace(string(out)))
	}
	keeper := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", enter, "sh", dir)
	stdout, err := keeper.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	keeper.Stderr = os.Stderr
	if err := keeper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if m.unit != nil {
			m.unit.stop()
		}
		m.try("cay", "reap")
		if err := keeper.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = keeper.Wait() // it was killed
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "entered\n" {
		t.Fatalf("the new root was not entered: %q, %v", line, err)
	}
	m.pid = fmt.Sprint(keeper.Process.Pid)
	return m
}

// command returns a command that runs on the machine.
func (m *machine) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command("nsenter", append([]string{"--target", m.pid, "--mount", "--root", "--wd=/", name}, args...)...)
	cmd.Env = m.env
	return cmd
}

// try runs a command and returns its output and its error.
func (m *machine) try(name string, args ...string) (string, error) {
	out, err := m.command(name, args...).CombinedOutput()
	return string(out), err
}

// run runs a command that must succeed, and shows it as a transcript.
func (m *machine) run(name string, args ...string) string {
	m.t.Helper()
	began := time.Now()
	out, err := m.try(name, args...)
	shown := strings.Split(strings.TrimSpace(out), "\n")
	m.t.Logf("# %s %s  (%.1f s)\n%s", name, strings.Join(args, " "), time.Since(began).Seconds(), strings.Join(shown[max(0, len(shown)-8):], "\n"))
	if err != nil {
		m.t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return out
}

// bring copies a file to the machine, into the directory /root.
func (m *machine) bring(path string) string {
	m.t.Helper()
	to := filepath.Join("/root", filepath.Base(path))
	output(m.t, ".", nil, "cp", path, filepath.Join(m.dir, "root"))
	return to
}

// files lists what is on the machine outside of directories that every installation fills.
func (m *machine) files() string {
	m.t.Helper()
	return m.run("sh", "-c", `find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /root -o -path /tmp -o -path /var/cache -o -path /var/log -o -path /var/lib/apt -o -path /var/lib/dpkg -o -path /var/lib/systemd \) -prune -o -print | sort | grep -v -E '/__pycache__|/etc/(ld.so.cache|ssl/certs)' || true`)
}

// service plays the part of systemd for the unit that is installed: ExecStart, notices,
// ExecReload, KillMode=process.
type service struct {
	m       *machine
	cmd     *exec.Cmd
	conn    *net.UnixConn
	log     *bytes.Buffer
	notices chan string
}

var (
	execStart = regexp.MustCompile(`(?m)^ExecStart=(.*)$`)
	bounding  = regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.*)$`)
)

// start starts the unit, and returns when it is ready.
func (m *machine) start() {
	m.t.Helper()
	unit := m.run("cat", "/usr/lib/systemd/system/cay.service")
	set := "-all"
	for c := range strings.FieldsSeq(bounding.FindStringSubmatch(unit)[1]) {
		set += ",+" + strings.ToLower(strings.TrimPrefix(c, "CAP_"))
	}
	args := append([]string{"setpriv", "--no-new-privs", "--bounding-set=" + set}, strings.Fields(execStart.FindStringSubmatch(unit)[1])...)
	// The notices' socket is below /root, which both sides see; /run is the machine's own.
	socket := filepath.Join(m.dir, "root", "notify")
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		m.t.Fatal(err)
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		m.t.Fatal(err)
	}
	s := &service{m: m, conn: conn, log: new(bytes.Buffer), notices: make(chan string, 100)}
	s.cmd = m.command(args[0], args[1:]...)
	s.cmd.Env = append(s.cmd.Env, "NOTIFY_SOCKET=/root/notify", "WATCHDOG_USEC=4000000")
	s.cmd.Stderr = s.log
	if err := s.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.unit = s
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := conn.Read(b)
			if err != nil {
				close(s.notices)
				return
			}
			s.notices <- string(b[:n])
		}
	}()
	s.wait("READY=1")
}

func (s *service) wait(want string) {
	s.m.t.Helper()
	timeout := time.After(2 * time.Minute)
	for {
		select {
		case <-timeout:
			s.m.t.Fatalf("no notice %s; the log:\n%s", want, s.log)
		case got, open := <-s.notices:
			if !open {
				s.m.t.Fatalf("no notice %s; the log:\n%s", want, s.log)
			}
			if strings.Contains(got, want) {
				return
			}
		}
	}
}

// stop ends the main process alone.
func (s *service) stop() {
	s.m.unit = nil
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.m.t.Error(err)
	}
	if err := s.cmd.Wait(); err != nil {
		s.m.t.Logf("the daemon ended: %v\n%s", err, s.log)
	}
	s.conn.Close()
}

// dist returns the file of bin/dist that matches a pattern.
func dist(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join("../bin/dist", pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("bin/dist has %v as %s: run make dist (%v)", found, pattern, err)
	}
	return found[0]
}

// next returns the package of a later version: the same files, and the program once more.
func next(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	output(t, ".", nil, "go", "run", ".", "-arch", nativeArch(), "-out", dir, "-version", "99.0.0")
	return filepath.Join(dir, "cay_99.0.0_"+nativeArch()+".deb")
}

// A new user installs the package, runs a program, upgrades while a sandbox works, and
// removes everything.
func TestInstall_Debian(t *testing.T) {
	m := newMachine(t)
	pkg, later := m.bring(dist(t, "cay_*_"+nativeArch()+".deb")), m.bring(next(t))
	m.run("apt-get", "update", "-q")
	// Recommended packages stay after a removal: they are none of cay's.
	m.run("apt-get", "install", "-qy", "mmdebstrap", "erofs-utils", "--download-only")
	began := time.Now()
	m.run("apt-get", "install", "-qy", pkg)
	if out := m.run("cay", "run", "--", "node", "-e", "console.log(6*7)"); !strings.Contains(out, "42") {
		t.Errorf("node said %q", out)
	}
	t.Logf("two commands: %.1f s", time.Since(began).Seconds())
	m.run("sh", "-c", "cay doctor || true")
	m.run("sh", "-c", "test -L /etc/systemd/system/multi-user.target.wants/cay.service")
	m.run("systemd-analyze", "verify", "--man=no", "/usr/lib/systemd/system/cay.service")
	m.run("sh", "-c", "man=$(zcat /usr/share/man/man1/cay-run.1.gz) && echo \"$man\" | head -5")
	// All settings, switched on with their defaults, are valid.
	m.run("sh", "-c", `sed -E 's/^#( *[a-z_0-9]+:)/\1/; s/^#(  +[a-z_0-9]+:)/\1/; s/^#(  +#)/\1/' /etc/cay/cay.yaml >/root/all.yaml; grep -c '^ *[a-z]' /root/all.yaml; CAY_CONFIG=/root/all.yaml cay reap`)

	m.start()
	m.unit.wait("WATCHDOG=1")
	m.run("cay", "sandbox", "create", "--name", "works", "--persistent")
	m.run("cay", "sandbox", "exec", "works", "--", "sh", "-c", "echo kept > note; (while :; do date +%s >> ticks; sleep 0.2; done) >/dev/null 2>&1 &")
	// Reload: the quota of the file holds at once.
	m.run("sh", "-c", "printf 'quota:\\n  sandboxes: 1\\n' >> /etc/cay/cay.yaml")
	if err := m.unit.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	m.unit.wait("RELOADING=1")
	m.unit.wait("READY=1")
	if out, err := m.try("cay", "sandbox", "create"); err == nil || !strings.Contains(out, "1") {
		t.Errorf("a second sandbox after the reload: %v, %s", err, out)
	}

	// Upgrade: the changed file of settings stays; the sandbox goes on.
	m.run("dpkg", "-i", later)
	if out := m.run("tail", "-1", "/etc/cay/cay.yaml"); !strings.Contains(out, "sandboxes: 1") {
		t.Errorf("the settings were replaced: %s", out)
	}
	m.run("sed", "-i", "s/sandboxes: 1/sandboxes: 9/", "/etc/cay/cay.yaml")
	stopped := time.Now()
	m.unit.stop()
	m.start()
	t.Logf("restart with the later version: %.2f s", time.Since(stopped).Seconds())
	if out := m.run("cay", "version"); !strings.Contains(out, "99.0.0") {
		t.Errorf("the version is %s", out)
	}
	if out := m.run("cay", "sandbox", "exec", "works", "--", "sh", "-c", "cat note; a=$(wc -l <ticks); sleep 1; b=$(wc -l <ticks); [ $b -gt $a ] && echo ticks"); out != "kept\nticks\n" {
		t.Errorf("after the upgrade: %q", out)
	}

	// With the unit's rights, mmdebstrap works, too.
	m.run("cay", "image", "build", "-q", "--package", "jq")
	if out := m.run("cay", "run", "-q", "--", "sh", "-c", "echo '[42]' | jq '.[0]'"); out != "42\n" {
		t.Errorf("jq said %q", out)
	}

	// The package's removal ends the sandbox; a purge leaves nothing.
	m.unit.stop()
	m.run("apt-get", "remove", "-qy", "cay")
	if out, err := m.try("sh", "-c", "ls /var/lib/cay/machines; grep -l cay-sentry /proc/[0-9]*/cmdline"); err == nil && strings.Contains(out, "/proc/") {
		t.Logf("processes of sandboxes on this machine, maybe of others: %s", out)
	}
	if out := m.run("sh", "-c", "ls /var/lib/cay/machines | grep -v '^\\.' || true"); strings.TrimSpace(out) != "" {
		t.Errorf("machines are left: %s", out)
	}
	m.run("test", "-e", "/var/lib/cay/cay.db")
	m.run("touch", "/var/lib/cay/keep")
	if out := m.run("apt-get", "purge", "-qy", "cay"); !strings.Contains(out, "stays, because of /var/lib/cay/keep") {
		t.Errorf("the purge says nothing about the data: %s", out)
	}
	m.run("test", "-e", "/var/lib/cay/cay.db")
	m.run("apt-get", "install", "-qy", pkg)
	m.run("rm", "/var/lib/cay/keep")
	m.run("apt-get", "purge", "-qy", "cay")
	if out := m.run("sh", "-c", "find / -xdev -path /proc -prune -o -path /sys -prune -o -path /root -prune -o -path /var/cache -prune -o -path /var/log -prune -o \\( -name 'cay' -o -name 'cay[-._]*' -o -name '_cay' \\) -print"); strings.TrimSpace(out) != "" {
		t.Errorf("the purge has left:\n%s", out)
	}
}

func TestInstall_Tarball(t *testing.T) {
	m := newMachine(t)
	archive := m.bring(dist(t, "cay_*_linux_"+nativeArch()+".tar.gz"))
	before := m.files()
	m.run("sh", "-c", "cd /root && tar xzf "+archive+" && sh cay-*/install.sh")
	m.run("cay", "version")
	m.run("test", "-s", "/etc/cay/cay.yaml")
	m.run("sh", "-c", "sh /root/cay-*/install.sh --remove && rm -r /etc/cay")
	if after := m.files(); after != before {
		t.Errorf("the removal has left something: %s", difference(before, after))
	}
}

// difference returns the lines of b that are not in a.
func difference(a, b string) string {
	var more []string
	for line := range strings.Lines(b) {
		if !strings.Contains(a, line) {
			more = append(more, line)
		}
	}
	return strings.Join(more, "")
}

func TestInstall_RPM(t *testing.T) {
	long(t)
	if _, err := exec.LookPath("rpm"); err != nil {
		t.Skip("rpm is not installed")
	}
	pkg := dist(t, "cay-*."+rpmArch(nativeArch())+".rpm")
	output(t, ".", nil, "rpm", "-K", "--nosignature", pkg)
	list := output(t, ".", nil, "rpm", "-qpl", pkg)
	for _, f := range []string{"/usr/bin/cay", "/usr/lib/systemd/system/cay.service", "/etc/cay/cay.yaml", "/usr/share/man/man1/cay-serve.1.gz"} {
		if !strings.Contains(list, f+"\n") {
			t.Errorf("%s is missing", f)
		}
	}
	if out := output(t, ".", nil, "rpm", "-qpc", pkg); out != "/etc/cay/cay.yaml\n" {
		t.Errorf("files of settings: %s", out)
	}
	t.Log(output(t, ".", nil, "rpm", "-qpi", pkg))
}

// capabilities are those that a container of the image needs.
var capabilities = []string{"CAP_KILL", "CAP_SETUID", "CAP_SETGID"}

// The image runs as a container with three capabilities and a writable cgroup tree.
func TestInstall_Container(t *testing.T) {
	long(t)
	if _, err := exec.LookPath("crun"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs crun and root")
	}
	dir := t.TempDir()
	output(t, dir, nil, "tar", "-xf", abs(t, dist(t, "cay_*_oci_"+nativeArch()+".tar")))
	var manifest struct{ Layers []struct{ Digest string } }
	var index struct{ Manifests []struct{ Digest string } }
	blob := func(digest string) string {
		return filepath.Join(dir, "blobs", strings.Replace(digest, ":", "/", 1))
	}
	readJSON(t, filepath.Join(dir, "index.json"), &index)
	readJSON(t, blob(index.Manifests[0].Digest), &manifest)
	root := filepath.Join(dir, "rootfs")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	output(t, root, nil, "tar", "-xzf", blob(manifest.Layers[0].Digest))
	images := abs(t, "../.cache/images") // of the tests: the default image, made before
	run := func(caps []string, args ...string) (string, error) {
		writeContainer(t, dir, images, caps, args)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		id := fmt.Sprintf("cay-install-%d", time.Now().UnixNano())
		// crun refuses machines that have both versions of cgroups.
		const runtime = `umount /sys/fs/cgroup/unified 2>/dev/null; exec crun --cgroup-manager disabled run --bundle "$@"`
		out, err := exec.CommandContext(ctx, "unshare", "--mount", "--propagation", "private", "sh", "-c", runtime, "sh", dir, id).CombinedOutput()
		t.Logf("# in a container with %v: %s\n%s", caps, strings.Join(args, " "), out)
		return string(out), err
	}
	if out, err := run(capabilities, "/usr/bin/cay", "run", "-q", "--network", "deny-all", "--", "sh", "-c", "echo $((6*7)) on $(uname -s)"); err != nil || out != "42 on Linux\n" {
		t.Errorf("cay run: %v", err)
	}
	if out, err := run(nil, "/usr/bin/cay", "doctor"); err == nil || !strings.Contains(out, "--cap-add KILL,SETGID,SETUID") {
		t.Errorf("without capabilities doctor does not say what is missing: %v", err)
	}
}

func abs(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func readJSON(t *testing.T, path string, into any) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// writeContainer writes the configuration of a container as docker and podman make it with
// --cap-drop ALL, --cap-add of caps, and a writable cgroup tree.
func writeContainer(t *testing.T, dir, images string, caps, args []string) {
	t.Helper()
	type mount struct {
		Destination string   `json:"destination"`
		Type        string   `json:"type"`
		Source      string   `json:"source"`
		Options     []string `json:"options,omitempty"`
	}
	data := t.TempDir()
	config := map[string]any{
		"ociVersion": "1.0.2", "root": map[string]any{"path": "rootfs"}, "hostname": "container",
		"process": map[string]any{
			"user": map[string]int{"uid": 0, "gid": 0}, "cwd": "/", "args": args, "env": []string{"PATH=/usr/bin", "HOME=/root", "CAY_DATA=/var/lib/cay", "container=crun"},
			"capabilities":    map[string][]string{"bounding": caps, "effective": caps, "permitted": caps},
			"noNewPrivileges": true,
		},
		"mounts": []mount{
			{"/proc", "proc", "proc", nil},
			{"/dev", "tmpfs", "tmpfs", []string{"nosuid", "mode=755"}},
			{"/dev/pts", "devpts", "devpts", []string{"newinstance", "ptmxmode=0666"}},
			{"/sys", "sysfs", "sysfs", []string{"nosuid", "noexec", "nodev", "ro"}},
			{"/sys/fs/cgroup", "bind", "/sys/fs/cgroup", []string{"rbind", "rw"}},
			{"/var/lib/cay", "bind", data, []string{"bind", "rw"}},
			{"/var/lib/cay/images", "bind", images, []string{"bind", "rw"}},
		},
		"linux": map[string]any{"namespaces": []map[string]string{{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "network"}}},
	}
	b, err := json.Marshal(config)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "config.json"), b, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
