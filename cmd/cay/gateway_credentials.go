package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/gateway"
)

const gatewayCredentialsHelp = `Work with the credentials that projects have of their own at providers. Requests of
a project go by its own credentials first, in the order of their names, and cost the
project nothing here: the records have the list price. The operator's credentials of
that provider are tried after them only with --fallback.

A token of a project manages those of its project. Nobody can read a secret again.`

func newGatewayCredentials(a *app) *cobra.Command {
	c := newNoun("credentials", "Work with credentials of projects", gatewayCredentialsHelp,
		newGatewayCredentialsList(a), newGatewayCredentialsSet(a), newGatewayCredentialsRemove(a))
	c.Aliases = []string{"credential"}
	return c
}

// credentialArgs takes PROVIDER [NAME].
func credentialArgs(cmd *cobra.Command, args []string) error {
	if len(args) < 1 || len(args) > 2 {
		return usage(cmd, "it takes the name of a provider, and of the credential if it is not called \"key\"")
	}
	return nil
}

func credentialID(project string, args []string) gateway.CredentialID {
	id := gateway.CredentialID{ProjectID: project, Provider: args[0], Name: "key"}
	if len(args) == 2 {
		id.Name = args[1]
	}
	return id
}

const credentialProject = "project it is of, by id (default the token's, or the default project)"

func newGatewayCredentialsList(a *app) *cobra.Command {
	var f gateway.CredentialFilter
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List credentials", Long: "List the credentials of projects, and whether they can be used.",
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().StringVar(&f.ProjectID, "project", "", "only those of a project, by id")
	c.Flags().StringVar(&f.Provider, "provider", "", "only those for a provider")
	return a.verb(c, func(ctx context.Context, _ []string) error {
		all, err := gatewayClient(a).ListCredentials(ctx, f)
		if err != nil {
			return err
		}
		return a.show(all, func(w io.Writer) {
			t := newTable("PROJECT", "PROVIDER", "NAME", "SOURCE", "FALLBACK", "UPDATED", "PROBLEM")
			for _, c := range all {
				fallback := ""
				if c.Fallback {
					fallback = "yes"
				}
				t.row(c.ProjectID, c.Provider, c.Name, string(c.Source), fallback, agoPtr(c.UpdatedAt), c.Problem)
			}
			t.print(w)
		})
	})
}

func newGatewayCredentialsSet(a *app) *cobra.Command {
	var secret secretFlags
	var p gateway.CredentialParams
	var project string
	c := &cobra.Command{
		Use: "set PROVIDER [NAME]", Short: "Give a project a credential of its own",
		Long: "Give a project a credential of its own at a provider, or replace it.",
		Example: `  cay gateway credentials set openai --project prj_... --key-env OPENAI_API_KEY
  cay gateway credentials set bedrock --aws --region eu-central-1 --fallback`,
		Args: credentialArgs, ValidArgsFunction: cobra.NoFileCompletions,
	}
	secret.register(c)
	fl := c.Flags()
	fl.StringVar(&project, "project", "", credentialProject)
	fl.BoolVar(&p.Fallback, "fallback", false, "let the operator's credentials be tried after it")
	fl.BoolVar(&p.ZeroRetention, "zero-retention", false, "its account has agreed with the provider that nothing is kept")
	fl.StringToStringVar(&p.Models, "model", nil, "names its account has for models: openai/gpt-5=my-deployment")
	fl.StringVar(&p.Region, "region", "", "region of Bedrock")
	fl.StringVar(&p.Resource, "resource", "", "resource of Azure: the name in <resource>.openai.azure.com")
	fl.StringVar(&p.Project, "google-project", "", "project of Vertex (default the service account's)")
	fl.StringVar(&p.Location, "location", "", "location of Vertex")
	c.MarkFlagsOneRequired("key-env", "key-file", "key", "service-account", "aws")
	return a.verb(c, func(ctx context.Context, args []string) error {
		params := p
		var err error
		if params.Key, params.ServiceAccount, params.AWS, err = secret.read(a); err != nil {
			return err
		}
		set, err := gatewayClient(a).SetCredential(ctx, credentialID(project, args), params)
		if err != nil {
			return err
		}
		return a.show(set, func(w io.Writer) {
			fallback := ""
			if set.Fallback {
				fallback = "the operator's credentials"
			}
			fields(w, "project", set.ProjectID, "provider", set.Provider, "name", set.Name, "source", string(set.Source), "fallback", fallback, "problem", set.Problem)
		})
	})
}

func newGatewayCredentialsRemove(a *app) *cobra.Command {
	var project string
	c := &cobra.Command{
		Use: "remove PROVIDER [NAME]", Aliases: []string{"rm", "delete"}, Short: "Take a credential from a project",
		Long: "Take a credential from a project. Without any, its requests go by the operator's.",
		Args: credentialArgs, ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().StringVar(&project, "project", "", credentialProject)
	return a.verb(c, func(ctx context.Context, args []string) error {
		id := credentialID(project, args)
		if err := gatewayClient(a).DeleteCredential(ctx, id); err != nil {
			return err
		}
		return a.show(id, func(w io.Writer) { fmt.Fprintln(w, clean(id.Provider), clean(id.Name)) })
	})
}
