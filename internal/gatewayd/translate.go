package gatewayd

import (
	"io"
	"net/http"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// This file serves calls whose client and provider speak different formats; requests and
// answers go through the hub.

// maxCalls is the maximum number of tool calls in an answer.
const maxCalls = 1024

// translateWhole translates a provider's whole answer to the client's format.
func (x *exchange) translateWhole(resp *http.Response, up hub.Upstream, warnings []hub.Warning) *hub.Error {
	defer resp.Body.Close()
	body, err := x.readAll(resp)
	if err != nil {
		return err
	}
	result, bad := up.ReadResult(x.target, body)
	if bad != nil {
		x.unusable = !gjson.ValidBytes(body)
		e := hub.AsError(bad)
		e.Provider = x.o.Provider.Name
		if e.Status == 0 {
			e.Status = x.record.Status
		}
		return x.redacted(e)
	}
	return x.answerWhole(result, warnings)
}

// answerWhole sends a whole answer, as a stream if the client wants one and the answer
// had to be buffered.
func (x *exchange) answerWhole(result *hub.Result, warnings []hub.Warning) *hub.Error {
	rq := &x.cl.rq
	calls := 0
	for i := range result.Content {
		if result.Content[i].Kind == hub.ToolCallPart {
			calls++
		}
	}
	if calls > maxCalls {
		return x.cutShort("an answer with too many calls of tools")
	}
	x.firstContent()
	result.Warnings = append(append(append([]hub.Warning(nil), x.cl.doc.Call.Warnings...), warnings...), result.Warnings...)
	x.OutputBytes = contentBytes(result)
	x.transcript.result(result)
	x.sawUsage(result.Usage, result.Response, result.Finish, true)
	if err := x.v.Guards.Result(result); err != nil {
		x.withheld = true
		e := *hub.AsError(err)
		e.Kind = hub.Forbidden
		return &e
	}
	if rq.Stream {
		x.stream()
		t := newTranslation(x, nil)
		t.whole = true
		_ = t.add(result.Events()) // t keeps the error
		return t.end()
	}
	out, bad := rq.Route.Surface.WriteResult(x.host.hubAnswer(), result)
	if bad != nil {
		return hub.AsError(bad)
	}
	out, failed := x.host.guarded(out)
	if failed != nil {
		return failed
	}
	x.headers(x.cl.out.w.Header())
	x.cl.out.whole(http.StatusOK, "application/json", out)
	return nil
}

// contentBytes returns the size of the generated content.
func contentBytes(r *hub.Result) (n int64) {
	for i := range r.Content {
		n += partBytes(&r.Content[i])
	}
	return n
}

func partBytes(p *hub.Part) int64 {
	n := len(p.Text)
	if p.Call != nil {
		n += len(p.Call.Name) + len(p.Call.Input)
	}
	return int64(n)
}

// translateStream translates the events of the provider's stream to the client's format,
// one read at a time.
func (x *exchange) translateStream(resp *http.Response, up hub.Upstream, warnings []hub.Warning) *hub.Error {
	defer resp.Body.Close()
	x.stream()
	t := newTranslation(x, warnings)
	read := up.NewReader(x.target, resp.Body)
	for !t.ended {
		events, err := read.Next()
		if _, timed := x.cl.rq.Options.Timeouts[x.o.Provider.Name]; !timed || t.begun {
			x.extend()
		}
		if err != nil {
			failed := t.why(err)
			events = []hub.Event{{Kind: hub.Failure, Err: failed}}
		}
		if gone := t.add(events); gone != nil {
			x.cancel(hub.ErrLeft)
			break
		}
		if t.failed != nil {
			break
		}
	}
	if !t.ended {
		t.usage = read.Usage()
	}
	return t.end()
}

// translation is a stream being translated.
type translation struct {
	x        *exchange
	w        hub.Writer
	buf      []byte
	warnings []hub.Warning
	begun    bool // content has arrived
	ended    bool
	whole    bool // the events come from a whole answer
	calls    int
	failed   *hub.Error
	usage    *hub.Usage
	response hub.Response
	finish   hub.Finish
}

func newTranslation(x *exchange, warnings []hub.Warning) *translation {
	t := &translation{x: x, w: x.newWriter()}
	if rq := &x.cl.rq; rq.Stream && !x.v.Buffers(rq) {
		t.warnings = append(append(t.warnings, x.cl.doc.Call.Warnings...), warnings...)
	}
	return t
}

// why returns the error for a failed read.
func (t *translation) why(err error) *hub.Error {
	if err == io.EOF || t.x.ctx.Err() == nil {
		e := t.x.cutShort("an answer that broke off")
		e.Cause = err
		return e
	}
	return broken(t.x.ctx, t.x.o.Provider.Name, err)
}

// add translates and sends events. An error means that the client has left.
func (t *translation) add(events []hub.Event) error {
	x := t.x
	t.buf = t.buf[:0]
	for i := range events {
		e := &events[i]
		switch e.Kind {
		case hub.Start:
			if len(t.warnings) > 0 {
				e.Warnings = append(t.warnings, e.Warnings...)
				t.warnings = nil
			}
		case hub.Metadata:
			t.response = e.Response
		case hub.TextDelta, hub.ReasoningDelta, hub.InputDelta:
			x.OutputBytes += int64(len(e.Delta))
		case hub.Whole:
			if e.Part.Kind == hub.ToolCallPart {
				t.calls++
			}
		case hub.Finished:
			t.ended = true
			t.usage, t.finish = e.Usage, e.Finish
			x.sawUsage(e.Usage, t.response, e.Finish, true)
		case hub.Failure:
			t.failed = e.Err
			x.unusable = e.Err.Kind == hub.UpstreamFailed && e.Err.Code == "" // the reader's own error: errors of providers have codes
			if t.failed.Kind == hub.UpstreamFailed && x.ctx.Err() != nil {    // it could not know
				t.failed = broken(x.ctx, x.o.Provider.Name, t.failed)
				if known, ok := t.failed, x.ctx.Err() != nil; ok && known.Kind == hub.UpstreamFailed {
					t.failed = cutOff(x, known)
				}
			}
			if t.failed.Provider == "" && t.failed.Kind != hub.Canceled {
				t.failed.Provider = x.o.Provider.Name
			}
			e.Err = x.redacted(t.failed)
		}
		if t.calls > maxCalls && t.failed == nil {
			t.failed = x.cutShort("an answer with too many calls of tools")
			e = &hub.Event{Kind: hub.Failure, Err: t.failed}
		}
		if t.failed != nil {
			return t.fail(e)
		}
		if x.transcript != nil && !t.whole {
			x.transcript.Add(e)
		}
		if !t.begun && isContent(e.Kind) {
			t.begun = true
			x.firstContent()
		}
		t.buf = t.w.Append(t.buf, e)
	}
	if t.begun || t.ended || x.cl.out.heldBytes() > maxHeld {
		if len(t.buf) == 0 {
			return nil
		}
		return x.cl.out.send(t.buf)
	}
	return x.cl.out.hold(t.buf)
}

// cutOff replaces an error by the reason for which the attempt was canceled.
func cutOff(x *exchange, e *hub.Error) *hub.Error { return broken(x.ctx, x.o.Provider.Name, e.Cause) }

// fail ends the stream with an error, if any of it has been sent.
func (t *translation) fail(e *hub.Event) error {
	out := &t.x.cl.out
	if out.drop() {
		return nil
	}
	if t.failed.Kind == hub.Canceled {
		return errGone
	}
	return out.send(t.w.Append(t.buf, e))
}

func (t *translation) end() *hub.Error {
	x := t.x
	if !t.ended {
		x.sawUsage(t.usage, t.response, hub.Finish{}, false)
	}
	begun, _, _, gone := x.cl.out.state()
	switch {
	case gone != nil || t.failed != nil && t.failed.Kind == hub.Canceled:
		x.failed = hub.Left()
		return nil
	case t.failed != nil && !begun:
		return t.failed
	case t.failed != nil:
		x.failed = t.failed
	}
	return nil
}

func isContent(k hub.EventKind) bool {
	switch k {
	case hub.TextStart, hub.TextDelta, hub.ReasoningStart, hub.ReasoningDelta, hub.InputStart, hub.InputDelta, hub.Whole:
		return true
	}
	return false
}
