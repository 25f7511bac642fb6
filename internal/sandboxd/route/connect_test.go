package route_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd/route"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

// A program's HTTP client connects to a server in a sandbox through a Handle.
func TestHandle_DialContext(t *testing.T) {
	t.Parallel()
	c, rec, _ := dialRecorder(t)
	inside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, io.MultiReader(strings.NewReader(r.URL.Path+" "), r.Body))
	}))
	t.Cleanup(inside.Close)
	rec.dial = func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", inside.Listener.Addr().String())
	}
	h := c.Sandbox("s")
	tr := &http.Transport{DialContext: h.DialContext}
	t.Cleanup(tr.CloseIdleConnections)
	for n := range 3 { // the connection is kept alive
		resp, err := (&http.Client{Transport: tr}).Post(fmt.Sprintf("http://localhost:3000/%d", n), "text/plain", strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(b) != fmt.Sprintf("/%d body", n) {
			t.Errorf("got %q, %v", b, err)
		}
	}
	if call := rec.last(t); call.Method != "DialPort" || call.Args[0] != "s" || call.Args[1] != 3000 {
		t.Errorf("the service got %+v", call)
	}
	for _, bad := range [][2]string{
		{"udp", "localhost:3000"}, {"tcp6", "localhost:3000"}, {"tcp", "example.com:3000"}, {"tcp", "localhost"}, {"tcp", ":0"}, {"tcp", ":65536"}, {"tcp", ":http"},
	} {
		_, err := h.DialContext(t.Context(), bad[0], bad[1])
		checktest.Code(t, err, cay.Invalid)
	}
}

// The same works through TLS, whichever protocols a client prefers.
func TestClient_DialPortTLS(t *testing.T) {
	t.Parallel()
	mux := api.NewMux(wireTokens{})
	route.Mount(mux, &recorder{}, t.Context())
	srv := httptest.NewUnstartedServer(mux)
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	hc := srv.Client() // prefers HTTP/2
	hc.Timeout = time.Minute
	c := sandbox.NewClient(sandbox.ClientOptions{URL: srv.URL, Token: "admin", HTTPClient: hc})
	if _, err := c.Get(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	conn, err := c.DialPort(t.Context(), "s", 3000)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	sandboxtest.Talk(t, conn)
	if err := conn.SetDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	var timeout net.Error
	if _, err := conn.Read(make([]byte, 1)); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("got %v, want a timeout", err)
	}
	if conn.RemoteAddr().String() != srv.Listener.Addr().String() {
		t.Errorf("the remote address is %v", conn.RemoteAddr())
	}
}

// ctx bounds the dialling, not the connection.
func TestClient_DialPortContext(t *testing.T) {
	t.Parallel()
	c, rec, _ := dialRecorder(t)
	ctx, cancel := context.WithCancel(t.Context())
	conn, err := c.DialPort(ctx, "s", 3000)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cancel()
	sandboxtest.Talk(t, conn)

	ctx, cancel = context.WithCancel(t.Context())
	rec.dial = func(dialing context.Context) (net.Conn, error) {
		cancel()
		<-dialing.Done()
		return nil, dialing.Err()
	}
	_, err = c.DialPort(ctx, "s", 3000)
	checktest.Code(t, err, cay.Canceled)
}

// rawConnect asks for an upgrade and returns the connection and the answer.
func rawConnect(t *testing.T, srv *httptest.Server, path, headers string) (net.Conn, *bufio.Reader, *http.Response) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	// The first frame comes with the request: it is not lost.
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer admin\r\n%s\r\n\x00\x00\x00\x02hi", path, headers)
	br := bufio.NewReader(conn)
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	return conn, br, resp
}

const upgradeHeaders = "Connection: keep-alive, Upgrade\r\nUpgrade: cay-stream\r\n"

func TestRoutes_Connect(t *testing.T) {
	t.Parallel()
	_, _, srv := dialRecorder(t)
	conn, br, resp := rawConnect(t, srv, "/v1/sandboxes/s/ports/3000/connect", upgradeHeaders)
	if resp.StatusCode != 101 || resp.Header.Get("Upgrade") != wire.UpgradeStream || !strings.EqualFold(resp.Header.Get("Connection"), "upgrade") {
		t.Fatalf("answer %d with %v", resp.StatusCode, resp.Header)
	}
	frame := func(want string) {
		t.Helper()
		var head [4]byte
		if _, err := io.ReadFull(br, head[:]); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, binary.BigEndian.Uint32(head[:]))
		if _, err := io.ReadFull(br, b); err != nil || string(b) != want {
			t.Fatalf("got %q, %v, want %q", b, err, want)
		}
	}
	frame("hi")
	if _, err := conn.Write([]byte("\x00\x00\x00\x01!\x00\x00\x00\x00")); err != nil {
		t.Fatal(err)
	}
	frame("!")
	frame("") // the guest has ended, too
	if _, err := br.ReadByte(); err != io.EOF {
		t.Errorf("after the end: %v", err)
	}

	for _, c := range []struct{ path, headers, says string }{
		{"/v1/sandboxes/s/ports/3000/connect", "", "cay-stream"},
		{"/v1/sandboxes/s/ports/3000/connect", "Connection: Upgrade\r\nUpgrade: websocket\r\n", "cay-stream"},
		{"/v1/sandboxes/s/ports/3000/connect", "Upgrade: cay-stream\r\n", "cay-stream"},
		{"/v1/sandboxes/s/ports/3000/connect", upgradeHeaders + "Content-Length: 6\r\n", "body"},
		{"/v1/sandboxes/s/ports/http/connect", upgradeHeaders, "http"},
		{"/v1/sandboxes/s/ports/3000/connect?x=1", upgradeHeaders, "x"},
	} {
		_, _, resp := rawConnect(t, srv, c.path, c.headers)
		b, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != 400 || !strings.Contains(string(b), c.says) {
			t.Errorf("%s with %q: %d %s, %v", c.path, c.headers, resp.StatusCode, b, err)
		}
	}
}

// An invalid frame, or a client that breaks off, ends the connection into the guest.
func TestRoutes_ConnectBreaks(t *testing.T) {
	t.Parallel()
	_, rec, srv := dialRecorder(t)
	for name, end := range map[string]func(net.Conn) error{
		"leaves":  func(c net.Conn) error { return c.Close() },
		"garbage": func(c net.Conn) error { _, err := c.Write([]byte("GET / HTTP/1.1\r\n\r\n")); return err },
	} {
		guest := make(chan net.Conn, 1)
		rec.dial = func(ctx context.Context) (net.Conn, error) {
			l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
			if err != nil {
				return nil, err
			}
			defer l.Close()
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
			if err != nil {
				return nil, err
			}
			inside, err := l.Accept()
			guest <- inside
			return conn, err
		}
		conn, _, _ := rawConnect(t, srv, "/v1/sandboxes/s/ports/3000/connect", upgradeHeaders)
		inside := <-guest
		if err := end(conn); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(inside); string(b) != "hi" {
			t.Errorf("%s: the guest got %q, %v", name, b, err)
		}
		inside.Close()
	}
}

// HTTP/2 connections cannot be upgraded; the client returns an error without trying.
func TestRoutes_ConnectHTTP2(t *testing.T) {
	t.Parallel()
	mux := api.NewMux(wireTokens{})
	route.Mount(mux, &recorder{}, t.Context())
	srv := httptest.NewUnstartedServer(mux)
	srv.EnableHTTP2 = true
	srv.TLS = &tls.Config{MinVersion: tls.VersionTLS13}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/v1/sandboxes/s/ports/3000/connect", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer admin")
	resp, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); resp.ProtoMajor != 2 || resp.StatusCode != http.StatusNotImplemented {
		t.Errorf("%s %d %s, %v", resp.Proto, resp.StatusCode, b, err)
	}
}
