package daemon_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/testenv"
	"github.com/cayhq/cay/sandbox"
)

// browser is a client that resolves every name to the daemon, and does not
// follow redirects.
func browser(t *testing.T, env *testenv.Env, protocols func(*http.Protocols)) *http.Client {
	t.Helper()
	address := strings.TrimPrefix(env.URL[strings.Index(env.URL, "://"):], "://")
	tr := &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		},
		Protocols: new(http.Protocols),
	}
	protocols(tr.Protocols)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func http1(p *http.Protocols) { p.SetHTTP1(true) }
func h2c(p *http.Protocols)   { p.SetUnencryptedHTTP2(true) }

func fetch(t *testing.T, c *http.Client, url string, headers ...string) (status int, header http.Header, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(b)
}

// webSocket is a server that upgrades, and echoes the visitor's first short
// message.
const webSocket = `
import base64, hashlib, socket
s = socket.create_server(("127.0.0.1", 3003)); print("ready", flush=True)
while True:
    c, _ = s.accept()
    head = b""
    while b"\r\n\r\n" not in head: head += c.recv(4096)
    key = [l.split(b": ")[1] for l in head.split(b"\r\n") if l.lower().startswith(b"sec-websocket-key")][0]
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    c.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n")
    f = c.recv(4096); n = f[1] & 127
    said = bytes(b ^ f[2 + i % 4] for i, b in enumerate(f[6:6+n]))
    c.sendall(bytes([0x81, n + 4]) + b"you " + said)
`

// A browser opens the URL of a server in a real sandbox.
func TestPreview(t *testing.T) {
	env := testenv.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	s, err := env.Client.Create(ctx, sandbox.CreateParams{Name: "site", Ports: []sandbox.PortParams{
		{Port: 3000}, {Port: 3001}, {Port: 3002}, {Port: 3003, Access: sandbox.Private}, {Port: 3004},
	}})
	if err != nil {
		t.Fatal(err)
	}
	url := map[int]string{}
	for _, p := range s.Ports {
		url[p.Port] = p.URL
		if want := fmt.Sprintf("http://%s.localhost:%s", p.Label, env.URL[strings.LastIndex(env.URL, ":")+1:]); p.URL != want {
			t.Errorf("port %d: URL %s, want %s", p.Port, p.URL, want)
		}
	}
	start := func(ready string, argv ...string) {
		t.Helper()
		c, err := env.Client.Exec(ctx, "site", sandbox.CommandParams{Argv: argv})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		var out strings.Builder
		for !strings.Contains(out.String(), ready) {
			ev, err := c.Next()
			if err != nil {
				t.Fatalf("%q: %v: %s", argv, err, &out)
			}
			out.Write(ev.Data)
		}
	}
	if r, err := env.Client.Run(ctx, "site", sandbox.CommandParams{Argv: []string{"sh", "-c", "mkdir /tmp/site; echo hello > /tmp/site/a.txt"}}); err != nil || r.Exit.Code != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	// The addresses of servers that want to be seen from outside, and of
	// development servers.
	for port, bind := range map[string]string{"3000": "0.0.0.0", "3001": "127.0.0.1", "3002": "::1"} {
		start("Serving HTTP", "python3", "-u", "-m", "http.server", port, "--bind", bind, "--directory", "/tmp/site")
	}
	start("ready", "python3", "-c", webSocket)

	c := browser(t, env, http1)
	for _, protocols := range []func(*http.Protocols){http1, h2c} {
		c := browser(t, env, protocols)
		for port := 3000; port <= 3002; port++ {
			if status, _, body := fetch(t, c, url[port]+"/a.txt"); status != 200 || body != "hello\n" {
				t.Errorf("port %d: %d %q", port, status, body)
			}
		}
	}
	if status, _, body := fetch(t, c, url[3004]); status != 502 || !strings.Contains(body, "Nothing listens on port 3004") {
		t.Errorf("no server: %d %q", status, body)
	}

	// The private port, first with its link and then with the cookie.
	if status, _, _ := fetch(t, c, url[3003]); status != 401 {
		t.Errorf("private without a link: %d", status)
	}
	link, err := env.Client.CreateLink(ctx, "site", 3003, sandbox.LinkParams{})
	if err != nil {
		t.Fatal(err)
	}
	status, header, _ := fetch(t, c, link.URL)
	if status != 302 || header.Get("Location") != url[3003]+"/" {
		t.Fatalf("link: %d %v", status, header)
	}
	cookie, _, _ := strings.Cut(header.Get("Set-Cookie"), ";")
	ws, _, err := websocket.Dial(ctx, url[3003], &websocket.DialOptions{HTTPClient: c, HTTPHeader: http.Header{
		"Cookie": {cookie}, "Origin": {url[3003]},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	if err := ws.Write(ctx, websocket.MessageText, []byte("said hi")); err != nil {
		t.Fatal(err)
	}
	if _, got, err := ws.Read(ctx); err != nil || string(got) != "you said hi" {
		t.Errorf("WebSocket: %q, %v", got, err)
	}

	// The API is not served at previews' hosts, nor previews at the API's.
	labelled := url[3000] + "/v1/version"
	if status, _, _ := fetch(t, c, labelled, "Authorization", "Bearer "+env.Token); status != 404 {
		t.Errorf("the API at a preview: %d", status)
	}
	if status, _, body := fetch(t, c, strings.Replace(labelled, "http://", "http://a.", 1), "Authorization", "Bearer "+env.Token); status != 403 {
		t.Errorf("below a preview: %d %s", status, body)
	}
	if status, _, body := fetch(t, c, strings.Replace(env.URL, "127.0.0.1", "nobody.localhost", 1)); status != 404 || strings.HasPrefix(body, "{") {
		t.Errorf("a name below localhost: %d %q", status, body)
	}

	if status, _, _ := fetch(t, c, url[3000], "X-Long", strings.Repeat("x", 80<<10)); status != 431 {
		t.Errorf("a header of 80 KiB: %d", status)
	}

	// A removed port, and a sandbox that has ended.
	if _, err := env.Client.Update(ctx, "site", sandbox.UpdateParams{Ports: []sandbox.PortParams{{Port: 3001}}}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ws.Read(ctx); err == nil {
		t.Error("the WebSocket of a removed port is open")
	}
	for port, want := range map[int]int{3000: 410, 3001: 200, 3003: 410} {
		if status, _, body := fetch(t, c, url[port]+"/a.txt"); status != want {
			t.Errorf("port %d after the change: %d %q", port, status, body)
		}
	}
	if err := env.Client.Delete(ctx, "site"); err != nil {
		t.Fatal(err)
	}
	if status, _, body := fetch(t, c, url[3001]); status != 410 {
		t.Errorf("after the end: %d %q", status, body)
	}
}

// The API speaks HTTP/2 without TLS on the same listener, streams included.
func TestDaemon_H2C(t *testing.T) {
	env := testenv.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c := sandbox.NewClient(sandbox.ClientOptions{URL: env.URL, Token: env.Token, HTTPClient: browser(t, env, h2c)})
	if _, err := c.Create(ctx, sandbox.CreateParams{Name: "box"}); err != nil {
		t.Fatal(err)
	}
	out, err := c.Exec(ctx, "box", sandbox.CommandParams{Argv: []string{"sh", "-c", "echo first; read x; echo $x"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	var id, text string
	for {
		ev, err := out.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if ev.Command != nil {
			id = ev.Command.ID
		}
		if text += string(ev.Data); strings.HasSuffix(text, "first\n") {
			if err := c.WriteStdin(ctx, "box", id, strings.NewReader("second\n"), true); err != nil {
				t.Fatal(err)
			}
		}
	}
	if text != "first\nsecond\n" {
		t.Errorf("output %q", text)
	}
	content := strings.Repeat("x", 5<<20)
	if _, err := c.WriteFile(ctx, "box", "file", strings.NewReader(content), sandbox.WriteParams{}); err != nil {
		t.Fatal(err)
	}
	body, _, err := c.ReadFile(ctx, "box", "file", sandbox.ReadParams{})
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if b, err := io.ReadAll(body); err != nil || string(b) != content {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// With TLS, previews have their own certificate, HTTP/2 and a cookie that no
// other host can set.
func TestPreview_TLS(t *testing.T) {
	dir := t.TempDir()
	roots := x509.NewCertPool()
	write := func(name string, host string) (cert, key string) {
		certPEM, keyPEM := selfSigned(t, host)
		cert, key = dir+"/"+name+".pem", dir+"/"+name+".key"
		for path, b := range map[string][]byte{cert: certPEM, key: keyPEM} {
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		roots.AppendCertsFromPEM(certPEM)
		return cert, key
	}
	env := testenv.Start(t, func(c *config.Config) {
		c.PreviewDomain = "preview.test"
		c.AllowedHosts = []string{"cay.test"}
		c.TLSCert, c.TLSKey = write("main", "cay.test")
		c.PreviewTLSCert, c.PreviewTLSKey = write("previews", "*.preview.test")
	})
	c := browser(t, env, func(p *http.Protocols) { p.SetHTTP1(true); p.SetHTTP2(true) })
	c.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: roots}
	resp, err := c.Get("https://nobody.preview.test/")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 404 || resp.ProtoMajor != 2 {
		t.Errorf("preview: %s %s", resp.Proto, resp.Status)
	}
	if status, _, body := fetch(t, c, "https://cay.test/healthz"); status != 200 || !strings.Contains(body, "ok") {
		t.Errorf("API: %d %q", status, body)
	}
	api := sandbox.NewClient(sandbox.ClientOptions{URL: "https://cay.test", Token: env.Token, HTTPClient: c})
	s, err := api.Create(t.Context(), sandbox.CreateParams{Name: "box", Ports: []sandbox.PortParams{{Port: 80, Access: sandbox.Private}}})
	if err != nil {
		t.Fatal(err)
	}
	link, err := api.CreateLink(t.Context(), "box", 80, sandbox.LinkParams{})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(link.URL, "https://"+s.Ports[0].Label+".preview.test:") {
		t.Errorf("link %s", link.URL)
	}
	status, header, _ := fetch(t, c, link.URL)
	if status != 302 || !strings.HasPrefix(header.Get("Set-Cookie"), "__Host-cay_preview=") || !strings.Contains(header.Get("Set-Cookie"), "; Secure") {
		t.Errorf("link: %d %v", status, header)
	}
}

func selfSigned(t *testing.T, host string) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{host}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}
