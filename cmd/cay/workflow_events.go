package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd/protocol"
	"github.com/cayhq/cay/workflow"
)

type workflowEventsOptions struct {
	follow, data bool
	from         int64
	limit        int
}

func newWorkflowEvents(a *app, f *workflowFlags) *cobra.Command {
	var o workflowEventsOptions
	c := &cobra.Command{
		Use: "events RUN", Short: "Show a run's log",
		Long: "Show the events of a run's log. With --json they are a line each, with all their data.",
		Args: exactly(1, "one run"), ValidArgsFunction: f.completeRuns(a, 1),
	}
	fl := c.Flags()
	fl.BoolVarP(&o.follow, "follow", "f", false, "go on, as events are committed, until the run has ended")
	fl.BoolVar(&o.data, "data", false, "show inputs, results, errors and payloads, too")
	fl.Int64Var(&o.from, "from", 1, "begin with that event; the first is 1")
	fl.IntVar(&o.limit, "limit", 0, "how many at most (default all)")
	return a.verb(c, func(ctx context.Context, args []string) error {
		return f.with(ctx, a, func(b workflow.Backend) error { return o.run(ctx, a, b, args[0]) })
	})
}

func (o *workflowEventsOptions) run(ctx context.Context, a *app, b workflow.Backend, id string) error {
	if o.from < 1 {
		return &exitError{exitUsage, cay.Errorf(cay.Invalid, "--from is %d; the first event is 1", o.from)}
	}
	left := o.limit
	show := func(events []workflow.Event) (more bool, err error) {
		for i := range events {
			if err := o.print(a, &events[i]); err != nil {
				return false, err
			}
			if left--; left == 0 {
				return false, nil
			}
		}
		return true, nil
	}
	if o.follow {
		r, err := b.Follow(ctx, id, o.from)
		if err != nil {
			return err
		}
		defer r.Close() // it was only read
		return each(func() ([]workflow.Event, error) { return r.ReadEvents(ctx) }, show)
	}
	from := o.from
	return each(func() ([]workflow.Event, error) {
		events, err := b.Events(ctx, id, from, 500)
		if err == nil && len(events) == 0 {
			return nil, io.EOF
		}
		if len(events) > 0 {
			from = events[len(events)-1].Slot + 1
		}
		return events, err
	}, show)
}

// each passes the results of read to show, until show has enough or read fails.
func each[T any](read func() ([]T, error), show func([]T) (more bool, err error)) error {
	for {
		items, err := read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if more, err := show(items); err != nil || !more {
			return err
		}
	}
}

// print writes an event as a line.
func (o *workflowEventsOptions) print(a *app, e *workflow.Event) error {
	if a.json {
		enc := json.NewEncoder(a.stdout)
		enc.SetEscapeHTML(false)
		return enc.Encode(protocol.EventOf(e))
	}
	parts := []string{fmt.Sprintf("%4d", e.Slot), e.Time().Local().Format("15:04:05.000"), fmt.Sprintf("%-16s", e.Type)}
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, strings.TrimPrefix(name+" "+value, " "))
		}
	}
	add("", e.ID)
	add("", e.Name)
	switch {
	case e.Type == history.VersionMarked:
		add("version", fmt.Sprint(e.Attempt))
	case e.Type == history.StepRetrying, e.Attempt > 1 && strings.HasPrefix(e.Type.String(), "step_"):
		add("attempt", fmt.Sprint(e.Attempt))
	}
	if e.StartedAt != 0 && e.Type != history.StepStarted {
		add("took", roundText(time.Duration(e.At-e.StartedAt)*time.Millisecond))
	}
	if e.Until != 0 {
		add("until", protocol.Time(e.Until).Local().Format(time.DateTime))
	}
	add("token", e.Token)
	add("code", e.Code)
	add("reason", e.Reason)
	add("set", tagsText(e.Attributes))
	if e.Type == history.StepFailed || e.Type == history.StepRetrying || e.Type == history.RunFailed {
		add("error", short(errorText(e.Payload)))
	}
	if o.data {
		add("input", payloadText(e.Input))
		add("data", payloadText(e.Payload))
	}
	_, err := fmt.Fprintln(a.stdout, clean(strings.TrimRight(strings.Join(parts, "  "), " ")))
	return err
}

type workflowStreamOptions struct {
	follow bool
	from   int64
	limit  int
}

func newWorkflowStream(a *app, f *workflowFlags) *cobra.Command {
	var o workflowStreamOptions
	c := &cobra.Command{
		Use: "stream RUN [NAME]", Short: "Show what a run has written to a stream",
		Long: `Show what a run has written to a stream, by default the one without a name: a line of
JSON for each item, or the bytes of a stream of bytes as they are.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return usage(cmd, "it takes a run and at most one name")
			}
			return nil
		},
		ValidArgsFunction: f.completeRuns(a, 1),
	}
	fl := c.Flags()
	fl.BoolVarP(&o.follow, "follow", "f", false, "go on until the stream is closed or the run has ended")
	fl.Int64Var(&o.from, "from", 0, "begin with that item; a negative number counts from the end")
	fl.IntVar(&o.limit, "limit", 0, "how many items at most (default all)")
	return a.verb(c, func(ctx context.Context, args []string) error {
		name := ""
		if len(args) == 2 {
			name = args[1]
		}
		return f.with(ctx, a, func(b workflow.Backend) error { return o.run(ctx, a, b, args[0], name) })
	})
}

func (o *workflowStreamOptions) run(ctx context.Context, a *app, b workflow.Backend, run, name string) error {
	from, left := o.from, int64(o.limit)
	if !o.follow {
		streams, err := b.ListStreams(ctx, run)
		if err != nil {
			return err
		}
		have := int64(0)
		for _, s := range streams {
			if s.Name == name {
				have = s.Chunks
			}
		}
		if from < 0 {
			from = max(have+from, 0)
		}
		if have <= from {
			return nil
		}
		if left == 0 || have-from < left {
			left = have - from
		}
	}
	r, err := b.ReadStream(ctx, run, name, from)
	if err != nil {
		return err
	}
	defer r.Close() // it was only read
	return each(func() ([]workflow.Chunk, error) { return r.ReadChunks(ctx) }, func(chunks []workflow.Chunk) (bool, error) {
		for i := range chunks {
			if err := a.printChunk(&chunks[i]); err != nil {
				return false, err
			}
			if left--; left == 0 {
				return false, nil
			}
		}
		return true, nil
	})
}

// printChunk writes an item of a stream: a value as a line, bytes unchanged.
func (a *app) printChunk(c *workflow.Chunk) error {
	data := protocol.Payload(c.Data)
	if a.json {
		enc := json.NewEncoder(a.stdout)
		enc.SetEscapeHTML(false)
		return enc.Encode(protocol.Chunk{Index: c.Index, Data: data})
	}
	if v, ok := data.JSON(); ok {
		_, err := a.stdout.Write(append(v, '\n'))
		return err
	}
	if isTerminal(a.stdout) {
		_, err := fmt.Fprint(a.stdout, cleanLines(string(data)))
		return err
	}
	_, err := a.stdout.Write(data)
	return err
}

// cleanLines is clean for text of several lines.
func cleanLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = clean(l)
	}
	return strings.Join(lines, "\n")
}

func newWorkflowStreams(a *app, f *workflowFlags) *cobra.Command {
	c := &cobra.Command{
		Use: "streams RUN", Short: "List the streams of a run",
		Args: exactly(1, "one run"), ValidArgsFunction: f.completeRuns(a, 1),
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		return f.with(ctx, a, func(b workflow.Backend) error {
			streams, err := b.ListStreams(ctx, args[0])
			if err != nil {
				return err
			}
			if streams == nil {
				streams = []workflow.StreamInfo{}
			}
			return a.show(streams, func(w io.Writer) {
				t := newTable("NAME", "ITEMS", "CLOSED")
				for _, s := range streams {
					t.row(s.Name, fmt.Sprint(s.Chunks), yesNo(s.Closed))
				}
				t.print(w)
			})
		})
	})
}
