package names_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/compat/vercelsandbox/names"
)

// front is a running Server in front of a daemon that echoes its requests.
type front struct {
	dir    string
	addr   string
	client *http.Client
}

// noGateway answers for a daemon without an AI gateway.
func noGateway(context.Context) (*url.URL, error) {
	return nil, cay.Errorf(cay.NotFound, "the AI gateway of this daemon is off")
}

func serve(t *testing.T, below string, daemon http.HandlerFunc) *front {
	t.Helper()
	return serveBoth(t, below, daemon, noGateway)
}

func serveBoth(t *testing.T, below string, daemon http.HandlerFunc, gateway func(context.Context) (*url.URL, error)) *front {
	t.Helper()
	s := httptest.NewServer(daemon)
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL + below)
	if err != nil {
		t.Fatal(err)
	}
	f := &front{dir: t.TempDir()}
	a, err := names.OpenAuthority(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- names.New(u, gateway, a, slog.New(slog.DiscardHandler)).Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	tr := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: f.roots(t)},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, l.Addr().String())
		},
	}
	t.Cleanup(tr.CloseIdleConnections)
	f.client = &http.Client{Transport: tr, Timeout: time.Minute}
	return f
}

func (f *front) roots(t *testing.T) *x509.CertPool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(f.dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		t.Fatal("ca.pem has no certificate")
	}
	return pool
}

func (f *front) get(t *testing.T, to string) (int, string) {
	t.Helper()
	resp, err := f.client.Get(to)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s %s %s %s %s %s", r.Method, r.Host, r.URL, r.Header.Get("X-Forwarded-Proto"), r.Header.Get("Authorization"), body)
}

func TestServer(t *testing.T) {
	t.Parallel()
	f := serve(t, "", echo)
	for to, want := range map[string]string{
		"https://vercel.com/api/v2/sandboxes/a%2Fb?x=%zz;y":   "GET vercel.com /api/v2/sandboxes/a%2Fb?x=%zz;y https  ",
		"https://vercel.com/.well-known/openid-configuration": "GET vercel.com /.well-known/openid-configuration https  ",
		"https://vercel.com/oauth/token":                      "GET vercel.com /oauth/token https  ",
		"https://vercel.com/health":                           "GET vercel.com /health https  ",
		"https://api.vercel.com/v1/sandboxes/a%2Fb?x":         "GET api.vercel.com /api/v1/sandboxes/a%2Fb?x https  ",
		"https://oidc.vercel.com/.well-known/jwks":            "GET oidc.vercel.com /.well-known/jwks https  ",
		"https://abc-1.vercel.run/any/path?q":                 "GET abc-1.vercel.run /any/path?q https  ",
		"https://vercel-workflow.com/api/v2/runs/a%2Fb?x":     "GET vercel-workflow.com /vercel/workflow/api/v2/runs/a%2Fb?x https  ",
		"https://iad1.vercel-queue.com/api/v3/topic/a%2Fb":    "GET vercel-workflow.com /vercel/queue/api/v3/topic/a%2Fb https  ",
		"https://vercel.com/":                                 "",
		"https://vercel.com/login":                            "",
		"https://vercel.com/apix":                             "",
		"https://oidc.vercel.com/login":                       "",
		"https://vercel.com/health/x":                         "",
	} {
		status, body := f.get(t, to)
		switch {
		case want != "":
			if status != 200 || body != want {
				t.Errorf("%s: %d %q, want %q", to, status, body, want)
			}
		case status != 404 || !strings.Contains(body, `{"error":{"code":"not_found","message":"cay serves Vercel Sandbox`):
			t.Errorf("%s: %d %q, want 404", to, status, body)
		}
	}
	// A name that is not in the certificate, requested over a valid connection.
	r, err := http.NewRequest("GET", "https://vercel.com/api/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "other.example"
	resp, err := f.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("another name: %d", resp.StatusCode)
	}
	// The headers with which a client describes its connection are ignored.
	r, err = http.NewRequest("POST", "https://vercel.com/api/x", strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Forwarded-Proto", "http")
	r.Header.Set("Authorization", "Bearer t")
	if resp, err = f.client.Do(r); err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || string(body) != "POST vercel.com /api/x https Bearer t body" {
		t.Errorf("got %q, %v", body, err)
	}
}

// Only requests for the AI gateway's name go to the gateway, and its requests go
// nowhere else.
func TestServer_gateway(t *testing.T) {
	t.Parallel()
	models := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "models: %s %s %s", r.Host, r.URL, r.Header.Get("Cookie"))
	}))
	t.Cleanup(models.Close)
	at, err := url.Parse(models.URL + "/below")
	if err != nil {
		t.Fatal(err)
	}
	gateway := func() (*url.URL, error) { return at, nil }
	f := serveBoth(t, "", func(w http.ResponseWriter, r *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "of", Value: r.Host, Domain: "", Path: "/"})
		fmt.Fprintf(w, "daemon: %s %s %s", r.Host, r.URL, r.Header.Get("Cookie"))
	}, func(context.Context) (*url.URL, error) { return gateway() })
	if f.client.Jar, err = cookiejar.New(nil); err != nil {
		t.Fatal(err)
	}
	for _, tt := range [][2]string{
		{"https://vercel.com/api/x", "daemon: vercel.com /api/x "},
		{"https://vercel.com/api/x", "daemon: vercel.com /api/x of=vercel.com"},
		{"https://ai-gateway.vercel.sh/v4/ai/language-model?a%2Fb", "models: ai-gateway.vercel.sh /below/v4/ai/language-model?a%2Fb "},
		{"https://ai-gateway.vercel.sh/api/v2/sandboxes", "models: ai-gateway.vercel.sh /below/api/v2/sandboxes "},
		{"https://ai-gateway.vercel.sh/", "models: ai-gateway.vercel.sh /below/ "},
	} {
		if status, body := f.get(t, tt[0]); status != 200 || body != tt[1] {
			t.Errorf("%s: %d %q, want %q", tt[0], status, body, tt[1])
		}
	}
	for wants, gone := range map[int]error{404: cay.Errorf(cay.NotFound, "it is off"), 502: cay.Errorf(cay.Unavailable, "it is away")} {
		gateway = func() (*url.URL, error) { return nil, gone }
		if status, body := f.get(t, "https://ai-gateway.vercel.sh/v1/models"); status != wants || !strings.Contains(body, gone.Error()) {
			t.Errorf("%v: %d %q", gone, status, body)
		}
	}
}

// A daemon may be below a path.
func TestServer_below(t *testing.T) {
	t.Parallel()
	f := serve(t, "/cay", echo)
	for to, want := range map[string]string{
		"https://vercel.com/api/a":       "GET vercel.com /cay/api/a https  ",
		"https://api.vercel.com/a%2Fb":   "GET api.vercel.com /cay/api/a%2Fb https  ",
		"https://vercel.com/api/a%2Fb?c": "GET vercel.com /cay/api/a%2Fb?c https  ",
	} {
		if _, body := f.get(t, to); body != want {
			t.Errorf("%s: %q, want %q", to, body, want)
		}
	}
}

// Lines of a stream arrive when they are sent, and WebSockets pass.
func TestServer_streams(t *testing.T) {
	t.Parallel()
	second := make(chan struct{}, 1)
	f := serve(t, "", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/socket" {
			c, err := websocket.Accept(w, r, nil)
			if err != nil {
				t.Error(err)
				return
			}
			kind, data, err := c.Read(r.Context())
			if err == nil {
				err = c.Write(r.Context(), kind, append([]byte(r.Host+" "), data...))
			}
			if err != nil {
				t.Error(err)
			}
			_ = c.Close(websocket.StatusNormalClosure, "")
			return
		}
		if r.URL.Path == "/api/sized" {
			w.Header().Set("Content-Length", "13")
		}
		fmt.Fprintln(w, "first")
		http.NewResponseController(w).Flush()
		<-second
		fmt.Fprintln(w, "second")
	})
	for _, path := range []string{"/api/stream", "/api/sized"} {
		resp, err := f.client.Get("https://vercel.com" + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		lines := bufio.NewReader(resp.Body)
		if line, err := lines.ReadString('\n'); line != "first\n" || err != nil {
			t.Fatalf("%s: %q, %v", path, line, err)
		}
		second <- struct{}{}
		if line, err := lines.ReadString('\n'); line != "second\n" || err != nil {
			t.Fatalf("%s: %q, %v", path, line, err)
		}
	}

	c, _, err := websocket.Dial(t.Context(), "wss://abc-1.vercel.run/socket", &websocket.DialOptions{HTTPClient: f.client})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Write(t.Context(), websocket.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, data, err := c.Read(t.Context()); string(data) != "abc-1.vercel.run hello" || err != nil {
		t.Errorf("%q, %v", data, err)
	}
	_ = c.CloseNow()
}

// ask is a program for Node that requests URLs of hosts that are all at $FRONT.
const ask = `
const https = require('node:https');
const [host, port] = process.env.FRONT.split(':');
const lookup = (_, options, done) => options.all ? done(null, [{ address: host, family: 4 }]) : done(null, host, 4);
for (const url of process.argv.slice(1)) {
  https.get(url, { lookup, port }, (r) => r.on('data', (d) => process.stdout.write(d + '\n'))).on('error', (e) => console.log(e.code));
}
`

// The clients' own TLS accepts the certificates, but only for these names.
func TestServer_clients(t *testing.T) {
	t.Parallel()
	f := serve(t, "", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "hello of %s", r.Host) })
	a, err := names.OpenAuthority(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := a.WriteBundle(nil)
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(f.addr)
	for name, tt := range map[string]struct {
		argv, env []string
	}{
		"node": {[]string{"-e", ask, "https://abc.vercel.run/"}, []string{"FRONT=" + f.addr, "NODE_EXTRA_CA_CERTS=" + a.File()}},
		"curl": {[]string{"-sS", "--connect-to", "::127.0.0.1:" + port, "https://abc.vercel.run:" + port + "/"}, []string{"SSL_CERT_FILE=" + bundle}},
		"python3": {[]string{"-c", `
import http.client, os, socket, ssl
c = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"])
s = c.wrap_socket(socket.create_connection(("127.0.0.1", ` + port + `)), server_hostname="abc.vercel.run")
s.sendall(b"GET / HTTP/1.1\r\nHost: abc.vercel.run\r\nConnection: close\r\n\r\n")
r = http.client.HTTPResponse(s); r.begin(); print(r.read().decode())`}, []string{"SSL_CERT_FILE=" + bundle}},
	} {
		t.Run(name, func(t *testing.T) {
			path, err := exec.LookPath(name)
			if err != nil {
				t.Skip(err)
			}
			cmd := exec.CommandContext(t.Context(), path, tt.argv...)
			cmd.Env = append(tt.env, "PATH="+os.Getenv("PATH"), "HOME="+t.TempDir())
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.HasPrefix(string(out), "hello of abc.vercel.run") {
				t.Errorf("%q, %v", out, err)
			}
		})
	}
}

// A daemon that is down causes neither a hang nor an answer of success.
func TestServer_daemonAway(t *testing.T) {
	t.Parallel()
	f := serve(t, "", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	status, body := f.get(t, "https://vercel.com/api/x")
	if status != 502 || !strings.Contains(body, `"code":"unavailable"`) {
		t.Errorf("%d %q", status, body)
	}
}

// The authority is created once, only its owner can read its key, and clients accept it
// only for its own names, whatever it signs.
func TestAuthority(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "deep", "names")
	a, err := names.OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(a.File())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := names.OpenAuthority(dir); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(a.File()); err != nil || string(after) != string(before) {
		t.Errorf("opening it again changed it: %v", err)
	}
	key := filepath.Join(dir, "ca.key")
	if info, err := os.Stat(key); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", info.Mode(), err)
	}
	bundle, err := a.WriteBundle([]byte("others\n"))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(bundle); err != nil || string(text) != string(before)+"others\n" {
		t.Errorf("the bundle is %q, %v", text, err)
	}

	pair, err := tls.LoadX509KeyPair(a.File(), key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(pair.Leaf)
	for name, good := range map[string]bool{
		"vercel.com": true, "api.vercel.com": true, "a.vercel.run": true, "ai-gateway.vercel.sh": true, "vercel.sh": false, "api.vercel.sh": false,
		"example.com": false, "vercel.com.example": false, "notvercel.com": false, "127.0.0.1": false, "::1": false,
	} {
		leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{
			SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		}
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = []net.IP{ip}
		} else {
			template.DNSNames = []string{name}
		}
		der, err := x509.CreateCertificate(rand.Reader, template, pair.Leaf, leafKey.Public(), pair.PrivateKey)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); (err == nil) != good {
			t.Errorf("a certificate for %s: %v", name, err)
		}
	}

	if err := os.Chmod(key, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := names.OpenAuthority(dir); cay.CodeOf(err) != cay.Invalid {
		t.Errorf("a key that others can read: %v", err)
	}
	if err := os.Chmod(key, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(a.File(), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := names.OpenAuthority(dir); cay.CodeOf(err) != cay.Invalid {
		t.Errorf("a certificate that is none: %v", err)
	}
}

// An authority that cannot certify all names is refused: clients would refuse all of
// its certificates.
func TestAuthority_older(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageCertSign,
		PermittedDNSDomainsCritical: true, PermittedDNSDomains: []string{"vercel.com", "vercel.run"},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{"ca.pem": {Type: "CERTIFICATE", Bytes: cert}, "ca.key": {Type: "PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := names.OpenAuthority(dir); cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), "not for ai-gateway.vercel.sh") {
		t.Errorf("it was taken: %v", err)
	}
}
