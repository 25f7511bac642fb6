// Welcome is the first program of docs/workflow.md: kill it while it sleeps, and
// start it again.
//
//	go run ./examples/workflow/welcome
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/sqlite"
)

var greet = workflow.Step("greet", func(ctx context.Context, name string) (string, error) {
	fmt.Println("greeting", name) // the world is touched in steps
	return "Hello, " + name, nil
})

var welcome = workflow.Define("welcome", func(ctx workflow.Context, name string) (string, error) {
	text, err := greet.Run(ctx, name)
	if err != nil {
		return "", err
	}
	if err := workflow.Sleep(ctx, 5*time.Second); err != nil { // kill it now, and start it again
		return "", err
	}
	return text + ". Welcome!", nil
})

func run(ctx context.Context) error {
	client, err := sqlite.Open(ctx, "welcome.db", sqlite.Options{})
	if err != nil {
		return err
	}
	defer client.Close()
	worker := workflow.NewWorker(client, workflow.WorkerConfig{Definitions: workflow.Definitions(welcome)})
	if err := worker.Start(ctx); err != nil {
		return err
	}
	defer worker.Stop()
	r, err := welcome.Start(ctx, client, "Ada", workflow.Key("ada")) // the same run at each start
	if err != nil {
		return err
	}
	text, err := r.Result(ctx)
	fmt.Println(text)
	return err
}

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
