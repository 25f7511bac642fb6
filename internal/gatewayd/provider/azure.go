package provider

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Azure is an account of Azure OpenAI.
type Azure struct {
	Key Secret
	// Resource is the resource name in the host, for requests to another resource than
	// the provider's; empty for the provider's.
	Resource string
	// APIVersion is the query parameter api-version; empty for none, which /openai/v1
	// accepts.
	APIVersion string
	// Deployments says that the base URL ends in /openai and the path contains the model,
	// /deployments/<model>, as API versions that are dates require.
	Deployments bool
}

// azureKey sends the token if there is one, otherwise the key.
type azureKey struct {
	owned
	account Azure
	token   *renewed[string]
}

// AzureKey returns the credential of Azure OpenAI: the header api-key. Errors:
// invalid.
func AzureKey(o Owner, a Azure) (Credential, error) {
	if a.Key.IsZero() {
		return nil, cay.Errorf(cay.Invalid, "there is no key")
	}
	if err := a.check(); err != nil {
		return nil, err
	}
	return &azureKey{owned{o, "Azure key"}, a, nil}, nil
}

func (a *Azure) check() error {
	switch {
	case a.Resource != "" && !place().MatchString(strings.ToLower(a.Resource)):
		return cay.Errorf(cay.Invalid, "%.80q is no name of an Azure resource", a.Resource)
	case a.Deployments && a.APIVersion == "":
		return cay.Errorf(cay.Invalid, "deployments in the path take an API version, such as 2024-10-21")
	}
	return nil
}

const azureDomain = ".openai.azure.com"

// Authorize implements Credential.
func (c *azureKey) Authorize(ctx context.Context, r *http.Request, body []byte) error {
	if c.token == nil {
		r.Header.Set("Api-Key", c.account.Key.reveal())
	} else {
		token, err := c.token.get(ctx)
		if err != nil {
			return err
		}
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if c.account.Resource == "" && c.account.APIVersion == "" && !c.account.Deployments {
		return nil
	}
	path := r.URL.EscapedPath()
	if c.account.Deployments && !strings.Contains(path, "/deployments/") {
		// https://learn.microsoft.com/azure/ai-foundry/openai/reference: calls with a
		// model are below the deployment, other calls (/responses, /models) are not.
		for _, call := range []string{"/chat/completions", "/completions", "/embeddings", "/images/", "/audio/"} {
			base, rest, ok := strings.Cut(path, call)
			if !ok {
				continue
			}
			model := gjson.GetBytes(body, "model").String()
			if model == "" {
				return &hub.Error{Kind: hub.BadRequest, Param: "model", Message: "Azure takes the deployment from the member model of a JSON body, and there is none"}
			}
			path = base + "/deployments/" + url.PathEscape(model) + call + rest
			break
		}
	}
	var err error
	moveTo(r, func(u *url.URL) {
		if c.account.Resource != "" {
			u.Scheme, u.Host = "https", strings.ToLower(c.account.Resource)+azureDomain
		}
		err = setPath(u, path)
		if v := c.account.APIVersion; v != "" {
			q := u.Query()
			q.Set("api-version", v)
			u.RawQuery = q.Encode()
		}
	})
	if err != nil {
		return failed("the path of the request cannot be changed for Azure", err)
	}
	return nil
}
