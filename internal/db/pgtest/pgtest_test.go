package pgtest

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/leaktest"
)

func TestMain(m *testing.M) {
	if os.Getenv("CAY_PGTEST_CHILD") != "" {
		child()
	}
	leaktest.Main(m)
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

func exec1(t *testing.T, c *pgx.Conn, statement string) {
	t.Helper()
	if _, err := c.Exec(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

func TestDSN_DatabasePerTest(t *testing.T) {
	a, b := connect(t, DSN(t)), connect(t, DSN(t))
	exec1(t, a, "CREATE TABLE t (n int)")
	exec1(t, b, "CREATE TABLE t (n int)")
}

func TestServer_Kill(t *testing.T) {
	s := Start(t, Options{})
	dsn := s.DSN(t)
	c := connect(t, dsn)
	exec1(t, c, "CREATE TABLE t (n int)")
	exec1(t, c, "INSERT INTO t VALUES (7)")
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Exec(t.Context(), "SELECT 1"); err == nil {
		t.Fatal("a killed server answers")
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := connect(t, dsn).QueryRow(t.Context(), "SELECT n FROM t").Scan(&n); err != nil || n != 7 {
		t.Fatalf("after the restart: %d, %v", n, err)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
}

// child starts a server, prints its address, and waits to be killed.
func child() {
	s, err := start(Options{})
	if err != nil {
		panic(err)
	}
	os.Stdout.WriteString(s.dir + "\n")
	os.Stdout.Close()
	io.Copy(io.Discard, os.Stdin) // which has no end
}

func TestServer_EndsWithTheProcess(t *testing.T) {
	need(t)
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "CAY_PGTEST_CHILD=1")
	c.Stderr = os.Stderr
	if _, err := c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := stdout.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	dir := strings.TrimSpace(string(buf[:n]))
	if _, err := os.Stat(filepath.Join(dir, "data")); err != nil {
		t.Fatal(err)
	}
	parent := watch(t, filepath.Dir(dir))
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	c.Wait()
	for deadline := time.Now().Add(time.Minute); ; {
		if _, err := os.Stat(dir); os.IsNotExist(err) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is still there", dir)
		}
		parent()
	}
}

// watch returns a function that waits, for at most 1 s, until a file in a directory is
// removed.
func watch(t *testing.T, dir string) func() {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_DELETE); err != nil {
		t.Fatal(err)
	}
	return func() {
		if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 1000); err == nil && n > 0 {
			unix.Read(fd, make([]byte, 4096))
		}
	}
}
