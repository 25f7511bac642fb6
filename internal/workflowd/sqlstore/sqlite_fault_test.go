package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/sqlstore"
	"github.com/cayhq/cay/internal/workflowd/storetest"
)

// TestSQLiteWriter is not a test of its own: TestSQLite_Crash starts this program again
// to run it, and kills that process.
func TestSQLiteWriter(t *testing.T) {
	path := os.Getenv("SQLSTORE_WRITER")
	if path == "" {
		t.Skip("for TestSQLite_Crash")
	}
	s, err := sqlstore.OpenSQLite(context.Background(), path, sqlstore.SQLiteOptions{Full: os.Getenv("SQLSTORE_FULL") != ""})
	if err == nil {
		err = storetest.Write(context.Background(), s, os.Stdout)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func TestSQLite_Crash(t *testing.T) {
	t.Parallel()
	for name, full := range map[string]string{"Normal": "", "Full": "1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "workflows.db")
			storetest.Crash(t, 12, func() *exec.Cmd {
				cmd := exec.Command(os.Args[0], "-test.run=^TestSQLiteWriter$")
				cmd.Env = append(os.Environ(), "SQLSTORE_WRITER="+path, "SQLSTORE_FULL="+full)
				return cmd
			}, func() workflowd.Store {
				s, err := sqlstore.OpenSQLite(t.Context(), path, sqlstore.SQLiteOptions{})
				if err != nil {
					t.Fatal(err)
				}
				return s
			})
			checkSQLite(t, path)
		})
	}
}

// checkSQLite runs SQLite's integrity check on a closed database.
func checkSQLite(t *testing.T, path string) {
	t.Helper()
	d := rawSQLite(t, path)
	var said string
	if err := d.QueryRow(`PRAGMA integrity_check`).Scan(&said); err != nil || said != "ok" {
		t.Errorf("integrity: %s, %v", said, err)
	}
	var left int
	if err := d.QueryRow(`SELECT count(*) FROM workflow_journal`).Scan(&left); err != nil || left != 0 {
		t.Errorf("%d rows are left in the journal, %v", left, err)
	}
}

// rawSQLite opens a database without the store.
func rawSQLite(t *testing.T, path string) *sql.DB {
	t.Helper()
	d, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// put commits one more group: a run with a payload of the given size.
func put(ctx context.Context, s workflowd.Store, n, size int) error {
	l := history.NewLog(history.Run{ID: fmt.Sprintf("wrun_%026d", n), Workflow: "w"})
	e := history.Event{Type: history.RunCreated, At: int64(n + 1), Payload: []byte(strings.Repeat("x", size))}
	if _, err := l.Apply(&e); err != nil {
		return err
	}
	return s.Commit(ctx, &workflowd.Group{Settle: func() workflowd.Records {
		return workflowd.Records{Logs: []workflowd.Log{{Run: &l.Run, Events: []history.Event{e}}}}
	}})
}

func TestOpenSQLite_Locked(t *testing.T) {
	t.Parallel()
	s := openSQLite(t, sqlstore.SQLiteOptions{})
	_, err := sqlstore.OpenSQLite(t.Context(), s.Path(), sqlstore.SQLiteOptions{})
	checktest.Code(t, err, cay.Conflict)
	if err := put(t.Context(), s, 1, 10); err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(s.Path())
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
}

func TestOpenSQLite_Later(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "workflows.db")
	s, err := sqlstore.OpenSQLite(t.Context(), path, sqlstore.SQLiteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := rawSQLite(t, path).Exec(`UPDATE workflow_meta SET value = 99 WHERE name = 'format'`); err != nil {
		t.Fatal(err)
	}
	_, err = sqlstore.OpenSQLite(t.Context(), path, sqlstore.SQLiteOptions{})
	checktest.Code(t, err, cay.NotSupported)
	// A failed open releases the lock.
	if _, err := rawSQLite(t, path).Exec(`UPDATE workflow_meta SET value = 1 WHERE name = 'format'`); err != nil {
		t.Fatal(err)
	}
	s, err = sqlstore.OpenSQLite(t.Context(), path, sqlstore.SQLiteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestOpenSQLite_Damaged(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "workflows.db")
	if err := os.WriteFile(path, []byte(strings.Repeat("not a database ", 400)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := sqlstore.OpenSQLite(t.Context(), path, sqlstore.SQLiteOptions{})
	checktest.Code(t, err, cay.Internal)
}

// TestSQLite_Refused checks that groups that no engine should make are refused, because
// they could not be folded.
func TestSQLite_Refused(t *testing.T) {
	t.Parallel()
	s := openSQLite(t, sqlstore.SQLiteOptions{})
	commit := func(r workflowd.Records) error {
		return s.Commit(t.Context(), &workflowd.Group{Settle: func() workflowd.Records { return r }})
	}
	log := func(id string, key string, slots ...int64) workflowd.Records {
		l := workflowd.Log{Run: &history.Run{ID: id, Workflow: "w", Key: key, Status: history.Pending}}
		for _, slot := range slots {
			l.Events = append(l.Events, history.Event{Slot: slot, Type: history.Noop})
			l.Run.Events = slot
		}
		return workflowd.Records{Logs: []workflowd.Log{l}}
	}
	if err := commit(log("a", "k", 1, 2)); err != nil {
		t.Fatal(err)
	}
	for _, folded := range []bool{false, true} {
		for name, r := range map[string]workflowd.Records{
			"Hole": log("a", "k", 4), "Again": log("a", "k", 2, 3), "NotDense": log("a", "k", 3, 5), "NotFromOne": log("b", "", 2),
			"NoEvents": log("a", "k"), "KeyOfAnother": log("c", "k", 1),
		} {
			if err := commit(r); cay.CodeOf(err) != cay.Internal {
				t.Errorf("%s, folded %t: %v", name, folded, err)
			}
		}
		if events, err := s.Events(t.Context(), "a", 1, 0); err != nil || len(events) != 2 {
			t.Errorf("%d events, %v", len(events), err)
		}
		if page, err := s.Runs(t.Context(), history.Query{}); err != nil || len(page.Items) != 1 { // folds
			t.Errorf("%+v, %v", page, err)
		}
	}
}

// TestSQLite_Full fills the database: refused groups are not in it, stored groups are,
// and commits succeed again when there is room.
func TestSQLite_Full(t *testing.T) {
	t.Parallel()
	s := openSQLite(t, sqlstore.SQLiteOptions{})
	limit := func(pages int) {
		t.Helper()
		err := s.Transact(t.Context(), &workflowd.Group{Settle: func() workflowd.Records { return workflowd.Records{} }}, func(tx workflowd.Tx) error {
			_, err := tx.ExecContext(t.Context(), fmt.Sprintf(`PRAGMA max_page_count = %d`, pages))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	limit(120)
	fillUp(t, s, func() { limit(1 << 20) })
}

// TestSQLite_DiskFull does the same with a full disk.
func TestSQLite_DiskFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=3m"); err != nil {
		t.Skipf("cannot mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := sqlstore.OpenSQLite(t.Context(), filepath.Join(dir, "workflows.db"), sqlstore.SQLiteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	fillUp(t, s, func() {
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
	})
}

func fillUp(t *testing.T, s *sqlstore.SQLite, makeRoom func()) {
	t.Helper()
	n, err := 0, error(nil)
	for ; n < 2000; n++ {
		if err = put(t.Context(), s, n, 4000); err != nil {
			break
		}
	}
	checktest.Code(t, err, cay.NoSpace)
	if n == 0 {
		t.Fatal("there was no room for a single run")
	}
	check := func() {
		t.Helper()
		for i := range n {
			if _, err := s.Run(t.Context(), fmt.Sprintf("wrun_%026d", i)); err != nil {
				t.Errorf("run %d of %d: %v", i, n, err)
			}
		}
	}
	check()
	_, err = s.Run(t.Context(), fmt.Sprintf("wrun_%026d", n))
	checktest.Code(t, err, cay.NotFound)
	if _, err := s.Runs(t.Context(), history.Query{}); err != nil && cay.CodeOf(err) != cay.NoSpace {
		t.Errorf("a list: %v", err)
	}
	makeRoom()
	for range 10 {
		if err := put(t.Context(), s, n, 4000); err != nil {
			t.Fatal(err)
		}
		n++
	}
	check()
	got := 0
	for q := (history.Query{Limit: 1000}); ; {
		page, err := s.Runs(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		got += len(page.Items)
		if q.Cursor = page.Cursor; q.Cursor == "" {
			break
		}
	}
	if got != n {
		t.Errorf("a list has %d runs, want %d", got, n)
	}
}

// TestSQLite_Log checks that the WAL stays short under constant commits.
func TestSQLite_Log(t *testing.T) {
	t.Parallel()
	s := openSQLite(t, sqlstore.SQLiteOptions{})
	largest := int64(0)
	for n := 0; n < 3000; n++ {
		if err := put(t.Context(), s, n, 30_000); err != nil {
			t.Fatal(err)
		}
		if fi, err := os.Stat(s.Path() + "-wal"); err == nil {
			largest = max(largest, fi.Size())
		}
	}
	if largest > 160<<20 {
		t.Errorf("the log has grown to %d MiB", largest>>20)
	}
	t.Logf("the log has grown to %d MiB", largest>>20)
}

// TestSQLite_Transact_Cancelled cancels the context during the transaction.
func TestSQLite_Transact_Cancelled(t *testing.T) {
	t.Parallel()
	s := openSQLite(t, sqlstore.SQLiteOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	err := s.Transact(ctx, &workflowd.Group{Settle: func() workflowd.Records { t.Error("settled"); return workflowd.Records{} }}, func(tx workflowd.Tx) error {
		if _, err := tx.ExecContext(ctx, `CREATE TABLE mine (a)`); err != nil {
			return err
		}
		cancel()
		return nil
	})
	checktest.Code(t, err, cay.Canceled)
	err = s.Transact(t.Context(), &workflowd.Group{Settle: func() workflowd.Records { return workflowd.Records{} }}, func(tx workflowd.Tx) error {
		var n int
		if err := tx.QueryRowContext(t.Context(), `SELECT count(*) FROM sqlite_schema WHERE name = 'mine'`).Scan(&n); err != nil || n != 0 {
			t.Errorf("%d tables of the cancelled transaction, %v", n, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestSQLite_Transact_Ended ends the transaction from within the function.
func TestSQLite_Transact_Ended(t *testing.T) {
	t.Parallel()
	s := openSQLite(t, sqlstore.SQLiteOptions{})
	for _, end := range []string{"COMMIT", "ROLLBACK"} {
		err := s.Transact(t.Context(), &workflowd.Group{Settle: func() workflowd.Records { t.Error("settled"); return workflowd.Records{} }}, func(tx workflowd.Tx) error {
			_, err := tx.ExecContext(t.Context(), end)
			return err
		})
		checktest.Code(t, err, cay.Invalid)
		if err := put(t.Context(), s, len(end), 10); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSQLite_Folds checks that the store folds by itself, without a query.
func TestSQLite_Folds(t *testing.T) {
	t.Parallel()
	s := openSQLite(t, sqlstore.SQLiteOptions{})
	d := rawSQLite(t, s.Path())
	if err := put(t.Context(), s, 1, 10); err != nil {
		t.Fatal(err)
	}
	// A second connection, which does not trigger folds.
	until, look := time.After(time.Minute), time.NewTicker(10*time.Millisecond)
	defer look.Stop()
	for {
		var runs, rows int
		if err := d.QueryRow(`SELECT (SELECT count(*) FROM workflow_runs), (SELECT count(*) FROM workflow_journal)`).Scan(&runs, &rows); err != nil {
			t.Fatal(err)
		}
		if runs == 1 && rows == 0 {
			break
		}
		select {
		case <-look.C:
		case <-until:
			t.Fatalf("%d runs are folded, %d rows are in the journal", runs, rows)
		}
	}
}
