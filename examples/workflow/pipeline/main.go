// Pipeline works in a sandbox: it creates the sandbox, copies a program and data
// into it, runs the program, fetches the report and deletes the sandbox. Kill
// Pipeline at any moment and start it again: it continues in the same sandbox,
// whose program has run on meanwhile, and no sandbox is left in the end.
//
//	cay serve &
//	go run ./examples/workflow/pipeline
//
// It finds the daemon as the command line does: by CAY_URL and CAY_TOKEN, else on
// this machine.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/cayhq/cay/examples/workflow/database"
	"github.com/cayhq/cay/sandbox"
	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/durable"
)

// Job is the data to analyse.
type Job struct {
	Numbers int
	Seconds int // how long that takes, at least
}

//go:embed analyse.py
var analyse []byte

var pipeline = workflow.Define("pipeline", func(ctx workflow.Context, job Job) (report string, err error) {
	box, err := durable.Create(ctx, sandbox.CreateParams{
		Runtime: "python3.13", VCPUs: 1, MemoryMB: 256, DiskMB: 256,
		Network: sandbox.Network{Mode: sandbox.DenyAll},
		Timeout: sandbox.Duration(time.Hour), // should nobody start this program again
	})
	if err != nil {
		return "", err
	}
	// Deletes the sandbox in any case, even if the run is cancelled.
	defer func() { err = errors.Join(err, box.Delete(workflow.WithoutCancel(ctx))) }()

	if err := box.WriteFile(ctx, "analyse.py", analyse, 0); err != nil {
		return "", err
	}
	result, err := box.Run(ctx, sandbox.CommandParams{
		Argv:    []string{"python3", "analyse.py", fmt.Sprint(job.Numbers), fmt.Sprint(job.Seconds)},
		Timeout: sandbox.Duration(10 * time.Minute),
	})
	if err != nil {
		return "", err
	}
	if result.Exit.Code != 0 {
		return "", fmt.Errorf("analyse.py exited with status %d: %s", result.Exit.Code, result.Stderr)
	}
	data, err := box.ReadFile(ctx, "report.txt")
	return string(data), err
})

func main() {
	db := flag.String("db", "pipeline.db", "database: a file, or postgres://...")
	key := flag.String("key", "1", "job to start, or to go on with")
	var job Job
	flag.IntVar(&job.Numbers, "numbers", 1000, "how many numbers to analyse")
	flag.IntVar(&job.Seconds, "seconds", 5, "how long that takes, to have time to kill this program")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *db, *key, job, os.Stdout); err != nil {
		stop()
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, db, key string, job Job, out io.Writer) (err error) {
	client, err := database.Open(ctx, db)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	worker := workflow.NewWorker(client, workflow.WorkerConfig{
		Definitions: workflow.Definitions(pipeline),
		StopTimeout: time.Second, // commands continue without this program, so stopping need not wait for them
	})
	if err := worker.Start(ctx); err != nil {
		return err
	}
	defer worker.Stop()

	r, err := pipeline.Start(ctx, client, job, workflow.Key(key))
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "job %s is run %s\n", key, r.ID)
	for e, err := range client.Follow(ctx, r.ID, 1) {
		if err != nil {
			return err
		}
		if e.Type.String() == "step_completed" {
			fmt.Fprintln(out, "done:", e.ID)
		}
	}
	report, err := r.Result(ctx)
	if err != nil {
		return err
	}
	fmt.Fprint(out, report)
	return nil
}
