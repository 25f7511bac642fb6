package aisdk

import "github.com/cayhq/cay/internal/gatewayd/hub"

// NewWriter implements hub.Surface.
func (*Format) NewWriter(a hub.Answer) hub.Writer { return &writer{answer: newAnswer(a)} }

// writer writes the stream parts of an answer: data: <JSON>, and an empty line.
type writer struct {
	answer
	begun bool // content has been written
	// options holds the metadata of open blocks. The client replaces the metadata of a
	// block's earlier part by that of a later part, so each part carries all metadata so
	// far.
	options map[string]hub.Options
	// hidden are tool inputs that are not written; see strange.
	hidden map[string]bool
}

var _ hub.Writer = (*writer)(nil)

// Append implements hub.Writer.
func (w *writer) Append(dst []byte, e *hub.Event) []byte {
	switch e.Kind {
	case hub.Start:
		dst = event(dst, "stream-start")
		return end(w.warnings(dst, e.Warnings))
	case hub.Metadata:
		return end(w.response(event(dst, "response-metadata"), e.Response))
	case hub.TextStart:
		return w.block(dst, "text-start", e)
	case hub.TextDelta:
		return w.delta(dst, "text-delta", e)
	case hub.TextEnd:
		return w.close(dst, "text-end", e)
	case hub.ReasoningStart:
		return w.block(dst, "reasoning-start", e)
	case hub.ReasoningDelta:
		return w.delta(dst, "reasoning-delta", e)
	case hub.ReasoningEnd:
		return w.close(dst, "reasoning-end", e)
	case hub.InputStart:
		if w.strange(e.Name, e.ProviderExecuted, e.Dynamic) {
			w.hide(e.ID)
			return dst
		}
		return w.block(dst, "tool-input-start", e)
	case hub.InputDelta:
		if w.hidden[e.ID] {
			return dst
		}
		return w.delta(dst, "tool-input-delta", e)
	case hub.InputEnd:
		if w.hidden[e.ID] {
			return dst
		}
		return w.close(dst, "tool-input-end", e)
	case hub.Whole:
		return w.whole(dst, e.Part)
	case hub.Finished:
		return w.finish(dst, e)
	case hub.Failure:
		return w.fail(dst, e.Err)
	case hub.Raw:
		if w.Call == nil || !w.Call.IncludeRaw {
			return dst
		}
		return end(raw(key(event(dst, "raw"), "rawValue"), e.Raw))
	case hub.Ping:
		return w.KeepAlive(dst)
	}
	return dst
}

// fail appends an error part. ai 7 decides by the status whether to retry.
func (w *writer) fail(dst []byte, e *hub.Error) []byte {
	dst = w.failure(key(event(dst, "error"), "error"), e)
	dst = dst[:len(dst)-1]
	dst = count(dst, "statusCode", hub.N(int64(wordOf(e.Kind).status)))
	return end(append(optional(dst, "generationId", w.ID), '}'))
}

// KeepAlive implements hub.Writer. Versions before 4 have no keep-alive part, and an
// unknown part ends the stream, so they get a comment.
func (w *writer) KeepAlive(dst []byte) []byte {
	if w.Version != "4" {
		return append(dst, ": ping\n\n"...)
	}
	return append(dst, "data: {\"type\":\"ping\"}\n\n"...)
}

func event(dst []byte, kind string) []byte {
	dst = append(dst, `data: {"type":"`...)
	return append(append(dst, kind...), '"')
}

func end(dst []byte) []byte { return append(dst, "}\n\n"...) }

// first returns the providerMetadata.gateway of the first content part: its generation id
// lets a caller that loses the stream look up the request.
func (w *writer) first() []byte {
	if w.begun || w.Metadata == nil || w.ID == "" {
		w.begun = true
		return nil
	}
	w.begun = true
	return append(text([]byte{'{'}, "generationId", w.ID), '}')
}

func (w *writer) hide(id string) {
	if w.hidden == nil {
		w.hidden = make(map[string]bool)
	}
	w.hidden[id] = true
}

func (w *writer) block(dst []byte, kind string, e *hub.Event) []byte {
	dst = text(event(dst, kind), "id", e.ID)
	if e.Kind == hub.InputStart {
		dst = text(dst, "toolName", e.Name)
		dst = yes(dst, "providerExecuted", e.ProviderExecuted)
		dst = yes(dst, "dynamic", e.Dynamic && w.Version != "2")
	}
	return end(metadata(dst, w.merged(e), w.first()))
}

func (w *writer) delta(dst []byte, kind string, e *hub.Event) []byte {
	if e.Delta == "" && len(e.Options) == 0 {
		return dst
	}
	dst = text(event(dst, kind), "id", e.ID)
	dst = text(dst, "delta", e.Delta)
	return end(metadata(dst, w.merged(e), nil))
}

func (w *writer) close(dst []byte, kind string, e *hub.Event) []byte {
	dst = text(event(dst, kind), "id", e.ID)
	dst = end(metadata(dst, w.merged(e), nil))
	delete(w.options, e.ID)
	return dst
}

// merged returns all metadata of a block so far, nil if the event has none, because the
// client then keeps the previous metadata.
func (w *writer) merged(e *hub.Event) hub.Options {
	if len(e.Options) == 0 {
		return nil
	}
	if w.options == nil {
		w.options = make(map[string]hub.Options)
	}
	all := w.options[e.ID]
	all.Merge(e.Options)
	w.options[e.ID] = all
	return all
}

func (w *writer) whole(dst []byte, p *hub.Part) []byte {
	begun := w.begun
	with, ok := w.part(append(dst, "data: "...), p, w.first())
	if !ok {
		w.begun = begun
		return dst
	}
	return append(with, "\n\n"...)
}

// finish appends the last part. Warnings after the first part go to
// providerMetadata.gateway.warnings.
func (w *writer) finish(dst []byte, e *hub.Event) []byte {
	dst = event(dst, "finish")
	dst = w.finishReason(dst, e.Finish)
	dst = w.usage(dst, e.Usage)
	ours := w.ours()
	if len(w.late) > 0 {
		late := answer{Answer: hub.Answer{Version: w.Version}}
		ours = extend(ours, func(dst []byte) []byte { return late.warnings(dst, w.late) })
	}
	return end(metadata(dst, e.Options, ours))
}
