package route

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"

	"github.com/coder/websocket"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

// control is a text message of the terminal protocol. Clients send resize; we
// send truncated, then exit or error last.
type control struct {
	Resize    *sandbox.WindowSize `json:"resize,omitempty"`
	Truncated *truncated          `json:"truncated,omitempty"`
	Exit      *sandbox.Exit       `json:"exit,omitempty"`
	Error     *wire.Error         `json:"error,omitempty"`
}

// truncated says that output before Cursor is no longer kept.
type truncated struct {
	Cursor int64 `json:"cursor"`
}

// handleTerminal attaches a WebSocket to a command's terminal: binary messages carry
// input from the client and output of the command. The command does not notice when
// clients connect and disconnect; a client that counts the bytes it has received can
// continue from there with ?cursor=.
func (h *routes) handleTerminal(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	cursor := q.Int("cursor", 0, math.MaxInt64, 0)
	if err := q.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	ref, id := r.PathValue("ref"), r.PathValue("id")
	cmd, err := h.svc.GetCommand(ctx, ref, id)
	if err != nil {
		return err
	}
	if !cmd.PTY {
		return cay.Errorf(cay.Conflict, "command %q has no terminal", id).WithHint("start it with pty, or use its output and stdin")
	}
	out, err := h.svc.Output(ctx, ref, id, sandbox.OutputParams{Cursor: cursor, Follow: true})
	if err != nil {
		return err
	}
	defer out.Close() // whatever it says, the terminal is closed
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{api.TerminalProtocol}})
	if err != nil {
		return nil // Accept has answered
	}
	defer conn.CloseNow() // a no-op after the closing handshake

	t := &terminal{Socket: api.NewSocket(conn), svc: h.svc, ref: ref, id: id, conn: conn}
	// The request's context ends with the hijacked connection only when the
	// handler returns, so whichever direction ends first ends the other.
	done := make(chan struct{}, 2)
	go func() {
		t.Input(ctx, t.typeIn, t.control)
		cancel()
		out.Close() // unblocks Next below
		done <- struct{}{}
	}()
	go func() {
		t.Ping(ctx)
		cancel()
		done <- struct{}{}
	}()
	t.output(ctx, out)
	cancel()
	<-done
	<-done
	return nil
}

// terminal is one attached WebSocket.
type terminal struct {
	*api.Socket
	svc     sandboxd.Service
	ref, id string
	conn    *websocket.Conn
}

// output sends the command's output until it exits or the client leaves.
func (t *terminal) output(ctx context.Context, out sandbox.Output) {
	for {
		e, err := out.Next()
		if ctx.Err() != nil {
			return
		}
		switch {
		case err == io.EOF:
			t.conn.Close(websocket.StatusNormalClosure, "")
			return
		case err != nil:
			_ = t.tell(ctx, control{Error: wire.FromError(api.Public(ctx, err))}) // closed next anyway
			t.conn.Close(websocket.StatusInternalError, string(cay.CodeOf(err)))
			return
		case e.Exit != nil:
			err = t.tell(ctx, control{Exit: e.Exit})
		case e.Truncated:
			err = t.tell(ctx, control{Truncated: &truncated{e.Cursor}})
		case len(e.Data) > 0:
			err = t.Show(ctx, e.Data)
		}
		if err != nil {
			return
		}
	}
}

func (t *terminal) tell(ctx context.Context, c control) error {
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return t.Say(ctx, b)
}

func (t *terminal) typeIn(ctx context.Context, typed io.Reader) error {
	return t.svc.WriteStdin(ctx, t.ref, t.id, typed, false)
}

func (t *terminal) control(ctx context.Context, b []byte) error {
	var c control
	if err := json.Unmarshal(b, &c); err != nil || c.Resize == nil {
		return errors.New(`a text message must be {"resize":{"cols":80,"rows":24}}`)
	}
	err := t.svc.Resize(ctx, t.ref, t.id, *c.Resize)
	if cay.CodeOf(err) == cay.Invalid {
		return err
	}
	return nil // exited meanwhile; output says so
}
