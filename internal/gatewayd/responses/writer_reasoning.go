package responses

import (
	"slices"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Reasoning.

func (w *writer) reasoningStart(id string, o hub.Options) {
	group := o.String(optProvider, optItemID)
	it := w.last
	if it == nil || it.kind != "reasoning" || group == "" || it.group != group {
		it = &outItem{kind: "reasoning", group: group}
		if it.id = group; group == "" {
			it.id = newID("rs_")
		}
		w.open(it, object{"summary": none, "status": "in_progress"})
	}
	w.last = nil
	part := &outPart{kind: "summary_text", open: true}
	var raw bool
	if o.Get(optProvider, optRawText, &raw) && raw {
		part.kind = "reasoning_text"
	}
	for _, p := range it.parts {
		if p.kind == part.kind && p.begun {
			part.index++
		}
	}
	it.parts = append(it.parts, part)
	it.options.Merge(o)
	w.blocks[id] = it
}

// summaryBegin begins a summary at the first byte of its text, because reasoning that
// consists only of a signature has no summary.
func (w *writer) summaryBegin(it *outItem, p *outPart) {
	if p.begun {
		return
	}
	p.begun = true
	part := object{"type": p.kind, "text": ""}
	if p.kind == "summary_text" {
		w.emit("response.reasoning_summary_part.added", "item_id", it.id, "output_index", it.at, "summary_index", p.index, "part", part)
	} else {
		w.emit("response.content_part.added", "item_id", it.id, "output_index", it.at, "content_index", p.index, "part", part)
	}
}

func (w *writer) reasoningEnd(id string, o hub.Options) {
	it := w.blocks[id]
	if it == nil {
		return
	}
	delete(w.blocks, id)
	it.options.Merge(o)
	if p := it.part(); p.begun {
		p.open = false
		list, name := "summary_index", "response.reasoning_summary_text.done"
		if p.kind == "reasoning_text" {
			list, name = "content_index", "response.reasoning_text.done"
		}
		at := []any{"item_id", it.id, "output_index", it.at, list, p.index}
		w.emit(name, append(at, "text", p.text.String())...)
		name = "response.reasoning_summary_part.done"
		if p.kind == "reasoning_text" {
			name = "response.content_part.done"
		}
		w.emit(name, append(at, "part", p.object())...)
	}
	w.wait(it)
}

func (w *writer) reasoningDone(it *outItem) {
	summaries, contents := []object{}, []object{}
	for _, p := range it.parts {
		switch {
		case !p.begun:
		case p.kind == "summary_text":
			summaries = append(summaries, p.object())
		default:
			contents = append(contents, p.object())
		}
	}
	item := object{"id": it.id, "type": it.kind, "summary": summaries, "status": "completed"}
	if len(contents) > 0 {
		item["content"] = contents
	}
	if s := it.options.String(optProvider, optEncrypted); s != "" {
		item["encrypted_content"] = s
	} else if s := wrap(foreign(it.options)); s != "" {
		item["encrypted_content"] = s
	}
	w.done(it, item)
}

// foreign returns the options that a provider other than OpenAI must get back with a
// part: all but the descriptive ones.
func foreign(o hub.Options) hub.Options {
	var out hub.Options
	for provider, members := range o {
		if provider == optProvider || provider == "gateway" {
			continue
		}
		for name, v := range members {
			switch name {
			case "citations", "annotations", "logprobs", "groundingMetadata", "safetyRatings", "cacheControl":
			default:
				out.SetRaw(provider, name, v)
			}
		}
	}
	return out
}

func wrap(o hub.Options) string {
	names := make([]string, 0, len(o))
	for provider := range o {
		if provider != "cay" {
			names = append(names, provider)
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return hub.Wrap(names[0], o)
}

// afterthought writes a reasoning item that holds the data another provider must get back
// with a part, if the part's own item has no place for it; see callReader.reasoning.
func (w *writer) afterthought(of hub.PartKind, o hub.Options) {
	o = foreign(o)
	if len(o) == 0 {
		return
	}
	o.Set("cay", "of", of)
	encrypted := wrap(o)
	if encrypted == "" {
		return
	}
	it := &outItem{kind: "reasoning", id: newID("rs_")}
	w.open(it, object{"summary": none})
	w.done(it, object{"id": it.id, "type": it.kind, "summary": none, "encrypted_content": encrypted, "status": "completed"})
}
