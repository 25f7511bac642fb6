package postgres_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // for the test's own tables

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/db/pgtest"
	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/postgres"
)

const childDSN = "CAY_TEST_POSTGRES_WORKER"

func TestMain(m *testing.M) {
	if dsn := os.Getenv(childDSN); dsn != "" {
		workUntilKilled(dsn)
	}
	leaktest.Main(m)
}

var double = workflow.Step("double", func(ctx context.Context, n int) (int, error) { return 2 * n, nil })

var doubles = workflow.Define("doubles", func(ctx workflow.Context, n int) (int, error) {
	total := 0
	for i := range n {
		v, err := double.Run(ctx, i)
		if err != nil {
			return 0, err
		}
		total += v
	}
	return total, nil
})

// ask waits for an answer, and streams the answer back.
var ask = workflow.Define("ask", func(ctx workflow.Context, token string) (string, error) {
	h, err := workflow.NewHook[string](ctx, token)
	if err != nil {
		return "", err
	}
	answer, err := h.Receive(ctx)
	if err != nil {
		return "", err
	}
	return workflow.Do(ctx, "say", func(ctx context.Context) (string, error) {
		s := workflow.Stream[string](ctx, "said")
		if err := s.Send(answer); err != nil {
			return "", err
		}
		return answer, s.Close()
	})
})

// nap sleeps for longer than the tests take.
var nap = workflow.Define("nap", func(ctx workflow.Context, d time.Duration) (string, error) {
	if err := workflow.Sleep(ctx, d); err != nil {
		return "", err
	}
	return "awake", nil
})

func open(t *testing.T, dsn string, o postgres.Options) *workflow.Client {
	t.Helper()
	c, err := postgres.Open(t.Context(), dsn, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func work(t *testing.T, c *workflow.Client, defs ...workflow.Workflow) *workflow.Worker {
	t.Helper()
	w := workflow.NewWorker(c, workflow.WorkerConfig{Definitions: defs})
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w
}

// bounded returns a test's context with a time limit, so that a missing event fails the
// test.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestOpen(t *testing.T) {
	t.Parallel()
	ctx := bounded(t)
	c := open(t, pgtest.DSN(t), postgres.Options{})
	work(t, c, doubles)
	run, err := doubles.Start(ctx, c, 10)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := run.Result(ctx); err != nil || got != 90 {
		t.Fatalf("%d, %v", got, err)
	}
}

func TestOpen_Errors(t *testing.T) {
	t.Parallel()
	_, err := postgres.Open(t.Context(), "postgres:///x?host="+t.TempDir(), postgres.Options{})
	if !errors.Is(err, &cay.Error{Code: cay.Unavailable}) {
		t.Errorf("no server: %v", err)
	}
	_, err = postgres.Open(t.Context(), "postgres://host:port", postgres.Options{})
	if !errors.Is(err, &cay.Error{Code: cay.Invalid}) {
		t.Errorf("no address: %v", err)
	}
}

// The first process starts runs and has no worker; the second process has workers and
// starts no runs.
func TestShared(t *testing.T) {
	t.Parallel()
	ctx := bounded(t)
	dsn := pgtest.DSN(t)
	front, back := open(t, dsn, postgres.Options{}), open(t, dsn, postgres.Options{})
	work(t, back, doubles, ask, nap)
	t.Run("Result", func(t *testing.T) {
		run, err := doubles.Start(ctx, front, 10)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := run.Result(ctx); err != nil || got != 90 {
			t.Fatalf("%d, %v", got, err)
		}
	})
	t.Run("HookAndStream", func(t *testing.T) {
		run, err := ask.Start(ctx, front, "answer me")
		if err != nil {
			t.Fatal(err)
		}
		for e, err := range run.Follow(ctx, 1) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Token == "answer me" {
				break
			}
		}
		if err := workflow.ResumeHook(ctx, front, "answer me", "42"); err != nil {
			t.Fatal(err)
		}
		var said []string
		for item, err := range workflow.ReadStream[string](ctx, front, run.ID, "said", 0) {
			if err != nil {
				t.Fatal(err)
			}
			said = append(said, item.Value)
		}
		if !slices.Equal(said, []string{"42"}) {
			t.Errorf("the stream says %q", said)
		}
		if got, err := run.Result(ctx); err != nil || got != "42" {
			t.Errorf("%q, %v", got, err)
		}
	})
	// waiting starts a nap and returns when it sleeps.
	waiting := func(t *testing.T) *workflow.Run[string] {
		t.Helper()
		run, err := nap.Start(ctx, front, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		for e, err := range run.Follow(ctx, 1) {
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(e.ID, "wait_") {
				return run
			}
		}
		t.Fatal("it does not sleep")
		return nil
	}
	t.Run("Cancel", func(t *testing.T) {
		run := waiting(t)
		if err := run.Cancel(ctx, workflow.CancelParams{Reason: "enough"}); err != nil {
			t.Fatal(err)
		}
		if _, err := run.Result(ctx); !errors.As(err, new(*workflow.RunCancelledError)) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("Wake", func(t *testing.T) {
		run := waiting(t)
		if _, err := run.Wake(ctx); err != nil {
			t.Fatal(err)
		}
		if got, err := run.Result(ctx); err != nil || got != "awake" {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// A worker stops in good order; another worker goes on with its runs.
func TestHandOver(t *testing.T) {
	t.Parallel()
	ctx := bounded(t)
	dsn := pgtest.DSN(t)
	first, err := postgres.Open(ctx, dsn, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := workflow.NewWorker(first, workflow.WorkerConfig{Definitions: workflow.Definitions(ask, nap)})
	if err := w.Start(ctx); err != nil {
		t.Fatal(err)
	}
	asked, err := ask.Start(ctx, first, "token")
	if err != nil {
		t.Fatal(err)
	}
	napping, err := nap.Start(ctx, first, 100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{asked.ID, napping.ID} {
		for e, err := range first.Follow(ctx, id, 1) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Slot == 3 {
				break
			}
		}
	}
	w.Stop()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := open(t, dsn, postgres.Options{})
	work(t, second, ask, nap)
	if err := workflow.ResumeHook(ctx, second, "token", "yes"); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{asked.ID: "yes", napping.ID: "awake"} {
		if got, err := workflow.GetRun[string](second, id).Result(ctx); err != nil || got != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
}

// slowly is the workflow of a program that is killed while it works.
var slowly = workflow.Define("slowly", func(ctx workflow.Context, n int) (int, error) {
	total := 0
	for i := range n {
		v, err := workflow.Do(ctx, "count", func(ctx context.Context) (int, error) {
			fmt.Println("step", i)
			select {
			case <-time.After(20 * time.Millisecond):
				return i, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		})
		if err != nil {
			return 0, err
		}
		total += v
	}
	return total, nil
})

func workUntilKilled(dsn string) {
	ctx := context.Background()
	c, err := postgres.Open(ctx, dsn, postgres.Options{Lease: time.Hour})
	if err != nil {
		panic(err)
	}
	w := workflow.NewWorker(c, workflow.WorkerConfig{Definitions: workflow.Definitions(slowly)})
	if err := w.Start(ctx); err != nil {
		panic(err)
	}
	if _, err := slowly.Start(ctx, c, 40, workflow.Key("once")); err != nil {
		panic(err)
	}
	io.Copy(io.Discard, os.Stdin) // which has no end
}

// The program is killed, and the next one finishes its work, without waiting for the
// lease, which has an hour to go.
func TestKill(t *testing.T) {
	t.Parallel()
	ctx := bounded(t)
	dsn := pgtest.DSN(t)
	for range 3 {
		c := exec.CommandContext(ctx, os.Args[0])
		c.Env = append(os.Environ(), childDSN+"="+dsn)
		c.Stderr = os.Stderr
		if _, err := c.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		steps := 0
		for s := bufio.NewScanner(out); s.Scan(); {
			if strings.HasPrefix(s.Text(), "step ") {
				if steps++; steps == 5 {
					if err := c.Process.Kill(); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		if err := c.Wait(); err == nil || steps < 5 {
			t.Fatalf("it ended by itself after %d steps", steps)
		}
	}
	c := open(t, dsn, postgres.Options{Lease: time.Hour})
	work(t, c, slowly)
	run, err := slowly.Start(ctx, c, 40, workflow.Key("once"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := run.Result(ctx); err != nil || got != 780 {
		t.Fatalf("%d, %v", got, err)
	}
	events, err := c.Events(ctx, run.ID, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range events {
		if e.Slot != int64(i+1) {
			t.Fatalf("slot %d in place of %d", e.Slot, i+1)
		}
	}
}

// A step's transaction runs on the engine's database, and includes the step's record.
func TestTxStep(t *testing.T) {
	t.Parallel()
	ctx := bounded(t)
	dsn := pgtest.DSN(t)
	own, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if _, err := own.ExecContext(ctx, "CREATE TABLE payments (n int)"); err != nil {
		t.Fatal(err)
	}
	tries := 0
	pay := workflow.TxStep("pay", func(ctx context.Context, tx workflow.Tx, n int) (int, error) {
		if _, err := tx.ExecContext(ctx, "INSERT INTO payments VALUES ($1)", n); err != nil {
			return 0, err
		}
		if tries++; tries == 1 {
			return 0, workflow.Retryable(errors.New("not yet"), time.Millisecond)
		}
		return n, nil
	})
	shop := workflow.Define("shop", func(ctx workflow.Context, n int) (int, error) { return pay.Run(ctx, n) })
	c := open(t, dsn, postgres.Options{})
	work(t, c, shop)
	run, err := shop.Start(ctx, c, 7)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := run.Result(ctx); err != nil || got != 7 {
		t.Fatalf("%d, %v", got, err)
	}
	var rows int
	if err := own.QueryRowContext(ctx, "SELECT count(*) FROM payments").Scan(&rows); err != nil || rows != 1 || tries != 2 {
		t.Errorf("%d payments after %d tries, %v", rows, tries, err)
	}
}

// The database goes away during runs, and comes back.
func TestServerRestart(t *testing.T) {
	t.Parallel()
	ctx := bounded(t)
	server := pgtest.Start(t, pgtest.Options{})
	c := open(t, server.DSN(t), postgres.Options{})
	reached, goOn := make(chan struct{}), make(chan struct{})
	pause := workflow.Define("pause", func(ctx workflow.Context, n int) (int, error) {
		if _, err := workflow.Do(ctx, "pause", func(ctx context.Context) (int, error) {
			close(reached)
			<-goOn
			return 0, nil
		}); err != nil {
			return 0, err
		}
		return doubles.Run(ctx, n)
	})
	work(t, c, pause)
	run, err := pause.Start(ctx, c, 10)
	if err != nil {
		t.Fatal(err)
	}
	<-reached
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	close(goOn)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	if got, err := run.Result(ctx); err != nil || got != 90 {
		t.Fatalf("%d, %v", got, err)
	}
}
