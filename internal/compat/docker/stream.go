package docker

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/cayhq/cay/sandbox"
)

// Types of streams: raw output of a terminal, and frames of standard output and error.
const (
	typeRaw    = "application/vnd.docker.raw-stream"
	typeFrames = "application/vnd.docker.multiplexed-stream"
)

func streamType(tty bool) string {
	if tty {
		return typeRaw
	}
	return typeFrames
}

// sink takes the output of a command: as it is, or in frames of 8 bytes (the
// stream, three zeros, the length) and data.
type sink struct {
	w              io.Writer
	raw            bool
	stdout, stderr bool // which are wanted
	flush          func() error
}

// errUnwanted is a write to a client that has left.
var errUnwanted = errors.New("the client does not read any more")

func (k *sink) put(stream sandbox.Stream, data []byte) error {
	kind := byte(1)
	if stream == sandbox.Stderr {
		kind = 2
	}
	if kind == 1 && !k.stdout || kind == 2 && !k.stderr || len(data) == 0 {
		return nil
	}
	if !k.raw {
		frame := make([]byte, 8, 8+len(data))
		frame[0] = kind
		binary.BigEndian.PutUint32(frame[4:], uint32(len(data)))
		data = append(frame, data...)
	}
	if _, err := k.w.Write(data); err != nil {
		return errUnwanted
	}
	if k.flush != nil && k.flush() != nil {
		return errUnwanted
	}
	return nil
}

// copyOutput writes what a command says until it ends, or the client leaves.
func copyOutput(out sandbox.Output, to *sink) error {
	for {
		ev, err := out.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := to.put(ev.Stream, ev.Data); err != nil {
			return err
		}
	}
}

// hijacked is a connection that a stream has taken over.
type hijacked struct {
	net.Conn
	in     io.Reader // what the client sends, from what is buffered of it on
	cancel context.CancelFunc
}

// leftEvery is how often it is looked whether a client without output has left.
const leftEvery = 500 * time.Millisecond

// hijack takes over the connection of a request and sends the header. The context
// ends when the client closes the connection, not when it closes only its half of
// it, and with the server.
func (s *Server) hijack(w http.ResponseWriter, r *http.Request, tty bool) (context.Context, *hijacked, error) {
	nc, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, nil, err
	}
	// The request's own context ends when the server learns nothing of the connection any more.
	ctx, cancel := context.WithCancel(s.ctx)
	head := "HTTP/1.1 200 OK\r\nContent-Type: " + typeRaw + "\r\n\r\n"
	if r.Header.Get("Upgrade") != "" {
		head = "HTTP/1.1 101 UPGRADED\r\nContent-Type: " + streamType(tty) + "\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
	}
	h := &hijacked{Conn: nc, in: buf.Reader, cancel: cancel}
	if _, err := io.WriteString(nc, head); err != nil {
		h.Close()
		return nil, nil, errUnwanted
	}
	s.tasks.Go(func() { h.attend(ctx) })
	return ctx, h, nil
}

// attend ends the stream when the client has left, and the connection with ctx.
func (h *hijacked) attend(ctx context.Context) {
	t := time.NewTicker(leftEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			h.Conn.Close() // wakes who reads and writes
			return
		case <-t.C:
			if c, ok := h.Conn.(*conn); ok && c.hungUp() {
				h.cancel()
			}
		}
	}
}

// Close implements io.Closer.
func (h *hijacked) Close() error {
	h.cancel()
	return h.Conn.Close()
}

// feedStdin sends what the client writes to a command, in the background, until it
// closes its half.
func (s *Server) feedStdin(ctx context.Context, h *hijacked, box, command string, closeAfter bool) {
	s.tasks.Go(func() {
		err := s.cfg.Sandboxes.WriteStdin(ctx, box, command, h.in, closeAfter)
		if err != nil && ctx.Err() == nil {
			s.cfg.Logger.DebugContext(ctx, "standard input of a command", "command", command, "error", err)
		}
	})
}
