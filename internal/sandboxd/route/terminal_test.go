package route_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/cayhq/cay/sandbox"
)

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
	// As a browser does, the client puts the token into the subprotocols.
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
		// The server may break off before it has received all of a message that it
		// refuses.
		_ = conn.Write(t.Context(), send.kind, []byte(send.text))
		if _, _, err := conn.Read(t.Context()); websocket.CloseStatus(err) != send.status {
			t.Errorf("%s: the terminal ends with %v", name, err)
		}
		conn.CloseNow()
	}
}

// channelOutput is an Output that returns the events from a channel.
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
