package settings

import (
	"crypto/sha256"
	"encoding/json"
	"net/http"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/gatewayd/provider"
)

// credentialBuilder builds credentials. It keeps the credentials of the previous settings
// that cache access tokens.
type credentialBuilder struct {
	environment
	client   *http.Client
	old      map[accountKey]provider.Credential // of the previous settings
	accounts map[accountKey]provider.Credential // of these
}

func (b *credentialBuilder) key(k *provider.Known, e *Provider, o provider.Owner, text string) (provider.Credential, error) {
	s, err := provider.NewSecret(text)
	if err != nil {
		return nil, err
	}
	switch k.Auth {
	case provider.AuthAzure:
		return provider.AzureKey(o, provider.Azure{Key: s, APIVersion: e.APIVersion, Deployments: e.Deployments})
	case provider.AuthVertex:
		return nil, cay.Errorf(cay.Invalid, "Vertex takes a service_account, not a key")
	}
	return provider.KeyFor(k.Auth, o, s)
}

func (b *credentialBuilder) aws(o provider.Owner, a *AWS, region string) (provider.Credential, error) {
	keys := provider.AWS{Region: region}
	var err error
	if keys.AccessKeyID, err = b.secret(a.AccessKeyID); err != nil {
		return nil, at(err, "access_key_id")
	}
	secret, err := b.secret(a.SecretAccessKey)
	if err != nil {
		return nil, at(err, "secret_access_key")
	}
	if keys.SecretAccessKey, err = provider.NewSecret(secret); err != nil {
		return nil, at(err, "secret_access_key")
	}
	if a.SessionToken != nil {
		token, err := b.secret(a.SessionToken)
		if err != nil {
			return nil, at(err, "session_token")
		}
		if keys.SessionToken, err = provider.NewSecret(token); err != nil {
			return nil, at(err, "session_token")
		}
	}
	return provider.SigV4(o, keys)
}

func (b *credentialBuilder) serviceAccount(text string) (provider.Credential, error) {
	g, err := provider.ReadGoogle([]byte(text))
	if err != nil {
		return nil, err
	}
	g.Project = "" // the base URL contains the project
	return b.account(provider.Owner{ID: "service-account"}, g, text)
}

// ambient returns the credential from the daemon's cloud environment, for the provider's
// known address or an address in the file. A provider set by the API must not send the
// machine's identity to an arbitrary address.
func (b *credentialBuilder) ambient(p *provider.Provider, k *provider.Known, e *Provider, origin Origin) (provider.Credential, error) {
	switch takes := provider.AmbientFor(k.Auth); {
	case takes == "":
		return nil, cay.Errorf(cay.Invalid, "%s takes none of the credentials that clouds give to machines: these are for bedrock, vertex and azure", p.Name)
	case e.Auth != takes:
		return nil, cay.Errorf(cay.Invalid, "%.40q is not %s, which is what %s takes", e.Auth, takes, p.Name)
	case (e.BaseURL != "" || e.Paths.address()) && origin != FromFile:
		return nil, cay.Errorf(cay.Invalid, "%s goes to the provider's own address; only the file of settings can name another (base_url, paths)", e.Auth)
	}
	o := provider.Owner{ID: e.Auth, ZeroRetention: p.ZeroRetention}
	azure := provider.Azure{APIVersion: e.APIVersion, Deployments: e.Deployments}
	return b.kept([]any{o, e.Region, e.Profile, azure}, func() (provider.Credential, error) {
		switch e.Auth {
		case provider.AWSAmbient:
			return provider.AWSDefault(o, e.Region, e.Profile)
		case provider.GoogleAmbient:
			return provider.GoogleDefault(o, b.client), nil
		}
		return provider.AzureDefault(o, azure, b.client)
	})
}

// accountKey identifies a credential that caches access tokens.
type accountKey [sha256.Size]byte

// kept returns the credential for a description: the previous settings' credential if the
// description is equal, because it holds an access token; otherwise a new one.
func (b *credentialBuilder) kept(description []any, make func() (provider.Credential, error)) (provider.Credential, error) {
	h := sha256.New()
	if err := json.NewEncoder(h).Encode(description); err != nil {
		return nil, err
	}
	key := accountKey(h.Sum(nil))
	c := b.old[key]
	if c == nil {
		var err error
		if c, err = make(); err != nil {
			return nil, err
		}
	}
	b.accounts[key] = c
	return c, nil
}

// account returns the credential of a service account; text is the content of its key
// file.
func (b *credentialBuilder) account(o provider.Owner, g provider.Google, text string) (provider.Credential, error) {
	return b.kept([]any{o, g.Project, g.Location, g.TokenURL, text}, func() (provider.Credential, error) {
		g.Client = b.client
		return provider.ServiceAccount(o, g)
	})
}
