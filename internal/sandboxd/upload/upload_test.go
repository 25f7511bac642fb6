package upload_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/internal/sandboxd/upload"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// patience bounds waits for events that must come.
const patience = time.Minute

// serve answers each request while a goroutine reads its body, and returns the client's
// end of a connection and the results of the reads.
func serve(t *testing.T, answer func(*upload.Body)) (net.Conn, chan error) {
	t.Helper()
	read := make(chan error, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		b := upload.New(w, r)
		defer b.Finish()
		go func() {
			_, err := io.Copy(io.Discard, b)
			read <- err
		}()
		answer(b)
		if b.Open() {
			w.Header().Set("Connection", "close")
		}
		io.WriteString(w, "answer")
	}))
	t.Cleanup(s.Close)
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return c, read
}

func receive(t *testing.T, read chan error) error {
	t.Helper()
	select {
	case err := <-read:
		return err
	case <-time.After(patience):
		t.Fatal("the Read under way has not ended")
		return nil
	}
}

// The end of the handler ends the Read under way, the response arrives whole, and the
// connection is closed although the client neither sends nor closes.
func TestBody_FinishEndsRead(t *testing.T) {
	t.Parallel()
	c, read := serve(t, func(*upload.Body) {})
	io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nGET ")
	b := bufio.NewReader(c)
	res, err := http.ReadResponse(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(res.Body); string(body) != "answer" || err != nil || !res.Close {
		t.Errorf("got %q, %v, connection kept: %v", body, err, !res.Close)
	}
	if err := receive(t, read); err == nil {
		t.Error("the body ended well")
	}
	if rest, err := io.ReadAll(b); len(rest) > 0 || err != nil {
		t.Errorf("then %q, %v", rest, err)
	}
}

// A body that has ended leaves the connection usable.
func TestBody_Ended(t *testing.T) {
	t.Parallel()
	var read chan error
	ended := make(chan error, 1)
	c, read := serve(t, func(b *upload.Body) { ended <- <-read })
	for range 2 {
		io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody")
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(res.Body); string(body) != "answer" || err != nil || res.Close {
			t.Errorf("got %q, %v, connection kept: %v", body, err, !res.Close)
		}
		if err := receive(t, ended); err != nil {
			t.Errorf("the body: %v", err)
		}
	}
}

// A sender that waits for 100-continue gets it, also after another informational status,
// or if the server answers first or not at all.
func TestBody_Inform(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		for _, status := range []int{http.StatusContinue, http.StatusProcessing, http.StatusEarlyHints} {
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				b := upload.New(w, r)
				defer b.Finish()
				w.Header().Set("Link", "</a>")
				if b.Inform(w, status) {
					w.WriteHeader(status)
				}
				w.Header().Del("Link")
				io.Copy(w, b)
			}))
			s.EnableHTTP2 = h2
			s.StartTLS()
			t.Cleanup(s.Close)
			transport := s.Client().Transport.(*http.Transport)
			transport.ExpectContinueTimeout = 2 * patience
			var told atomic.Int32
			ctx, cancel := context.WithTimeout(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
				Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
					if code == http.StatusContinue && status != code && h.Get("Link") != "" {
						t.Errorf("100 Continue came with the headers of %d", status)
					}
					return nil
				},
				Got100Continue: func() { told.Add(1) },
			}), patience)
			defer cancel()
			r, err := http.NewRequestWithContext(ctx, "PUT", s.URL, strings.NewReader("body"))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Expect", "100-continue")
			res, err := transport.RoundTrip(r)
			if err != nil {
				t.Errorf("HTTP/2 %v, after %d: %v", h2, status, err)
				continue
			}
			if body, err := io.ReadAll(res.Body); string(body) != "body" || err != nil || told.Load() == 0 {
				t.Errorf("HTTP/2 %v, after %d: %q, %v, told %d times", h2, status, body, err, told.Load())
			}
			res.Body.Close()
		}
	}
}
