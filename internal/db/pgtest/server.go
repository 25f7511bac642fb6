package pgtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	superuser = "postgres"
	// patience bounds the start and the stop of a server.
	patience = time.Minute
)

// Server is a running PostgreSQL. Its methods must not be called concurrently.
type Server struct {
	dir string // of the server's files and its socket
	bin string
	as  *syscall.Credential // nil: the user that runs the tests

	keeper *exec.Cmd // the shell that runs the server; nil while it is stopped
	stdin  io.WriteCloser
	pid    int // of the server
}

// keep is the script of a shell that runs the server as its child. The shell waits for a
// line with the signal that ends the server, or for the end of its input, which comes
// when the tests' process ends, even by SIGKILL: so no process is left behind. The
// server's pid cannot be reused meanwhile, because only the shell reaps it.
const keep = `
"$1/postgres" -D "$2/data" >>"$2/log" 2>&1 </dev/null &
server=$!
echo $server
if read -r signal; then
	kill -"$signal" $server
	wait $server
else
	kill -QUIT $server
	kill -CONT $server # see freeze
	wait $server
	rm -rf "$2"
fi
`

// binaries returns the directory of the newest installed server.
var binaries = sync.OnceValues(func() (string, error) {
	const debian = "/usr/lib/postgresql/*/bin"
	dirs, err := filepath.Glob(debian)
	if err != nil {
		return "", err
	}
	version := func(dir string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(dir))) // names that are no number sort last
		return n
	}
	slices.SortFunc(dirs, func(a, b string) int { return version(b) - version(a) })
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, "initdb")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("PostgreSQL is not installed: no initdb in %s or beside postgres in PATH; make deps installs it", debian)
})

func start(o Options) (_ *Server, err error) {
	s := new(Server)
	if s.bin, err = binaries(); err != nil {
		return nil, err
	}
	if s.dir, err = os.MkdirTemp("", "cay-postgres-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(s.dir))
		}
	}()
	if os.Geteuid() == 0 { // with which it refuses to run
		if s.as, err = unprivileged(); err != nil {
			return nil, err
		}
		if err := os.Chown(s.dir, int(s.as.Uid), int(s.as.Gid)); err != nil {
			return nil, err
		}
	}
	if err := s.init(o); err != nil {
		return nil, err
	}
	return s, s.Start()
}

// unprivileged returns the user that runs the server when this process is root.
func unprivileged() (*syscall.Credential, error) {
	u, err := user.Lookup(superuser) // the package's; it need not be there
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			return nil, err
		}
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, err
}

func (s *Server) init(o Options) error {
	initdb := s.command(filepath.Join(s.bin, "initdb"), "-D", filepath.Join(s.dir, "data"),
		"-U", superuser, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions")
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	settings := map[string]string{
		"listen_addresses":        "",
		"unix_socket_directories": s.dir,
		"max_connections":         "300",
		"log_line_prefix":         "%m [%p] ",
	}
	if !o.Durable {
		settings["fsync"] = "off"
		settings["full_page_writes"] = "off"
	}
	for name, value := range o.Settings {
		settings[name] = value
	}
	var conf bytes.Buffer
	for name, value := range settings {
		fmt.Fprintf(&conf, "%s = '%s'\n", name, strings.ReplaceAll(value, "'", "''"))
	}
	f, err := os.OpenFile(filepath.Join(s.dir, "data", "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(conf.Bytes())
	return errors.Join(err, f.Close())
}

// command returns a program that runs as the server's user, and does not get a Ctrl-C
// meant for the tests.
func (s *Server) command(name string, arg ...string) *exec.Cmd {
	c := exec.Command(name, arg...)
	c.Dir = s.dir
	c.Env = []string{"LC_ALL=C", "PATH=" + os.Getenv("PATH")}
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: s.as}
	return c
}

// Start starts a server that was stopped or killed, and returns when it accepts
// connections.
func (s *Server) Start() (err error) {
	ready, err := s.awaitReady()
	if err != nil {
		return err
	}
	c := s.command("/bin/sh", "-c", keep, "keep", s.bin, s.dir)
	c.Env = append(c.Env, "NOTIFY_SOCKET="+s.path("ready"))
	stdin, err := c.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	s.keeper, s.stdin = c, stdin
	if _, err := fmt.Fscan(stdout, &s.pid); err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	if err := ready(); err != nil {
		log, _ := os.ReadFile(s.path("log")) // the part that exists
		return fmt.Errorf("start PostgreSQL: %w\n%s", err, log)
	}
	return nil
}

// awaitReady returns a function that waits for the server to report that it is ready, in
// the way it reports to systemd.
func (s *Server) awaitReady() (func() error, error) {
	path := s.path("ready")
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o777); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return func() error {
		defer l.Close()
		if err := l.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		for buf := make([]byte, 4096); ; {
			n, err := l.Read(buf)
			if err != nil {
				return fmt.Errorf("it did not become ready: %w", err)
			}
			if bytes.Contains(buf[:n], []byte("READY=1")) {
				return nil
			}
		}
	}, nil
}

func (s *Server) path(name string) string { return filepath.Join(s.dir, name) }

func (s *Server) running() bool { return s.keeper != nil }

// Stop ends the server in order: it rolls back transactions under way, and tells the
// clients.
func (s *Server) Stop() error { return s.end("INT") }

// Kill ends the server and the processes of all its connections by SIGKILL.
func (s *Server) Kill() error {
	if !s.running() {
		return nil
	}
	if err := s.freeze(); err != nil {
		return err
	}
	children, err := s.children()
	if err != nil {
		return err
	}
	// The server is killed first, because it would restart after the end of the first
	// child.
	err = s.end("KILL")
	for _, fd := range children {
		if e := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); e != nil && e != unix.ESRCH {
			err = errors.Join(err, e)
		}
	}
	for _, fd := range children { // a new server does not start while a child is alive
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, e := unix.Poll(poll, int(patience.Milliseconds()))
		for e == unix.EINTR {
			n, e = unix.Poll(poll, int(patience.Milliseconds()))
		}
		if e == nil && n == 0 {
			e = errors.New("a process of PostgreSQL does not end")
		}
		err = errors.Join(err, e, unix.Close(fd))
	}
	return err
}

// freeze stops the server itself, which then begins no more processes.
func (s *Server) freeze() error {
	if err := unix.Kill(s.pid, unix.SIGSTOP); err != nil {
		return err
	}
	for late := time.Now().Add(patience); ; runtime.Gosched() { // only the parent is notified of the stop
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.pid))
		if err != nil {
			return err
		}
		if name := bytes.LastIndexByte(stat, ')'); bytes.HasPrefix(stat[name+1:], []byte(" T ")) {
			return nil
		}
		if time.Now().After(late) {
			return fmt.Errorf("PostgreSQL does not stop: %s", stat)
		}
	}
}

// children are pidfds of the server's processes.
func (s *Server) children() ([]int, error) {
	list, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", s.pid))
	if err != nil {
		return nil, err
	}
	var fds []int
	for field := range strings.FieldsSeq(string(list)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, err
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err == unix.ESRCH {
			continue
		}
		if err != nil {
			return nil, err
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

func (s *Server) end(signal string) error {
	if !s.running() {
		return nil
	}
	_, err := io.WriteString(s.stdin, signal+"\n")
	err = errors.Join(err, s.stdin.Close())
	// The shell exits with the status of wait, which does not matter: the shell has
	// ended.
	if e := s.keeper.Wait(); e != nil && !errors.As(e, new(*exec.ExitError)) {
		err = errors.Join(err, e)
	}
	s.keeper = nil
	return err
}

func (s *Server) close() error {
	return errors.Join(s.end("QUIT"), os.RemoveAll(s.dir))
}
