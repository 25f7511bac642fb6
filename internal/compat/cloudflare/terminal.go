package cloudflare

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/sandbox"
)

const (
	// maxReplay is how much of a session's terminal a client that connects is shown, in bytes.
	maxReplay = 256 << 10

	// maxWindow is the largest width and height of a terminal.
	maxWindow = 10000
)

// shellScript starts the shell of a terminal, in the directory of the session: $1 is the
// shell, "" for the best there is.
const shellScript = loadState + `if [ -n "$1" ]; then exec "$1"; fi
if command -v bash >/dev/null; then exec bash; fi
exec sh`

// terminalName is $0 of shellScript, by which terminals are found.
const terminalName = "cay-terminal"

// terminalArgv is the command of a terminal. Without a session the file is one that never
// exists.
func terminalArgv(session, shell string) []string {
	file := "/nonexistent"
	if session != "" {
		file = stateFile(session)
	}
	return []string{"/bin/sh", "-c", shellScript, terminalName, file, "", shell}
}

// isTerminal reports whether a command is the terminal of a session.
func isTerminal(c *sandbox.Command, session string) bool {
	return len(c.Argv) > 4 && c.Argv[3] == terminalName && c.Argv[4] == stateFile(session)
}

// terminalRequest is a request for a terminal.
type terminalRequest struct {
	session, shell string
	size           sandbox.WindowSize
}

// readTerminal reads a request. Errors: invalid.
func readTerminal(r *http.Request) (t terminalRequest, err error) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return t, cay.Errorf(cay.Invalid, "WebSocket upgrade required").WithHint("open it with a WebSocket client")
	}
	q := r.URL.Query()
	if t.size.Cols, err = windowParam(q, "cols", 80); err != nil {
		return t, err
	}
	if t.size.Rows, err = windowParam(q, "rows", 24); err != nil {
		return t, err
	}
	if t.session, err = headerSession(r); err == nil && t.session == "" && q.Has("session") {
		t.session, err = sessionID(q.Get("session"))
	}
	t.shell = q.Get("shell")
	return t, err
}

func windowParam(q url.Values, name string, unset uint16) (uint16, error) {
	s := q.Get(name)
	if s == "" {
		return unset, nil
	}
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n < 1 || n > maxWindow {
		return 0, cay.Errorf(cay.Invalid, "cols and rows must be valid numbers from 1 to %d; %s is %.50q", maxWindow, name, s)
	}
	return uint16(n), nil
}

// handleTerminal connects a WebSocket with a terminal. Without a session the terminal is the
// connection's own and ends with it; the terminal of a session stays, and can have many
// connections.
func (h *handler) handleTerminal(w http.ResponseWriter, r *http.Request) error {
	q, err := readTerminal(r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	sb, err := h.ensure(ctx, r.PathValue("id"))
	if err != nil {
		return err
	}
	c, err := h.openTerminal(ctx, sb.ID, q)
	if err != nil {
		return forCodes(http.StatusBadGateway, codeExecTransport, err, cay.ExecutableMissing)
	}
	if q.session == "" {
		defer h.endOwn(ctx, sb.ID, c.ID)
	}
	end := c.OutputEnd
	out, err := h.Sandboxes.Output(ctx, sb.ID, c.ID, sandbox.OutputParams{Cursor: max(c.OutputStart, end-maxReplay), Follow: true})
	if err != nil {
		return err
	}
	defer out.Close() // at its end, or given up
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return nil // Accept has answered
	}
	defer conn.CloseNow() // does nothing after the closing handshake
	t := &terminal{Socket: api.NewSocket(conn), conn: conn, svc: h.Sandboxes, ref: sb.ID, command: c.ID}
	t.run(ctx, cancel, out, end)
	return nil
}

// openTerminal returns the command of a terminal: a new one, or the running one of the
// session.
func (h *handler) openTerminal(ctx context.Context, ref string, q terminalRequest) (*sandbox.Command, error) {
	p := sandbox.CommandParams{Argv: terminalArgv(q.session, q.shell), PTY: &q.size, WorkDir: "/"}
	if q.session == "" {
		return h.Sandboxes.Start(context.WithoutCancel(ctx), ref, p)
	}
	unlock, err := h.sessions.lock(ctx, "terminal/"+ref+"/"+q.session)
	if err != nil {
		return nil, err
	}
	defer unlock()
	all, err := h.Sandboxes.ListCommands(ctx, ref)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if c := &all[i]; c.Exit == nil && isTerminal(c, q.session) {
			return h.Sandboxes.GetCommand(ctx, ref, c.ID)
		}
	}
	return h.Sandboxes.Start(ctx, ref, p)
}

// endOwn ends the command of a terminal without a session, unless it has exited.
func (h *handler) endOwn(ctx context.Context, ref, command string) {
	h.end(ctx, ref, command, syscall.SIGHUP, syscall.SIGCONT) // a stopped shell sees the first then
}

// terminal is a connection to a terminal.
type terminal struct {
	*api.Socket
	conn    *websocket.Conn
	svc     Sandboxes
	ref     string
	command string // its id
}

// frame is a text message. Binary messages are what is typed and shown.
type frame struct {
	Type    string `json:"type"` // resize from clients; ready, exit and error to them
	Cols    int    `json:"cols,omitempty"`
	Rows    int    `json:"rows,omitempty"`
	Code    *int   `json:"code,omitempty"`
	Signal  string `json:"signal,omitempty"`
	Message string `json:"message,omitempty"`
}

// run connects the client with the terminal until one of them has left. end is the cursor
// at which the output of before the connection ends.
func (t *terminal) run(ctx context.Context, cancel context.CancelFunc, out sandbox.Output, end int64) {
	leave := sync.OnceFunc(func() {
		t.conn.CloseNow()
		cancel() // ends out
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
	t.show(ctx, out, end)
	leave()
	helpers.Wait()
}

// show shows what the terminal shows, until its command has exited or the client has left.
func (t *terminal) show(ctx context.Context, out sandbox.Output, end int64) {
	ready := false
	if end == 0 {
		ready = true
		if t.send(ctx, frame{Type: "ready"}) != nil {
			return
		}
	}
	for {
		e, err := out.Next()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			_ = t.send(ctx, frame{Type: "error", Message: api.Public(ctx, err).Message})
			return
		}
		if e.Truncated {
			e.Data = []byte("\r\n[cay: output was lost]\r\n")
		}
		if len(e.Data) > 0 && t.Show(ctx, e.Data) != nil {
			return
		}
		if !ready && (e.Exit != nil || e.Cursor+int64(len(e.Data)) >= end) {
			ready = true
			if t.send(ctx, frame{Type: "ready"}) != nil {
				return
			}
		}
		if e.Exit != nil {
			t.exit(ctx, e.Exit)
			return
		}
	}
}

// exit tells the exit of the command and closes the connection.
func (t *terminal) exit(ctx context.Context, e *sandbox.Exit) {
	f := frame{Type: "exit", Code: &e.Code}
	if e.Signal != 0 {
		f.Signal = unix.SignalName(syscall.Signal(e.Signal))
	}
	if t.send(ctx, f) == nil {
		t.conn.Close(websocket.StatusNormalClosure, "") // whatever it says, the connection is closed
	}
}

func (t *terminal) send(ctx context.Context, f frame) error {
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return t.Say(ctx, b)
}

func (t *terminal) typeIn(ctx context.Context, typed io.Reader) error {
	return t.svc.WriteStdin(ctx, t.ref, t.command, typed, false)
}

// control handles a text message. A message that makes no sense is answered, and the
// terminal goes on.
func (t *terminal) control(ctx context.Context, b []byte) error {
	var f frame
	if json.Unmarshal(b, &f) != nil || f.Type != "resize" {
		return t.send(ctx, frame{Type: "error", Message: "Invalid control message"})
	}
	if f.Cols < 1 || f.Rows < 1 || f.Cols > maxWindow || f.Rows > maxWindow {
		return t.send(ctx, frame{Type: "error", Message: "Invalid dimensions: cols and rows must be positive"})
	}
	err := t.svc.Resize(ctx, t.ref, t.command, sandbox.WindowSize{Cols: uint16(f.Cols), Rows: uint16(f.Rows)})
	if err != nil && cay.CodeOf(err) != cay.Conflict && !errors.Is(err, context.Canceled) { // conflict: it has exited, which is shown
		return t.send(ctx, frame{Type: "error", Message: api.Public(ctx, err).Message})
	}
	return nil
}
