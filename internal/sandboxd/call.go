package sandboxd

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

// endPatience is how long a call whose guest connection broke waits for the machine to
// end, so that the caller gets the reason.
const endPatience = time.Second

// call is a call into a guest that is under way. Its context ends with the caller's and
// with the machine.
type call struct {
	e      *Engine
	m      *session
	caller context.Context
	ctx    context.Context
	active bool // the call counts as activity until it ends
	end    func()
}

// call begins a call into the guest of the sandbox ref; done ends the call. active says
// that the sandbox is not idle during the call. w says whether a sandbox that does not
// run is resumed. Errors: unauthenticated, not_found, sandbox_stopped, conflict (paused,
// or still being created), quota_exceeded, unavailable (its guest does not answer), and
// those of Resume.
func (e *Engine) call(ctx context.Context, ref string, active bool, w wake) (*call, error) {
	m, err := e.usable(ctx, ref, w)
	if err != nil {
		return nil, err
	}
	answers := m.answers.Load()
	if answers.since != nil {
		return nil, context.Cause(answers.ctx)
	}
	if n := m.calls.Add(1); int(n) > e.cfg.Limits.CallsPerSandbox {
		m.calls.Add(-1)
		return nil, tooMany("the sandbox", e.cfg.Limits.CallsPerSandbox)
	}
	if !e.calls.Take(m.scope.Team) {
		m.calls.Add(-1)
		return nil, tooMany(inDaemon, e.cfg.Limits.Calls)
	}
	if active {
		m.idle.Enter()
	} else {
		m.idle.Touch()
	}
	e.watchGuest(m)
	c := &call{e: e, m: m, caller: ctx, active: active}
	var end func()
	c.ctx, end = boundBy(answers.ctx, ctx)
	c.end = sync.OnceFunc(func() {
		end()
		if active {
			m.idle.Leave()
		}
		m.calls.Add(-1)
		e.calls.Leave(m.scope.Team)
	})
	return c, nil
}

// inDaemon names, in errors, the limit that all teams share.
const inDaemon = "the daemon, or half as many in the team's sandboxes"

func tooMany(where string, n int) error {
	err := cay.Errorf(cay.QuotaExceeded, "%d calls are under way in %s", n, where).WithHint("wait for some to end")
	err.RetryAfter = time.Second
	return err
}

// usable returns the running machine of a sandbox. The engine finds a running sandbox by
// its id, or by its session's id, without the database. Every other ref costs one
// database read, also the id of another team's sandbox.
func (e *Engine) usable(ctx context.Context, ref string, w wake) (*session, error) {
	sc, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if m := e.liveFor(ref); m != nil && sc.Reaches(m.scope) && m.state() == sandbox.Running {
		return m, nil
	}
	r, err := e.store.Find(ctx, sc, ref)
	if err != nil {
		return nil, err
	}
	return e.ensureRunning(ctx, r, w, sandbox.ResumeParams{})
}

// err converts an error of the guest client to the error that the caller gets: the reason
// why the machine ended, if that is the cause, or that the caller left.
func (c *call) err(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	switch cay.CodeOf(err) {
	case cay.Unavailable, cay.Canceled, cay.DeadlineExceeded, cay.Internal:
	default:
		return err // the guest's own error
	}
	if c.m.ctx.Err() != nil {
		return context.Cause(c.m.ctx)
	}
	if c.caller.Err() != nil {
		return wire.ContextError(c.caller)
	}
	if cay.CodeOf(err) == cay.Unavailable {
		c.awaitEnd()
	}
	return c.e.machineError(c.m, err)
}

// awaitEnd waits up to endPatience for a machine to end whose guest seems to be gone.
func (c *call) awaitEnd() {
	wait := time.NewTimer(endPatience)
	defer wait.Stop()
	select {
	case <-c.m.inst.Done():
	case <-c.m.ctx.Done():
	case <-c.caller.Done():
	case <-wait.C:
	}
}

// done ends the call and returns the error that the caller gets.
func (c *call) done(err error) error {
	err = c.err(err) // before end, which cancels ctx
	c.end()
	return err
}

// do makes a call without a result.
func (e *Engine) do(ctx context.Context, ref string, w wake, f func(context.Context, *session) error) error {
	c, err := e.call(ctx, ref, true, w)
	if err != nil {
		return err
	}
	return c.done(f(c.ctx, c.m))
}

// get makes a call with a result.
func get[T any](ctx context.Context, e *Engine, ref string, w wake, f func(context.Context, *session) (T, error)) (T, error) {
	c, err := e.call(ctx, ref, true, w)
	if err != nil {
		return *new(T), err
	}
	v, err := f(c.ctx, c.m)
	return v, c.done(err)
}

// output is the output of a command. Its call lasts until Close. The call is not
// activity, but each event that arrives is.
type output struct {
	sandbox.Output
	call *call
}

func (o *output) Next() (sandbox.Event, error) {
	ev, err := o.Output.Next()
	if err == nil {
		o.call.m.idle.Touch()
		if ev.Command != nil {
			ev.Command.SandboxID = o.call.m.sandboxID
			o.call.e.noteStart(o.call.m, ev.Command)
		}
	}
	return ev, o.call.err(err)
}

func (o *output) Close() error {
	defer o.call.end()
	return o.Output.Close()
}

// watch is a file watch. Its call lasts until Close. A watch is not activity: a file
// changes because of a command or a call, which is activity itself.
type watch struct {
	sandbox.Watch
	call *call
}

func (w *watch) Next() (sandbox.FileEvent, error) {
	ev, err := w.Watch.Next()
	if err == nil {
		return ev, nil
	}
	if err == io.EOF { // the guest is shutting down
		w.call.awaitEnd()
	}
	err = w.call.err(err)
	if cay.CodeOf(err) == cay.Stopped {
		err = io.EOF
	}
	return ev, err
}

func (w *watch) Close() error {
	defer w.call.end()
	return w.Watch.Close()
}

// body is the content of a file or an archive. Its call lasts until Close.
type body struct {
	io.ReadCloser
	call *call
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	return n, b.call.err(err)
}

// WriteTo keeps the fast path of the guest client's reader.
func (b *body) WriteTo(w io.Writer) (int64, error) {
	n, err := io.Copy(w, b.ReadCloser)
	return n, b.call.err(err)
}

func (b *body) Close() error {
	defer b.call.end()
	return b.ReadCloser.Close()
}

// typed is standard input that is being sent to a guest; each read is activity.
type typed struct {
	io.Reader
	call *call
}

func (t typed) Read(p []byte) (int, error) {
	n, err := t.Reader.Read(p)
	t.call.m.idle.Touch()
	return n, err
}
