package gvisor_test

import (
	_ "embed"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/image"
	"github.com/cayhq/cay/internal/image/imagetest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

// fusePackages have the file systems of docs/system-software.md.
var fusePackages = []string{
	"attr", "bindfs", "ca-certificates", "curl", "fuse-overlayfs", "fuse3", "git", "iproute2", "openssh-server", "procps", "python3", "rclone",
	"s3fs", "squashfs-tools", "squashfuse", "sshfs", "sudo",
}

// systemImage leases an image with the packages, in which a hook of mmdebstrap has run, and
// makes it first if it is not there.
func systemImage(t *testing.T, packages []string, hook string) *image.Lease {
	t.Helper()
	if os.Getenv("CAY_SYSTEM") == "" {
		t.Skip("make system-test")
	}
	needsEdits(t)
	store := imagetest.Open(t)
	sum := fnv.New64a()
	io.WriteString(sum, strings.Join(packages, ",")+hook)
	ref := fmt.Sprintf("system-%x", sum.Sum64())
	if lease, err := store.Acquire(t.Context(), ref); err == nil {
		t.Cleanup(lease.Release)
		return lease
	}
	r, w := io.Pipe()
	make := exec.CommandContext(t.Context(), "mmdebstrap", "--variant=minbase", `--aptopt=APT::Install-Recommends "false"`,
		"--customize-hook="+hook, "--include="+strings.Join(packages, ","), "trixie", "-")
	make.Stdout = w
	make.Stderr = t.Output()
	if err := make.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { w.CloseWithError(make.Wait()) }()
	_, err := store.Import(t.Context(), ref, r, nil)
	r.CloseWithError(err)
	if err != nil {
		t.Fatalf("make the image: %v", err)
	}
	lease, err := store.Acquire(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(lease.Release)
	return lease
}

// systemUser makes the user of the default image.
const systemUser = `chroot "$1" useradd --uid 1000 --user-group --create-home --shell /bin/bash vercel-sandbox && mkdir -p "$1/vercel/sandbox"`

// work does with the file system at $1 what its users do: each line ends the script unless it
// succeeds.
const work = `set -eu
d=$1/work; mkdir $d; cd $d
echo one > a; echo two >> a; test "$(cat a)" = "one
two"
head -c 5000000 /dev/urandom > big; cp big copy; cmp big copy; rm copy
mv a b; test ! -e a; mv b sub 2>/dev/null; mkdir dir; mv sub dir/c; cat dir/c >/dev/null; rmdir dir 2>/dev/null && exit 1; rm dir/c; rmdir dir
ls -l . >/dev/null 2>/tmp/err; test -n "${2-}" || test ! -s /tmp/err
truncate -s 10 big; test "$(stat -c %s big)" = 10; truncate -s 100000 big; dd if=/dev/urandom of=big bs=1000 seek=50 count=1 conv=notrunc status=none
dd if=/dev/zero of=large bs=1M count=20 conv=fsync status=none; rm large
python3 - <<'PY'
import mmap, os, subprocess
data = os.urandom(1 << 20)
with open("mapped", "wb") as f: f.write(data); f.flush(); os.fsync(f.fileno())
with open("mapped", "rb") as f: m = mmap.mmap(f.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE); assert m[:] == data; m[0:1] = b"x"
with open("mapped", "rb") as f: assert f.read() == data
names = ["n%d" % i for i in range(100)]
os.mkdir("many")
for n in names: open("many/" + n, "w").write(n)
assert sorted(os.listdir("many")) == sorted(names)
for n in names: os.unlink("many/" + n)
os.rmdir("many")
PY
`

// runsFrom executes what is on the file system at $1. A file system without modes has all
// files executable, if it is mounted that way.
const runsFrom = `set -eu
cd $1/work; cp /usr/bin/env program; chmod +x program 2>/dev/null || true; test "$(./program echo ran)" = ran; rm program
printf '#!/bin/sh\necho script\n' > script; chmod +x script 2>/dev/null || true; test "$(./script)" = script; rm script
`

// commits works with git on the file system at $1.
const commits = `set -eu
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.com GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.com GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
cd $1/work; rm -rf repo; git init -q repo; cd repo
for i in $(seq 30); do echo $i > f$i; done; git add .; git commit -qm first
echo more >> f1; test "$(git status --porcelain)" = " M f1"; git commit -qam second; git gc -q; git fsck --strict 2>/dev/null
git checkout -q -b branch HEAD~1; git merge -q branch; test "$(git log --oneline master | wc -l)" = 2; cd ..; rm -rf repo
`

// ends of all file systems: nothing of the work is left but the files, and it unmounts.
const ends = `set -eu
cd /; rm -r $1/work; test -z "$(ls -A $1 | grep -v kept || true)"; umount $1
`

// TestSystem runs programs that need much of a kernel, as docs/system-software.md lists them:
// make system-test.
func TestSystem(t *testing.T) {
	lease := systemImage(t, fusePackages, systemUser)
	b := open(t, func(s *machine.Spec) { s.RootFS, s.MemoryMB, s.DiskMB = lease.Path, 2048, 4096 })
	serveS3(t, b)
	for name, script := range map[string]string{"work": work, "programs": runsFrom, "commits": commits, "ends": ends} {
		b.must(t, "cat > /tmp/"+name+" <<'END'\n"+script+"END\n")
	}
	for _, fs := range []struct {
		name, mount string
		without     string // an argument of work, if ls shows errors
	}{
		{name: "bindfs", mount: `mkdir -p /srv/bindfs && bindfs /srv/bindfs /mnt/bindfs`},
		{name: "fuse-overlayfs", mount: `cd /srv && mkdir -p lower upper work && echo kept > lower/kept &&
			fuse-overlayfs -o lowerdir=lower,upperdir=upper,workdir=work /mnt/fuse-overlayfs && test "$(cat /mnt/fuse-overlayfs/kept)" = kept`},
		{name: "sshfs", mount: sshfs},
		{name: "rclone", mount: `mkdir -p /srv/rclone && rclone mount --vfs-cache-mode writes --file-perms 0755 --daemon /srv/rclone /mnt/rclone`,
			without: "attributes"}, // Debian's rclone answers questions for extended attributes with EIO
		{name: "s3fs", mount: `echo key:secret > /root/passwd-s3fs && chmod 600 /root/passwd-s3fs &&
			s3fs bucket /mnt/s3fs -o passwd_file=/root/passwd-s3fs,url=http://127.0.0.1:9000,use_path_request_style`},
	} {
		t.Run(fs.name, func(t *testing.T) {
			dir := "/mnt/" + fs.name
			b.must(t, "mkdir -p '"+dir+"' && "+fs.mount)
			for step := range strings.FieldsSeq("work programs commits ends") {
				t.Run(step, func(t *testing.T) { b.must(t, "sh /tmp/"+step+" "+dir+" "+fs.without) })
			}
		})
	}
	t.Run("squashfuse", func(t *testing.T) {
		b.must(t, `set -e; mkdir -p /srv/squash /mnt/squash; cp -a /usr/bin/env /usr/bin/git /srv/squash; head -c 3000000 /dev/urandom > /srv/squash/big
			mksquashfs /srv/squash /srv/image.squashfs -quiet -no-progress; squashfuse /srv/image.squashfs /mnt/squash
			test "$(/mnt/squash/env echo ran)" = ran; cmp /srv/squash/big /mnt/squash/big; ls -l /mnt/squash >/dev/null; test ! -e /mnt/squash/none
			! touch /mnt/squash/new 2>/dev/null
			mkdir -p /srv/upper1 /srv/work1 /mnt/both; fuse-overlayfs -o lowerdir=/mnt/squash,upperdir=/srv/upper1,workdir=/srv/work1 /mnt/both
			cmp /srv/squash/big /mnt/both/big; echo more >> /mnt/both/big; test "$(tail -c 5 /mnt/both/big)" = more; rm /mnt/both/git; test ! -e /mnt/both/git; /mnt/both/env true
			umount /mnt/both; pkill -9 fuse-overlayfs; timeout 60 sh -c 'until umount /mnt/squash 2>/dev/null; do :; done'`)
	})
}

const sshfs = `mkdir -p /run/sshd /srv/sshfs /root/.ssh && ssh-keygen -q -A && ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519 &&
	cp /root/.ssh/id_ed25519.pub /root/.ssh/authorized_keys && /usr/sbin/sshd -p 2222 &&
	sshfs -p 2222 -o StrictHostKeyChecking=no root@127.0.0.1:/srv/sshfs /mnt/sshfs`

// must runs a script as root, which must succeed.
func (b box) must(t *testing.T, script string) {
	t.Helper()
	if out, code := b.root(t, script); code != 0 {
		t.Fatalf("exit code %d: %s\n%s", code, out, script)
	}
}

//go:embed testdata/s3.py
var s3Server string

// serveS3 serves a bucket inside the machine, for s3fs.
func serveS3(t *testing.T, b box) {
	t.Helper()
	cmd, err := b.Start(t.Context(), sandbox.CommandParams{Argv: []string{"python3", "-c", s3Server, "9000"}})
	if err != nil {
		t.Fatal(err)
	}
	b.said(t, cmd.ID, "ready")
}
