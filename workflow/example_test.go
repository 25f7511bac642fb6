package workflow_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/sqlite"
)

// start opens a database and executes workflows, until stop is called.
func start(definitions ...workflow.Workflow) (client *workflow.Client, stop func()) {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "workflow")
	if err != nil {
		log.Fatal(err)
	}
	client, err = sqlite.Open(ctx, filepath.Join(dir, "runs.db"), sqlite.Options{})
	if err != nil {
		log.Fatal(err)
	}
	worker := workflow.NewWorker(client, workflow.WorkerConfig{Definitions: definitions})
	if err := worker.Start(ctx); err != nil {
		log.Fatal(err)
	}
	return client, func() {
		worker.Stop()
		_ = client.Close()
		_ = os.RemoveAll(dir)
	}
}

func ExampleDefine() {
	greet := workflow.Step("greet", func(_ context.Context, name string) (string, error) {
		return "Hello, " + name, nil
	})
	welcome := workflow.Define("welcome", func(ctx workflow.Context, name string) (string, error) {
		text, err := greet.Run(ctx, name)
		if err != nil {
			return "", err
		}
		if err := workflow.Sleep(ctx, 10*time.Millisecond); err != nil {
			return "", err
		}
		return text + ". Welcome!", nil
	})

	client, stop := start(welcome)
	defer stop()
	run, err := welcome.Start(context.Background(), client, "Ada")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(run.Result(context.Background()))
	// Output: Hello, Ada. Welcome! <nil>
}

// A person is asked, and has a day to answer.
func ExampleNewHook() {
	type answer struct{ Yes bool }
	asked := make(chan struct{}) // so that the example knows when the question was asked
	ask := workflow.Step("ask", func(context.Context, string) (bool, error) {
		close(asked)
		return true, nil
	})
	approval := workflow.Define("approval", func(ctx workflow.Context, order string) (string, error) {
		hook, err := workflow.NewHook[answer](ctx, "approve:"+order)
		if err != nil {
			return "", err
		}
		if _, err := ask.Run(ctx, order); err != nil {
			return "", err
		}
		a, err := hook.Receive(ctx, 24*time.Hour)
		switch {
		case errors.Is(err, workflow.ErrTimeout):
			return "nobody answered", nil
		case err != nil:
			return "", err
		case !a.Yes:
			return "refused", nil
		}
		return "approved", nil
	})

	ctx := context.Background()
	client, stop := start(approval)
	defer stop()
	run, err := approval.Start(ctx, client, "4711")
	if err != nil {
		log.Fatal(err)
	}
	<-asked
	if err := workflow.ResumeHook(ctx, client, "approve:4711", answer{Yes: true}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(run.Result(ctx))
	// Output: approved <nil>
}

// Two concurrent steps, with a common time limit.
func ExampleAll() {
	price := workflow.Step("price", func(_ context.Context, shop string) (int, error) { return len(shop), nil })
	compare := workflow.Define("compare", func(ctx workflow.Context, shops []string) (int, error) {
		ctx, cancel := workflow.WithTimeout(ctx, time.Minute)
		defer cancel()
		var asked []*workflow.Future[int]
		for _, shop := range shops {
			asked = append(asked, price.Go(ctx, shop))
		}
		prices, err := workflow.All(ctx, asked...)
		if err != nil {
			return 0, err
		}
		best := prices[0]
		for _, p := range prices {
			best = min(best, p)
		}
		return best, nil
	})

	client, stop := start(compare)
	defer stop()
	run, err := compare.Start(context.Background(), client, []string{"corner shop", "market"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(run.Result(context.Background()))
	// Output: 6 <nil>
}

// Bookings are undone when a later booking fails.
func ExampleSaga() {
	book := workflow.Step("book", func(_ context.Context, what string) (string, error) {
		if what == "hotel" {
			return "", workflow.Fatal(errors.New("no room"))
		}
		return "ticket", nil
	})
	cancel := workflow.Step("cancel", func(_ context.Context, booking string) (bool, error) {
		fmt.Println("cancelled:", booking)
		return true, nil
	})
	trip := workflow.Define("trip", func(ctx workflow.Context, _ string) (_ string, err error) {
		saga := workflow.NewSaga(ctx)
		defer saga.Guard(&err)
		flight, err := book.Run(ctx, "flight")
		if err != nil {
			return "", err
		}
		saga.Add("flight", func(ctx workflow.Context) error {
			_, err := cancel.Run(ctx, flight)
			return err
		})
		return book.Run(ctx, "hotel")
	})

	client, stop := start(trip)
	defer stop()
	run, err := trip.Start(context.Background(), client, "Paris")
	if err != nil {
		log.Fatal(err)
	}
	_, err = run.Result(context.Background())
	fmt.Println(err)
	// Output:
	// cancelled: ticket
	// workflow trip failed: step book failed: no room
}
