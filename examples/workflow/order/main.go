// Order sells things: it reserves them, charges the customer, ships them, and
// undoes all steps if the shipping fails. Kill the program at any moment and
// start it again: the order continues where it was.
//
//	go run ./examples/workflow/order -id 1001
//	go run ./examples/workflow/order -id 1002 -to atlantis    # nobody ships there
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/cayhq/cay/examples/workflow/database"
	"github.com/cayhq/cay/workflow"
)

// Order is a customer's order.
type Order struct {
	ID    string
	Items []string
	To    string // where to ship it
}

// Receipt is the customer's receipt.
type Receipt struct {
	Total    int
	Tracking string
}

// ErrUndeliverable says that no shipper delivers to a place.
var ErrUndeliverable = errors.New("nobody ships there")

// order is the workflow. Its effects on the world are steps.
var order = workflow.Define("order", func(ctx workflow.Context, in Order) (receipt Receipt, err error) {
	saga := workflow.NewSaga(ctx)
	defer saga.Guard(&err) // undoes what is on it, the newest first, if err is set in the end

	// All items at one time.
	var reserved []*workflow.Future[int]
	for _, item := range in.Items {
		saga.Add("release "+item, func(ctx workflow.Context) error {
			_, err := release.Run(ctx, Item{in.ID, item})
			return err
		})
		reserved = append(reserved, reserve.Go(ctx, Item{in.ID, item}))
	}
	prices, err := workflow.All(ctx, reserved...)
	if err != nil {
		return receipt, err
	}
	for _, p := range prices {
		receipt.Total += p
	}

	saga.Add("refund", func(ctx workflow.Context) error {
		_, err := refund.Run(ctx, Payment{in.ID, receipt.Total})
		return err
	})
	if _, err := charge.Run(ctx, Payment{in.ID, receipt.Total}); err != nil {
		return receipt, err
	}

	receipt.Tracking, err = ship.Run(ctx, in)
	return receipt, err
})

// Item is an item of an order, Payment its price.
type (
	Item    struct{ Order, Name string }
	Payment struct {
		Order  string
		Amount int
	}
)

// The steps. Each step may be executed more than once, for example when the
// program is killed after the step's effect and before its result is stored. So
// every request to the outside has the step's key, by which the receiver
// recognises a repeated request.
var (
	reserve = workflow.Step("reserve", func(ctx context.Context, i Item) (int, error) {
		return 10 + len(i.Name), world.do(ctx, "reserve %s for %s", i.Name, i.Order)
	})
	release = workflow.Step("release", func(ctx context.Context, i Item) (struct{}, error) {
		return struct{}{}, world.do(ctx, "release %s for %s", i.Name, i.Order)
	})
	charge = workflow.Step("charge", func(ctx context.Context, p Payment) (struct{}, error) {
		return struct{}{}, world.do(ctx, "charge %d for %s", p.Amount, p.Order)
	}, workflow.MaxRetries(5), workflow.Timeout(time.Minute))
	refund = workflow.Step("refund", func(ctx context.Context, p Payment) (struct{}, error) {
		return struct{}{}, world.do(ctx, "refund %d for %s", p.Amount, p.Order)
	})
	ship = workflow.Step("ship", func(ctx context.Context, o Order) (string, error) {
		if o.To == "atlantis" {
			return "", workflow.Fatal(fmt.Errorf("%s: %w", o.To, ErrUndeliverable)) // no use trying again
		}
		return "T-" + o.ID, world.do(ctx, "ship %s to %s", o.ID, o.To)
	})
)

func main() {
	db := flag.String("db", "orders.db", "database: a file, or postgres://...")
	ledger := flag.String("ledger", "orders.txt", "file in which the world writes down what it was told")
	slow := flag.Duration("slow", 300*time.Millisecond, "how long the world takes for everything, to have time to kill this program")
	o := Order{Items: []string{"lamp", "chair", "table"}}
	flag.StringVar(&o.ID, "id", "1001", "order to start, or to go on with")
	flag.StringVar(&o.To, "to", "Oslo", "where to ship it")
	flag.Parse()
	world = shop{ledger: *ledger, slow: *slow, out: os.Stdout}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *db, o, os.Stdout); err != nil {
		stop()
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, db string, o Order, out io.Writer) (err error) {
	client, err := database.Open(ctx, db)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	worker := workflow.NewWorker(client, workflow.WorkerConfig{Definitions: workflow.Definitions(order)})
	if err := worker.Start(ctx); err != nil {
		return err
	}
	defer worker.Stop()

	// The key makes this the same run each time the program is started.
	r, err := order.Start(ctx, client, o, workflow.Key(o.ID))
	if err != nil {
		return err
	}
	receipt, err := r.Result(ctx)
	var failed *workflow.RunFailedError
	if errors.As(err, &failed) {
		fmt.Fprintf(out, "order %s failed, and nothing of it is left: %v\n", o.ID, failed.Cause)
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "order %s: paid %d, tracking number %s\n", o.ID, receipt.Total, receipt.Tracking)
	return nil
}
