package api_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
)

// given yields n numbers at once, and then fails with err; without err it waits until
// it is closed.
type given struct {
	n      int
	err    error
	closed chan struct{}
}

func (s *given) Next() (int, error) {
	if s.n > 0 {
		s.n--
		return s.n, nil
	}
	if s.err == nil {
		<-s.closed
		return 0, io.EOF
	}
	return 0, s.err
}

func (s *given) Close() error {
	close(s.closed)
	return nil
}

// dialLines opens the WebSocket of a stream of src, whose request has the context ctx.
// served is closed when the handler has returned.
func dialLines(t *testing.T, ctx context.Context, src *given) (conn *websocket.Conn, served chan struct{}) {
	t.Helper()
	src.closed, served = make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(served)
		if err := api.ServeLines(w, r.WithContext(ctx), src, numbers{}); err != nil {
			t.Errorf("ServeLines failed with %v", err)
		}
	}))
	t.Cleanup(server.Close)
	dialing, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, _, err := websocket.Dial(dialing, strings.Replace(server.URL, "http", "ws", 1), &websocket.DialOptions{
		Subprotocols: []string{api.LinesProtocol, "cay.session.key"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.CloseNow() })
	if conn.Subprotocol() != api.LinesProtocol {
		t.Errorf("the daemon speaks %q", conn.Subprotocol())
	}
	return conn, served
}

// readLines returns the lines until the stream ends, and the status of its end.
func readLines(t *testing.T, conn *websocket.Conn) (string, websocket.StatusCode) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all strings.Builder
	for {
		kind, b, err := conn.Read(ctx)
		if err != nil {
			return all.String(), websocket.CloseStatus(err)
		}
		if kind != websocket.MessageText || !strings.HasSuffix(string(b), "\n") {
			t.Errorf("a message of kind %v is %q, want lines of text", kind, b)
		}
		all.Write(b)
	}
}

func TestServeLines_WebSocket(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		src  given
		want string
	}{
		"ended":  {given{n: 3, err: io.EOF}, "2\n1\n0\n"},
		"failed": {given{n: 1, err: cay.Errorf(cay.Stopped, "over")}, "0\nsandbox_stopped\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, served := dialLines(t, t.Context(), &tc.src)
			got, status := readLines(t, conn)
			if got != tc.want || status != websocket.StatusNormalClosure {
				t.Errorf("received %q and status %v, want %q and 1000", got, status, tc.want)
			}
			<-served
		})
	}
}

// A reader that loses its permission is told why its stream ends.
func TestServeLines_WebSocketEnded(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	conn, served := dialLines(t, ctx, &given{n: 1})
	if _, b, err := conn.Read(t.Context()); err != nil || string(b) != "0\n" {
		t.Fatalf("received %q, %v", b, err)
	}
	cancel(cay.Errorf(cay.Unauthenticated, "logged out"))
	if got, status := readLines(t, conn); got != "unauthenticated\n" || status != websocket.StatusNormalClosure {
		t.Errorf("received %q and status %v, want why it ended", got, status)
	}
	<-served
}

// A client that leaves, or sends a message, ends its stream, and frees the stream's
// resources.
func TestServeLines_WebSocketLeft(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(conn *websocket.Conn) error{
		"closes": func(conn *websocket.Conn) error { return conn.Close(websocket.StatusNormalClosure, "") },
		"breaks": func(conn *websocket.Conn) error { return conn.CloseNow() },
		"speaks": func(conn *websocket.Conn) error {
			return conn.Write(context.Background(), websocket.MessageText, []byte("more"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src := &given{n: 1}
			conn, served := dialLines(t, t.Context(), src)
			if _, b, err := conn.Read(t.Context()); err != nil || string(b) != "0\n" {
				t.Fatalf("received %q, %v", b, err)
			}
			if err := leave(conn); err != nil {
				t.Fatal(err)
			}
			<-src.closed
			<-served
		})
	}
}
