package main

import (
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/gateway"
)

const gatewayModelsHelp = `List the models that can be called: those of providers that have a credential, or
run on machines of your own. --all lists everything the catalogue knows.

Each line is a model at a provider. Prices are dollars for a million tokens; tiers
of long prompts are in --json, where prices are for one token. A price that
nobody knows is shown as "?": calls of such a model are not counted against
budgets, unless a budget refuses them.

PATTERN is a part of the id, or has stars: "claude", "openai/*".

The list is as old as this version of cay. "cay gateway models update" takes newer models
and prices over from a public list.`

type gatewayModelsOptions struct {
	all, quiet                 bool
	provider, kind, capability string
}

func newGatewayModels(a *app) *cobra.Command {
	var o gatewayModelsOptions
	c := &cobra.Command{
		Use: "models [PATTERN]", Short: "List models and their prices", Long: gatewayModelsHelp,
		Example: "  cay gateway models claude --provider bedrock",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage(cmd, "it takes at most one pattern")
			}
			if len(args) == 1 {
				if _, err := path.Match(args[0], ""); err != nil {
					return usage(cmd, "%q is no pattern", args[0])
				}
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := c.Flags()
	f.BoolVarP(&o.all, "all", "a", false, "also those that cannot be called")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print ids only")
	f.StringVar(&o.provider, "provider", "", "of one provider")
	f.StringVar(&o.kind, "kind", "", "of one kind: language, embedding, image, reranking...")
	f.StringVar(&o.capability, "has", "", "with a capability: reasoning, tool-use, vision...")
	c.AddCommand(newGatewayModelsUpdate(a))
	return a.verb(c, func(ctx context.Context, args []string) error {
		models, err := gatewayClient(a).ListModels(ctx)
		if err != nil {
			return err
		}
		pattern := ""
		if len(args) == 1 {
			pattern = args[0]
		}
		models = o.filter(models, pattern)
		return a.show(models, func(w io.Writer) { o.print(w, models) })
	})
}

// gatewayClient returns the client that manages the gateway.
func gatewayClient(a *app) *gateway.Client {
	o := a.options()
	return &gateway.Client{URL: o.URL, Token: o.Token, Team: o.Team}
}

// filter returns the models that match the flags, with only the matching
// endpoints.
func (o *gatewayModelsOptions) filter(models []gateway.Model, pattern string) []gateway.Model {
	kept := []gateway.Model{}
	for _, m := range models {
		if o.kind != "" && m.Kind != o.kind || o.capability != "" && !slices.Contains(m.Abilities, o.capability) || !matchesModel(pattern, &m) {
			continue
		}
		m.Endpoints = slices.DeleteFunc(slices.Clone(m.Endpoints), func(e gateway.Endpoint) bool {
			return !o.all && !e.Configured || o.provider != "" && e.Provider != o.provider
		})
		if len(m.Endpoints) > 0 {
			kept = append(kept, m)
		}
	}
	return kept
}

func matchesModel(pattern string, m *gateway.Model) bool {
	for _, name := range append([]string{m.ID}, m.Aliases...) {
		ok, _ := path.Match(pattern, name) // it was tried
		prefix, all := strings.CutSuffix(pattern, "*")
		if ok || strings.Contains(name, pattern) || all && strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

func (o *gatewayModelsOptions) print(w io.Writer, models []gateway.Model) {
	if o.quiet {
		for _, m := range models {
			fmt.Fprintln(w, clean(m.ID))
		}
		return
	}
	table := newTable("MODEL", "PROVIDER", "KIND", "CONTEXT", "INPUT", "OUTPUT", "CACHED", "STATE")
	for _, m := range models {
		for _, e := range m.Endpoints {
			size := e.Context
			if size == 0 {
				size = m.Context
			}
			input, output, cached := "?", "?", "?"
			if p := e.Price; p != nil {
				input, output, cached = perMillion(p.Input), perMillion(p.Output), perMillion(p.Input)
				if p.CacheRead != nil {
					cached = perMillion(*p.CacheRead)
				}
			}
			state := e.Health.State
			if !e.Configured {
				state = "no credential"
			}
			table.row(m.ID, e.Provider, m.Kind, tokensText(size), input, output, cached, state)
		}
	}
	table.print(w)
}

// perMillion returns the price of a million tokens, in dollars.
func perMillion(m gateway.Money) string { return m.Times(1_000_000).String() }

// tokensText returns a number of tokens in a short form.
func tokensText(n int64) string {
	switch {
	case n == 0:
		return ""
	case n >= 1_000_000:
		return fmt.Sprintf("%.3gM", float64(n)/1e6)
	case n >= 1000:
		return fmt.Sprintf("%dk", n/1000)
	}
	return fmt.Sprint(n)
}
