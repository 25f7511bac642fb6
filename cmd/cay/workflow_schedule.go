package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/internal/workflowd/protocol"
	"github.com/cayhq/cay/workflow"
)

func newWorkflowSchedule(a *app, f *workflowFlags) *cobra.Command {
	c := newNoun("schedule", "Work with schedules that start runs",
		"Work with schedules, which start runs by the clock. SCHEDULE is the name it was given.",
		newScheduleList(a, f), newScheduleSet(a, f), newSchedulePause(a, f, true), newSchedulePause(a, f, false), newScheduleDelete(a, f))
	c.Aliases = []string{"schedules"}
	return c
}

func newScheduleList(a *app, f *workflowFlags) *cobra.Command {
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List schedules",
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	return a.verb(c, func(ctx context.Context, _ []string) error {
		return f.with(ctx, a, func(b workflow.Backend) error {
			all, err := b.ListSchedules(ctx)
			if err != nil {
				return err
			}
			schedules := make([]protocol.Schedule, len(all))
			for i := range all {
				schedules[i] = *protocol.ScheduleOf(&all[i])
			}
			return a.show(schedules, func(w io.Writer) {
				t := newTable("SCHEDULE", "WORKFLOW", "CRON", "ZONE", "NEXT", "LAST", "LAST RUN")
				for _, s := range schedules {
					next := agoText(s.NextAt)
					if s.Paused {
						next = "paused"
					}
					t.row(s.ID, s.Workflow, s.Cron, s.Zone, next, agoText(s.LastAt), s.LastRun)
				}
				t.print(w)
			})
		})
	})
}

const scheduleSetHelp = `Set a schedule that starts a run of a workflow whenever the clock meets CRON, and
print when that is next. CRON has five fields, minute, hour, day of the month, month
and day of the week, or is "@every 10m". INPUT is JSON, "-" for standard input.

A run does not start while the one before has not ended, unless --overlap is given.`

func newScheduleSet(a *app, f *workflowFlags) *cobra.Command {
	var s workflow.Schedule
	c := &cobra.Command{
		Use: "set SCHEDULE WORKFLOW CRON [INPUT]", Short: "Set a schedule", Long: scheduleSetHelp,
		Example: `  cay workflow schedule set nightly report '0 3 * * *' --zone Europe/Berlin
  cay workflow schedule set sync sync '@every 10m' '{"full": false}'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 3 || len(args) > 4 {
				return usage(cmd, "it takes a schedule, a workflow, when, and at most one input")
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	fl := c.Flags()
	fl.StringVar(&s.Zone, "zone", "", "time zone of CRON, as Europe/Berlin (default UTC)")
	fl.BoolVar(&s.Overlap, "overlap", false, "start a run also while the one before has not ended")
	fl.BoolVar(&s.Paused, "paused", false, "start none until \"cay workflow schedule resume\"")
	return a.verb(c, func(ctx context.Context, args []string) error {
		s.ID, s.Workflow, s.Cron = args[0], args[1], args[2]
		if len(args) == 4 {
			var err error
			if s.Input, err = a.inputValue(args[3]); err != nil {
				return err
			}
		}
		return f.with(ctx, a, func(b workflow.Backend) error { return a.putSchedule(ctx, b, s) })
	})
}

func (a *app) putSchedule(ctx context.Context, b workflow.Backend, s workflow.Schedule) error {
	out, err := b.PutSchedule(ctx, s)
	if err != nil {
		return err
	}
	return a.showNext(out)
}

// showNext prints when a schedule is next due.
func (a *app) showNext(s *workflow.Schedule) error {
	p := protocol.ScheduleOf(s)
	return a.show(p, func(w io.Writer) {
		if p.Paused {
			fmt.Fprintln(w, "paused")
			return
		}
		fmt.Fprintln(w, p.NextAt.Local().Format("2006-01-02 15:04:05 MST"))
	})
}

func newSchedulePause(a *app, f *workflowFlags, pause bool) *cobra.Command {
	c := &cobra.Command{
		Use: "resume SCHEDULE", Short: "Let a paused schedule start runs again",
		Args: exactly(1, "one schedule"), ValidArgsFunction: f.completeSchedules(a),
	}
	if pause {
		c.Use, c.Short = "pause SCHEDULE", "Let a schedule start no runs for now"
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		return f.with(ctx, a, func(b workflow.Backend) error {
			s, err := b.UpdateSchedule(ctx, args[0], workflow.ScheduleUpdate{Paused: &pause})
			if err != nil {
				return err
			}
			return a.showNext(s)
		})
	})
}

func newScheduleDelete(a *app, f *workflowFlags) *cobra.Command {
	c := &cobra.Command{
		Use: "delete SCHEDULE...", Aliases: []string{"remove", "rm"}, Short: "Delete schedules",
		Long: "Delete schedules, and print their names. The runs they have started stay.",
		Args: atLeast(1, "one or more schedules"), ValidArgsFunction: f.completeSchedules(a),
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		return f.with(ctx, a, func(b workflow.Backend) error {
			return a.eachName(args, func(id string) error { return b.DeleteSchedule(ctx, id) })
		})
	})
}

// completeSchedules offers the names of schedules.
func (f *workflowFlags) completeSchedules(a *app) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		var names []string
		err := f.with(cmd.Context(), a, func(b workflow.Backend) error {
			all, err := b.ListSchedules(cmd.Context())
			for _, s := range all {
				names = append(names, s.ID)
			}
			return err
		})
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
