package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
)

const gatewayCheckHelp = `Test the providers of the gateway: each is asked for its list of models with each
of its credentials, or, if it has no list, sent a call that is wrong and so costs
nothing. PROVIDER is the name of one; without it, all that are configured are
tested.

Exit codes: 0 all answered, 1 one did not, 2 wrong usage.`

func newGatewayCheck(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "check [PROVIDER]", Short: "Test the providers and their credentials", Long: gatewayCheckHelp,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage(cmd, "it takes at most one provider")
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		name := ""
		if len(args) == 1 {
			name = args[0]
		}
		checks, err := gatewayClient(a).Check(ctx, name)
		if err != nil {
			return err
		}
		if err := a.show(checks, func(w io.Writer) { printChecks(w, checks) }); err != nil {
			return err
		}
		failed := 0
		for _, check := range checks {
			if !check.OK {
				failed++
			}
		}
		if failed > 0 {
			return cay.Errorf(cay.Unavailable, "%d of %d providers cannot be used", failed, len(checks))
		}
		return nil
	})
}

func printChecks(w io.Writer, checks []gateway.Check) {
	table := newTable("PROVIDER", "STATE", "LATENCY", "MODELS")
	for _, c := range checks {
		state, latency, models := "ok", "", ""
		if !c.OK {
			state = "failed"
		}
		if c.Latency > 0 {
			latency = fmt.Sprintf("%.0f ms", float64(c.Latency))
		}
		if c.Models > 0 {
			models = fmt.Sprint(c.Models)
		}
		table.row(c.Provider, state, latency, models)
	}
	table.print(w)
	for _, c := range checks {
		if c.OK {
			continue
		}
		fmt.Fprintf(w, "\n%s: %s\n", clean(c.Provider), clean(c.Error))
		if c.Hint != "" {
			fmt.Fprintf(w, "  %s\n", clean(c.Hint))
		}
	}
}
