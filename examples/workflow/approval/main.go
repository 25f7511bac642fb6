// Approval waits for a person: an expense is paid if somebody approves it in
// time. The wait costs nothing and outlives this program: kill it, start it again
// a day later, and answer then.
//
//	go run ./examples/workflow/approval -id 7
//	yes alice
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/examples/workflow/database"
	"github.com/cayhq/cay/workflow"
)

// Expense is an expense to be paid.
type Expense struct {
	ID     string
	Amount int
	Wait   time.Duration // how long to wait for an answer
}

// Answer is the value sent to the hook.
type Answer struct {
	Yes bool
	By  string
}

// token names the hook of an expense: everyone who knows the token may answer.
func token(id string) string { return "approve:" + id }

var expense = workflow.Define("expense", func(ctx workflow.Context, in Expense) (string, error) {
	hook, err := workflow.NewHook[Answer](ctx, token(in.ID))
	if err != nil {
		return "", err // another run waits for the same expense
	}
	if _, err := ask.Run(ctx, in); err != nil {
		return "", err
	}
	answer, err := hook.Receive(ctx, in.Wait)
	switch {
	case errors.Is(err, workflow.ErrTimeout):
		return "rejected: nobody answered in time", nil
	case err != nil:
		return "", err
	case !answer.Yes:
		return "rejected by " + answer.By, nil
	}
	if _, err := pay.Run(ctx, in); err != nil {
		return "", err
	}
	return "approved by " + answer.By, nil
})

// The steps would send a mail and money, if this were not an example.
var (
	ask = workflow.Step("ask", func(_ context.Context, e Expense) (struct{}, error) {
		fmt.Printf("please approve expense %s of %d\n", e.ID, e.Amount)
		return struct{}{}, nil
	})
	pay = workflow.Step("pay", func(_ context.Context, e Expense) (struct{}, error) {
		fmt.Printf("paid %d\n", e.Amount)
		return struct{}{}, nil
	})
)

func main() {
	db := flag.String("db", "expenses.db", "database: a file, or postgres://...")
	e := Expense{Amount: 120}
	flag.StringVar(&e.ID, "id", "7", "expense to ask for, or to go on with")
	flag.DurationVar(&e.Wait, "wait", 24*time.Hour, "how long to wait for an answer")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *db, e, os.Stdin, os.Stdout); err != nil {
		stop()
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, db string, e Expense, in io.Reader, out io.Writer) (err error) {
	client, err := database.Open(ctx, db)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	worker := workflow.NewWorker(client, workflow.WorkerConfig{Definitions: workflow.Definitions(expense)})
	if err := worker.Start(ctx); err != nil {
		return err
	}
	defer worker.Stop()

	r, err := expense.Start(ctx, client, e, workflow.Key(e.ID))
	if err != nil {
		return err
	}
	// The end of the wait is in the log, and does not change however often the program
	// is started.
	for event, err := range client.Follow(ctx, r.ID, 1) {
		if err != nil {
			return err
		}
		if event.Type.String() == "wait_created" {
			fmt.Fprintf(out, "type yes or no, and your name, until %s\n", time.UnixMilli(event.Until).Format(time.TimeOnly))
			break
		}
	}
	go answer(ctx, client, e.ID, in, out) // ends with the program, which may have a line to wait for
	decision, err := r.Result(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "expense %s: %s\n", e.ID, decision)
	return nil
}

// answer reads answers from the keyboard. Any program with access to the database, or
// a web server with a form, could do the same.
func answer(ctx context.Context, client *workflow.Client, id string, in io.Reader, out io.Writer) {
	for s := bufio.NewScanner(in); s.Scan(); {
		yes, by, _ := strings.Cut(s.Text(), " ")
		err := workflow.ResumeHook(ctx, client, token(id), Answer{Yes: yes == "yes", By: by})
		if errors.Is(err, &cay.Error{Code: cay.NotFound}) {
			fmt.Fprintln(out, "nobody waits for that")
		} else if err != nil {
			fmt.Fprintln(out, err)
		}
	}
}
