package db_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db"
)

// groupTest has callers wait behind a transaction, so that they share the next commit.
type groupTest struct {
	*db.DB
	syncs atomic.Int64
	wait  sync.WaitGroup
}

func openGroup(t *testing.T) *groupTest {
	g := &groupTest{}
	g.DB = open(t, filepath.Join(t.TempDir(), "cay.db"), db.Options{Synced: func() { g.syncs.Add(1) }})
	for _, q := range []string{
		`CREATE TABLE names (name TEXT PRIMARY KEY)`,
		`CREATE TABLE refs (name TEXT REFERENCES names (name) DEFERRABLE INITIALLY DEFERRED)`,
	} {
		checktest.Must(g.Exec(t.Context(), q))(t)
	}
	return g
}

// behind runs calls while a transaction has the turn, in the order given, and returns
// when all calls have. Each call begins, or ends, to wait for the turn.
func (g *groupTest) behind(t *testing.T, calls ...func()) {
	t.Helper()
	holds, release := make(chan struct{}), make(chan struct{})
	holding := sync.OnceFunc(func() { close(holds) }) // it runs again if the group is lost
	g.wait.Go(func() {
		if err := g.Unsynced().Write(t.Context(), func(*db.Tx) error {
			holding()
			<-release
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
	<-holds
	for _, call := range calls {
		waiting := g.Waiting()
		g.wait.Go(call)
		for g.Waiting() == waiting {
			runtime.Gosched()
		}
	}
	g.syncs.Store(0)
	close(release)
	g.wait.Wait()
}

// insert returns a call that inserts a name, and expects it to work.
func (g *groupTest) insert(t *testing.T, name string) func() {
	return func() {
		if err := g.Write(t.Context(), func(tx *db.Tx) error { return insertName(t.Context(), tx, name) }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func insertName(ctx context.Context, tx *db.Tx, name string) error {
	_, err := tx.Exec(ctx, `INSERT INTO names (name) VALUES (?)`, name)
	return err
}

func (g *groupTest) expect(t *testing.T, want ...string) {
	t.Helper()
	got := checktest.Must(db.Collect(t.Context(), g, db.Column[string], `SELECT name FROM names ORDER BY name`))(t)
	if !slices.Equal(got, want) {
		t.Errorf("there are %q, want %q", got, want)
	}
}

func TestGroup_SharesCommit(t *testing.T) {
	t.Parallel()
	g := openGroup(t)
	var calls []func()
	var want []string
	for i := range 100 { // more than a group may have
		name := fmt.Sprintf("%03d", i)
		want = append(want, name)
		calls = append(calls, g.insert(t, name))
	}
	g.behind(t, calls...)
	g.expect(t, want...)
	if n := g.syncs.Load(); n < 1 || n > 2 {
		t.Errorf("the disk was synced %d times for 2 groups", n)
	}
}

// A transaction that fails undoes only itself, however it fails.
func TestGroup_FailureUndoesItself(t *testing.T) {
	t.Parallel()
	fault := errors.New("fault")
	for name, fails := range map[string]func(t *testing.T, g *groupTest){
		"error": func(t *testing.T, g *groupTest) {
			err := g.Write(t.Context(), func(tx *db.Tx) error { return errors.Join(insertName(t.Context(), tx, "x"), fault) })
			if !errors.Is(err, fault) {
				t.Errorf("got %v, want the fault", err)
			}
		},
		"unique": func(t *testing.T, g *groupTest) {
			_, err := g.Exec(t.Context(), `INSERT INTO names (name) VALUES ('x'), ('a')`)
			if !db.IsUnique(err, "names.name") {
				t.Errorf("got %v, want a repeated name", err)
			}
		},
		"canceled": func(t *testing.T, g *groupTest) {
			ctx, cancel := context.WithCancel(t.Context())
			err := g.Write(ctx, func(tx *db.Tx) error {
				defer cancel()
				return insertName(ctx, tx, "x")
			})
			checktest.Code(t, err, cay.Canceled)
		},
		"panic": func(t *testing.T, g *groupTest) {
			defer func() {
				if v := recover(); v != fault {
					t.Errorf("got %v, want the panic", v)
				}
			}()
			_ = g.Write(t.Context(), func(tx *db.Tx) error {
				if err := insertName(t.Context(), tx, "x"); err != nil {
					return err
				}
				panic(fault)
			})
		},
		"goexit": func(t *testing.T, g *groupTest) {
			_ = g.Write(t.Context(), func(tx *db.Tx) error {
				defer runtime.Goexit()
				return insertName(t.Context(), tx, "x")
			})
		},
		// SQLite itself rolls back the whole transaction, as when the disk is full.
		"lost": func(t *testing.T, g *groupTest) {
			err := g.Write(t.Context(), func(tx *db.Tx) error {
				_, err := tx.Exec(t.Context(), `ROLLBACK`)
				return errors.Join(err, fault)
			})
			if !errors.Is(err, fault) {
				t.Errorf("got %v, want the fault", err)
			}
		},
		"commit": func(t *testing.T, g *groupTest) {
			_, err := g.Exec(t.Context(), `INSERT INTO refs (name) VALUES ('nobody')`)
			if err == nil || !strings.Contains(err.Error(), "FOREIGN KEY") {
				t.Errorf("got %v, want a violated foreign key", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, order := range []int{0, 1, 2} { // of the failing one among the others
				g := openGroup(t)
				calls := slices.Insert([]func(){g.insert(t, "a"), g.insert(t, "b")}, order, func() { fails(t, g) })
				if name == "unique" && order == 0 {
					calls = calls[1:]
				}
				g.behind(t, calls...)
				g.expect(t, "a", "b")
				if _, err := g.Exec(t.Context(), `INSERT INTO names (name) VALUES ('later')`); err != nil {
					t.Error("afterwards: ", err)
				}
			}
		})
	}
}

// A caller that gives up while it waits does not keep others waiting.
func TestGroup_GivesUp(t *testing.T) {
	t.Parallel()
	g := openGroup(t)
	ctx, cancel := context.WithCancel(t.Context())
	g.behind(t, func() {
		err := g.Write(ctx, func(tx *db.Tx) error { return insertName(ctx, tx, "x") })
		checktest.Code(t, err, cay.Canceled)
	}, g.insert(t, "a"), cancel)
	g.expect(t, "a")
}

// A transaction that fails because of what an earlier one in its group did returns when
// readers find that, too: a caller whose insert finds the row taken then reads the row.
func TestGroup_FailureFindsItsCause(t *testing.T) {
	t.Parallel()
	g := openGroup(t)
	second := func() {
		err := g.Write(t.Context(), func(tx *db.Tx) error { return insertName(t.Context(), tx, "a") })
		if err == nil {
			t.Error("a name was inserted twice")
		}
		var n int
		if err := g.QueryRow(t.Context(), `SELECT count(*) FROM names WHERE name = 'a'`).Scan(&n); err != nil || n != 1 {
			t.Errorf("the first name is there %d times, %v", n, err)
		}
	}
	many := func() { // keeps the group from its commit
		if err := g.Write(t.Context(), func(tx *db.Tx) error {
			for i := range 1000 {
				if err := insertName(t.Context(), tx, fmt.Sprint(i)); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	g.behind(t, g.insert(t, "a"), second, many)
}
