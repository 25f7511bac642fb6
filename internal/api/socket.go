package api

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/cayhq/cay"
)

// maxFrame bounds a message from a terminal's client, in bytes.
const maxFrame = 256 << 10

// Socket is a client's terminal over a WebSocket: binary messages are the
// terminal's input and output, text messages are control messages, in a
// protocol's own format.
type Socket struct {
	conn *websocket.Conn
	// blocked is set while the command does not read its input. The client's
	// messages are not read then, and so no answer to a ping.
	blocked atomic.Bool
}

// NewSocket returns the Socket of a connection.
func NewSocket(conn *websocket.Conn) *Socket {
	conn.SetReadLimit(maxFrame)
	return &Socket{conn: conn}
}

// Show sends the command's output, and breaks the connection if the client does
// not receive it.
func (s *Socket) Show(ctx context.Context, b []byte) error {
	return s.write(ctx, websocket.MessageBinary, b)
}

// Say is Show for a text message.
func (s *Socket) Say(ctx context.Context, b []byte) error {
	return s.write(ctx, websocket.MessageText, b)
}

func (s *Socket) write(ctx context.Context, kind websocket.MessageType, b []byte) error {
	ctx, cancel := context.WithTimeout(ctx, StallTimeout)
	defer cancel()
	return s.conn.Write(ctx, kind, b)
}

// Input passes the client's input to typeIn, until the client leaves. A client
// that types faster than the command reads is slowed down. control gets the
// text messages; an error of control closes the connection.
func (s *Socket) Input(ctx context.Context, typeIn func(context.Context, io.Reader) error, control func(context.Context, []byte) error) {
	typed, typing := io.Pipe()
	written := make(chan struct{})
	tctx, giveUp := context.WithCancel(ctx)
	go func() {
		defer close(written)
		err := typeIn(tctx, typed)
		if err == nil {
			err = io.ErrClosedPipe
		}
		typed.CloseWithError(err)
	}()
	defer func() {
		// Input typed before the client left still goes to the command, if the
		// command reads it.
		typing.Close()
		late := time.AfterFunc(StallTimeout, giveUp)
		<-written
		late.Stop()
		giveUp()
	}()
	for {
		kind, b, err := s.conn.Read(ctx)
		if err != nil {
			return
		}
		if kind == websocket.MessageBinary {
			s.blocked.Store(true)
			_, err := typing.Write(b)
			s.blocked.Store(false)
			if err != nil && cay.CodeOf(err) != cay.Conflict {
				return
			}
			// Conflict: the command has exited. Its last output is still being
			// sent; input is dropped meanwhile.
			continue
		}
		if err := control(ctx, b); err != nil {
			s.conn.Close(websocket.StatusPolicyViolation, err.Error())
			return
		}
	}
}

// Ping returns when the client has stopped answering, or has left.
func (s *Socket) Ping(ctx context.Context) {
	beat := time.NewTicker(Heartbeat)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
		}
		pctx, cancel := context.WithTimeout(ctx, Heartbeat)
		err := s.conn.Ping(pctx)
		cancel()
		if err != nil && !(s.blocked.Load() && errors.Is(err, context.DeadlineExceeded)) {
			return
		}
	}
}
