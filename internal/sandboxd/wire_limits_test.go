package sandboxd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/coder/websocket"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

// Every code a service can return is the same error on the other side.
func TestClient_ErrorCodes(t *testing.T) {
	t.Parallel()
	codes := []cay.Code{
		cay.Invalid, cay.Unauthenticated, cay.PermissionDenied, cay.NotFound, cay.FileNotFound, cay.AlreadyExists, cay.Conflict,
		cay.Stopped, cay.ExecutableMissing, cay.TooLarge, cay.QuotaExceeded, cay.NoSpace, cay.NotSupported, cay.Unavailable,
		cay.DeadlineExceeded, cay.Canceled,
	}
	for _, code := range codes {
		t.Run(string(code), func(t *testing.T) {
			t.Parallel()
			c, rec, _ := dialRecorder(t)
			want := cay.Errorf(code, "it is %s", code).WithHint("a hint")
			rec.err = fmt.Errorf("with more around it: %w", want)
			_, err := c.Stop(t.Context(), "s")
			checkWireError(t, err, want)
			_, err = c.Exec(t.Context(), "s", sandbox.CommandParams{Argv: []string{"a"}})
			checkWireError(t, err, want)

			// And when it comes in the middle of a stream.
			rec.err = nil
			rec.output = func(ctx context.Context) (sandbox.Output, error) {
				return newFixedStream(ctx, error(want), someEvents()[:3]...), nil
			}
			got, err := collectAll(c.Exec(t.Context(), "s", sandbox.CommandParams{Argv: []string{"a"}}))
			checkWireError(t, err, want)
			if differ(got, someEvents()[:3]) {
				t.Errorf("events before the error: %v", got)
			}
		})
	}
}

// What is not coded stays in the daemon's log.
func TestRoutes_HidesInternalErrors(t *testing.T) {
	t.Parallel()
	c, rec, _ := dialRecorder(t)
	rec.err = errors.New("secret detail")
	_, err := c.Get(t.Context(), "s")
	if cay.CodeOf(err) != cay.Internal || strings.Contains(err.Error(), "secret") {
		t.Errorf("error is %v, want an internal error without details", err)
	}
}

// do sends a request as it is, with the admin's token unless it has one.
func do(t *testing.T, method, url, body string, header ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer admin")
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		if r.Header.Del(header[i]); header[i+1] != "" {
			r.Header.Set(header[i], header[i+1])
		}
	}
	tr := &http.Transport{DisableCompression: true}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

func TestRoutes_Refusals(t *testing.T) {
	t.Parallel()
	_, rec, srv := dialRecorder(t)
	long := strings.Repeat("k", 256)
	tests := []struct {
		name         string
		method, path string
		body         string
		header       []string
		status       int
		code         cay.Code
		says         string
	}{
		{"unknown query parameter", "GET", "/v1/sandboxes?limti=3", "", nil, 400, cay.Invalid, "limti"},
		{"query parameter of a route without", "GET", "/v1/sandboxes/s?x=1", "", nil, 400, cay.Invalid, "x"},
		{"query parameter of a JSON route", "POST", "/v1/sandboxes?x=1", "{}", nil, 400, cay.Invalid, "x"},
		{"malformed query", "GET", "/v1/sandboxes?a=%zz", "", nil, 400, cay.Invalid, "malformed"},
		{"limit 0", "GET", "/v1/sandboxes?limit=0", "", nil, 400, cay.Invalid, `"0"`},
		{"limit 201", "GET", "/v1/sandboxes?limit=201", "", nil, 400, cay.Invalid, "200"},
		{"limit twice", "GET", "/v1/sandboxes?limit=1&limit=2", "", nil, 400, cay.Invalid, "2 times"},
		{"tag without value", "GET", "/v1/sandboxes?tag=x", "", nil, 400, cay.Invalid, "key=value"},
		{"unknown field", "POST", "/v1/sandboxes", `{"network":{"mod":"x"}}`, nil, 400, cay.Invalid, "network.mod"},
		{"field of another case", "POST", "/v1/sandboxes", `{"Name":"x"}`, nil, 400, cay.Invalid, "Name"},
		{"wrong type", "POST", "/v1/sandboxes", `{"vcpus":"2"}`, nil, 400, cay.Invalid, "vcpus"},
		{"fraction of a millisecond", "POST", "/v1/sandboxes", `{"timeout_ms":1.5}`, nil, 400, cay.Invalid, "timeout_ms"},
		{"no content type", "POST", "/v1/sandboxes", `{}`, []string{"Content-Type", "text/plain"}, 400, cay.Invalid, "text/plain"},
		{"idempotency key too long", "POST", "/v1/sandboxes", `{}`, []string{"Idempotency-Key", long}, 400, cay.Invalid, "Idempotency-Key"},
		{"idempotency key with space", "POST", "/v1/sandboxes", `{}`, []string{"Idempotency-Key", "a b"}, 400, cay.Invalid, "Idempotency-Key"},
		{"no path", "GET", "/v1/sandboxes/s/files/stat", "", nil, 400, cay.Invalid, "path"},
		{"mode not octal", "PUT", "/v1/sandboxes/s/files/content?path=/a&mode=9", "", nil, 400, cay.Invalid, "octal"},
		{"mode too large", "PUT", "/v1/sandboxes/s/files/content?path=/a&mode=10000", "", nil, 400, cay.Invalid, "octal"},
		{"chmod without mode", "POST", "/v1/sandboxes/s/files/chmod", `{"path":"/a"}`, nil, 400, cay.Invalid, "mode"},
		{"path of another type", "POST", "/v1/sandboxes/s/files/mkdir", `{"path":{"base":"x"}}`, nil, 400, cay.Invalid, "path"},
		{"unknown archive format", "GET", "/v1/sandboxes/s/files/archive?path=/a&format=zip", "", nil, 400, cay.Invalid, "zip"},
		{"negative cursor", "GET", "/v1/sandboxes/s/commands/c/output?cursor=-1", "", nil, 400, cay.Invalid, "-1"},
		{"stream of events", "GET", "/v1/sandboxes/s/commands/c/output?stream=stdout", "", nil, 400, cay.Invalid, "stream"},
		{"no route", "GET", "/v1/sandbox", "", nil, 404, cay.NotFound, "/v1/sandbox"},
		{"no method", "PUT", "/v1/sandboxes", "", nil, 405, cay.Invalid, "GET"},
		{"no token", "GET", "/v1/sandboxes", "", []string{"Authorization", ""}, 401, cay.Unauthenticated, "token"},
		{"wrong token", "GET", "/v1/sandboxes", "", []string{"Authorization", "Bearer x"}, 401, cay.Unauthenticated, "token"},
		{"token in the query", "GET", "/v1/sandboxes?token=admin", "", []string{"Authorization", ""}, 401, cay.Unauthenticated, "token"},
		{"other scheme", "GET", "/v1/sandboxes", "", []string{"Authorization", "Basic admin"}, 401, cay.Unauthenticated, "Bearer"},
		{"team of another", "GET", "/v1/sandboxes", "", []string{"Authorization", "Bearer user", "Cay-Team", "team_b"}, 403, cay.PermissionDenied, "team_b"},
		{"other origin", "POST", "/v1/sandboxes", "{}", []string{"Origin", "https://evil.example"}, 403, cay.PermissionDenied, "evil.example"},
		{"null origin", "POST", "/v1/sandboxes", "{}", []string{"Origin", "null"}, 403, cay.PermissionDenied, "origin"},
		{"image import by a tenant", "POST", "/v1/images/import?ref=x", "", []string{"Authorization", "Bearer user"}, 403, cay.PermissionDenied, "admin"},
		{"image removal by a tenant", "DELETE", "/v1/images/debian", "", []string{"Authorization", "Bearer user"}, 403, cay.PermissionDenied, "admin"},
		{"image collection by a tenant", "POST", "/v1/images/gc", "", []string{"Authorization", "Bearer user"}, 403, cay.PermissionDenied, "admin"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resp, body := do(t, tt.method, srv.URL+tt.path, tt.body, tt.header...)
			var got wire.ErrorBody
			if err := json.Unmarshal([]byte(body), &got); err != nil || got.Error == nil {
				t.Fatalf("the answer is %q", body)
			}
			if resp.StatusCode != tt.status || got.Error.Code != tt.code || !strings.Contains(got.Error.Message+got.Error.Hint, tt.says) {
				t.Errorf("answer %d %s %q (%s), want %d %s with %q", resp.StatusCode, got.Error.Code, got.Error.Message, got.Error.Hint, tt.status, tt.code, tt.says)
			}
			if tt.status == 401 && resp.Header.Get("WWW-Authenticate") == "" {
				t.Error("no WWW-Authenticate")
			}
		})
	}
	if len(rec.calls) > 0 {
		t.Errorf("calls reached the service: %v", rec.calls)
	}
}

// An admin speaks for the team it names, others for their own.
func TestRoutes_Principal(t *testing.T) {
	t.Parallel()
	_, rec, srv := dialRecorder(t)
	for _, tt := range []struct {
		token, team string
		want        api.Principal
	}{
		{"user", "", api.Principal{TokenID: "tok_user", TeamID: "team_a", ProjectID: "prj_a"}},
		{"user", "team_a", api.Principal{TokenID: "tok_user", TeamID: "team_a", ProjectID: "prj_a"}},
		{"admin", "", api.Principal{TokenID: "tok_admin", TeamID: "team_default", Admin: true}},
		{"admin", "team_b", api.Principal{TokenID: "tok_admin", TeamID: "team_b", Admin: true}},
	} {
		resp, body := do(t, "GET", srv.URL+"/v1/sandboxes/s", "", "Authorization", "Bearer "+tt.token, wire.HeaderTeam, tt.team)
		if resp.StatusCode != 200 || rec.who != tt.want {
			t.Errorf("%s for %q: %d %s, %+v", tt.token, tt.team, resp.StatusCode, body, rec.who)
		}
	}
}

// Ranges are answered as browsers and curl expect them.
func TestRoutes_FileRanges(t *testing.T) {
	t.Parallel()
	const text = "0123456789"
	_, rec, srv := dialRecorder(t)
	size := int64(len(text))
	rec.read = func(p sandbox.ReadParams) (io.ReadCloser, *sandbox.FileInfo, error) {
		part := text[min(p.Offset, int64(len(text))):]
		if p.Length > 0 {
			part = part[:min(p.Length, int64(len(part)))]
		}
		return io.NopCloser(strings.NewReader(part)), someFile(size), nil
	}
	for _, tt := range []struct {
		header string
		status int
		body   string
		rng    string
	}{
		{"", 200, text, ""},
		{"bytes=2-4", 206, "234", "bytes 2-4/10"},
		{"bytes=7-", 206, "789", "bytes 7-9/10"},
		{"bytes=-4", 206, "6789", "bytes 6-9/10"},
		{"bytes=-99", 206, text, "bytes 0-9/10"},
		{"bytes=8-99", 206, "89", "bytes 8-9/10"},
		{"bytes=10-", 416, "", "bytes */10"},
		{"bytes=1-2,4-5", 200, text, ""},
		{"bytes=4-2", 200, text, ""},
		{"lines=1-2", 200, text, ""},
	} {
		resp, body := do(t, "GET", srv.URL+"/v1/sandboxes/s/files/content?path=/a", "", "Range", tt.header)
		if resp.StatusCode != tt.status || resp.Header.Get("Content-Range") != tt.rng || tt.status != 416 && body != tt.body {
			t.Errorf("%q: %d %q %q, want %d %q %q", tt.header, resp.StatusCode, resp.Header.Get("Content-Range"), body, tt.status, tt.rng, tt.body)
		}
		var info sandbox.FileInfo
		if err := json.Unmarshal([]byte(resp.Header.Get(wire.HeaderFileInfo)), &info); err != nil || differ(info, *someFile(size)) {
			t.Errorf("%q: file info %q, %v", tt.header, resp.Header.Get(wire.HeaderFileInfo), err)
		}
	}
	// A file of proc has content, though no size.
	size = 0
	if resp, body := do(t, "GET", srv.URL+"/v1/sandboxes/s/files/content?path=/proc/x", ""); body != text || resp.ContentLength != 10 {
		t.Errorf("file without size: %q, length %d", body, resp.ContentLength)
	}
}

// Beyond the end of a file there is nothing, which is no error.
func TestClient_ReadFileBeyondEnd(t *testing.T) {
	t.Parallel()
	c, rec, _ := dialRecorder(t)
	rec.read = func(sandbox.ReadParams) (io.ReadCloser, *sandbox.FileInfo, error) {
		return http.NoBody, someFile(3), nil
	}
	r, info, err := c.ReadFile(t.Context(), "s", "/a", sandbox.ReadParams{Offset: 5})
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if len(b) != 0 || err != nil || info.Size != 3 {
		t.Errorf("read %q, %v, size %d", b, err, info.Size)
	}
}

// A file that breaks off is not taken for a short one.
func TestClient_ReadFileBreaksOff(t *testing.T) {
	t.Parallel()
	c, rec, _ := dialRecorder(t)
	for _, size := range []int64{1 << 20, 0} {
		rec.read = func(sandbox.ReadParams) (io.ReadCloser, *sandbox.FileInfo, error) {
			return io.NopCloser(io.MultiReader(io.LimitReader(zeroReader{}, 600<<10), iotest.ErrReader(errors.New("lost the guest")))), someFile(size), nil
		}
		r, _, err := c.ReadFile(t.Context(), "s", "/a", sandbox.ReadParams{})
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, r); cay.CodeOf(err) != cay.Unavailable {
			t.Errorf("size %d: read %d bytes, %v", size, n, err)
		}
		r.Close()
	}
}

func TestClient_WriteFile(t *testing.T) {
	t.Parallel()
	t.Run("sizes", func(t *testing.T) {
		t.Parallel()
		c, rec, _ := dialRecorder(t)
		type sized struct{ io.Reader } // hides the length
		for _, tt := range []struct {
			r    io.Reader
			size int64
			want int64
		}{
			{strings.NewReader(""), -1, -1},
			{bytes.NewReader(nil), 0, -1},
			{bytes.NewReader([]byte("abc")), 0, 3},
			{sized{strings.NewReader("abc")}, 0, 0},
			{sized{strings.NewReader("abc")}, 3, 3},
		} {
			if _, err := c.WriteFile(t.Context(), "s", "/a", tt.r, sandbox.WriteParams{Size: tt.size}); err != nil {
				t.Fatal(err)
			}
			if got := rec.last(t).Args[3].(sandbox.WriteParams).Size; got != tt.want {
				t.Errorf("size %d of %T arrives as %d, want %d", tt.size, tt.r, got, tt.want)
			}
		}
	})
	t.Run("other length than announced", func(t *testing.T) {
		t.Parallel()
		c, _, _ := dialRecorder(t)
		for _, body := range []string{"ab", "abcd"} {
			_, err := c.WriteFile(t.Context(), "s", "/a", strings.NewReader(body), sandbox.WriteParams{Size: 3})
			if cay.CodeOf(err) != cay.Invalid {
				t.Errorf("%q as 3 bytes: %v", body, err)
			}
		}
	})
	t.Run("the reader's error", func(t *testing.T) {
		t.Parallel()
		c, rec, _ := dialRecorder(t)
		seen := make(chan error, 1)
		rec.write = func(_ context.Context, r io.Reader) error {
			_, err := io.Copy(io.Discard, r)
			seen <- err
			return err
		}
		mine := errors.New("disk on fire")
		_, err := c.WriteFile(t.Context(), "s", "/a", io.MultiReader(io.LimitReader(zeroReader{}, 1<<20), iotest.ErrReader(mine)), sandbox.WriteParams{})
		if !errors.Is(err, mine) {
			t.Errorf("error is %v, want the reader's", err)
		}
		if err := <-seen; err == nil {
			t.Error("the service took the broken upload for a whole one")
		}
	})
	t.Run("refused early", func(t *testing.T) {
		t.Parallel()
		c, rec, _ := dialRecorder(t)
		want := cay.Errorf(cay.NoSpace, "the disk is full")
		rec.write = func(_ context.Context, r io.Reader) error {
			if _, err := io.CopyN(io.Discard, r, 1<<20); err != nil {
				return err
			}
			return want
		}
		_, err := c.WriteFile(t.Context(), "s", "/a", zeroReader{}, sandbox.WriteParams{})
		checkWireError(t, err, want)
	})
}

// Standard input that nobody types into ends when the command does.
func TestClient_WriteStdinRefusedWhileIdle(t *testing.T) {
	t.Parallel()
	c, rec, _ := dialRecorder(t)
	want := cay.Errorf(cay.Conflict, "the command has exited")
	rec.write = func(_ context.Context, r io.Reader) error {
		if _, err := io.ReadFull(r, make([]byte, 3)); err != nil {
			return err
		}
		return want
	}
	r, w := io.Pipe()
	defer w.Close()
	go w.Write([]byte("abc")) // and then nothing
	checkWireError(t, c.WriteStdin(t.Context(), "s", "c", r, false), want)
}

// A long wait begins to answer early, and its failure is still an error.
func TestClient_WaitLong(t *testing.T) {
	t.Parallel()
	for _, want := range []*cay.Error{nil, cay.Errorf(cay.Stopped, "it stopped")} {
		c, rec, srv := dialRecorder(t)
		release := make(chan struct{})
		rec.wait = func(ctx context.Context) error {
			<-release
			if want == nil {
				return nil
			}
			return want
		}
		conn, err := net.Dial("tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		done := make(chan error, 1)
		go func() {
			_, err := c.Wait(t.Context(), "s", "c")
			done <- err
		}()
		// The same by hand: the status is there before the answer.
		fmt.Fprintf(conn, "GET /v1/sandboxes/s/commands/c/wait HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer admin\r\n\r\n")
		line := make([]byte, 15)
		if _, err := io.ReadFull(conn, line); err != nil || string(line) != "HTTP/1.1 200 OK" {
			t.Fatalf("%q, %v", line, err)
		}
		close(release)
		err = <-done
		if want == nil && err != nil || want != nil && !errors.Is(err, want) {
			t.Errorf("error is %v, want %v", err, want)
		}
	}
}

// A client that leaves ends the service's call, wherever it is.
func TestRoutes_ClientLeaves(t *testing.T) {
	t.Parallel()
	c, rec, _ := dialRecorder(t)
	ended := make(chan struct{}, 1)
	watch := func(ctx context.Context) { context.AfterFunc(ctx, func() { ended <- struct{}{} }) }
	hang := func(ctx context.Context) (sandbox.Output, error) {
		watch(ctx)
		s := newEvents(ctx, someEvents()[:2]...)
		s.hang = true
		return s, nil
	}
	rec.output = hang
	out, err := c.Exec(t.Context(), "s", sandbox.CommandParams{Argv: []string{"a"}})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := out.Next(); err != nil {
			t.Fatal(err)
		}
	}
	unblocked := make(chan error, 1)
	go func() {
		_, err := out.Next()
		unblocked <- err
	}()
	out.Close()
	if err := <-unblocked; cay.CodeOf(err) != cay.Canceled {
		t.Errorf("Next after Close: %v", err)
	}
	<-ended

	rec.wait = func(ctx context.Context) error {
		watch(ctx)
		<-ctx.Done()
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = c.Wait(ctx, "s", "c")
	if !errors.Is(err, context.DeadlineExceeded) || cay.CodeOf(err) != cay.DeadlineExceeded {
		t.Errorf("Wait with a deadline: %v", err)
	}
	<-ended
}

// A stream whose connection breaks goes on from its cursor.
func TestClient_OutputReattaches(t *testing.T) {
	t.Parallel()
	_, rec, srv := dialRecorder(t)
	proxy := newBreakingProxy(t, srv.Listener.Addr().String())
	c := dialWire(t, "http://"+proxy.addr, nil)

	const chunk, chunks = 1000, 40
	text := make([]byte, chunk*chunks)
	for i := range text {
		text[i] = "abcdefghij"[i/7%10]
	}
	next := make(chan struct{}) // lets one more chunk go
	rec.output = func(ctx context.Context) (sandbox.Output, error) {
		rec.mu.Lock()
		last := rec.calls[len(rec.calls)-1]
		rec.mu.Unlock()
		var from int64
		if last.Method == "Output" {
			from = last.Args[2].(sandbox.OutputParams).Cursor
		}
		return &steppedOutput{ctx: ctx, text: text, at: from, chunk: chunk, next: next, start: last.Method == "Exec"}, nil
	}
	out, err := c.Exec(t.Context(), "s", sandbox.CommandParams{Argv: []string{"a"}})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	// Until it knows the command, a stream that breaks cannot go on.
	if e, err := out.Next(); err != nil || e.Command == nil {
		t.Fatalf("%+v, %v", e, err)
	}
	go func() {
		defer close(next)
		for i := range chunks {
			if i%10 == 5 {
				proxy.breakAll()
			}
			select {
			case next <- struct{}{}:
			case <-t.Context().Done():
				return
			}
		}
	}()
	var got []byte
	for {
		e, err := out.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e.Data...)
	}
	if !bytes.Equal(got, text) {
		t.Errorf("got %d bytes, which are not the %d that were written", len(got), len(text))
	}
	if proxy.broken() < 2 {
		t.Errorf("the connection broke %d times only", proxy.broken())
	}
}

// steppedOutput gives one chunk of text for each value of next, the rest when
// it is closed.
type steppedOutput struct {
	ctx   context.Context
	text  []byte
	at    int64
	chunk int64
	next  chan struct{}
	start bool
	ended bool
}

func (o *steppedOutput) Next() (sandbox.Event, error) {
	if o.start {
		o.start = false
		return sandbox.Event{Command: someCommand()}, nil
	}
	if o.ended {
		return sandbox.Event{}, io.EOF
	}
	if o.at == int64(len(o.text)) {
		o.ended = true
		return sandbox.Event{Exit: exited().Exit}, nil
	}
	select {
	case <-o.next:
	case <-o.ctx.Done():
		return sandbox.Event{}, o.ctx.Err()
	}
	end := min(o.at+o.chunk, int64(len(o.text)))
	e := sandbox.Event{Stream: sandbox.Stdout, Cursor: o.at, Data: o.text[o.at:end]}
	o.at = end
	return e, nil
}

func (o *steppedOutput) Close() error { return nil }

// A client that reads nothing does not make the daemon keep more and more.
func TestRoutes_SlowReaderIsBounded(t *testing.T) {
	t.Parallel()
	_, rec, srv := dialRecorder(t)
	produced := make(chan int64, 1)
	rec.output = func(ctx context.Context) (sandbox.Output, error) {
		return &flood{ctx: ctx, produced: produced}, nil
	}
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).SetReadBuffer(64 << 10); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET /v1/sandboxes/s/commands/c/output?follow=true HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer admin\r\n\r\n")
	// Production stalls when all buffers on the way are full: the next chunk
	// is then asked for only after the connection has broken.
	stalled := time.NewTimer(time.Second)
	var total int64
	for full := false; !full; {
		select {
		case total = <-produced:
			stalled.Reset(time.Second)
		case <-stalled.C:
			full = true
		}
	}
	conn.Close()
	if total > 32<<20 {
		t.Errorf("%d bytes were taken for a client that reads nothing", total)
	}
}

// flood is endless output that reports how much was taken.
type flood struct {
	ctx      context.Context
	at       int64
	produced chan int64
}

func (f *flood) Next() (sandbox.Event, error) {
	select {
	case f.produced <- f.at:
	case <-f.ctx.Done():
		return sandbox.Event{}, f.ctx.Err()
	}
	e := sandbox.Event{Stream: sandbox.Stdout, Cursor: f.at, Data: bytes.Repeat([]byte("flood "), 5000)}
	f.at += int64(len(e.Data))
	return e, nil
}

func (f *flood) Close() error { return nil }

func TestRoutes_Terminal(t *testing.T) {
	t.Parallel()
	_, rec, srv := dialRecorder(t)
	rec.pty = true
	typed := make(chan string)
	rec.write = func(ctx context.Context, r io.Reader) error {
		buf := make([]byte, 100)
		for {
			n, err := r.Read(buf)
			if err != nil {
				return nil
			}
			select {
			case typed <- string(buf[:n]):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	shown := make(chan sandbox.Event)
	closed := make(chan struct{}, 2)
	rec.output = func(ctx context.Context) (sandbox.Output, error) {
		return &channelOutput{ctx: ctx, events: shown, closed: closed}, nil
	}
	url := "ws" + strings.TrimPrefix(srv.URL, "http") + "/v1/sandboxes/s/commands/c/terminal?cursor=5"
	// As a browser does it: the token is in the subprotocols.
	conn, _, err := websocket.Dial(t.Context(), url, &websocket.DialOptions{Subprotocols: []string{"cay.terminal", "cay.bearer.user"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if got := conn.Subprotocol(); got != "cay.terminal" {
		t.Errorf("subprotocol is %q", got)
	}
	if got := rec.last(t); got.Method != "Output" || differ(got.Args[2], sandbox.OutputParams{Cursor: 5, Follow: true}) {
		t.Errorf("the service got %+v", got)
	}
	send := func(kind websocket.MessageType, s string) {
		t.Helper()
		if err := conn.Write(t.Context(), kind, []byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	receive := func(kind websocket.MessageType, want string) {
		t.Helper()
		k, b, err := conn.Read(t.Context())
		if err != nil || k != kind || string(b) != want {
			t.Fatalf("received %v %q, %v; want %v %q", k, b, err, kind, want)
		}
	}
	send(websocket.MessageBinary, "ls\r")
	if got := <-typed; got != "ls\r" {
		t.Errorf("typed %q", got)
	}
	shown <- sandbox.Event{Truncated: true, Cursor: 9}
	receive(websocket.MessageText, `{"truncated":{"cursor":9}}`)
	shown <- sandbox.Event{Stream: sandbox.Stdout, Cursor: 9, Data: []byte("\x1b[1m\xff")}
	receive(websocket.MessageBinary, "\x1b[1m\xff")
	send(websocket.MessageText, `{"resize":{"cols":100,"rows":30}}`)
	send(websocket.MessageBinary, "x") // in order: the resize was handled when this arrives
	<-typed
	if got := rec.last(t); got.Method != "Resize" || differ(got.Args[2], sandbox.WindowSize{Cols: 100, Rows: 30}) {
		t.Errorf("the service got %+v", got)
	}
	shown <- sandbox.Event{Exit: &sandbox.Exit{Code: 7, At: someTime}}
	receive(websocket.MessageText, `{"exit":{"code":7,"at":"2026-11-20T12:00:00Z","duration_ms":0}}`)
	close(shown)
	if _, _, err := conn.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("the terminal ends with %v", err)
	}
	<-closed
}

func TestRoutes_TerminalRefusals(t *testing.T) {
	t.Parallel()
	_, rec, srv := dialRecorder(t)
	url := "ws" + strings.TrimPrefix(srv.URL, "http") + "/v1/sandboxes/s/commands/c/terminal"
	auth := http.Header{"Authorization": {"Bearer admin"}}
	dial := func(h http.Header) (*websocket.Conn, int) {
		conn, resp, err := websocket.Dial(t.Context(), url, &websocket.DialOptions{HTTPHeader: h})
		if err == nil {
			return conn, 101
		}
		return nil, resp.StatusCode
	}
	if _, status := dial(auth); status != http.StatusConflict {
		t.Errorf("a command without terminal: %d", status)
	}
	rec.pty = true
	if _, status := dial(nil); status != http.StatusUnauthorized {
		t.Errorf("no token: %d", status)
	}
	evil := auth.Clone()
	evil.Set("Origin", "https://evil.example")
	if _, status := dial(evil); status != http.StatusForbidden {
		t.Errorf("a page of another origin: %d", status)
	}
	rec.output = func(ctx context.Context) (sandbox.Output, error) {
		s := newEvents(ctx)
		s.hang = true
		return s, nil
	}
	rec.write = func(ctx context.Context, r io.Reader) error {
		_, err := io.Copy(io.Discard, r)
		return err
	}
	for name, send := range map[string]struct {
		kind   websocket.MessageType
		text   string
		status websocket.StatusCode
	}{
		"unknown control": {websocket.MessageText, `{"rezise":{}}`, websocket.StatusPolicyViolation},
		"too long":        {websocket.MessageBinary, strings.Repeat("x", 257<<10), websocket.StatusMessageTooBig},
	} {
		conn, status := dial(auth)
		if status != 101 {
			t.Fatalf("%s: %d", name, status)
		}
		// The other side may break off before it has all of a message it refuses.
		_ = conn.Write(t.Context(), send.kind, []byte(send.text))
		if _, _, err := conn.Read(t.Context()); websocket.CloseStatus(err) != send.status {
			t.Errorf("%s: the terminal ends with %v", name, err)
		}
		conn.CloseNow()
	}
}

// channelOutput shows what comes from a channel.
type channelOutput struct {
	ctx    context.Context
	events chan sandbox.Event
	closed chan struct{}
}

func (o *channelOutput) Next() (sandbox.Event, error) {
	select {
	case e, ok := <-o.events:
		if !ok {
			return e, io.EOF
		}
		return e, nil
	case <-o.ctx.Done():
		return sandbox.Event{}, o.ctx.Err()
	}
}

func (o *channelOutput) Close() error {
	select {
	case o.closed <- struct{}{}:
	default:
	}
	return nil
}
