// Code-agent makes a program of a sentence. A model writes the program, and another
// model writes tests. Both run in a sandbox without network, and while the tests
// fail, the first model is shown the failures and fixes the program. Kill this
// program or the daemon at any moment and start it again: no model is paid twice
// for the same answer, and no sandbox is left.
//
//	cay serve &
//	go run ./examples/code-agent -prompt 'add two numbers'
//
// Without -prompt it serves:
//
//	curl -d '{"prompt": "add two numbers"}' http://127.0.0.1:8080/programs
//
// It finds the daemon as the command line does: by CAY_URL and CAY_TOKEN, else on
// this machine; its runs can be seen there, with cay workflow list.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/cayhq/cay/workflow"
)

func main() {
	var o options
	flag.StringVar(&o.prompt, "prompt", "", "make this program, print each step, and end")
	flag.StringVar(&o.key, "key", "", "with -prompt: go on with the run that was started with this key")
	flag.StringVar(&o.listen, "listen", "127.0.0.1:8080", "serve here")
	flag.StringVar(&o.coder, "coder", env("CODER_MODEL", "cay/scripted"), "model that writes programs ($CODER_MODEL)")
	flag.StringVar(&o.tester, "tester", env("TESTER_MODEL", "cay/scripted"), "model that writes tests ($TESTER_MODEL)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, os.Stdout); err != nil {
		stop()
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type options struct{ prompt, key, listen, coder, tester string }

func env(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

func run(ctx context.Context, o options, out io.Writer) (err error) {
	client, err := workflow.Connect(workflow.RemoteOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	worker := workflow.NewWorker(client, workflow.WorkerConfig{
		Definitions: workflow.Definitions(codeAgent),
		StopTimeout: time.Second, // commands go on without this program
	})
	if err := worker.Start(ctx); err != nil {
		return err
	}
	defer worker.Stop()
	if o.prompt == "" {
		return serve(ctx, client, o, out)
	}
	r, err := codeAgent.Start(ctx, client, Request{Prompt: o.prompt, Coder: o.coder, Tester: o.tester}, workflow.Key(o.key))
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "run", r.ID)
	return show(ctx, client, r, out)
}

// serve serves until ctx ends.
func serve(ctx context.Context, client *workflow.Client, o options, out io.Writer) error {
	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return err
	}
	s := &http.Server{
		Handler:           (&server{client: client, coder: o.coder, tester: o.tester}).routes(),
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	fmt.Fprintf(out, "listening on http://%s\n", l.Addr())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return s.Close()
	}
}
