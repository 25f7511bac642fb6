package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/internal/workflowd/protocol"
	"github.com/cayhq/cay/workflow"
)

func newWorkflowLimit(a *app, f *workflowFlags) *cobra.Command {
	c := newNoun("limit", "Limit the runs of workflows in JavaScript",
		"Limit how many runs of a workflow of the Workflow SDK are running, and how often they\nstart, and say which go first. WORKFLOW is its name as \"cay workflow list\" prints it. Workflows in Go declare\ntheir limits in their code.",
		newLimitList(a, f), newLimitSet(a, f), newLimitDelete(a, f))
	c.Aliases = []string{"limits"}
	return c
}

func newLimitList(a *app, f *workflowFlags) *cobra.Command {
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List limits",
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	return a.verb(c, func(ctx context.Context, _ []string) error {
		return f.with(ctx, a, func(b workflow.Backend) error {
			all, err := b.ListLimits(ctx)
			if err != nil {
				return err
			}
			limits := make([]protocol.Limit, len(all))
			for i := range all {
				limits[i] = *protocol.LimitOf(&all[i])
			}
			return a.show(limits, func(w io.Writer) {
				t := newTable("WORKFLOW", "CONCURRENCY", "RATE", "PRIORITY")
				for i := range all {
					t.row(all[i].Workflow, concurrencyText(&all[i]), rateText(&all[i]), strconv.Itoa(all[i].Priority))
				}
				t.print(w)
			})
		})
	})
}

func concurrencyText(l *workflow.Limit) string {
	if l.Concurrency == 0 {
		return "any"
	}
	return strconv.Itoa(l.Concurrency)
}

func rateText(l *workflow.Limit) string {
	if l.Rate == 0 {
		return "any"
	}
	return fmt.Sprintf("%d/%s", l.Rate, l.Period)
}

const limitSetHelp = `Limit a workflow of the Workflow SDK, and replace the limit that it had. Runs that may
not start yet stay pending, and start in the order in which they were created. Runs that
have started go on. When the app has no room for all messages that are due, those of runs
of workflows with a higher priority are delivered first, from the first message of a run to
its last. A workflow without a limit has priority 0.`

func newLimitSet(a *app, f *workflowFlags) *cobra.Command {
	var l workflow.Limit
	var rate string
	c := &cobra.Command{
		Use: "set WORKFLOW", Short: "Limit the runs of a workflow", Long: limitSetHelp,
		Example: `  cay workflow limit set workflow//./workflows/order//order --concurrency 5
  cay workflow limit set workflow//./workflows/mail//mail --rate 100/1m
  cay workflow limit set workflow//./workflows/order//order --priority 10`,
		Args: exactly(1, "one workflow"), ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().IntVar(&l.Concurrency, "concurrency", 0, "most runs that are running at one time")
	c.Flags().StringVar(&rate, "rate", "", "most runs that start within a time, as 100/1m")
	c.Flags().IntVar(&l.Priority, "priority", 0, "runs of a higher one go first, 0 to 100")
	return a.verb(c, func(ctx context.Context, args []string) error {
		l.Workflow = args[0]
		if l.Concurrency == 0 && rate == "" && l.Priority == 0 {
			return usage(c, "it takes --concurrency, --rate, --priority or some of them")
		}
		if rate != "" {
			var err error
			if l.Rate, l.Period, err = parseRate(rate); err != nil {
				return usage(c, "%v", err)
			}
		}
		return f.with(ctx, a, func(b workflow.Backend) error {
			set, err := b.PutLimit(ctx, l)
			if err != nil {
				return err
			}
			return a.show(protocol.LimitOf(set), func(w io.Writer) {
				fmt.Fprintf(w, "concurrency %s, rate %s, priority %d\n", concurrencyText(set), rateText(set), set.Priority)
			})
		})
	})
}

// parseRate parses a number of starts and a time, such as 100/1m.
func parseRate(text string) (int, time.Duration, error) {
	number, period, ok := strings.Cut(text, "/")
	n, err := strconv.Atoi(number)
	d, perr := time.ParseDuration(period)
	if !ok || err != nil || perr != nil || n < 1 || d <= 0 {
		return 0, 0, fmt.Errorf("--rate is %q: it takes a number of runs and a time, as 100/1m", text)
	}
	return n, d, nil
}

func newLimitDelete(a *app, f *workflowFlags) *cobra.Command {
	c := &cobra.Command{
		Use: "delete WORKFLOW...", Aliases: []string{"remove", "rm"}, Short: "Remove limits",
		Long: "Remove limits, and print the names of their workflows. The runs that wait start.",
		Args: atLeast(1, "one or more workflows"), ValidArgsFunction: f.completeLimits(a),
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		return f.with(ctx, a, func(b workflow.Backend) error {
			return a.eachName(args, func(name string) error { return b.DeleteLimit(ctx, name) })
		})
	})
}

// completeLimits offers the names of limited workflows.
func (f *workflowFlags) completeLimits(a *app) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		var names []string
		err := f.with(cmd.Context(), a, func(b workflow.Backend) error {
			all, err := b.ListLimits(cmd.Context())
			for i := range all {
				names = append(names, all[i].Workflow)
			}
			return err
		})
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// eachName calls f for each name, and prints the names for which it succeeds.
func (a *app) eachName(names []string, f func(name string) error) error {
	done := []string{}
	var errs []error
	for _, name := range names {
		if err := f(name); err != nil {
			errs = append(errs, err)
			continue
		}
		done = append(done, name)
	}
	errs = append(errs, a.show(done, func(w io.Writer) {
		for _, name := range done {
			fmt.Fprintln(w, clean(name))
		}
	}))
	return errors.Join(errs...)
}
