package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/sqlite"
)

// scriptWorkflows are the workflows of the programs in scripts.
var scriptWorkflows = workflow.Definitions(
	workflow.Define("greet", func(ctx workflow.Context, name string) (string, error) {
		return workflow.Do(ctx, "compose", func(ctx context.Context) (string, error) {
			out := workflow.Stream[string](ctx, "")
			if err := out.Send("looking up "+name, "found <"+name+">"); err != nil {
				return "", err
			}
			log := workflow.ByteStream(ctx, "log")
			if _, err := fmt.Fprintf(log, "greeting %s\n", name); err != nil {
				return "", err
			}
			return "hello " + name, errors.Join(out.Close(), log.Close())
		})
	}),
	workflow.Define("approve", func(ctx workflow.Context, order int) (string, error) {
		hook, err := workflow.NewHook[map[string]bool](ctx, fmt.Sprintf("approve:%d", order), workflow.Metadata(map[string]int{"order": order}))
		if err != nil {
			return "", err
		}
		answer, err := hook.Receive(ctx, 24*time.Hour)
		if err != nil {
			return "", err
		}
		return fmt.Sprint("approved: ", answer["yes"]), nil
	}),
	workflow.Define("nap", func(ctx workflow.Context, _ struct{}) (string, error) {
		if err := workflow.Sleep(ctx, time.Hour); err != nil {
			return "", err
		}
		return "rested", nil
	}),
	workflow.Define("fail", func(ctx workflow.Context, _ struct{}) (string, error) {
		return workflow.Do(ctx, "break", func(context.Context) (string, error) {
			return "", workflow.Fatal(errors.New("out of stock"))
		})
	}),
)

// startWorker starts a worker that ends with the script.
func startWorker(ts *testscript.TestScript, c *workflow.Client) (stop func()) {
	w := workflow.NewWorker(c, workflow.WorkerConfig{Definitions: scriptWorkflows, Logger: slog.New(slog.DiscardHandler)})
	ts.Check(w.Start(context.Background()))
	return w.Stop
}

// cmdWorker starts a worker of the daemon.
func cmdWorker(ts *testscript.TestScript, _ bool, _ []string) {
	c, err := workflow.Connect(workflow.RemoteOptions{URL: ts.Getenv("CAY_URL"), Token: ts.Getenv("CAY_TOKEN")})
	ts.Check(err)
	stop := startWorker(ts, c)
	ts.Defer(func() {
		stop()
		ts.Check(c.Close())
	})
}

// program is a program that keeps its runs in its own database; book has the
// gateway's accounts of the script's daemon.
type program struct {
	stop func() error
	book *ledger.Book
}

type programKey struct{}

// cmdProgram starts a program that has a database open, or with "stop" stops it.
func cmdProgram(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: program DB|stop")
	}
	running, _ := ts.Value(programKey{}).(*program)
	stop := func() {
		if running.stop != nil {
			ts.Check(running.stop())
			running.stop = nil
		}
	}
	if args[0] == "stop" {
		stop()
		return
	}
	c, err := sqlite.Open(context.Background(), ts.MkAbs(args[0]), sqlite.Options{})
	ts.Check(err)
	stopWorker := startWorker(ts, c)
	running.stop = func() error {
		stopWorker()
		return c.Close()
	}
	ts.Defer(stop)
}
