package vercelsandbox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/cayhq/cay/sandbox"
)

// tty is a client's end of a terminal.
type tty struct {
	w    *work
	conn *websocket.Conn
	seen []byte // shown, and not asked for yet
}

// interactive requests a terminal, and returns its URL with the token in it.
func (w *work) interactive() string {
	w.t.Helper()
	_, got := w.do("POST", w.of("/interactive"), "{}")
	var a struct{ URL, Token string }
	if err := json.Unmarshal([]byte(got), &a); err != nil || a.URL != "ws"+strings.TrimPrefix(w.url, "http")+w.of("/interactive") || a.Token == "" {
		w.t.Fatalf("got %s, %v", got, err)
	}
	return a.URL + "?token=" + url.QueryEscape(a.Token)
}

func (w *work) dial(u string) (*tty, int) {
	w.t.Helper()
	conn, resp, err := websocket.Dial(w.t.Context(), u, &websocket.DialOptions{HTTPClient: w.client})
	if err != nil {
		if resp == nil {
			w.t.Fatal(err)
		}
		return nil, resp.StatusCode
	}
	conn.SetReadLimit(1 << 20)
	w.t.Cleanup(func() { conn.CloseNow() })
	return &tty{w: w, conn: conn}, 101
}

// terminal opens a terminal and starts a command on it.
func (w *work) terminal(start string) *tty {
	w.t.Helper()
	c, status := w.dial(w.interactive())
	if c == nil {
		w.t.Fatalf("status %d", status)
	}
	c.say(start)
	return c
}

func (w *work) shellOn(script, more string) *tty {
	w.t.Helper()
	return w.terminal(`{"type":"start",` + strings.TrimPrefix(shell(script, more), "{"))
}

func (c *tty) say(s string)   { c.send(websocket.MessageText, s) }
func (c *tty) typed(s string) { c.send(websocket.MessageBinary, s) }

func (c *tty) send(kind websocket.MessageType, s string) {
	c.w.t.Helper()
	if err := c.conn.Write(c.w.t.Context(), kind, []byte(s)); err != nil {
		c.w.t.Fatal(err)
	}
}

// until reads until the terminal shows s.
func (c *tty) until(s string) {
	c.w.t.Helper()
	for {
		if i := bytes.Index(c.seen, []byte(s)); i >= 0 {
			c.seen = c.seen[i+len(s):]
			return
		}
		kind, b, err := c.conn.Read(c.w.t.Context())
		if err != nil || kind != websocket.MessageBinary {
			c.w.t.Fatalf("waiting for %q after %q: %v %q, %v", s, c.seen, kind, b, err)
		}
		c.seen = append(c.seen, b...)
	}
}

// exit reads to the end and returns the exit code.
func (c *tty) exit() int {
	c.w.t.Helper()
	for {
		kind, b, err := c.conn.Read(c.w.t.Context())
		if err != nil {
			c.w.t.Fatalf("no exit: %v", err)
		}
		if kind == websocket.MessageBinary {
			c.seen = append(c.seen, b...)
			continue
		}
		var m struct {
			Type string
			Code *int
		}
		if err := json.Unmarshal(b, &m); err != nil || m.Type != "exit" || m.Code == nil {
			c.w.t.Fatalf("%s: %v", b, err)
		}
		if _, _, err := c.conn.Read(c.w.t.Context()); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
			c.w.t.Errorf("after the exit: %v", err)
		}
		return *m.Code
	}
}

// ended waits until the commands of the sandbox have exited, and returns the
// newest.
func (w *work) ended() sandbox.Command {
	w.t.Helper()
	all, err := w.ListCommands(w.ctx, w.sandbox.ID)
	if err != nil {
		w.t.Fatal(err)
	}
	for i := range all {
		c, err := w.Wait(w.ctx, w.sandbox.ID, all[i].ID)
		if err != nil {
			w.t.Fatal(err)
		}
		all[i] = *c
	}
	return all[0]
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	w := startWork(t)
	w.want("POST", w.of("/fs/mkdir"), `{"path":"sub"}`, "{}")
	c := w.shellOn(`stty size; echo "$A|$TERM|${PWD##*/}"; stty -echo; echo ready; read x; echo "got $x"; stty size; read x; exit 7`,
		`,"env":["A=b=c","TERM=vt100"],"cwd":"/w/sub","cols":100,"rows":30`)
	c.until("30 100\r\n")
	c.until("b=c|vt100|sub\r\n")
	c.until("ready\r\n")
	c.say(`{"type":"resize","cols":90,"rows":20}`)
	c.typed("hé")
	c.typed("llo\r")
	c.until("got héllo\r\n")
	c.until("20 90\r\n")
	if n := w.terminals(); n != 1 {
		t.Errorf("%d terminals are open", n)
	}
	c.typed("\r")
	if code := c.exit(); code != 7 {
		t.Errorf("exit code %d", code)
	}
	if cmd := w.ended(); !cmd.PTY || cmd.Exit.Code != 7 {
		t.Errorf("got %+v", cmd)
	}
}

// Without a size, and with the zero size of a client without a terminal, the size is
// 80x24.
func TestTerminal_Size(t *testing.T) {
	t.Parallel()
	w := startWork(t)
	for _, more := range []string{"", `,"cols":0,"rows":0`, `,"cols":100`} {
		c := w.shellOn("stty size", more)
		c.until("24 80\r\n")
		if code := c.exit(); code != 0 {
			t.Errorf("%s: exit code %d", more, code)
		}
	}
}

func TestTerminal_URL(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequest("POST", "http://127.0.0.1:7070/api/v2/sandboxes/sessions/ses_1/interactive", nil)
	tls := httptest.NewRequest("POST", "https://vercel.com/v2/x", nil)
	for _, c := range []struct {
		public string
		r      *http.Request
		want   string
	}{
		{"", r, "ws://127.0.0.1:7070/api/v2/sandboxes/sessions/ses_1/interactive"},
		{"", tls, "wss://vercel.com/v2/x"},
		{"https://cay.example.com", tls, "wss://cay.example.com/v2/x"},
		{"http://cay.example.com:81", tls, "ws://cay.example.com:81/v2/x"},
	} {
		if got := (&handler{Config: Config{PublicURL: c.public}}).socketURL(c.r); got != c.want {
			t.Errorf("%q: got %s, want %s", c.public, got, c.want)
		}
	}
}

func TestTerminal_Tickets(t *testing.T) {
	t.Parallel()
	w := startWork(t)
	good := w.interactive()
	other := strings.Replace(good, w.sandbox.SessionID, "ses_00000000000000000000", 1)
	for name, u := range map[string]string{"another session": other, "no token": w.url + w.of("/interactive"), "forged": w.url + w.of("/interactive?token=x")} {
		if _, status := w.dial(u); status != http.StatusUnauthorized {
			t.Errorf("%s: %d", name, status)
		}
	}
	c, _ := w.dial(good)
	if c == nil {
		t.Fatal("refused")
	}
	if _, status := w.dial(good); status != http.StatusUnauthorized {
		t.Errorf("once more: %d", status)
	}
	w.refused("POST", w.of("/interactive"), "{}", 404, "not_found", "Authorization", "Bearer tok_b1")
	// A page of another origin cannot use a ticket, either.
	_, resp, err := websocket.Dial(t.Context(), w.interactive(), &websocket.DialOptions{HTTPClient: w.client, HTTPHeader: http.Header{"Origin": {"https://evil.example"}}})
	if err == nil || resp == nil || resp.StatusCode != http.StatusForbidden {
		t.Errorf("another origin: %v, %v", resp, err)
	}
}

// If a command cannot be started, the terminal shows why: a client takes a mere close for
// success.
func TestTerminal_Failures(t *testing.T) {
	t.Parallel()
	w := startWork(t)
	for name, c := range map[string]struct {
		start, says string
		code        int
	}{
		"NoProgram":  {`{"type":"start","command":"no-such-program"}`, `"no-such-program" not found`, 127},
		"NoCommand":  {`{"type":"start"}`, "argv", 1},
		"NoDir":      {`{"type":"start","command":"sh","cwd":"/nowhere"}`, "/nowhere", 1},
		"BadEnvName": {`{"type":"start","command":"sh","env":["=x"]}`, "env", 1},
	} {
		tt := w.terminal(c.start)
		if code := tt.exit(); code != c.code || !strings.Contains(string(tt.seen), c.says) {
			t.Errorf("%s: %d %q", name, code, tt.seen)
		}
	}
	for name, send := range map[string]func(c *tty){
		"NotJSON":   func(c *tty) { c.say("x") },
		"Binary":    func(c *tty) { c.typed("x") },
		"NotStart":  func(c *tty) { c.say(`{"type":"resize","cols":1,"rows":1}`) },
		"BadEnv":    func(c *tty) { c.say(`{"type":"start","command":"sh","env":["x"]}`) },
		"BadSize":   func(c *tty) { c.say(`{"type":"start","command":"sh","cols":-1,"rows":1}`) },
		"LargeSize": func(c *tty) { c.say(`{"type":"start","command":"sh","cols":10001,"rows":1}`) },
		"BadResize": func(c *tty) {
			c.say(`{"type":"start","command":"cat"}`)
			c.say(`{"type":"resize","cols":10001,"rows":1}`)
		},
		"UnknownType": func(c *tty) { c.say(`{"type":"start","command":"cat"}`); c.say(`{"type":"x"}`) },
	} {
		c, _ := w.dial(w.interactive())
		send(c)
		for {
			_, _, err := c.conn.Read(t.Context())
			if err == nil {
				continue
			}
			if got := websocket.CloseStatus(err); got != websocket.StatusPolicyViolation {
				t.Errorf("%s: %v", name, err)
			}
			break
		}
	}
	c, _ := w.dial(w.interactive())
	c.send(websocket.MessageText, `{"type":"start","command":"`+strings.Repeat("x", 300<<10)+`"}`)
	if _, _, err := c.conn.Read(t.Context()); err == nil {
		t.Error("a message of 300 KiB was taken")
	}
	w.ended() // terminals of disconnected clients have been hung up
}

// A terminal whose connection is lost gets a hangup; a command that ignores it is killed.
func TestTerminal_HangUp(t *testing.T) {
	t.Parallel()
	w := startWork(t)
	c := w.shellOn("echo ready; sleep 1000", "")
	c.until("ready\r\n")
	c.conn.CloseNow()
	if cmd := w.ended(); cmd.Exit.Signal != 1 {
		t.Errorf("got %+v", cmd.Exit)
	}
	c = w.shellOn("echo ready; kill -STOP $$", "")
	c.until("ready\r\n")
	c.conn.CloseNow()
	if cmd := w.ended(); cmd.Exit.Signal != 1 {
		t.Errorf("stopped: got %+v", cmd.Exit)
	}
	c = w.shellOn("trap '' HUP; stty -echo; echo ready; while :; do read x || sleep 1; done", "")
	c.until("ready\r\n")
	c.conn.CloseNow()
	if cmd := w.ended(); cmd.Exit.Signal != 9 {
		t.Errorf("ignored: got %+v", cmd.Exit)
	}
}

// Each terminal has its own input and output.
func TestTerminal_Several(t *testing.T) {
	t.Parallel()
	w := startWork(t)
	var all []*tty
	for i := range 5 {
		c := w.shellOn(fmt.Sprintf("stty -echo; echo ready; read x; echo $x; exit %d", i), "")
		c.until("ready\r\n")
		all = append(all, c)
	}
	if n := w.terminals(); n != 5 {
		t.Errorf("%d terminals are open", n)
	}
	for i, c := range all {
		c.typed(fmt.Sprintf("to %d\r", i))
	}
	for i, c := range all {
		if code := c.exit(); code != i || string(c.seen) != fmt.Sprintf("to %d\r\n", i) {
			t.Errorf("%d: %d %q", i, code, c.seen)
		}
	}
}

// A client that reads slowly gets all output; a client that types faster than the command
// reads is slowed down, and noticed when it leaves.
func TestTerminal_Backpressure(t *testing.T) {
	t.Parallel()
	w := startWork(t)
	const lines = 200_000
	c := w.shellOn(fmt.Sprintf("stty -opost; seq -w %d; read x; exit 4", lines), "")
	c.until(fmt.Sprintf("%d\n", lines))
	c.typed("\r")
	if code := c.exit(); code != 4 {
		t.Errorf("exit code %d", code)
	}
	c = w.shellOn("stty raw -echo; echo ready; sleep 1000", "")
	c.until("ready")
	for range 16 {
		c.typed(strings.Repeat("x", 64<<10))
	}
	c.conn.CloseNow()
	if cmd := w.ended(); cmd.Exit.Signal != 1 && cmd.Exit.Signal != 9 {
		t.Errorf("got %+v", cmd.Exit)
	}
}

// The end of the session ends its terminals.
func TestTerminal_SessionEnds(t *testing.T) {
	t.Parallel()
	w := startWork(t)
	c := w.shellOn("echo ready; sleep 1000", "")
	c.until("ready\r\n")
	if _, err := w.Stop(w.ctx, w.sandbox.ID); err != nil {
		t.Fatal(err)
	}
	if code := c.exit(); code == 0 {
		t.Error("it looks like a success")
	}
}
