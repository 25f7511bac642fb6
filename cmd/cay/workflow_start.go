package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/workflowd/protocol"
	"github.com/cayhq/cay/workflow"
)

// maxInput bounds a value that is read from standard input, in bytes.
const maxInput = 100 << 20

// inputValue returns the envelope of a JSON value given as an argument, "-" for
// standard input.
func (a *app) inputValue(text string) ([]byte, error) {
	value := []byte(text)
	if text == "-" {
		var err error
		if value, err = io.ReadAll(io.LimitReader(a.stdin, maxInput+1)); err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		if len(value) > maxInput {
			return nil, cay.Errorf(cay.TooLarge, "standard input has more than %s", bytesText(maxInput))
		}
	}
	var out bytes.Buffer
	out.WriteString("json")
	if err := json.Compact(&out, value); err != nil {
		return nil, &exitError{exitUsage, cay.Errorf(cay.Invalid, "%s is not JSON: %w", short(string(value)), err).
			WithHint(`write strings as '"text"'`)}
	}
	return out.Bytes(), nil
}

type workflowStartOptions struct {
	key, group, build, id string
	priority              int
	attributes            []string
	at                    futureFlag
	wait                  bool
}

// futureFlag is a time, or a time from now.
type futureFlag struct{ timeFlag }

func (f *futureFlag) Set(text string) error {
	t, err := parseTime(text, time.Now(), 1)
	f.text, f.time = text, t
	return err
}

const startRunHelp = `Start a run, and print its id. INPUT is JSON, "-" for standard input.

With --wait, wait until the run has ended and print what it returned, as JSON; a
run that failed or was cancelled is an error.`

func newWorkflowStart(a *app, f *workflowFlags) *cobra.Command {
	var o workflowStartOptions
	c := &cobra.Command{
		Use: "start WORKFLOW [INPUT]", Short: "Start a run", Long: startRunHelp,
		Example: `  cay workflow start order '{"id": 42}' --key order-42 --wait
  cay workflow start report --at 2026-12-01T06:00:00Z`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return usage(cmd, "it takes a workflow and at most one input")
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	fl := c.Flags()
	fl.StringVar(&o.key, "key", "", "idempotency key: if there is a run of the workflow with it, print that one's id")
	fl.StringVar(&o.group, "group", "", "group its workflow's limits count it in")
	fl.IntVar(&o.priority, "priority", 0, "runs of a higher one start first")
	fl.StringVar(&o.build, "build", "", "only workers of that build run it")
	fl.StringVar(&o.id, "id", "", "id of the run (default a new one)")
	fl.StringArrayVar(&o.attributes, "attribute", nil, "set an attribute, as NAME=VALUE")
	fl.Var(&o.at, "at", "start no earlier: a time, or 2h for in two hours")
	fl.BoolVarP(&o.wait, "wait", "w", false, "wait for its result and print that")
	return a.verb(c, func(ctx context.Context, args []string) error { return o.run(ctx, a, f, args) })
}

func (o *workflowStartOptions) run(ctx context.Context, a *app, f *workflowFlags, args []string) error {
	p := workflow.NewRun{
		ID: o.id, Workflow: args[0], Key: o.key, Group: o.group, Priority: o.priority, Build: o.build, StartAt: o.at.time,
	}
	var err error
	if p.Attributes, err = parseAttributes(o.attributes); err != nil {
		return err
	}
	input := "null"
	if len(args) == 2 {
		input = args[1]
	}
	if p.Input, err = a.inputValue(input); err != nil {
		return err
	}
	return f.with(ctx, a, func(b workflow.Backend) error {
		run, created, err := b.CreateRun(ctx, p)
		if err != nil {
			return err
		}
		if o.wait {
			return a.showResult(ctx, b, run.ID)
		}
		a.note(created || a.json, "it was started before, with the same key")
		r := protocol.RunOf(run)
		return a.show(r, func(w io.Writer) { fmt.Fprintln(w, r.ID) })
	})
}

// showResult waits for a run and prints its result.
func (a *app) showResult(ctx context.Context, b workflow.Backend, id string) error {
	run, err := b.WaitRun(ctx, id)
	if err != nil {
		return err
	}
	s, err := withPayloads(ctx, b, run)
	if err != nil {
		return err
	}
	// The last continuation of the run returns the run's result.
	for s.Next != "" {
		if run, err = b.WaitRun(ctx, s.Next); err != nil {
			return err
		}
		if s, err = withPayloads(ctx, b, run); err != nil {
			return err
		}
	}
	if a.json || run.Status == workflow.StatusCompleted {
		err = a.show(s, func(w io.Writer) {
			if text := payloadText(s.Output); text != "" {
				fmt.Fprintln(w, clean(text))
			}
		})
	}
	switch {
	case err != nil:
		return err
	case run.Status == workflow.StatusFailed:
		return cay.Errorf(cay.Conflict, "run %s failed (%s): %s", run.ID, run.ErrorCode, errorText(s.Error))
	case run.Status == workflow.StatusCancelled && run.CancelReason != "":
		return cay.Errorf(cay.Conflict, "run %s was cancelled: %s", run.ID, run.CancelReason)
	case run.Status == workflow.StatusCancelled:
		return cay.Errorf(cay.Conflict, "run %s was cancelled", run.ID)
	}
	return nil
}

func newWorkflowWait(a *app, f *workflowFlags) *cobra.Command {
	c := &cobra.Command{
		Use: "wait RUN", Aliases: []string{"result"}, Short: "Wait for a run's result",
		Long: "Wait until a run has ended, and print what it returned, as JSON. A run that failed\nor was cancelled is an error.",
		Args: exactly(1, "one run"), ValidArgsFunction: f.completeRuns(a, 1),
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		return f.with(ctx, a, func(b workflow.Backend) error { return a.showResult(ctx, b, args[0]) })
	})
}

func newWorkflowRerun(a *app, f *workflowFlags) *cobra.Command {
	var p workflow.RerunParams
	var wait bool
	c := &cobra.Command{
		Use: "rerun RUN", Short: "Start a run with the input of another",
		Long: "Start a new run of the same workflow with the input of an old one, and print its id.",
		Args: exactly(1, "one run"), ValidArgsFunction: f.completeRuns(a, 1),
	}
	c.Flags().StringVar(&p.Key, "key", "", "idempotency key of the new run")
	c.Flags().StringVar(&p.Build, "build", "", "only workers of that build run it")
	c.Flags().BoolVarP(&wait, "wait", "w", false, "wait for its result and print that")
	return a.verb(c, func(ctx context.Context, args []string) error {
		return f.with(ctx, a, func(b workflow.Backend) error {
			run, err := b.RerunRun(ctx, args[0], p)
			if err != nil {
				return err
			}
			if wait {
				return a.showResult(ctx, b, run.ID)
			}
			return a.show(protocol.RunOf(run), func(w io.Writer) { fmt.Fprintln(w, run.ID) })
		})
	})
}
