package provider

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

const (
	checkTimeout = 20 * time.Second
	maxList      = 16 << 20 // bytes of a list of models
	maxModels    = 10_000
)

// Check tests a provider with each of its credentials: it requests the list of models, if
// the provider has one; otherwise it sends an invalid call, which costs nothing and shows
// whether the credential is accepted.
func Check(ctx context.Context, p *Provider, client *http.Client) gateway.Check {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	c := gateway.Check{Provider: p.Name}
	if slices.Equal(p.Formats, []string{"scripted"}) {
		c.OK = true
		return c
	}
	credentials := p.Credentials
	if len(credentials) == 0 {
		if p.NeedsCredential {
			c.Error, c.Hint = "there is no credential", noCredential(p)
			return c
		}
		credentials = []Credential{nil}
	}
	c.OK = true
	for _, cred := range credentials {
		began := time.Now()
		models, err := probe(ctx, p, cred, client)
		c.Latency = max(c.Latency, gateway.Millis(float64(time.Since(began).Microseconds())/1000))
		if err == nil {
			c.Models = max(c.Models, len(models))
			continue
		}
		c.OK, c.Error, c.Hint = false, reason(err), hint(p, err)
		if len(credentials) > 1 {
			c.Error = cred.ID() + ": " + c.Error
		}
		break
	}
	return c
}

func noCredential(p *Provider) string {
	if k, ok := KnownKind(p.Kind); ok && len(k.KeyEnv) > 0 {
		return "set " + k.KeyEnv[0] + ", or give " + p.Name + " a key in the gateway's settings"
	}
	return "give " + p.Name + " a key in the gateway's settings"
}

// ListModels returns the provider's names of its models, using the first credential.
// Errors: network errors unchanged; *hub.Error for the provider's error answers.
func ListModels(ctx context.Context, p *Provider, client *http.Client) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if p.Models == "" {
		return nil, &hub.Error{Kind: hub.NotFound, Provider: p.Name, Message: p.Name + " has no list of models"}
	}
	var cred Credential
	if len(p.Credentials) > 0 {
		cred = p.Credentials[0]
	}
	return list(ctx, p, cred, client)
}

func probe(ctx context.Context, p *Provider, cred Credential, client *http.Client) ([]string, error) {
	if p.Models != "" {
		return list(ctx, p, cred, client)
	}
	path, body := wrongCall(p)
	resp, raw, err := ask(ctx, p, cred, client, http.MethodPost, path, body)
	if err != nil {
		return nil, err
	}
	switch resp.StatusCode {
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusNotFound:
		if json.Valid(raw) { // the API's own error: the credential is known
			return nil, nil
		}
	}
	if resp.StatusCode < 300 {
		return nil, nil
	}
	return nil, answered(p, resp, raw)
}

// wrongCall returns a call that the provider's validation rejects.
func wrongCall(p *Provider) (path, body string) {
	switch p.Formats[0] {
	case "messages":
		return "/messages", "{}"
	case "responses":
		return "/responses", "{}"
	case "gemini":
		return "/models/cay-check:countTokens", `{"contents":[]}`
	case "converse":
		return "/model/cay.check/converse", `{"messages":[{"role":"user","content":[{"text":"check"}]}]}`
	}
	return "/chat/completions", "{}"
}

func list(ctx context.Context, p *Provider, cred Credential, client *http.Client) ([]string, error) {
	resp, raw, err := ask(ctx, p, cred, client, http.MethodGet, p.Models, "")
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, answered(p, resp, raw)
	}
	names, ok := modelNames(raw)
	if !ok {
		return nil, &hub.Error{Kind: hub.UpstreamFailed, Status: resp.StatusCode, Provider: p.Name, Message: p.Name + " answered with something that is no list of models"}
	}
	return names, nil
}

// modelNames reads a list of models: {"data":[{"id":...}]} of most providers, an array of
// such objects, {"models":[{"name":"models/..."}]} of Google and Cohere.
func modelNames(raw []byte) (names []string, ok bool) {
	if !gjson.ValidBytes(raw) {
		return nil, false
	}
	root := gjson.ParseBytes(raw)
	all := root
	for _, member := range []string{"data", "models"} {
		if l := root.Get(member); root.IsObject() && l.IsArray() {
			all = l
			break
		}
	}
	if root.IsObject() && root.Get("data").Type == gjson.Null && root.Get("data").Exists() {
		return nil, true // an empty list, as some servers have it
	}
	if !all.IsArray() {
		return nil, false
	}
	all.ForEach(func(_, m gjson.Result) bool {
		name := m.Get("id").Str
		if name == "" {
			name = strings.TrimPrefix(m.Get("name").Str, "models/")
		}
		if name != "" && len(name) <= 256 && !strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			names = append(names, name)
		}
		return len(names) < maxModels
	})
	return names, true
}

func ask(ctx context.Context, p *Provider, cred Credential, client *http.Client, method, path, body string) (*http.Response, []byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, p.URL(path), strings.NewReader(body))
	if err != nil {
		return nil, nil, &hub.Error{Kind: hub.Internal, Provider: p.Name, Message: "the base URL of " + p.Name + " is not one"}
	}
	if body == "" {
		r.Body, r.ContentLength = http.NoBody, 0
	} else {
		r.Header.Set("Content-Type", "application/json")
	}
	if p.Formats[0] == "messages" {
		r.Header.Set("Anthropic-Version", "2023-06-01")
	}
	for name, values := range p.Header {
		r.Header[name] = values
	}
	if cred != nil {
		if err := cred.Authorize(ctx, r, []byte(body)); err != nil {
			return nil, nil, err
		}
	}
	resp, err := withoutRedirects(client).Do(r)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxList+1))
	if err == nil && len(raw) > maxList {
		err = fmt.Errorf("its answer is larger than %d MiB", maxList>>20)
	}
	return resp, raw, err
}

// answered returns the error for an answer that is not a success.
func answered(p *Provider, resp *http.Response, raw []byte) error {
	what := gjson.GetBytes(raw, "error.message").Str
	for _, member := range []string{"message", "Message", "error", "detail"} {
		if what == "" && gjson.ValidBytes(raw) {
			what = gjson.GetBytes(raw, member).Str
		}
	}
	e := &hub.Error{Kind: hub.KindOf(resp.StatusCode), Status: resp.StatusCode, Provider: p.Name, Message: p.Name + " answered with " + resp.Status}
	if what = hub.Redact(what); what != "" {
		if len(what) > 300 {
			what = strings.ToValidUTF8(what[:300], "") + "…"
		}
		e.Message += ": " + what
	}
	return e
}

// reason returns a network error without its URL, whose query may contain a credential.
func reason(err error) string {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return err.Error()
}

// hint returns a suggestion to the user for an error of a check.
func hint(p *Provider, err error) string {
	host := p.BaseURL
	if u, err := url.Parse(p.BaseURL); err == nil {
		host = u.Host
	}
	var (
		answer  *hub.Error
		dns     *net.DNSError
		unknown x509.UnknownAuthorityError
		name    x509.HostnameError
		plain   tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &answer):
		return statusHint(p, answer)
	case errors.As(err, &dns):
		return host + " is not known to this machine's name servers: is base_url right, and is there a network?"
	case errors.As(err, &unknown), errors.As(err, &name):
		return "the certificate of " + host + " is not trusted here; add its authority to this machine's"
	case errors.As(err, &plain), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return host + " does not speak TLS: write http:// in base_url"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return host + " does not answer in time; is there a firewall or proxy in between?"
	case isRefused(err):
		return "nothing listens at " + host + "; is the server running?"
	}
	return "is base_url right (" + p.BaseURL + ")?"
}

func isRefused(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

func statusHint(p *Provider, e *hub.Error) string {
	switch e.Status {
	case http.StatusUnauthorized, http.StatusForbidden:
		if p.Kind == "bedrock" {
			return "are the keys right, and may they call bedrock:InvokeModel in the region?"
		}
		return "the key is wrong, has expired, or may not do this; " + noCredential(p)
	case http.StatusPaymentRequired, http.StatusTooManyRequests:
		return "the key is right, but its account has reached a limit or has no credit"
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusMovedPermanently, http.StatusFound, http.StatusPermanentRedirect, http.StatusTemporaryRedirect:
		return "is base_url right (" + p.BaseURL + ")? for most servers it ends in /v1"
	case 0:
		if e.Code == "credential_failed" {
			return "is the credential right?"
		}
		return ""
	}
	if e.Status >= 500 {
		return p.Name + " is in trouble itself; try again later"
	}
	return "is base_url right (" + p.BaseURL + ")?"
}
