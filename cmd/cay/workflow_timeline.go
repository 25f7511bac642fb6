package main

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/protocol"
	"github.com/cayhq/cay/workflow"
)

func newWorkflowTimeline(a *app, f *workflowFlags) *cobra.Command {
	var data bool
	c := &cobra.Command{
		Use: "timeline RUN", Short: "Show what a run did, and how long that took",
		Long: "Show the steps, sleeps, hooks and children of a run, in the order they began: when,\nhow long they took, and how they went.",
		Args: exactly(1, "one run"), ValidArgsFunction: f.completeRuns(a, 1),
	}
	c.Flags().BoolVar(&data, "data", false, "with inputs, results and payloads")
	return a.verb(c, func(ctx context.Context, args []string) error {
		return f.with(ctx, a, func(b workflow.Backend) error {
			// Errors are payloads, too; the timeline always shows them.
			tl, err := workflowd.ReadTimeline(ctx, b, args[0], data || !a.json)
			if err != nil {
				return err
			}
			t := protocol.TimelineOf(tl)
			return a.show(t, func(w io.Writer) { printTimeline(w, t, data) })
		})
	})
}

func printTimeline(w io.Writer, t *protocol.Timeline, data bool) {
	fmt.Fprintln(w, clean(fmt.Sprintf("%s  %s  %s", functionOf(t.Run.Workflow), runStatus(t.Run), tookText(t.Run))))
	rows := newTable("START", "TOOK", "TIMELINE", "WHAT", "STATUS", "DETAILS")
	begin, end := t.Run.CreatedAt, t.Run.CompletedAt
	if end.IsZero() {
		end = time.Now()
	}
	for i := range t.Spans {
		s := &t.Spans[i]
		rows.row("+"+roundText(s.BeginsAt.Sub(begin)), spanTook(s), bar(s, begin, end), spanName(s, t.Spans), spanStatus(s), spanDetails(s, data))
	}
	rows.print(w)
}

// barWidth is the width of a whole run in characters.
const barWidth = 24

// bar shows the position of a span in its run.
func bar(s *protocol.Span, begin, end time.Time) string {
	whole := max(end.Sub(begin), 1)
	at := func(t time.Time) int { return int(barWidth * min(max(t.Sub(begin), 0), whole) / whole) }
	until := s.EndsAt
	if until.IsZero() {
		until = end
	}
	from := min(at(s.BeginsAt), barWidth-1)
	to := max(at(until), from+1)
	return strings.Repeat("·", from) + strings.Repeat("█", to-from) + strings.Repeat("·", barWidth-to)
}

func spanTook(s *protocol.Span) string {
	if s.EndsAt.IsZero() {
		return ""
	}
	return roundText(s.EndsAt.Sub(s.BeginsAt))
}

// hookTimeout matches the ids of waits for a hook with a timeout.
var hookTimeout = regexp.MustCompile(`(^wait_|/)receive\.\d+$`)

// spanName returns the name of a span; all are the spans of its run. The wait of a Receive is named
// after its hook. The log does not record the hook, so spanName takes the hook that was open when
// the wait began, and returns "a hook" if several were open.
func spanName(s *protocol.Span, all []protocol.Span) string {
	switch name := functionOf(s.Name); {
	case name != s.Name: // the ids of the Workflow SDK say nothing
		return name
	case name != "":
		return s.ID + " " + name
	case s.Kind == history.SpanWait && hookTimeout.MatchString(s.ID):
		return s.ID + " timeout of " + hookBefore(s, all)
	}
	return s.ID
}

// hookBefore returns the name of the only hook that was open when a span began: the hook's token.
// The tokens of webhooks are secret.
func hookBefore(s *protocol.Span, all []protocol.Span) string {
	name, open := "a hook", 0
	for i := range all {
		h := &all[i]
		if h.Kind != history.SpanHook || h.Status == history.SpanConflict || h.Slot >= s.Slot || !h.EndsAt.IsZero() && h.EndsAt.Before(s.BeginsAt) {
			continue
		}
		open++
		if name = h.ID; h.Token != "" && !h.Webhook {
			name = h.Token
		}
	}
	if open != 1 {
		return "a hook"
	}
	return name
}

func spanStatus(s *protocol.Span) string {
	status := string(s.Status)
	if n := len(s.Attempts); n > 1 {
		status += fmt.Sprintf(" (attempt %d)", s.Attempts[n-1].Number)
	}
	return status
}

func spanDetails(s *protocol.Span, data bool) string {
	var parts []string
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, name+" "+value)
		}
	}
	if s.Status != history.SpanCompleted && !s.Until.IsZero() {
		add("until", s.Until.Local().Format(time.DateTime))
	}
	add("token", s.Token)
	add("run", s.Run)
	if s.Version != 0 {
		add("version", fmt.Sprint(s.Version))
	}
	if n := len(s.Received); n > 0 {
		add("received", fmt.Sprint(n))
	}
	add("error", short(errorText(s.Error)))
	if data {
		add("input", payloadText(s.Input))
		add("output", payloadText(s.Output))
		add("metadata", payloadText(s.Metadata))
		for _, r := range s.Received {
			add("payload", payloadText(r.Payload))
		}
	}
	return strings.Join(parts, "  ")
}
