package preview_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd/preview"
)

// each runs a test for visitors of both protocols.
func each(t *testing.T, guest http.Handler, test func(*testing.T, *front)) {
	for _, name := range []string{"h1", "h2c"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, serve(t, newWorld(t, guest), nil, name))
		})
	}
}

func TestProxy_request(t *testing.T) {
	t.Parallel()
	each(t, mirror, func(t *testing.T, f *front) {
		r := f.request("PATCH", open, "/a%2Fb//c?x=%zz;y&&z=1", nil, "X-Forwarded-For", "6.6.6.6", "X-Forwarded-Host", "evil.test",
			"X-Forwarded-Port", "1", "X-Forwarded-Prefix", "/x", "X-Real-IP", "6.6.6.6", "Forwarded", "for=6.6.6.6", "X_Forwarded_For", "6.6.6.6", "X-Forwarded_Host", "evil.test", "x_real_ip", "6.6.6.6", "X-Own", "kept", "Accept-Encoding", "br")
		r.Host = "OPEN.preview.test:7070"
		s := f.seen(r)
		for name := range s.Header {
			if strings.Contains(name, "_") {
				t.Errorf("the guest saw %s, which some servers take for another header", name)
			}
		}
		if s.Method != "PATCH" || s.URI != "/a%2Fb//c?x=%zz;y&&z=1" || s.Host != r.Host || s.Proto != "HTTP/1.1" {
			t.Errorf("the guest saw %+v", s)
		}
		for name, want := range map[string]string{
			"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": r.Host, "X-Forwarded-Proto": "http", "X-Own": "kept", "Accept-Encoding": "br",
			"X-Forwarded-Port": "", "X-Forwarded-Prefix": "", "X-Real-Ip": "", "Forwarded": "",
		} {
			if got := strings.Join(s.Header[name], "|"); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
	})
}

// The proxy leaves Range, HEAD and 304 to the guest and the visitor.
func TestProxy_content(t *testing.T) {
	t.Parallel()
	content := make([]byte, 1<<20)
	rand.Read(content)
	file := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"v1"`)
		http.ServeContent(w, r, "file.bin", time.Unix(1e9, 0), bytes.NewReader(content))
	})
	each(t, file, func(t *testing.T, f *front) {
		resp, body := f.get(open, "/")
		if body != string(content) || resp.ContentLength != 1<<20 || resp.Header.Get("Accept-Ranges") != "bytes" {
			t.Errorf("GET: %d bytes, %v", len(body), resp.Header)
		}
		resp, body = f.get(open, "/", "Range", "bytes=1000-1999")
		if resp.StatusCode != 206 || body != string(content[1000:2000]) || resp.Header.Get("Content-Range") != "bytes 1000-1999/1048576" {
			t.Errorf("Range: %d, %d bytes, %v", resp.StatusCode, len(body), resp.Header)
		}
		resp, body = f.do(f.request("HEAD", open, "/", nil))
		if resp.StatusCode != 200 || body != "" || resp.ContentLength != 1<<20 {
			t.Errorf("HEAD: %d %q %d", resp.StatusCode, body, resp.ContentLength)
		}
		if resp, _ = f.get(open, "/", "If-None-Match", `"v1"`); resp.StatusCode != 304 {
			t.Errorf("If-None-Match: %d", resp.StatusCode)
		}
	})
}

// Bytes that a guest sends reach the visitor at once, also with a Content-Length.
func TestProxy_stream(t *testing.T) {
	t.Parallel()
	next := make(chan string)
	guest := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", r.URL.Query().Get("type"))
		if n := r.URL.Query().Get("length"); n != "" {
			w.Header().Set("Content-Length", n)
		}
		for line := range next {
			io.WriteString(w, line)
			http.NewResponseController(w).Flush()
			if line == "data: 2\n" {
				return
			}
		}
	})
	for _, query := range []string{"?type=text/event-stream", "?type=application/json", "?type=text/plain&length=16"} {
		for _, name := range []string{"h1", "h2c"} {
			t.Run(name+query, func(t *testing.T) {
				f := serve(t, newWorld(t, guest), nil, name)
				go func() { next <- "data: 1\n" }()
				resp, err := f.client.Do(f.request("GET", open, "/"+query, nil))
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				lines := bufio.NewReader(resp.Body)
				for i := 1; i <= 2; i++ {
					if line, err := lines.ReadString('\n'); line != fmt.Sprintf("data: %d\n", i) {
						t.Fatalf("line %q, %v", line, err)
					}
					if i == 1 {
						next <- "data: 2\n"
					}
				}
			})
		}
	}
}

// An upload reaches the guest as it is sent, and the guest may answer
// meanwhile.
func TestProxy_duplex(t *testing.T) {
	t.Parallel()
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		rc.EnableFullDuplex()
		buf := make([]byte, 100)
		for {
			n, err := r.Body.Read(buf)
			w.Write(buf[:n])
			rc.Flush()
			if err != nil {
				return
			}
		}
	})
	each(t, echo, func(t *testing.T, f *front) {
		in, out := io.Pipe()
		go io.WriteString(out, "one ")
		resp, err := f.client.Do(f.request("POST", open, "/", in))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		got := make([]byte, 4)
		for _, word := range []string{"one ", "two ", "end "} {
			if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != word {
				t.Fatalf("got %q, %v", got, err)
			}
			switch word {
			case "one ":
				go io.WriteString(out, "two ")
			case "two ":
				go func() {
					io.WriteString(out, "end ")
					out.Close()
				}()
			}
		}
		if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
			t.Errorf("then %q, %v", rest, err)
		}
	})
}

// The answer of a guest that answers before it has the whole upload arrives, and the rest
// of the upload is not parsed as another request.
func TestProxy_earlyAnswer(t *testing.T) {
	t.Parallel()
	refuse := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		io.WriteString(w, "too large")
	})
	each(t, refuse, func(t *testing.T, f *front) {
		in, out := io.Pipe()
		defer out.Close()
		go io.WriteString(out, "GET /evil HTTP/1.1\r\nHost: open.preview.test\r\n\r\n")
		resp, err := f.client.Do(f.request("POST", open, "/", in))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != 413 {
			t.Errorf("status %d", resp.StatusCode)
		}
		if resp.ProtoMajor == 1 && !resp.Close {
			t.Error("the connection is kept")
		}
	})
}

// The guest answers before it has read the request, and the visitor sends the body only
// after it has the answer.
func TestProxy_answerBeforeBody(t *testing.T) {
	t.Parallel()
	early := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		io.WriteString(w, "early")
	})
	for _, content := range []string{"text/plain", "application/grpc"} { // the guest's HTTP/1 and HTTP/2
		each(t, early, func(t *testing.T, f *front) {
			in, late := io.Pipe()
			defer late.Close()
			if resp, body := f.do(f.request("POST", open, "/", in, "Content-Type", content)); body != "early" {
				t.Errorf("%s: got %d %q", content, resp.StatusCode, body)
			}
		})
	}
}

// The same for cay's own pages, to visitors who go on sending.
func TestPages_body(t *testing.T) {
	t.Parallel()
	f := serve(t, newWorld(t, hello), nil)
	for label, want := range map[string]int{idle: 502, closed: 401, "nobody": 404} {
		in, out := io.Pipe()
		go io.WriteString(out, "GET /evil HTTP/1.1\r\n")
		resp, err := f.client.Do(f.request("POST", label, "/", in))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		out.Close()
		if resp.StatusCode != want || !resp.Close {
			t.Errorf("%s: %d, connection kept: %v", label, resp.StatusCode, !resp.Close)
		}
	}
}

func TestProxy_continue(t *testing.T) {
	t.Parallel()
	wants := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			w.WriteHeader(http.StatusExpectationFailed)
			return
		}
		io.Copy(w, r.Body)
	})
	f := serve(t, newWorld(t, wants), nil)
	for path, want := range map[string]struct {
		status    int
		continued bool
	}{"/yes": {200, true}, "/no": {417, false}} {
		var continued atomic.Bool
		r := f.request("PUT", open, path, strings.NewReader("content"), "Expect", "100-continue")
		resp, body := f.do(r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{Got100Continue: func() { continued.Store(true) }})))
		if resp.StatusCode != want.status || continued.Load() != want.continued || want.continued && body != "content" {
			t.Errorf("%s: %d %q, continued %v", path, resp.StatusCode, body, continued.Load())
		}
	}
}

// Informational answers, and trailers in both directions.
func TestProxy_trailers(t *testing.T) {
	t.Parallel()
	guest := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</a.css>")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Trailer", "X-Announced")
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s", body, r.Trailer.Get("X-Sum"))
		w.Header().Set("X-Announced", "1")
		w.Header().Set(http.TrailerPrefix+"X-Late", "2")
		w.Header().Set(http.TrailerPrefix+"Set-Cookie", "a=1; Domain=preview.test")
		w.Header().Set(http.TrailerPrefix+"Clear-Site-Data", `"*"`)
	})
	each(t, guest, func(t *testing.T, f *front) {
		r := f.request("POST", open, "/", io.MultiReader(strings.NewReader("body")))
		r.Trailer = http.Header{"X-Sum": {"abc"}}
		var hints atomic.Int32
		resp, body := f.do(r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
				if code == 103 && h.Get("Link") != "" {
					hints.Add(1)
				}
				return nil
			}})))
		if body != "body abc" || hints.Load() != 1 {
			t.Errorf("body %q, %d hints", body, hints.Load())
		}
		if resp.Trailer.Get("X-Announced") != "1" || resp.Trailer.Get("X-Late") != "2" || resp.Trailer.Get("Set-Cookie") != "a=1" || resp.Trailer.Get("Clear-Site-Data") != "" {
			t.Errorf("trailers %v", resp.Trailer)
		}
	})
}

// gRPC arrives by HTTP/2 and is forwarded by HTTP/2; all other requests are forwarded by
// HTTP/1.1.
func TestProxy_grpc(t *testing.T) {
	t.Parallel()
	guest := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		http.NewResponseController(w).EnableFullDuplex()
		http.NewResponseController(w).Flush()
		io.Copy(w, r.Body)
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
		w.Header().Set(http.TrailerPrefix+"Grpc-Message", r.Proto+" te="+r.Header.Get("Te"))
	})
	f := serve(t, newWorld(t, guest), nil, "h2c")
	for kind, want := range map[string]string{
		"application/grpc": "HTTP/2.0", "application/grpc+proto": "HTTP/2.0", "application/grpc;x": "HTTP/2.0",
		"application/grpc-web": "HTTP/1.1", "application/json": "HTTP/1.1",
	} {
		resp, body := f.do(f.request("POST", open, "/pkg.Service/Call", strings.NewReader("message"), "Content-Type", kind, "TE", "trailers"))
		if resp.ProtoMajor != 2 || body != "message" || resp.Trailer.Get("Grpc-Status") != "0" || resp.Trailer.Get("Grpc-Message") != want+" te=trailers" {
			t.Errorf("%s: %s %q %v", kind, resp.Proto, body, resp.Trailer)
		}
	}
}

// socket is a guest that echoes messages on WebSockets.
var socket = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"vite-hmr"}})
	if err != nil {
		return
	}
	defer conn.CloseNow()
	for {
		kind, data, err := conn.Read(r.Context())
		if err != nil || conn.Write(r.Context(), kind, data) != nil {
			return
		}
	}
})

func (f *front) socket(label string, header http.Header) (*websocket.Conn, *http.Response, error) {
	return websocket.Dial(f.t.Context(), "ws://"+host(label)+"/hmr?_cay_token=token-of-"+label, &websocket.DialOptions{
		HTTPClient: f.client, Subprotocols: []string{"vite-hmr"}, HTTPHeader: header,
	})
}

func TestProxy_webSocket(t *testing.T) {
	t.Parallel()
	wo := newWorld(t, socket)
	f := serve(t, wo, nil)
	conn, _, err := f.socket(closed, http.Header{"Origin": {"http://" + host(closed)}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if conn.Subprotocol() != "vite-hmr" {
		t.Errorf("subprotocol %q", conn.Subprotocol())
	}
	for _, message := range []string{"hello", strings.Repeat("x", 20_000), ""} {
		if err := conn.Write(t.Context(), websocket.MessageText, []byte(message)); err != nil {
			t.Fatal(err)
		}
		if _, got, err := conn.Read(t.Context()); err != nil || string(got) != message {
			t.Fatalf("got %d bytes, %v", len(got), err)
		}
	}
	// When the port is no longer private or no longer exists, open connections end.
	wo.ends[closed]()
	if _, _, err := conn.Read(t.Context()); err == nil {
		t.Error("the WebSocket is still open")
	}
}

// Close ends WebSockets, which http.Server does not track, and waits for them.
func TestProxy_webSocketStop(t *testing.T) {
	t.Parallel()
	f := serve(t, newWorld(t, socket), nil)
	conn, _, err := f.socket(open, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	f.handler.Close()
	if _, _, err := conn.Read(t.Context()); err == nil {
		t.Error("the WebSocket is still open")
	}
}

// A visitor who neither speaks nor leaves does not hold up Close.
func TestProxy_silentVisitor(t *testing.T) {
	t.Parallel()
	var guest net.Conn
	accepted := make(chan struct{})
	f := serve(t, newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_ = rw.Flush()
		guest = conn
		close(accepted)
	})), nil)
	r := checktest.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+host(open)+"/", nil))(t)
	r.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}
	resp := checktest.Must(f.client.Do(r))(t)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("the answer is %s", resp.Status)
	}
	<-accepted
	checktest.OK(t, guest.Close()) // in good order, which the proxy passes on
	if _, err := resp.Body.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the visitor reads %v", err)
	}
	closed := make(chan struct{})
	go func() {
		f.handler.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Fatal("Close waits for a visitor")
	}
}

// Switching to other protocols is refused: in h2c, requests would pass uncleaned.
func TestProxy_otherUpgrade(t *testing.T) {
	t.Parallel()
	f := serve(t, newWorld(t, mirror), nil)
	s := f.seen(f.request("GET", open, "/", nil, "Connection", "Upgrade, HTTP2-Settings", "Upgrade", "h2c", "HTTP2-Settings", "AAMAAABkAAQAAP__"))
	if s.Header.Get("Upgrade") != "" || s.Header.Get("Connection") != "" || s.Header.Get("Http2-Settings") != "" {
		t.Errorf("the guest saw %v", s.Header)
	}
}

// Row P9: visitors who fill one preview leave room for visitors of other previews,
// visitors of one team's previews leave room for other teams, and the room is given back.
func TestProxy_caps(t *testing.T) {
	t.Parallel()
	f := serve(t, newWorld(t, socket), func(c *preview.Config) { c.LabelRequests, c.Requests = 6, 20 })
	var conns []*websocket.Conn
	fill := func(label string, n int) {
		t.Helper()
		for range n {
			conn, _, err := f.socket(label, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.CloseNow() })
			conns = append(conns, conn)
		}
	}
	busy := func(label string) {
		t.Helper()
		if _, resp, err := f.socket(label, nil); err == nil || resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" {
			t.Errorf("one more visitor of %s: %v", label, err)
		}
	}
	fill(open, 6)
	busy(open)
	fill(closed, 4)
	busy(closed)
	fill(other, 6)
	busy(other)
	// The earlier connections still work, idle or not.
	for _, conn := range conns {
		if err := conn.Write(t.Context(), websocket.MessageText, []byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, _, err := conn.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	conns[0].CloseNow()
	eventually(t, func() bool {
		conn, _, err := f.socket(open, nil)
		if err == nil {
			conn.CloseNow()
		}
		return err == nil
	})
}

// eventually waits until ok returns true, because the other goroutine gives no signal.
func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen")
		}
	}
}

// Connections to a guest are kept for the next request, and dropped when its server
// closes them.
func TestProxy_keepAlive(t *testing.T) {
	t.Parallel()
	wo := newWorld(t, hello)
	f := serve(t, wo, nil)
	for range 10 {
		f.get(open, "/")
	}
	if wo.dials != 1 {
		t.Errorf("%d connections for 10 requests", wo.dials)
	}
	f.get(closed, "/", "Cay-Preview-Token", "token-of-closed")
	if wo.dials != 2 {
		t.Errorf("labels share connections: %d", wo.dials)
	}
}

// A visitor who leaves ends the request in the guest.
func TestProxy_visitorLeaves(t *testing.T) {
	t.Parallel()
	arrived, left := make(chan struct{}), make(chan struct{})
	guest := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
		close(left)
	})
	f := serve(t, newWorld(t, guest), nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()
	if resp, err := f.client.Do(f.request("GET", open, "/", nil).WithContext(ctx)); err == nil {
		resp.Body.Close()
		t.Error("it was answered")
	}
	<-left
}

// Old clients are served.
func TestProxy_http10(t *testing.T) {
	t.Parallel()
	f := serve(t, newWorld(t, hello), nil)
	conn, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET / HTTP/1.0\r\nHost: %s\r\n\r\n", host(open))
	if answer, err := io.ReadAll(conn); err != nil || !strings.HasSuffix(string(answer), "\r\n\r\nhello") {
		t.Errorf("%q, %v", answer, err)
	}
}

// The proxy closes the connection at once if a guest switches protocols without being
// asked, or to another protocol: otherwise each visit would keep a connection.
func TestProxy_upgradeNobodyAskedFor(t *testing.T) {
	t.Parallel()
	left := make(chan error, 2)
	f := serve(t, newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			left <- err
			return
		}
		defer conn.Close()
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n")
		conn.SetReadDeadline(time.Now().Add(time.Minute))
		_, err = conn.Read(make([]byte, 1))
		left <- err
	})), nil)
	for _, headers := range [][]string{nil, {"Connection", "Upgrade", "Upgrade", "websocket"}} {
		if resp, _ := f.get(open, "/", headers...); resp.StatusCode != http.StatusBadGateway {
			t.Errorf("%q: %s", headers, resp.Status)
		}
		if err := <-left; err != io.EOF {
			t.Errorf("%q: the guest's connection: %v", headers, err)
		}
	}
}
