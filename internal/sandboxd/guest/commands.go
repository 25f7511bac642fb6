package guest

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// NewCommandID returns an id for a command: "cmd_" and 20 characters.
func NewCommandID() string { return "cmd_" + strings.ToLower(rand.Text()[:20]) }

// commandID returns the id of a new command. For params with a key the id is always the
// same, and a guest that knows the id starts nothing.
func commandID(p sandbox.CommandParams) string {
	if p.IdempotencyKey == "" {
		return NewCommandID()
	}
	sum := sha256.Sum256([]byte(p.IdempotencyKey))
	return "cmd_" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:20])
}

// Start starts a command. See sandboxd.Commands.
func (c *Client) Start(ctx context.Context, p sandbox.CommandParams) (*sandbox.Command, error) {
	p, err := c.understood(ctx, p)
	if err != nil {
		return nil, err
	}
	var cmd struct {
		sandbox.Command
		Argv json.RawMessage `json:"argv"` // which is known
	}
	start := StartRequest{ID: commandID(p), Params: p}
	err = c.call(ctx, request{method: http.MethodPost, path: "/commands", body: encode(start), repeat: true}, &cmd)
	if err != nil {
		return nil, err
	}
	if err := checkCommand(&cmd.Command, start.ID); err != nil {
		return nil, err
	}
	cmd.Command.Argv = slices.Clone(p.Argv)
	return &cmd.Command, nil
}

// understood returns p as the guest understands it: a guest of an earlier build cannot show
// the main program, and is not asked to. Errors: not_supported, for all else that the guest
// does not know.
func (c *Client) understood(ctx context.Context, p sandbox.CommandParams) (sandbox.CommandParams, error) {
	if p.TimeoutSignal != 0 {
		if err := c.needs(ctx, protocolTimeoutSignal, "timeout_signal"); err != nil {
			return p, err
		}
	}
	if !p.Main {
		return p, nil
	}
	known, err := c.knows(ctx, protocolMain)
	p.Main = known
	return p, err
}

// Exec starts a command and streams its output. See sandboxd.Commands.
func (c *Client) Exec(ctx context.Context, p sandbox.CommandParams) (sandbox.Output, error) {
	p, err := c.understood(ctx, p)
	if err != nil {
		return nil, err
	}
	start := StartRequest{ID: commandID(p), Params: p}
	r := request{method: http.MethodPost, path: "/commands", query: url.Values{"stream": {"1"}}, body: encode(start), repeat: true}
	o := &output{frames: c.frames(ctx), id: start.ID, follow: true}
	if err := o.dial(r); err != nil {
		o.Close()
		return nil, err
	}
	// If the connection breaks before the command is known, the whole request is
	// repeated, and the guest recognizes the id. Afterwards the cursor is enough.
	f, err := o.next(r)
	if err == nil && f.Kind == 0 {
		f, err = o.next(r)
	}
	if err == nil {
		var cmd *sandbox.Command
		if cmd, err = o.first(f); err == nil {
			cmd.Argv = slices.Clone(p.Argv)
			o.pending = &sandbox.Event{Command: cmd}
			return o, nil
		}
	}
	o.Close()
	return nil, err
}

// GetCommand describes a command. See sandboxd.Commands.
func (c *Client) GetCommand(ctx context.Context, id string) (*sandbox.Command, error) {
	return c.command(ctx, id, "")
}

// Wait returns when a command has exited. See sandboxd.Commands.
func (c *Client) Wait(ctx context.Context, id string) (*sandbox.Command, error) {
	cmd, err := c.command(ctx, id, "/wait")
	if err == nil && cmd.Exit == nil {
		return nil, unavailable(&protocolError{"a wait that ended before the command"})
	}
	return cmd, err
}

func (c *Client) command(ctx context.Context, id, what string) (*sandbox.Command, error) {
	path, err := commandPath(id, what)
	if err != nil {
		return nil, err
	}
	var data json.RawMessage
	wait := request{method: http.MethodGet, path: path, repeat: true, slow: what != ""}
	if err := c.call(ctx, wait, &data); err != nil {
		return nil, err
	}
	cmd, err := decodeCommand(data)
	if err != nil {
		return nil, err
	}
	return cmd, checkCommand(cmd, id)
}

// ListCommands lists commands, newest first. See sandboxd.Commands.
func (c *Client) ListCommands(ctx context.Context) ([]sandbox.Command, error) {
	var data json.RawMessage
	if err := c.get(ctx, "/commands", nil, &data); err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if t, err := dec.Token(); err != nil || t != json.Delim('[') {
		return nil, unavailable(&protocolError{"a list of commands that is none"})
	}
	// Commands are decoded singly, because a guest can encode very many in few bytes.
	var list []sandbox.Command
	for dec.More() {
		var one json.RawMessage
		if err := dec.Decode(&one); err != nil || len(list) == maxCommands {
			return nil, unavailable(&protocolError{"a list of too many commands"})
		}
		cmd, err := decodeCommand(one)
		if err != nil {
			return nil, err
		}
		if err := checkCommand(cmd, cmd.ID); err != nil {
			return nil, err
		}
		list = append(list, *cmd)
	}
	return list, nil
}

// Bounds of descriptions of commands, far beyond the descriptions of a genuine agent.
const (
	maxCommands = 4096
	maxCommand  = 64 << 10 // bytes of a command's description, as JSON
)

// decodeCommand decodes a description whose argv is within MaxArgvShown.
func decodeCommand(data []byte) (*sandbox.Command, error) {
	var cmd sandbox.Command
	if len(data) > maxCommand || json.Unmarshal(data, &cmd) != nil {
		return nil, unavailable(&protocolError{"a command that does not decode"})
	}
	size := 0
	for _, a := range cmd.Argv {
		size += len(a) + 4
	}
	if size > 4*MaxArgvShown { // bytes that are not UTF-8 become three
		return nil, unavailable(&protocolError{"a command with arguments that are too long"})
	}
	return &cmd, nil
}

// Signal signals a command's process group. See sandboxd.Commands.
func (c *Client) Signal(ctx context.Context, id string, sig sandbox.Signal) error {
	path, err := commandPath(id, "/signal")
	if err != nil {
		return err
	}
	return c.call(ctx, request{method: http.MethodPost, path: path, query: url.Values{"signal": {strconv.Itoa(int(sig))}}}, nil)
}

// Resize changes the size of a command's terminal. See sandboxd.Commands.
func (c *Client) Resize(ctx context.Context, id string, size sandbox.WindowSize) error {
	path, err := commandPath(id, "/resize")
	if err != nil {
		return err
	}
	q := url.Values{"cols": {strconv.Itoa(int(size.Cols))}, "rows": {strconv.Itoa(int(size.Rows))}}
	return c.call(ctx, request{method: http.MethodPost, path: path, query: q, repeat: true}, nil)
}

// WriteStdin copies r to a command's standard input. See sandboxd.Commands. It sends the
// bytes of each read of r at once, in chunks of at most MaxStdinChunk; chunks of
// concurrent calls may alternate.
func (c *Client) WriteStdin(ctx context.Context, id string, r io.Reader, closeAfter bool) error {
	path, err := commandPath(id, "/stdin")
	if err != nil {
		return err
	}
	buf := make([]byte, MaxStdinChunk)
	session, offset := rand.Text(), int64(0)
	send := func(data []byte, last bool) error {
		q := url.Values{"session": {session}, "offset": {strconv.FormatInt(offset, 10)}}
		if last {
			q.Set("close", "1")
		}
		offset += int64(len(data))
		return c.call(ctx, request{method: http.MethodPost, path: path, query: q, body: data, repeat: true, slow: true}, nil)
	}
	sent := false
	for {
		n, err := r.Read(buf)
		last := err == io.EOF
		if n > 0 || last && (closeAfter || !sent) {
			if sendErr := send(buf[:n:n], last && closeAfter); sendErr != nil {
				return sendErr
			}
			sent = true
		}
		if last {
			return nil
		}
		if err != nil {
			return cay.Errorf(codeOfRead(err), "read standard input: %w", err)
		}
		if ctx.Err() != nil {
			return unavailable(context.Cause(ctx))
		}
	}
}

// Output reads a command's output. See sandboxd.Commands. A stream whose connection
// breaks continues over a new connection. A guest of an earlier build ignores p.Times:
// its events have no time.
func (c *Client) Output(ctx context.Context, id string, p sandbox.OutputParams) (sandbox.Output, error) {
	if p.Cursor < 0 {
		return nil, cay.Errorf(cay.Invalid, "cursor %d is negative", p.Cursor)
	}
	if _, err := commandPath(id, ""); err != nil {
		return nil, err
	}
	o := &output{frames: c.frames(ctx), id: id, follow: p.Follow, times: p.Times, cursor: p.Cursor}
	if err := o.dial(o.request()); err != nil {
		o.Close()
		return nil, err
	}
	return o, nil
}

func commandPath(id, what string) (string, error) {
	if !ValidCommandID(id) {
		return "", cay.Errorf(cay.NotFound, "command %q not found", id)
	}
	return "/commands/" + id + what, nil
}

// ValidCommandID reports whether id has the form of a command's id.
func ValidCommandID(id string) bool {
	rest, ok := strings.CutPrefix(id, "cmd_")
	return ok && len(rest) == 20 && strings.IndexFunc(rest, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	}) < 0
}

// checkCommand checks that a guest's description of a command can be passed on.
func checkCommand(cmd *sandbox.Command, id string) error {
	bad := func(what string) error { return unavailable(&protocolError{"a command with " + what}) }
	switch {
	case cmd.ID != id || !ValidCommandID(id):
		return bad("another id")
	case cmd.PID <= 0:
		return bad("a process id that is not positive")
	case cmd.OutputStart < 0 || cmd.OutputEnd < cmd.OutputStart:
		return bad("output that ends before it starts")
	case len(cmd.WorkDir) > MaxPath || len(cmd.User) > maxUser:
		return bad("a name that is too long")
	}
	cmd.SandboxID = ""
	cmd.User = printable(cmd.User)
	if cmd.Exit != nil {
		return checkExit(cmd.Exit)
	}
	return nil
}

const maxUser = 256

func checkExit(e *sandbox.Exit) error {
	if e.Code < 0 || e.Code > 255 || e.Signal < 0 || e.Signal > 127 || e.Duration < 0 {
		return unavailable(&protocolError{"an exit that no process can have"})
	}
	return nil
}

// output is a sandbox.Output that reconnects when its connection ends.
type output struct {
	*frames
	id      string
	follow  bool
	times   bool
	at      time.Time      // of the next byte, if the guest has sent it
	cursor  int64          // of the next byte
	pending *sandbox.Event // to return first
	done    error
}

// request asks for the output from the cursor on.
func (o *output) request() request {
	q := url.Values{"cursor": {strconv.FormatInt(o.cursor, 10)}}
	if o.follow {
		q.Set("follow", "1")
	}
	if o.times {
		q.Set("times", "1")
	}
	return request{method: http.MethodGet, path: "/commands/" + o.id + "/output", query: q, repeat: true}
}

// first reads the command that Exec's stream begins with.
func (o *output) first(f Frame) (*sandbox.Command, error) {
	var cmd sandbox.Command
	if f.Kind != KindCommand || json.Unmarshal(f.Payload, &cmd) != nil {
		return nil, unavailable(&protocolError{"an exec that does not begin with its command"})
	}
	return &cmd, checkCommand(&cmd, o.id)
}

func (o *output) Next() (sandbox.Event, error) {
	if ev := o.pending; ev != nil {
		o.pending = nil
		return *ev, nil
	}
	for o.done == nil {
		f, err := o.next(o.request())
		if err != nil {
			o.done = err
			continue
		}
		if f.Kind == 0 {
			continue
		}
		if f.Kind == KindTime && o.times && len(f.Payload) == 0 {
			o.at = time.Unix(0, f.Cursor).UTC()
			continue
		}
		ev, err := o.event(f)
		switch {
		case err == nil && ev.Exit == nil:
			return ev, nil
		case err == nil:
			o.done = io.EOF
			o.finish()
			return ev, nil
		case err == io.EOF:
			o.done = io.EOF
			o.finish()
		default:
			o.done = err
			o.Close()
		}
	}
	return sandbox.Event{}, o.done
}

// event checks a frame against the cursor and turns it into an event. It
// returns io.EOF at the regular end.
func (o *output) event(f Frame) (sandbox.Event, error) {
	bad := func(what string) (sandbox.Event, error) {
		return sandbox.Event{}, unavailable(&protocolError{"output with " + what})
	}
	switch f.Kind {
	case KindStdout, KindStderr:
		if f.Cursor != o.cursor || len(f.Payload) == 0 {
			return bad("a wrong cursor")
		}
		if o.cursor += int64(len(f.Payload)); o.cursor < 0 {
			return bad("more bytes than can be counted")
		}
		ev := sandbox.Event{Stream: sandbox.Stdout, Data: f.Payload, Cursor: f.Cursor, Time: o.at}
		if f.Kind == KindStderr {
			ev.Stream = sandbox.Stderr
		}
		return ev, nil
	case KindTruncated:
		if f.Cursor <= o.cursor {
			return bad("a wrong cursor")
		}
		o.cursor = f.Cursor
		return sandbox.Event{Truncated: true, Cursor: f.Cursor}, nil
	case KindExit:
		var exit sandbox.Exit
		if json.Unmarshal(f.Payload, &exit) != nil {
			return bad("an exit that does not decode")
		}
		return sandbox.Event{Exit: &exit}, checkExit(&exit)
	case KindEnd:
		if o.follow {
			return bad("an end before the exit")
		}
		return sandbox.Event{}, io.EOF
	case KindError:
		return sandbox.Event{}, decodeError(f.Payload)
	}
	return bad("a frame that does not belong there")
}

// frames is a stream of frames over successive connections. Close may be called during
// next.
type frames struct {
	client *Client
	ctx    context.Context // of the call that made it; the stream lives as long
	cancel context.CancelCauseFunc
	body   io.ReadCloser
	stuck  bool // the connection in use has not brought a frame yet
}

func (c *Client) frames(ctx context.Context) *frames {
	ctx, cancel := context.WithCancelCause(ctx)
	return &frames{client: c, ctx: ctx, cancel: cancel}
}

// dial opens the stream over a new connection.
func (s *frames) dial(r request) error {
	r.follows = true
	resp, err := s.client.do(s.ctx, r)
	if err == nil {
		s.body = resp.Body
	}
	return err
}

// next reads a frame. If the connection broke, next sends redial on a new connection and
// returns a zero Frame.
func (s *frames) next(redial request) (Frame, error) {
	f, err := ReadFrame(s.body)
	if err == nil {
		s.stuck = false
		return f, nil
	}
	s.body.Close()
	if isProtocol(err) || s.stuck || s.ctx.Err() != nil {
		return Frame{}, unavailable(contextErr(s.ctx, err))
	}
	s.stuck = true
	return Frame{}, s.dial(redial)
}

// Close cuts the connection.
func (s *frames) Close() error {
	s.cancel(errClosed)
	return nil
}

var errClosed = cay.Errorf(cay.Canceled, "the stream was closed")

// finish is Close after the last frame. It keeps the connection for the next request if
// the guest ends the body within finishPatience.
func (s *frames) finish() {
	go func() {
		patience := time.AfterFunc(finishPatience, func() { s.cancel(errClosed) })
		defer patience.Stop()
		var b [1]byte
		s.body.Read(b[:]) // whatever it brings: Close cuts what is not at its end
		s.body.Close()
		s.cancel(errClosed)
	}()
}

// finishPatience is how long a guest may take to end a body after its last frame.
const finishPatience = 250 * time.Millisecond

var _ sandbox.Output = (*output)(nil)
