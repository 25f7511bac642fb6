package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/gateway"
)

const gatewayBudgetsHelp = `Work with budgets. One bounds what a team, a project, a key, a user or a tag (SCOPE)
may spend in a period; REF is the id of the first three, the name of a user or the
tag. Without REF a budget is the default of all in the scope that have none of their
own. All budgets that apply to a request must suffice for what it may cost at most.

A budget counts from when it is set. Budgets of teams take an admin token.`

func newGatewayBudgets(a *app) *cobra.Command {
	c := newNoun("budgets", "Work with budgets", gatewayBudgetsHelp,
		newGatewayBudgetsSet(a), newGatewayBudgetsList(a), newGatewayBudgetsGet(a), newGatewayBudgetsDelete(a))
	c.Aliases = []string{"budget"}
	return c
}

var budgetScopes = []string{string(gateway.ScopeTeam), string(gateway.ScopeProject), string(gateway.ScopeKey), string(gateway.ScopeUser), string(gateway.ScopeTag)}

// scopeArgs takes SCOPE [REF].
func scopeArgs(cmd *cobra.Command, args []string) error {
	if len(args) < 1 || len(args) > 2 {
		return usage(cmd, "it takes a scope, and whom in it the budget is about")
	}
	return nil
}

func completeScopes(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return budgetScopes, cobra.ShellCompDirectiveNoFileComp
}

func budgetID(args []string) gateway.BudgetID {
	id := gateway.BudgetID{Scope: gateway.Scope(args[0])}
	if len(args) == 2 {
		id.Ref = args[1]
	}
	return id
}

func newGatewayBudgetsSet(a *app) *cobra.Command {
	var f budgetFlags
	c := &cobra.Command{
		Use: "set SCOPE [REF]", Short: "Set a budget",
		Long: "Set a budget, or replace one and keep what is spent.",
		Example: `  cay gateway budgets set team team_default --limit 100 --alert 80,100
  cay gateway budgets set user --limit 2.50 --period daily
  cay gateway budgets set key gk_... --limit 20 --period none`,
		Args: scopeArgs, ValidArgsFunction: completeScopes,
	}
	f.register(c, "limit", "dollars that may be spent in a period")
	if err := c.MarkFlagRequired("limit"); err != nil {
		panic(err) // the flag is registered above
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		b, err := gatewayClient(a).SetBudget(ctx, budgetID(args), f.params())
		if err != nil {
			return err
		}
		return a.show(b, func(w io.Writer) { showBudget(w, b) })
	})
}

func newGatewayBudgetsList(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List budgets", Long: "List the budgets that were set, and what is spent of them.",
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	return a.verb(c, func(ctx context.Context, _ []string) error {
		budgets, err := allGateway(func(p gateway.ListParams) (*gateway.Page[gateway.Budget], error) {
			return gatewayClient(a).ListBudgets(ctx, p)
		})
		if err != nil {
			return err
		}
		return a.show(budgets, func(w io.Writer) {
			t := newTable("SCOPE", "REF", "LIMIT", "PERIOD", "SPENT", "HELD", "USED", "RESETS")
			for _, b := range budgets {
				ref, spent, held, used := b.Ref, dollars(b.Spent), dollars(b.Held), usedText(&b)
				if ref == "" {
					ref, spent, held, used = "(default)", "", "", ""
				}
				t.row(string(b.Scope), ref, dollars(b.Limit), string(b.Period), spent, held, used, agoPtr(b.ResetAt))
			}
			t.print(w)
		})
	})
}

// usedText returns the spent share of a budget in percent, and the share that
// includes the possible cost of requests in progress.
func usedText(b *gateway.Budget) string {
	if b.Limit == 0 {
		return ""
	}
	percent := func(m gateway.Money) string { return fmt.Sprintf("%.0f%%", 100*m.Dollars()/b.Limit.Dollars()) }
	if b.Held > 0 {
		return percent(b.Spent) + ", " + percent(b.Spent.Plus(b.Held)) + " with held"
	}
	return percent(b.Spent)
}

func newGatewayBudgetsGet(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "get SCOPE [REF]", Short: "Show a budget",
		Long: "Show the budget that bounds REF: its own, or the default of the scope. Without REF, the\ndefault itself.",
		Args: scopeArgs, ValidArgsFunction: completeScopes,
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		b, err := gatewayClient(a).GetBudget(ctx, budgetID(args))
		if err != nil {
			return err
		}
		return a.show(b, func(w io.Writer) { showBudget(w, b) })
	})
}

func showBudget(w io.Writer, b *gateway.Budget) {
	yes := func(v bool, what string) string {
		if v {
			return what
		}
		return ""
	}
	alerts := ""
	for i, percent := range b.AlertAt {
		if i > 0 {
			alerts += ", "
		}
		alerts += fmt.Sprintf("%d%%", percent)
	}
	unsettled := ""
	if b.Unsettled > 0 {
		unsettled = "$" + b.Unsettled.String() + " of that was under way when the daemon died"
	}
	ref := b.Ref
	if ref == "" {
		ref = "(default)"
	}
	resets := ""
	if b.ResetAt != nil {
		resets = b.ResetAt.Format(time.RFC3339)
	}
	fields(w,
		"scope", string(b.Scope), "ref", ref, "limit", "$"+b.Limit.String(), "period", string(b.Period), "spent", "$"+b.Spent.String(), "unsettled", unsettled,
		"held", "$"+b.Held.String(), "since", b.Since.Format(time.RFC3339), "resets", resets, "alerts", alerts,
		"own keys", yes(b.IncludeBYOK, "counted at list price"), "unknown prices", yes(b.AllowUnpriced, "allowed, not counted"),
	)
}

func newGatewayBudgetsDelete(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "delete SCOPE [REF]", Aliases: []string{"rm"}, Short: "Delete a budget",
		Long: "Delete a budget. REF has the default of the scope from then on, if there is one.",
		Args: scopeArgs, ValidArgsFunction: completeScopes,
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		id := budgetID(args)
		if err := gatewayClient(a).DeleteBudget(ctx, id); err != nil {
			return err
		}
		return a.show(id, func(w io.Writer) { fmt.Fprintln(w, id.Scope, clean(id.Ref)) })
	})
}
