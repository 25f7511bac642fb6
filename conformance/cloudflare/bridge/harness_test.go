package bridge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cayhq/cay/internal/compat/cloudflare"
	"github.com/cayhq/cay/internal/testenv"
)

// patience is how long an event may take to come, on a busy machine.
const patience = time.Minute

// world is a daemon with its bridge.
type world struct {
	*testenv.Env
	base string // URL of the bridge
}

func open(t *testing.T) *world {
	t.Helper()
	env := testenv.Start(t)
	return &world{env, env.URL + cloudflare.Prefix}
}

// answer is an answer of the bridge.
type answer struct {
	status int
	header http.Header
	body   string
}

// at returns a member of the answer's object.
func (a answer) at(name string) any {
	var v map[string]any
	if json.Unmarshal([]byte(a.body), &v) != nil {
		return nil
	}
	return v[name]
}

func (w *world) request(t *testing.T, ctx context.Context, token, method, path, body string, header ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, w.base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// as makes a request of a token.
func (w *world) as(t *testing.T, token, method, path, body string, header ...string) answer {
	t.Helper()
	resp := w.request(t, t.Context(), token, method, path, body, header...)
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(b)}
}

// do makes a request with the daemon's token.
func (w *world) do(t *testing.T, method, path, body string, header ...string) answer {
	t.Helper()
	return w.as(t, w.Token, method, path, body, header...)
}

// want is do for an answer of a certain status whose text has a part.
func (w *world) want(t *testing.T, status int, part, method, path, body string, header ...string) answer {
	t.Helper()
	a := w.do(t, method, path, body, header...)
	if a.status != status || !strings.Contains(a.body, part) {
		t.Errorf("%s %s: %d %s, want %d %q", method, path, a.status, a.body, status, part)
	}
	if a.status >= 400 && (a.at("error") == nil || a.at("code") == nil) {
		t.Errorf("%s %s: an error of another shape: %s", method, path, a.body)
	}
	return a
}

// box makes a sandbox, which is deleted with the test, and returns the path of its routes.
func (w *world) box(t *testing.T) string {
	t.Helper()
	id, _ := w.want(t, 200, "id", "POST", "/v1/sandbox", "").at("id").(string)
	if len(id) != 26 {
		t.Fatalf("the id %q", id)
	}
	box := "/v1/sandbox/" + id
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if resp := w.request(t, ctx, w.Token, "DELETE", box, ""); resp.StatusCode != 204 {
			t.Errorf("delete: %s", resp.Status)
		}
	})
	return box
}

// result is what an exec streams; last is its last event.
type result struct{ stdout, stderr, last string }

func readEvents(t *testing.T, r io.Reader) (out result) {
	t.Helper()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	event := ""
	for lines.Scan() {
		line := lines.Text()
		if name, ok := strings.CutPrefix(line, "event: "); ok {
			event = name
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		b, _ := base64.StdEncoding.DecodeString(data)
		switch event {
		case "stdout":
			out.stdout += string(b)
		case "stderr":
			out.stderr += string(b)
		default:
			out.last += event + " " + data
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

func argv(t *testing.T, args ...string) string {
	t.Helper()
	b, err := json.Marshal(map[string]any{"argv": args})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// exec runs a command.
func (w *world) exec(t *testing.T, box, body string, header ...string) result {
	t.Helper()
	a := w.do(t, "POST", box+"/exec", body, header...)
	if a.status != 200 || a.header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("exec: %d %s %s", a.status, a.header.Get("Content-Type"), a.body)
	}
	return readEvents(t, strings.NewReader(a.body))
}

// sh runs a script, in a session unless that is "", and returns its result.
func (w *world) sh(t *testing.T, box, session, script string) result {
	t.Helper()
	if session != "" {
		return w.exec(t, box, argv(t, "/bin/sh", "-c", script), "Session-Id", session)
	}
	return w.exec(t, box, argv(t, "/bin/sh", "-c", script))
}

// is compares a result with one that exits.
func (r result) is(t *testing.T, stdout, stderr, code string) {
	t.Helper()
	if want := (result{stdout, stderr, `exit {"exit_code":` + code + `}`}); r != want {
		t.Errorf("got %+v, want %+v", r, want)
	}
}

// tty is a client's end of a terminal.
type tty struct {
	t     *testing.T
	ctx   context.Context
	conn  *websocket.Conn
	seen  []byte   // shown, and not asked for yet
	texts []string // text messages
}

// dial opens a terminal, at a path of the bridge.
func (w *world) dial(t *testing.T, path string) *tty {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	conn, _, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(w.base, "http")+path,
		&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + w.Token}}})
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(1 << 20)
	t.Cleanup(func() { conn.CloseNow() })
	return &tty{t: t, ctx: ctx, conn: conn}
}

func (c *tty) send(kind websocket.MessageType, s string) {
	c.t.Helper()
	if err := c.conn.Write(c.ctx, kind, []byte(s)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *tty) typed(s string) { c.send(websocket.MessageBinary, s) }
func (c *tty) say(s string)   { c.send(websocket.MessageText, s) }

// read reads one message. It returns false at the end.
func (c *tty) read() bool {
	kind, b, err := c.conn.Read(c.ctx)
	if err != nil {
		return false
	}
	if kind == websocket.MessageText {
		c.texts = append(c.texts, string(b))
	} else {
		c.seen = append(c.seen, b...)
	}
	return true
}

// until reads until the terminal has shown s.
func (c *tty) until(s string) {
	c.t.Helper()
	for {
		if i := bytes.Index(c.seen, []byte(s)); i >= 0 {
			c.seen = c.seen[i+len(s):]
			return
		}
		if !c.read() {
			c.t.Fatalf("the end came before %q: %q %q", s, c.seen, c.texts)
		}
	}
}

// text returns the next text message.
func (c *tty) text() string {
	c.t.Helper()
	for len(c.texts) == 0 {
		if !c.read() {
			c.t.Fatalf("no text message: %q", c.seen)
		}
	}
	s := c.texts[0]
	c.texts = c.texts[1:]
	return s
}
