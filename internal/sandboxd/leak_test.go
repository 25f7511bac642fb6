package sandboxd_test

import (
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/sandbox"
)

// TestLeaks creates and deletes 500 sandboxes (I9) and checks that goroutines, open
// files, leases, rows and machines are gone.
func TestLeaks(t *testing.T) {
	checktest.Long(t)
	// Not parallel: the test counts resources of the whole process.
	h, rt := startFake(t)
	ctx := defaultCaller(t)
	cycle := func(n int) {
		t.Helper()
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range n / 4 {
					s, err := h.Create(ctx, sandbox.CreateParams{Ports: []sandbox.PortParams{{Port: 80}}})
					if err != nil {
						t.Error(err)
						return
					}
					if err := rt.Flow(s.SessionID, sandbox.Flow{Seq: 1, Protocol: "tcp", Verdict: sandbox.Denied}); err != nil {
						t.Error(err)
					}
					if _, err := h.Preview(ctx, s.Ports[0].Label); err != nil {
						t.Error(err)
					}
					out, err := h.Exec(ctx, s.ID, sandbox.CommandParams{Argv: []string{"true"}})
					if err != nil {
						t.Error(err)
						return
					}
					if err := out.Close(); err != nil {
						t.Error(err)
					}
					if err := h.Delete(ctx, s.ID); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
	}
	cycle(20) // allocates what is kept for good: database connections, statements
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	cycle(500)
	// Some resources of a machine's connections are released a moment after its end; a
	// leak of one per machine would be 500.
	for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
		now, open := runtime.NumGoroutine(), openFiles(t)
		if now <= goroutines+50 && open <= files+50 {
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("%d goroutines and %d open files, %d and %d before", now, open, goroutines, files)
			break
		}
	}
	if n := h.Images.Leased(); n != 0 {
		t.Errorf("%d leases are held", n)
	}
	if left := checktest.Must(rt.List(ctx))(t); len(left) != 0 {
		t.Errorf("machines %v are left", left)
	}
	for _, table := range []string{"sandboxes", "sandbox_tags", "sandbox_ports WHERE gone_at IS NULL"} {
		var n int
		if err := h.Config.DB.QueryRow(ctx, "SELECT count(*) FROM "+table).Scan(&n); err != nil || n != 0 {
			t.Errorf("table %s has %d rows, %v", table, n, err)
		}
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
