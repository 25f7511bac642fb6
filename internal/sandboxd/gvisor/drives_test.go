package gvisor_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/image/imagetest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/network"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

// drives is an engine on gVisor, with the directory that has the contents of drives.
type drives struct {
	*sandboxtest.Harness
	t   *testing.T
	ctx context.Context
	dir string
}

func openDrives(t *testing.T, change ...func(*sandboxd.Config)) drives {
	t.Helper()
	suite := config(t)
	imagetest.Acquire(t, "node24")
	var tool machine.Spec
	suite.Spec(&tool, &guest.Config{})
	d := drives{t: t, dir: filepath.Join(t.TempDir(), "drives"), ctx: sandboxtest.As(t.Context(), sandboxtest.Default)}
	d.Harness = sandboxtest.Start(t, newRuntime(t, t.TempDir()), append([]func(*sandboxd.Config){func(c *sandboxd.Config) {
		c.Images = storeImages{imagetest.Open(t)}
		c.Tool = sandboxd.Tool{Mount: tool.Mounts[0], Init: tool.Init}
		c.Gateway, c.Nameserver = network.GatewayAddr, network.GatewayAddr
		store, err := blob.OpenDir(d.dir, blob.DirOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c.Drives = store
	}}, change...)...)
	return d
}

func (d drives) drive(name string, maxMB int64) *sandbox.Drive {
	d.t.Helper()
	v, err := d.CreateDrive(d.ctx, sandbox.CreateDriveParams{Name: name, MaxMB: maxMB})
	if err != nil {
		d.t.Fatal(err)
	}
	return v
}

func (d drives) box(mounts ...sandbox.Mount) *sandbox.Sandbox {
	d.t.Helper()
	s, err := d.Create(d.ctx, sandbox.CreateParams{Mounts: mounts})
	if err != nil {
		d.t.Fatal(err)
	}
	return s
}

func (d drives) stop(s *sandbox.Sandbox) {
	d.t.Helper()
	if _, err := d.Engine.Stop(d.ctx, s.ID); err != nil {
		d.t.Fatal(err)
	}
}

// sh runs a script in a sandbox, as its user or as root, and returns its output.
func (d drives) sh(s *sandbox.Sandbox, root bool, script string) string {
	d.t.Helper()
	o, err := d.Exec(d.ctx, s.ID, sandbox.CommandParams{Argv: []string{"bash", "-c", script}, Sudo: root})
	if err != nil {
		d.t.Fatalf("%s: %v", script, err)
	}
	defer o.Close()
	var text strings.Builder
	for {
		ev, err := o.Next()
		if errors.Is(err, io.EOF) {
			return text.String()
		}
		if err != nil {
			d.t.Fatalf("%s: %v", script, err)
		}
		text.Write(ev.Data)
	}
}

func (d drives) equal(what, got, want string) {
	d.t.Helper()
	if got != want {
		d.t.Errorf("%s is\n%s\nwant\n%s", what, got, want)
	}
}

// A drive keeps all that a file system keeps, and belongs to the sandbox's user, wherever
// the drive is mounted next.
func TestDrive_Keeps(t *testing.T) {
	t.Parallel()
	d := openDrives(t)
	d.drive("data", 64)
	s := d.box(sandbox.Mount{Path: "/data", Drive: "data"})
	d.equal("a new drive", d.sh(s, false, `stat -c '%U %a' /data; ls -A /data; df --output=size -m /data | tail -1 | tr -d ' '`), "vercel-sandbox 755\n64\n")
	d.sh(s, false, `cd /data && echo text > file && ln file hard && ln -s /etc/passwd link && echo x > secret && chmod 600 secret && mkdir -m 1770 dir && mkfifo fifo &&
		truncate -s 1M sparse && touch -d @1000000000 old`)
	d.sh(s, true, `cd /data && chown 0:0 secret && chmod 4755 dir; python3 -c 'import os; os.setxattr("/data/file", "user.note", b"kept")'`)
	read := `cd %s; cat file; readlink link; stat -c '%n %a %u:%g %h' file hard secret dir fifo | sort; python3 -c 'import os; print(os.getxattr("file", "user.note"))'; stat -c '%s %b' sparse; test -p fifo && echo fifo; stat -c %Y old; stat -c %U .`
	before := d.sh(s, true, strings.Replace(read, "%s", "/data", 1))
	d.stop(s)
	next := d.box(sandbox.Mount{Path: "/srv/deep/er", Drive: "data"})
	d.equal("the drive in the next sandbox", d.sh(next, true, strings.Replace(read, "%s", "/srv/deep/er", 1)), before)
	if !strings.Contains(before, "secret 600 0:0") || !strings.Contains(before, "b'kept'") {
		t.Errorf("the test reads %s", before)
	}
}

// Row I8: a read-only mount refuses writes. Root in the guest can mount the drive again
// as it likes, and gVisor's tmpfs lets attributes and lengths of files change in any
// case, but these changes stay in root's own machine: the host and other readers of the
// drive do not see them.
func TestAttack_ReadOnlyDrive(t *testing.T) {
	t.Parallel()
	d := openDrives(t)
	d.drive("data", 64)
	s := d.box(sandbox.Mount{Path: "/data", Drive: "data"})
	d.sh(s, false, "echo original > /data/file")
	d.stop(s)
	before := d.content()
	read := sandbox.Mount{Path: "/data", Drive: "data", Mode: sandbox.MountReadOnly}
	s, other := d.box(read), d.box(read)
	const refused = "Read-only file system"
	for _, c := range []struct {
		name, script string
		root         bool
		says         string
	}{
		{"write", `echo x > /data/file`, true, refused},
		{"new file", `echo x > /data/new`, true, refused},
		{"remove", `rm -f /data/file`, true, refused},
		{"rename", `mv /data/file /data/other`, true, refused},
		{"bind", `mkdir -p /mnt/b && mount --bind /data /mnt/b && echo x > /mnt/b/file`, true, refused},
		{"remount by a user", `mount -o remount,rw /data && echo x > /data/file`, false, ""},
		{"remount in a user's namespace", `unshare -rm sh -c 'mount -o remount,bind,rw /data && echo x > /data/file'`, false, ""},
		{"remount of a user's bind", `unshare -rm sh -c 'mount --bind /data /mnt && mount -o remount,bind,rw /mnt && echo x > /mnt/file'`, false, ""},
	} {
		if got := d.sh(s, c.root, "("+c.script+") 2>&1 && echo done"); !strings.Contains(got, c.says) || strings.Contains(got, "done") {
			t.Errorf("%s: %q", c.name, got)
		}
		d.equal("the file after "+c.name, d.sh(s, false, "cat /data/file"), "original\n")
	}
	d.sh(s, true, `chmod 777 /data/file; chown 1:1 /data/file; mount -o remount,rw /data; echo changed > /data/file; rm -rf /data/*; echo more > /data/more`)
	d.equal("what another reader has", d.sh(other, false, "ls -A /data; cat /data/file; stat -c '%a %U' /data/file"), "file\noriginal\n644 vercel-sandbox\n")
	if _, err := d.SaveDrive(d.ctx, "data"); err != nil {
		t.Error(err)
	}
	d.stop(s)
	d.equal("what the host has", d.content(), before)
	s = d.box(sandbox.Mount{Path: "/data", Drive: "data"})
	d.equal("the drive", d.sh(s, false, "ls -A /data; cat /data/file"), "file\noriginal\n")
}

// content returns all that is stored of drives.
func (d drives) content() string {
	d.t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(d.dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		all.WriteString(path + "\n" + string(b))
		return err
	})
	if err != nil {
		d.t.Fatal(err)
	}
	return all.String()
}

// Row F12: files that one sandbox puts on a shared drive give it no access to files of
// the other sandbox or of the host.
func TestAttack_SharedDrive(t *testing.T) {
	t.Parallel()
	d := openDrives(t)
	d.drive("shared", 64)
	secret := filepath.Join(t.TempDir(), "host-secret")
	if err := os.WriteFile(secret, []byte("the host's"), 0o644); err != nil {
		t.Fatal(err)
	}
	evil := d.box(sandbox.Mount{Path: "/data", Drive: "shared"})
	links := map[string]string{
		"host": secret, "machines": "/var/lib/cay", "blobs": d.dir, "root": "/", "up": "../../../../../..", "proc": "/proc/1/root" + secret,
		"mine": "/home/mine", "long": strings.Repeat("../", 40) + strings.TrimPrefix(secret, "/"),
	}
	var make strings.Builder
	make.WriteString("echo evil > /home/mine; cd /data; ")
	for name, to := range links {
		make.WriteString("ln -s " + to + " " + name + "; ")
	}
	make.WriteString("mknod null c 1 3; mknod disk b 8 0; chmod 666 null disk; mkdir dir; ln -s /proc/self/fd dir/fds")
	d.sh(evil, true, make.String())
	d.stop(evil)
	for _, mode := range []sandbox.MountMode{sandbox.MountReadOnly, sandbox.MountCopy, sandbox.MountReadWrite} {
		victim := d.box(sandbox.Mount{Path: "/data", Drive: "shared", Mode: mode})
		d.sh(victim, true, "echo victim > /home/mine")
		d.equal("links in the other sandbox", d.sh(victim, true, `cd /data; cat host long proc 2>/dev/null; cat mine; ls -A blobs/ machines/ 2>/dev/null; readlink -f up; head -c 1 disk 2>/dev/null | wc -c`),
			"victim\n/\n0\n")
		// The daemon's own file calls follow links within the guest only.
		for _, name := range []string{"host", "long", "proc"} {
			if r, _, err := d.ReadFile(d.ctx, victim.ID, "/data/"+name, sandbox.ReadParams{}); err == nil {
				r.Close()
				t.Errorf("%s is read through the daemon", name)
			}
		}
		d.stop(victim)
	}
}

// A guest that fills its drive gets an error, and affects neither its own root nor the
// host.
func TestDrive_Full(t *testing.T) {
	t.Parallel()
	d := openDrives(t)
	d.drive("data", 32)
	s := d.box(sandbox.Mount{Path: "/data", Drive: "data"})
	d.equal("filling it", d.sh(s, false, `head -c 100M /dev/urandom > /data/big; test $(stat -c %s /data/big) -le $((32<<20)) && echo bounded; echo root > ~/file && cat ~/file`),
		"head: error writing 'standard output': No space left on device\nbounded\nroot\n")
	v, err := d.SaveDrive(d.ctx, "data")
	if err != nil || v.SizeBytes < 24<<20 || v.SizeBytes > 40<<20 {
		t.Fatalf("saved %+v, %v", v, err)
	}
	d.stop(s)
	s = d.box(sandbox.Mount{Path: "/data", Drive: "data"})
	d.equal("afterwards", d.sh(s, false, `exec 2>&1; echo x > /data/more || echo full; rm /data/big; echo y > /data/more && cat /data/more`),
		"bash: line 1: echo: write error: No space left on device\nfull\ny\n")
	// Small files in any number.
	d.sh(s, false, `python3 -c '
import os
try:
    for i in range(20000): os.close(os.open("/data/%d" % i, os.O_CREAT | os.O_WRONLY))
except OSError: pass'`)
	d.stop(s)
	if v, err = d.GetDrive(d.ctx, "data"); err != nil || v.SandboxID != "" {
		t.Fatalf("the drive is %+v, %v", v, err)
	}
	t.Logf("with 20000 empty files it is saved in %d bytes", v.SizeBytes)
}

// Root in the guest can unmount its drive. The sandbox ends all the same, and the drive
// keeps its earlier content.
func TestDrive_Unmounted(t *testing.T) {
	t.Parallel()
	d := openDrives(t)
	d.drive("data", 32)
	s := d.box(sandbox.Mount{Path: "/data", Drive: "data"})
	d.sh(s, false, "echo one > /data/file")
	if _, err := d.SaveDrive(d.ctx, "data"); err != nil {
		t.Fatal(err)
	}
	d.sh(s, true, "echo two > /data/file; umount /data")
	if _, err := d.SaveDrive(d.ctx, "data"); cay.CodeOf(err) != cay.Conflict {
		t.Errorf("saving it: %v", err)
	}
	d.stop(s)
	s = d.box(sandbox.Mount{Path: "/data", Drive: "data"})
	d.equal("the drive", d.sh(s, false, "cat /data/file"), "one\n")
}

// Saved processes keep the drives that they read, in the version that they read. So the
// drive cannot be deleted while a sandbox hibernates with it.
func TestDrive_InMemory(t *testing.T) {
	t.Parallel()
	d := openDrives(t)
	d.drive("data", 64)
	s := d.box(sandbox.Mount{Path: "/data", Drive: "data"})
	d.sh(s, false, "echo one > /data/file")
	d.stop(s)
	s = d.box(sandbox.Mount{Path: "/data", Drive: "data", Mode: sandbox.MountReadOnly})
	writer := d.box(sandbox.Mount{Path: "/data", Drive: "data"})
	d.sh(writer, false, "echo two > /data/file")
	if _, err := d.CreateSnapshot(d.ctx, writer.ID, sandbox.SnapshotParams{Kind: sandbox.MemorySnapshot}); cay.CodeOf(err) != cay.NotSupported {
		t.Errorf("saving the memory of a writer: %v", err)
	}
	d.stop(writer)
	if _, err := d.Hibernate(d.ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	if err := d.DeleteDrive(d.ctx, "data"); cay.CodeOf(err) != cay.Conflict {
		t.Errorf("deleting it: %v", err)
	}
	d.equal("the drive after waking", d.sh(s, false, "cat /data/file"), "one\n")
	snap, err := d.CreateSnapshot(d.ctx, s.ID, sandbox.SnapshotParams{Kind: sandbox.MemorySnapshot})
	if err != nil {
		t.Fatal(err)
	}
	from, err := d.Create(d.ctx, sandbox.CreateParams{Snapshot: snap.ID})
	if err != nil {
		t.Fatal(err)
	}
	d.equal("the drive in a copy", d.sh(from, false, "cat /data/file"), "one\n")
	if len(from.Mounts) != 1 || from.Mounts[0] != s.Mounts[0] {
		t.Errorf("the copy has %v, want %v", from.Mounts, s.Mounts)
	}
	if err := d.DeleteDrive(d.ctx, "data"); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Create(d.ctx, sandbox.CreateParams{Snapshot: snap.ID}); cay.CodeOf(err) != cay.NotFound {
		t.Errorf("a copy without the drive: %v", err)
	}
	files, err := d.Create(d.ctx, sandbox.CreateParams{Snapshot: snap.ID, FilesOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	d.equal("the directory without the drive", d.sh(files, false, "ls -A /data"), "")
}

// If the host's disk is full, a save is refused, and the sandbox goes on.
func TestDrive_HostFull(t *testing.T) {
	t.Parallel()
	small := t.TempDir()
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=8m"); err != nil {
		t.Skipf("no small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(small, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	d := openDrives(t, func(c *sandboxd.Config) {
		store, err := blob.OpenDir(filepath.Join(small, "drives"), blob.DirOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c.Drives = store
	})
	d.drive("data", 64)
	s := d.box(sandbox.Mount{Path: "/data", Drive: "data"})
	d.sh(s, false, "echo one > /data/file")
	if _, err := d.SaveDrive(d.ctx, "data"); err != nil {
		t.Fatal(err)
	}
	d.sh(s, false, "echo two > /data/file; head -c 12M /dev/urandom > /data/big")
	for range 2 {
		if _, err := d.SaveDrive(d.ctx, "data"); cay.CodeOf(err) != cay.NoSpace {
			t.Fatalf("saving it: %v", err)
		}
	}
	reader := d.box(sandbox.Mount{Path: "/data", Drive: "data", Mode: sandbox.MountReadOnly})
	d.equal("what was saved", d.sh(reader, false, "cat /data/file"), "one\n")
	d.equal("what runs", d.sh(s, false, "cat /data/file; rm /data/big"), "two\n")
	if _, err := d.SaveDrive(d.ctx, "data"); err != nil {
		t.Fatal(err)
	}
}
