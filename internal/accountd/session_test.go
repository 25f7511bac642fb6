package accountd_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/checktest"
)

// browser plays the browser with a page of the daemon.
type browser struct {
	t      *testing.T
	url    string
	hc     *http.Client
	cookie *http.Cookie
	key    string
	// streams is where bundle.watched serves.
	streams string
}

// send makes a request; change may make it a request of another page.
func (b *browser) send(method, path, body string, change func(*http.Request)) (*http.Response, string) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.url+path, strings.NewReader(body))
	checktest.OK(b.t, err)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	if method != http.MethodGet {
		req.Header.Set("Origin", b.url)
	}
	if b.cookie != nil {
		req.AddCookie(b.cookie)
		req.Header.Set(api.HeaderSessionKey, b.key)
	}
	if change != nil {
		change(req)
	}
	resp, err := b.hc.Do(req)
	checktest.OK(b.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	checktest.OK(b.t, err)
	return resp, string(text)
}

// login logs in with a body, and returns the answer's status.
func (b *browser) login(body string) (status int, says string) {
	b.t.Helper()
	resp, text := b.send("POST", "/ui/login", body, nil)
	if resp.StatusCode != 200 {
		return resp.StatusCode, text
	}
	var answer struct {
		Key     string    `json:"key"`
		Expires time.Time `json:"expires_at"`
	}
	checktest.OK(b.t, json.Unmarshal([]byte(text), &answer))
	cookies := resp.Cookies()
	if len(cookies) != 1 || answer.Key == "" {
		b.t.Fatalf("logged in with %v, %s", cookies, text)
	}
	b.cookie, b.key = cookies[0], answer.Key
	return 200, text
}

func (b *browser) status(method, path string, change func(*http.Request)) int {
	b.t.Helper()
	resp, _ := b.send(method, path, "", change)
	return resp.StatusCode
}

func (b *bundle) browser(t *testing.T) *browser {
	t.Helper()
	url, hc := b.serve(t)
	return &browser{t: t, url: url, hc: hc}
}

func TestSession_Login(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.browser(t)
	for _, tc := range []struct {
		name, body, says string
		status           int
	}{
		{"NoToken", `{}`, "give either", 400},
		{"Both", `{"token":"a","code":"b"}`, "give either", 400},
		{"WrongToken", `{"token":"cay_` + strings.Repeat("A", 43) + `"}`, "not valid", 401},
		{"WrongCode", `{"code":"cay_link_x"}`, "not valid any more", 401},
		{"Unknown", `{"secret":"x"}`, "secret", 400},
	} {
		if status, says := w.login(tc.body); status != tc.status || !strings.Contains(says, tc.says) {
			t.Errorf("%s: %d %s, want %d that says %s", tc.name, status, says, tc.status, tc.says)
		}
	}
	if status, says := w.login(`{"token":"` + b.secret(t) + `"}`); status != 200 {
		t.Fatalf("%d %s", status, says)
	}
	c := w.cookie
	if c.Name != "cay_session" || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.Domain != "" || c.Secure ||
		c.Expires.Sub(b.Now()) != 7*24*time.Hour {
		t.Errorf("the cookie is %+v", c)
	}
	resp, _ := w.send("POST", "/ui/login", `{"token":"`+b.secret(t)+`"}`, func(r *http.Request) { r.Header.Set("X-Forwarded-Proto", "https") })
	if c := resp.Cookies(); len(c) != 1 || !c[0].Secure {
		t.Errorf("over TLS the cookie is %v", c)
	}
	if resp, text := w.send("GET", "/v1/whoami", "", nil); resp.StatusCode != 200 || !strings.Contains(text, `"admin":true`) {
		t.Errorf("the session is %d %s", resp.StatusCode, text)
	}
	// It survives a restart.
	checktest.OK(t, b.Start(t.Context()))
	b.open(t)
	again := b.browser(t)
	again.cookie, again.key = w.cookie, w.key
	if got := again.status("GET", "/v1/whoami", nil); got != 200 {
		t.Errorf("after a restart: %d", got)
	}
	if got := w.status("POST", "/ui/logout", nil); got != 204 {
		t.Errorf("logging out: %d", got)
	}
	if got := w.status("GET", "/v1/whoami", nil); got != 401 {
		t.Errorf("after logging out: %d", got)
	}
	for _, secret := range []string{b.secret(t), w.cookie.Value, w.key} {
		if strings.Contains(b.log.String(), secret) {
			t.Errorf("the log holds a secret")
		}
	}
}

// The cookie is useless without the key, and both are useless from elsewhere.
func TestSession_OtherPages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.browser(t)
	if status, says := w.login(`{"token":"` + b.secret(t) + `"}`); status != 200 {
		t.Fatal(says)
	}
	set := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	del := func(name string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Del(name) }
	}
	const read, change = "GET /v1/whoami", "POST /v1/login-links"
	for _, tc := range []struct {
		name   string
		on     string
		change func(*http.Request)
		status int
	}{
		{"Own", read, nil, 200},
		{"OwnChange", change, nil, 201},
		{"NoFetchMetadata", change, del("Sec-Fetch-Site"), 201}, // plain HTTP to another machine has none
		{"NoKey", read, del(api.HeaderSessionKey), 401},
		{"NoKeyChange", change, del(api.HeaderSessionKey), 401},
		{"WrongKey", read, set(api.HeaderSessionKey, w.key+"x"), 401},
		{"NoCookie", read, del("Cookie"), 401},
		{"TwoCookies", read, func(r *http.Request) { r.AddCookie(&http.Cookie{Name: "cay_session", Value: "x"}) }, 401},
		{"KeyAsToken", read, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+w.key) }, 401},
		{"CookieAsToken", read, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+w.cookie.Value) }, 401},
		{"CrossSite", read, set("Sec-Fetch-Site", "cross-site"), 403},
		{"OtherPort", read, set("Sec-Fetch-Site", "same-site"), 403},
		{"Navigation", read, set("Sec-Fetch-Site", "none"), 403},
		{"CrossSiteChange", change, set("Sec-Fetch-Site", "cross-site"), 403},
		{"OtherPortChange", change, set("Sec-Fetch-Site", "same-site"), 403},
		{"OtherOrigin", read, set("Origin", "http://127.0.0.1:1"), 403},
		{"NullOrigin", change, func(r *http.Request) { r.Header.Set("Origin", "null"); r.Header.Del("Sec-Fetch-Site") }, 403},
		{"OtherOriginChange", change, func(r *http.Request) { r.Header.Set("Origin", "http://evil.example"); r.Header.Del("Sec-Fetch-Site") }, 403},
		{"Rebound", read, func(r *http.Request) { r.Host = "evil.example" }, 403},
		{"LoginOfAnother", "POST /ui/login", set("Sec-Fetch-Site", "cross-site"), 403},
		{"LogoutOfAnother", "POST /ui/logout", set("Sec-Fetch-Site", "cross-site"), 403},
	} {
		method, path, _ := strings.Cut(tc.on, " ")
		if got := w.status(method, path, tc.change); got != tc.status {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.status)
		}
	}
}

// A WebSocket cannot set headers: it sends its key as a protocol, and always its
// origin.
func TestSession_WebSocket(t *testing.T) {
	t.Parallel()
	b := setup(t)
	mux := api.NewMux(b.Engine)
	mux.Handle("GET /socket", func(w http.ResponseWriter, r *http.Request) error {
		conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{api.TerminalProtocol}})
		if err != nil {
			return nil
		}
		return conn.Close(websocket.StatusNormalClosure, "")
	})
	w := b.browser(t)
	if status, says := w.login(`{"token":"` + b.secret(t) + `"}`); status != 200 {
		t.Fatal(says)
	}
	address := serveMux(t, mux)
	origin, err := url.Parse(address)
	checktest.OK(t, err)
	for _, tc := range []struct {
		name, origin, key string
		status            int
	}{
		{"Own", origin.String(), w.key, 101},
		{"NoOrigin", "", w.key, 403},
		{"OtherOrigin", "http://evil.example", w.key, 403},
		{"OtherPort", "http://127.0.0.1:1", w.key, 403},
		{"NullOrigin", "null", w.key, 403},
		{"WrongKey", origin.String(), "x", 401},
	} {
		h := http.Header{"Cookie": {"cay_session=" + w.cookie.Value}}
		if tc.origin != "" {
			h.Set("Origin", tc.origin)
		}
		conn, resp, err := websocket.Dial(t.Context(), address+"/socket", &websocket.DialOptions{
			HTTPHeader: h, Subprotocols: []string{api.TerminalProtocol, "cay.session." + tc.key},
		})
		if err == nil {
			if conn.Subprotocol() != api.TerminalProtocol {
				t.Errorf("%s: the protocol is %q", tc.name, conn.Subprotocol())
			}
			conn.CloseNow()
		}
		if resp == nil || resp.StatusCode != tc.status {
			t.Errorf("%s: %v, %v, want %d", tc.name, resp, err, tc.status)
		}
	}
}

func TestSession_Link(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.browser(t)
	admin := &account.Client{URL: w.url, Token: b.secret(t), HTTPClient: w.hc}
	token, err := admin.CreateToken(t.Context(), account.CreateTokenParams{ProjectID: account.DefaultProject})
	checktest.OK(t, err)
	c := &account.Client{URL: w.url, Token: token.Secret, HTTPClient: w.hc}
	link := func() string {
		t.Helper()
		l, err := c.CreateLoginLink(t.Context())
		checktest.OK(t, err)
		if l.ExpiresAt.Sub(b.Now()) != 10*time.Minute || len(l.Code) < 43 {
			t.Fatalf("the link is %+v", l)
		}
		return `{"code":"` + l.Code + `"}`
	}
	first, late := link(), link()
	if status, says := w.login(first); status != 200 {
		t.Fatal(says)
	}
	if _, text := w.send("GET", "/v1/whoami", "", nil); !strings.Contains(text, token.ID) || !strings.Contains(text, `"project":{`) {
		t.Errorf("it speaks for %s", text)
	}
	if status, _ := w.login(first); status != 401 {
		t.Errorf("the second time: %d", status)
	}
	b.Advance(10 * time.Minute)
	if status, _ := w.login(late); status != 401 {
		t.Errorf("after 10 minutes: %d", status)
	}
	// A token may have several unused links; revoking the token ends its links
	// and sessions at once.
	pending := link()
	for range 31 {
		link()
	}
	if _, err := c.CreateLoginLink(t.Context()); cay.CodeOf(err) != cay.QuotaExceeded {
		t.Errorf("one link more than may wait: %v", err)
	}
	if got := w.status("GET", "/v1/whoami", nil); got != 200 {
		t.Fatalf("before it is revoked: %d", got)
	}
	checktest.OK(t, admin.DeleteToken(t.Context(), token.ID))
	if got := w.status("GET", "/v1/whoami", nil); got != 401 {
		t.Errorf("after its token was revoked: %d", got)
	}
	if status, _ := w.login(pending); status != 401 {
		t.Errorf("a link of it: %d", status)
	}
}

func TestSession_Ends(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.browser(t)
	enter := func(secret string) {
		t.Helper()
		if status, says := w.login(`{"token":"` + secret + `"}`); status != 200 {
			t.Fatal(says)
		}
	}
	check := func(when string, want int) {
		t.Helper()
		if got := w.status("GET", "/v1/whoami", nil); got != want {
			t.Errorf("%s: %d, want %d", when, got, want)
		}
	}
	enter(b.secret(t))
	for range 13 { // it is used, up to 6 days and 12 hours
		b.Advance(12*time.Hour - time.Second)
		check("in use", 200)
	}
	b.Advance(12*time.Hour + time.Minute)
	check("after 7 days", 401)

	enter(b.secret(t))
	check("anew", 200)
	b.Advance(12 * time.Hour)
	check("idle for 12 hours", 401)

	soon := b.Now().Add(time.Hour)
	admin := &account.Client{URL: w.url, Token: b.secret(t), HTTPClient: w.hc}
	token, err := admin.CreateToken(t.Context(), account.CreateTokenParams{ExpiresAt: &soon})
	checktest.OK(t, err)
	enter(token.Secret)
	if !w.cookie.Expires.Equal(soon.Truncate(time.Second)) {
		t.Errorf("the cookie expires %v, the token %v", w.cookie.Expires, soon)
	}
	check("of a token", 200)
	b.Advance(time.Hour)
	check("of a token that has expired", 401)
}

// Guessing is slowed down, and a token has a limited number of sessions.
func TestSession_Bounds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.browser(t)
	good := `{"token":"` + b.secret(t) + `"}`
	if status, _ := w.login(good); status != 200 {
		t.Fatal(status)
	}
	first := *w
	b.Advance(time.Minute)
	for range 31 {
		w.login(good)
	}
	if got := first.status("GET", "/v1/whoami", nil); got != 200 {
		t.Errorf("one of 32 sessions: %d", got)
	}
	b.Advance(time.Minute) // beyond the cache
	w.login(good)
	if got := first.status("GET", "/v1/whoami", nil); got != 401 {
		t.Errorf("the oldest of 33 sessions: %d", got)
	}
	for range 20 {
		w.login(`{"code":"x"}`)
	}
	if status, says := w.login(good); status != 429 || !strings.Contains(says, "too many") {
		t.Errorf("after 20 wrong codes: %d %s", status, says)
	}
	b.Advance(10 * time.Minute)
	if status, says := w.login(good); status != 200 {
		t.Errorf("10 minutes later: %d %s", status, says)
	}
}

// A JWT has fewer rights than its token, but a session would have the token's.
func TestSession_NoJWT(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.browser(t)
	admin := &account.Client{URL: w.url, Token: b.secret(t), HTTPClient: w.hc}
	token, err := admin.CreateToken(t.Context(), account.CreateTokenParams{JWT: true})
	checktest.OK(t, err)
	if status, says := w.login(`{"token":"` + token.Secret + `"}`); status != 401 || !strings.Contains(says, "JWT") {
		t.Errorf("%d %s", status, says)
	}
}
