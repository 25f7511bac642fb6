package agent_test

import (
	"io"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// Commands that end at SIGTERM, or on a terminal at SIGHUP, are not killed; other
// commands are killed, and named. Afterwards no command starts, but the output of the
// commands can be read.
func TestQuiesce(t *testing.T) {
	t.Parallel()
	// Commands would inherit an ignored SIGHUP, as under nohup.
	hangUp := make(chan os.Signal, 1)
	signal.Notify(hangUp, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(hangUp) })
	c, _ := serve(t, nil)
	started := func(p sandbox.CommandParams) string {
		t.Helper()
		cmd, err := c.Start(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.Output(t.Context(), cmd.ID, sandbox.OutputParams{Follow: true})
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		if _, err := out.Next(); err != nil {
			t.Fatal(err)
		}
		return cmd.ID
	}
	polite := started(sandbox.CommandParams{Argv: []string{"sh", "-c", "trap 'echo bye; exit 3' TERM; echo hi; while :; do sleep 0.01; done"}})
	shell := started(sandbox.CommandParams{Argv: []string{"sh", "-c", "trap '' TERM; echo hi; sleep 1000"}, PTY: &sandbox.WindowSize{Cols: 80, Rows: 24}})
	if q, err := c.Quiesce(t.Context(), time.Minute); err != nil || q.Killed != 0 {
		t.Fatalf("%+v, %v", q, err)
	}
	if h, err := c.Health(t.Context()); err != nil || !h.Quiesced || h.Commands != 0 {
		t.Errorf("%+v, %v", h, err)
	}
	if _, err := c.Start(t.Context(), sandbox.CommandParams{Argv: []string{"true"}}); cay.CodeOf(err) != cay.Conflict {
		t.Errorf("starting: %v", err)
	}
	if cmd, err := c.GetCommand(t.Context(), polite); err != nil || cmd.Exit == nil || cmd.Exit.Code != 3 {
		t.Errorf("%+v, %v", cmd, err)
	}
	if cmd, err := c.GetCommand(t.Context(), shell); err != nil || cmd.Exit == nil || cmd.Exit.Signal != 1 {
		t.Errorf("%+v, %v", cmd, err)
	}
	out, err := c.Output(t.Context(), polite, sandbox.OutputParams{})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	var said string
	for {
		ev, err := out.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if ev.Stream == sandbox.Stdout { // on the other, shells tell of signals
			said += string(ev.Data)
		}
	}
	if said != "hi\nbye\n" {
		t.Errorf("it said %q", said)
	}
	if err := c.Unquiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	stubborn := started(sandbox.CommandParams{Argv: []string{"sh", "-c", "trap '' TERM; echo hi; while :; do sleep 1000; done", "stubborn"}})
	q, err := c.Quiesce(t.Context(), 0)
	if err != nil || q.Killed != 1 || len(q.Named) != 1 || q.Named[0].Command == "" {
		t.Fatalf("%+v, %v", q, err)
	}
	if cmd, err := c.GetCommand(t.Context(), stubborn); err != nil || cmd.Exit == nil || cmd.Exit.Signal != 9 || cmd.PID != q.Named[0].PID {
		t.Errorf("%+v, %v", cmd, err)
	}
	// A quiesced guest that becomes another machine starts commands again.
	if _, err := c.Identify(t.Context(), become(), "new"); err != nil {
		t.Fatal(err)
	}
	wait(t, c, sandbox.CommandParams{Argv: []string{"true"}})
}

func TestQuiesce_invalid(t *testing.T) {
	t.Parallel()
	c, _ := serve(t, nil)
	if _, err := c.Quiesce(t.Context(), -1); cay.CodeOf(err) != cay.Invalid {
		t.Error(err)
	}
}
