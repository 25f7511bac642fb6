package sandbox

import (
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
)

const (
	// quiet is how long a stream may be silent. The daemon sends a heartbeat
	// every 15 s, so a connection without one is dead.
	quiet = 45 * time.Second
	// patience is how long a stream that broke tries to go on, so that commands go on
	// while the daemon is replaced.
	patience = 30 * time.Second
	// refusals is how many times in a row a stream may be opened again that the daemon
	// itself ends, or refuses, without any progress.
	refusals = 5
	// steady is how long a stream must last to count as one that works.
	steady = 5 * time.Second
	// maxPause is the longest pause between two attempts.
	maxPause = time.Second
)

// outage counts the attempts to go on with a stream, or a wait, that broke.
type outage struct {
	tries   int       // since it worked
	since   time.Time // the first of them; zero: it works
	refused int       // of them, by the daemon itself
}

// over records that it works again.
func (o *outage) over() { *o = outage{} }

// again records a failure, and reports whether another attempt may follow.
func (o *outage) again(err error) bool {
	if o.since.IsZero() {
		o.since = time.Now()
	}
	o.tries++
	if !wire.Away(err) {
		o.refused++
	}
	return o.refused <= refusals && time.Since(o.since) < patience
}

// pause waits before an attempt; the first one is made at once.
func (o *outage) pause(ctx context.Context) {
	if o.tries <= 1 {
		return
	}
	t := time.NewTimer(min(maxPause, 50*time.Millisecond<<min(o.tries, 10)))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// stream reads an answer of newline-delimited JSON. It breaks when the daemon
// is silent for too long.
type stream struct {
	conn   *wire.Conn
	body   io.Closer
	lines  *wire.LineReader
	cancel context.CancelFunc
	timer  *time.Timer
	began  time.Time
}

// stream sends a request whose answer is lines.
func (c *Client) stream(ctx context.Context, r wire.Request) (*stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	if r.Header == nil {
		r.Header = http.Header{"Accept": {wire.TypeLines}}
	}
	resp, conn, err := c.do(ctx, r)
	if err != nil {
		cancel()
		return nil, err
	}
	return &stream{
		conn: conn, cancel: cancel,
		body:  resp.Body,
		lines: wire.NewLineReader(resp.Body),
		timer: time.AfterFunc(quiet, cancel), began: time.Now(),
	}, nil
}

// next returns the next line, valid until the one after. io.EOF means that the
// daemon ended the answer.
func (s *stream) next() ([]byte, error) {
	return s.lines.Next(func() { s.timer.Reset(quiet) })
}

func (s *stream) close() {
	s.timer.Stop()
	s.cancel()
	s.body.Close() // nothing is left to learn from it
}

// output is the Output of a Client. It keeps the context that it was made with,
// because it opens new connections under that context.
type output struct {
	ctx    context.Context
	cancel context.CancelFunc
	c      *Client
	ref    string
	follow bool
	times  bool

	start   wire.Request // of Exec; repeating it finds the same command
	id      string       // empty until the first event of Exec
	cursor  int64        // where to go on
	reached int64        // the furthest cursor
	outage  outage       // since that was reached
	asleep  bool         // the sandbox was hibernated, for all that is known
	end     error        // the error of all further calls of Next

	mu     sync.Mutex // guards what follows: Close comes from anywhere
	in     *stream    // nil while not connected
	closed bool
}

func newOutput(ctx context.Context, c *Client, ref string, follow bool) *output {
	o := &output{c: c, ref: ref, follow: follow}
	o.ctx, o.cancel = context.WithCancel(ctx)
	return o
}

// open connects by sending r.
func (o *output) open(r wire.Request) error {
	in, err := o.c.stream(o.ctx, r)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		in.close()
		return errClosed
	}
	o.in = in
	return nil
}

var errClosed = cay.Errorf(cay.Canceled, "the stream was closed: %w", fs.ErrClosed)

// attach connects at the cursor; a command that is not known yet is started, or found.
func (o *output) attach() error {
	if o.id == "" {
		return o.open(o.start)
	}
	p, err := endpoint(o.ref, "commands", o.id, "output")
	if err != nil {
		return err
	}
	q := url.Values{}
	setInt(q, "cursor", o.cursor)
	setBool(q, "follow", o.follow)
	setBool(q, "times", o.times)
	return o.open(wire.Request{Method: http.MethodGet, Path: p, Query: q})
}

// Next implements Output.
func (o *output) Next() (Event, error) {
	for o.end == nil {
		in, err := o.connected()
		if err != nil {
			o.end = err
			break
		}
		if in == nil {
			continue
		}
		line, err := in.next()
		if err != nil {
			o.broken(in, err)
			continue
		}
		e, ok := o.decode(in, line)
		if o.cursor > o.reached {
			o.reached = o.cursor
			o.outage.over()
		}
		if ok {
			return e, nil
		}
	}
	return Event{}, o.end
}

// decode reads a line of in and records the new cursor and state. It returns false
// after setting end, or after giving in up.
func (o *output) decode(in *stream, line []byte) (Event, bool) {
	var msg struct {
		eventJSON
		Error *wire.Error `json:"error"`
	}
	var e Event
	err := json.Unmarshal(line, &msg)
	if err == nil && msg.Error != nil {
		err := msg.Error.Err()
		// The sandbox was hibernated, or the daemon stops.
		o.drop(in)
		if cay.CodeOf(err) != cay.Unavailable || !o.follow || !o.outage.again(err) {
			o.end = err
			return e, false
		}
		o.asleep = o.id != ""
		return e, false
	}
	if err == nil {
		err = e.set(&msg.eventJSON)
	}
	if err != nil {
		o.end = cay.Errorf(cay.Internal, "the daemon sent an event that cannot be read: %w", err)
		return e, false
	}
	switch {
	case e.Command != nil:
		o.id = e.Command.ID
	case e.Exit != nil:
		o.end = io.EOF
	case e.Truncated:
		o.cursor = e.Cursor
	default:
		o.cursor = e.Cursor + int64(len(e.Data))
	}
	return e, true
}

// connected returns the connection, after making it again if it broke. It returns
// nil after a failure that may pass.
func (o *output) connected() (*stream, error) {
	o.mu.Lock()
	in, closed := o.in, o.closed
	o.mu.Unlock()
	switch {
	case closed:
		return nil, errClosed
	case in != nil:
		return in, nil
	}
	o.outage.pause(o.ctx)
	err := o.awake()
	if err == nil {
		err = o.attach()
	}
	if cay.CodeOf(err) == cay.Unavailable && o.outage.again(err) {
		return nil, nil
	}
	if err != nil {
		return nil, o.why(err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.in, nil
}

// awake returns when the sandbox can probably be attached to.
func (o *output) awake() error {
	if !o.asleep {
		return nil
	}
	slept, err := o.c.awake(o.ctx, o.ref)
	if slept {
		o.outage.over()
	}
	o.asleep = err != nil
	return err
}

// awake waits until a sandbox is not hibernated, and reports whether it was. Errors:
// those of WatchSandboxes, unavailable (the daemon stops).
//
// A client that is attached to a command must not wake the sandbox itself: attaching
// again would wake the sandbox at once, and no sandbox with an attached client could
// stay hibernated.
func (c *Client) awake(ctx context.Context, ref string) (slept bool, err error) {
	s, err := c.Get(ctx, ref)
	if err != nil || s.Status != Hibernated {
		return false, err
	}
	w, err := c.WatchSandboxes(ctx, ChangeParams{ProjectID: s.ProjectID})
	if err != nil {
		return true, err
	}
	defer w.Close()
	for {
		change, err := w.Next()
		switch {
		case err == io.EOF:
			return true, cay.Errorf(cay.Unavailable, "sandbox %q is hibernated, and the daemon stops", ref)
		case err != nil:
			return true, err
		case change.ID != "" && change.ID != s.ID:
			continue
		}
		now, err := c.Get(ctx, s.ID)
		if err != nil || now.Status != Hibernated {
			return true, err
		}
	}
}

// broken records that reading in failed, and decides whether to reconnect.
func (o *output) broken(in *stream, err error) {
	o.drop(in)
	if time.Since(in.began) > steady {
		o.outage.over()
	}
	if o.ctx.Err() == nil && err == io.EOF && !o.follow {
		o.end = io.EOF
		return
	}
	err = in.conn.StreamError(o.ctx, err)
	if o.ctx.Err() != nil || !o.outage.again(err) {
		o.end = o.why(err)
	}
}

func (o *output) drop(in *stream) {
	o.mu.Lock()
	o.in = nil
	o.mu.Unlock()
	in.close()
}

// why returns err, or the error of a closed stream if Close is the reason for err.
func (o *output) why(err error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return errClosed
	}
	return err
}

// Close implements Output. Close may be called while Next waits; Next then fails.
func (o *output) Close() error {
	o.cancel()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	if o.in != nil {
		o.in.close()
		o.in = nil
	}
	return nil
}
