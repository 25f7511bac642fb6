package image

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// The user commands run as in the default image.
const (
	defaultUser = "vercel-sandbox" // uid and gid 1000
	defaultDir  = "/vercel/sandbox"
)

var debianConfig = sandbox.ImageConfig{
	Env: []string{
		"PATH=/vercel/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LANG=C.UTF-8",
	},
	User:    defaultUser,
	WorkDir: defaultDir,
	Cmd:     []string{"/bin/bash"},
}

const debianSuite = "trixie"

var debianPackages = []string{
	// Programs that clients expect in an image.
	"bash", "ca-certificates", "curl", "git", "openssl", "procps", "sudo", "tar",
	"python3", "python3-pip", "python3-venv", "python-is-python3",
	// The shared libraries of runtimes that the packages above do not install: node26
	// needs libatomic1. They are in the image, not in a runtime's own tree: the dynamic
	// loader finds them there without LD_LIBRARY_PATH, which every child of a runtime
	// would inherit, and a runtime is mounted on the default image alone.
	"libatomic1",
	// Programs that people and agents often use in a shell.
	"bzip2", "file", "iproute2", "less", "nano", "netbase", "patch", "tzdata", "unzip", "xz-utils", "zip",
}

var debianOptions = []string{
	"--variant=minbase",
	// No manuals, but keep the files that licences require.
	"--dpkgopt=path-exclude=/usr/share/man/*",
	"--dpkgopt=path-exclude=/usr/share/info/*",
	"--dpkgopt=path-exclude=/usr/share/locale/*",
	"--dpkgopt=path-exclude=/usr/share/doc/*",
	"--dpkgopt=path-include=/usr/share/doc/*/copyright",
	// For our packages; users get Debian's default, see debian.sh.
	`--aptopt=APT::Install-Recommends "false"`,
}

// debianScript finishes the tree that mmdebstrap made; its argument is the root.
//
//go:embed debian.sh
var debianScript []byte

// debian makes the default image: Debian 13 for agents.
func (b *builder) debian(ctx context.Context) (err error) {
	program, err := exec.LookPath("mmdebstrap")
	if err != nil {
		return cay.Errorf(cay.NotSupported, "the default image is made by mmdebstrap, which is not installed").
			WithHint("apt-get install mmdebstrap debian-archive-keyring, or choose an image of a registry")
	}
	work, cleanUp, err := b.debianWorkDir()
	if err != nil {
		return err
	}
	defer func() {
		if cerr := cleanUp(); err == nil {
			err = cerr
		}
	}()
	script := filepath.Join(work, "customize")
	if err := os.WriteFile(script, debianScript, 0o755); err != nil {
		return err
	}
	args := append(slices.Clone(debianOptions),
		"--format=tar",
		"--architectures="+b.opts.Arch,
		"--include="+strings.Join(slices.Concat(debianPackages, b.packages), ","),
		"--customize-hook="+script,
		debianSuite, "-")
	if b.opts.DebianMirror != "" {
		args = append(args, b.opts.DebianMirror)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+work, "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive")
	// mmdebstrap unmounts and cleans up after SIGTERM, but only if its children get it,
	// too.
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGTERM}
	if os.Geteuid() == 0 {
		// Mounts that mmdebstrap makes are then private to its mount namespace and end
		// with it, however it ends.
		cmd.SysProcAttr.Unshareflags = unix.CLONE_NEWNS
	}
	// mmdebstrap gets our lock, so that its working directory does not look abandoned as
	// long as any of its processes lives, even if this process dies. The lock has a high
	// descriptor, and the low ones are free: mmdebstrap names the next free descriptor to
	// sh, and Debian's sh supports only descriptors of one digit.
	cmd.ExtraFiles = append(make([]*os.File, 16), b.staging.lock)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	log := &stepLog{report: func(line string) {
		if !strings.Contains(line, work) { // which says something to us only
			b.progress(sandbox.ImageProgress{Phase: "build", Item: line})
		}
	}}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start mmdebstrap: %w", err)
	}
	applyErr := b.tree.Apply(ctx, out)
	if applyErr == nil {
		_, applyErr = io.Copy(io.Discard, out) // padding after the archive
	}
	out.Close()
	runErr := cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case runErr != nil && bytes.Contains(log.tail, []byte("No space left on device")):
		return errNoSpace(runErr)
	case runErr != nil && len(b.packages) > 0 && missingPackage.Match(log.tail):
		return cay.Errorf(cay.NotFound, "Debian %s has no package %q", debianSuite, missingPackage.FindSubmatch(log.tail)[1])
	case runErr != nil && diskError(applyErr) == applyErr:
		return cay.Errorf(cay.Unavailable, "mmdebstrap could not make the default image: %s", log.lastError()).
			WithHint("check that this machine reaches its Debian archive, or set another mirror")
	case applyErr != nil:
		return fmt.Errorf("unpack mmdebstrap's archive: %w", applyErr)
	}
	return finishRoot(b.tree)
}

// missingPackage matches apt's complaint about a name.
var missingPackage = regexp.MustCompile(`(?m)^E: (?:Unable to locate package|Package '?)\s*([a-z0-9][a-z0-9+.-]+)`)

// debianWorkDir makes a directory for mmdebstrap. Without root, mmdebstrap runs as
// another user in a user namespace, which can access /tmp but not the store.
func (b *builder) debianWorkDir() (dir string, cleanUp func() error, err error) {
	if os.Geteuid() == 0 {
		dir = filepath.Join(b.staging.dir, "mmdebstrap")
		return dir, func() error { return nil }, os.Mkdir(dir, 0o700)
	}
	if dir, err = os.MkdirTemp("", "cay-debian-*"); err != nil {
		return "", nil, err
	}
	return dir, func() error { return removeTree(dir) }, os.Chmod(dir, 0o777|os.ModeSticky)
}

// stepLog turns the messages of mmdebstrap into progress and keeps the last messages for
// an error.
type stepLog struct {
	report func(line string)
	line   []byte
	tail   []byte
}

const maxLogTail = 16 << 10

func (l *stepLog) Write(p []byte) (int, error) {
	l.tail = append(l.tail, p...)
	if n := len(l.tail) - maxLogTail; n > 0 {
		l.tail = l.tail[n:]
	}
	for _, c := range p {
		if c != '\n' && c != '\r' {
			if len(l.line) < 1024 {
				l.line = append(l.line, c)
			}
			continue
		}
		if step, ok := bytes.CutPrefix(l.line, []byte("I: ")); ok {
			l.report(string(step))
		}
		l.line = l.line[:0]
	}
	return len(p), nil
}

// lastError picks the most telling line of the log.
func (l *stepLog) lastError() string {
	lines := strings.Split(strings.TrimSpace(string(l.tail)), "\n")
	for _, prefix := range []string{"Err:", "E: "} {
		for _, line := range lines { // the first line is the cause of the following lines
			if strings.HasPrefix(line, prefix) {
				return line
			}
		}
	}
	return lines[len(lines)-1]
}
