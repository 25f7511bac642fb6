package api_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
)

// pipeListener accepts the server's ends of pipes, whose deadlines follow the
// bubble's clock.
type pipeListener struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// dialPipe serves h in the bubble, and returns the client's end of a connection.
func dialPipe(t *testing.T, h api.Handler) net.Conn {
	t.Helper()
	l := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
	srv := api.NewServer(h, []string{"test"}, slog.New(slog.DiscardHandler))
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	client, server := net.Pipe()
	l.conns <- server
	t.Cleanup(func() {
		client.Close()
		srv.Close()
		<-served
	})
	return client
}

// ticks yields a value a minute, n of them, and then fails with err.
type ticks struct {
	ctx context.Context
	n   int
	err error
}

func (s *ticks) Next() (int, error) {
	if s.n == 0 {
		return 0, s.err
	}
	s.n--
	select {
	case <-time.After(time.Minute):
		return s.n, nil
	case <-s.ctx.Done():
		return 0, s.ctx.Err()
	}
}

func (s *ticks) Close() error { return nil }

// numbers encodes a number as a line.
type numbers struct{}

func (numbers) Append(dst []byte, v int) ([]byte, error) { return fmt.Appendln(dst, v), nil }
func (numbers) Held() bool                               { return false }
func (numbers) Release(dst []byte) []byte                { return dst }
func (numbers) AppendError(dst []byte, e *cay.Error) []byte {
	return fmt.Appendln(dst, e.Code)
}

func TestServeLines_Heartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		conn := dialPipe(t, func(w http.ResponseWriter, r *http.Request) error {
			return api.ServeLines(w, r, &ticks{r.Context(), 2, cay.Errorf(cay.Stopped, "over")}, numbers{})
		})
		go io.WriteString(conn, "GET / HTTP/1.1\r\nHost: test\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		// A heartbeat each 15 s of silence; the heartbeat at the minute may come
		// before or after the value.
		got := strings.ReplaceAll(string(b), "\n\n", "\n")
		for strings.Contains(got, "\n\n") {
			got = strings.ReplaceAll(got, "\n\n", "\n")
		}
		beats := strings.Count(string(b), "\n") - 3
		if strings.TrimPrefix(got, "\n") != "1\n0\nsandbox_stopped\n" || beats < 6 || beats > 8 {
			t.Errorf("received %q", b)
		}
		if took := time.Since(start); took != 2*time.Minute {
			t.Errorf("it took %v", took)
		}
	})
}

// after yields one value after that time, and ends long after.
type after struct {
	wait  time.Duration
	given bool
}

func (s *after) Next() (int, error) {
	if s.given {
		time.Sleep(time.Second)
		return 0, io.EOF
	}
	time.Sleep(s.wait)
	s.given = true
	return 1, nil
}

func (s *after) Close() error { return nil }

// flushes records each flush, with the number of bytes.
type flushes struct {
	*httptest.ResponseRecorder
	begun time.Time
	seen  []string
}

func (f *flushes) FlushError() error {
	f.seen = append(f.seen, fmt.Sprintf("%v %q", time.Since(f.begun), f.Body))
	return nil
}

// Headers wait a moment for the first line, and the end of the stream is not sent
// separately.
func TestServeLines_FewWrites(t *testing.T) {
	for wait, want := range map[time.Duration][]string{
		time.Millisecond:     {`1ms "1\n"`},
		9 * time.Millisecond: {`5ms ""`, `9ms "1\n"`},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &flushes{httptest.NewRecorder(), time.Now(), nil}
			r := httptest.NewRequest("GET", "/", nil).WithContext(t.Context())
			if err := api.ServeLines(f, r, &after{wait: wait}, numbers{}); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(f.seen, want) {
				t.Errorf("a line after %v: flushed %q, want %q", wait, f.seen, want)
			}
		})
	}
}

// A client that does not read ends its stream, and frees the stream's resources.
func TestServeLines_StalledClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		conn := dialPipe(t, func(w http.ResponseWriter, r *http.Request) error {
			err := api.ServeLines(w, r, &ticks{r.Context(), 1000, io.EOF}, numbers{})
			ended <- err
			return err
		})
		io.WriteString(conn, "GET / HTTP/1.1\r\nHost: test\r\n\r\n")
		start := time.Now()
		err := <-ended
		if err == nil || time.Since(start) > 2*api.StallTimeout {
			t.Errorf("the stream ended after %v with %v", time.Since(start), err)
		}
	})
}

func TestServeSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := dialPipe(t, func(w http.ResponseWriter, r *http.Request) error {
			return api.ServeSlow(w, r, func(ctx context.Context) (any, error) {
				select {
				case <-time.After(time.Minute):
					return "done", nil
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			})
		})
		go io.WriteString(conn, "GET / HTTP/1.1\r\nHost: test\r\n\r\n")
		start := time.Now()
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if early := time.Since(start); early > 2*time.Second {
			t.Errorf("the headers came after %v", early)
		}
		b, err := io.ReadAll(resp.Body)
		if err != nil || strings.TrimLeft(string(b), "\n") != "\"done\"\n" || strings.Count(string(b), "\n") < 4 {
			t.Errorf("received %q, %v", b, err)
		}
	})
}

// A body that stalls is an error after a while, however long the body is.
func TestBody_Stalls(t *testing.T) {
	for _, kind := range []string{"content", "json"} {
		synctest.Test(t, func(t *testing.T) {
			ended := make(chan error, 1)
			conn := dialPipe(t, func(w http.ResponseWriter, r *http.Request) error {
				var err error
				if kind == "json" {
					err = api.ReadJSON(w, r, new(struct{}))
				} else {
					_, err = io.Copy(io.Discard, api.Body(w, r))
				}
				ended <- err
				return err
			})
			io.WriteString(conn, "PUT / HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
			if kind == "content" {
				// A slow client is accepted, as long as it sends something.
				for range 5 {
					time.Sleep(api.StallTimeout / 2)
					io.WriteString(conn, "x")
				}
			}
			start := time.Now()
			err := <-ended
			if cay.CodeOf(err) != cay.DeadlineExceeded || time.Since(start) > 2*api.StallTimeout {
				t.Errorf("%s: after %v: %v", kind, time.Since(start), err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != 504 || !resp.Close {
				t.Errorf("%s: answer %d, closing %v", kind, resp.StatusCode, resp.Close)
			}
		})
	}
}

// The rest of a body that a Handler leaves unread is not taken for the next request.
func TestHandler_LeftoverIsNoRequest(t *testing.T) {
	for _, h := range []api.Handler{
		func(http.ResponseWriter, *http.Request) error { return cay.Errorf(cay.Conflict, "no") },
		func(w http.ResponseWriter, r *http.Request) error {
			if _, err := api.LiveBody(w, r); err != nil {
				return err
			}
			return api.NoContent(w)
		},
		func(w http.ResponseWriter, r *http.Request) error {
			if _, err := api.DuplexBody(w, r); err != nil {
				return err
			}
			io.WriteString(w, "x")
			return errors.New("late")
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			conn := dialPipe(t, func(w http.ResponseWriter, r *http.Request) error {
				calls++
				return h(w, r)
			})
			go io.WriteString(conn, "PUT / HTTP/1.1\r\nHost: test\r\nContent-Length: 1000\r\n\r\nGET /second HTTP/1.1\r\nHost: test\r\n\r\n")
			if _, err := io.ReadAll(conn); err != nil {
				t.Fatal(err)
			}
			if calls != 1 {
				t.Errorf("%d requests were seen", calls)
			}
		})
	}
}

// A client that sends a long body gets an answer that is sent before the body's end,
// while a service still reads, and can go on sending for a while: the connection is
// not reset.
func TestHandler_AnswersBeforeBodyIsRead(t *testing.T) {
	for kind, body := range map[string]func(http.ResponseWriter, *http.Request) io.Reader{
		"content": api.Body,
		"live": func(w http.ResponseWriter, r *http.Request) io.Reader {
			b, err := api.LiveBody(w, r)
			if err != nil {
				t.Error(err)
			}
			return b
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			read := make(chan error, 1)
			conn := dialPipe(t, func(w http.ResponseWriter, r *http.Request) error {
				in := body(w, r)
				go func() {
					_, err := io.Copy(io.Discard, in)
					read <- err
				}()
				time.Sleep(time.Millisecond) // until the server has read everything and waits for more
				return cay.Errorf(cay.Conflict, "no")
			})
			io.WriteString(conn, "PUT / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
			start := time.Now()
			answer := bufio.NewReader(conn)
			resp, err := http.ReadResponse(answer, nil)
			if err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); resp.StatusCode != 409 || took > time.Millisecond {
				t.Errorf("%s: answered %d after %v", kind, resp.StatusCode, took)
			}
			go io.Copy(io.Discard, answer)
			for range 50 {
				if _, err := io.WriteString(conn, "400\r\n"+strings.Repeat("x", 1024)+"\r\n"); err != nil {
					t.Fatalf("%s: the client, still sending: %v", kind, err)
				}
			}
			if err := <-read; err == nil {
				t.Errorf("%s: the service has read a body without an end", kind)
			}
		})
	}
}

// stream yields values from a channel, and fails when it was closed.
type stream struct {
	values chan int
	closed chan struct{}
}

func (s *stream) Next() (int, error) {
	select {
	case v, ok := <-s.values:
		if !ok {
			return 0, io.EOF
		}
		return v, nil
	case <-s.closed:
		return 0, errors.New("closed")
	}
}

func (s *stream) Close() error { close(s.closed); return nil }

// A stopping server ends streams at once, after the values that are there; a stream that
// has no value yet gets a moment for its first one.
func TestServeLines_Stopping(t *testing.T) {
	for name, tt := range map[string]struct {
		before, after []int // values before the server begins to stop, and after
		end           bool  // the stream ends after them
		want          string
		took          time.Duration
	}{
		"Quiet":     {before: []int{1}, want: "1\nunavailable\n"},
		"FirstLate": {after: []int{1}, want: "1\nunavailable\n", took: 300 * time.Millisecond},
		"NoFirst":   {want: "unavailable\n", took: time.Second},
		"Over":      {after: []int{}, end: true, want: "", took: 300 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stopping, stop := context.WithCancelCause(context.Background())
				src := &stream{make(chan int, 10), make(chan struct{})}
				for _, v := range tt.before {
					src.values <- v
				}
				w := httptest.NewRecorder()
				r := httptest.NewRequest("GET", "/", nil).WithContext(api.WithStopping(t.Context(), stopping))
				done := make(chan error, 1)
				go func() { done <- api.ServeLines(w, r, src, numbers{}) }()
				synctest.Wait()
				began := time.Now()
				stop(cay.Errorf(cay.Unavailable, "stopping"))
				if tt.after != nil {
					synctest.Wait()
					time.Sleep(300 * time.Millisecond)
					for _, v := range tt.after {
						src.values <- v
					}
				}
				if tt.end {
					close(src.values)
				}
				if err := <-done; err != nil {
					t.Error(err)
				}
				if got := strings.TrimLeft(w.Body.String(), "\n"); got != tt.want {
					t.Errorf("received %q, want %q", got, tt.want)
				}
				if took := time.Since(began); took != tt.took {
					t.Errorf("it took %v, want %v", took, tt.took)
				}
			})
		})
	}
}

// A wait ends when the server begins to stop.
func TestServeSlow_Stopping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stopping, stop := context.WithCancelCause(context.Background())
		time.AfterFunc(time.Minute, func() { stop(cay.Errorf(cay.Unavailable, "stopping")) })
		w := httptest.NewRecorder()
		r := httptest.NewRequest("GET", "/", nil).WithContext(api.WithStopping(t.Context(), stopping))
		err := api.ServeSlow(w, r, func(ctx context.Context) (any, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		if err != nil || !strings.Contains(w.Body.String(), `"unavailable"`) {
			t.Errorf("%v, %q", err, w.Body)
		}
	})
}
