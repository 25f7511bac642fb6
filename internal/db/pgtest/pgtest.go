// Package pgtest gives tests a real PostgreSQL: a private server of the installed
// binaries (Debian: "make deps"), in a temporary directory, reachable only by a socket in
// that directory. The server ends with the tests' process, however that ends.
//
// Most tests need DSN: a database of their own on a server that all tests of the process
// share, and that the first test starts. Tests that stop or kill the server start their
// own server.
//
// Where PostgreSQL is not installed, tests are skipped, except in CI, where they fail.
// The package knows no slice and no table.
package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Options of a server. The zero value is for tests: acknowledged commits survive the
// death of the server, but not a crash of the machine.
type Options struct {
	// Durable waits for the disk at each commit, as a production server does: for
	// measurements.
	Durable bool
	// Settings are added to the configuration, such as max_connections.
	Settings map[string]string
}

var shared = sync.OnceValues(func() (*Server, error) { return start(Options{}) })

// DSN returns the address of an empty database for this test alone.
func DSN(t testing.TB) string {
	t.Helper()
	need(t)
	s, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return s.DSN(t)
}

// Start starts a server for this test alone, which ends with the test.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	need(t)
	s, err := start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// need skips a test that cannot have a server.
func need(t testing.TB) {
	t.Helper()
	if _, err := binaries(); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// databases counts the databases created, to name them.
var databases atomic.Int64

// DSN returns the address of a new empty database. It is dropped at the end of
// the test, with all connections to it.
func (s *Server) DSN(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("test_%d_%d", os.Getpid(), databases.Add(1))
	if err := s.exec("CREATE DATABASE " + name); err != nil {
		t.Fatalf("make a database: %v", err)
	}
	t.Cleanup(func() {
		if !s.running() {
			return // the whole server is removed
		}
		if err := s.exec("DROP DATABASE " + name + " WITH (FORCE)"); err != nil {
			t.Errorf("drop a database: %v", err)
		}
	})
	return s.dsn(name)
}

// DSNAt is DSN for a database whose tables are in a directory, which the server will own:
// for example on a small disk. The server's log is elsewhere.
func (s *Server) DSNAt(t testing.TB, dir string) string {
	t.Helper()
	info, err := os.Stat(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	if err := os.Chown(dir, int(owner.Uid), int(owner.Gid)); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("space_%d_%d", os.Getpid(), databases.Add(1))
	if err := s.exec("CREATE TABLESPACE " + name + " LOCATION '" + dir + "'"); err != nil {
		t.Fatalf("make a tablespace: %v", err)
	}
	t.Cleanup(func() {
		if !s.running() {
			return
		}
		if err := s.exec("DROP TABLESPACE " + name); err != nil {
			t.Errorf("drop a tablespace: %v", err)
		}
	})
	return s.DSN(t) + "&default_tablespace=" + name
}

func (s *Server) dsn(database string) string {
	q := url.Values{"host": {s.dir}, "user": {superuser}}
	// A slash need not be escaped in a query, and reads better unescaped.
	return "postgres:///" + database + "?" + strings.ReplaceAll(q.Encode(), "%2F", "/")
}

func (s *Server) exec(statement string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := pgx.Connect(ctx, s.dsn("postgres"))
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	_, err = c.Exec(ctx, statement)
	return err
}
