package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
)

const gatewayModelsUpdateHelp = `Update the list of models and prices from a public list: LiteLLM's
(model_prices_and_context_window.json) or models.dev's (api.json). Nothing is taken over
unseen: the command shows each difference to the list that counts now, asks on a
terminal, and writes only then; --yes writes without asking. Compare the prices with your
contracts: other people have written them down.

The command writes gateway-models.json beside the gateway's settings on this machine,
where a running daemon sees the file within a second. Prices under "models:" in the
settings are stronger. Edit the file as you like; delete it to go back to the list in the
binary.

The command reads language and embedding models: prices of tokens, and how much a model
reads and writes. A price that is missing in the public list, or 0, is unknown there, and
a price that is known now stays. Without --provider, the command takes the providers of
which the list that counts now has models.

Exit codes: 0 written, or nothing to do; 1 not written, 2 wrong usage.`

type gatewayModelsUpdateOptions struct {
	from, to  string
	providers []string
	yes       bool
}

func newGatewayModelsUpdate(a *app) *cobra.Command {
	var o gatewayModelsUpdateOptions
	c := &cobra.Command{
		Use: "update --from FILE_OR_URL", Short: "Update models and prices from a public list", Long: gatewayModelsUpdateHelp,
		Example: "  cay gateway models update --from model_prices_and_context_window.json --provider openai\n  cay gateway models update --from https://models.dev/api.json",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage(cmd, "it takes no arguments; the list is named by --from")
			}
			if o.from == "" {
				return usage(cmd, "--from is missing: the file or address of a list")
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := c.Flags()
	f.StringVar(&o.from, "from", "", "file or http(s) address of the list")
	f.StringArrayVar(&o.providers, "provider", nil, "only models of this provider; can be repeated")
	f.StringVar(&o.to, "to", "", "file to write (default gateway-models.json beside the gateway's settings)")
	f.BoolVarP(&o.yes, "yes", "y", false, "write without asking")
	return a.verb(c, func(ctx context.Context, _ []string) error { return o.run(ctx, a) })
}

// updated is the output of the command with --json.
type updated struct {
	File    string           `json:"file"`
	Written bool             `json:"written"`
	Changes []catalog.Change `json:"changes"`
	Skipped []string         `json:"skipped"` // entries of the list that make no sense
}

func (o *gatewayModelsUpdateOptions) run(ctx context.Context, a *app) error {
	if err := o.target(); err != nil {
		return err
	}
	raw, err := o.read(ctx)
	if err != nil {
		return err
	}
	offers, skipped, err := catalog.ReadOffers(raw)
	if err != nil {
		return err
	}
	before, err := catalog.ReadList(o.to)
	if err != nil {
		return err
	}
	now := before.Overlay(catalog.Builtin())
	wanted, err := o.wanted(now, offers)
	if err != nil {
		return err
	}
	changes, list := catalog.Update(now, offers, wanted, time.Now().UTC().Format(time.DateOnly))
	if before != nil {
		list.Models = list.Overlay(before.Models)
	}
	result := updated{File: o.to, Changes: changes, Skipped: skipped}
	if result.Changes == nil {
		result.Changes = []catalog.Change{}
	}
	if result.Skipped == nil {
		result.Skipped = []string{}
	}
	if !a.json {
		if err := a.show(nil, func(w io.Writer) { result.print(w) }); err != nil {
			return err
		}
	}
	if len(changes) > 0 {
		if err := o.signOff(a, len(changes)); err != nil {
			if a.json {
				if err := a.printJSON(result); err != nil {
					return err
				}
			}
			return err
		}
		if err := o.write(list); err != nil {
			return err
		}
		result.Written = true
	}
	return a.show(result, func(w io.Writer) {
		if result.Written {
			fmt.Fprintf(w, "%d changes written to %s\n", len(changes), o.to)
		}
	})
}

func (o *gatewayModelsUpdateOptions) write(l *catalog.List) error {
	text, err := l.Append(nil)
	if err != nil {
		return err
	}
	if err := keepFile(o.to, string(text), 0o644); err != nil {
		return cay.Errorf(cay.Invalid, "the list cannot be written: %w", err)
	}
	return nil
}

// target sets the file to write the list to.
func (o *gatewayModelsUpdateOptions) target() error {
	if o.to != "" {
		return nil
	}
	cfg, err := config.Load(config.Sources{File: os.Getenv("CAY_CONFIG"), Env: os.Getenv})
	if err != nil {
		return err
	}
	file := cfg.GatewayConfig
	if file == "" {
		file = filepath.Join(cfg.Data, "gateway.yaml")
	}
	o.to = catalog.ListFile(file)
	return nil
}

// maxPrices is how large a public list may be, in bytes: LiteLLM's has 1 to 2 MB.
const maxPrices = 64 << 20

// read returns the list. Errors: invalid (the name of a file or an address), unavailable.
func (o *gatewayModelsUpdateOptions) read(ctx context.Context) ([]byte, error) {
	body, err := o.open(ctx)
	if err != nil {
		return nil, fmt.Errorf("the list of prices cannot be read: %w", err)
	}
	defer body.Close()
	raw, err := io.ReadAll(io.LimitReader(body, maxPrices+1))
	switch {
	case err != nil:
		return nil, cay.Errorf(cay.Unavailable, "the list of prices cannot be read: %w", err)
	case len(raw) > maxPrices:
		return nil, cay.Errorf(cay.Invalid, "the list of prices is larger than %d MiB", maxPrices>>20)
	}
	return raw, nil
}

func (o *gatewayModelsUpdateOptions) open(ctx context.Context) (io.ReadCloser, error) {
	if !strings.HasPrefix(o.from, "https://") && !strings.HasPrefix(o.from, "http://") {
		f, err := os.Open(o.from)
		if err != nil {
			return nil, cay.Errorf(cay.Invalid, "%w", err)
		}
		return f, nil
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, o.from, nil)
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "%w", err)
	}
	r.Header.Set("User-Agent", "cay/"+cay.Version())
	resp, err := (&http.Client{Timeout: time.Minute}).Do(r)
	if err != nil {
		return nil, cay.Errorf(cay.Unavailable, "%w", err)
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, cay.Errorf(cay.Unavailable, "%s answers with %s", o.from, resp.Status)
	}
	return resp.Body, nil
}

// wanted returns which providers count.
func (o *gatewayModelsUpdateOptions) wanted(now []gateway.Model, offers []catalog.Offer) (func(string) bool, error) {
	has := make(map[string]bool)
	if len(o.providers) == 0 {
		for _, m := range now {
			for _, e := range m.Endpoints {
				has[e.Provider] = true
			}
		}
		return func(name string) bool { return has[name] }, nil
	}
	for i := range offers {
		has[offers[i].Provider] = true
	}
	for _, name := range o.providers {
		if !has[name] {
			return nil, cay.Errorf(cay.Invalid, "the list has no models of the provider %q", name).WithHint("\"cay gateway providers list --all\" has the names")
		}
	}
	return func(name string) bool { return slices.Contains(o.providers, name) }, nil
}

func (u *updated) print(w io.Writer) {
	for i := range u.Changes {
		c := &u.Changes[i]
		sign := "~"
		if c.New {
			sign = "+"
		}
		fmt.Fprintf(w, "%s %s at %s: %s\n", sign, clean(c.Model), clean(c.Provider), clean(strings.Join(c.Details, ", ")))
	}
	for _, s := range u.Skipped {
		fmt.Fprintf(w, "! %s\n", clean(s))
	}
	if len(u.Changes) == 0 {
		fmt.Fprintln(w, "nothing differs from the list of now")
	}
}

// signOff asks the operator to agree to the changes that were shown. Errors: invalid, if
// the answer is not yes or standard input is not a terminal.
func (o *gatewayModelsUpdateOptions) signOff(a *app, n int) error {
	if o.yes {
		return nil
	}
	refused := cay.Errorf(cay.Invalid, "nothing was written to %s", o.to)
	if !isTerminal(a.stdin) {
		return refused.WithHint("say --yes to write the changes, or run the command in a terminal, where it asks")
	}
	fmt.Fprintf(a.stderr, "Write %d changes to %s? Dollars are for a million tokens. [y/N] ", n, o.to)
	answer, err := bufio.NewReader(io.LimitReader(a.stdin, 100)).ReadString('\n')
	if s := strings.ToLower(strings.TrimSpace(answer)); err != nil && err != io.EOF || s != "y" && s != "yes" {
		return refused
	}
	return nil
}
