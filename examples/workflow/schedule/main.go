// Schedule fetches the data of all customers on a schedule, from a service with
// limits: a maximum of requests a second, at most two at a time, and one at a time
// for each customer. Kill the program and start it again: the schedule, the limits
// and the runs in progress are in the database.
//
//	go run ./examples/workflow/schedule -runs 3
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay/examples/workflow/database"
	"github.com/cayhq/cay/workflow"
)

// The limits of the service.
const (
	perSecond = 4
	atOnce    = 2
)

// Customers are the customers to fetch data of.
type Customers struct{ Names []string }

// fetch is a workflow of its own, because limits apply to workflows: its runs wait
// in the database until they may start.
var fetch = workflow.Define("fetch", func(ctx workflow.Context, customer string) (int, error) {
	return ask.Run(ctx, customer)
}, workflow.RateLimit(perSecond, time.Second), workflow.Concurrency(atOnce), workflow.GroupConcurrency(1), workflow.Retention(time.Hour))

// fetchAll is the workflow that the schedule starts.
var fetchAll = workflow.Define("fetch-all", func(ctx workflow.Context, in Customers) (int, error) {
	var fetching []*workflow.Future[int]
	for _, name := range in.Names {
		child, err := fetch.StartChild(ctx, name, workflow.ChildGroup(name))
		if err != nil {
			return 0, err
		}
		fetching = append(fetching, workflow.Go(ctx, func(ctx workflow.Context) (int, error) { return child.Result(ctx) }))
	}
	records, err := workflow.All(ctx, fetching...)
	if err != nil {
		return 0, err
	}
	sum := 0
	for _, n := range records {
		sum += n
	}
	_, err = store.Run(ctx, sum)
	return sum, err
})

var (
	asking   atomic.Int64  // how many ask the service now
	finished chan<- string // gets the runs of fetchAll that come to their end
	ask      = workflow.Step("ask", func(ctx context.Context, customer string) (int, error) {
		defer asking.Add(-1)
		if n := asking.Add(1); n > atOnce {
			return 0, workflow.Fatal(fmt.Errorf("%d ask the service at once", n))
		}
		fmt.Printf("%d ask for %s\n", time.Now().UnixMilli(), customer)
		select {
		case <-time.After(50 * time.Millisecond):
			return len(customer), nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	})
	store = workflow.Step("store", func(ctx context.Context, records int) (struct{}, error) {
		select {
		case finished <- workflow.StepInfo(ctx).RunID:
			return struct{}{}, nil
		case <-ctx.Done():
			return struct{}{}, context.Cause(ctx)
		}
	})
)

func main() {
	db := flag.String("db", "schedule.db", "database: a file, or postgres://...")
	every := flag.Duration("every", time.Second, "how often to fetch")
	runs := flag.Int("runs", 3, "end after that many times")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *db, *every, *runs, os.Stdout); err != nil {
		stop()
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, db string, every time.Duration, runs int, out io.Writer) (err error) {
	client, err := database.Open(ctx, db)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	ends := make(chan string, runs)
	finished = ends
	worker := workflow.NewWorker(client, workflow.WorkerConfig{Definitions: workflow.Definitions(fetchAll, fetch)})
	if err := worker.Start(ctx); err != nil {
		return err
	}
	defer worker.Stop()

	customers := Customers{[]string{"ada", "bob", "cleo", "dora", "emil", "fay"}}
	// However often the program is started, there is one schedule, because its ID
	// is fixed.
	if _, err := fetchAll.Schedule(ctx, client, workflow.ScheduleParams{ID: "fetch-all", Cron: "@every " + every.String()}, customers); err != nil {
		return err
	}

	// Runs of earlier starts of this program, then new ones.
	seen := map[string]bool{}
	end := func(id string) error {
		if seen[id] || len(seen) >= runs {
			return nil
		}
		records, err := workflow.GetRun[int](client, id).Result(ctx)
		if err != nil {
			return err
		}
		seen[id] = true
		fmt.Fprintf(out, "time %d: %d records\n", len(seen), records)
		return nil
	}
	for earlier, err := range client.All(ctx, workflow.Query{Workflow: fetchAll.Name(), Ascending: true}) {
		if err != nil {
			return err
		}
		if err := end(earlier.ID); err != nil {
			return err
		}
	}
	for len(seen) < runs {
		select {
		case id := <-ends:
			if err := end(id); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return client.DeleteSchedule(ctx, "fetch-all")
}
