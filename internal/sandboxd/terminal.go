package sandboxd

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

// maxFrame bounds a message from a terminal, in bytes.
const maxFrame = 256 << 10

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

// handleTerminal attaches a WebSocket to a command's terminal: binary messages
// are what is typed and what is shown. The command does not notice when a
// client comes and goes; one that counts the bytes it got can go on from there
// with ?cursor=.
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
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{api.WebSocketProtocol}})
	if err != nil {
		return nil // Accept has answered
	}
	defer conn.CloseNow() // a no-op after the closing handshake
	conn.SetReadLimit(maxFrame)

	t := &terminal{svc: h.svc, ref: ref, id: id, conn: conn}
	// The request's context ends with the hijacked connection only when the
	// handler returns, so whichever direction ends first ends the other.
	done := make(chan struct{}, 2)
	go func() {
		t.input(ctx)
		cancel()
		out.Close() // unblocks Next below
		done <- struct{}{}
	}()
	go func() {
		t.ping(ctx)
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
	svc     Service
	ref, id string
	conn    *websocket.Conn
	// blocked is set while the command does not take what was typed. Nothing
	// is read from the client then, and so no answer to a ping.
	blocked atomic.Bool
}

// output shows what the command writes until it exits or the client leaves.
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
			err = t.write(ctx, websocket.MessageBinary, e.Data)
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
	return t.write(ctx, websocket.MessageText, b)
}

// write sends a message, and breaks the connection if the client does not take it.
func (t *terminal) write(ctx context.Context, kind websocket.MessageType, b []byte) error {
	ctx, cancel := context.WithTimeout(ctx, api.StallTimeout)
	defer cancel()
	return t.conn.Write(ctx, kind, b)
}

// input types what the client sends until it leaves. A client that types more
// than the command reads is slowed down by not being read.
func (t *terminal) input(ctx context.Context) {
	typed, typing := io.Pipe()
	written := make(chan struct{})
	go func() {
		defer close(written)
		err := t.svc.WriteStdin(ctx, t.ref, t.id, typed, false)
		if err == nil {
			err = io.ErrClosedPipe
		}
		typed.CloseWithError(err)
	}()
	defer func() {
		typing.Close()
		<-written
	}()
	for {
		kind, b, err := t.conn.Read(ctx)
		if err != nil {
			return
		}
		if kind == websocket.MessageBinary {
			t.blocked.Store(true)
			_, err := typing.Write(b)
			t.blocked.Store(false)
			if err != nil && cay.CodeOf(err) != cay.Conflict {
				return
			}
			// Conflict: the command has exited. What it wrote last is still
			// being shown; nobody reads what is typed meanwhile.
			continue
		}
		if err := t.control(ctx, b); err != nil {
			t.conn.Close(websocket.StatusPolicyViolation, err.Error())
			return
		}
	}
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

// ping returns when the client does not answer any more.
func (t *terminal) ping(ctx context.Context) {
	beat := time.NewTicker(api.Heartbeat)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
		}
		pctx, cancel := context.WithTimeout(ctx, api.Heartbeat)
		err := t.conn.Ping(pctx)
		cancel()
		if err != nil && !t.blocked.Load() {
			return
		}
	}
}
