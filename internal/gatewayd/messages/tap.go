package messages

import (
	"bytes"
	"encoding/json"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/sse"
)

// Tap watches a passed answer. For a stream it keeps only counts, for a whole answer up
// to 64 MiB of the body.
func (*Format) Tap(t *hub.Target, stream bool) hub.Tap {
	if stream {
		return &streamTap{target: t, split: sse.NewSplitter(maxEvent)}
	}
	return &wholeTap{target: t}
}

// streamTap decodes the two events with usage and counts the bytes of the others.
type streamTap struct {
	target *hub.Target
	split  *sse.Splitter
	counts counts
	seen   hub.Seen
	begun  bool
	told   bool // message_start has come
	code   bool // the provider has run some
	// nonsense: an event was not a JSON object, or began a second answer.
	nonsense bool
}

func (s *streamTap) Write(p []byte) { s.split.Write(p, s.event) }
func (s *streamTap) Begun() bool    { return s.begun }

// Nonsense reports whether an event of the answer was not a JSON object, or began another
// answer.
func (s *streamTap) Nonsense() bool { return s.nonsense }

func (s *streamTap) event(e sse.Event) {
	if s.seen.Complete || s.seen.Err != nil || s.nonsense {
		return
	}
	name := e.Name
	if len(name) == 0 {
		name = []byte(gjson.GetBytes(e.Data, "type").Str)
	}
	switch {
	case bytes.HasPrefix(name, []byte("message_")):
		s.nonsense = !json.Valid(e.Data)
	case bytes.HasPrefix(name, []byte("content_block_")):
		s.nonsense = !hub.ClosedObject(e.Data)
	}
	if s.nonsense {
		return
	}
	switch string(name) { // without a copy, because this runs for every event of a stream
	case "content_block_delta":
		s.begun = true
		s.seen.OutputBytes += deltaBytes(e.Data)
	case "content_block_start":
		s.begun = true
		if bytes.Contains(e.Data, []byte(codeExecution)) {
			block := gjson.GetBytes(e.Data, "content_block")
			s.code, s.seen.Kept = s.code || runsCode(block), filesOf(s.seen.Kept, block)
		}
	case "message_start", "message_delta":
		s.message(string(name), gjson.ParseBytes(e.Data))
	case "message_stop":
		s.seen.Complete = true
	case "error":
		if json.Valid(e.Data) {
			s.seen.Err = errorOf(s.target, gjson.GetBytes(e.Data, "error"))
		} else {
			s.seen.Err = errorOf(s.target, gjson.Result{})
		}
	}
}

// deltaBytes returns the length of a delta's text, which is the last string in it. It is
// an estimate: escapes count in their escaped form.
func deltaBytes(data []byte) int64 {
	if bytes.Contains(data, []byte(`"signature_delta"`)) {
		return 0
	}
	start := bytes.LastIndex(data, []byte(`":"`)) + len(`":"`)
	return int64(max(0, bytes.LastIndexByte(data, '"')-start))
}

func (s *streamTap) message(name string, e gjson.Result) {
	about := e.Get("delta")
	if name == "message_start" {
		about = e.Get("message")
		if id := about.Get("id").Str; s.told {
			s.nonsense = id != s.seen.Response.ID // a second answer within the first
			return
		}
		s.told = true
		s.seen.Response = hub.Response{ID: about.Get("id").Str, Model: about.Get("model").Str}
		s.counts.add(about.Get("usage"))
		if content := about.Get("content"); len(content.Array()) > 0 {
			s.begun = true
			s.seen.OutputBytes += int64(len(content.Raw))
		}
	}
	s.seen.Kept = keep(s.seen.Kept, about.Get("container.id"))
	s.counts.add(e.Get("usage"))
	if reason := about.Get("stop_reason").Str; reason != "" {
		s.seen.Finish = hub.Finish{Reason: reasonOf(reason), Raw: reason}
	}
}

func (s *streamTap) End() hub.Seen {
	s.seen.Usage = s.counts.usage(s.code)
	return s.seen
}

type wholeTap struct {
	target *hub.Target
	body   []byte
	total  int64
}

func (w *wholeTap) Write(p []byte) {
	w.total += int64(len(p))
	if len(w.body)+len(p) <= maxAnswer {
		w.body = append(w.body, p...)
	}
}

func (w *wholeTap) Begun() bool { return w.total > 0 }

func (w *wholeTap) End() hub.Seen {
	seen := hub.Seen{OutputBytes: w.total}
	if int64(len(w.body)) != w.total || !json.Valid(w.body) {
		return seen
	}
	m := gjson.ParseBytes(w.body)
	if m.Get("type").Str == "error" {
		seen.Err = errorOf(w.target, m.Get("error"))
		return seen
	}
	var c counts
	c.add(m.Get("usage"))
	code := false
	seen.Kept = keep(nil, m.Get("container.id"))
	m.Get("content").ForEach(func(_, block gjson.Result) bool {
		code, seen.Kept = code || runsCode(block), filesOf(seen.Kept, block)
		return true
	})
	seen.Usage = c.usage(code)
	seen.Response = hub.Response{ID: m.Get("id").Str, Model: m.Get("model").Str}
	if reason := m.Get("stop_reason").Str; reason != "" {
		seen.Finish = hub.Finish{Reason: reasonOf(reason), Raw: reason}
	}
	seen.OutputBytes = int64(len(m.Get("content").Raw))
	seen.Complete = m.Get("type").Str == "message"
	return seen
}
