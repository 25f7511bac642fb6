package db_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/db/dbtest"
	"github.com/cayhq/cay/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func setup(t *testing.T) *db.DB {
	t.Helper()
	d := open(t, filepath.Join(t.TempDir(), "cay.db"), db.Options{})
	err := d.Migrate(t.Context(), "test", []db.Migration{{Name: "items", SQL: `
		CREATE TABLE owners (id TEXT PRIMARY KEY);
		CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, owner TEXT REFERENCES owners (id), body BLOB);`}})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func open(t *testing.T, path string, o db.Options) *db.DB {
	t.Helper()
	d, err := db.Open(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func count(t *testing.T, d *db.DB) (n int) {
	t.Helper()
	if err := d.QueryRow(t.Context(), `SELECT count(*) FROM items`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestOpen_OddPath(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a b?c#d%20")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	d := open(t, filepath.Join(dir, "x.db"), db.Options{})
	if _, err := d.Exec(t.Context(), `CREATE TABLE t (a)`); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"x.db", "x.db-wal"} {
		fi, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if fi.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, want 0600", name, fi.Mode())
		}
	}
}

func TestOpen_TightensMode(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.db")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	open(t, path, db.Options{})
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v; want 0600", fi.Mode(), err)
	}
}

func TestOpen_NotADatabase(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.db")
	if err := os.WriteFile(path, []byte(strings.Repeat("not a database ", 400)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := db.Open(t.Context(), path, db.Options{})
	checktest.Code(t, err, cay.Internal)
	var e *cay.Error
	if !errors.As(err, &e) || e.Hint == "" {
		t.Fatalf("%v carries no hint", err)
	}
}

func TestExec(t *testing.T) {
	t.Parallel()
	d, ctx := setup(t), t.Context()
	for i := range 3 {
		if r, err := d.Exec(ctx, `INSERT INTO items (name) VALUES (?)`, fmt.Sprint("n", i)); err != nil || r.Rows != 1 {
			t.Fatalf("%d rows, %v", r.Rows, err)
		}
	}
	if r, err := d.Exec(ctx, `UPDATE items SET body = ?`, []byte("x")); err != nil || r.Rows != 3 {
		t.Fatalf("%d rows, %v; want 3", r.Rows, err)
	}
	_, err := d.Exec(ctx, `INSERT INTO items (name) VALUES ('n1')`)
	if !db.IsUnique(err, "items.name") || db.IsUnique(err, "items.id") {
		t.Fatalf("%v is not told to be a repeated name", err)
	}
	if _, err := d.Exec(ctx, `INSERT INTO items (name, owner) VALUES ('o', 'nobody')`); err == nil || db.IsUnique(err, "items.name") {
		t.Fatalf("got %v, want a foreign key violation", err)
	}
	if err := d.QueryRow(ctx, `SELECT id FROM items WHERE name = ?`, "none").Scan(new(int)); !errors.Is(err, sql.ErrNoRows) {
		t.Fatalf("got %v, want sql.ErrNoRows", err)
	}
	if rows, err := d.Query(ctx, `DELETE FROM items RETURNING id`); err == nil {
		for rows.Next() {
		}
		if rows.Err() == nil {
			t.Fatal("a reader deleted rows")
		}
		rows.Close()
	}
}

func TestWrite(t *testing.T) {
	t.Parallel()
	insert := func(ctx context.Context, tx *db.Tx, name string) error {
		_, err := tx.Exec(ctx, `INSERT INTO items (name) VALUES (?)`, name)
		return err
	}
	t.Run("RollsBack", func(t *testing.T) {
		t.Parallel()
		d, fault := setup(t), errors.New("fault")
		err := d.Write(t.Context(), func(tx *db.Tx) error {
			if err := insert(t.Context(), tx, "a"); err != nil {
				return err
			}
			return fault
		})
		if !errors.Is(err, fault) || count(t, d) != 0 {
			t.Fatalf("got %v and %d rows, want the fault and none", err, count(t, d))
		}
	})
	t.Run("RepeatedStatements", func(t *testing.T) {
		t.Parallel()
		d := setup(t)
		for i := range 20 {
			if err := d.Write(t.Context(), func(tx *db.Tx) error {
				return errors.Join(insert(t.Context(), tx, fmt.Sprint("a", i)), insert(t.Context(), tx, fmt.Sprint("b", i)))
			}); err != nil {
				t.Fatal(err)
			}
		}
		if count(t, d) != 40 {
			t.Fatalf("%d rows, want 40", count(t, d))
		}
	})
	t.Run("ConcurrentHandles", func(t *testing.T) {
		// Two handles on one file stand for two processes: read-modify-write
		// loses no update.
		t.Parallel()
		d := setup(t)
		other := open(t, d.Path(), db.Options{})
		if _, err := d.Exec(t.Context(), `INSERT INTO items (id, name) VALUES (0, '0')`); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range 8 {
			h := d
			if i%2 == 1 {
				h = other
			}
			wg.Go(func() {
				for range 10 {
					err := h.Write(t.Context(), func(tx *db.Tx) error {
						var n int
						if err := tx.QueryRow(t.Context(), `SELECT CAST(name AS INTEGER) FROM items WHERE id = 0`).Scan(&n); err != nil {
							return err
						}
						_, err := tx.Exec(t.Context(), `UPDATE items SET name = ? WHERE id = 0`, fmt.Sprint(n+1))
						return err
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		var n string
		if err := d.QueryRow(t.Context(), `SELECT name FROM items`).Scan(&n); err != nil || n != "80" {
			t.Fatalf("got %s, %v; want 80", n, err)
		}
	})
	t.Run("LockedElsewhere", func(t *testing.T) {
		t.Parallel()
		d := setup(t)
		other := open(t, d.Path(), db.Options{BusyTimeout: 10 * time.Millisecond})
		err := d.Write(t.Context(), func(*db.Tx) error {
			_, err := other.Exec(t.Context(), `INSERT INTO items (name) VALUES ('x')`)
			checktest.Code(t, err, cay.Unavailable)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
	t.Run("ReadersDoNotWait", func(t *testing.T) {
		t.Parallel()
		d := setup(t)
		err := d.Write(t.Context(), func(tx *db.Tx) error {
			if err := insert(t.Context(), tx, "a"); err != nil {
				return err
			}
			if n := count(t, d); n != 0 {
				t.Errorf("a reader saw %d uncommitted rows", n)
			}
			return nil
		})
		if err != nil || count(t, d) != 1 {
			t.Fatalf("%v, %d rows", err, count(t, d))
		}
	})
	t.Run("Canceled", func(t *testing.T) {
		t.Parallel()
		d := setup(t)
		ctx, cancel := context.WithCancel(t.Context())
		err := d.Write(ctx, func(tx *db.Tx) error {
			if err := insert(ctx, tx, "a"); err != nil {
				return err
			}
			cancel()
			return nil
		})
		checktest.Code(t, err, cay.Canceled)
		if n := count(t, d); n != 0 {
			t.Fatalf("%d rows, want none", n)
		}
	})
}

func TestRead_OneState(t *testing.T) {
	t.Parallel()
	d, ctx := setup(t), t.Context()
	err := d.Read(ctx, func(tx *db.Tx) error {
		var before, after int
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM items`).Scan(&before); err != nil {
			return err
		}
		if _, err := d.Exec(ctx, `INSERT INTO items (name) VALUES ('new')`); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM items`).Scan(&after); err != nil {
			return err
		}
		if before != after {
			t.Errorf("the state changed from %d to %d rows within a transaction", before, after)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestFull(t *testing.T) {
	t.Parallel()
	d, ctx := setup(t), t.Context()
	if _, err := d.Exec(ctx, `PRAGMA max_page_count = 20`); err != nil {
		t.Fatal(err)
	}
	_, err := d.Exec(ctx, `INSERT INTO items (name, body) VALUES ('big', zeroblob(1000000))`)
	checktest.Code(t, err, cay.NoSpace)
	if _, err := d.Exec(ctx, `INSERT INTO items (name) VALUES ('small')`); err != nil {
		t.Fatalf("a small row after a full disk: %v", err)
	}
	if err := d.Check(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestCheck_Damaged(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.db")
	d, err := db.Open(t.Context(), path, db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range []string{
		`CREATE TABLE t (a)`,
		`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 2000) INSERT INTO t SELECT hex(randomblob(40)) FROM n`,
		`CREATE INDEX i ON t (a)`,
	} {
		if _, err := d.Exec(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(d.Check(t.Context()), d.Close()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := len(b) - 3*4096; i < len(b)-2*4096; i++ {
		b[i] ^= 0x5a
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := open(t, path, db.Options{}).Check(t.Context()); err == nil {
		t.Fatal("a damaged page went unnoticed")
	}
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	one := db.Migration{Name: "one", SQL: `CREATE TABLE one (a)`}
	two := db.Migration{Name: "two", SQL: `CREATE TABLE two (a); INSERT INTO two VALUES (1)`}
	broken := db.Migration{Name: "broken", SQL: `CREATE TABLE three (a); CREATE TABLE one (a)`}
	renamed := db.Migration{Name: "uno", SQL: one.SQL}
	for _, tc := range []struct {
		name         string
		first, then  []db.Migration
		code         cay.Code
		wantTwoTable bool
	}{
		{"Fresh", nil, []db.Migration{one, two}, "", true},
		{"Again", []db.Migration{one, two}, []db.Migration{one, two}, "", true},
		{"OneMore", []db.Migration{one}, []db.Migration{one, two}, "", true},
		{"FromNewer", []db.Migration{one, two}, []db.Migration{one}, cay.Conflict, true},
		{"Renamed", []db.Migration{one}, []db.Migration{renamed, two}, cay.Conflict, false},
		{"AllOrNone", []db.Migration{one}, []db.Migration{one, two, broken}, cay.Internal, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := open(t, filepath.Join(t.TempDir(), "x.db"), db.Options{})
			if err := d.Migrate(t.Context(), "line", tc.first); err != nil {
				t.Fatal(err)
			}
			checktest.Code(t, d.Migrate(t.Context(), "line", tc.then), tc.code)
			err := d.QueryRow(t.Context(), `SELECT a FROM two`).Scan(new(int))
			if (err == nil) != tc.wantTwoTable {
				t.Fatalf("reading table two: %v", err)
			}
			// Lines are independent of each other.
			if err := d.Migrate(t.Context(), "other", []db.Migration{{Name: "x", SQL: `CREATE TABLE x (a)`}}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Acknowledged commits survive a power cut; other commits may be undone by it.
func TestPowerCut(t *testing.T) {
	d, power := dbtest.OpenPower(t)
	ctx := t.Context()
	if err := d.Write(ctx, func(tx *db.Tx) error {
		_, err := tx.Exec(ctx, `CREATE TABLE t (n INTEGER)`)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	power.Check(t, "create")
	checktest.Must(d.Unsynced().Exec(ctx, `INSERT INTO t (n) VALUES (1)`))(t)
	checktest.Must(d.Exec(ctx, `INSERT INTO t (n) VALUES (2)`))(t)
	power.Check(t, "exec") // including the commits before
	checktest.Must(d.Exec(ctx, `DELETE FROM t WHERE n = 1`))(t)
	power.Check(t, "delete")
	checktest.Must(d.Unsynced().Exec(ctx, `INSERT INTO t (n) VALUES (3)`))(t)
	if undone := power.Undone(t); len(undone) != 1 {
		t.Errorf("of what was not synced a power cut undoes %q", undone)
	}

	// Each of many concurrent commits is on the disk when it is acknowledged.
	var wg sync.WaitGroup
	for n := range 50 {
		wg.Go(func() {
			if _, err := d.Exec(ctx, `INSERT INTO t (n) VALUES (?)`, 100+n); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	power.Check(t, "group")
}

// A change whose sync fails for a temporary reason returns an error, and the next
// successful change makes it durable, too.
func TestWrite_SyncAgain(t *testing.T) {
	t.Parallel()
	d := setup(t)
	wal := d.Path() + "-wal"
	if err := os.Rename(wal, wal+".away"); err != nil {
		t.Fatal(err)
	}
	_, err := d.Exec(t.Context(), `INSERT INTO items (name) VALUES ('first')`)
	checktest.Code(t, err, cay.Unavailable)
	if err := os.Rename(wal+".away", wal); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Exec(t.Context(), `INSERT INTO items (name) VALUES ('second')`); err != nil {
		t.Fatal(err)
	}
	if n := count(t, d); n != 2 {
		t.Errorf("there are %d rows, want both", n)
	}
}

func TestCollect(t *testing.T) {
	t.Parallel()
	d := setup(t)
	names := func(q db.Querier) ([]string, error) {
		return db.Collect(t.Context(), q, db.Column[string], `SELECT name FROM items ORDER BY id`)
	}
	if got, err := names(d); err != nil || got != nil {
		t.Errorf("an empty table has %q, %v", got, err)
	}
	err := d.Write(t.Context(), func(tx *db.Tx) error {
		for _, name := range []string{"a", "b"} {
			if _, err := tx.Exec(t.Context(), `INSERT INTO items (name) VALUES (?)`, name); err != nil {
				return err
			}
		}
		got, err := names(tx)
		if len(got) != 2 {
			t.Errorf("the transaction sees %q", got)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := names(d); err != nil || strings.Join(got, " ") != "a b" {
		t.Errorf("the table has %q, %v", got, err)
	}
	refused := errors.New("no")
	_, err = db.Collect(t.Context(), d, func(db.Scanner) (string, error) { return "", refused }, `SELECT name FROM items`)
	if !errors.Is(err, refused) {
		t.Errorf("the error of scan became %v", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := db.Collect(gone, d, db.Column[string], `SELECT name FROM items`); cay.CodeOf(err) != cay.Canceled {
		t.Errorf("a caller that has left gets %v", err)
	}
	if n := count(t, d); n != 2 {
		t.Errorf("%d rows", n)
	}
}
