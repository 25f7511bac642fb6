package gvisor_test

import (
	_ "embed"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/embedded"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

//go:embed testdata/netfilter.py
var netfilter string

// netfilter runs a Python program as root with the functions of testdata/netfilter.py.
func (b box) netfilter(t *testing.T, program string) (output string, code int) {
	t.Helper()
	return b.root(t, "cat > /tmp/netfilter.py <<'END'\n"+netfilter+"END\ncd /tmp && python3 - <<'END'\nfrom netfilter import *\n"+program+"\nEND\n")
}

func needsEdits(t *testing.T) {
	t.Helper()
	if embedded.Sentry() == nil || os.Getenv(itselfEnv) != "" {
		t.Skip(`gVisor's edits are in cay-sentry, which "make inside" builds`)
	}
}

// layers mounts an overlay in /var/lib/docker, as dockerd does for each container, and works
// on it.
const layers = `set -eu
cd /var/lib/docker; mkdir -p lower/dir upper work merged; echo old > lower/old; echo keep > lower/keep; echo in > lower/dir/in
mount -t overlay -o lowerdir=$PWD/lower,upperdir=$PWD/upper,workdir=$PWD/work overlay merged
rm merged/old; echo new > merged/new; rm -r merged/dir; mkdir merged/dir; test -z "$(ls merged/dir)"
test "$(stat -c '%F %t %T' upper/old)" = "character special file 0 0"
python3 -c 'import os; assert os.getxattr("/var/lib/docker/upper/dir", "trusted.overlay.opaque") == b"y"'
mknod upper/keep c 0 0; umount merged
mount -t overlay -o lowerdir=$PWD/lower,upperdir=$PWD/upper,workdir=$PWD/work overlay merged
test "$(ls merged | xargs)" = "dir new"; test "$(cat merged/new)" = new
`

// TestDocker tests gVisor's edits for Docker: see internal/sandboxd/gvisor/edits.
func TestDocker(t *testing.T) {
	t.Parallel()
	needsEdits(t)
	t.Run("layers", func(t *testing.T) {
		t.Parallel()
		f := openForkable(t, func(s *machine.Spec) { s.DiskMB = 64 })
		f.must(t, layers)
		f.want(t, "containerd's", `stat -f -c %T /var/lib/containerd`, "tmpfs")
		// It counts as disk, and is saved with the disk and with the memory.
		f.must(t, `! dd if=/dev/zero of=/var/lib/docker/big bs=1M count=100 2>/dev/null; rm /var/lib/docker/big; dd if=/dev/zero of=/var/lib/docker/big bs=1M count=30 status=none
			! dd if=/dev/zero of=/big bs=1M count=50 2>/dev/null; rm /big`)
		const same = `set -e; cd /var/lib/docker; test "$(stat -c '%F %t %T' upper/old)" = "character special file 0 0"; test "$(stat -c %s big)" = 31457280
			python3 -c 'import os; assert os.getxattr("/var/lib/docker/upper/dir", "trusted.overlay.opaque") == b"y"'`
		f.restore(t, f.checkpoint(t)).must(t, same+`; test "$(ls merged | xargs)" = "dir new"; umount merged`)
		f.fork(t, 1)[0].must(t, same+`; test "$(ls merged | xargs)" = "dir new"`)
		spec := f.another()
		spec.Restricted = true // makes no difference here
		again := f.startFrom(t, spec, f.saveDisk(t))
		again.must(t, same+`; mount -t overlay -o lowerdir=$PWD/lower,upperdir=$PWD/upper,workdir=$PWD/work overlay merged; test "$(ls merged | xargs)" = "dir new"`)
		h, err := again.Health(t.Context())
		if err != nil || h.Problem != "" {
			t.Errorf("%+v, %v", h, err)
		}
	})
	t.Run("layers of nobody else", func(t *testing.T) {
		t.Parallel()
		b := open(t, nil)
		b.must(t, `mkdir -p /srv/a /srv/b /mnt/x; echo f > /srv/a/f
			mount -t overlay -o cay_upper=/srv/a overlay /mnt/x; test "$(cat /mnt/x/f)" = f; umount /mnt/x
			! mount -t overlay -o cay_upper=/usr/lib overlay /mnt/x 2>/dev/null
			! mount -t overlay -o cay_upper=/proc overlay /mnt/x 2>/dev/null
			! mount -t overlay -o cay_upper=/srv/none overlay /mnt/x 2>/dev/null
			! mount -t overlay -o cay_upper=srv/a overlay /mnt/x 2>/dev/null
			! mount -t overlay -o cay_upper=/srv/a/f overlay /mnt/x 2>/dev/null
			! unshare -Urm mount -t overlay -o cay_upper=/srv/b overlay /mnt/x 2>/dev/null`)
	})
	t.Run("nat", func(t *testing.T) {
		t.Parallel()
		b := open(t, nil)
		for hook, priority := range map[string]string{"3": "-100", "4": "100", "1": "100"} { // output, postrouting, input
			out, code := b.netfilter(t, `
legacy("nat", (3, redirect()))
n = Nft()
n.nat(`+hook+`, `+priority+`)
try:
    answers(1)
except OSError: # refused, or lost between the two
    pass`)
			if code != 0 {
				t.Fatalf("hook %s: exit code %d: %s", hook, code, out)
			}
		}
	})
	t.Run("empty", func(t *testing.T) {
		t.Parallel()
		open(t, nil).want(t, "frames", `python3 -c '
import socket
for kind in (socket.SOCK_RAW, socket.SOCK_DGRAM):
    s = socket.socket(socket.AF_PACKET, kind, 0)
    s.bind(("eth0", 0x800))
    try:
        s.send(b"")
    except OSError as e:
        print(e.errno)
'`, "22\n22")
	})
	t.Run("restored", func(t *testing.T) {
		t.Parallel()
		f := openForkable(t, nil)
		if out, code := f.netfilter(t, `Nft().nat(3, -100)`); code != 0 {
			t.Fatalf("exit code %d: %s", code, out)
		}
		cmd, err := f.Start(t.Context(), sandbox.CommandParams{Sudo: true, Argv: []string{"unshare", "-n", "python3", "-c", `
import os, sys, time
sys.path.insert(0, "/tmp")
from netfilter import *
n = Nft()
n.nat(3, -100)
print("ready", flush=True)
while not os.path.exists("/tmp/go"): time.sleep(0.01)
assert n.generation()
n.nat(3, -100)
print("went on", flush=True)
`}})
		if err != nil {
			t.Fatal(err)
		}
		f.said(t, cmd.ID, "ready")
		restored := f.restore(t, f.checkpoint(t))
		restored.must(t, "touch /tmp/go")
		restored.said(t, cmd.ID, "went on")
		if out, code := restored.netfilter(t, `Nft().nat(3, -100)`); code != 0 {
			t.Errorf("exit code %d: %s", code, out)
		}
	})
}

// A rule that gVisor cannot execute ends the machine of the guest that made the rule, as that
// machine's own crash, and no other machine.
func TestExit_Panic(t *testing.T) {
	t.Parallel()
	f := openForkable(t, nil)
	in, err := f.runtime.Start(t.Context(), f.another())
	if err != nil {
		t.Fatal(err)
	}
	victim := f.own(t, in)
	cmd, err := victim.Start(t.Context(), sandbox.CommandParams{Sudo: true, Argv: []string{"sh", "-c", "cat > /tmp/netfilter.py <<'END'\n" + netfilter +
		"END\ncd /tmp && python3 -c 'from netfilter import *; legacy(\"nat\", (4, redirect())); answers()'"}})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-victim.Done():
		if x := victim.Exit(); x.Reason != sandbox.ReasonCrashed || !strings.Contains(x.Message, "redirect target is supported only on") {
			t.Errorf("it ended with %+v", x)
		}
	case <-time.After(time.Minute):
		c, err := victim.Wait(t.Context(), cmd.ID)
		t.Errorf("it goes on: %+v, %v", c, err)
	}
	f.want(t, "the neighbour", "echo lives", "lives")
}

// Restricted machines have the capabilities and the flags that all machines had before there
// were others.
func TestRestricted(t *testing.T) {
	t.Parallel()
	const has = `grep CapBnd /proc/1/status | cut -f2; grep CapEff /proc/self/status | cut -f2; python3 -c '
import socket
for f, k, p in ((socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP), (socket.AF_PACKET, socket.SOCK_RAW, 0x300), (socket.AF_NETLINK, socket.SOCK_RAW, 12)):
    try:
        socket.socket(f, k, p).close()
        print("yes", end=" ")
    except OSError as e:
        print(e.errno, end=" ")
'`
	const (
		restricted = "00000030ffecdfff\n00000030ffecdfff\n1 1 93"
		full       = "00000030ffecffff\n00000030ffecffff\nyes yes yes"
	)
	f := openForkable(t, func(s *machine.Spec) { s.Restricted = true })
	f.want(t, "restricted", has, restricted)
	spec := f.another()
	spec.Restricted = false
	start := func(in machine.Instance, err error) box {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return f.own(t, in)
	}
	// Memory keeps its privileges, whatever is asked for; files have none.
	dir := f.checkpoint(t)
	start(f.runtime.Restore(t.Context(), spec, dir)).want(t, "restored", has, restricted)
	spec.ID = newID()
	whole := start(f.runtime.StartFrom(t.Context(), spec, f.saveDisk(t)))
	whole.want(t, "full", has, full)
	w := &forkable{box: whole, spec: spec, token: f.token, dir: f.dir}
	dir = w.checkpoint(t)
	w.restore(t, dir).want(t, "full, restored", has, full)
	w.fork(t, 1)[0].want(t, "full, forked", has, full)
	spec.ID, spec.Restricted = newID(), true
	if _, err := f.runtime.Restore(t.Context(), spec, dir); cay.CodeOf(err) != cay.NotSupported {
		t.Errorf("restored with fewer privileges: %v, want not_supported", err)
	}
	if _, err := whole.Fork(t.Context(), machine.ForkParams{Specs: []machine.Spec{spec}}); cay.CodeOf(err) != cay.NotSupported {
		t.Errorf("forked with fewer privileges: %v, want not_supported", err)
	}
	whole.want(t, "after both", "echo lives", "lives")
}
