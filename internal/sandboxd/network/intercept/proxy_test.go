package intercept

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cayhq/cay/internal/sandboxd/network/policy"
	"github.com/cayhq/cay/sandbox"
)

const host = "api.example.com"

// eachProtocol runs test for all combinations of HTTP versions.
func eachProtocol(t *testing.T, test func(t *testing.T, guestH2, serverH2 bool)) {
	for _, guestH2 := range []bool{false, true} {
		for _, serverH2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("guest h2=%v server h2=%v", guestH2, serverH2), func(t *testing.T) {
				t.Parallel()
				test(t, guestH2, serverH2)
			})
		}
	}
}

// The server sees the guest's request and the guest the server's response, as without the
// proxy.
func TestProxy_Transparent(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, guestH2, serverH2 bool) {
		w := newWorld(t, allow(host))
		seen := make(chan *http.Request, 1)
		w.serve(host, 443, serverH2, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body) // otherwise the answer may come before all of the body was sent
			seen <- r
			rw.Header()["Content-Type"] = nil
			rw.Header().Set("X-Answer", "42")
			rw.Header().Add("Set-Cookie", "a=1")
			rw.Header().Add("Set-Cookie", "b=2")
			rw.WriteHeader(http.StatusTeapot)
			io.WriteString(rw, "<html>")
		}))
		req, err := http.NewRequestWithContext(t.Context(), "PATCH", "https://"+host+"/a%2Fb/c;d?q=1;2&%zz&=", strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"User-Agent": nil, "X-Forwarded-For": {"192.0.2.7"}, "Te": {"trailers"}, "X-Two": {"1", "2"}}
		res, body := do(t, w.guest(guestH2), req)
		r := receive(t, seen, "the request")
		if r.Method != "PATCH" || r.RequestURI != "/a%2Fb/c;d?q=1;2&%zz&=" || r.Host != host || r.ContentLength != 4 {
			t.Errorf("server saw %s %s for %s with %d bytes", r.Method, r.RequestURI, r.Host, r.ContentLength)
		}
		want := http.Header{"X-Forwarded-For": {"192.0.2.7"}, "Te": {"trailers"}, "X-Two": {"1", "2"}, "Content-Length": {"4"}}
		if got := fmt.Sprint(r.Header); got != fmt.Sprint(want) {
			t.Errorf("server saw the headers %v, want %v", got, want)
		}
		if (r.ProtoMajor == 2) != serverH2 || (res.ProtoMajor == 2) != guestH2 {
			t.Errorf("protocols: server %s, guest %s", r.Proto, res.Proto)
		}
		if res.StatusCode != http.StatusTeapot || body != "<html>" || res.Header.Get("X-Answer") != "42" || len(res.Header["Set-Cookie"]) != 2 {
			t.Errorf("guest got %d %v %q", res.StatusCode, res.Header, body)
		}
		if ct, ok := res.Header["Content-Type"]; ok {
			t.Errorf("guest got the Content-Type %q, which the server did not send", ct)
		}
		f := w.flow()
		if f.Protocol != "https" || f.Name != host || f.Port != 443 || f.Method != "PATCH" || f.Path != "/a%2Fb/c;d" || f.Status != http.StatusTeapot ||
			f.Verdict != sandbox.Allowed || f.Rule != `allow "api.example.com"` || f.Reason != "" || f.IngressBytes != 6 || f.EgressBytes != 4 ||
			!strings.HasPrefix(f.Address, "127.0.0.1:") {
			t.Errorf("recorded %+v", f)
		}
	})
}

// The server answers before it has read the request, and the guest sends the rest only
// after it has the answer.
func TestProxy_AnswerBeforeBody(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, guestH2, serverH2 bool) {
		w := newWorld(t, allow(host))
		w.serve(host, 443, serverH2, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(rw).EnableFullDuplex()
			rw.Header().Set("Trailer", "X-Sum")
			io.WriteString(rw, "early")
			rw.Header().Set("X-Sum", "1")
		}))
		in, late := io.Pipe()
		defer late.Close()
		req, err := http.NewRequestWithContext(t.Context(), "POST", "https://"+host+"/", in)
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = 4
		c := w.guest(guestH2)
		if res, body := do(t, c, req); body != "early" || res.Trailer.Get("X-Sum") != "1" {
			t.Errorf("guest got %d %q, trailers %v", res.StatusCode, body, res.Trailer)
		}
		if f := w.flow(); f.Verdict != sandbox.Allowed || f.Reason != "" || f.IngressBytes != 5 || f.EgressBytes != 0 {
			t.Errorf("recorded %+v", f)
		}
		// A body that comes too late is not parsed as another request.
		go func() { _, _ = io.WriteString(late, "GET ") }()
		if _, body := get(t, c, "https://"+host+"/"); body != "early" {
			t.Errorf("then guest got %q", body)
		}
	})
}

func TestProxy_ResponsesWithoutBody(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, guestH2, serverH2 bool) {
		w := newWorld(t, allow(host))
		w.serve(host, 443, serverH2, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/204":
				rw.WriteHeader(http.StatusNoContent)
			case "/304":
				rw.Header().Set("ETag", `"x"`)
				rw.WriteHeader(http.StatusNotModified)
			case "/redirect":
				http.Redirect(rw, r, "/elsewhere", http.StatusFound)
			default:
				rw.Header().Set("Content-Length", "1000")
			}
		}))
		c := w.guest(guestH2)
		for path, status := range map[string]int{"/204": 204, "/304": 304, "/redirect": 302} {
			if res, _ := get(t, c, "https://"+host+path); res.StatusCode != status {
				t.Errorf("%s: %d", path, res.StatusCode)
			}
		}
		res, err := c.Head("https://" + host + "/")
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.ContentLength != 1000 {
			t.Errorf("HEAD: Content-Length %d, want 1000", res.ContentLength)
		}
	})
}

// A short body, whose length an HTTP/2 server knows, and then trailers.
func TestProxy_TrailersAfterKnownLength(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, guestH2, serverH2 bool) {
		w := newWorld(t, allow(host))
		w.serve(host, 443, serverH2, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Trailer", "X-Sum")
			_, _ = io.WriteString(rw, "short")
			rw.Header().Set("X-Sum", "abc")
		}))
		res, body := get(t, w.guest(guestH2), "https://"+host+"/")
		if body != "short" || res.Trailer.Get("X-Sum") != "abc" {
			t.Errorf("guest got %q and the trailers %v", body, res.Trailer)
		}
	})
}

// Trailers of requests and of responses, announced or not, and both directions
// at the same time, as gRPC has it.
func TestProxy_TrailersAndFullDuplex(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, guestH2, serverH2 bool) {
		w := newWorld(t, allow(host))
		trailer := make(chan http.Header, 1)
		w.serve(host, 443, serverH2, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			rc := http.NewResponseController(rw)
			_ = rc.EnableFullDuplex()
			rw.Header().Set("Trailer", "X-Announced")
			lines := bufio.NewScanner(r.Body)
			for lines.Scan() {
				fmt.Fprintf(rw, "echo %s\n", lines.Text())
				_ = rc.Flush()
			}
			trailer <- r.Trailer
			rw.Header().Set("X-Announced", "yes")
			rw.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
		}))
		pr, pw := io.Pipe()
		req, err := http.NewRequestWithContext(t.Context(), "POST", "https://"+host+"/", pr)
		if err != nil {
			t.Fatal(err)
		}
		req.Trailer = http.Header{"X-Sum": nil}
		go func() {
			io.WriteString(pw, "one\n")
		}()
		res, err := w.guest(guestH2).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		lines := bufio.NewReader(res.Body)
		for _, next := range []string{"two\n", "three\n", ""} {
			if _, err := lines.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			io.WriteString(pw, next)
		}
		req.Trailer.Set("X-Sum", "abc")
		pw.Close()
		if _, err := io.Copy(io.Discard, lines); err != nil {
			t.Fatal(err)
		}
		if got := receive(t, trailer, "the request's end"); got.Get("X-Sum") != "abc" {
			t.Errorf("server got the trailers %v", got)
		}
		if res.Trailer.Get("X-Announced") != "yes" || res.Trailer.Get("Grpc-Status") != "0" {
			t.Errorf("guest got the trailers %v", res.Trailer)
		}
	})
}

func TestProxy_EventsArriveAtOnce(t *testing.T) {
	t.Parallel()
	for _, scrub := range []bool{false, true} {
		eachProtocol(t, func(t *testing.T, guestH2, serverH2 bool) {
			rule := sandbox.Rule{SetHeaders: map[string]string{"Authorization": "Bearer verysecret"}, Scrub: scrub}
			w := newWorld(t, allow(host, rule))
			next := make(chan struct{})
			w.serve(host, 443, serverH2, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set("Content-Type", "text/event-stream")
				for i := range 3 {
					fmt.Fprintf(rw, "data: %d\n\n", i)
					_ = http.NewResponseController(rw).Flush()
					<-next
				}
			}))
			res, err := w.guest(guestH2).Get("https://" + host + "/events")
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			lines := bufio.NewReader(res.Body)
			for i := range 3 {
				line, err := lines.ReadString('\n')
				if err != nil || line != fmt.Sprintf("data: %d\n", i) {
					t.Fatalf("event %d: %q, %v", i, line, err)
				}
				if _, err := lines.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
				next <- struct{}{}
			}
		})
	}
}

// Informational responses reach the guest before the final response.
func TestProxy_InformationalResponses(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, guestH2, serverH2 bool) {
		w := newWorld(t, allow(host))
		w.serve(host, 443, serverH2, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Link", "</style.css>; rel=preload")
			rw.WriteHeader(http.StatusEarlyHints)
			rw.Header().Del("Link")
			if _, err := io.Copy(rw, r.Body); err != nil { // sends 100 Continue
				panic(http.ErrAbortHandler)
			}
		}))
		for _, expect := range []bool{false, true} {
			var hints []string
			continued := false
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
				Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
					hints = append(hints, fmt.Sprint(code, " ", h.Get("Link")))
					return nil
				},
				Got100Continue: func() { continued = true },
			})
			req, err := http.NewRequestWithContext(ctx, "PUT", "https://"+host+"/", strings.NewReader("expected"))
			if err != nil {
				t.Fatal(err)
			}
			if expect {
				req.Header.Set("Expect", "100-continue")
			}
			_, body := do(t, w.guest(guestH2), req)
			// Over HTTP/2, a client that does not wait may get 100 Continue all the same:
			// see upload.Body.
			if body != "expected" || expect && !continued || !expect && continued && !guestH2 || !expect && !slices.Contains(hints, "103 </style.css>; rel=preload") {
				t.Errorf("expect %v: body %q, continued %v, hints %q", expect, body, continued, hints)
			}
		}
	})
}

func content(n int64) (io.Reader, hash.Hash) {
	sum := sha256.New()
	return io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{1}), n), sum), sum
}

func TestProxy_LargeBodies(t *testing.T) {
	t.Parallel()
	const size = 16 << 20 // many times the size of all buffers
	eachProtocol(t, func(t *testing.T, guestH2, serverH2 bool) {
		w := newWorld(t, allow(host))
		w.serve(host, 443, serverH2, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.Method == "GET" {
				body, _ := content(size)
				_, _ = io.Copy(rw, body)
				return
			}
			sum := sha256.New()
			n, err := io.Copy(sum, r.Body)
			fmt.Fprintf(rw, "%d %x %v", n, sum.Sum(nil), err)
		}))
		c := w.guest(guestH2)
		body, sum := content(size)
		req, err := http.NewRequestWithContext(t.Context(), "POST", "https://"+host+"/", io.NopCloser(body))
		if err != nil {
			t.Fatal(err)
		}
		_, answer := do(t, c, req)
		want := hex.EncodeToString(sum.Sum(nil))
		if answer != fmt.Sprintf("%d %s <nil>", size, want) {
			t.Errorf("upload: server got %s", answer)
		}
		res, err := c.Get("https://" + host + "/")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		got := sha256.New()
		if n, err := io.Copy(got, res.Body); err != nil || n != size || hex.EncodeToString(got.Sum(nil)) != want {
			t.Errorf("download: %d bytes, %x, %v", n, got.Sum(nil), err)
		}
		if up, down := w.flow(), w.flow(); up.EgressBytes != size || down.IngressBytes != size {
			t.Errorf("recorded %d bytes up, %d down", up.EgressBytes, down.IngressBytes)
		}
	})
}

func echoWebSocket(rw http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(rw, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return
	}
	defer c.CloseNow()
	for {
		kind, text, err := c.Read(r.Context())
		if err != nil || c.Write(r.Context(), kind, text) != nil {
			return
		}
	}
}

// WebSockets pass, also where the server has HTTP/2 for other requests, and
// unwind when the link cuts the guest's connection.
func TestProxy_WebSocket(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"wss://" + host + "/ws", "ws://" + host + ":80/ws"} {
		t.Run(url, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, allow(host))
			gone := make(chan struct{})
			handler := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/ws" {
					defer close(gone)
					echoWebSocket(rw, r)
				}
			})
			w.serve(host, 443, true, handler)
			w.serve(host, 80, false, handler)
			get(t, w.guest(true), "https://"+host+"/") // leaves an HTTP/2 connection
			w.flow()

			ctx, cancel := context.WithCancel(t.Context())
			var conn net.Conn
			guest := w.guest(false)
			guest.Transport.(*http.Transport).DialContext = func(_ context.Context, _, address string) (net.Conn, error) {
				port := uint16(443)
				if strings.HasSuffix(address, ":80") {
					port = 80
				}
				conn = w.connect(ctx, host, port)
				return conn, nil
			}
			c, _, err := websocket.Dial(t.Context(), url, &websocket.DialOptions{HTTPClient: guest})
			if err != nil {
				t.Fatal(err)
			}
			defer c.CloseNow()
			if err := c.Write(t.Context(), websocket.MessageText, []byte("hello")); err != nil {
				t.Fatal(err)
			}
			if _, text, err := c.Read(t.Context()); err != nil || string(text) != "hello" {
				t.Fatalf("echo: %q, %v", text, err)
			}
			cancel() // as the link does
			receive(t, gone, "the server's end")
			if f := w.flow(); f.Status != http.StatusSwitchingProtocols || f.IngressBytes == 0 || f.EgressBytes == 0 {
				t.Errorf("recorded %+v", f)
			}
		})
	}
}

// Offers of other HTTP versions are removed: requests inside them would bypass the
// policy. The next bytes on the connection are a normal request.
func TestProxy_UpgradeToHTTP2(t *testing.T) {
	t.Parallel()
	w := newWorld(t, allow(host))
	w.serve(host, 80, false, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(rw, "upgrade=%q ", r.Header.Get("Upgrade")+r.Header.Get("Http2-Settings"))
	}))
	for _, offer := range []string{"h2c", "websocket, h2c", "TLS/1.2", "HTTP/2.0"} {
		answer := w.raw("GET / HTTP/1.1\r\nHost: " + host + "\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: " + offer + "\r\nHTTP2-Settings: AAMAAABk\r\n\r\n" +
			"GET / HTTP/1.1\r\nHost: evil.example.net\r\nConnection: close\r\n\r\n")
		if !strings.Contains(answer, `upgrade=""`) || !strings.Contains(answer, "HTTP/1.1 403") {
			t.Errorf("Upgrade: %s: %s", offer, answer)
		}
	}
}

// A guest that leaves ends the request at the server, and vice versa.
func TestProxy_Aborts(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, guestH2, serverH2 bool) {
		w := newWorld(t, allow(host))
		began, ended := make(chan struct{}), make(chan error, 1)
		w.serve(host, 443, serverH2, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/upload":
				began <- struct{}{}
				_, err := io.Copy(io.Discard, r.Body)
				ended <- err
			case "/wait":
				began <- struct{}{}
				<-r.Context().Done()
				ended <- r.Context().Err()
			case "/broken":
				io.WriteString(rw, "some")
				_ = http.NewResponseController(rw).Flush()
				panic(http.ErrAbortHandler)
			}
		}))
		c := w.guest(guestH2)
		for _, path := range []string{"/upload", "/wait"} {
			ctx, cancel := context.WithCancel(t.Context())
			pr, pw := io.Pipe()
			var body io.Reader
			if path == "/upload" {
				body = pr
				go io.WriteString(pw, "a little")
			}
			req, err := http.NewRequestWithContext(ctx, "POST", "https://"+host+path, body)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() {
				res, err := c.Do(req)
				if err == nil {
					res.Body.Close()
				}
				done <- err
			}()
			receive(t, began, "the request")
			cancel()
			pw.CloseWithError(context.Canceled)
			if err := receive(t, ended, "the end at the server"); err == nil {
				t.Errorf("%s: the server took the request for complete", path)
			}
			if err := receive(t, done, "the end at the guest"); err == nil {
				t.Errorf("%s: the guest got a response", path)
			}
			if f := w.flow(); f.Verdict != sandbox.Broken || !strings.Contains(f.Reason, "guest") {
				t.Errorf("%s: recorded %+v", path, f)
			}
		}
		res, err := c.Get("https://" + host + "/broken")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if body, err := io.ReadAll(res.Body); err == nil {
			t.Errorf("a response that the server has broken off is %q to the guest", body)
		}
		if f := w.flow(); f.Verdict != sandbox.Broken || !strings.Contains(f.Reason, "server") {
			t.Errorf("recorded %+v", f)
		}
	})
}

// When the link cuts a guest's connection, or the Proxy is closed, everything that serves
// the connection ends.
func TestProxy_CutConnections(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"context", "proxy", "connection"} {
		eachProtocol(t, func(t *testing.T, guestH2, serverH2 bool) {
			w := newWorld(t, allow(host))
			ended := make(chan struct{})
			w.serve(host, 443, serverH2, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				_ = http.NewResponseController(rw).Flush()
				<-r.Context().Done()
				close(ended)
				panic(http.ErrAbortHandler) // or the answer might be whole in time
			}))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var conn net.Conn
			guest := w.guest(guestH2)
			guest.Transport.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) {
				conn = w.connect(ctx, host, 443)
				return conn, nil
			}
			res, err := guest.Get("https://" + host + "/")
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			switch how {
			case "context":
				cancel()
			case "proxy":
				w.proxy.Close()
			case "connection":
				conn.Close()
			}
			receive(t, ended, "the end at the server")
			w.sessions.Wait()
			if f := w.flow(); f.Verdict != sandbox.Broken {
				t.Errorf("recorded %+v", f)
			}
		})
	}
}

func TestProxy_Handshake(t *testing.T) {
	t.Parallel()
	w := newWorld(t, allow(host))
	for _, test := range []struct {
		name   string
		config *tls.Config
		want   string
	}{
		{"another name", &tls.Config{ServerName: "other.example.com", RootCAs: w.guestTrust()}, "asks for"},
		{"no name", &tls.Config{InsecureSkipVerify: true}, "asks for"},
		{"no trust", &tls.Config{ServerName: host}, "may not trust"},
		{"old version", &tls.Config{ServerName: host, RootCAs: w.guestTrust(), MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, "version"},
		{"another protocol", &tls.Config{ServerName: host, RootCAs: w.guestTrust(), NextProtos: []string{"smtp"}}, "protocol"},
	} {
		c := tls.Client(w.connect(t.Context(), host, 443), test.config)
		err := c.Handshake()
		c.Close()
		if err == nil {
			t.Errorf("%s: the handshake succeeded", test.name)
		}
		if f := w.flow(); f.Verdict != sandbox.Broken || !strings.Contains(f.Reason, test.want) {
			t.Errorf("%s: recorded %+v", test.name, f)
		}
	}
	t.Run("OK", func(t *testing.T) {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			c := tls.Client(w.connect(t.Context(), host, 443), &tls.Config{ServerName: strings.ToUpper(host), RootCAs: w.guestTrust(), MaxVersion: version})
			if err := c.Handshake(); err != nil {
				t.Errorf("version %x: %v", version, err)
			}
			c.Close()
		}
	})
}

// A connection on which every request is refused, because the address was decisive.
func TestProxy_Refusal(t *testing.T) {
	t.Parallel()
	w := newWorld(t, allow(host))
	w.refusal = &policy.Decision{Rule: "deny_cidrs 192.0.2.0/24", Reason: "the network policy denies 192.0.2.1"}
	res, body := get(t, w.guest(false), "http://"+host+":80/")
	if res.StatusCode != http.StatusForbidden || res.Header.Get(deniedHeader) != w.refusal.Rule || !strings.Contains(body, w.refusal.Reason) {
		t.Errorf("guest got %d %v %s", res.StatusCode, res.Header, body)
	}
	if f := w.flow(); f.Verdict != sandbox.Denied || f.Name != host || f.Rule != w.refusal.Rule || w.dials.Load() != 0 {
		t.Errorf("recorded %+v", f)
	}
}

// The largest number of concurrent requests on a connection.
func TestProxy_ConcurrentStreams(t *testing.T) {
	t.Parallel()
	for _, serverH2 := range []bool{false, true} {
		w := newWorld(t, allow(host))
		var all sync.WaitGroup
		all.Add(maxStreams)
		w.serve(host, 443, serverH2, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/first" {
				all.Done()
				all.Wait()
			}
			io.WriteString(rw, r.URL.Path)
		}))
		c := w.guest(true)
		get(t, c, "https://"+host+"/first") // the other requests use its connection
		w.flow()
		var wg sync.WaitGroup
		for i := range maxStreams {
			wg.Go(func() {
				want := fmt.Sprint("/", i)
				res, err := c.Get("https://" + host + want)
				if err != nil {
					t.Error(err)
					return
				}
				defer res.Body.Close()
				if body, err := io.ReadAll(res.Body); err != nil || string(body) != want {
					t.Errorf("%s: %q, %v", want, body, err)
				}
			})
		}
		wg.Wait()
		if len(w.flows) != maxStreams {
			t.Errorf("%d records", len(w.flows))
		}
	}
}

func TestProxy_HeaderLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, allow(host))
	w.serve(host, 443, false, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/large" {
			rw.Header().Set("X-Large", strings.Repeat("x", maxHeader))
		}
	}))
	for _, h2 := range []bool{false, true} {
		c := w.guest(h2)
		if res, body := get(t, c, "https://"+host+"/large"); res.StatusCode != http.StatusBadGateway {
			t.Errorf("h2=%v: large response headers: %d %s", h2, res.StatusCode, body)
		}
		req, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+host+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Large", strings.Repeat("x", maxHeader+8<<10))
		res, err := c.Do(req)
		if err != nil {
			if h2 {
				continue // the client knows the limit
			}
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode < 400 || res.StatusCode > 499 {
			t.Errorf("h2=%v: large request headers: %d", h2, res.StatusCode)
		}
	}
}

func TestProxy_ServeAfterClose(t *testing.T) {
	t.Parallel()
	w := newWorld(t, allow(host))
	w.proxy.Close()
	w.proxy.Close()
	c := w.connect(t.Context(), "", 80)
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("a connection to a closed Proxy: %v", err)
	}
}
