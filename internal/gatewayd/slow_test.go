package gatewayd_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db/dbtest"
	"github.com/cayhq/cay/internal/gatewayd"
	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
)

// callers is a ledger in which every secret is its own key.
type callers struct{ *memory }

func (c callers) Authenticate(_ context.Context, s string) (*ledger.Caller, error) {
	caller := c.caller
	caller.KeyID = s
	return &caller, nil
}

// upload is a request whose body is sent in parts.
type upload struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

// upload sends the headers of a request for n bytes.
func (w *world) upload(t *testing.T, path, secret string, n int) *upload {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	u := &upload{t, conn, bufio.NewReader(conn)}
	u.send(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", path, secret, n))
	return u
}

func (u *upload) send(s string) {
	u.t.Helper()
	if _, err := io.WriteString(u.conn, s); err != nil {
		u.t.Fatal(err)
	}
}

// answer reads the status and the body of the answer.
func (u *upload) answer() (int, string) {
	u.t.Helper()
	resp, err := http.ReadResponse(u.in, nil)
	if err != nil {
		u.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		u.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// A key that has reached its rates is refused after the headers of a request; the body is
// not read.
func TestHostile_KeyAtItsRates(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t)
	book, err := ledger.Open(context.Background(), d, ledger.Options{Accounts: holding{}})
	checktest.OK(t, err)
	t.Cleanup(func() { checktest.OK(t, book.Close()) })
	w := newWorld(t, func(_ *world, cfg *gatewayd.Config) { cfg.Ledger = book })
	w.model("lab/m", gatewaytest.Chat)
	key := func(scope gateway.KeyScope) string {
		k, err := book.CreateKey(t.Context(), account.DefaultTeam, gateway.CreateKeyParams{KeyScope: scope})
		checktest.OK(t, err)
		return k.Secret
	}
	w.up.On("hang", gatewaytest.Answer{Fault: gatewaytest.Fault{Kind: gatewaytest.HangInHead}})
	w.model("lab/hang", gatewaytest.Chat+":hang")
	for name, test := range map[string]struct {
		scope gateway.KeyScope
		model string
		says  string
	}{
		"Concurrency": {gateway.KeyScope{Concurrency: 1}, "lab/hang", "under way"},
		"Requests":    {gateway.KeyScope{RequestsPerMinute: 1}, "lab/m", "in a minute"},
	} {
		t.Run(name, func(t *testing.T) {
			secret := key(test.scope)
			body := `{"model":"` + test.model + `","messages":[{"role":"user","content":"Hi"}]}`
			first := w.upload(t, "/v1/chat/completions", secret, len(body))
			first.send(body)
			if test.model == "lab/hang" {
				w.up.Await(t, "hang", 1)
			} else if status, answer := first.answer(); status != http.StatusOK {
				t.Fatalf("the first: %d %s", status, answer)
			}
			for _, d := range dialects {
				status, answer := w.upload(t, d.path, secret, 30<<20).answer()
				if status != http.StatusTooManyRequests || !strings.Contains(answer, d.wrong) || !strings.Contains(answer, test.says) {
					t.Errorf("%s: %d %s", d.name, status, answer)
				}
			}
		})
	}
}

// The gateway stops waiting for a body that does not arrive.
func TestHostile_SlowUpload(t *testing.T) {
	t.Parallel()
	for _, d := range dialects {
		for _, sent := range []int{0, 10, 1<<20 + 10} {
			t.Run(fmt.Sprintf("%s/%d", d.name, sent), func(t *testing.T) {
				t.Parallel()
				patiently(t, 100*time.Millisecond, func(wait time.Duration) bool {
					w := newWorld(t, func(_ *world, cfg *gatewayd.Config) { cfg.BodyTime = wait })
					u := w.upload(t, d.path, secret, 2<<20)
					_, err := io.WriteString(u.conn, strings.Repeat(" ", sent))
					if err == nil {
						_, err = u.in.Peek(1)
					}
					if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
						return false // cut off before the first part was sent
					}
					checktest.OK(t, err)
					status, body := u.answer()
					if !strings.Contains(body, d.wrong) || !strings.Contains(body, "did not come in time") || status < 400 {
						t.Errorf("after %d bytes: %d %s", sent, status, body)
					}
					if r := w.record(1); r.Status != gateway.Refused || r.ErrorKind != string(hub.Timeout) {
						t.Errorf("the record says %s, %s", r.Status, r.ErrorKind)
					}
					return true
				})
			})
		}
	}
}

// Large requests share a fixed number of bytes, of which one caller may use half.
// Requests beyond that wait for a while and are refused; small requests are unaffected.
func TestHostile_Room(t *testing.T) {
	t.Parallel()
	const most = 1 << 20
	w := newWorld(t, func(w *world, cfg *gatewayd.Config) {
		cfg.Ledger = callers{w.ledger}
		cfg.MaxBody, cfg.Bodies, cfg.RoomTime = most, 1, 300*time.Millisecond
	})
	w.model("lab/m", gatewaytest.Chat)
	w.model("lab/hang", gatewaytest.Chat+":hang")
	w.up.On("hang", gatewaytest.Answer{Fault: gatewaytest.Fault{Kind: gatewaytest.HangInHead}})
	padded := func(model string) string {
		s := `{"model":"` + model + `","messages":[{"role":"user","content":"Hi"}]}`
		return s + strings.Repeat(" ", most-len(s))
	}
	held := 0
	hold := func(secret string) *upload { // takes nearly half of the room
		u := w.upload(t, "/v1/chat/completions", secret, most)
		u.send(padded("lab/hang"))
		held++
		w.up.Await(t, "hang", held)
		return u
	}
	full := func(d dialect, secret string) (int, string) { return w.upload(t, d.path, secret, most).answer() }
	a := hold("a")
	for _, d := range dialects {
		if status, body := full(d, "a"); status != http.StatusTooManyRequests || !strings.Contains(body, d.wrong) {
			t.Errorf("%s of the same caller: %d %s", d.name, status, body)
		}
	}
	b := hold("b")
	for _, d := range dialects {
		s := map[string]int{"messages": 529}[d.name]
		if s == 0 {
			s = http.StatusServiceUnavailable
		}
		if status, body := full(d, "c"); status != s || !strings.Contains(body, d.wrong) || !strings.Contains(body, "no room") {
			t.Errorf("%s of another caller: %d %s", d.name, status, body)
		}
	}
	if status, body, _ := w.chat("lab/m", ""); status != http.StatusOK {
		t.Errorf("a small one: %d %s", status, body)
	}
	a.conn.Close() // closing the connection releases its bytes
	b.conn.Close()
	w.record(2*len(dialects) + 3)
	u := w.upload(t, "/v1/chat/completions", "c", most)
	u.send(padded("lab/m"))
	if status, body := u.answer(); status != http.StatusOK {
		t.Errorf("when there is room again: %d %s", status, body)
	}
}

// A client that reads nothing of its answer is disconnected, the provider's call is
// canceled, and the output until then is charged.
func TestHostile_SlowReader(t *testing.T) {
	t.Parallel()
	for _, through := range []string{gatewaytest.Chat, gatewaytest.Messages} {
		t.Run(through, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(_ *world, cfg *gatewayd.Config) { cfg.Stall = 300 * time.Millisecond })
			w.model("lab/m", through+":much")
			f := gatewaytest.Reply{Text: "lots"}.Render(through, "much")
			at := slices.IndexFunc(f.Chunks, func(c []byte) bool { return bytes.Contains(c, []byte(`"lots"`)) })
			large := bytes.Replace(f.Chunks[at], []byte(`"lots"`), []byte(`"`+strings.Repeat("a lot ", 10_000)+`"`), 1)
			f.Chunks = slices.Insert(f.Chunks, at, slices.Repeat([][]byte{large}, 300)...) // more than the buffers between them can hold
			w.up.On("much", gatewaytest.Answer{Fixture: &f})
			const body = `{"model":"lab/m","stream":true,"messages":[{"role":"user","content":"Hi"}]}`
			u := w.upload(t, "/v1/chat/completions", secret, len(body))
			checktest.OK(t, u.conn.(*net.TCPConn).SetReadBuffer(4<<10))
			u.send(body)
			r := w.record(1)
			if r.Status != gateway.Cancelled || r.Cost == nil || *r.Cost <= price.Output*1000 || !r.Tokens.Estimated {
				t.Errorf("the record says %s, cost %v, %+v", r.Status, r.Cost, r.Tokens)
			}
			if !w.up.Of("much")[0].Canceled(t) {
				t.Error("the provider has sent all of it")
			}
		})
	}
}

// While a provider is silent, the client gets its format's keep-alive, which is no part
// of the answer.
func TestKeepAlive(t *testing.T) {
	t.Parallel()
	for _, d := range dialects {
		for _, through := range []string{gatewaytest.Chat, gatewaytest.Messages, gatewaytest.Gemini, gatewaytest.Converse, gatewaytest.Responses} {
			t.Run(d.name+"/"+through, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, func(_ *world, cfg *gatewayd.Config) { cfg.KeepAlive = 20 * time.Millisecond })
				w.model("lab/m", through+":hang")
				w.up.On("hang", gatewaytest.Answer{Reply: gatewaytest.Reply{Text: "Hello"}, Fault: gatewaytest.Fault{Kind: gatewaytest.HangInStream, After: 1}})
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				resp, err := w.client.Do(w.request(ctx, d, "lab/m", true))
				checktest.OK(t, err)
				defer resp.Body.Close()
				lines := bufio.NewScanner(resp.Body)
				for n := 0; n < 3 && lines.Scan(); {
					if line := lines.Text(); strings.HasPrefix(line, ":") || line == "event: ping" || line == `data: {"type":"ping"}` && d.name == "aisdk" {
						n++
					}
				}
				if err := lines.Err(); err != nil {
					t.Fatal(err)
				}
				leave()
				if r := w.record(1); r.Status != gateway.Cancelled {
					t.Errorf("the record says %s: %s", r.Status, r.Error)
				}
			})
		}
	}
}

// A provider that falls silent during a stream is canceled after its own Idle, even if
// its FirstByte and the client's limits are much longer.
func TestIdle(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(_ *world, cfg *gatewayd.Config) { cfg.KeepAlive = time.Hour })
	p := w.provider("silent", gatewaytest.Chat, w.up.URL)
	p.FirstByte, p.Idle = time.Hour, time.Second
	w.add(p)
	w.model("lab/m", "silent:hang")
	w.up.On("hang", gatewaytest.Answer{Reply: gatewaytest.Reply{Text: "Hello"}, Fault: gatewaytest.Fault{Kind: gatewaytest.HangInStream, After: 1}})
	ctx, leave := context.WithTimeout(t.Context(), time.Minute)
	defer leave()
	resp, err := w.client.Do(w.request(ctx, dialects[0], "lab/m", true))
	checktest.OK(t, err)
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	if r := w.record(1); r.Status != gateway.Failed || hub.ErrorKind(r.ErrorKind) != hub.Timeout {
		t.Errorf("the record says %s, %s: %s", r.Status, r.ErrorKind, r.Error)
	}
}

// A client gets keep-alives after a while, before any provider has begun to answer, and
// still another provider can answer: the keep-alives do not count as content. If no
// provider answers, the error is in the stream.
func TestKeepAlive_BeforeAnAnswer(t *testing.T) {
	t.Parallel()
	for _, d := range dialects {
		for _, then := range []string{"text", "fails"} {
			t.Run(d.name+"/"+then, func(t *testing.T) {
				t.Parallel()
				patiently(t, 300*time.Millisecond, func(wait time.Duration) bool {
					w := newWorld(t, func(_ *world, cfg *gatewayd.Config) { cfg.KeepAlive = 10 * time.Millisecond })
					silent := w.provider("silent", gatewaytest.Chat, w.up.URL)
					silent.FirstByte = wait
					w.add(silent, w.provider("second", d.through(), w.up.URL))
					w.up.On("hang", gatewaytest.Answer{Fault: gatewaytest.Fault{Kind: gatewaytest.HangInHead}})
					w.up.On("fails", gatewaytest.Answer{Fault: gatewaytest.Fault{Kind: gatewaytest.Rejected}})
					w.model("lab/m", "silent:hang", "second:"+then)
					status, body, head := w.ask(d, "lab/m", true)
					r := w.record(1)
					if !strings.HasPrefix(body, ": keep-alive\n\n: keep-alive\n\n") {
						return false // the provider was given up before two keep-alives were due
					}
					if status != http.StatusOK || r.HTTPStatus != http.StatusOK || head.Get("Content-Type") != "text/event-stream" || head.Get("X-Ratelimit-Limit-Requests") != "100" {
						t.Fatalf("%d, in the record %d, %v: %.300s", status, r.HTTPStatus, head, body)
					}
					want, ends := gateway.Succeeded, d.ends
					if then == "fails" {
						want, ends = gateway.Failed, d.fails
					}
					if r.Status != want || len(r.Attempts) != 2 || !strings.Contains(body, ends) {
						t.Errorf("%s after %s, and the stream is %s", r.Status, asked(r), body)
					}
					// An unstreamed answer has no keep-alives.
					silent.FirstByte = 100 * time.Millisecond
					if status, body, _ := w.ask(d, "lab/m", false); (status == http.StatusOK) != (then == "text") || strings.Contains(body, "keep-alive") {
						t.Errorf("whole: %d %s", status, body)
					}
					return true
				})
			})
		}
	}
}

// through returns a format for a dialect's provider: the dialect's own, if possible.
func (d dialect) through() string {
	if d.name == "aisdk" {
		return gatewaytest.Chat
	}
	return d.name
}
