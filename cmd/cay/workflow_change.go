package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/workflowd/protocol"
	"github.com/cayhq/cay/workflow"
)

type workflowCancelOptions struct {
	filter runFilter
	p      workflow.CancelParams
	limit  int
}

const cancelRunHelp = `Cancel runs: those named, or with flags all that the flags select, at most --limit
of them, newest first. Of runs that have begun, the code is asked to end and may
first undo what it did; with --force they end at once.`

func newWorkflowCancel(a *app, f *workflowFlags) *cobra.Command {
	var o workflowCancelOptions
	c := &cobra.Command{
		Use: "cancel [RUN...]", Short: "Cancel runs", Long: cancelRunHelp,
		Example: `  cay workflow cancel wrun_01K00000000000000000000000 --reason "ordered twice"
  cay workflow cancel --workflow order --status pending --since 1h`,
		ValidArgsFunction: f.completeRuns(a, -1),
	}
	o.filter.register(c)
	fl := c.Flags()
	fl.IntVar(&o.limit, "limit", 500, "with flags that select, how many at most, 1 to 500")
	fl.StringVar(&o.p.Reason, "reason", "", "why, for people")
	fl.BoolVar(&o.p.Force, "force", false, "end them at once; none of their code runs any more")
	c.Args = func(cmd *cobra.Command, args []string) error {
		selects := false
		for _, name := range []string{"status", "workflow", "attribute", "key", "parent", "schedule", "since", "until"} {
			selects = selects || fl.Changed(name)
		}
		switch {
		case len(args) > 0 && selects:
			return usage(cmd, "runs are named, or selected by flags")
		case len(args) == 0 && !selects:
			return usage(cmd, "it takes one or more runs, or flags that select some")
		}
		return nil
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		return f.with(ctx, a, func(b workflow.Backend) error { return o.run(ctx, a, b, args) })
	})
}

func (o *workflowCancelOptions) run(ctx context.Context, a *app, b workflow.Backend, ids []string) error {
	results, err := o.cancel(ctx, b, ids)
	if err != nil {
		return err
	}
	if results == nil {
		results = []workflow.CancelResult{}
	}
	err = a.show(results, func(w io.Writer) {
		for _, r := range results {
			fmt.Fprintln(w, clean(r.Run+"  "+r.Outcome))
		}
	})
	errs := []error{err}
	for _, r := range results {
		switch r.Outcome {
		case "failed":
			errs = append(errs, cay.Errorf(cay.Internal, "run %s: %s", r.Run, r.Error))
		case "not_cancellable":
			if len(ids) > 0 {
				errs = append(errs, cay.Errorf(cay.Conflict, "run %s has ended", r.Run))
			}
		}
	}
	return errors.Join(errs...)
}

// cancel cancels the named runs, or the runs that the flags select.
func (o *workflowCancelOptions) cancel(ctx context.Context, b workflow.Backend, ids []string) ([]workflow.CancelResult, error) {
	if len(ids) == 0 {
		q, err := o.filter.query()
		if err != nil {
			return nil, err
		}
		if o.limit < 1 || o.limit > 500 {
			return nil, &exitError{exitUsage, cay.Errorf(cay.Invalid, "--limit is %d, not 1 to 500", o.limit)}
		}
		q.Limit = o.limit
		return b.CancelRuns(ctx, q, o.p)
	}
	var results []workflow.CancelResult
	for _, id := range ids {
		before, err := b.GetRun(ctx, id)
		if err != nil {
			return nil, err
		}
		r := workflow.CancelResult{Run: id}
		run, err := b.CancelRun(ctx, id, o.p)
		switch {
		case cay.CodeOf(err) == cay.Conflict:
			r.Outcome = "not_cancellable"
		case err != nil:
			return nil, err
		case before.Status == workflow.StatusCancelled:
			r.Outcome = "already_cancelled"
		case run.Status == workflow.StatusCancelled:
			r.Outcome = "cancelled"
		default:
			r.Outcome = "requested"
		}
		results = append(results, r)
	}
	return results, nil
}

func newWorkflowWake(a *app, f *workflowFlags) *cobra.Command {
	c := &cobra.Command{
		Use: "wake RUN [WAIT...]", Short: "End sleeps of a run early",
		Long: "End sleeps of a run early: those with these ids, such as wait_sleep.1, or all; and\nprint how many.",
		Args: atLeast(1, "a run"), ValidArgsFunction: f.completeRuns(a, 1),
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		return f.with(ctx, a, func(b workflow.Backend) error {
			n, err := b.WakeRun(ctx, args[0], args[1:])
			if err != nil {
				return err
			}
			return a.show(protocol.Woken{Count: n}, func(w io.Writer) { fmt.Fprintln(w, n) })
		})
	})
}

func newWorkflowTag(a *app, f *workflowFlags) *cobra.Command {
	c := &cobra.Command{
		Use: "tag RUN NAME=VALUE...", Short: "Change a run's attributes",
		Long: "Set attributes of a run, and print all it has. NAME= removes one.",
		Args: atLeast(2, "a run and one or more attributes"), ValidArgsFunction: f.completeRuns(a, 1),
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		attributes, err := parseAttributes(args[1:])
		if err != nil {
			return err
		}
		return f.with(ctx, a, func(b workflow.Backend) error {
			run, err := b.SetAttributes(ctx, args[0], attributes)
			if err != nil {
				return err
			}
			return a.show(protocol.RunOf(run), func(w io.Writer) { fmt.Fprintln(w, clean(tagsText(run.Attributes))) })
		})
	})
}

func newWorkflowDelete(a *app, f *workflowFlags) *cobra.Command {
	var quiet, force bool
	c := &cobra.Command{
		Use: "delete RUN...", Aliases: []string{"remove", "rm"}, Short: "Delete runs that have ended",
		Long: "Delete runs that have ended, with their logs and streams, and print their ids.",
		Args: atLeast(1, "one or more runs"), ValidArgsFunction: f.completeRuns(a, -1),
	}
	c.Flags().BoolVarP(&force, "force", "f", false, "one that is not there is no error")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print nothing")
	return a.verb(c, func(ctx context.Context, args []string) error {
		return f.with(ctx, a, func(b workflow.Backend) error {
			done := []string{}
			var errs []error
			for _, id := range args {
				if ctx.Err() != nil {
					break
				}
				switch err := b.DeleteRun(ctx, id); {
				case err == nil:
					done = append(done, id)
				case !force || cay.CodeOf(err) != cay.NotFound:
					errs = append(errs, err)
				}
			}
			if !quiet || a.json {
				errs = append(errs, a.show(done, func(w io.Writer) {
					for _, id := range done {
						fmt.Fprintln(w, id)
					}
				}))
			}
			return errors.Join(errs...)
		})
	})
}

func newWorkflowHooks(a *app, f *workflowFlags) *cobra.Command {
	var run string
	c := &cobra.Command{
		Use: "hooks", Short: "List what runs wait for from outside",
		Long: "List the live hooks: what runs wait for, or may be sent, from outside. \"cay workflow\nresume\" answers one.",
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().StringVar(&run, "run", "", "only those of this run")
	return a.verb(c, func(ctx context.Context, _ []string) error {
		return f.with(ctx, a, func(b workflow.Backend) error {
			hooks := []protocol.Hook{}
			for cursor := ""; ; {
				page, err := b.ListHooks(ctx, run, cursor, 1000)
				if err != nil {
					return err
				}
				for i := range page.Items {
					hooks = append(hooks, *protocol.HookOf(&page.Items[i]))
				}
				if cursor = page.Cursor; cursor == "" {
					break
				}
			}
			return a.show(hooks, func(w io.Writer) {
				t := newTable("TOKEN", "RUN", "HOOK", "WEBHOOK", "CREATED", "METADATA")
				for _, h := range hooks {
					t.row(h.Token, h.Run, h.ID, yesNo(h.Webhook), agoText(h.CreatedAt), short(payloadText(h.Metadata)))
				}
				t.print(w)
			})
		})
	})
}

func newWorkflowResume(a *app, f *workflowFlags) *cobra.Command {
	var p workflow.ResumeParams
	c := &cobra.Command{
		Use: "resume TOKEN [PAYLOAD]", Short: "Answer a hook a run waits for",
		Long: `Give a payload to the hook with this token, and print the id of its run. PAYLOAD is
JSON, "-" for standard input.`,
		Example: `  cay workflow resume approve:42 '{"yes": true}'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return usage(cmd, "it takes a token and at most one payload")
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().StringVar(&p.Key, "key", "", "idempotency key: the same call again does nothing")
	return a.verb(c, func(ctx context.Context, args []string) error {
		p.Token = args[0]
		if len(args) == 2 {
			var err error
			if p.Payload, err = a.inputValue(args[1]); err != nil {
				return err
			}
		}
		return f.with(ctx, a, func(b workflow.Backend) error {
			hook, err := b.ResumeHook(ctx, p)
			if err != nil {
				return err
			}
			return a.show(protocol.HookOf(hook), func(w io.Writer) { fmt.Fprintln(w, hook.Run) })
		})
	})
}
