package responses

import (
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Messages.

func (w *writer) textStart(id string, o hub.Options) {
	group := o.String(optProvider, optItemID)
	it := w.last
	if it == nil || it.kind != "message" || group == "" || it.group != group {
		it = &outItem{kind: "message", group: group, phase: o.String(optProvider, optPhase)}
		if it.id = group; group == "" {
			it.id = newID("msg_")
		}
		members := object{"role": "assistant", "status": "in_progress", "content": none}
		if it.phase != "" {
			members["phase"] = it.phase
		}
		w.open(it, members)
	} else {
		w.partDone(it)
	}
	w.last = nil
	part := &outPart{kind: "output_text", index: len(it.parts), open: true}
	if refused(o) {
		part.kind = "refusal"
	}
	it.parts = append(it.parts, part)
	w.blocks[id] = it
	w.emit("response.content_part.added", "item_id", it.id, "output_index", it.at, "content_index", part.index, "part", part.object())
	for _, a := range w.early {
		w.annotate(it, a)
	}
	w.early = nil
}

func (p *outPart) object() object {
	switch p.kind {
	case "refusal":
		return object{"type": p.kind, "refusal": p.text.String()}
	case "output_text":
		annotations, logprobs := p.annotations, p.logprobs
		if annotations == nil {
			annotations = []json.RawMessage{}
		}
		if logprobs == nil {
			logprobs = none
		}
		return object{"type": p.kind, "text": p.text.String(), "annotations": annotations, "logprobs": logprobs}
	}
	return object{"type": p.kind, "text": p.text.String()}
}

func (it *outItem) part() *outPart { return it.parts[len(it.parts)-1] }

func (w *writer) delta(it *outItem, s string) {
	if s == "" {
		return
	}
	p := it.part()
	p.text.WriteString(s)
	switch p.kind {
	case "output_text":
		w.emit("response.output_text.delta", "item_id", it.id, "output_index", it.at, "content_index", p.index, "delta", s, "logprobs", none)
	case "refusal":
		w.emit("response.refusal.delta", "item_id", it.id, "output_index", it.at, "content_index", p.index, "delta", s)
	case "summary_text":
		w.summaryBegin(it, p)
		w.emit("response.reasoning_summary_text.delta", "item_id", it.id, "output_index", it.at, "summary_index", p.index, "delta", s)
	case "reasoning_text":
		w.summaryBegin(it, p)
		w.emit("response.reasoning_text.delta", "item_id", it.id, "output_index", it.at, "content_index", p.index, "delta", s)
	}
}

// textEnd leaves the message waiting, because sources may follow.
func (w *writer) textEnd(id string, o hub.Options) {
	it := w.blocks[id]
	if it == nil {
		return
	}
	delete(w.blocks, id)
	it.options.Merge(o)
	p := it.part()
	if refused(it.options) && p.text.Len() == 0 {
		p.kind = "refusal"
	}
	p.logprobs = it.options[optProvider][optLogprobs]
	var annotations []json.RawMessage
	it.options.Get(optProvider, optAnnotated, &annotations)
	w.annotations(it, annotations)
	w.wait(it)
}

func (w *writer) wait(it *outItem) {
	if w.last != it {
		w.settle()
	}
	w.last = it
}

// annotations sets the provider's annotations of the text; their sources may have been
// written already.
func (w *writer) annotations(it *outItem, all []json.RawMessage) {
	p := it.part()
	before, known := p.annotations, p.known
	p.annotations, p.known = nil, nil
	for _, a := range all {
		p.refer(a)
		if known[refersTo(a)] {
			continue
		}
		w.emit("response.output_text.annotation.added", "item_id", it.id, "output_index", it.at,
			"content_index", p.index, "annotation_index", len(p.annotations)-1, "annotation", a)
	}
	for _, a := range before {
		if !p.known[refersTo(a)] {
			p.refer(a)
		}
	}
}

// refer adds an annotation.
func (p *outPart) refer(a json.RawMessage) {
	if p.known == nil {
		p.known = make(map[string]bool)
	}
	p.known[refersTo(a)] = true
	p.annotations = append(p.annotations, a)
}

// refersTo returns what an annotation refers to.
func refersTo(raw json.RawMessage) string {
	var a annotation
	if json.Unmarshal(raw, &a) != nil {
		return string(raw)
	}
	return a.URL + "\n" + a.FileID
}

func (w *writer) annotate(it *outItem, a json.RawMessage) {
	p := it.part()
	p.refer(a)
	w.emit("response.output_text.annotation.added", "item_id", it.id, "output_index", it.at,
		"content_index", p.index, "annotation_index", len(p.annotations)-1, "annotation", a)
}

// source writes a source as an annotation of the open text, or of the last text.
func (w *writer) source(p *hub.Part) {
	s := p.Source
	a := object{"type": "url_citation", "url": s.URL, "title": s.Title, "start_index": 0, "end_index": 0}
	if s.URL == "" {
		a = object{"type": "file_citation", "file_id": first(p.Options.String(optProvider, "fileId"), s.ID), "filename": first(s.Filename, s.Title), "index": 0}
	}
	raw := hub.MustEncode(a)
	it := w.last
	for _, b := range w.blocks {
		if b.kind == "message" {
			it = b
		}
	}
	if it == nil || it.kind != "message" {
		w.early = append(w.early, raw)
		return
	}
	if part := it.part(); part.kind != "output_text" || part.known[refersTo(raw)] {
		return
	}
	w.annotate(it, raw)
}

func (w *writer) partDone(it *outItem) {
	p := it.part()
	if !p.open {
		return
	}
	p.open = false
	at := []any{"item_id", it.id, "output_index", it.at, "content_index", p.index}
	if p.kind == "refusal" {
		w.emit("response.refusal.done", append(at, "refusal", p.text.String())...)
	} else {
		w.emit("response.output_text.done", append(at, "text", p.text.String(), "logprobs", none)...)
	}
	w.emit("response.content_part.done", append(at, "part", p.object())...)
}

func (w *writer) messageDone(it *outItem) {
	w.partDone(it)
	content := make([]object, len(it.parts))
	for i, p := range it.parts {
		content[i] = p.object()
	}
	item := object{"id": it.id, "type": it.kind, "role": "assistant", "status": "completed", "content": content}
	if it.phase != "" {
		item["phase"] = it.phase
	}
	w.done(it, item)
	w.afterthought(hub.TextPart, it.options)
}

// imageMark is the id prefix of images that another provider generated.
const imageMark = "ig_cay_"

// file writes an image as if a hosted tool had generated it. Other files become an item
// type that OpenAI does not have.
func (w *writer) file(p *hub.Part) {
	f := p.File
	if half, format, _ := strings.Cut(f.MediaType, "/"); half == "image" && len(f.Data) > 0 {
		it := &outItem{kind: "image_generation_call", id: hub.PackID(newID(imageMark), foreign(p.Options))}
		w.open(it, object{"status": "in_progress", "result": nil})
		w.done(it, object{"id": it.id, "type": it.kind, "status": "completed", "output_format": format,
			"result": base64.StdEncoding.EncodeToString(f.Data)})
		return
	}
	it := &outItem{kind: "cay:file", id: newID("file_")}
	members := object{"id": it.id, "type": it.kind, "status": "completed", "media_type": f.MediaType}
	switch {
	case f.URL != "":
		members["url"] = f.URL
	case f.Text != "":
		members["text"] = f.Text
	default:
		members["data"] = base64.StdEncoding.EncodeToString(f.Data)
	}
	w.open(it, object{"status": "in_progress"})
	w.done(it, members)
}

// customPart writes an OpenAI item in its original form. Another provider's custom part,
// which clients only send back, is wrapped in a compaction item, the only item type whose
// content clients ignore.
func (w *writer) customPart(p *hub.Part) {
	if kind, ok := strings.CutPrefix(p.CustomKind, optProvider+"."); ok {
		w.rawItem(typed(p.Custom, kind))
		return
	}
	o := foreign(p.Options)
	o.Set("cay", "kind", p.CustomKind)
	if p.Custom != nil {
		o.SetRaw("cay", "custom", p.Custom)
	}
	provider, _, _ := strings.Cut(p.CustomKind, ".")
	encrypted := hub.Wrap(provider, o)
	if encrypted == "" {
		return
	}
	it := &outItem{kind: "compaction", id: newID("cmp_")}
	w.open(it, object{})
	w.done(it, object{"id": it.id, "type": it.kind, "encrypted_content": encrypted})
}
