package gatewayd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/chatcompletions"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/messages"
	"github.com/cayhq/cay/internal/gatewayd/request"
	"github.com/cayhq/cay/internal/gatewayd/scan"
	"github.com/cayhq/cay/internal/sse"
)

// This file passes bytes between a client and a provider that speak the same format. A
// few things change. In a request, the model's name is replaced and the gateway's options
// are removed; in an answer, data that only the gateway requested is removed.

const (
	maxWhole = 64 << 20 // bytes of an answer that is not streamed
	maxEvent = 16 << 20 // bytes of an event
	maxHeld  = 64 << 10 // bytes of a stream held back until content arrives
)

// Formats whose requests need more changes than the model's name.
const (
	formatChat      = "chatcompletions"
	formatMessages  = "messages"
	formatResponses = "responses"
)

// outgoing returns the request to send to a provider that speaks the client's format, and
// whether the answer will have a usage event that the client did not ask for. key is the
// caller's, nil for a token.
func outgoing(rq *request.Request, t *hub.Target, key *gateway.Key) (out *hub.Outgoing, hide bool) {
	changes := make([]scan.Change, 0, 6)
	changes = append(changes, scan.Set("model", gjson.AppendJSONString(nil, t.Model)))
	for _, ours := range [...]string{"providerOptions", "models"} {
		if rq.Object.Find(ours) != nil {
			changes = append(changes, scan.Delete(ours))
		}
	}
	if rq.Capped(key) {
		name := rq.Route.Limits[0]
		if rq.Route.Name == formatChat && t.Is(quirkOpenAI) { // OpenAI has two names for the limit, and some models refuse the older
			name = "max_completion_tokens"
		}
		changes = append(changes, scan.Set(name, appendInt(nil, rq.MaxOutput)))
	}
	switch rq.Route.Surface.Name() {
	case formatChat:
		if rq.Stream && !t.Is(quirkNoUsage) {
			var with []byte
			if with, hide = withUsage(rq.Object.Get("stream_options")); with != nil {
				changes = append(changes, scan.Set("stream_options", with))
			}
		}
		fallthrough
	case formatResponses:
		if rq.Options.Tier != "" && rq.Object.Find("service_tier") == nil {
			changes = append(changes, scan.Set("service_tier", gjson.AppendJSONString(nil, rq.Options.Tier)))
		}
	case formatMessages:
		if rq.Options.AutoCache && rq.Object.Find("cache_control") == nil {
			changes = append(changes, scan.Set("cache_control", []byte(`{"type":"ephemeral"}`)))
		}
	}
	out = &hub.Outgoing{Path: rq.Route.PassPath, Body: rq.Object.Edit(changes...)}
	if rq.Route.Surface.Name() == formatMessages {
		if rq.HTTP.Header["Anthropic-Version"] == nil {
			out.Head = anthropicVersion
		}
		out = messages.Address(t, out, rq.HTTP.Header["Anthropic-Beta"], rq.Stream)
	}
	return out, hide
}

// withUsage returns stream_options that ask for the usage, nil if options already do;
// hide says that the client did not ask. A duplicate include_usage is reduced to one,
// because parsers differ in whether the first or the last counts.
func withUsage(options []byte) (with []byte, hide bool) {
	with = append(with, '{')
	asked, times := false, 0
	all := gjson.ParseBytes(options)
	if !all.IsObject() {
		return []byte(`{"include_usage":true}`), true
	}
	all.ForEach(func(key, v gjson.Result) bool {
		if key.Str == "include_usage" {
			asked, times = v.Type == gjson.True, times+1
			return true
		}
		with = append(append(append(append(with, key.Raw...), ':'), v.Raw...), ',')
		return true
	})
	if asked && times == 1 {
		return nil, false
	}
	return append(with, `"include_usage":true}`...), !asked
}

var anthropicVersion = http.Header{"Anthropic-Version": {"2023-06-01"}}

// Quirks of chat completions that change requests.
const (
	quirkNoUsage   = chatcompletions.NoStreamOptions
	quirkOpenAI    = chatcompletions.OpenAI
	quirkReasoning = chatcompletions.ReasoningObject
)

// plainFor reports whether the request has no gateway extensions of the format that the
// target does not know.
func plainFor(rq *request.Request, t *hub.Target) bool {
	return rq.Route.Name != formatChat || rq.Object.Find("reasoning") == nil || t.Is(quirkReasoning)
}

// buffers are read buffers for streams. Each open stream holds one, and mostly waits.
var buffers = sync.Pool{New: func() any { b := make([]byte, 8<<10); return &b }}

// relayWhole passes an unstreamed answer. It sends nothing before the answer is complete,
// so that a client cannot mistake half an answer for a whole one.
func (x *exchange) relayWhole(resp *http.Response, tap hub.Tap) *hub.Error {
	defer resp.Body.Close()
	rq := &x.cl.rq
	body, err := x.readAll(resp)
	if err != nil {
		return err
	}
	tap.Write(body)
	seen := tap.End()
	if seen.Err != nil {
		if seen.Usage != nil { // the provider has worked
			x.saw(&seen)
		}
		seen.Err.Provider = x.o.Provider.Name
		return x.redacted(seen.Err)
	}
	if !seen.Complete {
		x.OutputBytes = seen.OutputBytes
		return x.cutShort("an answer that makes no sense")
	}
	x.firstContent()
	x.saw(&seen)
	if m, ok := x.e.upstreams[rq.Route.Surface.Name()].(hub.WholeMender); ok {
		body = m.MendWhole(x.target, body)
	}
	if x.transcript != nil {
		if r, err := x.e.upstreams[rq.Route.Surface.Name()].ReadResult(x.target, body); err == nil {
			x.transcript.result(r)
		}
	}
	if rq.Options.Given {
		if with, err := sjson.SetRawBytes(body, rq.Route.MetadataPath, wrapMetadata(x.host.metadata())); err == nil {
			body = with
		}
	}
	if body, err = x.host.guarded(body); err != nil {
		x.withheld = true
		return err
	}
	x.headers(x.cl.out.w.Header())
	x.cl.out.whole(http.StatusOK, "application/json", body)
	return nil
}

// readAll reads a whole answer.
func (x *exchange) readAll(resp *http.Response) ([]byte, *hub.Error) {
	var body []byte
	var err error
	if n := resp.ContentLength; n >= 0 && n < 1<<20 {
		body = make([]byte, n)
		var came int
		came, err = io.ReadFull(resp.Body, body)
		body = body[:came]
		if err == nil { // to EOF, so that the connection is reused
			var more [1]byte
			_, _ = resp.Body.Read(more[:])
		}
	} else {
		body, err = io.ReadAll(io.LimitReader(resp.Body, maxWhole+1))
	}
	if err != nil {
		x.OutputBytes += int64(len(body))
	}
	switch {
	case err != nil && x.ctx.Err() != nil:
		return nil, broken(x.ctx, x.o.Provider.Name, err)
	case err != nil:
		e := x.cutShort("an answer that broke off")
		e.Cause = err
		return nil, e
	case len(body) > maxWhole:
		return nil, x.cutShort("an answer that is too large")
	}
	return body, nil
}

func (x *exchange) cutShort(what string) *hub.Error {
	x.unusable = true
	name := x.o.Provider.Name
	return &hub.Error{Kind: hub.UpstreamFailed, Status: x.record.Status, Provider: name, Message: "the provider " + name + " gave " + what}
}

// relayStream passes a stream, in whole events.
func (x *exchange) relayStream(resp *http.Response, tap hub.Tap, hide bool) *hub.Error {
	defer resp.Body.Close()
	rq := &x.cl.rq
	x.stream()
	p := passer{x: x, tap: tap, hide: hide}
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	begun := false
	var err error
	for err == nil {
		var n int
		n, err = resp.Body.Read(*buf)
		if n == 0 {
			continue
		}
		if p.seen == nil {
			tap.Write((*buf)[:n])
			if d, ok := tap.(hub.Doubter); ok && d.Nonsense() {
				err = errNonsense
				break
			}
		}
		x.transcript.chunk((*buf)[:n])
		if !begun && tap.Begun() {
			begun = true
			x.firstContent()
		} else if _, timed := rq.Options.Timeouts[x.o.Provider.Name]; begun || !timed {
			x.extend()
		}
		out, bad := p.next((*buf)[:n])
		if bad != nil {
			err = bad
		}
		if len(out) == 0 {
			continue
		}
		var gone error
		if begun || x.cl.out.heldBytes() > maxHeld {
			gone = x.cl.out.send(out)
		} else {
			gone = x.cl.out.hold(out)
		}
		if gone != nil {
			x.cancel(hub.ErrLeft)
			err = gone
		}
	}
	if p.seen == nil {
		seen := tap.End()
		p.seen = &seen
	}
	x.transcript.decode(x.e.upstreams[rq.Route.Surface.Name()], x.target)
	return x.relayed(&p, err)
}

// relayed ends a passed stream.
func (x *exchange) relayed(p *passer, err error) *hub.Error {
	seen := p.seen
	x.saw(seen)
	var failed *hub.Error
	switch _, _, _, gone := x.cl.out.state(); {
	case gone != nil || err != io.EOF && x.cl.ctx.Err() != nil && context.Cause(x.cl.ctx) != errStopping:
		x.failed = hub.Left()
		return nil
	case seen.Err != nil:
		failed = x.redacted(seen.Err)
		failed.Provider = x.o.Provider.Name
	case err == io.EOF && seen.Complete:
		if p.rest() != nil { // a last event without its blank line
			_ = x.cl.out.hold(p.rest())
		}
		_ = x.cl.out.send(nil)
		return nil
	case err != io.EOF && x.ctx.Err() != nil:
		failed = broken(x.ctx, x.o.Provider.Name, err)
	case errors.Is(err, errEventTooLarge):
		failed = x.cutShort("an event that is too large")
	case errors.Is(err, errNonsense):
		failed = x.cutShort("an event that makes no sense")
	default:
		failed = x.cutShort("an answer that broke off")
		failed.Cause = err
	}
	if x.cl.out.drop() { // nothing was sent: an error status or another provider's answer is still possible
		return failed
	}
	x.failed = failed
	if seen.Err == nil { // otherwise the client has received the error
		_ = x.cl.out.send(x.newWriter().Append(nil, &hub.Event{Kind: hub.Failure, Err: failed}))
	}
	return nil
}

var (
	errEventTooLarge = errors.New("an event is too large")
	errNonsense      = errors.New("an event makes no sense")
)

// passer splits a stream into whole events, and drops or changes a few of them.
type passer struct {
	x    *exchange
	tap  hub.Tap
	hide bool
	tail []byte // of an incomplete event
	old  []byte // the previous buffer of tail
	out  []byte
	seen *hub.Seen // once the tap has ended
}

// next returns the events that b completes. They are valid until the next call.
func (p *passer) next(b []byte) ([]byte, error) {
	looked := 0 // where no event ends; a blank line may have begun
	if len(p.tail) > 0 {
		looked = max(0, len(p.tail)-2)
		p.tail = append(p.tail, b...)
		b = p.tail
	}
	end := sse.LastEnd(b[looked:])
	if end > 0 {
		end += looked
	}
	rest := b[end:]
	if len(rest) > maxEvent {
		return nil, errEventTooLarge
	}
	if end == 0 {
		if len(p.tail) == 0 {
			p.tail = append(p.tail, rest...)
		}
		return nil, nil
	}
	p.tail, p.old = append(p.old[:0], rest...), p.tail // b may share memory with the old tail
	return p.edit(b[:end]), nil
}

// rest returns the final event if the stream ends without the event's blank line.
func (p *passer) rest() []byte {
	if len(bytes.TrimSpace(p.tail)) == 0 {
		return nil
	}
	return append(p.edit(p.tail), "\n\n"...)
}

// edit removes the usage event that the gateway requested, and adds the gateway's
// metadata to the last event if the request had gateway options.
func (p *passer) edit(b []byte) []byte {
	usage := p.hide && (bytes.Contains(b, []byte(`"choices":[]`)) || bytes.Contains(b, []byte(`"choices": []`)))
	rt := p.x.cl.rq.Route
	last := p.x.cl.rq.Options.Given && p.seen == nil && bytes.Contains(b, rt.LastEvent)
	if !usage && !last {
		return b
	}
	p.out = p.out[:0]
	for len(b) > 0 {
		n := sse.FirstEnd(b)
		event := b[:n]
		b = b[n:]
		data := sse.DataOf(event)
		switch {
		case usage && isUsage(data):
			continue
		case last && isLast(rt, data):
			seen := p.tap.End()
			p.seen = &seen
			p.x.saw(&seen)
			p.out = p.x.appendLast(p.out, event, data)
			continue
		}
		p.out = append(p.out, event...)
	}
	return p.out
}

// isUsage reports whether data is a chat completions chunk with only usage.
func isUsage(data []byte) bool {
	r := gjson.ParseBytes(data)
	choices := r.Get("choices")
	return choices.IsArray() && len(choices.Array()) == 0 && r.Get("usage").IsObject()
}
