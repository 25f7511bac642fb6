package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
)

const gatewayProvidersHelp = `Work with the providers the gateway calls. They are configured by the file of
settings, by these commands, or by the environment of the daemon; each is stronger
than the one after it. What is set here is kept in the gateway's database, sealed
with the daemon's secret.key, and counts for the requests that begin after it.

To change providers takes an admin token: they can be at any address.`

func newGatewayProviders(a *app) *cobra.Command {
	c := newNoun("providers", "Work with providers", gatewayProvidersHelp,
		newGatewayProvidersList(a), newGatewayProvidersGet(a), newGatewayProvidersSet(a), newGatewayProvidersRemove(a))
	c.Aliases = []string{"provider"}
	return c
}

// oneProvider takes PROVIDER.
func oneProvider(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usage(cmd, "it takes the name of a provider")
	}
	return nil
}

func newGatewayProvidersList(a *app) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List providers",
		Long: "List the providers that are configured: where, what they speak, what they are called\nwith, and how they have done lately.",
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().BoolVar(&all, "all", false, "those, too, that requests and projects can bring credentials for")
	return a.verb(c, func(ctx context.Context, _ []string) error {
		providers, err := gatewayClient(a).ListProviders(ctx)
		if err != nil {
			return err
		}
		list := []gateway.Provider{}
		for _, p := range providers {
			if all || p.Source != gateway.FromTable || p.Configured {
				list = append(list, p)
			}
		}
		return a.show(list, func(w io.Writer) {
			t := newTable("NAME", "SOURCE", "FORMATS", "CREDENTIALS", "HEALTH", "ADDRESS")
			for _, p := range list {
				health := p.Health
				if p.Disabled {
					health = "disabled"
				}
				t.row(p.Name, string(p.Source), strings.Join(p.Formats, ", "), strings.Join(p.Credentials, ", "), health, p.BaseURL)
			}
			t.print(w)
		})
	})
}

func newGatewayProvidersGet(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "get PROVIDER", Short: "Show a provider", Long: "Show a provider, and what was set of it by the API, without secrets.",
		Args: oneProvider, ValidArgsFunction: cobra.NoFileCompletions,
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		p, err := gatewayClient(a).GetProvider(ctx, args[0])
		if err != nil {
			return err
		}
		return a.show(p, func(w io.Writer) { showProvider(w, p) })
	})
}

func showProvider(w io.Writer, p *gateway.Provider) {
	configured := "no"
	switch {
	case p.Configured:
		configured = "yes"
	case p.Disabled:
		configured = "no, it is disabled"
	}
	fields(w, "name", p.Name, "kind", p.Kind, "source", string(p.Source), "formats", strings.Join(p.Formats, ", "), "configured", configured,
		"health", p.Health, "address", p.BaseURL, "credentials", strings.Join(p.Credentials, ", "), "settings", compact(p.Settings))
}

// compact is JSON on one line.
func compact(raw json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return ""
	}
	return b.String()
}

func newGatewayProvidersSet(a *app) *cobra.Command {
	var secret secretFlags
	var p gateway.ProviderParams
	var from string
	c := &cobra.Command{
		Use: "set PROVIDER", Short: "Configure a provider",
		Long: `Configure a provider, in place of all that was set of it before. PROVIDER is a kind
that is known (openai, anthropic, ...), or a name of your own with --kind, or with
--format and --base-url. --from has the settings in JSON, with the names that the
file of settings has for them and secrets as texts; flags are put on top of it.`,
		Example: `  cay gateway providers set openai --key-env OPENAI_API_KEY
  pass show anthropic | cay gateway providers set anthropic --key -
  cay gateway providers set house --format chatcompletions --base-url http://10.0.0.5:8000/v1 --key-file key
  cay gateway providers set bedrock --region eu-central-1 --aws`,
		Args: oneProvider, ValidArgsFunction: cobra.NoFileCompletions,
	}
	secret.register(c)
	fl := c.Flags()
	fl.StringVar(&p.Kind, "kind", "", "the known kind of a provider with another name")
	fl.StringSliceVar(&p.Format, "format", nil, "wire formats it speaks, the one to prefer first: chatcompletions, responses, messages, gemini, converse")
	fl.StringVar(&p.BaseURL, "base-url", "", "its address")
	fl.StringVar(&p.Region, "region", "", "region of Bedrock")
	fl.StringVar(&p.Resource, "resource", "", "resource of Azure: the name in <resource>.openai.azure.com")
	fl.StringVar(&p.Project, "google-project", "", "project of Vertex")
	fl.StringVar(&p.Location, "location", "", "location of Vertex")
	fl.BoolVar(&p.Disabled, "disable", false, "no request is to go to it")
	fl.StringVar(&from, "from", "", "file with the settings in JSON; - reads it from standard input")
	return a.verb(c, func(ctx context.Context, args []string) error {
		if from == "-" && (secret.key == "-" || secret.account == "-") {
			return &exitError{exitUsage, cay.Errorf(cay.Invalid, "the key and the settings cannot both come from standard input")}
		}
		params := p
		if from != "" {
			base, err := readProvider(a, from)
			if err != nil {
				return err
			}
			params = overlay(*base, p)
		}
		key, account, aws, err := secret.read(a)
		if err != nil {
			return err
		}
		if key != "" {
			params.Key = key
		}
		if account != "" {
			params.ServiceAccount = account
		}
		if aws != nil {
			params.AWS = aws
		}
		set, err := gatewayClient(a).SetProvider(ctx, args[0], params)
		if err != nil {
			return err
		}
		return a.show(set, func(w io.Writer) { showProvider(w, set) })
	})
}

// readProvider reads settings in JSON.
func readProvider(a *app, path string) (*gateway.ProviderParams, error) {
	text, err := readSecret(a, path, path == "-")
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	p := new(gateway.ProviderParams)
	if err := d.Decode(p); err != nil {
		var typ *json.UnmarshalTypeError
		if errors.As(err, &typ) { // its text may contain a secret
			return nil, cay.Errorf(cay.Invalid, "%s: %s is not of the right type", path, typ.Field)
		}
		return nil, cay.Errorf(cay.Invalid, "%s: %w", path, err)
	}
	return p, nil
}

// overlay returns base with the values of flags.
func overlay(base, flags gateway.ProviderParams) gateway.ProviderParams {
	base.Disabled = base.Disabled || flags.Disabled
	if len(flags.Format) > 0 {
		base.Format = flags.Format
	}
	for _, f := range []struct {
		to   *string
		from string
	}{
		{&base.Kind, flags.Kind}, {&base.BaseURL, flags.BaseURL}, {&base.Region, flags.Region}, {&base.Resource, flags.Resource},
		{&base.Project, flags.Project}, {&base.Location, flags.Location},
	} {
		if f.from != "" {
			*f.to = f.from
		}
	}
	return base
}

func newGatewayProvidersRemove(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "remove PROVIDER", Aliases: []string{"rm", "delete"}, Short: "Take back what was set of a provider",
		Long: "Take back what was set of a provider with these commands. It is then as the daemon's\nenvironment has it, if that does.",
		Args: oneProvider, ValidArgsFunction: cobra.NoFileCompletions,
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		if err := gatewayClient(a).DeleteProvider(ctx, args[0]); err != nil {
			return err
		}
		return a.show(map[string]string{"name": args[0]}, func(w io.Writer) { fmt.Fprintln(w, clean(args[0])) })
	})
}
