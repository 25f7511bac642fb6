// Package initd makes the agent the init of a sandbox: the first process, which
// sets the machine up, serves the daemon, and reaps.
//
// It runs from a small program of its own (cmd/cay-guest) or from a hidden
// command of the cay binary. Start-up is on the way to every sandbox, and page
// faults are dear there, so it does little: no file that need not be written,
// no process, no wait.
package initd

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/guest/agent"
)

const (
	// softFiles and hardFiles are RLIMIT_NOFILE of commands: enough for what
	// opens much, little for what closes all it could have open.
	softFiles = 16384
	hardFiles = 65536

	readyTimeout = time.Second
	termGrace    = time.Second
)

// Main runs the init, configured by the environment variable guest.ConfigEnv,
// until SIGTERM. It returns the exit status; errors are on stderr.
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
	// Of use to nobody else: commands get an environment of their own.
	if err := os.Unsetenv(guest.ConfigEnv); err != nil {
		return err
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	// Caught and dropped, not ignored: that is what commands would inherit, and
	// nothing could interrupt them any more.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGPIPE)
	sum, err := hex.DecodeString(cfg.TokenSHA256)
	if err != nil {
		return err
	}
	reaper := agent.NewReaper()
	server, err := agent.New(agent.Config{
		User:        cfg.User,
		WorkDir:     cfg.WorkDir,
		TokenSHA256: [sha256.Size]byte(sum),
		Peer:        cfg.Gateway,
		SwitchUsers: true,
		Reaper:      reaper,
	})
	if err != nil {
		return err
	}
	// Writing files takes a while here, so it goes on beside all that follows.
	trusted := trust(server, cfg.Certificates)
	if err := setUp(cfg); err != nil {
		return err
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
	<-trusted // who has connected by now waits to be accepted
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-term:
	}
	return shutDown(server, reaper)
}

// trust installs certificates, if there are any, and closes the channel it
// returns when that is over. What fails is in the health the daemon asks for.
func trust(server *agent.Server, certificates string) <-chan struct{} {
	done := make(chan struct{})
	if certificates == "" {
		close(done)
		return done
	}
	go func() {
		defer close(done)
		server.Trust(guest.TrustRequest{Certificates: certificates})
	}()
	return done
}

// shutDown ends all processes, which have a moment to do it themselves.
func shutDown(server *agent.Server, reaper *agent.Reaper) error {
	// -1 is everybody but init. Nobody there is fine.
	_ = syscall.Kill(-1, syscall.SIGTERM)
	_ = syscall.Kill(-1, syscall.SIGCONT)
	ctx, cancel := context.WithTimeout(context.Background(), termGrace)
	defer cancel()
	reaper.WaitAll(ctx)
	_ = syscall.Kill(-1, syscall.SIGKILL)
	return server.Close()
}

// sayReady tells the runtime that the agent listens, by a connection to the
// gateway. A runtime that does not care refuses it.
func sayReady(gateway netip.AddrPort) {
	conn, err := net.DialTimeout("tcp4", gateway.String(), readyTimeout)
	if err == nil {
		conn.Close()
	}
}

// setUp prepares what programs expect of a machine. The image may be anything,
// so a file that cannot be written is left alone; only names and limits must be.
func setUp(cfg guest.Config) error {
	if err := unix.Sethostname([]byte(cfg.Hostname)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	unix.Umask(0o022)
	// Whoever started init may have left descriptors open; commands get none.
	if err := unix.CloseRange(3, 1<<32-1, unix.CLOSE_RANGE_CLOEXEC); err != nil && err != unix.ENOSYS && err != unix.EINVAL {
		return fmt.Errorf("mark descriptors: %w", err)
	}
	machineID := make([]byte, 16)
	rand.Read(machineID)
	files := []struct{ path, content string }{
		{"/etc/hostname", cfg.Hostname + "\n"},
		// sudo looks up its own host at every call.
		{"/etc/hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n127.0.1.1\t" + cfg.Hostname + "\n"},
		{"/etc/machine-id", hex.EncodeToString(machineID) + "\n"},
	}
	if cfg.Nameserver.IsValid() {
		files = append(files, struct{ path, content string }{"/etc/resolv.conf", "nameserver " + cfg.Nameserver.String() + "\n"})
	}
	for _, f := range files {
		if err := writeFile(f.path, f.content); err != nil {
			fmt.Fprintf(os.Stderr, "cay-guest: write %s: %v\n", f.path, err)
		}
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("get limit of open files: %w", err)
	}
	limit.Max = min(limit.Max, hardFiles)
	limit.Cur = min(limit.Max, softFiles)
	// By package syscall, whose ForkExec then passes the limit on.
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("set limit of open files: %w", err)
	}
	nproc := unix.Rlimit{Cur: cfg.MaxProcesses, Max: cfg.MaxProcesses}
	if err := unix.Setrlimit(unix.RLIMIT_NPROC, &nproc); err != nil {
		return fmt.Errorf("set limit of processes: %w", err)
	}
	return nil
}

// writeFile replaces a file, or a link in its place: images link resolv.conf
// to where nothing is.
func writeFile(name, content string) error {
	tmp := path.Dir(name) + "/.cay-" + strings.TrimPrefix(path.Base(name), ".")
	if err := os.WriteFile(tmp, []byte(content), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, name)
}
