package preview_test

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/sandboxd/preview"
)

// seen is a request as the guest saw it.
type seen struct {
	Method, URI, Host, Proto string
	Header                   http.Header
}

// mirror is a guest that answers with the request as it saw it.
var mirror = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	json.NewEncoder(w).Encode(seen{r.Method, r.RequestURI, r.Host, r.Proto, r.Header})
})

func (f *front) seen(r *http.Request) seen {
	f.t.Helper()
	resp, body := f.do(r)
	var s seen
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		f.t.Fatalf("%d %q: %v", resp.StatusCode, body, err)
	}
	return s
}

const cookie = "cay_preview=token-of-closed"

// Row P1: a visitor without a label learns nothing, and a private port opens only for the
// token of a link to that port.
func TestAccess(t *testing.T) {
	t.Parallel()
	f := serve(t, newWorld(t, hello), nil)
	_, unknown := f.get("unknown-1", "/x")
	if resp, body := f.get("unknown-2", "/y?z", "Cookie", cookie); resp.StatusCode != 404 || body != unknown {
		t.Errorf("the page for unknown labels is not always the same: %q, %q", body, unknown)
	}
	_, private := f.get(closed, "/")
	for name, tt := range map[string]struct {
		label   string
		query   string
		headers []string
		status  int
	}{
		"PublicNeedsNone":       {open, "", nil, 200},
		"Header":                {closed, "", []string{"Cay-Preview-Token", "token-of-closed"}, 200},
		"Cookie":                {closed, "", []string{"Cookie", "a=b; " + cookie + "; c=d"}, 200},
		"SecondCookie":          {closed, "", []string{"Cookie", "cay_preview=old; " + cookie}, 200},
		"None":                  {closed, "", nil, 401},
		"WrongHeader":           {closed, "", []string{"Cay-Preview-Token", "token-of-nobody"}, 401},
		"WrongCookie":           {closed, "", []string{"Cookie", "cay_preview=token-of-other"}, 401},
		"WrongQuery":            {closed, "?_cay_token=token-of-other", nil, 401},
		"OtherPort":             {other, "", []string{"Cookie", cookie}, 401}, // P5: a token is bound to its port
		"LongToken":             {closed, "", []string{"Cay-Preview-Token", strings.Repeat("x", 5000)}, 401},
		"APIToken":              {closed, "", []string{"Authorization", "Bearer " + apiSecret}, 401},
		"WrongHeaderGoodCookie": {closed, "", []string{"Cay-Preview-Token", "x", "Cookie", cookie}, 200},
	} {
		t.Run(name, func(t *testing.T) {
			resp, body := f.get(tt.label, "/"+tt.query, tt.headers...)
			if resp.StatusCode != tt.status {
				t.Fatalf("%d %q", resp.StatusCode, body)
			}
			if tt.status == 401 && (body != private || resp.Header.Get("Set-Cookie") != "") {
				t.Errorf("the page for visitors without a token is not always the same: %q %v", body, resp.Header)
			}
		})
	}
}

// A link's token becomes a cookie of this host, and leaves the URL.
func TestLink(t *testing.T) {
	t.Parallel()
	f := serve(t, newWorld(t, mirror), nil)
	for target, want := range map[string]string{
		"/?_cay_token=token-of-closed":                    "/",
		"/a%2Fb/c?x=1&_cay_token=token-of-closed&y=%20;z": "/a%2Fb/c?x=1&y=%20;z",
		"/?%5fcay%5ftoken=token-of-closed&q":              "/?q",
		"//evil.test/?_cay_token=token-of-closed":         "//evil.test/",
		"/%5Cevil.test/?_cay_token=token-of-closed":       "/%5Cevil.test/",
		`/\evil.test?_cay_token=token-of-closed`:          "/%5Cevil.test",
	} {
		resp, _ := f.do(raw(f, closed, target))
		if resp.StatusCode != 302 {
			t.Errorf("%s: %d", target, resp.StatusCode)
			continue
		}
		if got := resp.Header.Get("Location"); got != "http://"+host(closed)+want {
			t.Errorf("%s leads to %s", target, got)
		}
		if resp.Header.Get("Referrer-Policy") != "no-referrer" || resp.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("headers %v", resp.Header)
		}
		set := resp.Header["Set-Cookie"]
		if len(set) != 1 {
			t.Fatalf("cookies %q", set)
		}
		c, err := http.ParseSetCookie(set[0])
		if err != nil {
			t.Fatal(err)
		}
		if c.Name != "cay_preview" || !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Path != "/" || c.Domain != "" || c.Secure ||
			c.MaxAge < 3500 || c.MaxAge > 3600 {
			t.Errorf("cookie %q", set[0])
		}
		if resp, _ := f.get(closed, "/", "Cookie", c.Name+"="+c.Value); resp.StatusCode != 200 {
			t.Errorf("the cookie does not open the preview: %d", resp.StatusCode)
		}
	}
	// If the port became public meanwhile, the token is removed and no cookie is set.
	resp, _ := f.get(open, "/a?_cay_token=x&b=c")
	if resp.StatusCode != 302 || resp.Header.Get("Location") != "http://"+host(open)+"/a?b=c" || resp.Header.Get("Set-Cookie") != "" {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
	// Requests that cannot be redirected are forwarded, without the token.
	s := f.seen(f.request("POST", closed, "/a?_cay_token=token-of-closed&b=c", strings.NewReader("x")))
	if s.Method != "POST" || s.URI != "/a?b=c" {
		t.Errorf("the guest saw %+v", s)
	}
}

// raw returns a GET request with an unmodified target.
func raw(f *front, label, target string) *http.Request {
	r := f.request("GET", label, "/", nil)
	r.URL.Opaque = target
	if strings.HasPrefix(target, "//") {
		// The client would take this for a host; a target in absolute form has the same
		// meaning.
		r.URL.Opaque = "//" + host(label) + target
	}
	return r
}

// By https the cookie has a name that no other host can set.
func TestLink_secure(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*preview.Config){
		"TLS": nil, "ProxyInFront": func(c *preview.Config) { c.Secure = true },
	} {
		t.Run(name, func(t *testing.T) {
			f := serve(t, newWorld(t, mirror), change)
			serveOne := func(r *http.Request) *http.Response {
				r.Host = host(closed)
				if name == "TLS" {
					r.TLS = new(tls.ConnectionState)
				}
				w := httptest.NewRecorder()
				f.handler.ServeHTTP(w, r)
				return w.Result()
			}
			resp := serveOne(httptest.NewRequest("GET", "/x?_cay_token=token-of-closed", nil))
			if got := resp.Header.Get("Location"); got != "https://"+host(closed)+"/x" {
				t.Errorf("location %q", got)
			}
			c := resp.Cookies()
			if len(c) != 1 || c[0].Name != "__Host-cay_preview" || !c[0].Secure || c[0].Path != "/" || c[0].Domain != "" {
				t.Fatalf("cookies %v", c)
			}
			for value, status := range map[string]int{"__Host-" + cookie: 200, cookie: 401} {
				r := httptest.NewRequest("GET", "/", nil)
				r.Header.Set("Cookie", value)
				r.Header.Set("X-Forwarded-Proto", "http")
				resp := serveOne(r)
				if resp.StatusCode != status {
					t.Errorf("%s: %d", value, resp.StatusCode)
					continue
				}
				var s seen
				if status == 200 {
					if err := json.NewDecoder(resp.Body).Decode(&s); err != nil || s.Header.Get("X-Forwarded-Proto") != "https" {
						t.Errorf("the guest saw %+v, %v", s, err)
					}
				}
			}
		})
	}
}

// Names below an alias are previews too; their visitors use https.
func TestAlias(t *testing.T) {
	t.Parallel()
	f := serve(t, newWorld(t, mirror), func(c *preview.Config) { c.Aliases = []string{"Alias.test"} })
	for name, want := range map[string]string{open + ".alias.test": "https", open + ".preview.test": "http"} {
		r := f.request("GET", open, "/x", nil)
		r.Host = name
		if s := f.seen(r); s.Host != name || s.Header.Get("X-Forwarded-Proto") != want {
			t.Errorf("%s: the guest saw %+v", name, s)
		}
	}
	r := f.request("GET", closed, "/x?_cay_token=token-of-closed", nil)
	r.Host = closed + ".alias.test"
	resp, _ := f.do(r)
	if resp.Header.Get("Location") != "https://"+closed+".alias.test/x" || !strings.HasPrefix(resp.Header.Get("Set-Cookie"), "__Host-cay_preview=") {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
	for _, name := range []string{"alias.test", "a.b.alias.test", "xalias.test"} {
		r := f.request("GET", open, "/", nil)
		r.Host = name
		if _, body := f.do(r); body != "the API" {
			t.Errorf("%s: %q", name, body)
		}
	}
}

// Row P3: nothing of ours reaches a guest.
func TestStripped(t *testing.T) {
	t.Parallel()
	f := serve(t, newWorld(t, mirror), nil)
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("x:"+apiSecret))
	for _, headers := range [][]string{
		{"Cay-Preview-Token", "token-of-closed"},
		{"Cookie", cookie, "Authorization", "Bearer " + apiSecret},
		{"Cookie", "__Host-cay_preview=x;" + cookie + "; cay_console=1; __Secure-cay_x=2", "Authorization", basic},
		{"Cookie", cookie, "Authorization", apiSecret, "Sec-WebSocket-Protocol", "cay.bearer." + apiSecret},
		{"Cookie", cookie, "Referer", "http://closed.preview.test/?_cay_token=token-of-closed"},
		{"Cookie", cookie, "Authorization", "Bearer " + apiSecret + ","},
		{"Cookie", cookie, "Authorization", `Token token="` + apiSecret + `"`},
		{"Cookie", cookie, "Authorization", "Bearer\t" + apiSecret, "Authorization", "Basic " + apiSecret},
		{"Cookie", cookie, "X-Api-Key", apiSecret, "X-" + apiSecret, "1"},
		{"Cookie", cookie + "; key=" + apiSecret, "Referer", "http://closed.preview.test/?key=%63ay_secret"},
	} {
		s := f.seen(f.request("GET", closed, "/?a=_cay_token", nil, headers...))
		for name, values := range s.Header {
			for _, v := range values {
				if strings.Contains(v, "token-of") || strings.Contains(v, "secret") || strings.Contains(v, "cay") && !strings.HasPrefix(name, "X-Forwarded") {
					t.Errorf("%q: the guest sees %s: %s", headers, name, v)
				}
			}
		}
		if s.URI != "/?a=_cay_token" {
			t.Errorf("URI %q", s.URI)
		}
	}
	for query, want := range map[string]string{"key=" + apiSecret + "&b=%zz": "b=%zz", "a&%63ay_secret": "a", "k=%22" + apiSecret + "%22": ""} {
		if s := f.seen(f.request("GET", open, "/?"+query, nil)); strings.TrimPrefix(s.URI, "/?") != want && s.URI != "/"+want {
			t.Errorf("%s: the guest sees %s", query, s.URI)
		}
	}
	for _, path := range []string{"/" + apiSecret + "/x", "/%63ay_secret"} {
		if resp, body := f.get(open, path); resp.StatusCode != 400 || strings.Contains(body, apiSecret) {
			t.Errorf("%s: %d %s", path, resp.StatusCode, body)
		}
	}
	// Headers and cookies that are not cay's pass unchanged.
	s := f.seen(f.request("GET", open, "/", nil, "Cookie", "a=1;b=\"x y\"; =z", "Cookie", "theme=dark; cay_preview=1; c=cay_2",
		"Authorization", "Bearer guests-own", "Sec-WebSocket-Protocol", "graphql-ws, cay.bearer.x", "Referer", "http://x.test/"))
	for name, want := range map[string]string{
		"Authorization": "Bearer guests-own", "Sec-Websocket-Protocol": "graphql-ws", "Referer": "http://x.test/",
	} {
		if got := s.Header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if got := strings.Join(s.Header["Cookie"], "|"); got != "a=1;b=\"x y\"; =z|theme=dark; c=cay_2" {
		t.Errorf("cookies %q", got)
	}
}

// Row P4: a guest sets cookies for its own host only, and none with cay's names.
func TestSetCookie(t *testing.T) {
	t.Parallel()
	for set, want := range map[string]string{
		"a=1; Domain=preview.test; Path=/":           "a=1; Path=/",
		"a=1; domain = .preview.test ;Secure":        "a=1; Secure",
		"a=1;DOMAIN=closed.preview.test":             "a=1",
		"a=1; Domain=x; Domain=y; HttpOnly":          "a=1; HttpOnly",
		"a=1; Path=/; Partitioned; Priority=High":    "a=1; Path=/; Partitioned; Priority=High",
		"domain=1; Path=/domain":                     "domain=1; Path=/domain",
		"__Host-a=1; Secure; Path=/":                 "__Host-a=1; Secure; Path=/",
		"cay_preview=x":                              "",
		" cay_preview =x; Path=/":                    "",
		"=cay_preview=x":                             "",
		"cay_preview":                                "",
		"__Host-cay_preview=x; Secure; Path=/":       "",
		"__HOST-cay_preview=x; Secure; Path=/":       "",
		"a=cay_preview; Max-Age=1; Domain=localhost": "a=cay_preview; Max-Age=1",
	} {
		f := serve(t, newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Set-Cookie", set)
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusOK)
		})), nil)
		resp, _ := f.get(open, "/")
		if got := strings.Join(resp.Header["Set-Cookie"], "|"); got != want {
			t.Errorf("%q becomes %q, want %q", set, got, want)
		}
	}
}

// A guest that has its site's data cleared does not end the visits to other previews.
func TestClearSiteData(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]string{
		`"cookies"`:                     "",
		`"*"`:                           "",
		`"cache","cookies" , "storage"`: `"cache", "storage"`,
		`"cache"`:                       `"cache"`,
	} {
		f := serve(t, newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Clear-Site-Data", said)
		})), nil)
		resp, _ := f.get(open, "/")
		if got := resp.Header.Get("Clear-Site-Data"); got != want {
			t.Errorf("%s becomes %s, want %s", said, got, want)
		}
	}
}

// Row P5: a page of another origin cannot use the visitor's cookie, neither for
// a WebSocket nor to post nor to read.
func TestCrossOrigin(t *testing.T) {
	t.Parallel()
	f := serve(t, newWorld(t, hello), nil)
	own := "http://" + host(closed)
	for _, tt := range []struct {
		name, method string
		headers      []string
		status       int
	}{
		{"OwnPage", "POST", []string{"Origin", own, "Sec-Fetch-Site", "same-origin"}, 200},
		{"OwnPageWithPort", "POST", []string{"Origin", own + ":80"}, 200},
		{"OwnPageUpperCase", "POST", []string{"Origin", "http://CLOSED.preview.test"}, 200},
		{"NoBrowser", "POST", nil, 200},
		{"AddressBar", "GET", []string{"Sec-Fetch-Site", "none"}, 200},
		{"FollowedLink", "GET", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"}, 200},
		{"OtherPreview", "POST", []string{"Origin", "http://" + host(open)}, 403},
		{"OtherPreviewReads", "GET", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors"}, 403},
		{"OtherSite", "POST", []string{"Origin", "https://evil.test"}, 403},
		{"OtherSiteForm", "POST", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"}, 403},
		{"OtherPort", "POST", []string{"Origin", own + ":8080"}, 403},
		{"NoOrigin", "POST", []string{"Origin", "null"}, 403},
		{"TwoOrigins", "POST", []string{"Origin", own, "Origin", "https://evil.test"}, 403},
		{"Suffix", "POST", []string{"Origin", own + ".evil.test"}, 403},
		{"WebSocket", "GET", []string{"Origin", "http://" + host(other), "Connection", "Upgrade", "Upgrade", "websocket"}, 403},
	} {
		t.Run(tt.name, func(t *testing.T) {
			resp, body := f.do(f.request(tt.method, closed, "/", nil, append(tt.headers, "Cookie", cookie)...))
			if resp.StatusCode != tt.status {
				t.Errorf("%d %q", resp.StatusCode, body)
			}
			if tt.status == 403 { // a client that has the token itself may do it from anywhere
				resp, body := f.do(f.request(tt.method, closed, "/", nil, append(tt.headers, "Cay-Preview-Token", "token-of-closed")...))
				if resp.StatusCode != 200 {
					t.Errorf("with a token: %d %q", resp.StatusCode, body)
				}
			}
		})
	}
}

// Row P7: a port can be requested by its label only.
func TestUndeclaredPorts(t *testing.T) {
	t.Parallel()
	wo := newWorld(t, hello)
	f := serve(t, wo, nil)
	for _, label := range []string{"22-open", "open-22", "1", "0", "65536", "-1", "open--1", "3000"} {
		if resp, _ := f.get(label, "/"); resp.StatusCode != 404 {
			t.Errorf("%s: %d", label, resp.StatusCode)
		}
	}
	if resp, body := f.do(f.request("CONNECT", open, "", nil)); resp.StatusCode != 405 {
		t.Errorf("CONNECT: %d %q", resp.StatusCode, body)
	}
	if wo.dials != 0 {
		t.Errorf("%d connections into a guest", wo.dials)
	}
}

// Row P8: the visitor follows a guest's redirect, not the proxy.
func TestRedirect(t *testing.T) {
	t.Parallel()
	f := serve(t, newWorld(t, http.RedirectHandler("http://169.254.169.254/latest", http.StatusTemporaryRedirect)), nil)
	resp, _ := f.do(f.request("POST", open, "/", strings.NewReader("x")))
	io.Copy(io.Discard, resp.Body)
	if resp.StatusCode != 307 || resp.Header.Get("Location") != "http://169.254.169.254/latest" {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
}
