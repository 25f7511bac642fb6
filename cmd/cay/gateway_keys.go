package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
)

const gatewayKeysHelp = `Work with the keys that programs call models with. A key is of one project; what it
may call, how fast, for how long and for how much can be bounded.`

func newGatewayKeys(a *app) *cobra.Command {
	c := newNoun("keys", "Work with keys", gatewayKeysHelp,
		newGatewayKeysCreate(a), newGatewayKeysList(a), newGatewayKeysGet(a), newGatewayKeysUpdate(a), newGatewayKeysDelete(a))
	c.Aliases = []string{"key"}
	return c
}

// keyScopeFlags bound a key.
type keyScopeFlags struct {
	scope   gateway.KeyScope
	tags    []string
	cache   time.Duration
	expires time.Duration
}

func (f *keyScopeFlags) register(c *cobra.Command) {
	fl := c.Flags()
	fl.StringSliceVar(&f.scope.Models, "model", nil, "models it may call, such as openai/gpt-5 or anthropic/* (default all)")
	fl.StringSliceVar(&f.scope.Providers, "provider", nil, "providers its calls may go to (default all)")
	fl.Int64Var(&f.scope.RequestsPerMinute, "rpm", 0, "requests it may make in a minute (default any number)")
	fl.Int64Var(&f.scope.TokensPerMinute, "tpm", 0, "tokens it may use in a minute (default any number)")
	fl.IntVar(&f.scope.Concurrency, "concurrency", 0, "requests it may have under way (default any number)")
	fl.Int64Var(&f.scope.MaxOutputTokens, "max-output", 0, "tokens a request may ask for (default as many as the model has)")
	fl.DurationVar(&f.cache, "cache", 0, "how long answers are kept for the same request (default not at all)")
	fl.StringSliceVar(&f.tags, "tag", nil, "tags added to those of its requests")
	fl.DurationVar(&f.expires, "expires", 0, "how long it is good for (default for ever)")
}

// scopeFlags are the flags that set the scope.
var scopeFlags = []string{"model", "provider", "rpm", "tpm", "concurrency", "max-output", "cache"}

// expiry returns when a key expires, nil if no flag sets it.
func (f *keyScopeFlags) expiry(c *cobra.Command) (*time.Time, error) {
	if !c.Flags().Changed("expires") {
		return nil, nil
	}
	if f.expires <= 0 {
		return nil, &exitError{exitUsage, cay.Errorf(cay.Invalid, "--expires is %v; it must be more than 0", f.expires)}
	}
	at := time.Now().Add(f.expires)
	return &at, nil
}

// budgetFlags describe a budget.
type budgetFlags struct {
	limit          moneyFlag
	period         string
	alerts         []int
	byok, unpriced bool
}

var budgetPeriods = []string{string(gateway.Daily), string(gateway.Weekly), string(gateway.Monthly), string(gateway.Never)}

func (f *budgetFlags) register(c *cobra.Command, limit, usage string) {
	fl := c.Flags()
	fl.Var(&f.limit, limit, usage)
	fl.StringVar(&f.period, "period", string(gateway.Monthly), "when the budget begins anew: "+strings.Join(budgetPeriods, ", "))
	fl.IntSliceVar(&f.alerts, "alert", nil, "percentages at which the daemon's log warns")
	fl.BoolVar(&f.byok, "include-byok", false, "count calls paid with a caller's own key, at list price")
	fl.BoolVar(&f.unpriced, "allow-unpriced", false, "let models and tools pass whose price is unknown, and do not count them")
	mustComplete(c, "period", budgetPeriods...)
}

func (f *budgetFlags) params() gateway.BudgetParams {
	return gateway.BudgetParams{Limit: f.limit.money, Period: gateway.Period(f.period), AlertAt: f.alerts, IncludeBYOK: f.byok, AllowUnpriced: f.unpriced}
}

func newGatewayKeysCreate(a *app) *cobra.Command {
	var scope keyScopeFlags
	var budget budgetFlags
	var project string
	c := &cobra.Command{
		Use: "create [NAME]", Short: "Make a key",
		Long: "Make a key and print its secret, which is shown this once. NAME says what it is for.",
		Example: `  export OPENAI_API_KEY=$(cay gateway keys create ci --budget 5 --period daily)
  cay gateway keys create batch --model 'openai/*' --rpm 60 --expires 720h`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage(cmd, "it takes at most one name")
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().StringVar(&project, "project", "", "project it spends for, by id (default the token's, or the default project)")
	scope.register(c)
	budget.register(c, "budget", "dollars it may spend in a period (default any amount)")
	return a.verb(c, func(ctx context.Context, args []string) error {
		p := gateway.CreateKeyParams{ProjectID: project, KeyScope: scope.scope, Tags: scope.tags}
		p.Cache = gateway.Duration(scope.cache)
		if len(args) == 1 {
			p.Name = args[0]
		}
		var err error
		if p.ExpiresAt, err = scope.expiry(c); err != nil {
			return err
		}
		if c.Flags().Changed("budget") {
			params := budget.params()
			p.Budget = &params
		} else {
			for _, name := range []string{"period", "alert", "include-byok", "allow-unpriced"} {
				if c.Flags().Changed(name) {
					return &exitError{exitUsage, cay.Errorf(cay.Invalid, "--%s is of a budget; it goes with --budget", name)}
				}
			}
		}
		k, err := gatewayClient(a).CreateKey(ctx, p)
		if err != nil {
			return err
		}
		return a.show(k, func(w io.Writer) { fmt.Fprintln(w, k.Secret) })
	})
}

func newGatewayKeysList(a *app) *cobra.Command {
	var quiet bool
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List keys", Long: "List keys, newest first.",
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print ids only")
	return a.verb(c, func(ctx context.Context, _ []string) error {
		keys, err := allGateway(func(p gateway.ListParams) (*gateway.Page[gateway.Key], error) {
			return gatewayClient(a).ListKeys(ctx, p)
		})
		if err != nil {
			return err
		}
		return a.show(keys, func(w io.Writer) {
			if quiet {
				for _, k := range keys {
					fmt.Fprintln(w, k.ID)
				}
				return
			}
			t := newTable("ID", "NAME", "KEY", "PROJECT", "STATUS", "BUDGET", "CREATED", "USED")
			for _, k := range keys {
				t.row(k.ID, k.Name, k.Prefix+"...", k.ProjectID, keyStatus(&k), budgetText(k.Budget), agoText(k.CreatedAt), agoPtr(k.LastUsedAt))
			}
			t.print(w)
		})
	})
}

// allGateway reads every page of a list.
func allGateway[T any](list func(gateway.ListParams) (*gateway.Page[T], error)) ([]T, error) {
	items := []T{}
	for p := (gateway.ListParams{Limit: 200}); ; {
		page, err := list(p)
		if err != nil {
			return nil, err
		}
		items = append(items, page.Items...)
		if p.Cursor = page.Next; p.Cursor == "" {
			return items, nil
		}
	}
}

func keyStatus(k *gateway.Key) string {
	switch {
	case k.Disabled:
		return "disabled"
	case k.ExpiresAt == nil:
		return "active"
	case time.Now().Before(*k.ExpiresAt):
		return "active, expires " + agoPtr(k.ExpiresAt)
	}
	return "expired " + agoPtr(k.ExpiresAt)
}

// budgetText returns the spent part of a budget, empty if there is no budget.
func budgetText(b *gateway.Budget) string {
	if b == nil {
		return ""
	}
	period := " " + string(b.Period)
	if b.Period == gateway.Never {
		period = ""
	}
	return dollars(b.Spent) + " of " + dollars(b.Limit) + period
}

func newGatewayKeysGet(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "get ID", Short: "Show a key", Long: "Show a key, what it may do, and what is spent of its budget.",
		Args: exactly(1, "one id"), ValidArgsFunction: a.completeKeys(1),
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		k, err := gatewayClient(a).GetKey(ctx, args[0])
		if err != nil {
			return err
		}
		return a.show(k, func(w io.Writer) { showKey(w, k) })
	})
}

func showKey(w io.Writer, k *gateway.Key) {
	cache := ""
	if k.Cache != 0 {
		cache = time.Duration(k.Cache).String()
	}
	fields(w,
		"id", k.ID, "name", k.Name, "key", k.Prefix+"...", "project", k.ProjectID, "status", keyStatus(k),
		"models", strings.Join(k.Models, ", "), "providers", strings.Join(k.Providers, ", "),
		"requests/minute", numberText(k.RequestsPerMinute), "tokens/minute", numberText(k.TokensPerMinute), "concurrency", numberText(int64(k.Concurrency)),
		"output tokens", numberText(k.MaxOutputTokens), "cache", cache, "tags", strings.Join(k.Tags, ", "), "budget", budgetText(k.Budget),
		"created", agoText(k.CreatedAt), "used", agoPtr(k.LastUsedAt),
	)
}

// completeKeys offers the ids of keys for the first n arguments; n < 0 for all.
func (a *app) completeKeys(n int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if n >= 0 && len(args) >= n {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		page, err := gatewayClient(a).ListKeys(cmd.Context(), gateway.ListParams{Limit: 200})
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var ids []string
		for _, k := range page.Items {
			ids = append(ids, k.ID+"\t"+clean(k.Name))
		}
		return ids, cobra.ShellCompDirectiveNoFileComp
	}
}

func newGatewayKeysUpdate(a *app) *cobra.Command {
	var scope keyScopeFlags
	var name string
	var disable, enable, never bool
	c := &cobra.Command{
		Use: "update ID", Short: "Change a key",
		Long: `Change a key. What is not named stays as it is; --model= without a value lets it call
every model again, and so for the other bounds.`,
		Example: "  cay gateway keys update gk_... --disable\n  cay gateway keys update gk_... --rpm 0 --model 'anthropic/*'",
		Args:    exactly(1, "one id"), ValidArgsFunction: a.completeKeys(1),
	}
	fl := c.Flags()
	fl.StringVar(&name, "name", "", "what it is for")
	fl.BoolVar(&disable, "disable", false, "let nobody in with it")
	fl.BoolVar(&enable, "enable", false, "let those in who have it")
	scope.register(c)
	fl.BoolVar(&never, "never-expires", false, "let it be good for ever")
	c.MarkFlagsMutuallyExclusive("disable", "enable")
	c.MarkFlagsMutuallyExclusive("expires", "never-expires")
	return a.verb(c, func(ctx context.Context, args []string) error {
		client := gatewayClient(a)
		var p gateway.UpdateKeyParams
		var err error
		if p.ExpiresAt, err = scope.expiry(c); err != nil {
			return err
		}
		if never {
			p.ExpiresAt = new(time.Time)
		}
		if fl.Changed("name") {
			p.Name = &name
		}
		if disable || enable {
			p.Disabled = &disable
		}
		if fl.Changed("tag") {
			tags := append([]string{}, scope.tags...)
			p.Tags = &tags
		}
		if p.Scope, err = scope.changed(ctx, c, client, args[0]); err != nil {
			return err
		}
		k, err := client.UpdateKey(ctx, args[0], p)
		if err != nil {
			return err
		}
		return a.show(k, func(w io.Writer) { showKey(w, k) })
	})
}

// changed returns the new scope of a key, nil if no flag changes it.
func (f *keyScopeFlags) changed(ctx context.Context, c *cobra.Command, client *gateway.Client, id string) (*gateway.KeyScope, error) {
	fl, any := c.Flags(), false
	for _, name := range scopeFlags {
		any = any || fl.Changed(name)
	}
	if !any {
		return nil, nil
	}
	k, err := client.GetKey(ctx, id)
	if err != nil {
		return nil, err
	}
	s := k.KeyScope
	for name, set := range map[string]func(){
		"model":       func() { s.Models = f.scope.Models },
		"provider":    func() { s.Providers = f.scope.Providers },
		"rpm":         func() { s.RequestsPerMinute = f.scope.RequestsPerMinute },
		"tpm":         func() { s.TokensPerMinute = f.scope.TokensPerMinute },
		"concurrency": func() { s.Concurrency = f.scope.Concurrency },
		"max-output":  func() { s.MaxOutputTokens = f.scope.MaxOutputTokens },
		"cache":       func() { s.Cache = gateway.Duration(f.cache) },
	} {
		if fl.Changed(name) {
			set()
		}
	}
	return &s, nil
}

func newGatewayKeysDelete(a *app) *cobra.Command {
	var quiet bool
	c := &cobra.Command{
		Use: "delete ID...", Aliases: []string{"rm"}, Short: "Delete keys",
		Long: "Delete keys and their budgets. What is recorded of their requests stays.",
		Args: atLeast(1, "the ids of one or more keys"), ValidArgsFunction: a.completeKeys(-1),
	}
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print nothing")
	return a.verb(c, func(ctx context.Context, args []string) error {
		client, gone := gatewayClient(a), []string{}
		var errs []error
		for _, id := range args {
			if err := client.DeleteKey(ctx, id); err != nil {
				errs = append(errs, err)
				continue
			}
			gone = append(gone, id)
		}
		err := a.show(gone, func(w io.Writer) {
			if !quiet {
				for _, id := range gone {
					fmt.Fprintln(w, id)
				}
			}
		})
		return a.reportAll(append(errs, err)...)
	})
}
