package agent

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/sandbox"
)

// commandTable holds the running commands and the newest finished ones.
type commandTable struct {
	limits Limits

	mu       sync.Mutex // guards what follows
	entries  map[string]*entry
	live     int        // entries that are starting or running
	finished []*command // longest finished first
	started  uint64
	closed   bool
	quiesced bool // nothing starts
}

// entry is a requested command. A repeated request finds the entry.
type entry struct {
	id      string
	number  uint64        // counts in order of start
	started chan struct{} // closed when cmd or err is set
	cmd     *command
	err     error
}

func newCommandTable(l Limits) *commandTable {
	return &commandTable{limits: l, entries: map[string]*entry{}}
}

// retryCommands is when to try again with too many commands running.
const retryCommands = time.Second

// reserve returns the entry of an id. If isNew, the caller must call setStarted. Errors:
// quota_exceeded.
func (t *commandTable) reserve(id string) (e *entry, isNew bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.entries[id]; e != nil {
		return e, false, nil
	}
	if t.closed {
		return nil, false, cay.Errorf(cay.Unavailable, "the sandbox is going down")
	}
	if t.quiesced {
		return nil, false, cay.Errorf(cay.Conflict, "the sandbox is being stopped and starts no commands").WithHint("start it again first")
	}
	if t.live >= t.limits.Running {
		err := cay.Errorf(cay.QuotaExceeded, "%d commands are running in this sandbox, the most allowed", t.live).
			WithHint("wait for some to exit, or signal them")
		err.RetryAfter = retryCommands
		return nil, false, err
	}
	t.live++
	t.started++
	e = &entry{id: id, number: t.started, started: make(chan struct{})}
	t.entries[id] = e
	return e, true, nil
}

// setStarted sets the result of starting an entry's command. It forgets a failed command.
func (t *commandTable) setStarted(e *entry, cmd *command, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.cmd, e.err = cmd, err
	if err != nil {
		delete(t.entries, e.id)
		t.live--
	}
	close(e.started)
	if err == nil && (t.closed || t.quiesced) {
		_ = cmd.signal(syscall.SIGKILL) // it slipped in
	}
}

// finish records that a command has exited. It may be called before setStarted.
func (t *commandTable) finish(c *command) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.live--
	if c.hidden {
		delete(t.entries, c.info.ID)
		return
	}
	t.finished = append(t.finished, c)
	if len(t.finished) > t.limits.Finished {
		old := t.finished[0]
		t.finished[0] = nil
		t.finished = t.finished[1:]
		delete(t.entries, old.info.ID)
		old.log.forget()
	}
}

// get returns a command. Errors: not_found.
func (t *commandTable) get(id string) (*command, error) {
	t.mu.Lock()
	e := t.entries[id]
	t.mu.Unlock()
	if e != nil {
		if <-e.started; e.err == nil && !e.cmd.hidden {
			return e.cmd, nil
		}
	}
	return nil, cay.Errorf(cay.NotFound, "command %q not found", clip(id))
}

// list returns all commands, newest first.
func (t *commandTable) list() []*command {
	t.mu.Lock()
	defer t.mu.Unlock()
	var entries []*entry
	for _, e := range t.entries {
		if e.cmd != nil {
			entries = append(entries, e)
		}
	}
	slices.SortFunc(entries, func(a, b *entry) int { return int(b.number) - int(a.number) })
	out := make([]*command, len(entries))
	for i, e := range entries {
		out[i] = e.cmd
	}
	return out
}

// forget forgets the commands that have exited, and their output.
func (t *commandTable) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.finished {
		delete(t.entries, c.info.ID)
		c.log.forget()
	}
	t.finished = nil
}

func (t *commandTable) running() []*command {
	return slices.DeleteFunc(t.list(), func(c *command) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.exit != nil
	})
}

// killAll kills all commands and refuses new ones.
func (t *commandTable) killAll() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	for _, c := range t.running() {
		_ = c.signal(syscall.SIGKILL) // a command that has exited needs no signal
	}
}

// setQuiesced stops or resumes new commands. A command that is being started at that
// moment is killed when it appears.
func (t *commandTable) setQuiesced(quiesced bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.quiesced = quiesced
}

func (t *commandTable) isQuiesced() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.quiesced
}

// awaitAll waits until all present commands have started and are done. It returns false
// if ctx ended first.
func (t *commandTable) awaitAll(ctx context.Context) bool {
	t.mu.Lock()
	entries := slices.Collect(maps.Values(t.entries))
	t.mu.Unlock()
	for _, e := range entries {
		select {
		case <-e.started:
		case <-ctx.Done():
			return false
		}
		if e.err != nil {
			continue
		}
		select {
		case <-e.cmd.done:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// headPatience is how long the head of an exec's answer waits for the first output, or
// the exit, to be sent together with it: most programs have ended by then, and each
// separate message wakes three kernels and the caller. The head does not wait if the
// command has standard input, because the caller is to write to it.
const headPatience = 10 * time.Millisecond

// maxStartBody bounds a StartRequest: argv and env of 2 MiB together, escaped.
const maxStartBody = 16 << 20

func (s *Server) handleStart(w http.ResponseWriter, r *http.Request) error {
	var req guest.StartRequest
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxStartBody))
	dec.DisallowUnknownFields() // refuse requests of a later daemon that this agent does not support
	if err := dec.Decode(&req); err != nil {
		return cay.Errorf(cay.Invalid, "command: %w", err)
	}
	if !guest.ValidCommandID(req.ID) {
		return cay.Errorf(cay.Invalid, "command id %q is not cmd_ and 20 characters", clip(req.ID))
	}
	c, err := s.start(req)
	if err != nil {
		return err
	}
	if r.URL.Query().Get("stream") == "" {
		return writeJSON(w, c.describe())
	}
	reader, err := c.log.reader(0)
	if err != nil {
		return err
	}
	defer reader.close()
	f := newFrameWriter(w)
	if err := f.json(guest.KindCommand, c.describe()); err != nil {
		return err
	}
	if c.stdin != nil || !reader.await(r.Context(), headPatience) {
		f.flush()
	}
	return s.stream(r.Context(), f, c, reader, true, false)
}

// start starts a command, or finds the command with the same id.
func (s *Server) start(req guest.StartRequest) (*command, error) {
	e, isNew, err := s.table.reserve(req.ID)
	if err != nil {
		return nil, err
	}
	if isNew {
		var cmd *command
		pl, err := s.prepare(req.Params)
		if err == nil {
			cmd, err = s.launch(req.ID, pl)
		}
		if err == nil && req.Params.Main && s.cfg.SetTitle != nil {
			s.cfg.SetTitle(req.Params.Argv)
		}
		s.table.setStarted(e, cmd, err)
	}
	<-e.started
	return e.cmd, e.err
}

// stream sends output until its end, or, without follow, the output so far; with times, it
// sends the times of the output, too. An error means that the caller has left.
func (s *Server) stream(ctx context.Context, f *frameWriter, c *command, reader *outputReader, follow, times bool) error {
	_, upTo := c.log.bounds()
	var sent int64 // the last time that was sent
	for {
		if follow && c.isDone() {
			// Children that the command left behind may write without end.
			follow = false
			_, upTo = c.log.bounds()
		}
		segs, truncated, err := reader.read(ctx, follow)
		if err != nil {
			return &begunError{err}
		}
		cursor := reader.cursor
		if truncated {
			f.frame(guest.KindTruncated, cursor, nil)
		}
		for _, seg := range segs {
			cursor = seg.end()
			if !times {
				f.frame(seg.kind, seg.cursor, seg.data)
				continue
			}
			for _, part := range seg.byTime() {
				if part.at != sent {
					f.frame(guest.KindTime, part.at, nil)
					sent = part.at
				}
				f.frame(part.kind, part.cursor, part.data)
			}
		}
		if f.err != nil {
			return &begunError{f.err}
		}
		if len(segs) > 0 || truncated {
			// Output that will be sent together with the exit need not be flushed before.
			if !c.ended(cursor) {
				f.flush()
			}
			reader.advance(cursor)
			if follow || cursor < upTo {
				continue
			}
		}
		break
	}
	if exit := c.describe().Exit; exit != nil {
		return f.json(guest.KindExit, exit)
	}
	f.frame(guest.KindEnd, 0, nil)
	return f.err
}

func (s *Server) command(r *http.Request) (*command, error) { return s.table.get(r.PathValue("id")) }

func (s *Server) handleGetCommand(w http.ResponseWriter, r *http.Request) error {
	c, err := s.command(r)
	if err != nil {
		return err
	}
	return writeJSON(w, c.describe())
}

func (s *Server) handleListCommands(w http.ResponseWriter, r *http.Request) error {
	out := []sandbox.Command{}
	for _, c := range s.table.list() {
		if !c.hidden {
			out = append(out, c.describe())
		}
	}
	return writeJSON(w, out)
}

func (s *Server) handleWait(w http.ResponseWriter, r *http.Request) error {
	c, err := s.command(r)
	if err != nil {
		return err
	}
	select {
	case <-c.done:
		return writeJSON(w, c.describe())
	case <-r.Context().Done():
		return &begunError{r.Context().Err()}
	}
}

func (s *Server) handleOutput(w http.ResponseWriter, r *http.Request) error {
	c, err := s.command(r)
	if err != nil {
		return err
	}
	cursor, err := intParam(r, "cursor")
	if err != nil {
		return err
	}
	reader, err := c.log.reader(cursor)
	if err != nil {
		return err
	}
	defer reader.close()
	f := newFrameWriter(w)
	f.flush() // send the headers to the waiting client
	q := r.URL.Query()
	return s.stream(r.Context(), f, c, reader, q.Get("follow") != "", q.Get("times") != "")
}

func (s *Server) handleSignal(w http.ResponseWriter, r *http.Request) error {
	c, err := s.command(r)
	if err != nil {
		return err
	}
	sig, err := intParam(r, "signal")
	if err != nil {
		return err
	}
	if sig < 1 || sig > 64 {
		return cay.Errorf(cay.Invalid, "signal %d is not within 1 to 64", sig)
	}
	return c.signal(syscall.Signal(sig))
}

func (s *Server) handleResize(w http.ResponseWriter, r *http.Request) error {
	c, err := s.command(r)
	if err != nil {
		return err
	}
	cols, err := intParam(r, "cols")
	if err != nil {
		return err
	}
	rows, err := intParam(r, "rows")
	if err != nil {
		return err
	}
	if cols > maxWindow || rows > maxWindow {
		return cay.Errorf(cay.Invalid, "window size %dx%d is not within 1 to %d", cols, rows, maxWindow)
	}
	size := sandbox.WindowSize{Cols: uint16(cols), Rows: uint16(rows)}
	if err := checkWindow(size); err != nil {
		return err
	}
	return c.resize(size)
}

func (s *Server) handleStdin(w http.ResponseWriter, r *http.Request) error {
	c, err := s.command(r)
	if err != nil {
		return err
	}
	offset, err := intParam(r, "offset")
	if err != nil {
		return err
	}
	data := make([]byte, min(max(r.ContentLength, 0), guest.MaxStdinChunk))
	if err := readBody(r, data); err != nil {
		return err
	}
	if c.stdin == nil {
		return cay.Errorf(cay.Conflict, "command %s was started without standard input", c.info.ID).WithHint("start it with stdin")
	}
	q := r.URL.Query()
	return c.stdin.write(r.Context().Done(), q.Get("session"), offset, data, q.Get("close") != "")
}

// intParam reads a number from the query, 0 if it is absent. Errors: invalid.
func intParam(r *http.Request, name string) (int64, error) {
	v := r.URL.Query().Get(name)
	if v == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 {
		return 0, cay.Errorf(cay.Invalid, "%s %q is not a number of 0 or more", name, clip(v))
	}
	return n, nil
}
