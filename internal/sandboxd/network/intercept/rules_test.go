package intercept

import (
	"compress/gzip"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/sandbox"
)

const (
	secret = "sk-live-0123456789abcdef"
	bearer = "Bearer " + secret
)

func inject(scrub bool) sandbox.Rule {
	return sandbox.Rule{SetHeaders: map[string]string{"authorization": bearer}, Scrub: scrub}
}

func exact(s string) *sandbox.TextMatch { return &sandbox.TextMatch{Exact: &s} }

func TestRules_SetHeaders(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, guestH2, serverH2 bool) {
		w := newWorld(t, allow(host, inject(false)))
		seen := make(chan http.Header, 1)
		w.serve(host, 443, serverH2, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			h := r.Header.Clone()
			for name, values := range r.Trailer {
				h["Trailer "+name] = values
			}
			seen <- h
		}))
		req, err := http.NewRequestWithContext(t.Context(), "POST", "https://"+host+"/", io.NopCloser(strings.NewReader("body")))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"AUTHORIZATION": {"placeholder"}, "Authorization": {"a", "b"}, "Connection": {"authorization"}}
		if guestH2 {
			req.Header.Del("Connection")
		}
		req.Trailer = http.Header{"X-Authorization": {"fine"}, "X-Sum": {"1"}}
		res, _ := do(t, w.guest(guestH2), req)
		got := receive(t, seen, "the request")
		if v := got["Authorization"]; len(v) != 1 || v[0] != bearer {
			t.Errorf("server got Authorization %q", v)
		}
		if got["Trailer X-Sum"] == nil {
			t.Errorf("server got %v", got)
		}
		if res.StatusCode != http.StatusOK {
			t.Errorf("status %d", res.StatusCode)
		}
		if f := w.flow(); f.Rule != `allow "api.example.com" rule 1` {
			t.Errorf("recorded %+v", f)
		}
	})
}

// A guest cannot override a header by a trailer of the same name.
func TestRules_SetHeadersAndTrailers(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, guestH2, serverH2 bool) {
		w := newWorld(t, allow(host, sandbox.Rule{SetHeaders: map[string]string{"X-Key": "0123456789"}}))
		seen := make(chan http.Header, 1)
		w.serve(host, 443, serverH2, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			seen <- r.Trailer
		}))
		req, err := http.NewRequestWithContext(t.Context(), "POST", "https://"+host+"/", io.NopCloser(strings.NewReader("body")))
		if err != nil {
			t.Fatal(err)
		}
		req.Trailer = http.Header{"X-Key": {"mine"}, "X-Sum": {"1"}}
		do(t, w.guest(guestH2), req)
		if got := receive(t, seen, "the request"); got.Get("X-Key") != "" || got.Get("X-Sum") != "1" {
			t.Errorf("server got the trailers %v", got)
		}
	})
}

// N21: a secret is sent to its own host and to no other host.
func TestRules_SecretsStayWithTheirHost(t *testing.T) {
	t.Parallel()
	listed := allow(host, inject(false))
	listed.Ports = []uint16{443, 80}
	w := newWorld(t, listed, allow("other.example.com"))
	leaked := func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, r.Header) }
	for _, port := range []uint16{443, 80} {
		w.serve(host, port, true, http.HandlerFunc(leaked))
		w.serve("other.example.com", port, true, http.HandlerFunc(leaked))
	}
	for _, h2 := range []bool{false, true} {
		c := w.guest(h2)
		if _, body := get(t, c, "https://"+host+"/"); !strings.Contains(body, bearer) {
			t.Errorf("h2=%v: its host did not get the secret: %s", h2, body)
		}
		if _, body := get(t, c, "https://other.example.com/"); strings.Contains(body, secret) {
			t.Errorf("h2=%v: another host got the secret: %s", h2, body)
		}
		req, err := http.NewRequestWithContext(t.Context(), "GET", "https://other.example.com/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		if res, body := do(t, c, req); res.StatusCode != http.StatusMisdirectedRequest || strings.Contains(body, secret) {
			t.Errorf("h2=%v: fronting: %d %s", h2, res.StatusCode, body)
		}
	}
	// On the other host's connection, over plain HTTP, the Host header decides the
	// receiver.
	answer := w.raw("GET / HTTP/1.1\r\nHost: other.example.com\r\n\r\nGET / HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n")
	if first, second, _ := strings.Cut(answer, "HTTP/1.1 200 OK\r\n"); strings.Count(answer, secret) != 1 || strings.Contains(first, secret) || second == "" {
		t.Errorf("plain HTTP: %s", answer)
	}
}

// An eavesdropper on the way can read plain HTTP. A guest must not be able to choose
// plain HTTP for a secret; the policy can, by listing the port.
func TestRules_SecretsNeedTLS(t *testing.T) {
	t.Parallel()
	w := newWorld(t, allow(host, inject(false)))
	w.serve(host, 80, false, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		t.Errorf("the server got %v", r.Header)
	}))
	answer := w.raw("GET / HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n")
	if !strings.HasPrefix(answer, "HTTP/1.1 403 ") || !strings.Contains(answer, "use https") {
		t.Errorf("plain HTTP: %s", answer)
	}
}

// N22: if a server echoes the secret, in any part of the response and in pieces, the
// guest gets the response without the secret.
func TestRules_Scrub(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, guestH2, serverH2 bool) {
		w := newWorld(t, allow(host, inject(true)))
		asked := make(chan http.Header, 1)
		w.serve(host, 443, serverH2, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			asked <- r.Header.Clone()
			v := r.Header.Get("Authorization")
			rw.Header().Set("Link", v)
			rw.WriteHeader(http.StatusEarlyHints)
			rw.Header().Set("Trailer", "X-Trailer")
			rw.Header().Set("X-Echo", "you sent "+v)
			rw.Header().Set(secret, "as a name")
			rc := http.NewResponseController(rw)
			for i := range v {
				io.WriteString(rw, v[i:i+1])
				_ = rc.Flush()
			}
			fmt.Fprintf(rw, " %s %s %q", base64.StdEncoding.EncodeToString([]byte(v)), url.QueryEscape(v), secret)
			rw.Header().Set("X-Trailer", v)
		}))
		req, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+host+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept-Encoding", "gzip, br")
		req.Header.Set("Range", "bytes=0-9")
		res, body := do(t, w.guest(guestH2), req)
		if h := receive(t, asked, "the request"); h.Get("Accept-Encoding") != "identity" || h.Get("Range") != "" {
			t.Errorf("server was asked with %v", h)
		}
		const r = sandbox.Redacted
		if want := r + " " + r + " " + r + ` "` + r + `"`; body != want {
			t.Errorf("body %q, want %q", body, want)
		}
		if all := fmt.Sprint(res.Header, res.Trailer); strings.Contains(strings.ToLower(all), secret) || res.Header.Get("X-Echo") != "you sent "+r || res.Trailer.Get("X-Trailer") != r {
			t.Errorf("headers and trailers %s", all)
		}
		w.noSecret()
	})
}

// TRACE makes a server echo the request that it got.
func TestRules_Trace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, allow(host, inject(false)), allow("other.example.com"))
	for _, name := range []string{host, "other.example.com"} {
		w.serve(name, 443, false, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, r.Header) }))
	}
	for name, status := range map[string]int{host: 405, "other.example.com": 200} {
		req, err := http.NewRequestWithContext(t.Context(), "TRACE", "https://"+name+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if res, body := do(t, w.guest(false), req); res.StatusCode != status || strings.Contains(body, secret) {
			t.Errorf("%s: %d %s", name, res.StatusCode, body)
		}
	}
}

// noSecret checks that no record of a request has a secret.
func (w *world) noSecret() {
	w.t.Helper()
	close(w.flows)
	for f := range w.flows {
		if strings.Contains(fmt.Sprintf("%+v", f), secret) {
			w.t.Errorf("a secret in the record %+v", f)
		}
	}
	if strings.Contains(w.log.String(), secret) {
		w.t.Errorf("a secret in the log: %s", w.log.String())
	}
}

func TestRules_ScrubNeedsPlainText(t *testing.T) {
	t.Parallel()
	w := newWorld(t, allow(host, inject(true)))
	w.serve(host, 443, true, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/part":
			rw.Header().Set("Content-Range", "bytes 0-3/10")
			rw.WriteHeader(http.StatusPartialContent)
			io.WriteString(rw, secret[:4])
		case "/gzip":
			rw.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(rw)
			io.WriteString(z, r.Header.Get("Authorization"))
			z.Close()
		case "/empty":
			rw.Header().Set("Content-Encoding", "gzip")
			rw.WriteHeader(http.StatusNoContent)
		}
	}))
	c := w.guest(true)
	for path, status := range map[string]int{"/part": 502, "/gzip": 502, "/empty": 204} {
		res, body := get(t, c, "https://"+host+path)
		if res.StatusCode != status || status == 502 && !strings.Contains(body, "scrubbed") {
			t.Errorf("%s: %d %s", path, res.StatusCode, body)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+host+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}
	if res, body := do(t, w.guest(false), req); res.StatusCode != http.StatusForbidden {
		t.Errorf("upgrade: %d %s", res.StatusCode, body)
	}
}

// A secret appears in no error, log or record, whatever a server does with it.
func TestRules_NoSecretInErrors(t *testing.T) {
	t.Parallel()
	for _, port := range []uint16{80, 443} {
		for _, answer := range []string{
			bearer + "\r\n\r\n",
			"HTTP/1.1 " + bearer + "\r\n\r\n",
			"HTTP/1.1 200 OK\r\n" + bearer + "\r\n\r\n",
			"HTTP/1.1 200 OK\r\nContent-Length: " + bearer + "\r\n\r\n",
			"HTTP/1.1 200 OK\r\nTransfer-Encoding: " + bearer + "\r\n\r\n",
			"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: " + bearer + "\r\n\r\n",
			"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + bearer + "\r\n",
			"",
		} {
			w := newWorld(t, allow(host, inject(false)))
			w.serveRaw(host, port, func(c net.Conn) {
				_, _ = c.Read(make([]byte, 1<<10))
				io.WriteString(c, answer)
			})
			scheme := "http"
			if isTLS(port) {
				scheme = "https"
			}
			res, err := w.guest(false).Get(fmt.Sprintf("%s://%s:%d/", scheme, host, port))
			if err == nil {
				body, _ := io.ReadAll(res.Body)
				res.Body.Close()
				if strings.Contains(string(body), secret) {
					t.Errorf("%q: guest got %s", answer, body)
				}
			}
			w.proxy.Close()
			if len(w.flows) != 1 {
				t.Errorf("%q: %d records", answer, len(w.flows))
			}
			w.noSecret()
		}
	}
}

func TestRules_Forward(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, guestH2, serverH2 bool) {
		w := newWorld(t, allow(host,
			sandbox.Rule{Match: sandbox.Match{Path: exact("/private")}, ForwardURL: "http://private.example.net"},
			sandbox.Rule{Match: sandbox.Match{Path: exact("/ip")}, ForwardURL: "http://10.0.0.5:80/"},
			sandbox.Rule{ForwardURL: "https://gateway.example.net:8443/base/"},
		), sandbox.Domain{Name: "odd.example.com", Ports: []uint16{8443}, Rules: []sandbox.Rule{{ForwardURL: "https://gateway.example.net:8443"}}})
		seen := make(chan *http.Request, 1)
		w.serve("gateway.example.net", 8443, serverH2, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			seen <- r
			io.WriteString(rw, "forwarded")
		}))
		req, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+host+"/v1/a%2Fb?q=1", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"X-Own": {"1"}, "Vercel-Forwarded-Host": {"evil"}, "Vercel-Forwarded-Other": {"evil"}, "Vercel-Sandbox-Oidc-Token": {"evil"}}
		c := w.guest(guestH2)
		_, body := do(t, c, req)
		r := receive(t, seen, "the request")
		if body != "forwarded" || r.RequestURI != "/base/v1/a%2Fb?q=1" || r.Host != "gateway.example.net:8443" || r.Header.Get("X-Own") != "1" {
			t.Errorf("gateway saw %s for %s: %v", r.RequestURI, r.Host, r.Header)
		}
		for name, want := range map[string]string{"Host": host, "Scheme": "https", "Port": "443", "Path": "/v1/a%2Fb?q=1", "Other": ""} {
			if got := r.Header.Get("Vercel-Forwarded-" + name); got != want {
				t.Errorf("vercel-forwarded-%s is %q, want %q", strings.ToLower(name), got, want)
			}
		}
		if got := r.Header.Get("Vercel-Sandbox-Oidc-Token"); got != "" {
			t.Errorf("the guest's own token passed: %q", got)
		}
		if f := w.flow(); f.Name != host || f.Rule != `allow "api.example.com" rule 3` || f.Status != 200 {
			t.Errorf("recorded %+v", f)
		}
		req, err = http.NewRequestWithContext(t.Context(), "OPTIONS", "https://odd.example.com:8443", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.URL.Path = "*"
		do(t, c, req)
		if r := receive(t, seen, "the request"); r.RequestURI != "/" || r.Header.Get("Vercel-Forwarded-Path") != "/" || r.Header.Get("Vercel-Forwarded-Port") != "8443" {
			t.Errorf("gateway saw %s: %v", r.RequestURI, r.Header)
		}
		w.flow()
		// N23: a destination that is blocked is not reached by a forward either.
		for _, path := range []string{"/private", "/ip"} {
			if res, body := get(t, c, "https://"+host+path); res.StatusCode != http.StatusForbidden || !strings.Contains(body, "not on the public internet") {
				t.Errorf("%s: %d %s", path, res.StatusCode, body)
			}
			if f := w.flow(); f.Verdict != sandbox.Denied || f.Reason == "" {
				t.Errorf("%s: recorded %+v", path, f)
			}
		}
		for _, path := range []string{"/../admin", "/%2e%2e/admin", "/a/..%2Fadmin", "/..%5Cadmin"} {
			if res, body := get(t, c, "https://"+host+path); res.StatusCode < 400 {
				t.Errorf("%s: %d %s", path, res.StatusCode, body)
			}
		}
	})
}

func TestRules_Respond(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		w := newWorld(t, allow(host,
			sandbox.Rule{Match: sandbox.Match{Path: exact("/json")}, Respond: &sandbox.Response{Status: 201, Headers: map[string]string{"content-type": "application/json", "X-A": "b"}, Body: "{}"}},
			sandbox.Rule{Match: sandbox.Match{Path: exact("/none")}, Respond: &sandbox.Response{Status: 204}},
			sandbox.Rule{Respond: &sandbox.Response{Status: 500, Body: "no"}},
		))
		c := w.guest(h2)
		if res, body := get(t, c, "https://"+host+"/json"); res.StatusCode != 201 || body != "{}" || res.Header.Get("Content-Type") != "application/json" || res.Header.Get("X-A") != "b" {
			t.Errorf("h2=%v: %d %v %q", h2, res.StatusCode, res.Header, body)
		}
		if res, body := get(t, c, "https://"+host+"/none"); res.StatusCode != 204 || body != "" {
			t.Errorf("h2=%v: %d %q", h2, res.StatusCode, body)
		}
		if res, body := get(t, c, "https://"+host+"/"); res.StatusCode != 500 || body != "no" {
			t.Errorf("h2=%v: %d %q", h2, res.StatusCode, body)
		}
		if f := w.flow(); f.Verdict != sandbox.Allowed || f.Status != 201 || f.IngressBytes != 2 || w.dials.Load() != 0 {
			t.Errorf("h2=%v: recorded %+v", h2, f)
		}
	}
}

func TestRules_Deny(t *testing.T) {
	t.Parallel()
	w := newWorld(t, allow(host,
		sandbox.Rule{Match: sandbox.Match{Path: exact("/admin")}, Deny: true},
		sandbox.Rule{Match: sandbox.Match{Methods: []string{"GET"}}},
		sandbox.Rule{Deny: true},
	))
	w.serve(host, 443, true, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, h2 := range []bool{false, true} {
		c := w.guest(h2)
		for _, test := range []struct {
			method, path string
			status       int
			rule         string
		}{
			{"GET", "/", 200, `allow "api.example.com" rule 2`},
			{"GET", "/admin", 403, `allow "api.example.com" rule 1`},
			{"POST", "/", 403, `allow "api.example.com" rule 3`},
		} {
			req, err := http.NewRequestWithContext(t.Context(), test.method, "https://"+host+test.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			res, body := do(t, c, req)
			f := w.flow()
			if res.StatusCode != test.status || f.Status != test.status || f.Rule != test.rule {
				t.Errorf("h2=%v %s %s: %d %s, recorded %+v", h2, test.method, test.path, res.StatusCode, body, f)
			}
			if test.status == 403 && (res.Header.Get(deniedHeader) != test.rule || !strings.Contains(body, test.rule) || !strings.Contains(body, f.Reason) || f.Reason == "" || f.Verdict != sandbox.Denied) {
				t.Errorf("h2=%v %s %s: %v %s, recorded %+v", h2, test.method, test.path, res.Header, body, f)
			}
		}
	}
}

// Each request is decided by the policy of its time, on connections that stay open.
func TestRules_PolicyChanges(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		w := newWorld(t, allow(host))
		w.serve(host, 443, true, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, r.Header.Get("Authorization")) }))
		c := w.guest(h2)
		if res, body := get(t, c, "https://"+host+"/"); res.StatusCode != 200 || body != "" {
			t.Errorf("h2=%v: at first: %d %s", h2, res.StatusCode, body)
		}
		w.setPolicy(allow(host, inject(false)))
		if _, body := get(t, c, "https://"+host+"/"); body != bearer {
			t.Errorf("h2=%v: with a rule: %s", h2, body)
		}
		w.setPolicy(allow("other.example.com"))
		if res, body := get(t, c, "https://"+host+"/"); res.StatusCode != 403 || res.Header.Get(deniedHeader) != "not in allow" {
			t.Errorf("h2=%v: denied: %d %s", h2, res.StatusCode, body)
		}
		if n := w.dials.Load(); n != 1 {
			t.Errorf("h2=%v: %d connections to the server, want 1", h2, n)
		}
	}
}

// N10, N12, and other requests that are not for the host of the connection.
func TestRules_Hosts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, allow(host), allow("also.example.com"))
	for _, name := range []string{host, "also.example.com"} {
		for _, port := range []uint16{80, 443} {
			w.serve(name, port, false, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { fmt.Fprintf(rw, "reached %s", r.Host) }))
		}
	}
	for _, test := range []struct {
		name, request string
		tls           bool
		want          string // in the answer
	}{
		{"the name", "GET / HTTP/1.1\r\nHost: api.example.com\r\n", true, "reached api.example.com"},
		{"capitals, dot and port", "GET / HTTP/1.1\r\nHost: API.Example.com.:443\r\n", true, "reached api.example.com:443"},
		{"absolute form", "GET https://api.example.com/x HTTP/1.1\r\nHost: api.example.com\r\n", true, "reached api.example.com"},
		{"fronting", "GET / HTTP/1.1\r\nHost: evil.example.net\r\n", true, "HTTP/1.1 421"},
		{"fronting an allowed name", "GET / HTTP/1.1\r\nHost: also.example.com\r\n", true, "HTTP/1.1 421"},
		{"fronting in absolute form", "GET https://evil.example.net/ HTTP/1.1\r\nHost: evil.example.net\r\n", true, "HTTP/1.1 421"},
		{"an address", "GET / HTTP/1.1\r\nHost: 192.0.2.1\r\n", true, "HTTP/1.1 421"},
		{"an IPv6 address", "GET / HTTP/1.1\r\nHost: [2001:db8::1]:443\r\n", true, "HTTP/1.1 421"},
		{"another port", "GET / HTTP/1.1\r\nHost: api.example.com:8443\r\n", true, "HTTP/1.1 421"},
		{"no host in HTTP/1.0", "GET / HTTP/1.0\r\n", true, "HTTP/1.0 400"},
		{"HTTP/1.0", "GET / HTTP/1.0\r\nHost: api.example.com\r\n", true, "reached"},
		{"CONNECT", "CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n", true, "HTTP/1.1 400"},

		{"plain", "GET / HTTP/1.1\r\nHost: api.example.com:80\r\n", false, "reached api.example.com:80"},
		{"plain to another", "GET / HTTP/1.1\r\nHost: evil.example.net\r\n", false, "HTTP/1.1 403"},
		{"plain to an address", "GET / HTTP/1.1\r\nHost: 192.0.2.1\r\n", false, "allow_cidrs"},
		{"plain to another port", "GET / HTTP/1.1\r\nHost: api.example.com:8080\r\n", false, "HTTP/1.1 421"},
		{"two hosts", "GET / HTTP/1.1\r\nHost: api.example.com\r\nHost: evil.example.net\r\n", false, "HTTP/1.1 400"},
		{"absolute form for another", "GET http://evil.example.net/ HTTP/1.1\r\nHost: api.example.com\r\n", false, "HTTP/1.1 400"},
		{"absolute form for another, turned", "GET http://api.example.com/ HTTP/1.1\r\nHost: evil.example.net\r\n", false, "HTTP/1.1 400"},
		{"user info", "GET / HTTP/1.1\r\nHost: api.example.com@evil.example.net\r\n", false, "HTTP/1.1 400"},
		{"folded", "GET / HTTP/1.1\r\nHost: api.example.com\r\n X: y\r\n", false, "HTTP/1.1 400"},
		{"space before the colon", "GET / HTTP/1.1\r\nHost : evil.example.net\r\nHost: api.example.com\r\n", false, "HTTP/1.1 400"},
		{"both framings", "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n", false, "HTTP/1.1 400"},
		{"two lengths", "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 3\r\nContent-Length: 0\r\n", false, "HTTP/1.1 400"},
		{"bare line feed", "GET / HTTP/1.1\nHost: api.example.com\r\n", false, "HTTP/1.1 400"},
		{"zero byte", "GET / HTTP/1.1\r\nHost: api.example.com\r\nX: \x00\r\n", false, "HTTP/1.1 400"},
		{"HTTP/2 in plain", "PRI * HTTP/2.0\r\n", false, "HTTP/1.1 400"},
		{"not HTTP", "\x01\x02\x03\x04\r\n", false, "HTTP/1.1 400"},
	} {
		c := w.connect(t.Context(), host, 80)
		if test.tls {
			c = tls.Client(w.connect(t.Context(), host, 443), &tls.Config{RootCAs: w.guestTrust(), ServerName: host})
		}
		answer := exchangeRaw(t, c, test.request+"Connection: close\r\n\r\n")
		c.Close()
		if !strings.Contains(answer, test.want) {
			t.Errorf("%s: want %q in\n%s", test.name, test.want, answer)
		}
		f := w.flow()
		refused := !strings.Contains(answer, " 200 OK")
		if refused != (f.Verdict == sandbox.Denied) || refused && (f.Reason == "" || !strings.Contains(answer, deniedHeader+": "+f.Rule) || !strings.Contains(answer, fmt.Sprint(" ", f.Status, " "))) {
			t.Errorf("%s: recorded %+v, answered\n%s", test.name, f, answer)
		}
	}
}

// A refused request in the middle of a connection does not affect the response to the
// request before.
func TestRules_SmugglingOnOneConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t, allow(host))
	w.serve(host, 80, false, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(rw, "served %s %v.", r.URL.Path, err)
	}))
	first := "GET /first HTTP/1.1\r\nHost: " + host + "\r\n\r\n"
	for name, second := range map[string]string{
		"two hosts":     "GET /second HTTP/1.1\r\nHost: " + host + "\r\nHost: evil\r\n\r\n",
		"not HTTP":      "\x00\x01",
		"bad framing":   "POST /second HTTP/1.1\r\nHost: " + host + "\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
		"long chunk":    "POST /second HTTP/1.1\r\nHost: " + host + "\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabGET /third HTTP/1.1\r\n\r\n",
		"other framing": "POST /second HTTP/1.1\r\nHost: " + host + "\r\nTransfer-Encoding: xchunked\r\n\r\n",
	} {
		answer := w.raw(first + second)
		if strings.Count(answer, "served /first <nil>.") != 1 || strings.Contains(answer, "served /second <nil>") || strings.Contains(answer, "/third") || !strings.Contains(answer, "HTTP/1.1 400 Bad Request") {
			t.Errorf("%s: %s", name, answer)
		}
		if a, b := w.flow(), w.flow(); a.Status != 200 || b.Status != 400 || b.Verdict != sandbox.Denied || b.Rule != ruleMalformed {
			t.Errorf("%s: recorded %+v, %+v", name, a, b)
		}
	}
}

// HTTP/2 has a host in two places as well.
func TestRules_HTTP2Authority(t *testing.T) {
	t.Parallel()
	w := newWorld(t, allow(host))
	w.serve(host, 443, true, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, r.Host, r.Header["Host"]) }))
	for _, test := range []struct {
		authority, header string
		status            int
	}{
		{host, "", 200},
		{host, strings.ToUpper(host), 200},
		{"", host, 200},
		{host, "evil.example.net", 400},
		{"evil.example.net", host, 400},
		{"evil.example.net", "", 421},
		{"", "evil.example.net", 421},
		{"", "", 400},
		{"user@" + host, "", 0},
	} {
		c := newHTTP2Client(t, w.connect(t.Context(), host, 443), w)
		fields := []string{":method", "GET", ":scheme", "https", ":path", "/"}
		if test.authority != "" {
			fields = append(fields, ":authority", test.authority)
		}
		if test.header != "" {
			fields = append(fields, "host", test.header)
		}
		if status := c.request(t, fields...); status != fmt.Sprint(test.status) && (test.status != 0 || status != "reset") {
			t.Errorf(":authority %q, host %q: %s, want %d", test.authority, test.header, status, test.status)
		}
		c.conn.Close()
	}
	c := newHTTP2Client(t, w.connect(t.Context(), host, 443), w)
	defer c.conn.Close()
	if status := c.request(t, ":method", "CONNECT", ":authority", host+":443"); status != "405" {
		t.Errorf("CONNECT: %s", status)
	}
}

func TestRules_DeniedDials(t *testing.T) {
	t.Parallel()
	w := newWorld(t, allow("*.example.com"))
	for _, test := range []struct {
		url      string
		status   int
		rule, in string
		verdict  sandbox.Verdict
	}{
		{"https://private.example.com/", 403, `allow "*.example.com"`, "not on the public internet", sandbox.Denied},
		{"https://denied.example.com/", 403, "deny_cidrs 192.0.2.0/24", "192.0.2.1", sandbox.Denied},
		{"https://missing.example.com/", 502, `allow "*.example.com"`, "does not exist", sandbox.Broken},
	} {
		res, body := get(t, w.guest(true), test.url)
		f := w.flow()
		if res.StatusCode != test.status || res.Header.Get(deniedHeader) != test.rule || !strings.Contains(body, test.in) ||
			f.Verdict != test.verdict || f.Rule != test.rule || !strings.Contains(f.Reason, test.in) {
			t.Errorf("%s: %d %v %s, recorded %+v", test.url, res.StatusCode, res.Header, body, f)
		}
		if time.Since(f.Time) > patience {
			t.Errorf("recorded the time %v", f.Time)
		}
	}
}
