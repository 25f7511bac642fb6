package vercelsandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coder/websocket"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/sandbox"
)

// hangUpPatience is how long a command may take to end after SIGHUP, and then
// after SIGKILL.
const hangUpPatience = 10 * time.Second

// handleInteractive answers with the URL and the ticket with which a terminal of
// the session can be opened: the URL is a WebSocket at the same path.
func (h *handler) handleInteractive(w http.ResponseWriter, r *http.Request) error {
	o, err := ownerOf(r)
	if err != nil {
		return err
	}
	s, err := h.Sandboxes.GetSession(r.Context(), o.ref)
	if err != nil {
		return err
	}
	switch s.Status {
	case sandbox.Stopping, sandbox.Stopped, sandbox.Failed, sandbox.Hibernated:
		return cay.Errorf(cay.Stopped, "session %q has ended", o.ref)
	}
	p, _ := api.PrincipalFrom(r.Context())
	token, err := h.issueTicket(o.ref, p)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, struct {
		URL   string `json:"url"`
		Token string `json:"token"`
	}{h.socketURL(r), token})
}

// socketURL is the WebSocket's URL at a request's path.
func (h *handler) socketURL(r *http.Request) string {
	return "ws" + strings.TrimPrefix(h.address(r), "http") + r.URL.EscapedPath()
}

// handleTerminal runs a command on a terminal over a WebSocket; the first
// message names the command. The command ends with the connection.
func (h *handler) handleTerminal(w http.ResponseWriter, r *http.Request) error {
	o, err := ownerOf(r)
	if err != nil {
		return err
	}
	tk, err := h.takeTicket(r.URL.Query().Get("token"), o.ref)
	if err != nil {
		return err
	}
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return nil // Accept has answered
	}
	defer conn.CloseNow() // a no-op after the closing handshake
	defer h.terminals.add(tk.Session)()
	ctx, cancel := context.WithCancel(api.WithPrincipal(r.Context(), tk.Principal))
	defer cancel()

	t := &terminal{Socket: api.NewSocket(conn), conn: conn, svc: h.Sandboxes, session: tk.Session}
	p, err := t.awaitStart(ctx)
	if err != nil {
		conn.Close(websocket.StatusPolicyViolation, err.Error())
		return nil
	}
	out, err := h.Sandboxes.Exec(ctx, t.session, p)
	if err != nil {
		t.fail(ctx, err)
		return nil
	}
	defer out.Close() // it is at its end, or given up
	t.run(ctx, cancel, out)
	return nil
}

// terminal is one WebSocket with the command that runs on it.
type terminal struct {
	*api.Socket
	conn    *websocket.Conn
	svc     Sandboxes
	session string
	command string // its id
}

// message is a text message: a client's start or resize, or our exit.
type message struct {
	Type    string   `json:"type"`
	Command string   `json:"command,omitempty"`
	Args    []string `json:"args,omitempty"`
	Env     []string `json:"env,omitempty"` // "K=V"
	Cwd     string   `json:"cwd,omitempty"`
	Cols    int      `json:"cols,omitempty"`
	Rows    int      `json:"rows,omitempty"`
	Code    *int     `json:"code,omitempty"`
}

var errNoStart = errors.New(`the first message must be {"type":"start","command":"sh",...}`)

// awaitStart reads the client's first message.
func (t *terminal) awaitStart(ctx context.Context) (sandbox.CommandParams, error) {
	ctx, cancel := context.WithTimeout(ctx, api.StallTimeout)
	defer cancel()
	kind, b, err := t.conn.Read(ctx)
	if err != nil {
		return sandbox.CommandParams{}, errNoStart
	}
	var m message
	if kind != websocket.MessageText || json.Unmarshal(b, &m) != nil || m.Type != "start" {
		return sandbox.CommandParams{}, errNoStart
	}
	size, err := m.window()
	p := sandbox.CommandParams{Argv: append([]string{m.Command}, m.Args...), Env: map[string]string{}, WorkDir: m.Cwd, PTY: &size}
	for i, kv := range m.Env {
		k, v, ok := strings.Cut(kv, "=")
		if !ok {
			return p, fmt.Errorf("env[%d] is not NAME=VALUE", i)
		}
		p.Env[k] = v
	}
	return p, err
}

// window returns the window size of a message. Clients without a terminal omit
// the size, or send zeros.
func (m message) window() (sandbox.WindowSize, error) {
	if m.Cols == 0 || m.Rows == 0 {
		return sandbox.WindowSize{Cols: 80, Rows: 24}, nil
	}
	const most = 10000
	if m.Cols < 0 || m.Cols > most || m.Rows < 0 || m.Rows > most {
		return sandbox.WindowSize{}, fmt.Errorf("window size %dx%d is not within 1 to %d", m.Cols, m.Rows, most)
	}
	return sandbox.WindowSize{Cols: uint16(m.Cols), Rows: uint16(m.Rows)}, nil
}

// run connects the client with the command until both have ended. The end of the
// connection hangs the terminal up; if the command still does not end, giveUp
// ends ctx.
func (t *terminal) run(ctx context.Context, giveUp context.CancelFunc, out sandbox.Output) {
	first, err := out.Next()
	if err != nil {
		t.fail(ctx, err)
		return
	}
	t.command = first.Command.ID
	left, over := make(chan struct{}), make(chan struct{}) // the client; the command
	leave := sync.OnceFunc(func() {
		close(left)
		t.conn.CloseNow()
	})
	var helpers sync.WaitGroup
	helpers.Go(func() {
		t.Input(ctx, t.typeIn, t.control)
		leave()
	})
	helpers.Go(func() {
		t.Ping(ctx)
		leave()
	})
	helpers.Go(func() {
		select {
		case <-left:
			t.hangUp(ctx, over)
			giveUp()
		case <-over:
		}
	})
	exit, err := t.show(ctx, out, leave)
	close(over)
	if err != nil {
		t.fail(ctx, err)
	} else {
		t.exit(ctx, exit.Code)
	}
	giveUp()
	helpers.Wait()
}

// show sends the command's output until the command has exited. When the client
// stops reading, the rest is dropped.
func (t *terminal) show(ctx context.Context, out sandbox.Output, leave func()) (*sandbox.Exit, error) {
	for gone := false; ; {
		e, err := out.Next()
		if err != nil {
			return nil, err
		}
		if e.Exit != nil {
			return e.Exit, nil
		}
		if e.Truncated {
			e.Data = []byte("\r\n[cay: output was lost]\r\n")
		}
		if len(e.Data) > 0 && !gone && t.Show(ctx, e.Data) != nil {
			gone = true
			leave()
		}
	}
}

func (t *terminal) typeIn(ctx context.Context, typed io.Reader) error {
	return t.svc.WriteStdin(ctx, t.session, t.command, typed, false)
}

func (t *terminal) control(ctx context.Context, b []byte) error {
	var m message
	if json.Unmarshal(b, &m) != nil || m.Type != "resize" {
		return errors.New(`a text message must be {"type":"resize","cols":80,"rows":24}`)
	}
	size, err := m.window()
	if err != nil {
		return err
	}
	if err := t.svc.Resize(ctx, t.session, t.command, size); cay.CodeOf(err) == cay.Invalid {
		return err
	}
	return nil // exited meanwhile, which is shown
}

// hangUp ends the command, which has lost its terminal. It returns when the
// command has exited, or does not react. If a signal cannot be sent, the command
// or its sandbox has ended.
func (t *terminal) hangUp(ctx context.Context, over <-chan struct{}) {
	_ = t.svc.Signal(ctx, t.session, t.command, sandbox.Signal(syscall.SIGHUP))
	_ = t.svc.Signal(ctx, t.session, t.command, sandbox.Signal(syscall.SIGCONT)) // a stopped one sees the other then
	select {
	case <-over:
		return
	case <-time.After(hangUpPatience):
	}
	_ = t.svc.Signal(ctx, t.session, t.command, sandbox.Signal(syscall.SIGKILL))
	select {
	case <-over:
	case <-time.After(hangUpPatience):
	}
}

// fail shows why the command has ended. The client takes a close without an exit
// for success.
func (t *terminal) fail(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return // nobody is there
	}
	public := api.Public(ctx, err)
	_, body := shapeOf(err, public)
	code := 1
	if public.Code == cay.ExecutableMissing {
		code = 127 // as of a shell
	}
	if t.Show(ctx, fmt.Appendf(nil, "%s\r\n", body.Message)) == nil {
		t.exit(ctx, code)
	}
}

// exit sends the command's exit code and closes the connection.
func (t *terminal) exit(ctx context.Context, code int) {
	b, err := json.Marshal(message{Type: "exit", Code: &code})
	if err == nil && t.Say(ctx, b) == nil {
		t.conn.Close(websocket.StatusNormalClosure, "") // closed in any case
	}
}
