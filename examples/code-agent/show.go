package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/sandbox"
	"github.com/cayhq/cay/workflow"
)

// doing describes the steps that people may want to see.
var doing = map[string]string{
	"sandbox.create":      "make a sandbox",
	"sandbox.write-files": "write solution.py and its tests",
	"sandbox.write-file":  "install",
	"sandbox.run":         "run",
	"sandbox.snapshot":    "keep what is installed",
	"sandbox.set-network": "cut it off from all networks",
	"sandbox.start":       "start",
	"sandbox.wait":        "run it to its end",
	"sandbox.delete":      "delete the sandbox",
	agent.StepModel:       "ask a model",
}

// show prints each step of a run when it ends, slow steps also when they begin,
// and finally the program.
func show(ctx context.Context, client *workflow.Client, r *workflow.Run[*Report], out io.Writer) error {
	p := printer{client: client, out: out}
	for e, err := range client.Follow(ctx, r.ID, 1) {
		if err != nil {
			return err
		}
		if err := p.print(&e); err != nil {
			return err
		}
	}
	report, err := r.Result(ctx)
	if err != nil {
		return err
	}
	source := "made for later runs"
	if report.Reused {
		source = "of an earlier run"
	}
	fmt.Fprintf(out, "\nsolution.py: attempt %d of %d, in a sandbox of the snapshot %s (%s), %d tokens, $%v\n\n%s",
		report.Attempts, maxAttempts, report.Prepared, source, report.Usage.Input+report.Usage.Output, report.Usage.Cost, report.Code)
	return nil
}

type printer struct {
	client *workflow.Client
	out    io.Writer
	begun  time.Time
}

func (p *printer) print(e *workflow.Event) error {
	if p.begun.IsZero() {
		p.begun = e.Time()
	}
	name := strings.TrimPrefix(e.ID, "step_")
	name = name[:max(0, strings.LastIndexByte(name, '.'))] // without its number
	what, ok := doing[name]
	if !ok {
		return nil
	}
	line := func(state, more string) {
		fmt.Fprintf(p.out, "%6.1fs  %-6s  %s%s\n", e.Time().Sub(p.begun).Seconds(), state, what, more)
	}
	switch e.Type.String() {
	case "step_started":
		line("...", "")
	case "step_retrying":
		line("again", fmt.Sprintf(": attempt %d failed: %v", e.Attempt, p.client.Err(e.Payload)))
	case "step_failed":
		err := p.client.Err(e.Payload)
		if name == "sandbox.create" && errors.Is(err, &cay.Error{Code: cay.NotFound}) {
			line("none", " of what an earlier run has installed: there was none")
			return nil
		}
		line("failed", fmt.Sprintf(": %v", err))
	case "step_completed":
		switch name {
		case agent.StepModel:
			var answer struct {
				Agent, Model string
				Message      agent.Message
			}
			if err := p.client.Value(e.Payload, &answer); err != nil {
				return err
			}
			line("done", fmt.Sprintf(": %s (%s) wrote %d lines", answer.Agent, answer.Model, strings.Count(answer.Message.Text(), "\n")))
		case "sandbox.wait":
			var result struct {
				Stdout, Stderr string
				Exit           sandbox.Exit
			}
			if err := p.client.Value(e.Payload, &result); err != nil {
				return err
			}
			line("done", fmt.Sprintf(": exit status %d", result.Exit.Code))
			for text := range strings.Lines(result.Stdout + result.Stderr) {
				fmt.Fprintf(p.out, "                 | %s\n", strings.TrimRight(text, "\n"))
			}
		default:
			line("done", "")
		}
	}
	return nil
}
