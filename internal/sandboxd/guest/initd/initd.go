// Package initd makes the agent the init of a sandbox: the first process, which sets the
// machine up, serves the daemon, and reaps children.
//
// It runs from a small program of its own (cmd/cay-guest) or from a hidden command of the
// cay binary. Every sandbox waits for its start, and page faults are slow in a sandbox,
// so it does little: no unnecessary file, no process, no wait.
package initd

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/guest/agent"
)

const (
	// maxFiles is RLIMIT_NOFILE of commands, soft and hard, as in docker, if the kernel
	// allows as many.
	maxFiles = 1 << 20

	readyTimeout = time.Second
	termGrace    = time.Second
)

// Main runs the init, configured by the environment variable guest.ConfigEnv, until
// SIGTERM. It returns the exit status, and writes errors to stderr.
func Main() int {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "cay-guest:", err)
		return 1
	}
	return 0
}

func run() error {
	cfg, err := guest.ParseConfig([]byte(os.Getenv(guest.ConfigEnv)))
	if err != nil {
		return err
	}
	if os.Getpid() != 1 {
		return errors.New("not the first process of a sandbox; it is started by cay")
	}
	line := newTitle()
	// Nobody else needs the configuration: commands get an environment of their own.
	if err := os.Unsetenv(guest.ConfigEnv); err != nil {
		return err
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	// The signals are caught and dropped, not ignored: commands would inherit ignored
	// signals, and nothing could interrupt them any more.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGPIPE)
	sum, err := guest.ParseTokenHash(cfg.TokenSHA256)
	if err != nil {
		return err
	}
	reaper := agent.NewReaper()
	server, err := agent.New(agent.Config{
		User:        cfg.User,
		WorkDir:     cfg.WorkDir,
		TokenSHA256: sum,
		SetHostname: setHostname,
		SetTitle:    line.set,
		Peer:        cfg.Gateway,
		SwitchUsers: true,
		Reaper:      reaper,
	})
	if err != nil {
		return err
	}
	unix.Umask(0o022)
	// Writing files is slow here, so it runs concurrently.
	written := writeFiles(server, cfg)
	if err := setUp(cfg); err != nil {
		return err
	}
	if err := tmpOnDisk(); err != nil {
		server.Report(err)
	}
	if err := server.MakeWorkDir(); err != nil {
		return err
	}
	listener, err := net.Listen("tcp4", net.JoinHostPort("0.0.0.0", strconv.Itoa(int(cfg.Port))))
	if err != nil {
		return err
	}
	go reaper.Run()
	if cfg.Gateway.IsValid() {
		go sayReady(netip.AddrPortFrom(cfg.Gateway, cfg.Port))
	}
	written.Wait() // connections made by now wait to be accepted
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-term:
	}
	return shutDown(server)
}

// writeFiles writes the files that state the machine's identity, and makes its programs
// trust the given certificates. The image may be anything, so files that cannot be
// written are left alone, and reported in the health that the daemon asks for.
func writeFiles(server *agent.Server, cfg guest.Config) *sync.WaitGroup {
	var written sync.WaitGroup
	written.Go(func() {
		who := guest.Identity{Sandbox: cfg.Sandbox, Hostname: cfg.Hostname, MachineID: cfg.MachineID}
		if cfg.Nameserver.IsValid() {
			who.Nameserver = cfg.Nameserver.String()
		}
		server.Boot(who)
		server.Own(cfg.Owned)
	})
	written.Go(func() {
		if err := layersOnDisk(); err != nil {
			server.Report(err)
		}
	})
	if cfg.Certificates != "" {
		written.Go(func() { server.Trust(guest.TrustRequest{Certificates: cfg.Certificates}) })
	}
	return &written
}

// shutDown ends all processes, after termGrace to end by themselves.
func shutDown(server *agent.Server) error {
	_, err := server.Quiesce(termGrace)
	return errors.Join(err, server.Close())
}

// sayReady tells the runtime that the agent listens, by a connection to the gateway. A
// runtime that does not need the signal refuses the connection.
func sayReady(gateway netip.AddrPort) {
	conn, err := net.DialTimeout("tcp4", gateway.String(), readyTimeout)
	if err == nil {
		conn.Close()
	}
}

// setHostname sets the machine's name if it differs. As long as nobody has set a name,
// gVisor gives a machine that is restored from its memory the name in its new
// configuration.
func setHostname(name string) error {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err == nil && unix.ByteSliceToString(uts.Nodename[:]) == name {
		return nil
	}
	return unix.Sethostname([]byte(name))
}

// tmpOnDisk unmounts the tmpfs that hides the disk's /tmp. gVisor mounts a tmpfs over an
// empty /tmp, where files would count as memory and be gone when the machine stops. It
// does so at every start, unless the disk's /tmp has files.
func tmpOnDisk() error {
	var fs unix.Statfs_t
	if err := unix.Statfs("/tmp", &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		return nil // an image without /tmp, or a user's drive
	}
	err := unix.Unmount("/tmp", 0)
	if err == unix.EINVAL { // nothing is mounted there
		return nil
	}
	if err == nil {
		// An image may lack /tmp, and the /tmp that gVisor makes then is not writable for
		// all.
		err = unix.Chmod("/tmp", unix.S_ISVTX|0o777)
	}
	if err != nil {
		return fmt.Errorf("have /tmp on disk: %w", err)
	}
	return nil
}

// layerDirs are the directories in which Docker and containerd keep the layers of images and
// containers.
var layerDirs = []string{"/var/lib/docker", "/var/lib/containerd"}

// layersOnDisk mounts, at each of layerDirs, the part of the disk that holds the directory:
// the writable layer of the root, without the image below it. An overlay can have its upper
// layer there, but not on the root, because the root is an overlay itself. The files count as
// files of the disk and are saved with it.
func layersOnDisk() error {
	for _, dir := range layerDirs {
		err := unix.Mkdir(dir, 0o711)
		if err == unix.ENOENT || err == unix.EROFS {
			continue // an image without /var/lib, or a user's read-only drive
		}
		if err == nil || err == unix.EEXIST {
			err = unix.Mount("disk", dir, "overlay", 0, "cay_upper="+dir)
		}
		// EINVAL: a user's drive is there, or gVisor lacks our edits. ENOTEMPTY: the image
		// has files there, which would be hidden. ENOTDIR: dir is a file.
		if err != nil && err != unix.EINVAL && err != unix.ENOTEMPTY && err != unix.ENOTDIR {
			return fmt.Errorf("have %s on disk: %w", dir, err)
		}
	}
	return nil
}

// setUp sets the limits that programs expect of a machine.
func setUp(cfg guest.Config) error {
	// The parent of init may have left descriptors open; commands get none of them.
	if err := unix.CloseRange(3, 1<<32-1, unix.CLOSE_RANGE_CLOEXEC); err != nil && err != unix.ENOSYS && err != unix.EINVAL {
		return fmt.Errorf("mark descriptors: %w", err)
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("get limit of open files: %w", err)
	}
	limit.Max = min(limit.Max, maxFiles)
	limit.Cur = limit.Max
	// By package syscall, whose ForkExec then passes the limit on to children.
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("set limit of open files: %w", err)
	}
	nproc := unix.Rlimit{Cur: cfg.MaxProcesses, Max: cfg.MaxProcesses}
	if err := unix.Setrlimit(unix.RLIMIT_NPROC, &nproc); err != nil {
		return fmt.Errorf("set limit of processes: %w", err)
	}
	return nil
}
