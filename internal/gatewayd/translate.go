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
func (a *attempt) translateWhole(resp *http.Response, up hub.Upstream, warnings []hub.Warning) *hub.Error {
	defer resp.Body.Close()
	body, err := a.readAll(resp)
	if err != nil {
		return err
	}
	result, bad := up.ReadResult(a.target, body)
	if bad != nil {
		a.cut = !gjson.ValidBytes(body)
		e := asError(bad)
		e.Provider = a.o.provider.Name
		if e.Status == 0 {
			e.Status = a.record.Status
		}
		return a.redacted(e)
	}
	return a.answerWhole(result, warnings)
}

// answerWhole sends a whole answer, as a stream if the client wants one and the answer
// had to be buffered.
func (a *attempt) answerWhole(result *hub.Result, warnings []hub.Warning) *hub.Error {
	c := a.c
	calls := 0
	for i := range result.Content {
		if result.Content[i].Kind == hub.ToolCallPart {
			calls++
		}
	}
	if calls > maxCalls {
		return a.cutShort("an answer with too many calls of tools")
	}
	a.content()
	result.Warnings = append(append(append([]hub.Warning(nil), c.parsed.Warnings...), warnings...), result.Warnings...)
	c.outputBytes = contentBytes(result)
	c.said.result(result)
	c.sawUsage(a, result.Usage, result.Response, result.Finish, true)
	if err := c.v.Guards.Result(result); err != nil {
		c.answered = true
		e := *asError(err)
		e.Kind = hub.Forbidden
		return &e
	}
	if c.stream {
		a.stream()
		t := newTranslation(a, nil)
		t.whole = true
		_ = t.add(result.Events()) // t keeps the error
		return t.end()
	}
	out, bad := c.rt.surface.WriteResult(c.hubAnswer(), result)
	if bad != nil {
		return asError(bad)
	}
	out, failed := c.guarded(out)
	if failed != nil {
		return failed
	}
	c.headers(c.out.w.Header())
	c.out.whole(http.StatusOK, "application/json", out)
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
func (a *attempt) translateStream(resp *http.Response, up hub.Upstream, warnings []hub.Warning) *hub.Error {
	defer resp.Body.Close()
	c := a.c
	a.stream()
	t := newTranslation(a, warnings)
	read := up.NewReader(a.target, resp.Body)
	for !t.ended {
		events, err := read.Next()
		if _, timed := c.opts.timeouts[a.o.provider.Name]; !timed || t.begun {
			a.heard()
		}
		if err != nil {
			failed := t.why(err)
			events = []hub.Event{{Kind: hub.Failure, Err: failed}}
		}
		if gone := t.add(events); gone != nil {
			a.cancel(errClient)
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
	a        *attempt
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

func newTranslation(a *attempt, warnings []hub.Warning) *translation {
	t := &translation{a: a, w: a.c.rt.surface.NewWriter(a.c.hubAnswer())}
	if a.c.stream && !a.c.buffers() {
		t.warnings = append(append(t.warnings, a.c.parsed.Warnings...), warnings...)
	}
	return t
}

// why returns the error for a failed read.
func (t *translation) why(err error) *hub.Error {
	if err == io.EOF || t.a.ctx.Err() == nil {
		e := t.a.cutShort("an answer that broke off")
		e.Cause = err
		return e
	}
	return broken(t.a.ctx, t.a.o.provider.Name, err)
}

// add translates and sends events. An error means that the client has left.
func (t *translation) add(events []hub.Event) error {
	a, c := t.a, t.a.c
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
			c.outputBytes += int64(len(e.Delta))
		case hub.Whole:
			if e.Part.Kind == hub.ToolCallPart {
				t.calls++
			}
		case hub.Finished:
			t.ended = true
			t.usage, t.finish = e.Usage, e.Finish
			c.sawUsage(a, e.Usage, t.response, e.Finish, true)
		case hub.Failure:
			t.failed = e.Err
			a.cut = e.Err.Kind == hub.UpstreamFailed && e.Err.Code == ""   // the reader's own error: errors of providers have codes
			if t.failed.Kind == hub.UpstreamFailed && a.ctx.Err() != nil { // it could not know
				t.failed = broken(a.ctx, a.o.provider.Name, t.failed)
				if known, ok := t.failed, a.ctx.Err() != nil; ok && known.Kind == hub.UpstreamFailed {
					t.failed = cutOff(a, known)
				}
			}
			if t.failed.Provider == "" && t.failed.Kind != hub.Canceled {
				t.failed.Provider = a.o.provider.Name
			}
			e.Err = a.redacted(t.failed)
		}
		if t.calls > maxCalls && t.failed == nil {
			t.failed = a.cutShort("an answer with too many calls of tools")
			e = &hub.Event{Kind: hub.Failure, Err: t.failed}
		}
		if t.failed != nil {
			return t.fail(e)
		}
		if c.said != nil && !t.whole {
			c.said.Add(e)
		}
		if !t.begun && isContent(e.Kind) {
			t.begun = true
			a.content()
		}
		t.buf = t.w.Append(t.buf, e)
	}
	if t.begun || t.ended || c.out.heldBytes() > maxHeld {
		if len(t.buf) == 0 {
			return nil
		}
		return c.out.send(t.buf)
	}
	return c.out.hold(t.buf)
}

// cutOff replaces an error by the reason for which the attempt was canceled.
func cutOff(a *attempt, e *hub.Error) *hub.Error { return broken(a.ctx, a.o.provider.Name, e.Cause) }

// fail ends the stream with an error, if any of it has been sent.
func (t *translation) fail(e *hub.Event) error {
	c := t.a.c
	if c.out.drop() {
		return nil
	}
	if t.failed.Kind == hub.Canceled {
		return errGone
	}
	return c.out.send(t.w.Append(t.buf, e))
}

func (t *translation) end() *hub.Error {
	a, c := t.a, t.a.c
	if !t.ended {
		c.sawUsage(a, t.usage, t.response, hub.Finish{}, false)
	}
	begun, _, _, gone := c.out.state()
	switch {
	case gone != nil || t.failed != nil && t.failed.Kind == hub.Canceled:
		a.failed = canceled()
		c.failure = a.failed
		return nil
	case t.failed != nil && !begun:
		return t.failed
	case t.failed != nil:
		a.failed, c.failure = t.failed, t.failed
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
