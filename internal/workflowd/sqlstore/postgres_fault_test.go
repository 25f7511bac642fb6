package sqlstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db/pgtest"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
)

// The server is stopped, or killed, again and again while runs go on. Commits wait for
// the server, no group is stored twice and no commit is lost.
func TestPostgres_ServerRestarts(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, pgtest.Options{})
	p := openPostgres(t, server.DSN(t), PostgresOptions{Lease: time.Minute, Patience: time.Minute})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var running sync.WaitGroup
	runs := make([]*history.Run, 4)
	var commits atomic.Int64
	for i := range runs {
		runs[i] = startRun(t, p, fmt.Sprint("wrun_", i))
		running.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				g := &workflowd.Group{Settle: func() workflowd.Records {
					return workflowd.Records{Logs: []workflowd.Log{appendStep(runs[i])}}
				}}
				c := &workflowd.Claim{Token: fmt.Sprintf("t%d.%d", i, n), Run: runs[i].ID, Hook: "h"}
				if n%3 == 0 {
					g.Claims = []*workflowd.Claim{c}
				}
				if err := p.Commit(context.Background(), g); err != nil {
					t.Error(err)
					return
				}
				if c.Owner != "" {
					t.Errorf("token %s is said to be that of %s", c.Token, c.Owner)
				}
				commits.Add(1)
			}
		})
	}
	progress := func() {
		t.Helper()
		for was := commits.Load(); commits.Load() < was+40 && !t.Failed(); {
			if err := wait(t.Context(), time.Millisecond); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, end := range []func() error{server.Kill, server.Stop, server.Kill} {
		progress()
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
	}
	progress()
	stop()
	running.Wait()
	for _, r := range runs {
		events, err := p.Events(t.Context(), r.ID, 1, 0)
		if err != nil || int64(len(events)) != r.Events {
			t.Errorf("%d events, %v; want %d", len(events), err, r.Events)
		}
		for i := range events {
			if events[i].Slot != int64(i+1) {
				t.Fatalf("slot %d in place of %d", events[i].Slot, i+1)
			}
		}
	}
}

// When the server does not come back, Commit finally returns an error.
func TestPostgres_ServerGone(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, pgtest.Options{})
	p := openPostgres(t, server.DSN(t), PostgresOptions{Patience: 3 * time.Second})
	r := startRun(t, p, "wrun_1")
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	checktest.Code(t, tryStep(p, r), cay.Unavailable)
	_, err := p.Run(t.Context(), r.ID)
	checktest.Code(t, err, cay.Unavailable)
	checktest.Code(t, p.Renew(t.Context()), cay.Unavailable)
	if err := p.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// proxy stands between a store and the server, and can lose answers.
type proxy struct {
	dsn string
	// deaf: data from the server is dropped, and the first dropped data closes the
	// connection.
	deaf atomic.Bool
	// deafTo is the client's statement that sets deaf; "" for none.
	deafTo atomic.Value
}

func newProxy(t *testing.T, dsn string) *proxy {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	server := filepath.Join(q.Get("host"), ".s.PGSQL.5432")
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	q.Set("host", dir)
	u.RawQuery = q.Encode()
	p := &proxy{dsn: u.String()}
	p.deafTo.Store("")
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			backend, err := net.Dial("unix", server)
			if err != nil {
				t.Error(err)
				client.Close()
				continue
			}
			wg.Go(func() {
				defer backend.Close()
				buf := make([]byte, 64<<10)
				for {
					n, err := client.Read(buf)
					if err != nil {
						return
					}
					if word := p.deafTo.Load().(string); word != "" && bytes.Contains(buf[:n], []byte(word)) {
						p.deafTo.Store("")
						p.deaf.Store(true)
					}
					if _, err := backend.Write(buf[:n]); err != nil {
						return
					}
				}
			})
			wg.Go(func() {
				defer client.Close()
				buf := make([]byte, 64<<10)
				for {
					n, err := backend.Read(buf)
					if err != nil {
						return
					}
					if p.deaf.Load() {
						p.deaf.Store(false)
						return
					}
					if _, err := client.Write(buf[:n]); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return p
}

// The answer to a commit is lost: the group is stored exactly once.
func TestPostgres_AnswerLost(t *testing.T) {
	t.Parallel()
	px := newProxy(t, pgtest.DSN(t))
	p := openPostgres(t, px.dsn, PostgresOptions{})
	freeze(p) // no other connection may lose an answer
	r := startRun(t, p, "wrun_1")
	chunk := int64(0)
	for name, records := range map[string]func() workflowd.Records{
		"Events": func() workflowd.Records { return workflowd.Records{Logs: []workflowd.Log{appendStep(r)}} },
		"Chunks": func() workflowd.Records {
			c := history.Chunk{Index: chunk, Data: []byte("x")}
			chunk++
			return workflowd.Records{Chunks: []workflowd.StreamChunks{{Run: r.ID, Stream: "s", Chunks: []history.Chunk{c}}}}
		},
		"Row": func() workflowd.Records { return workflowd.Records{Runs: []history.Run{*r}} },
	} {
		t.Run(name, func(t *testing.T) {
			commitGroup(t, p, records()) // the statements are prepared now, so that the next answer is the commit's
			settled := 0
			px.deaf.Store(true)
			err := p.Commit(t.Context(), &workflowd.Group{Settle: func() workflowd.Records { settled++; return records() }})
			if err != nil || settled != 1 || px.deaf.Load() {
				t.Fatalf("%v, settled %d times, answer lost: %t", err, settled, !px.deaf.Load())
			}
		})
	}
	// The same for the transaction of a step.
	if _, err := p.db.Exec("CREATE TABLE mine (n int)"); err != nil {
		t.Fatal(err)
	}
	settled := 0
	px.deafTo.Store("commit")
	err := p.Transact(t.Context(), &workflowd.Group{Settle: func() workflowd.Records {
		settled++
		return workflowd.Records{Logs: []workflowd.Log{appendStep(r)}}
	}}, func(tx workflowd.Tx) error {
		_, err := tx.ExecContext(t.Context(), "INSERT INTO mine VALUES (1)")
		return err
	})
	if err != nil || settled != 1 || px.deafTo.Load() != "" {
		t.Fatalf("%v, settled %d times, answer lost: %t", err, settled, px.deafTo.Load() == "")
	}
	events, err := p.Events(t.Context(), r.ID, 1, 0)
	if err != nil || int64(len(events)) != r.Events {
		t.Errorf("%d events, %v; want %d", len(events), err, r.Events)
	}
}

func TestPostgres_Transact(t *testing.T) {
	t.Parallel()
	p := openPostgres(t, pgtest.DSN(t), PostgresOptions{})
	r := startRun(t, p, "wrun_1")
	if _, err := p.db.Exec("CREATE TABLE mine (n int)"); err != nil {
		t.Fatal(err)
	}
	insert := func(tx workflowd.Tx) error {
		_, err := tx.ExecContext(t.Context(), "INSERT INTO mine VALUES ($1)", 7)
		return err
	}
	group := func() *workflowd.Group {
		return &workflowd.Group{Settle: func() workflowd.Records {
			return workflowd.Records{Logs: []workflowd.Log{appendStep(r)}}
		}}
	}
	stored := func(rows, events int) {
		t.Helper()
		var n int
		if err := p.db.QueryRow("SELECT count(*) FROM mine").Scan(&n); err != nil || n != rows {
			t.Errorf("%d rows, %v; want %d", n, err, rows)
		}
		if got, err := p.Events(t.Context(), r.ID, 1, 0); err != nil || len(got) != events {
			t.Errorf("%d events, %v; want %d", len(got), err, events)
		}
	}
	if err := p.Transact(t.Context(), group(), insert); err != nil {
		t.Fatal(err)
	}
	stored(1, 3)
	fault := errors.New("fault")
	for name, c := range map[string]struct {
		f    func(tx workflowd.Tx) error
		want func(error) bool
	}{
		"Fails": {func(tx workflowd.Tx) error { return fault }, func(err error) bool { return errors.Is(err, fault) }},
		"Broken": {func(tx workflowd.Tx) error {
			_, _ = tx.ExecContext(t.Context(), "SELECT nothing")
			return nil
		}, func(err error) bool { return cay.CodeOf(err) == cay.Conflict }},
		"EndsIt": {func(tx workflowd.Tx) error {
			_, err := tx.ExecContext(t.Context(), "ROLLBACK")
			return err
		}, func(err error) bool { return cay.CodeOf(err) == cay.Conflict }},
	} {
		err := p.Transact(t.Context(), group(), func(tx workflowd.Tx) error { return errors.Join(insert(tx), c.f(tx)) })
		if !c.want(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.Events = 3
	stored(1, 3)
	if err := p.Transact(t.Context(), group(), insert); err != nil {
		t.Fatal(err)
	}
	stored(2, 4)
}

func TestOpenPostgres(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	t.Run("Together", func(t *testing.T) {
		t.Parallel()
		dsn := pgtest.DSN(t)
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				p, err := OpenPostgres(ctx, dsn, PostgresOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
	t.Run("Schemas", func(t *testing.T) {
		t.Parallel()
		dsn := pgtest.DSN(t)
		a := openPostgres(t, dsn, PostgresOptions{Schema: `Odd "name"`})
		b := openPostgres(t, dsn, PostgresOptions{})
		startRun(t, a, "wrun_1")
		_, err := b.Run(ctx, "wrun_1")
		checktest.Code(t, err, cay.NotFound)
		if !a.listener.alone() {
			t.Error("another schema's process is taken for one of this")
		}
	})
	t.Run("LaterRelease", func(t *testing.T) {
		t.Parallel()
		dsn := pgtest.DSN(t)
		p := openPostgres(t, dsn, PostgresOptions{})
		if _, err := p.db.Exec("UPDATE cay.schema_version SET version = 1000"); err != nil {
			t.Fatal(err)
		}
		_, err := OpenPostgres(ctx, dsn, PostgresOptions{})
		checktest.Code(t, err, cay.NotSupported)
	})
	t.Run("Rights", func(t *testing.T) {
		t.Parallel()
		dsn := pgtest.DSN(t)
		u, err := url.Parse(dsn)
		if err != nil {
			t.Fatal(err)
		}
		q := u.Query()
		q.Set("user", "plain_"+filepath.Base(u.Path))
		u.RawQuery = q.Encode()
		plain := u.String()
		admin := openPostgres(t, dsn, PostgresOptions{Schema: "other"})
		role := q.Get("user")
		exec := func(statement string) {
			t.Helper()
			if _, err := admin.db.Exec(statement); err != nil {
				t.Fatal(err)
			}
		}
		exec("CREATE ROLE " + role + " LOGIN")
		t.Cleanup(func() {
			exec("DROP OWNED BY " + role)
			exec("DROP ROLE " + role)
		})
		_, err = OpenPostgres(ctx, plain, PostgresOptions{})
		checktest.Code(t, err, cay.PermissionDenied)
		// A role with rights on the existing schema only can use it.
		openPostgres(t, dsn, PostgresOptions{})
		exec("GRANT USAGE ON SCHEMA cay TO " + role)
		exec("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA cay TO " + role)
		p, err := OpenPostgres(ctx, plain, PostgresOptions{})
		if err != nil {
			t.Fatal(err)
		}
		startRun(t, p, "wrun_1")
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("Wrong", func(t *testing.T) {
		t.Parallel()
		for dsn, want := range map[string]cay.Code{
			"postgres://:not a port:":                                  cay.Invalid,
			"postgres:///x?host=" + t.TempDir() + "&connect_timeout=5": cay.Unavailable,
		} {
			_, err := OpenPostgres(ctx, dsn, PostgresOptions{})
			checktest.Code(t, err, want)
		}
		for _, o := range []PostgresOptions{{Conns: 1}, {Lease: 1}, {Schema: string(make([]byte, 41))}} {
			_, err := OpenPostgres(ctx, "", o)
			checktest.Code(t, err, cay.Invalid)
		}
	})
}
