package image_test

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/image"
	"github.com/cayhq/cay/internal/image/imagetest"
	"github.com/cayhq/cay/internal/image/rootfs/rootfstest"
	"github.com/cayhq/cay/sandbox"
)

// These tests check the images that users get. The images are built once, see imagetest.

func TestDebian(t *testing.T) {
	t.Parallel()
	lease := imagetest.Acquire(t, "debian")
	if img := lease.Image; img.Source != image.SourceDebian || img.Config.User != "vercel-sandbox" || img.Config.WorkDir != "/vercel/sandbox" ||
		!slices.ContainsFunc(img.Config.Env, func(kv string) bool { return strings.HasPrefix(kv, "PATH=/vercel/bin:/usr/local/sbin:/usr/local/bin:") }) {
		t.Errorf("metadata: %+v", img)
	}
	if err := image.CheckRoot(&lease.Image); err != nil {
		t.Error(err)
	}
	tree := rootfstest.Read(t, lease.Path)

	type file struct {
		mode uint16 // type and permissions
		uid  uint32
	}
	for path, want := range map[string]file{
		"/proc": {unix.S_IFDIR | 0o755, 0}, "/sys": {unix.S_IFDIR | 0o755, 0}, "/dev": {unix.S_IFDIR | 0o755, 0},
		"/run": {unix.S_IFDIR | 0o755, 0}, "/tmp": {unix.S_IFDIR | 0o1777, 0}, "/vercel/runtimes": {unix.S_IFDIR | 0o755, 0},
		"/vercel/bin": {unix.S_IFDIR | 0o755, 0}, "/vercel/sandbox": {unix.S_IFDIR | 0o755, 1000}, "/workspace": {unix.S_IFDIR | 0o755, 1000},
		"/home/vercel-sandbox": {unix.S_IFDIR | 0o700, 1000}, "/usr/local/bin": {unix.S_IFDIR | 0o755, 1000},
		"/usr/bin/sudo": {unix.S_IFREG | 0o4755, 0}, "/etc/sudoers.d/vercel-sandbox": {unix.S_IFREG | 0o440, 0},
		"/etc/machine-id": {unix.S_IFREG | 0o644, 0}, "/usr/share/doc/bash/copyright": {unix.S_IFREG | 0o644, 0},
		"/etc/chromium/policies/managed/cay.json": {unix.S_IFREG | 0o644, 0},
	} {
		if f, ok := tree[path]; !ok || f.Mode != want.mode || f.UID != want.uid {
			t.Errorf("%s is %o of %d, want %o of %d", path, f.Mode, f.UID, want.mode, want.uid)
		}
	}
	var setID []string
	for path, f := range tree {
		if f.Mode&unix.S_IFMT == unix.S_IFREG && f.Mode&unix.S_ISUID != 0 {
			setID = append(setID, path)
		}
		for _, dir := range []string{"/proc/", "/sys/", "/dev/", "/var/lib/apt/lists/deb", "/var/cache/apt/archives/bash"} {
			if strings.HasPrefix(path, dir) {
				t.Errorf("%s is in the image", path)
			}
		}
	}
	slices.Sort(setID)
	want := []string{"/usr/bin/chfn", "/usr/bin/chsh", "/usr/bin/gpasswd", "/usr/bin/mount", "/usr/bin/newgrp", "/usr/bin/passwd",
		"/usr/bin/su", "/usr/bin/sudo", "/usr/bin/umount"}
	if !slices.Equal(setID, want) {
		t.Errorf("set-user-id programs are %q, want %q", setID, want)
	}
	for _, path := range []string{"/etc/hostname", "/usr/lib/python3.13/EXTERNALLY-MANAGED", "/etc/apt/apt.conf.d/99mmdebstrap"} {
		if _, ok := tree[path]; ok {
			t.Errorf("%s is in the image", path)
		}
	}
	if len(tree["/etc/machine-id"].Data) > 0 {
		t.Error("the image has a machine-id")
	}
}

// TestDebian_runs runs programs of the default image, with node24, in a chroot. The
// programs are trusted, so no isolation is needed.
func TestDebian_runs(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("chroot needs root")
	}
	lease, node := imagetest.Acquire(t, "debian"), imagetest.Acquire(t, "node24")
	python := imagetest.Acquire(t, "python3.13")
	root := t.TempDir()
	extract(t, rootfstest.Read(t, lease.Path), root)
	for name, l := range map[string]*image.Lease{"node24": node, "python3.13": python} {
		dir := filepath.Join(root, image.RuntimeDir(name))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		extract(t, rootfstest.Read(t, l.Path), dir)
	}
	if err := unix.Mknod(filepath.Join(root, "dev/null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		t.Skipf("mknod: %v", err)
	}
	if err := os.Chmod(filepath.Join(root, "dev/null"), 0o666); err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "etc/hosts"), []byte("127.0.0.1 localhost "+host+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const runtimes = "/vercel/runtimes/node24/bin:/vercel/runtimes/python3.13/bin:"
	env := []string{"HOME=/home/vercel-sandbox", "USER=vercel-sandbox", "CUSTOM=1"}
	for _, kv := range lease.Image.Config.Env {
		env = append(env, strings.Replace(kv, "PATH=", "PATH="+runtimes, 1))
	}
	tests := []struct{ name, script, want string }{
		{"user", "id -un; id -gn; echo $SHELL; pwd", "vercel-sandbox\nvercel-sandbox\n/bin/bash\n/vercel/sandbox"},
		{"sudo keeps the environment", `sudo -n sh -c 'id -un; echo $USER $SUDO_USER $CUSTOM $HOME; echo $PATH'`,
			"root\nroot vercel-sandbox 1 /root\n" + runtimes + "/vercel/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		{"sudo finds runtimes", "sudo -n node -p 1+1", "2"},
		{"other users have no sudo", "sudo -n useradd -m other; sudo -n -u other -- sudo -n true 2>/dev/null; echo $?", "1"},
		{"useradd tells that a user exists", "sudo -n useradd vercel-sandbox 2>/dev/null; echo $?", "9"},
		{"login shell keeps PATH", `bash -lc 'echo $PATH'`, runtimes + "/vercel/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		{"python", "python -V; readlink -f $(command -v python3)", "Python 3.13"},
		{"pip installs for all", "python -m pip --version | cut -d' ' -f1; python -c 'import sysconfig; print(sysconfig.get_path(\"scripts\"))'; " +
			"test -w /usr/local/lib/python3.13/dist-packages && echo writable", "pip\n/usr/local/bin\nwritable"},
		{"venv", "python -m venv /tmp/v >/dev/null && /tmp/v/bin/pip --version | cut -d' ' -f1", "pip"},
		{"node", "node -v; npm -v; npx --version; corepack --version; npm prefix -g", "v24."},
		{"locale", "locale 2>&1 | grep -c -i cannot; LC_ALL=C.UTF-8 python -c 'print(\"ä\")'", "0\nä"},
		{"tools", "for p in git tar openssl curl less xz unzip zip ip file nano ps patch bzip2; do command -v $p >/dev/null || echo no $p; done; echo ok", "ok"},
		{"certificates", "test -s /etc/ssl/certs/ca-certificates.crt && echo ok", "ok"},
		{"apt", "sudo -n apt-get check >/dev/null && apt-config dump | grep -c 'Install-Recommends \"1\"'", "1"},
		{"packages are configured", "sudo -n dpkg --audit; echo ok", "ok"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "/bin/bash", "-c", tt.script)
			cmd.Dir, cmd.Env = "/vercel/sandbox", env
			cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.HasPrefix(string(out), tt.want) {
				t.Errorf("%v\n%s\nwant\n%s", err, out, tt.want)
			}
		})
	}
}

// TestStore_Build_debianCanceled stops mmdebstrap when it has most to clean up: mounts in
// a half-made tree.
func TestStore_Build_debianCanceled(t *testing.T) {
	if testing.Short() {
		t.Skip("downloads packages")
	}
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		t.Skip(err)
	}
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, image.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := s.Build(ctx, "debian", func(p sandbox.ImageProgress) {
		if strings.Contains(p.Item, "installing essential packages") {
			cancel()
		}
	})
	if cay.CodeOf(err) != cay.Canceled {
		t.Errorf("got %v, want canceled", err)
	}
	wantClean(t, dir)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), dir) {
		t.Errorf("something is still mounted in the store (%v)", err)
	}
}

func TestStore_Build_debianErrors(t *testing.T) {
	t.Run("no mmdebstrap", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		_, err := newStore(t).Build(t.Context(), "", nil)
		var e *cay.Error
		if !errors.As(err, &e) || e.Code != cay.NotSupported || !strings.Contains(e.Hint, "apt-get install mmdebstrap") {
			t.Errorf("got %v, want not_supported with a hint", err)
		}
	})
	// mmdebstrap makes sh write to its next free descriptor, and Debian's sh supports
	// only descriptors of one digit.
	t.Run("free descriptors", func(t *testing.T) {
		bin := t.TempDir()
		const fake = `#!/bin/sh
for n in 3 4 5 6 7 8 9; do if [ -e /proc/$$/fd/$n ]; then echo "E: descriptor $n is taken" >&2; fi; done
echo "E: failed as asked" >&2
exit 1
`
		if err := os.WriteFile(filepath.Join(bin, "mmdebstrap"), []byte(fake), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", bin)
		_, err := newStore(t).Build(t.Context(), "", nil)
		if cay.CodeOf(err) != cay.Unavailable || !strings.Contains(err.Error(), "failed as asked") {
			t.Errorf("got %v, want unavailable, as asked", err)
		}
	})
	t.Run("packages", func(t *testing.T) {
		bin := t.TempDir()
		const fake = `#!/bin/sh
for a; do case $a in --include=*,sudo,*,file,*,ffmpeg,jq) echo "E: Unable to locate package jq" >&2; exit 100;; esac; done
echo "E: other packages: $*" >&2
exit 1
`
		checktest.OK(t, os.WriteFile(filepath.Join(bin, "mmdebstrap"), []byte(fake), 0o755))
		t.Setenv("PATH", bin)
		s := newStore(t)
		_, err := s.BuildDefault(t.Context(), []string{"jq", "ffmpeg", "jq"}, nil)
		if cay.CodeOf(err) != cay.NotFound || !strings.Contains(err.Error(), `no package "jq"`) {
			t.Errorf("got %v, want not_found of jq", err)
		}
		for _, name := range []string{"", "a", "Jq", "-o", "?essential", "a b", "jq=1", "../x", "a,b"} {
			if _, err := s.BuildDefault(t.Context(), []string{"jq", name}, nil); cay.CodeOf(err) != cay.Invalid {
				t.Errorf("%q: got %v, want invalid", name, err)
			}
		}
	})
	t.Run("no archive", func(t *testing.T) {
		if testing.Short() {
			t.Skip("waits for apt to give up")
		}
		if _, err := exec.LookPath("mmdebstrap"); err != nil {
			t.Skip(err)
		}
		dir := t.TempDir()
		s := open(t, dir, image.Options{DebianMirror: "http://127.0.0.1:1/debian"})
		if _, err := s.Build(t.Context(), "default", nil); cay.CodeOf(err) != cay.Unavailable {
			t.Errorf("got %v, want unavailable", err)
		}
		wantClean(t, dir)
	})
}

// extract writes an image's tree to the host.
func extract(t testing.TB, tree rootfstest.Tree, root string) {
	t.Helper()
	for _, p := range tree.Paths() {
		f, to := tree[p], filepath.Join(root, p)
		var err error
		switch f.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			if err = os.Mkdir(to, 0o755); os.IsExist(err) {
				err = nil
			}
		case unix.S_IFLNK:
			err = os.Symlink(f.Target, to)
		default:
			err = os.WriteFile(to, f.Data, 0o600)
		}
		if err == nil {
			err = os.Lchown(to, int(f.UID), int(f.GID))
		}
		if err == nil && f.Target == "" {
			err = unix.Chmod(to, uint32(f.Perm()))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestRuntimes(t *testing.T) {
	t.Parallel()
	if got, want := image.Runtimes(), []string{"node22", "node24", "node26", "python3.13"}; !slices.Equal(got, want) {
		t.Errorf("runtimes are %q, want %q", got, want)
	}
	base := rootfstest.Read(t, imagetest.Acquire(t, "debian").Path)
	for _, name := range image.Runtimes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lease := imagetest.Acquire(t, name)
			if err := image.CheckRoot(&lease.Image); cay.CodeOf(err) != cay.Invalid {
				t.Errorf("can be started from: %v", err)
			}
			tree := rootfstest.Read(t, lease.Path)
			for path, f := range tree {
				if filepath.Dir(path) == "/bin" && f.Target == "" && f.Perm()&0o111 != 0 {
					wantLibraries(t, base, path, f.Data)
				}
			}
			programs := []string{"node", "npm", "npx", "corepack"}
			if strings.HasPrefix(name, "python") {
				programs = []string{"python", "python3", "python3.13", "pip", "pip3"}
			}
			for _, p := range programs {
				f, ok := tree["/bin/"+p]
				for ok && f.Target != "" && !filepath.IsAbs(f.Target) { // links stay in the tree
					f, ok = tree[filepath.Join("/bin", f.Target)]
				}
				if !ok || f.Target == "" && f.Perm()&0o111 == 0 {
					t.Errorf("bin/%s is %+o of %v", p, f.Perm(), ok)
				}
			}
		})
	}
}

// wantLibraries fails the test unless the default image has every shared library that an
// ELF program names, in the dynamic loader's default directories.
func wantLibraries(t *testing.T, base rootfstest.Tree, path string, program []byte) {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		t.Errorf("%s: %v", path, err)
		return
	}
	libraries, err := f.ImportedLibraries()
	if err != nil || len(libraries) == 0 {
		t.Errorf("%s names no shared libraries (%v)", path, err)
	}
	for _, name := range libraries {
		if !slices.ContainsFunc([]string{"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"}, func(dir string) bool {
			_, ok := base[filepath.Join(dir, name)]
			return ok
		}) {
			t.Errorf("%s needs %s, which the default image does not have", path, name)
		}
	}
}

// TestStore_Build_node builds a runtime from nothing, from several goroutines.
func TestStore_Build_node(t *testing.T) {
	if testing.Short() {
		t.Skip("downloads Node.js")
	}
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, image.Options{})
	digests := make([]string, 3)
	var wg sync.WaitGroup
	for i := range digests {
		wg.Go(func() {
			l, err := s.Ensure(t.Context(), "node24", func(sandbox.ImageProgress) {})
			if err != nil {
				t.Error(err)
				return
			}
			defer l.Release()
			digests[i] = l.Image.Digest
		})
	}
	wg.Wait()
	if digests[0] == "" || digests[0] != digests[1] || digests[1] != digests[2] {
		t.Errorf("digests are %q", digests)
	}
	if shared := imagetest.Acquire(t, "node24").Image.Digest; shared != digests[0] {
		t.Errorf("two builds of one version differ: %s and %s", shared, digests[0])
	}
	wantClean(t, dir)
}
