package daemon_test

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/daemon"
	"github.com/cayhq/cay/internal/oidc"
	"github.com/cayhq/cay/internal/sandboxd/fake"
	"github.com/cayhq/cay/sandbox"
)

// The receiver of forwarded requests can verify, with the daemon's published keys,
// the sandbox that a request comes from, whatever that sandbox claims; also if its
// machine came from a pool, or another daemon has started it.
func TestForwardToken(t *testing.T) {
	t.Parallel()
	s := openSite(t, func(s *site) {
		s.opts.DestroyOnStop = false
		s.cfg.Pool = 1
	})
	policy := openedPolicy()
	s.pool(t, func(p sandbox.Pool) bool { return p.Ready == 1 })
	for _, p := range []sandbox.CreateParams{
		{Name: "pooled", Network: policy}, {Name: "own", Network: policy, Runtime: "python3.13"},
	} {
		p.Timeout = sandbox.Duration(10 * time.Minute)
		sb, err := s.Create(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		first := s.forwarded(t, sb)
		if again := s.forwarded(t, sb); again != first {
			t.Errorf("%s: each request has a token of its own", p.Name)
		}
		c := account.Client{URL: s.daemon.URL(), Token: first}
		if _, err := c.WhoAmI(t.Context()); cay.CodeOf(err) != cay.Unauthenticated {
			t.Errorf("%s: the API takes a receiver's token: %v", p.Name, err)
		}
	}
	s.pool(t, func(p sandbox.Pool) bool { return p.Claims == 1 })
	sb, err := s.Get(t.Context(), "own")
	if err != nil {
		t.Fatal(err)
	}
	s.restart(t)
	s.forwarded(t, sb)
}

// A daemon with a configured URL gives that URL to every client, also to clients
// that use another URL, and answers to its host.
func TestPublicURL(t *testing.T) {
	t.Parallel()
	s := &site{cfg: settings(t.TempDir()), log: &checktest.Log{}}
	s.cfg.PublicURL = "https://cay.example.com"
	rt, err := fake.New(filepath.Join(s.cfg.Data, "machines"))
	if err != nil {
		t.Fatal(err)
	}
	s.opts = daemon.Options{Runtime: rt}
	t.Cleanup(func() {
		s.stop(t)
		if err := rt.Close(); err != nil {
			t.Error(err)
		}
	})
	s.start(t)
	for host, want := range map[string]int{"": 200, "cay.example.com": 200, "other.example.com": 403} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", s.daemon.URL()+"/.well-known/openid-configuration", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != want || want == 200 && !strings.Contains(string(b), `"issuer":"https://cay.example.com"`) {
			t.Errorf("for the host %q: %d %s, %v", host, resp.StatusCode, b, err)
		}
	}
	admin, err := os.ReadFile(s.cfg.AdminTokenFile())
	if err != nil {
		t.Fatal(err)
	}
	c := account.Client{URL: s.daemon.URL(), Token: strings.TrimSpace(string(admin))}
	token, err := c.CreateToken(t.Context(), account.CreateTokenParams{JWT: true})
	if err != nil {
		t.Fatal(err)
	}
	var claims oidc.Claims
	if !oidc.Unverified(token.Secret, &claims) || claims.Issuer != "https://cay.example.com" {
		t.Errorf("a token is issued by %q", claims.Issuer)
	}
}

// pool waits until the daemon's pool satisfies good.
func (s *site) pool(t *testing.T, good func(sandbox.Pool) bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for { // there is no event to wait for
		pools, err := s.Pools(t.Context())
		if err != nil || len(pools) != 1 {
			t.Fatalf("pools %+v, %v", pools, err)
		}
		if good(pools[0]) {
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-deadline:
			t.Fatalf("the pool stays %+v", pools[0])
		}
	}
}

// forwarded makes a sandbox send a request that is forwarded, and returns its token
// after checking it.
func (s *site) forwarded(t *testing.T, sb *sandbox.Sandbox) string {
	t.Helper()
	begin := s.net.Mark()
	st := &station{Handle: s.Sandbox(sb.ID), site: s, client: "curl"}
	st.shell(t, `curl -sS --fail -H 'vercel-sandbox-oidc-token: evil' -H 'Vercel_Sandbox_Oidc_Token: evil' https://api.example.com/forward/x`)
	var token string
	for _, r := range s.net.Requests(begin) {
		if r.Server != "files" {
			continue
		}
		for name, values := range r.Header {
			if strings.Contains(strings.Join(values, " "), "evil") {
				t.Errorf("the receiver sees the guest's own %s", name)
			}
		}
		token = r.Header.Get("vercel-sandbox-oidc-token")
	}
	resp, err := http.Get(s.daemon.URL() + "/.well-known/jwks")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	doc, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var keys jose.JSONWebKeySet
	if err := json.Unmarshal(doc, &keys); err != nil {
		t.Fatalf("%s: %v", doc, err)
	}
	signed, err := jose.ParseSignedCompact(token, []jose.SignatureAlgorithm{jose.RS256})
	if err != nil {
		t.Fatalf("token %q: %v", token, err)
	}
	payload, err := signed.Verify(keys)
	if err != nil {
		t.Fatal(err)
	}
	var claims struct {
		Issuer      string `json:"iss"`
		Audience    string `json:"aud"`
		Expiry      int64  `json:"exp"`
		TeamID      string `json:"team_id"`
		ProjectID   string `json:"project_id"`
		SandboxID   string `json:"sandbox_id"`
		SandboxName string `json:"sandbox_name"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil {
		t.Fatal(err)
	}
	if claims.Issuer != s.daemon.URL() || claims.Audience != "https://files.example.com/base" || claims.TeamID != account.DefaultTeam ||
		claims.ProjectID != account.DefaultProject || claims.SandboxID != sb.ID || claims.SandboxName != sb.Name ||
		claims.Expiry <= time.Now().Unix() || claims.Expiry > time.Now().Add(10*time.Minute).Unix() {
		t.Errorf("the token of %s says %s", sb.Name, payload)
	}
	return token
}
