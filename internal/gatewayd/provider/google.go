package provider

import (
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Google is a service account of Google Cloud.
type Google struct {
	// Email, PrivateKey (PEM) and KeyID are client_email, private_key and, optionally,
	// private_key_id of the account's key file.
	Email      string
	PrivateKey Secret
	KeyID      string
	// TokenURL is the address that issues access tokens. Empty means Google's.
	TokenURL string
	// Project and Location, if set, replace those in the provider's base URL.
	Project, Location string
	// Client requests the access tokens. Nil means http.DefaultClient, with a timeout.
	Client *http.Client
}

const (
	googleTokenURL = "https://oauth2.googleapis.com/token"
	googleScope    = "https://www.googleapis.com/auth/cloud-platform"
)

// ReadGoogle parses a key file as Google Cloud issues it. Errors: invalid, with a message
// that repeats nothing of the file.
func ReadGoogle(keyFile []byte) (Google, error) {
	var f struct {
		Type       string `json:"type"`
		Email      string `json:"client_email"`
		PrivateKey string `json:"private_key"`
		KeyID      string `json:"private_key_id"`
		TokenURI   string `json:"token_uri"`
		Project    string `json:"project_id"`
	}
	if json.Unmarshal(keyFile, &f) != nil {
		return Google{}, cay.Errorf(cay.Invalid, "it is not JSON, as the key file of a Google service account is")
	}
	if f.Type != "service_account" {
		return Google{}, cay.Errorf(cay.Invalid, "it is of the type %.40q, and no key of a service account; those of the daemon's own environment are used with auth: google-default", f.Type)
	}
	return Google{Email: f.Email, PrivateKey: newSecret(f.PrivateKey), KeyID: f.KeyID, TokenURL: f.TokenURI, Project: f.Project}, nil
}

// googleAccount sends Google's access tokens; it changes project and location of requests
// if they are set.
type googleAccount struct {
	owned
	project, location string
	token             *renewed[string]
}

// signer gets access tokens for a service account.
type signer struct {
	account Google
	key     *rsa.PrivateKey
}

// ServiceAccount returns the credential that signs in as a service account and sends its
// access token, which is cached until shortly before it expires. Errors: invalid.
func ServiceAccount(o Owner, g Google) (Credential, error) {
	switch {
	case g.Email == "" || len(g.Email) > 256:
		return nil, cay.Errorf(cay.Invalid, "the service account has no e-mail address (client_email)")
	case g.Project != "" && !place().MatchString(g.Project):
		return nil, cay.Errorf(cay.Invalid, "project %.80q is no id of a Google Cloud project", g.Project)
	case g.Location != "" && !place().MatchString(g.Location):
		return nil, cay.Errorf(cay.Invalid, "location %.80q is none of Google Cloud, such as global or europe-west4", g.Location)
	}
	key, err := rsaKey(g.PrivateKey.reveal())
	if err != nil {
		return nil, err
	}
	if g.TokenURL == "" {
		g.TokenURL = googleTokenURL
	}
	if g.Client == nil {
		g.Client = http.DefaultClient
	}
	g.PrivateKey = Secret{}
	s := &signer{g, key}
	return &googleAccount{owned{o, "Google service account"}, g.Project, g.Location, newRenewed("Google", s.fetchToken)}, nil
}

// rsaKey parses a PEM key; environment variables often contain \n instead of line ends.
func rsaKey(text string) (*rsa.PrivateKey, error) {
	block, _ := pem.Decode([]byte(strings.ReplaceAll(text, `\n`, "\n")))
	if block == nil {
		return nil, cay.Errorf(cay.Invalid, "the private key of the service account is not PEM")
	}
	if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "the private key of the service account is damaged")
	}
	if key, ok := key.(*rsa.PrivateKey); ok {
		return key, nil
	}
	return nil, cay.Errorf(cay.Invalid, "the private key of the service account is not RSA")
}

// Authorize implements Credential.
func (c *googleAccount) Authorize(ctx context.Context, r *http.Request, _ []byte) error {
	token, err := c.token.get(ctx)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	if c.project == "" && c.location == "" {
		return nil
	}
	moveTo(r, func(u *url.URL) { err = toProject(u, c.project, c.location) })
	if err != nil {
		return failed("the path of the request cannot be changed for Google Cloud", err)
	}
	return nil
}

// toProject replaces project and location in a Vertex AI URL:
// https://{location}-aiplatform.googleapis.com/v1/projects/{project}/locations/{location}/...
func toProject(u *url.URL, project, location string) error {
	parts := strings.Split(u.EscapedPath(), "/")
	for i := range len(parts) - 1 {
		switch {
		case parts[i] == "projects" && project != "":
			parts[i+1] = project
		case parts[i] == "locations" && location != "":
			parts[i+1] = location
		}
	}
	if location != "" && strings.HasSuffix(u.Host, vertexDomain) {
		u.Host = vertexHost(location)
	}
	return setPath(u, strings.Join(parts, "/"))
}

const vertexDomain = "aiplatform.googleapis.com"

func vertexHost(location string) string {
	if location == "global" {
		return vertexDomain
	}
	return location + "-" + vertexDomain
}

// fetchToken exchanges an assertion for an access token (RFC 7523).
func (c *signer) fetchToken(ctx context.Context) (string, time.Time, error) {
	var none time.Time
	assertion, err := c.assertion()
	if err != nil {
		return "", none, failed("the service account's key cannot sign", err)
	}
	form := url.Values{"grant_type": {"urn:ietf:params:oauth:grant-type:jwt-bearer"}, "assertion": {assertion}}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.account.TokenURL, strings.NewReader(form.Encode()))
	if err != nil {
		return "", none, failed("the address of Google's access tokens is wrong", nil)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := withoutRedirects(c.account.Client).Do(r)
	if err != nil {
		return "", none, failed("Google gave no access token: "+reason(err), err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return "", none, failed("Google gave no access token: "+reason(err), err)
	}
	var answer struct {
		Token     string `json:"access_token"`
		ExpiresIn int64  `json:"expires_in"`
		Code      string `json:"error"`
		Text      string `json:"error_description"`
	}
	bad := json.Unmarshal(raw, &answer)
	switch {
	case resp.StatusCode != http.StatusOK:
		what := answer.Code
		if answer.Text != "" {
			what += ": " + answer.Text
		}
		e := failed("Google refused the service account ("+resp.Status+") "+hub.Redact(what), nil)
		e.Status = resp.StatusCode
		return "", none, e
	case bad != nil:
		return "", none, failed("what Google gave as an access token is not JSON", nil)
	}
	token, err := NewSecret(answer.Token)
	if err != nil {
		return "", none, failed("Google's access token cannot be sent", errors.Unwrap(err))
	}
	life := time.Duration(max(0, min(answer.ExpiresIn, 24*3600))) * time.Second
	return token.reveal(), time.Now().Add(life), nil
}

func (c *signer) assertion() (string, error) {
	o := (&jose.SignerOptions{}).WithType("JWT")
	if c.account.KeyID != "" {
		o = o.WithHeader("kid", c.account.KeyID)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: c.key}, o)
	if err != nil {
		return "", err
	}
	now := time.Now()
	return jwt.Signed(signer).Claims(map[string]any{
		"iss": c.account.Email, "scope": googleScope, "aud": c.account.TokenURL,
		"iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
	}).Serialize()
}

// withoutRedirects returns a client that does not follow redirects, so that credentials
// go only to the address they were meant for.
func withoutRedirects(client *http.Client) *http.Client {
	c := *client
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &c
}
