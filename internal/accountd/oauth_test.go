package accountd_test

import (
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/accountd"
	"github.com/cayhq/cay/internal/accountd/accounttest"
	"github.com/cayhq/cay/internal/checktest"
)

// oauthClient logs in as devices do.
type oauthClient struct {
	t   *testing.T
	b   *bundle
	url string
	hc  *http.Client
}

const deviceGrant = "urn:ietf:params:oauth:grant-type:device_code"

func (b *bundle) client(t *testing.T) *oauthClient {
	t.Helper()
	url, hc := b.serve(t)
	return &oauthClient{t, b, url, hc}
}

type authorization struct {
	DeviceCode string `json:"device_code"`
	UserCode   string `json:"user_code"`
	URI        string `json:"verification_uri"`
	Complete   string `json:"verification_uri_complete"`
	ExpiresIn  int    `json:"expires_in"`
	Interval   int    `json:"interval"`
}

type tokenSet struct {
	AccessToken  string `json:"access_token"`
	TokenType    string `json:"token_type"`
	ExpiresIn    int    `json:"expires_in"`
	RefreshToken string `json:"refresh_token"`
	Scope        string `json:"scope"`

	Error       string `json:"error"`
	Description string `json:"error_description"`
}

// post sends a form to path and decodes the answer into v.
func (c *oauthClient) post(t *testing.T, path string, v any, form ...string) *http.Response {
	t.Helper()
	values := url.Values{}
	for i := 0; i < len(form); i += 2 {
		values.Set(form[i], form[i+1])
	}
	resp, body := c.send(t, path, "application/x-www-form-urlencoded", values.Encode())
	if err := json.Unmarshal([]byte(body), v); err != nil {
		t.Fatalf("%s answered %d %s", path, resp.StatusCode, body)
	}
	return resp
}

func (c *oauthClient) send(t *testing.T, path, contentType, body string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", c.url+path, strings.NewReader(body))
	checktest.OK(t, err)
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("User-Agent", "laptop @ test/1.0")
	return c.do(t, req)
}

func (c *oauthClient) get(t *testing.T, path string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", c.url+path, nil)
	checktest.OK(t, err)
	return c.do(t, req)
}

func (c *oauthClient) do(t *testing.T, req *http.Request) (*http.Response, string) {
	t.Helper()
	resp, err := c.hc.Do(req)
	checktest.OK(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	checktest.OK(t, err)
	return resp, string(b)
}

func (c *oauthClient) begin(t *testing.T) (a authorization) {
	t.Helper()
	resp := c.post(t, "/oauth/device_authorization", &a, "client_id", "cl_test", "scope", "openid offline_access")
	if resp.StatusCode != 200 || a.DeviceCode == "" || len(a.UserCode) != 9 || a.ExpiresIn != 600 || a.Interval != 5 ||
		a.URI != c.url+"/oauth/device" || a.Complete != a.URI+"?user_code="+a.UserCode {
		t.Fatalf("%d %+v", resp.StatusCode, a)
	}
	return a
}

func (c *oauthClient) poll(t *testing.T, deviceCode string) (s tokenSet) {
	t.Helper()
	c.post(t, "/oauth/token", &s, "client_id", "cl_test", "grant_type", deviceGrant, "device_code", deviceCode)
	return s
}

func (c *oauthClient) refresh(t *testing.T, token string) (s tokenSet) {
	t.Helper()
	c.post(t, "/oauth/token", &s, "client_id", "cl_test", "grant_type", "refresh_token", "refresh_token", token)
	return s
}

// login starts a login for accounttest.
func (c *oauthClient) login() (string, accounttest.Poll) {
	a := c.begin(c.t)
	return a.UserCode, func() (string, string) {
		s := c.poll(c.t, a.DeviceCode)
		return s.AccessToken, s.Error
	}
}

// approved returns the tokens of a whole login.
func (c *oauthClient) approved(t *testing.T) tokenSet {
	t.Helper()
	a := c.begin(t)
	_, err := c.b.ApproveDeviceLogin(c.b.as(t.Context(), c.b.secret(t), ""), a.UserCode, account.ApproveParams{})
	checktest.OK(t, err)
	s := c.poll(t, a.DeviceCode)
	if s.Error != "" || s.TokenType != "Bearer" || s.ExpiresIn != 30*24*3600 || s.Scope != "openid offline_access" || s.RefreshToken == "" {
		t.Fatalf("logged in with %+v", s)
	}
	return s
}

func (c *oauthClient) active(t *testing.T, token string) (in struct {
	Active    bool
	ClientID  string `json:"client_id"`
	SessionID string `json:"session_id"`
	Exp       int64
}) {
	t.Helper()
	c.post(t, "/oauth/introspect", &in, "token", token)
	return in
}

func TestOAuth_Configuration(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := b.client(t)
	read := func(c *oauthClient, host string) map[string]any {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "GET", c.url+"/.well-known/openid-configuration", nil)
		checktest.OK(t, err)
		if host != "" {
			req.Host = host
		}
		resp, body := c.do(t, req)
		if resp.StatusCode != 200 {
			t.Fatalf("%d %s", resp.StatusCode, body)
		}
		var doc map[string]any
		checktest.OK(t, json.Unmarshal([]byte(body), &doc))
		for _, name := range []string{"device_authorization_endpoint", "token_endpoint", "revocation_endpoint", "jwks_uri", "introspection_endpoint"} {
			if !strings.HasPrefix(doc[name].(string), doc["issuer"].(string)+"/") {
				t.Errorf("%s is %v, the issuer %v", name, doc[name], doc["issuer"])
			}
		}
		return doc
	}
	if got := read(c, "")["issuer"]; got != c.url {
		t.Errorf("as addressed, the issuer is %v, want %s", got, c.url)
	}
	if got := read(c, "localhost:8080")["issuer"]; got != "http://localhost:8080" {
		t.Errorf("as addressed, the issuer is %v", got)
	}
	// The text after the host in a Host header may be anything.
	if got := read(c, "localhost:8x")["issuer"]; got != "http://127.0.0.1:7070" {
		t.Errorf("by a Host header with a bad port the issuer is %v", got)
	}
	req, err := http.NewRequestWithContext(t.Context(), "GET", c.url+"/.well-known/openid-configuration", nil)
	checktest.OK(t, err)
	req.Host = "evil.example"
	if resp, _ := c.do(t, req); resp.StatusCode != 403 {
		t.Errorf("for another host: %d, want 403", resp.StatusCode)
	}

	public := &bundle{dir: t.TempDir(), log: &checktest.Log{}, now: b.now, publicURL: "https://cay.example"}
	public.open(t)
	if got := read(public.client(t), "localhost:8080")["issuer"]; got != "https://cay.example" {
		t.Errorf("the issuer is %v, not what the operator has set", got)
	}
}

// A JWT can be verified with the published document alone.
func TestOAuth_JWKS(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := b.client(t)
	made, err := b.CreateToken(b.as(t.Context(), b.secret(t), ""), account.CreateTokenParams{JWT: true})
	checktest.OK(t, err)
	parts := strings.Split(made.Secret, ".")
	decode := func(s string) []byte {
		raw, err := base64.RawURLEncoding.DecodeString(s)
		checktest.OK(t, err)
		return raw
	}
	var header map[string]string
	checktest.OK(t, json.Unmarshal(decode(parts[0]), &header))
	if len(header) != 3 || header["alg"] != "RS256" || header["typ"] != "JWT" {
		t.Fatalf("header %v", header)
	}
	_, body := c.get(t, "/.well-known/jwks")
	if _, same := c.get(t, "/.well-known/jwks.json"); same != body {
		t.Errorf("the two documents differ: %s %s", body, same)
	}
	var doc struct{ Keys []map[string]string }
	checktest.OK(t, json.Unmarshal([]byte(body), &doc))
	if len(doc.Keys) != 1 || doc.Keys[0]["kid"] != header["kid"] {
		t.Fatalf("keys %v, the token's is %s", doc.Keys, header["kid"])
	}
	key := &rsa.PublicKey{
		N: new(big.Int).SetBytes(decode(doc.Keys[0]["n"])),
		E: int(new(big.Int).SetBytes(decode(doc.Keys[0]["e"])).Int64()),
	}
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	if err := rsa.VerifyPKCS1v15(key, crypto.SHA256, sum[:], decode(parts[2])); err != nil || key.N.BitLen() < 2048 {
		t.Fatalf("%d bits: %v", key.N.BitLen(), err)
	}

	// The key outlives the process.
	b.Engine.Stop()
	b.open(t)
	if _, err := b.Authenticate(t.Context(), made.Secret); err != nil {
		t.Fatalf("after a restart: %v", err)
	}
	if _, again := b.client(t).get(t, "/.well-known/jwks"); again != body {
		t.Errorf("after a restart the keys are others: %s", again)
	}
}

// If the key that seals them is lost, the signing keys are lost, and nothing
// else.
func TestEngine_SigningKeyLost(t *testing.T) {
	t.Parallel()
	b := setup(t)
	admin := b.as(t.Context(), b.secret(t), "")
	before, err := b.CreateToken(admin, account.CreateTokenParams{JWT: true})
	checktest.OK(t, err)
	waiting := b.client(t).begin(t)
	b.Engine.Stop()
	b.loseSecrets(t)
	b.open(t)
	// Codes are hashed with the lost key: the database alone does not reveal
	// them.
	if _, err := b.ApproveDeviceLogin(admin, waiting.UserCode, account.ApproveParams{}); cay.CodeOf(err) != cay.NotFound {
		t.Fatalf("a code from before: %v, want not_found", err)
	}
	if _, err := b.Authenticate(t.Context(), before.Secret); cay.CodeOf(err) != cay.Unauthenticated {
		t.Fatalf("what a lost key has signed: %v, want unauthenticated", err)
	}
	after, err := b.CreateToken(admin, account.CreateTokenParams{JWT: true})
	checktest.OK(t, err)
	_, err = b.Authenticate(t.Context(), after.Secret)
	checktest.OK(t, err)
	if _, err := b.Authenticate(t.Context(), before.Secret); cay.CodeOf(err) != cay.Unauthenticated {
		t.Fatalf("with a new key: %v, want unauthenticated", err)
	}
}

// A JWT of another installation is refused, and so are JWTs that our key has
// signed for other purposes.
func TestEngine_ForeignJWT(t *testing.T) {
	t.Parallel()
	one, two := setup(t), setup(t)
	made, err := one.CreateToken(one.as(t.Context(), one.secret(t), ""), account.CreateTokenParams{JWT: true})
	checktest.OK(t, err)
	own, err := two.CreateToken(two.as(t.Context(), two.secret(t), ""), account.CreateTokenParams{JWT: true})
	checktest.OK(t, err)
	if _, err := two.Authenticate(t.Context(), made.Secret); cay.CodeOf(err) != cay.Unauthenticated {
		t.Fatalf("another installation's: %v, want unauthenticated", err)
	}
	claims := func(change map[string]any) string {
		payload, err := base64.RawURLEncoding.DecodeString(strings.Split(own.Secret, ".")[1])
		checktest.OK(t, err)
		c := map[string]any{}
		checktest.OK(t, json.Unmarshal(payload, &c))
		for k, v := range change {
			c[k] = v
		}
		token, err := two.Sign(t.Context(), c)
		checktest.OK(t, err)
		return token
	}
	if _, err := two.Authenticate(t.Context(), claims(nil)); err != nil {
		t.Fatalf("the claims that are changed below are refused: %v", err)
	}
	admin, err := two.WhoAmI(two.as(t.Context(), two.secret(t), ""))
	checktest.OK(t, err)
	sibling, err := two.CreateProject(two.as(t.Context(), two.secret(t), ""), account.CreateProjectParams{Name: "sibling"})
	checktest.OK(t, err)
	for name, change := range map[string]map[string]any{
		"SiblingProject": {"project_id": sibling.ID}, // the token is bound to another
		"ForAReceiver":   {"aud": "https://receiver.example"},
		"NoAudience":     {"aud": ""},
		"NoID":           {"jti": ""},
		"UnknownID":      {"jti": "tok_none"},
		"AdminsID":       {"jti": admin.Token.ID},
		"OtherTeam":      {"owner_id": "team_other"},
		"OtherProject":   {"project_id": "prj_other"},
		"NoProject":      {"project_id": ""},
		"Expired":        {"exp": two.Now().Unix()},
		"NoExpiry":       {"exp": 0},
	} {
		if _, err := two.Authenticate(t.Context(), claims(change)); cay.CodeOf(err) != cay.Unauthenticated {
			t.Errorf("%s: %v, want unauthenticated", name, err)
		}
	}
}

func TestHasSecret(t *testing.T) {
	t.Parallel()
	b := setup(t)
	made, err := b.CreateToken(b.as(t.Context(), b.secret(t), ""), account.CreateTokenParams{JWT: true})
	checktest.OK(t, err)
	forward, err := b.Sign(t.Context(), map[string]any{"aud": "https://receiver.example"})
	checktest.OK(t, err)
	for s, want := range map[string]bool{b.secret(t): true, made.Secret: true, forward: false, "a.b.c": false, made.ID: false, "cay_": false} {
		for _, around := range []string{"%s", "Bearer %s,", `Token token="%s"`, "Bearer\t%s", "x%sx", "eyJ.%s.", "%%22%s%%22", forward + " %s"} {
			if text := fmt.Sprintf(around, s); accountd.HasSecret(text) != want {
				t.Errorf("HasSecret(%.60q) is %v", text, !want)
			}
		}
	}
}

func TestOAuth_Polls(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := b.client(t)
	a := c.begin(t)
	for i, want := range []string{"authorization_pending", "slow_down", "slow_down"} {
		if s := c.poll(t, a.DeviceCode); s.Error != want || s.Description == "" {
			t.Fatalf("poll %d: %+v, want %s", i, s, want)
		}
	}
	b.Advance(5 * time.Second)
	if s := c.poll(t, a.DeviceCode); s.Error != "authorization_pending" {
		t.Fatalf("after the interval: %+v", s)
	}
	var s tokenSet
	c.post(t, "/oauth/token", &s, "client_id", "cl_other", "grant_type", deviceGrant, "device_code", a.DeviceCode)
	if s.Error != "invalid_grant" {
		t.Fatalf("another client: %+v", s)
	}
	_, err := b.ApproveDeviceLogin(b.as(t.Context(), b.secret(t), ""), a.UserCode, account.ApproveParams{})
	checktest.OK(t, err)
	// A restart in between changes nothing.
	b.Engine.Stop()
	b.open(t)
	if s := b.client(t).poll(t, a.DeviceCode); s.Error != "" || s.AccessToken == "" {
		t.Fatalf("after it was approved: %+v", s)
	}
}

// However often, and concurrently, a device polls, it gets one token.
func TestOAuth_OneToken(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := b.client(t)
	a := c.begin(t)
	_, err := b.ApproveDeviceLogin(b.as(t.Context(), b.secret(t), ""), a.UserCode, account.ApproveParams{})
	checktest.OK(t, err)
	results := make(chan string, 16)
	for range cap(results) {
		go func() {
			resp, err := c.hc.PostForm(c.url+"/oauth/token", url.Values{"client_id": {"cl_test"}, "grant_type": {deviceGrant}, "device_code": {a.DeviceCode}})
			if err != nil {
				results <- err.Error()
				return
			}
			defer resp.Body.Close()
			var s tokenSet
			if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
				results <- err.Error()
				return
			}
			results <- s.Error
		}()
	}
	got := map[string]int{}
	for range cap(results) {
		got[<-results]++
	}
	if got[""] != 1 || got["invalid_grant"] != cap(results)-1 {
		t.Fatalf("got %v", got)
	}
}

func TestOAuth_Refresh(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := b.client(t)
	first := c.approved(t)
	p, err := b.Authenticate(t.Context(), first.AccessToken)
	checktest.OK(t, err)
	second := c.refresh(t, first.RefreshToken) // while the first is still good, and cached
	if second.Error != "" || second.ExpiresIn != 30*24*3600 || second.AccessToken == first.AccessToken || second.RefreshToken == first.RefreshToken {
		t.Fatalf("renewed with %+v", second)
	}
	if _, err := b.Authenticate(t.Context(), first.AccessToken); cay.CodeOf(err) != cay.Unauthenticated {
		t.Fatalf("the token before: %v, want unauthenticated", err)
	}
	again, err := b.Authenticate(t.Context(), second.AccessToken)
	checktest.OK(t, err)
	if again != p {
		t.Fatalf("speaks for %+v, before for %+v", again, p)
	}
	// Two concurrent renewals of one device: one fails, and the login stays
	// valid.
	if s := c.refresh(t, first.RefreshToken); s.Error != "invalid_grant" {
		t.Fatalf("the refresh token before: %+v", s)
	}
	_, err = b.Authenticate(t.Context(), second.AccessToken)
	checktest.OK(t, err)
	var s tokenSet
	c.post(t, "/oauth/token", &s, "client_id", "cl_other", "grant_type", "refresh_token", "refresh_token", second.RefreshToken)
	if s.Error != "invalid_grant" {
		t.Fatalf("another client: %+v", s)
	}
	// After that, the reuse counts as theft.
	b.Advance(time.Minute)
	if s := c.refresh(t, first.RefreshToken); s.Error != "invalid_grant" {
		t.Fatalf("the refresh token before: %+v", s)
	}
	if _, err := b.Authenticate(t.Context(), second.AccessToken); cay.CodeOf(err) != cay.Unauthenticated {
		t.Fatalf("after a refresh token was used twice: %v, want unauthenticated", err)
	}
	if s := c.refresh(t, second.RefreshToken); s.Error != "invalid_grant" {
		t.Fatalf("after a refresh token was used twice: %+v", s)
	}

	old := c.approved(t)
	b.Advance(31 * 24 * time.Hour)
	if _, err := b.Authenticate(t.Context(), old.AccessToken); cay.CodeOf(err) != cay.Unauthenticated {
		t.Fatalf("after 31 days: %v, want unauthenticated", err)
	}
	renewed := c.refresh(t, old.RefreshToken)
	_, err = b.Authenticate(t.Context(), renewed.AccessToken)
	checktest.OK(t, err)

	unused := c.approved(t)
	b.Advance(90 * 24 * time.Hour)
	if s := c.refresh(t, unused.RefreshToken); s.Error != "invalid_grant" {
		t.Fatalf("after 90 days: %+v", s)
	}
	c.approved(t) // removes what the one before has left
	page, err := b.ListTokens(b.as(t.Context(), b.secret(t), ""), account.ListParams{})
	checktest.OK(t, err)
	if len(page.Items) != 2 { // the admin's, and the last
		t.Fatalf("there are %+v", page.Items)
	}
}

func TestOAuth_RevokeAndIntrospect(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := b.client(t)
	for name, which := range map[string]func(tokenSet) string{
		"Access":  func(s tokenSet) string { return s.AccessToken },
		"Refresh": func(s tokenSet) string { return s.RefreshToken },
	} {
		s := c.approved(t)
		p, err := b.Authenticate(t.Context(), s.AccessToken)
		checktest.OK(t, err)
		for _, token := range []string{s.AccessToken, s.RefreshToken} {
			if in := c.active(t, token); !in.Active || in.ClientID != "cl_test" || in.SessionID != p.TokenID || in.Exp <= b.Now().Unix() {
				t.Fatalf("%s: %+v", name, in)
			}
		}
		var failed tokenSet
		if resp := c.post(t, "/oauth/revoke", &failed, "client_id", "cl_other", "token", which(s)); resp.StatusCode != 400 || failed.Error != "invalid_grant" {
			t.Fatalf("%s, by another client: %d %+v", name, resp.StatusCode, failed)
		}
		for range 2 { // the second finds nothing, which is no error
			failed = tokenSet{}
			if resp := c.post(t, "/oauth/revoke", &failed, "client_id", "cl_test", "token", which(s)); resp.StatusCode != 200 || failed.Error != "" {
				t.Fatalf("%s: %d %+v", name, resp.StatusCode, failed)
			}
		}
		if _, err := b.Authenticate(t.Context(), s.AccessToken); cay.CodeOf(err) != cay.Unauthenticated {
			t.Fatalf("%s: after it was revoked: %v", name, err)
		}
		for _, token := range []string{s.AccessToken, s.RefreshToken} {
			if in := c.active(t, token); in.Active || in.SessionID != "" {
				t.Fatalf("%s: after it was revoked: %+v", name, in)
			}
		}
		if s := c.refresh(t, s.RefreshToken); s.Error != "invalid_grant" {
			t.Fatalf("%s: after it was revoked: %+v", name, s)
		}
	}

	// The token has expired, but its refresh token has not.
	s := c.approved(t)
	b.Advance(31 * 24 * time.Hour)
	var failed tokenSet
	c.post(t, "/oauth/revoke", &failed, "client_id", "cl_test", "token", s.AccessToken)
	if s := c.refresh(t, s.RefreshToken); s.Error != "invalid_grant" {
		t.Fatalf("after the expired token was revoked: %+v", s)
	}

	// A client that finds the endpoint cannot revoke tokens that no login has
	// made.
	jwt, err := b.CreateToken(b.as(t.Context(), b.secret(t), ""), account.CreateTokenParams{JWT: true})
	checktest.OK(t, err)
	for _, token := range []string{b.secret(t), jwt.Secret} {
		if resp := c.post(t, "/oauth/revoke", &failed, "client_id", "cl_test", "token", token); resp.StatusCode != 400 || failed.Error != "unsupported_token_type" {
			t.Fatalf("%d %+v", resp.StatusCode, failed)
		}
		if _, err := b.Authenticate(t.Context(), token); err != nil {
			t.Fatal(err)
		}
		if in := c.active(t, token); !in.Active || in.ClientID != "cay" {
			t.Fatalf("%+v", in)
		}
	}
}

func TestOAuth_BadRequests(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := b.client(t)
	const form = "application/x-www-form-urlencoded"
	for _, tc := range []struct {
		name, path, kind, body string
		status                 int
		want                   string
	}{
		{"JSON", "/oauth/token", "application/json", `{"client_id":"x"}`, 400, "invalid_request"},
		{"Empty", "/oauth/token", form, "", 400, "invalid_request"},
		{"NoGrant", "/oauth/token", form, "client_id=x", 400, "invalid_request"},
		{"OtherGrant", "/oauth/token", form, "client_id=x&grant_type=password&username=a&password=b", 400, "unsupported_grant_type"},
		{"NoCode", "/oauth/token", form, "client_id=x&grant_type=" + url.QueryEscape(deviceGrant), 400, "invalid_grant"},
		{"NoRefreshToken", "/oauth/token", form, "client_id=x&grant_type=refresh_token", 400, "invalid_grant"},
		{"Twice", "/oauth/token", form, "client_id=x&client_id=y", 400, "invalid_request"},
		{"Malformed", "/oauth/token", form, "client_id=%zz", 400, "invalid_request"},
		{"Large", "/oauth/token", form, "client_id=" + strings.Repeat("x", 20_000), 413, "invalid_request"},
		{"NoClient", "/oauth/device_authorization", form, "scope=openid", 400, "invalid_request"},
		{"LongClient", "/oauth/device_authorization", form, "client_id=" + strings.Repeat("x", 201), 400, "invalid_request"},
		{"ClientWithControl", "/oauth/device_authorization", form, "client_id=a%0ab", 400, "invalid_request"},
		{"RevokeNothing", "/oauth/revoke", form, "client_id=x", 400, "invalid_request"},
		{"RevokeUnknown", "/oauth/revoke", form, "client_id=x&token=cay_x", 200, ""},
		{"IntrospectNothing", "/oauth/introspect", form, "", 400, "invalid_request"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			resp, body := c.send(t, tc.path, tc.kind, tc.body)
			var s tokenSet
			checktest.OK(t, json.Unmarshal([]byte(body), &s))
			if resp.StatusCode != tc.status || s.Error != tc.want || resp.Header.Get("Cache-Control") != "no-store" {
				t.Fatalf("%d %s, want %d %s", resp.StatusCode, body, tc.status, tc.want)
			}
		})
	}
}

func TestOAuth_LoginsAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := b.client(t)
	for range 50 {
		c.begin(t)
	}
	var s tokenSet
	resp := c.post(t, "/oauth/device_authorization", &s, "client_id", "cl_test")
	if resp.StatusCode != 429 || s.Error != "temporarily_unavailable" || resp.Header.Get("Retry-After") == "" {
		t.Fatalf("%d %+v", resp.StatusCode, s)
	}
	b.Advance(16 * time.Minute)
	c.begin(t)
}

func TestPage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := b.client(t)
	resp, body := c.get(t, "/oauth/device?user_code="+url.QueryEscape(`"><script>`))
	h := resp.Header
	if resp.StatusCode != 200 || !strings.HasPrefix(h.Get("Content-Type"), "text/html") || h.Get("X-Frame-Options") != "DENY" ||
		!strings.Contains(h.Get("Content-Security-Policy"), "default-src 'none'") || !strings.Contains(h.Get("Content-Security-Policy"), "frame-ancestors 'none'") ||
		!strings.Contains(h.Get("Content-Security-Policy"), "form-action 'self'") || h.Get("Cache-Control") != "no-store" ||
		h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Set-Cookie") != "" {
		t.Fatalf("%d %v", resp.StatusCode, h)
	}
	if strings.Contains(body, "<script") || !strings.Contains(body, "&#34;&gt;&lt;script&gt;") {
		t.Fatalf("the page is\n%s", body)
	}
	// The page's policy allows the page's own style.
	_, style, _ := strings.Cut(body, "<style>")
	style, _, _ = strings.Cut(style, "</style>")
	sum := sha256.Sum256([]byte(style))
	if want := "style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"; !strings.Contains(h.Get("Content-Security-Policy"), want) {
		t.Errorf("the policy does not allow the style: it has no %s", want)
	}

	decide := func(code, token, decision, origin string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "POST", c.url+"/oauth/device", strings.NewReader(
			url.Values{"user_code": {code}, "token": {token}, "decision": {decision}, "project_id": {""}}.Encode()))
		checktest.OK(t, err)
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if origin != "" {
			req.Header.Set("Origin", origin)
		}
		resp, body := c.do(t, req)
		if len(token) > 10 && strings.Contains(body, token) {
			t.Fatalf("the page shows the token")
		}
		return resp.StatusCode, body
	}
	a := c.begin(t)
	for name, tc := range map[string]struct {
		code, token, decision, origin string
		status                        int
		says                          string
	}{
		"WrongToken":    {a.UserCode, "cay_" + strings.Repeat("C", 43), "approve", c.url, 401, "not valid"},
		"NoToken":       {a.UserCode, "", "approve", c.url, 401, "not valid"},
		"WrongCode":     {"BBBB-BBBB", b.secret(t), "approve", c.url, 404, "BBBB-BBBB"},
		"NoDecision":    {a.UserCode, b.secret(t), "", c.url, 400, "decision"},
		"AnotherOrigin": {a.UserCode, b.secret(t), "approve", "https://evil.example", 403, "another origin"},
		"NullOrigin":    {a.UserCode, b.secret(t), "approve", "null", 403, "another origin"},
	} {
		if status, body := decide(tc.code, tc.token, tc.decision, tc.origin); status != tc.status || !strings.Contains(body, tc.says) {
			t.Errorf("%s: %d\n%s", name, status, body)
		}
	}
	if s := c.poll(t, a.DeviceCode); s.Error != "authorization_pending" {
		t.Fatalf("after all this: %+v", s)
	}
	status, body := decide(a.UserCode, b.secret(t), "approve", c.url)
	if status != 200 || !strings.Contains(body, "Approved") || !strings.Contains(body, "laptop @ test/1.0") || !strings.Contains(body, account.DefaultTeam) {
		t.Fatalf("%d\n%s", status, body)
	}
	if s := c.poll(t, a.DeviceCode); s.Error != "" {
		t.Fatalf("after it was approved: %+v", s)
	}
	denied := c.begin(t)
	if status, body := decide(denied.UserCode, b.secret(t), "deny", ""); status != 200 || !strings.Contains(body, "Denied") {
		t.Fatalf("%d\n%s", status, body)
	}
	if s := c.poll(t, denied.DeviceCode); s.Error != "access_denied" {
		t.Fatalf("after it was denied: %+v", s)
	}

	// Secrets cannot be tried out here.
	late := c.begin(t)
	for range 20 {
		decide(late.UserCode, "cay_x", "approve", "")
	}
	if status, body := decide(late.UserCode, b.secret(t), "approve", ""); status != 429 {
		t.Fatalf("after 20 wrong tokens: %d\n%s", status, body)
	}
}
