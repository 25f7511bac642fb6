package provider_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/provider"
)

var rsaKey = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
})

func keyPEM(t testing.TB) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(rsaKey())
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// tokens simulates Google's endpoint for access tokens. It verifies the assertion.
type tokens struct {
	*httptest.Server
	given   atomic.Int64
	status  atomic.Int64
	hold    chan struct{} // if not nil, answers wait for it
	arrived chan struct{}
}

func newTokens(t *testing.T, hold chan struct{}) *tokens {
	t.Helper()
	s := &tokens{hold: hold, arrived: make(chan struct{}, 100)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.arrived <- struct{}{}
		if s.hold != nil {
			<-s.hold
		}
		w.Header().Set("Content-Type", "application/json")
		if status := int(s.status.Load()); status != 0 {
			w.WriteHeader(status)
			fmt.Fprint(w, `{"error":"invalid_grant","error_description":"Invalid JWT Signature."}`)
			return
		}
		if err := s.verify(r); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, `{"access_token":"ya29.token-%d","expires_in":3600,"token_type":"Bearer"}`, s.given.Add(1))
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *tokens) verify(r *http.Request) error {
	if grant := r.FormValue("grant_type"); grant != "urn:ietf:params:oauth:grant-type:jwt-bearer" {
		return fmt.Errorf("grant %q", grant)
	}
	token, err := jwt.ParseSigned(r.FormValue("assertion"), []jose.SignatureAlgorithm{jose.RS256})
	if err != nil {
		return err
	}
	var claims map[string]any
	if err := token.Claims(&rsaKey().PublicKey, &claims); err != nil {
		return err
	}
	if claims["iss"] != "me@project.iam" || claims["aud"] != s.URL+"/token" || claims["scope"] != "https://www.googleapis.com/auth/cloud-platform" ||
		claims["exp"].(float64)-claims["iat"].(float64) != 3600 || token.Headers[0].KeyID != "key-1" {
		return fmt.Errorf("claims %v", claims)
	}
	return nil
}

func (s *tokens) account(t *testing.T) provider.Google {
	t.Helper()
	file, err := json.Marshal(map[string]string{
		"type": "service_account", "project_id": "my-project", "private_key_id": "key-1", "private_key": keyPEM(t),
		"client_email": "me@project.iam", "token_uri": s.URL + "/token",
	})
	if err != nil {
		t.Fatal(err)
	}
	g, err := provider.ReadGoogle(file)
	if err != nil {
		t.Fatal(err)
	}
	g.Client = s.Client()
	return g
}

func authorize(ctx context.Context, c provider.Credential, address string) (*http.Request, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	r := (&http.Request{Method: http.MethodPost, URL: u, Header: http.Header{}}).WithContext(ctx)
	return r, c.Authorize(ctx, r, nil)
}

const vertex = "https://aiplatform.googleapis.com/v1/projects/none/locations/global/publishers/google/models/gemini%2D2:generateContent?alt=sse"

func TestServiceAccount_KeepsToken(t *testing.T) {
	t.Parallel()
	s := newTokens(t, nil)
	c, err := provider.ServiceAccount(provider.Owner{ID: "g"}, s.account(t))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	provider.SetNow(c, func() time.Time { return now })
	for _, step := range []struct {
		later time.Duration
		want  string
	}{{0, "Bearer ya29.token-1"}, {55 * time.Minute, "Bearer ya29.token-1"}, {2 * time.Minute, "Bearer ya29.token-2"}} { // 57 minutes: 3 before its end
		now = now.Add(step.later)
		r, err := authorize(t.Context(), c, vertex)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Header.Get("Authorization"); got != step.want {
			t.Errorf("after %v: %q, want %q", step.later, got, step.want)
		}
	}
}

func TestServiceAccount_OneAsksForAll(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	s := newTokens(t, hold)
	c, err := provider.ServiceAccount(provider.Owner{ID: "g"}, s.account(t))
	if err != nil {
		t.Fatal(err)
	}
	// The first caller leaves while it waits; the others get the token it requested.
	first, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := authorize(first, c, vertex)
		left <- err
	}()
	<-s.arrived
	leave()
	var e *hub.Error
	if err := <-left; !asHub(err, &e) || e.Kind != hub.Timeout {
		t.Errorf("who left got %v", err)
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if r, err := authorize(t.Context(), c, vertex); err != nil || r.Header.Get("Authorization") != "Bearer ya29.token-1" {
				t.Errorf("%v %v", r.Header, err)
			}
		})
	}
	close(hold)
	all.Wait()
	if n := s.given.Load(); n != 1 {
		t.Errorf("%d tokens were asked for", n)
	}
}

func TestServiceAccount_Refused(t *testing.T) {
	t.Parallel()
	s := newTokens(t, nil)
	s.status.Store(400)
	c, err := provider.ServiceAccount(provider.Owner{ID: "g"}, s.account(t))
	if err != nil {
		t.Fatal(err)
	}
	_, err = authorize(t.Context(), c, vertex)
	var e *hub.Error
	if !asHub(err, &e) || e.Kind != hub.UpstreamFailed || e.Status != 400 || !strings.Contains(e.Message, "invalid_grant: Invalid JWT Signature.") {
		t.Errorf("%#v", err)
	}
	s.status.Store(0) // a failure is not kept
	if _, err := authorize(t.Context(), c, vertex); err != nil {
		t.Error(err)
	}
	s.Close()
	c, err = provider.ServiceAccount(provider.Owner{ID: "g"}, s.account(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := authorize(t.Context(), c, vertex); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("%v", err)
	}
}

func TestServiceAccount_Project(t *testing.T) {
	t.Parallel()
	s := newTokens(t, nil)
	g := s.account(t)
	for _, c := range []struct{ project, location, want string }{
		{"", "", vertex},
		{"p1", "", strings.Replace(vertex, "/none/", "/p1/", 1)},
		{"p1", "europe-west4", "https://europe-west4-aiplatform.googleapis.com/v1/projects/p1/locations/europe-west4/publishers/google/models/gemini%2D2:generateContent?alt=sse"},
		{"p1", "global", strings.Replace(vertex, "/none/", "/p1/", 1)},
	} {
		g.Project, g.Location = c.project, c.location
		cred, err := provider.ServiceAccount(provider.Owner{}, g)
		if err != nil {
			t.Fatal(err)
		}
		r, err := authorize(t.Context(), cred, vertex)
		if err != nil || r.URL.String() != c.want {
			t.Errorf("%v %v, want %v", r.URL, err, c.want)
		}
	}
	for _, bad := range []provider.Google{{Project: "../x"}, {Project: "a/b"}, {Location: "evil.example#"}, {Location: "a b"}} {
		h := g
		h.Project, h.Location = bad.Project, bad.Location
		if _, err := provider.ServiceAccount(provider.Owner{}, h); err == nil {
			t.Errorf("%q %q are taken", bad.Project, bad.Location)
		}
	}
}

func TestReadGoogle_Wrong(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"sk-not-json":                "not JSON",
		`{"type":"authorized_user"}`: `"authorized_user"`,
		`{"type":"service_account"}`: "client_email",
		`{"type":"service_account","client_email":"a@b","private_key":"nonsense"}`:                                                       "not PEM",
		`{"type":"service_account","client_email":"a@b","private_key":"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"}`: "damaged",
	} {
		g, err := provider.ReadGoogle([]byte(in))
		if err == nil {
			_, err = provider.ServiceAccount(provider.Owner{}, g)
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "nonsense") {
			t.Errorf("%s: %v, want %q", in, err, want)
		}
	}
}
