package workflowtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/sqlstore"
	"github.com/cayhq/cay/workflow"
)

var add = workflow.Step("add", func(ctx context.Context, in [2]int) (int, error) { return in[0] + in[1], nil })

var sum = workflow.Define("sum", func(ctx workflow.Context, n int) (int, error) {
	total := 0
	for i := range n {
		var err error
		if total, err = add.Run(ctx, [2]int{total, i}); err != nil {
			return 0, err
		}
	}
	return total, nil
})

// open returns a client of an engine on the database at path, and a worker.
func open(ctx context.Context, t testing.TB, path string, defs ...workflow.Workflow) *workflow.Client {
	t.Helper()
	store, err := sqlstore.OpenSQLite(ctx, path, sqlstore.SQLiteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e, err := workflowd.Open(ctx, workflowd.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	c := workflow.NewClient(e.For(""), workflow.ClientOptions{})
	w := workflow.NewWorker(c, workflow.WorkerConfig{Definitions: defs})
	if err := w.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return c
}

func TestRun(t *testing.T) {
	ctx := context.Background()
	c := open(ctx, t, filepath.Join(t.TempDir(), "workflows.db"), sum)
	run, err := sum.Start(ctx, c, 10)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := run.Result(ctx); err != nil || got != 45 {
		t.Fatalf("result = %d, %v", got, err)
	}
}

// BenchmarkSteps measures steps one after the other, and steps of many concurrent runs.
func BenchmarkSteps(b *testing.B) {
	for _, runs := range []int{1, 100} {
		b.Run(fmt.Sprintf("runs=%d", runs), func(b *testing.B) {
			ctx := context.Background()
			c := open(ctx, b, filepath.Join(b.TempDir(), "workflows.db"), sum)
			each := b.N/runs + 1
			used := cpu(b)
			b.ResetTimer()
			var all []*workflow.Run[int]
			for range runs {
				run, err := sum.Start(ctx, c, min(each, 20000))
				if err != nil {
					b.Fatal(err)
				}
				all = append(all, run)
			}
			for _, run := range all {
				if _, err := run.Result(ctx); err != nil {
					b.Fatal(err)
				}
			}
			steps := float64(runs * min(each, 20000))
			b.ReportMetric(steps/b.Elapsed().Seconds(), "steps/s")
			b.ReportMetric(float64(cpu(b)-used)/1e3/steps, "cpu-us/step")
		})
	}
}

// cpu returns the processor time that this process has used.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkRun measures a run of one step, from its start to its result.
func BenchmarkRun(b *testing.B) {
	ctx := context.Background()
	c := open(ctx, b, filepath.Join(b.TempDir(), "workflows.db"), sum)
	for b.Loop() {
		run, err := sum.Start(ctx, c, 1)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := run.Result(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

// slow prints each step, for the test that kills the process.
var slow = workflow.Step("slow", func(ctx context.Context, n int) (int, error) {
	fmt.Println("step", n, workflow.StepInfo(ctx).Attempt)
	<-time.After(20 * time.Millisecond)
	return n, nil
})

var long = workflow.Define("long", func(ctx workflow.Context, n int) (int, error) {
	total := 0
	for i := range n {
		v, err := slow.Run(ctx, i)
		if err != nil {
			return 0, err
		}
		total += v
	}
	return total, nil
})

const crashEnv = "WORKFLOWTEST_CRASH"

// TestMain is also the main function of the program that TestKill kills.
func TestMain(m *testing.M) {
	path := os.Getenv(crashEnv)
	if path == "" {
		os.Exit(m.Run())
	}
	if err := crashed(path); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func crashed(path string) error {
	ctx := context.Background()
	store, err := sqlstore.OpenSQLite(ctx, path, sqlstore.SQLiteOptions{})
	if err != nil {
		return err
	}
	e, err := workflowd.Open(ctx, workflowd.Config{Store: store})
	if err != nil {
		return err
	}
	c := workflow.NewClient(e.For(""), workflow.ClientOptions{})
	w := workflow.NewWorker(c, workflow.WorkerConfig{Definitions: workflow.Definitions(long)})
	if err := w.Start(ctx); err != nil {
		return err
	}
	run, err := long.Start(ctx, c, 30, workflow.Key("once"))
	if err != nil {
		return err
	}
	got, err := run.Result(ctx)
	if err != nil {
		return err
	}
	fmt.Println("result", got)
	w.Stop()
	return e.Close()
}

func TestKill(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	path := filepath.Join(t.TempDir(), "workflows.db")
	calls := make(map[string]int)
	for life := 1; ; life++ {
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), crashEnv+"="+path)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		done, lines := false, 0
		for s := bufio.NewScanner(out); s.Scan(); {
			if s.Text() == "result 435" {
				done = true
			}
			if step, ok := strings.CutPrefix(s.Text(), "step "); ok {
				n, _, _ := strings.Cut(step, " ")
				calls[n]++
				if lines++; lines == 7 {
					if err := cmd.Process.Kill(); err != nil {
						t.Error(err)
					}
				}
			}
		}
		err = cmd.Wait()
		var exit *exec.ExitError
		if err != nil && !(errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL) {
			t.Fatal(err)
		}
		if done {
			t.Logf("done in life %d", life)
			break
		}
	}
	if len(calls) != 30 {
		t.Errorf("%d steps were called, not 30", len(calls))
	}
	again := 0
	for _, n := range calls {
		again += n - 1
	}
	if again > 6 {
		t.Errorf("steps were called %d times more than needed", again)
	}
}
