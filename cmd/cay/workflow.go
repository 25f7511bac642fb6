package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/protocol"
	"github.com/cayhq/cay/workflow"
)

const workflowHelp = `Work with the runs of durable workflows. RUN is a run's id.

They are those of the daemon; with --db, or $CAY_WORKFLOW_DB, those of a program
that keeps its runs itself: the path of its SQLite database, or the
"postgres://..." of one it shares. While a program has the SQLite database open,
it answers; otherwise the database is opened, and nothing runs meanwhile.

Times are given as 2026-11-20, 2026-11-20T12:00:00Z, or as 2h for two hours ago.
With --json events and streams are a line of JSON each, everything else one value.`

// workflowFlags name the database or the project of the runs.
type workflowFlags struct{ db, project string }

func newWorkflowCommand(a *app) *cobra.Command {
	var f workflowFlags
	c := newNoun("workflow", "Work with durable workflows", workflowHelp,
		newWorkflowList(a, &f), newWorkflowGet(a, &f), newWorkflowStart(a, &f), newWorkflowWait(a, &f),
		newWorkflowEvents(a, &f), newWorkflowTimeline(a, &f), newWorkflowStream(a, &f), newWorkflowStreams(a, &f),
		newWorkflowCancel(a, &f), newWorkflowWake(a, &f), newWorkflowRerun(a, &f), newWorkflowTag(a, &f), newWorkflowDelete(a, &f),
		newWorkflowHooks(a, &f), newWorkflowResume(a, &f), newWorkflowSchedule(a, &f), newWorkflowLimit(a, &f), newWorkflowDeployments(a, &f),
	)
	c.Aliases = []string{"wf"}
	p := c.PersistentFlags()
	p.StringVar(&f.db, "db", "", "database of a program of its own: a path or a postgres:// URL (default $CAY_WORKFLOW_DB, else the daemon's)")
	p.StringVar(&f.project, "project", "", "project of the daemon, by id (default the token's own)")
	p.SortFlags = false
	return c
}

// with calls do with the backend of the runs.
func (f *workflowFlags) with(ctx context.Context, a *app, do func(b workflow.Backend) error) error {
	db := f.db
	if db == "" {
		db = os.Getenv("CAY_WORKFLOW_DB")
	}
	b, err := f.open(ctx, a, db)
	if err != nil {
		return err
	}
	return errors.Join(do(b), b.Close())
}

func (f *workflowFlags) open(ctx context.Context, a *app, db string) (workflow.Backend, error) {
	if db == "" {
		o := a.options()
		return workflow.Dial(workflow.RemoteOptions{URL: o.URL, Token: o.Token, Team: o.Team, Project: f.project})
	}
	if f.project != "" {
		return nil, &exitError{exitUsage, cay.Errorf(cay.Invalid, "--project is of a daemon; it does not go with --db")}
	}
	if isPostgres(db) {
		return openWorkflows(ctx, db)
	}
	// A program may start or stop serving the database at any moment. The loop tries a
	// second time, because the database may be locked by a program that has just started,
	// or unserved since a program has just stopped.
	for attempt := 1; ; attempt++ {
		b, err := workflowd.DialSocket(ctx, workflowd.SocketPath(db))
		if cay.CodeOf(err) != cay.NotFound {
			return b, err
		}
		if _, err := os.Stat(db); err != nil {
			return nil, cay.Errorf(cay.NotFound, "there is no database %s", db).WithHint("--db takes the path a program gives to sqlite.Open")
		}
		if b, err = openWorkflows(ctx, db); err == nil || attempt == 2 || cay.CodeOf(err) != cay.Conflict {
			return b, err
		}
	}
}

func isPostgres(db string) bool {
	return strings.HasPrefix(db, "postgres://") || strings.HasPrefix(db, "postgresql://")
}

// completeRuns offers the ids of the newest runs for the first n arguments;
// n < 0 for all.
func (f *workflowFlags) completeRuns(a *app, n int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if n >= 0 && len(args) >= n {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var ids []string
		err := f.with(cmd.Context(), a, func(b workflow.Backend) error {
			page, err := b.ListRuns(cmd.Context(), workflow.Query{Limit: 50})
			if err != nil {
				return err
			}
			for _, r := range page.Items {
				ids = append(ids, r.ID+"\t"+clean(functionOf(r.Workflow))+" "+string(r.Status))
			}
			return nil
		})
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return ids, cobra.ShellCompDirectiveNoFileComp
	}
}

// runFilter are the flags that select runs.
type runFilter struct {
	status       []string
	workflow     string
	attributes   []string
	key, parent  string
	schedule     string
	since, until timeFlag
}

var runStatuses = []string{
	string(workflow.StatusPending), string(workflow.StatusRunning), string(workflow.StatusCompleted),
	string(workflow.StatusFailed), string(workflow.StatusCancelled),
}

func (f *runFilter) register(c *cobra.Command) {
	fl := c.Flags()
	fl.StringSliceVar(&f.status, "status", nil, "only those in these states: "+strings.Join(runStatuses, ", "))
	fl.StringVar(&f.workflow, "workflow", "", "only those of this workflow")
	fl.StringArrayVar(&f.attributes, "attribute", nil, "only those with this attribute, as NAME=VALUE, or NAME for any value")
	fl.StringVar(&f.key, "key", "", "only that with this idempotency key")
	fl.StringVar(&f.parent, "parent", "", "only those this run has started")
	fl.StringVar(&f.schedule, "schedule", "", "only those this schedule has started")
	fl.Var(&f.since, "since", "only those created since then")
	fl.Var(&f.until, "until", "only those created before then")
	mustComplete(c, "status", runStatuses...)
}

func (f *runFilter) query() (workflow.Query, error) {
	q := workflow.Query{
		Workflow: f.workflow, Key: f.key, Parent: f.parent, Schedule: f.schedule,
		Since: protocol.Millis(f.since.time), Until: protocol.Millis(f.until.time),
	}
	for _, s := range f.status {
		if !slices.Contains(runStatuses, s) {
			return q, &exitError{exitUsage, cay.Errorf(cay.Invalid, "--status %q is not one of %s", s, strings.Join(runStatuses, ", "))}
		}
		q.Statuses = append(q.Statuses, workflow.Status(s))
	}
	var err error
	var pairs []string
	for _, a := range f.attributes {
		if a != "" && !strings.Contains(a, "=") {
			q.HasAttributes = append(q.HasAttributes, a)
		} else {
			pairs = append(pairs, a)
		}
	}
	q.Attributes, err = parseAttributes(pairs)
	return q, err
}

// parseAttributes reads NAME=VALUE pairs.
func parseAttributes(pairs []string) (map[string]string, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	out := make(map[string]string)
	for _, pair := range pairs {
		k, v, ok := strings.Cut(pair, "=")
		if !ok || k == "" {
			return nil, &exitError{exitUsage, cay.Errorf(cay.Invalid, "attribute %q is not NAME=VALUE", pair)}
		}
		out[k] = v
	}
	return out, nil
}

// timeFlag is a time, or a time ago.
type timeFlag struct {
	text string
	time time.Time
}

func (f *timeFlag) String() string { return f.text }

func (f *timeFlag) Set(text string) error {
	t, err := parseTime(text, time.Now(), -1)
	f.text, f.time = text, t
	return err
}

func (f *timeFlag) Type() string { return "time" }

// parseTime reads a time, or its distance from now, in the direction of sign.
func parseTime(text string, now time.Time, sign time.Duration) (time.Time, error) {
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02"} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t, nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return time.Time{}, fmt.Errorf("%q is neither a time such as 2026-11-20T12:00:00Z nor a duration such as 2h", text)
	}
	return now.Add(sign * d), nil
}

const workflowListHelp = `List runs, newest first.

Workflows of the Workflow SDK are listed by their function; "cay workflow get" and
--json show the whole name, which --workflow takes.

With --follow the newest ones come last, and after them a line for each run that is
new or changes: at most a few a second of one run. A run that was deleted, or is not
what was asked for any more, is said to be gone. It goes on until it is interrupted.
With --json each line is an object: {"type":"changed","id":...,"run":{...}} or
{"type":"deleted","id":...}.`

type workflowListOptions struct {
	filter     runFilter
	limit      int
	all, quiet bool
	oldest     bool
	follow     bool
}

func newWorkflowList(a *app, f *workflowFlags) *cobra.Command {
	var o workflowListOptions
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List runs", Long: workflowListHelp,
		Example: `  cay workflow list --status running,pending --workflow order
  cay workflow list --follow --attribute '$agent'
  cay workflow list --status failed --since 24h --attribute customer=42
  cay workflow list --db ./app.db`,
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	o.filter.register(c)
	fl := c.Flags()
	fl.IntVar(&o.limit, "limit", 50, "how many at most")
	fl.BoolVarP(&o.all, "all", "a", false, "all of them")
	fl.BoolVar(&o.oldest, "oldest", false, "oldest first")
	fl.BoolVarP(&o.quiet, "quiet", "q", false, "print ids only")
	fl.BoolVarP(&o.follow, "follow", "f", false, "go on, with a line for each run that is new, changes, or is gone")
	return a.verb(c, func(ctx context.Context, _ []string) error {
		return f.with(ctx, a, func(b workflow.Backend) error { return o.run(ctx, a, b) })
	})
}

func (o *workflowListOptions) run(ctx context.Context, a *app, b workflow.Backend) error {
	q, err := o.filter.query()
	if err != nil {
		return err
	}
	if o.limit < 1 {
		return &exitError{exitUsage, cay.Errorf(cay.Invalid, "--limit is %d; it must be at least 1", o.limit)}
	}
	q.Ascending = o.oldest
	if o.follow {
		if o.oldest {
			return &exitError{exitUsage, cay.Errorf(cay.Invalid, "--oldest does not go with --follow, which ends with the newest")}
		}
		return o.watch(ctx, a, b, q)
	}
	runs, more, err := o.list(ctx, b, q)
	if err != nil {
		return err
	}
	err = a.show(runs, func(w io.Writer) {
		if o.quiet {
			for _, r := range runs {
				fmt.Fprintln(w, r.ID)
			}
			return
		}
		t := newTable("ID", "WORKFLOW", "STATUS", "CREATED", "TOOK", "EVENTS", "ATTRIBUTES")
		for _, r := range runs {
			t.row(r.ID, functionOf(r.Workflow), runStatus(&r), agoText(r.CreatedAt), tookText(&r), fmt.Sprint(r.Events), tagsText(r.Attributes))
		}
		t.print(w)
	})
	a.note(!more || a.json || o.quiet, "there are more; --all shows them")
	return err
}

// list reads as many runs as requested, and reports whether there are more.
func (o *workflowListOptions) list(ctx context.Context, b workflow.Backend, q workflow.Query) (runs []protocol.Run, more bool, err error) {
	runs, more = []protocol.Run{}, true
	for more && (o.all || len(runs) < o.limit) {
		q.Limit = 1000
		if !o.all {
			q.Limit = min(q.Limit, o.limit-len(runs))
		}
		page, err := b.ListRuns(ctx, q)
		if err != nil {
			return nil, false, err
		}
		for i := range page.Items {
			runs = append(runs, *protocol.RunOf(&page.Items[i]))
		}
		q.Cursor, more = page.Cursor, page.Cursor != ""
	}
	return runs, more, nil
}

// runStatus returns a run's status for people.
func runStatus(r *protocol.Run) string {
	switch {
	case r.Status == history.Failed && r.ErrorCode != "" && r.ErrorCode != history.CodeUser:
		return fmt.Sprintf("%s (%s)", r.Status, r.ErrorCode)
	case r.Status == history.Running && r.CancelRequested:
		return "running (cancelling)"
	case r.Status == history.Pending && !r.NotBefore.IsZero():
		return "pending (" + agoText(r.NotBefore) + ")"
	}
	return string(r.Status)
}

// tookText returns the duration of a run, so far if it still runs.
func tookText(r *protocol.Run) string {
	switch {
	case r.StartedAt.IsZero():
		return ""
	case r.CompletedAt.IsZero():
		return roundText(time.Since(r.StartedAt))
	}
	return roundText(r.CompletedAt.Sub(r.StartedAt))
}

// roundText returns a duration, rounded for people.
func roundText(d time.Duration) string {
	switch {
	case d < 0:
		d = 0
	case d > time.Hour:
		d = d.Round(time.Minute)
	case d > time.Minute:
		d = d.Round(time.Second)
	case d > time.Second:
		d = d.Round(10 * time.Millisecond)
	default:
		d = d.Round(time.Millisecond)
	}
	return d.String()
}

// shownRun is a run with its decoded result.
type shownRun struct {
	*protocol.Run
	Input  protocol.Payload `json:"input,omitempty"`
	Output protocol.Payload `json:"output,omitempty"`
	Error  protocol.Payload `json:"error,omitempty"`
}

// withPayloads reads a run's input, and its output or error, from its log.
func withPayloads(ctx context.Context, b workflow.Backend, run *workflow.RunInfo) (*shownRun, error) {
	s := &shownRun{Run: protocol.RunOf(run)}
	first, err := b.Events(ctx, run.ID, 1, 1)
	if err != nil {
		return nil, err
	}
	if len(first) > 0 {
		s.Input = first[0].Payload
	}
	if !run.Status.Terminal() {
		return s, nil
	}
	last, err := b.Events(ctx, run.ID, run.Events, 1)
	if err != nil {
		return nil, err
	}
	for _, e := range last {
		switch e.Type {
		case history.RunCompleted:
			s.Output = e.Payload
		case history.RunFailed:
			s.Error = e.Payload
		}
	}
	return s, nil
}

func newWorkflowGet(a *app, f *workflowFlags) *cobra.Command {
	c := &cobra.Command{
		Use: "get RUN", Short: "Show a run", Long: "Show a run, what it was given, and what it returned.",
		Args: exactly(1, "one run"), ValidArgsFunction: f.completeRuns(a, 1),
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		return f.with(ctx, a, func(b workflow.Backend) error {
			run, err := b.GetRun(ctx, args[0])
			if err != nil {
				return err
			}
			s, err := withPayloads(ctx, b, run)
			if err != nil {
				return err
			}
			delivery, err := f.deliveryText(ctx, a, run)
			if err != nil {
				return err
			}
			return a.show(s, func(w io.Writer) { describeRun(w, s, delivery) })
		})
	})
}

// describeRun prints a run; delivery is the state of the run's message in the queue, if
// another language's SDK executes the run.
func describeRun(w io.Writer, s *shownRun, delivery string) {
	recoveries := ""
	if s.Recoveries > 0 {
		recoveries = fmt.Sprint(s.Recoveries)
	}
	fields(w,
		"id", s.ID, "workflow", s.Workflow, "status", runStatus(s.Run), "reason", s.CancelReason,
		"created", agoText(s.CreatedAt), "not before", agoText(s.NotBefore), "started", agoText(s.StartedAt), "took", tookText(s.Run),
		"deleted", agoText(s.ExpiresAt),
		"runtime", string(s.Kind), "delivery", delivery, "key", s.Key, "group", s.Group, "build", s.Build, "attributes", tagsText(s.Attributes),
		"parent", s.Parent, "continues", s.Previous, "continued by", s.Next,
		"recoveries", recoveries, "events", fmt.Sprint(s.Events),
		"input", payloadText(s.Input), "output", payloadText(s.Output), "error", errorText(s.Error),
	)
}

// payloadText returns the content of an envelope for people.
func payloadText(p protocol.Payload) string {
	if len(p) == 0 {
		return ""
	}
	v := p.Value()
	if len(p) >= 4 && string(p[:4]) == "encr" {
		return fmt.Sprintf("(%s, encrypted)", bytesText(int64(len(p))))
	}
	return string(v)
}

// errorText returns the error in an envelope, for people.
func errorText(p protocol.Payload) string {
	var e struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(p.Value(), &e) == nil && e.Message != "" {
		return e.Message
	}
	return payloadText(p)
}
