package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/image"
)

// opponentPath is PATH in the default image.
const opponentPath = "PATH=/vercel/runtimes/node24/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// newOpponents returns the contenders beside cay. All run the programs of cay's
// default image, from one directory in work that the first of them unpacks.
func newOpponents(images *image.Store, work string) ([]contender, func() error) {
	root := &rootfs{images: images, dir: filepath.Join(work, "rootfs")}
	unpackable := root.missing()
	var closers []func() error

	all := []contender{{name: "native", skip: unpackable, runner: &native{root}}}
	for _, o := range []*oci{
		{name: "crun", root: root, work: work},
		{name: "runsc", root: root, work: work, flags: []string{"--network=none", "--ignore-cgroups"}},
	} {
		c := contender{name: o.name, skip: unpackable, runner: o}
		if path, err := exec.LookPath(o.name); err != nil {
			c.skip = "not installed (Debian package " + o.name + ")"
		} else if c.skip == "" {
			o.path = path
			closers = append(closers, o.close)
		}
		all = append(all, c)
	}
	return all, func() error {
		var errs []error
		for _, f := range closers {
			errs = append(errs, f())
		}
		return errors.Join(errs...)
	}
}

// rootfs is the default image with its runtime as a host directory.
type rootfs struct {
	images *image.Store
	dir    string

	mu    sync.Mutex
	ready bool // guarded by mu
}

// missing says why the image cannot be unpacked here; empty if it can.
func (r *rootfs) missing() string {
	if os.Geteuid() != 0 {
		return "needs root"
	}
	if _, err := exec.LookPath("fsck.erofs"); err != nil {
		return "needs fsck.erofs to unpack the image (Debian package erofs-utils)"
	}
	return ""
}

// get unpacks the image at its first call and returns the directory.
func (r *rootfs) get(ctx context.Context) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ready {
		return r.dir, nil
	}
	for _, part := range []struct{ ref, dir string }{
		{"debian", r.dir}, {"node24", filepath.Join(r.dir, "vercel/runtimes/node24")},
	} {
		if err := r.unpack(ctx, part.ref, part.dir); err != nil {
			return "", err
		}
	}
	// Programs run natively see no /dev but this.
	for name, minor := range map[string]uint32{"null": 3, "zero": 5, "urandom": 9} {
		path := filepath.Join(r.dir, "dev", name)
		err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, minor)))
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return "", fmt.Errorf("make device %s: %w", path, err)
		}
	}
	r.ready = true
	return r.dir, nil
}

func (r *rootfs) unpack(ctx context.Context, ref, dir string) error {
	lease, err := r.images.Ensure(ctx, ref, nil)
	if err != nil {
		return fmt.Errorf("get image %s: %w", ref, err)
	}
	defer lease.Release()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("unpack image %s: %w", ref, err)
	}
	cmd := exec.CommandContext(ctx, "fsck.erofs", "--extract="+dir, "--overwrite", lease.Path)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("unpack image %s: %w: %s", ref, err, lastLine(out))
	}
	return nil
}

func lastLine(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}

// native runs programs as plain processes in a chroot, practically without
// isolation, to measure the machine itself.
type native struct{ root *rootfs }

func (n *native) create(ctx context.Context) (box, error) {
	dir, err := n.root.get(ctx)
	if err != nil {
		return nil, err
	}
	return &nativeBox{dir}, nil
}

type nativeBox struct{ root string }

var _ files = (*nativeBox)(nil)

func (b *nativeBox) command(ctx context.Context, argv []string) *exec.Cmd {
	// The program is looked up in the chroot, by its own env.
	cmd := exec.CommandContext(ctx, "/usr/bin/env", argv...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: b.root}
	cmd.Dir, cmd.Env = "/", []string{opponentPath}
	return cmd
}

func (b *nativeBox) run(ctx context.Context, argv ...string) (string, error) {
	return output(b.command(ctx, argv), (*exec.Cmd).Start)
}

func (b *nativeBox) firstByte(ctx context.Context, argv ...string) (time.Duration, error) {
	return awaitOutput(b.command(ctx, argv), (*exec.Cmd).Start)
}

func (b *nativeBox) processes(context.Context) ([]int, error) { return nil, nil }
func (b *nativeBox) remove(context.Context) error             { return nil }

// write is atomic, as cay's is.
func (b *nativeBox) write(_ context.Context, path string, data []byte) error {
	path = filepath.Join(b.root, path)
	if err := os.WriteFile(path+".new", data, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func (b *nativeBox) read(_ context.Context, path string) (int64, error) {
	f, err := os.Open(filepath.Join(b.root, path))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, make([]byte, 1<<20))
}

// starter starts a process.
type starter func(*exec.Cmd) error

// output runs a command to its end and returns its standard output.
func output(cmd *exec.Cmd, start starter) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := start(cmd); err != nil {
		return "", err
	}
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, lastLine(stderr.Bytes()))
	}
	return stdout.String(), nil
}

// awaitOutput runs a command to its end and returns when its first output came.
func awaitOutput(cmd *exec.Cmd, start starter) (time.Duration, error) {
	begun := time.Now()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := start(cmd); err != nil {
		return 0, err
	}
	_, err = io.ReadFull(stdout, make([]byte, 1))
	took := time.Since(begun)
	if err == nil {
		_, err = io.Copy(io.Discard, stdout)
	}
	return took, errors.Join(err, cmd.Wait())
}
