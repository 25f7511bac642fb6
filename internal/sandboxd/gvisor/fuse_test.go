package gvisor_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cayhq/cay/sandbox"
)

// openFUSE starts a machine with the file system of package fusetest at /mnt, whose log is
// /tmp/log.
func openFUSE(t *testing.T) *forkable {
	t.Helper()
	needsEdits(t)
	path := filepath.Join(t.TempDir(), "fusetest")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", path, "github.com/cayhq/cay/internal/sandboxd/gvisor/fusetest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build fusetest: %v\n%s", err, out)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f := openForkable(t, nil)
	if _, err := f.WriteFile(t.Context(), "/tmp/fusetest", bytes.NewReader(program), sandbox.WriteParams{Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	f.want(t, "mount", `/tmp/fusetest /mnt /tmp/log && stat -c %F /mnt`, "directory")
	return f
}

// python runs a program as root, which fails unless it exits with 0.
func (b box) python(t *testing.T, program string) {
	t.Helper()
	if out, code := b.root(t, "python3 -c '"+program+"'"); code != 0 {
		t.Errorf("exit code %d: %s\n%s", code, out, program)
	}
}

// TestFUSE tests the edits of gVisor's FUSE: see internal/sandboxd/gvisor/edits.
func TestFUSE(t *testing.T) {
	t.Parallel()
	f := openFUSE(t)
	t.Run("init", func(t *testing.T) {
		// FUSE_MAX_PAGES, FUSE_DONT_MASK, FUSE_BIG_WRITES, FUSE_NO_OPENDIR_SUPPORT
		f.want(t, "flags", `grep init /tmp/log`, "init flags 0x1400060")
	})
	t.Run("truncates", func(t *testing.T) {
		// FATTR_SIZE and FATTR_FH
		f.want(t, "open again", `echo long >> /mnt/short; echo b > /mnt/short; cat /mnt/short; grep 'setattr short' /tmp/log`, "b\nsetattr short 0x48")
	})
	t.Run("mountinfo", func(t *testing.T) {
		f.want(t, "read by the server", `mkdir /mnt/mountinfo && grep -h ^mountinfo /tmp/log`, "mountinfo true <nil>")
	})
	t.Run("subtype", func(t *testing.T) {
		f.want(t, "mounts", `grep -h ' /mnt ' /proc/mounts /proc/self/mountinfo | grep -c ' fuse\.fusetest '`, "2")
	})
	t.Run("writes", func(t *testing.T) {
		f.python(t, `
import os
fd = os.open("/mnt/big", os.O_CREAT | os.O_RDWR)
assert os.pwrite(fd, bytes(300000), 1) == 300000
assert os.pwrite(fd, b"x" * (256 << 10), 1 << 20) == 256 << 10
assert os.stat("/mnt/big").st_size == (1 << 20) + (256 << 10)
`)
		f.want(t, "writes", `grep -o 'write big.*' /tmp/log | cut -d' ' -f3 | xargs`, "131072 131072 37856 131072 131072")
	})
	t.Run("optional", func(t *testing.T) {
		f.want(t, "create, flush", `(umask 027; echo one > /mnt/one) && cat /mnt/one && stat -c %a /mnt/one`, "one\n640")
		f.want(t, "no such file", `cat /mnt/none 2>&1 | grep -o 'No such file.*'; test ! -e /mnt/none && echo none`, "No such file or directory\nnone")
		f.want(t, "extended attributes", `ls -l /mnt 2>&1 | grep -c one; getfattr -d /mnt/one 2>/dev/null; sync /mnt/one && echo synced`, "1\nsynced")
		f.python(t, `
import errno, os
for call in (lambda: os.getxattr("/mnt/one", "user.a"), lambda: os.setxattr("/mnt/one", "user.a", b"b")):
    try:
        call()
        raise SystemExit("no error")
    except OSError as e:
        assert e.errno == errno.EOPNOTSUPP, e
assert os.listxattr("/mnt/one") == []
os.access("/mnt/one", os.R_OK) or exit("access")
os.fsync(os.open("/mnt/one", os.O_RDONLY))
os.fsync(os.open("/mnt", os.O_RDONLY))
os.unlink("/mnt/one")
os.path.exists("/mnt/one") and exit("unlinked")
`)
		// access, getxattr, flush, opendir, create: the server was asked once.
		for _, op := range []string{"34", "22", "25", "27", "35", "20"} {
			f.want(t, "operation "+op, `grep -cx 'absent `+op+`' /tmp/log`, "1")
		}
	})
	t.Run("attributes", func(t *testing.T) {
		f.want(t, "create", `head -c 5000 /dev/zero > /mnt/attributes; touch /mnt/attributes; grep 'setattr attributes' /tmp/log | tail -n 1`,
			"setattr attributes 0x1f0") // both times, to now
		f.python(t, `
import ctypes, os, struct
for follow in range(3):
    s = os.stat("/mnt/attributes")
    assert s.st_ino > 1000 and s.st_blocks == 10 and s.st_size == 5000 and s.st_mtime == 1 << 32, s
libc = ctypes.CDLL(None)
for mask in (1, 0x7ff):
    buf = ctypes.create_string_buffer(256)
    assert libc.statx(-100, b"/mnt/attributes", 0, mask, buf) == 0
    got, = struct.unpack_from("<I", buf, 0)
    mode, = struct.unpack_from("<H", buf, 28)
    assert got == mask and mode & 0o170000 == 0o100000, (got, mode)
`)
	})
	t.Run("mapped", func(t *testing.T) { testFUSEMapped(t, f.box) })
	t.Run("signals", func(t *testing.T) {
		f.python(t, `
import mmap, os, signal
got = []
signal.signal(signal.SIGUSR1, lambda *a: got.append(1))
os.mkdir("/mnt/signal")
assert got == [1], got
with open("/mnt/signals", "w") as f: f.write("x" * 8192)
assert got == [1, 1], got
fd = os.open("/mnt/signals", os.O_RDONLY)
m = mmap.mmap(fd, 8192, mmap.MAP_PRIVATE, mmap.PROT_READ)
x = m[5000:5003]
for _ in range(2): pass # Python calls handlers in loops
assert x == b"xxx" and len(got) == 3, got
os.kill(os.getpid(), signal.SIGUSR1)
assert len(got) == 4, got
`)
		f.want(t, "no second request", `grep -c 'make signal ' /tmp/log; grep 'requests meanwhile' /tmp/log | sort -u`, "1\nrequests meanwhile 0 <nil>")
	})
}

func testFUSEMapped(t *testing.T, b box) {
	b.want(t, "execute", `cp /usr/bin/env /mnt/env && chmod +x /mnt/env && /mnt/env -i /mnt/env echo ran`, "ran")
	b.python(t, `
import errno, mmap, os
data = os.urandom(700000)
with open("/mnt/mapped", "wb") as f: f.write(data)
fd = os.open("/mnt/mapped", os.O_RDWR)
private = mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
shared = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
assert private[:] == data and shared[:] == data
try:
    mmap.mmap(fd, 0)
    exit("mapped shared and writable")
except OSError as e:
    assert e.errno == errno.ENODEV, e
# A private mapping is written to memory alone; a write is seen in a shared mapping, and in
# a private mapping at most where it was not written to.
private[100:103] = b"new"
assert open("/mnt/mapped", "rb").read() == data
os.pwrite(fd, b"written", 300000)
assert shared[300000:300007] == b"written" and shared[100:103] == data[100:103] and private[100:103] == b"new"
# From the mapping of a file into the same file.
assert os.pwrite(fd, memoryview(shared)[400000:500000], 0) == 100000
assert shared[:100000] == data[400000:500000]
pid = os.fork()
if pid == 0:
    os._exit(0 if shared[300000:300007] == b"written" and private[100:103] == b"new" else 1)
assert os.waitpid(pid, 0)[1] == 0
private.close()
# Cut off, and longer again: zeros.
os.ftruncate(fd, 300003)
assert shared[300000:300010] == b"wri" + bytes(7)
os.ftruncate(fd, 700000)
assert shared[300000:300010] == b"wri" + bytes(7) and shared[600000:600003] == bytes(3)
shared.close()
again = mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
assert again[:100000] == data[400000:500000]
`)
	b.want(t, "beyond the end", `(python3 -c 'import mmap, os; fd = os.open("/mnt/mapped", os.O_RDWR); m = mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ); os.ftruncate(fd, 10); m[5000]'; exit $?) 2>/dev/null; echo $?`, "135")
}

// A sandbox whose memory is saved with a mounted FUSE file system and a mapped file goes on
// where it was.
func TestFUSE_Restored(t *testing.T) {
	t.Parallel()
	f := openFUSE(t)
	cmd, err := f.Start(t.Context(), sandbox.CommandParams{User: "root", Stdin: true, Argv: []string{"python3", "-uc", `
import mmap, os, sys
with open("/mnt/file", "wb") as f: f.write(b"x" * 300000)
fd = os.open("/mnt/file", os.O_RDWR)
m = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
assert m[0:3] == b"xxx"
print("mapped")
sys.stdin.readline()
os.pwrite(fd, b"yyy", 0)
assert m[0:3] == b"yyy" and m[299999:300000] == b"x"
print("restored")
`}})
	if err != nil {
		t.Fatal(err)
	}
	f.said(t, cmd.ID, "mapped")
	b := f.restore(t, f.checkpoint(t))
	if err := b.WriteStdin(t.Context(), cmd.ID, strings.NewReader("\n"), true); err != nil {
		t.Fatal(err)
	}
	b.said(t, cmd.ID, "restored")
	b.want(t, "mount", `grep ' /mnt ' /proc/mounts | cut -d' ' -f3`, "fuse.fusetest")
	b.want(t, "file", `head -c 4 /mnt/file; echo; echo new > /mnt/new; cat /mnt/new`, "yyyx\nnew")
}
