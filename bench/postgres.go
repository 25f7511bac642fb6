package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// postgresServer is a new PostgreSQL server with default settings: it waits for
// the disk at each commit.
type postgresServer struct {
	dir   string
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{} // closed when all it says has been read
	DSN   string
}

// postgresBinaries returns the directory of the newest server that is installed.
func postgresBinaries() (string, error) {
	const debian = "/usr/lib/postgresql/*/bin"
	dirs, err := filepath.Glob(debian)
	if err != nil {
		return "", err
	}
	version := func(dir string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(dir))) // other names come last
		return n
	}
	slices.SortFunc(dirs, func(a, b string) int { return version(b) - version(a) })
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, "initdb")); err == nil {
			return dir, nil
		}
	}
	return "", notMeasured("PostgreSQL: not installed (Debian package postgresql)")
}

// keepPostgres ends the server when the shell's input ends, also because this
// process has died.
const keepPostgres = `"$1/postgres" -D "$2" 2>&1 </dev/null & server=$!
read -r _
kill -INT $server
wait $server`

// postgresReady bounds how long a server takes to answer, and to end.
const postgresReady = time.Minute

// startPostgres starts a server in a new directory below dir, which its user must
// be able to enter.
func startPostgres(ctx context.Context, dir string) (_ *postgresServer, err error) {
	bin, err := postgresBinaries()
	if err != nil {
		return nil, err
	}
	s := &postgresServer{ended: make(chan struct{})}
	if s.dir, err = os.MkdirTemp(dir, "postgres-"); err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(s.dir))
		}
	}()
	attr := newSession()
	if os.Geteuid() == 0 { // with which it refuses to run
		if attr.Credential, err = postgresUser(); err != nil {
			return nil, err
		}
		if err := os.Chown(s.dir, int(attr.Credential.Uid), int(attr.Credential.Gid)); err != nil {
			return nil, fmt.Errorf("start PostgreSQL: %w", err)
		}
	}
	data := filepath.Join(s.dir, "data")
	initdb := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", data, "-U", "postgres", "-A", "trust",
		"-E", "UTF8", "--locale=C", "--no-instructions")
	initdb.Dir, initdb.SysProcAttr, initdb.Env = s.dir, attr, []string{"LC_ALL=C"}
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("make a PostgreSQL cluster: %w: %s", err, lastLine(out))
	}
	// The default configuration, except for the address.
	conf := fmt.Sprintf("listen_addresses = ''\nunix_socket_directories = '%s'\n", s.dir)
	f, err := os.OpenFile(filepath.Join(data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(conf)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("configure PostgreSQL: %w", err)
	}

	s.cmd = exec.Command("/bin/sh", "-c", keepPostgres, "keep", bin, data)
	s.cmd.Dir, s.cmd.SysProcAttr, s.cmd.Env = s.dir, attr, []string{"LC_ALL=C"}
	stdin, err := s.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	s.stdin = stdin
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	ready := make(chan struct{})
	last := "it said nothing"
	go func() {
		defer close(s.ended)
		said := false
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if !said {
				last = lines.Text()
			}
			if !said && strings.Contains(last, "ready to accept connections") {
				said = true
				close(ready)
			}
		}
	}()
	timeout := time.NewTimer(postgresReady)
	defer timeout.Stop()
	select {
	case <-ready:
		s.DSN = "postgres:///postgres?host=" + s.dir + "&user=postgres"
		return s, nil
	case <-s.ended:
		err = errors.New(last)
	case <-timeout.C:
		err = errors.New("it does not become ready")
	case <-ctx.Done():
		err = ctx.Err()
	}
	return nil, errors.Join(fmt.Errorf("start PostgreSQL: %w", err), s.stop())
}

// postgresUser returns the user that runs the server if this process is root.
func postgresUser() (*syscall.Credential, error) {
	u, err := user.Lookup("postgres") // the package's; it need not be there
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			return nil, fmt.Errorf("find a user for PostgreSQL: %w", err)
		}
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("find a user for PostgreSQL: %w", err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("find a user for PostgreSQL: %w", err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// cpu returns the CPU time of the server's processes, in seconds, also of processes that
// have ended, for which it counts hundredths.
func (s *postgresServer) cpu() (float64, error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return 0, fmt.Errorf("read times of PostgreSQL: %w", err)
	}
	used := 0.0
	for _, p := range all {
		stat, err := p.Stat()
		if err == nil && stat.Session == s.cmd.Process.Pid {
			var own float64
			own, err = threadsCPU(p.PID)
			const second = 100 // USER_HZ, on all architectures that Go runs on
			used += own + float64(stat.CUTime+stat.CSTime)/second
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) { // which has just ended
			return 0, fmt.Errorf("read times of PostgreSQL: %w", err)
		}
	}
	return used, nil
}

// stop ends the server and removes its files.
func (s *postgresServer) stop() error {
	s.stdin.Close() // it may be gone already
	kill := time.AfterFunc(postgresReady, func() { syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) })
	defer kill.Stop()
	<-s.ended
	err := s.cmd.Wait()
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		err = nil // the shell's status is that of the server, and says nothing else
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}
