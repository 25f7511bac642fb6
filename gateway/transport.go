package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"

	"github.com/cayhq/cay/internal/wire"
)

// DefaultURL is the default address of the gateway of a daemon on this machine.
const DefaultURL = "http://127.0.0.1:7071"

// Transport sends the requests of an HTTP client to the gateway, whatever host
// they are for: the client of a provider then speaks to the gateway in the
// provider's own format. Path, query and body stay as they are. Credentials the
// client has set are replaced by the gateway's key, which goes nowhere else.
//
// The gateway speaks the formats of OpenAI (chat completions, responses,
// embeddings) and Anthropic (messages); requests to other paths are answered with
// 404. The zero value can be used. Do not change a Transport after its first use.
type Transport struct {
	// URL is the gateway's address. Empty means $CAY_GATEWAY_URL, else DefaultURL.
	URL string
	// Key is the secret of a key, or of a token of the daemon. Empty means
	// $CAY_GATEWAY_KEY, else the token that Client would use: $CAY_TOKEN, or this
	// machine's admin token for a gateway on this machine.
	Key string
	// User is the end user that requests are made for, and Tags describe their
	// purpose. Both are recorded, and may have budgets.
	User string
	Tags []string
	// Base sends the requests. Nil means http.DefaultTransport.
	Base http.RoundTripper

	once sync.Once
	url  *url.URL
	key  string
	err  error
}

// credentialHeaders carry the keys of providers.
var credentialHeaders = []string{"Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "X-Ai-Gateway-Api-Key", "Cookie"}

// credentialParams are the query parameters that carry the keys of providers.
var credentialParams = []string{"key", "api_key", "api-key", "access_token"}

// RoundTrip implements http.RoundTripper. It fails for a request that follows a
// redirect: the gateway sends no redirects.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	t.once.Do(t.resolve)
	switch {
	case t.err != nil:
		return nil, closing(r, t.err)
	case r.Response != nil:
		return nil, closing(r, fmt.Errorf("the gateway %s answered with a redirect to %s", t.url.Redacted(), r.URL.Host))
	}
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	return base.RoundTrip(t.rewrite(r))
}

// closing returns err after it has closed the body of r, as a RoundTripper must.
func closing(r *http.Request, err error) error {
	if r.Body != nil {
		return errors.Join(err, r.Body.Close())
	}
	return err
}

func (t *Transport) resolve() {
	address := t.URL
	if address == "" {
		address = os.Getenv("CAY_GATEWAY_URL")
	}
	if address == "" {
		address = DefaultURL
	}
	t.key = t.Key
	if t.key == "" {
		t.key = os.Getenv("CAY_GATEWAY_KEY")
	}
	conn, err := wire.Target{URL: address, Token: t.key}.Resolve()
	if err != nil {
		t.err = fmt.Errorf("the address of the gateway: %w", err)
		return
	}
	if t.key = conn.Token(); t.key == "" {
		t.err = errors.New("there is no key for the gateway: set CAY_GATEWAY_KEY to one made with \"cay gateway keys create\"")
		return
	}
	t.url, t.err = url.Parse(conn.URL())
}

// rewrite returns r as a request to the gateway.
func (t *Transport) rewrite(r *http.Request) *http.Request {
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host, out.URL.User, out.Host = t.url.Scheme, t.url.Host, nil, ""
	if t.url.Path != "" {
		escaped := t.url.EscapedPath() + out.URL.EscapedPath()
		out.URL.Path, out.URL.RawPath = t.url.Path+out.URL.Path, escaped
	}
	if out.URL.RawQuery != "" {
		q := out.URL.Query()
		before := len(q)
		for _, name := range credentialParams {
			q.Del(name)
		}
		if len(q) != before {
			out.URL.RawQuery = q.Encode()
		}
	}
	for _, name := range credentialHeaders {
		out.Header.Del(name)
	}
	out.Header.Set("Authorization", "Bearer "+t.key)
	if t.User != "" {
		out.Header.Set("X-Cay-User", url.QueryEscape(t.User))
	}
	if len(t.Tags) > 0 {
		escaped := make([]string, len(t.Tags))
		for i, tag := range t.Tags {
			escaped[i] = url.QueryEscape(tag)
		}
		out.Header.Set("X-Cay-Tags", strings.Join(escaped, ","))
	}
	return out
}
