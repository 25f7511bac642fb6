package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// dist returns the file of bin/dist that matches a pattern.
func dist(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join("../bin/dist", pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("bin/dist has %v as %s: run make dist (%v)", found, pattern, err)
	}
	return found[0]
}

// next makes the packages of a later version: the same files, and the program once more.
// CAY_PACKAGES_NEXT names a directory that has them already.
var next = sync.OnceValues(func() (dir string, err error) {
	if dir = os.Getenv("CAY_PACKAGES_NEXT"); dir != "" {
		return dir, nil
	}
	if dir, err = filepath.Abs("../.cache/install-test/next"); err != nil {
		return "", err
	}
	_, err = command(".", nil, "go", "run", ".", "-arch", nativeArch(), "-out", dir, "-version", "99.0.0")
	return dir, err
})

// later returns a file of the later version.
func later(t *testing.T, name string) string {
	t.Helper()
	dir, err := next()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// A new user installs the package, runs a program, upgrades while a sandbox works, and
// removes everything.
func TestInstall_Debian(t *testing.T) {
	m := newMachine(t)
	pkg := m.bring(dist(t, "cay_*_"+nativeArch()+".deb"))
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
	m.run("sh", "-c", `sed -E 's/^#([a-z_0-9]+:)/\1/; s/^#(  +[a-z_0-9]+:)/\1/; s/^#(  +#)/\1/' /etc/cay/cay.yaml >/root/all.yaml; grep -c '^ *[a-z]' /root/all.yaml; CAY_CONFIG=/root/all.yaml cay reap`)

	m.start()
	m.unit.wait("WATCHDOG=1")
	m.run("cay", "status")
	m.run("cay", "sandbox", "create", "works", "--persistent")
	m.run("cay", "sandbox", "exec", "works", "--", "sh", "-c", "echo kept > note")
	reload(m)
	upgrade(m, m.bring(later(t, "cay_99.0.0_"+nativeArch()+".deb")))

	// With the unit's rights, mmdebstrap works, too.
	m.run("cay", "image", "build", "-q", "--package", "jq")
	if out := m.run("cay", "run", "-q", "--", "sh", "-c", "echo '[42]' | jq '.[0]'"); out != "42\n" {
		t.Errorf("jq said %q", out)
	}
	m.unit.stop()
	removeAndPurge(m, pkg)
}

// reload changes a quota of the file of settings, which holds at once.
func reload(m *machine) {
	m.t.Helper()
	m.run("sh", "-c", "printf 'quota:\\n  sandboxes: 1\\n' >> /etc/cay/cay.yaml")
	if err := m.unit.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		m.t.Fatal(err)
	}
	m.unit.wait("RELOADING=1")
	m.unit.wait("READY=1")
	if out, err := m.try("cay", "sandbox", "create"); err == nil || !strings.Contains(out, "1") {
		m.t.Errorf("a second sandbox after the reload: %v, %s", err, out)
	}
}

// systemctl stands for the command of that name where no systemd runs. It notes its arguments,
// and says that each unit is active. In all paths, also rpm's, it is found before the command.
const systemctl = `mkdir -p /run/systemd/system && cat >/usr/sbin/systemctl <<'EOF' && chmod +x /usr/sbin/systemctl
#!/bin/sh
echo "$*" >>/root/systemctl.log
EOF
`

// takeOver installs a later package with a command. The new program takes over from the
// daemon, as the package asks it to, and no request is refused.
func takeOver(m *machine, install ...string) {
	t := m.t
	t.Helper()
	m.run("sh", "-c", systemctl)
	asked := ask(m)
	m.run(install[0], install[1:]...)
	m.unit.follow()
	t.Logf("while the later version took over: %s", asked())
	if out := m.run("cat", "/root/systemctl.log"); strings.Contains(out, "restart") {
		t.Errorf("the package restarted the daemon: %s", out)
	}
	var status struct{ Version string }
	if err := json.Unmarshal([]byte(m.run("cay", "status", "--json")), &status); err != nil || status.Version != "99.0.0" {
		t.Errorf("the daemon is of version %q, %v", status.Version, err)
	}
	m.run("rm", "-r", "/usr/sbin/systemctl", "/root/systemctl.log", "/run/systemd")
}

// upgrade installs a later package beside a sandbox in which a command runs, and then
// restarts the daemon.
func upgrade(m *machine, newer string) {
	t := m.t
	t.Helper()
	const count = "i=0; while [ ! -e done ]; do i=$((i+1)); echo $i; sleep 0.1; done"
	counter := m.command("cay", "sandbox", "exec", "works", "--", "sh", "-c", count)
	var counted, complaints bytes.Buffer
	counter.Stdout, counter.Stderr = &counted, &complaints
	if err := counter.Start(); err != nil {
		t.Fatal(err)
	}
	takeOver(m, "dpkg", "-i", newer)
	// The changed file of settings stays.
	if out := m.run("tail", "-1", "/etc/cay/cay.yaml"); !strings.Contains(out, "sandboxes: 1") {
		t.Errorf("the settings were replaced: %s", out)
	}
	m.run("sed", "-i", "s/sandboxes: 1/sandboxes: 9/", "/etc/cay/cay.yaml")
	stopped := time.Now()
	m.unit.stop()
	m.start()
	t.Logf("stop and start of the later version: %.2f s", time.Since(stopped).Seconds())

	if out := m.run("cay", "sandbox", "exec", "works", "--", "sh", "-c", "cat note; touch done"); out != "kept\n" {
		t.Errorf("after the upgrade: %q", out)
	}
	if err := counter.Wait(); err != nil {
		t.Errorf("the command that ran meanwhile: %v, %s", err, complaints.String())
	}
	lines := strings.Fields(counted.String())
	for i, line := range lines {
		if line != fmt.Sprint(i+1) {
			t.Fatalf("line %d of the command that ran meanwhile is %q", i+1, line)
		}
	}
	t.Logf("the command that ran meanwhile wrote %d lines, none is lost: %s", len(lines), complaints.String())
}

// ask sends requests to the daemon, each on a connection of its own, until the result is
// called, which says how they went. None may fail.
func ask(m *machine) func() string {
	t := m.t
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var done sync.WaitGroup
	n, longest := 0, time.Duration(0)
	done.Go(func() {
		for ctx.Err() == nil {
			began := time.Now()
			r, err := client.Get(m.url + "/healthz")
			if err != nil {
				t.Errorf("request %d: %v", n, err)
				return
			}
			r.Body.Close()
			if r.StatusCode != http.StatusOK {
				t.Errorf("request %d: %s", n, r.Status)
			}
			n, longest = n+1, max(longest, time.Since(began))
		}
	})
	t.Cleanup(func() { cancel(); done.Wait() })
	return func() string {
		cancel()
		done.Wait()
		return fmt.Sprintf("%d requests, the longest took %v", n, longest.Round(time.Millisecond))
	}
}

// removeAndPurge removes the package, which ends the sandboxes, and purges it twice: with a file that
// keeps the data, and without.
func removeAndPurge(m *machine, pkg string) {
	t := m.t
	t.Helper()
	m.run("apt-get", "remove", "-qy", "cay")
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
	m.start()
	// An upgrade by hand, as docs/operations.md has it.
	newer := m.bring(later(t, "cay_99.0.0_linux_"+nativeArch()+".tar.gz"))
	m.run("sh", "-c", "cd /root && tar xzf "+newer+" && sh cay-99.0.0/install.sh")
	takeOver(m, "sh", "-c", "echo upgrade >>/root/systemctl.log; cay upgrade")
	m.unit.stop()
	m.run("sh", "-c", "sh /root/cay-99.0.0/install.sh --remove && rm -r /etc/cay /var/lib/cay")
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

// RPM's own program installs, upgrades and removes the package on a Debian, whose packages it
// does not know.
func TestInstall_RPM_Scripts(t *testing.T) {
	m := newMachine(t)
	pkg, newer := m.bring(dist(t, "cay-*."+rpmArch(nativeArch())+".rpm")), m.bring(later(t, "cay-99.0.0-1."+rpmArch(nativeArch())+".rpm"))
	m.run("apt-get", "update", "-q")
	m.run("apt-get", "install", "-qy", "--no-install-recommends", "rpm")
	m.run("rpm", "--nodeps", "-i", pkg)
	m.start()
	takeOver(m, "rpm", "--nodeps", "-U", newer)
	m.unit.stop()
	m.run("rpm", "-e", "cay")
	m.run("sh", "-c", "! command -v cay && test -e /var/lib/cay/cay.db")
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
