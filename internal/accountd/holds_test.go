package accountd_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/checktest"
)

// patience is how long an immediate event may take on a busy machine.
const patience = 2 * time.Minute

// endless is a stream that sends one line, and then nothing.
type endless struct {
	said bool
	ctx  context.Context
}

func (e *endless) Next() (string, error) {
	if !e.said {
		e.said = true
		return "open", nil
	}
	<-e.ctx.Done()
	return "", e.ctx.Err()
}

func (*endless) Close() error { return nil }

type texts struct{}

func (texts) Append(dst []byte, v string) ([]byte, error) {
	return append(append(dst, v...), '\n'), nil
}
func (texts) Held() bool                { return false }
func (texts) Release(dst []byte) []byte { return dst }
func (texts) AppendError(dst []byte, e *cay.Error) []byte {
	return append(append(dst, string(e.Code)+": "+e.Message...), '\n')
}

// watched is a server with a stream and a terminal that never end on their own.
func (b *bundle) watched(t *testing.T) *browser {
	t.Helper()
	w := b.browser(t)
	mux := api.NewMux(b.Engine)
	mux.Handle("GET /stream", func(w http.ResponseWriter, r *http.Request) error {
		return api.ServeLines(w, r, &endless{ctx: r.Context()}, texts{})
	})
	mux.Handle("GET /terminal", func(w http.ResponseWriter, r *http.Request) error {
		conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{api.TerminalProtocol}})
		if err != nil {
			return nil
		}
		defer conn.CloseNow()
		_, _, err = conn.Read(r.Context())
		return err
	})
	w.streams = serveMux(t, mux)
	return w
}

// follow opens the stream and returns the reason for its end.
func (b *browser) follow(secret string) <-chan string {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), "GET", b.streams+"/stream", nil)
	checktest.OK(b.t, err)
	if secret != "" {
		req.Header.Set("Authorization", "Bearer "+secret)
	} else {
		req.AddCookie(b.cookie)
		req.Header.Set(api.HeaderSessionKey, b.key)
	}
	resp, err := http.DefaultClient.Do(req)
	checktest.OK(b.t, err)
	b.t.Cleanup(func() { resp.Body.Close() })
	lines := bufio.NewReader(resp.Body)
	if first, err := lines.ReadString('\n'); err != nil || first != "open\n" {
		b.t.Fatalf("the stream begins with %q, %v", first, err)
	}
	end := make(chan string, 1)
	go func() {
		rest, err := io.ReadAll(lines)
		if err != nil {
			rest = append(rest, err.Error()...)
		}
		end <- string(rest)
	}()
	return end
}

// attach opens the terminal and returns the reason for its end.
func (b *browser) attach() <-chan error {
	b.t.Helper()
	conn, _, err := websocket.Dial(b.t.Context(), b.streams+"/terminal", &websocket.DialOptions{
		HTTPHeader:   http.Header{"Cookie": {"cay_session=" + b.cookie.Value}, "Origin": {b.streams}},
		Subprotocols: []string{api.TerminalProtocol, "cay.session." + b.key},
	})
	checktest.OK(b.t, err)
	b.t.Cleanup(func() { conn.CloseNow() })
	end := make(chan error, 1)
	go func() {
		_, _, err := conn.Read(context.Background())
		end <- err
	}()
	return end
}

func (b *browser) stillOpen(what string, end <-chan string) {
	b.t.Helper()
	select {
	case says := <-end:
		b.t.Errorf("%s has ended: %s", what, says)
	default:
	}
}

func (b *browser) ended(what string, end <-chan string, says string) {
	b.t.Helper()
	select {
	case got := <-end:
		got = strings.TrimLeft(got, "\n") // heartbeats
		if !strings.HasPrefix(got, "unauthenticated: ") || !strings.Contains(got, says) {
			b.t.Errorf("%s ends with %q, want an unauthenticated that says %q", what, got, says)
		}
	case <-time.After(patience):
		b.t.Fatalf("%s goes on", what)
	}
}

// Logging out ends the session's streams and terminals, and no others.
func TestHolds_LogOut(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.watched(t)
	other := *w
	for _, one := range []*browser{w, &other} {
		if status, says := one.login(`{"token":"` + b.secret(t) + `"}`); status != 200 {
			t.Fatal(says)
		}
	}
	mine, again, terminal := w.follow(""), w.follow(""), w.attach()
	theirs, token := other.follow(""), w.follow(b.secret(t))
	if got := w.status("POST", "/ui/logout", nil); got != 204 {
		t.Fatalf("logging out: %d", got)
	}
	w.ended("a stream", mine, "the login has ended")
	w.ended("another", again, "the login has ended")
	select {
	case err := <-terminal:
		if err == nil {
			t.Error("the terminal says something more")
		}
	case <-time.After(patience):
		t.Fatal("the terminal goes on")
	}
	other.stillOpen("the stream of another login", theirs)
	w.stillOpen("the stream of the token", token)
}

func TestHolds_Revoked(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.watched(t)
	admin := &account.Client{URL: w.url, Token: b.secret(t), HTTPClient: w.hc}
	token, err := admin.CreateToken(t.Context(), account.CreateTokenParams{})
	checktest.OK(t, err)
	jwt, err := admin.CreateToken(t.Context(), account.CreateTokenParams{JWT: true})
	checktest.OK(t, err)
	if status, says := w.login(`{"token":"` + token.Secret + `"}`); status != 200 {
		t.Fatal(says)
	}
	session, secret, signed, operator := w.follow(""), w.follow(token.Secret), w.follow(jwt.Secret), w.follow(b.secret(t))
	checktest.OK(t, admin.DeleteToken(t.Context(), token.ID))
	w.ended("the stream of a login by the token", session, "the login has ended")
	w.ended("the stream of the token", secret, "the token is not valid")
	w.stillOpen("the stream of another token", signed)
	checktest.OK(t, admin.DeleteToken(t.Context(), jwt.ID))
	w.ended("the stream of a JWT", signed, "the token is not valid")
	w.stillOpen("the operator's stream", operator)
}

func TestHolds_ProjectDeleted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.watched(t)
	admin := &account.Client{URL: w.url, Token: b.secret(t), HTTPClient: w.hc}
	project, err := admin.CreateProject(t.Context(), account.CreateProjectParams{Name: "short"})
	checktest.OK(t, err)
	token, err := admin.CreateToken(t.Context(), account.CreateTokenParams{ProjectID: project.ID})
	checktest.OK(t, err)
	end, operator := w.follow(token.Secret), w.follow(b.secret(t))
	checktest.OK(t, admin.DeleteProject(t.Context(), project.ID))
	w.ended("a stream of the project", end, "the token is not valid")
	w.stillOpen("the operator's stream", operator)
}

// Credentials that expire end their streams. A session stays open while it is used.
func TestHolds_Expires(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.watched(t)
	soon := b.Now().Add(10 * time.Second) // a login and two streams from now
	admin := &account.Client{URL: w.url, Token: b.secret(t), HTTPClient: w.hc}
	token, err := admin.CreateToken(t.Context(), account.CreateTokenParams{ExpiresAt: &soon})
	checktest.OK(t, err)
	end := w.follow(token.Secret)
	if status, says := w.login(`{"token":"` + token.Secret + `"}`); status != 200 {
		t.Fatal(says)
	}
	session, operator := w.follow(""), w.follow(b.secret(t))
	w.ended("a stream of a token that expires", end, "the token is not valid")
	w.stillOpen("that of a login, while its clock says it is good", session)
	b.Advance(time.Hour)
	w.ended("that of a login", session, "the login has ended")
	w.stillOpen("the operator's stream", operator)
}

// The session that is displaced by the 33rd one loses its streams.
func TestHolds_Displaced(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.watched(t)
	good := `{"token":"` + b.secret(t) + `"}`
	if status, says := w.login(good); status != 200 {
		t.Fatal(says)
	}
	first := w.follow("")
	b.Advance(time.Second)
	for range 31 {
		w.login(good)
	}
	last := w.follow("")
	w.stillOpen("the first of 32", first)
	b.Advance(time.Second)
	w.login(good)
	w.ended("the first of 33", first, "the login has ended")
	w.stillOpen("another of 33", last)
}

// Whether a request is admitted before or after its token ends, it does not outlive
// the token.
func TestHolds_Races(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	admin, err := b.Authenticate(ctx, b.secret(t))
	checktest.OK(t, err)
	actx := api.WithPrincipal(ctx, admin)
	for range 50 {
		token, err := b.CreateToken(actx, account.CreateTokenParams{})
		checktest.OK(t, err)
		p, err := b.Authenticate(ctx, token.Secret)
		checktest.OK(t, err)
		var done sync.WaitGroup
		done.Go(func() {
			if err := b.DeleteToken(actx, token.ID); err != nil {
				t.Error(err)
			}
		})
		for range 8 {
			done.Go(func() {
				held, release, err := b.Hold(ctx, p, api.Credential{Secret: token.Secret})
				if err != nil {
					if cay.CodeOf(err) != cay.Unauthenticated {
						t.Error(err)
					}
					return
				}
				defer release()
				select {
				case <-held.Done():
					if cay.CodeOf(context.Cause(held)) != cay.Unauthenticated {
						t.Errorf("it ends because of %v", context.Cause(held))
					}
				case <-time.After(patience):
					t.Error("it outlives its token")
				}
			})
		}
		done.Wait()
	}
}

// A link logs in once, even if several browsers use it at the same time.
func TestSession_LinkAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	admin, err := b.Authenticate(ctx, b.secret(t))
	checktest.OK(t, err)
	link, err := b.CreateLoginLink(api.WithPrincipal(ctx, admin))
	checktest.OK(t, err)
	const tries = 100
	var mu sync.Mutex
	codes := map[cay.Code]int{}
	var done sync.WaitGroup
	for i := range tries {
		done.Go(func() {
			_, _, err := b.LogIn(ctx, link.Code, "", "192.0.2."+string(rune('0'+i%10)))
			code := cay.CodeOf(err)
			if err == nil {
				code = ""
			}
			mu.Lock()
			defer mu.Unlock()
			codes[code]++
		})
	}
	done.Wait()
	if codes[""] != 1 || codes[cay.Unauthenticated] != tries-1 {
		t.Errorf("%d tries at once: %v, want one that is good and all others unauthenticated", tries, codes)
	}
}
