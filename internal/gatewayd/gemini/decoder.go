package gemini

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// decoder turns answers into events, whether the answer is whole or streamed: a whole
// answer is treated as a stream of one event.
type decoder struct {
	target *hub.Target
	out    []hub.Event
	done   bool

	started  bool
	response hub.Response
	blocks   int
	open     string // the text or reasoning that is open
	thought  bool   // it is reasoning
	call     *openCall
	calls    int
	parts    int
	client   bool // the client has to run a tool
	lastCode string

	finish, message string // finish reason and message of the candidate
	blocked         string // why the prompt was
	usage           *usageMetadata
	options         hub.Options
	grounding       grounding
}

// openCall is a function call whose arguments are streamed.
type openCall struct {
	part  hub.Part
	args  arguments
	input strings.Builder
}

func (d *decoder) emit(e hub.Event) { d.out = append(d.out, e) }

func (d *decoder) fail(e *hub.Error) {
	if !d.done {
		d.done = true
		d.emit(hub.Event{Kind: hub.Failure, Err: e})
	}
}

// add processes a whole answer or an event.
func (d *decoder) add(g *generated) {
	if !hub.IsNull(g.Error) {
		d.fail(inStream(d.target, g.Error))
		return
	}
	if !d.started {
		d.started = true
		d.emit(hub.Event{Kind: hub.Start})
	}
	now := hub.Response{ID: g.ResponseID, Model: g.ModelVersion, Created: g.CreateTime.UTC()}
	if g.CreateTime.IsZero() {
		now.Created = g.CreateTime
	}
	if now != d.response && now != (hub.Response{}) && d.response == (hub.Response{}) {
		d.response = now
		d.emit(hub.Event{Kind: hub.Metadata, Response: now})
	}
	if u := g.UsageMetadata; u != nil && (u.counts() || d.usage == nil) {
		d.usage = u
	}
	if !hub.IsNull(g.PromptFeedback) {
		var feedback struct{ BlockReason string }
		if json.Unmarshal(g.PromptFeedback, &feedback) == nil {
			d.blocked = feedback.BlockReason
		}
		d.options.SetRaw(optProvider, "promptFeedback", hub.Compact(g.PromptFeedback))
	}
	if len(g.Candidates) == 0 {
		return
	}
	c := &g.Candidates[0]
	for i := range c.Content.Parts {
		if d.parts++; d.parts > maxParts {
			d.fail(broken(d.target, "the answer has too many parts", nil))
		}
		if d.done {
			return
		}
		d.part(&c.Content.Parts[i])
	}
	d.candidate(c)
}

// candidate processes the candidate's members other than parts.
func (d *decoder) candidate(c *candidate) {
	if c.FinishReason != "" {
		d.finish, d.message = c.FinishReason, c.FinishMessage
	}
	for _, m := range []struct {
		name string
		raw  json.RawMessage
	}{
		{"groundingMetadata", c.GroundingMetadata}, {"urlContextMetadata", c.URLContextMetadata},
		{"safetyRatings", c.SafetyRatings}, {"citationMetadata", c.CitationMetadata},
	} {
		if !hub.IsNull(m.raw) {
			d.options.SetRaw(optProvider, m.name, hub.Compact(m.raw))
		}
	}
	d.grounding.add(c.GroundingMetadata)
}

func (d *decoder) part(p *part) {
	switch {
	case p.Text != nil:
		d.text(*p.Text, p)
	case p.FunctionCall != nil:
		d.functionCall(p)
	case p.InlineData != nil || p.FileData != nil:
		d.file(p)
	case p.ExecutableCode != nil || p.CodeExecution != nil:
		d.code(p)
	case len(p.raw) > 0:
		d.custom(p)
	}
}

// text appends to the open text block. A signature closes the block, since it signs the
// whole block; with an empty text, the signature belongs to the block before.
func (d *decoder) text(s string, p *part) {
	if s == "" && p.Signature == "" {
		return
	}
	if d.open == "" || d.thought != p.Thought {
		d.close(nil)
		d.thought = p.Thought
		d.open = strconv.Itoa(d.blocks)
		d.blocks++
		d.emit(hub.Event{Kind: d.kind(hub.TextStart), ID: d.open})
	}
	if s != "" {
		d.emit(hub.Event{Kind: d.kind(hub.TextDelta), ID: d.open, Delta: s})
	}
	if p.Signature != "" {
		d.close(p.options())
	}
}

// kind returns the reasoning variant of k if the open block is reasoning.
func (d *decoder) kind(k hub.EventKind) hub.EventKind {
	if d.thought {
		return k + hub.ReasoningStart - hub.TextStart
	}
	return k
}

func (p *part) options() hub.Options {
	var o hub.Options
	if p.Signature != "" {
		o.Set(optProvider, optSignature, p.Signature)
	}
	return o
}

// close closes the open text block.
func (d *decoder) close(o hub.Options) {
	if d.open != "" {
		d.emit(hub.Event{Kind: d.kind(hub.TextEnd), ID: d.open, Options: o})
		d.open = ""
	}
}

func (d *decoder) functionCall(p *part) {
	c := p.FunctionCall
	d.close(nil)
	if c.Name != "" {
		d.endCall()
		if d.calls++; d.calls > maxCalls {
			d.fail(broken(d.target, "the answer has too many tool calls", nil))
			return
		}
		id := c.ID
		o := p.options()
		if id == "" {
			id = newID()
		} else {
			o.Set(optProvider, optID, id)
		}
		d.client = true
		d.call = &openCall{part: hub.Part{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: id, Name: c.Name}, Options: o}}
		d.emit(hub.Event{Kind: hub.InputStart, ID: id, Name: c.Name, Options: o})
	} else if d.call != nil {
		d.call.part.Options.Merge(p.options())
	}
	if d.call == nil {
		if len(c.PartialArgs) > 0 || !hub.IsNull(c.Args) {
			d.fail(broken(d.target, "the answer has a tool call without a name", nil))
		}
		return
	}
	if !hub.IsNull(c.Args) && len(c.PartialArgs) == 0 && d.call.input.Len() == 0 && (!c.WillContinue || string(hub.Compact(c.Args)) != "{}") {
		d.input(string(hub.Compact(c.Args)))
		d.endCall()
		return
	}
	for i := range c.PartialArgs {
		s, err := d.call.args.add(&c.PartialArgs[i])
		if err != nil {
			d.fail(broken(d.target, err.Error(), err))
			return
		}
		d.input(s)
	}
	if !c.WillContinue {
		d.endCall()
	}
}

func (d *decoder) input(s string) {
	if s != "" {
		d.call.input.WriteString(s)
		d.emit(hub.Event{Kind: hub.InputDelta, ID: d.call.part.Call.ID, Delta: s})
	}
}

// endCall closes the open function call.
func (d *decoder) endCall() {
	if d.call == nil {
		return
	}
	d.input(d.call.args.end())
	if d.call.input.Len() == 0 { // a function without arguments
		d.input("{}")
	}
	p := d.call.part
	p.Call.Input = d.call.input.String()
	d.call = nil
	d.emit(hub.Event{Kind: hub.InputEnd, ID: p.Call.ID})
	d.emit(hub.Event{Kind: hub.Whole, Part: &p})
}

// newID returns an id for a tool call that Google gave no id.
func newID() string {
	const letters = "abcdefghijklmnopqrstuvwxyz234567" // 32 letters
	var b [24]byte
	_, _ = rand.Read(b[:]) // never fails
	for i := range b {
		b[i] = letters[b[i]&31]
	}
	return "call_" + string(b[:])
}

func (d *decoder) whole(p hub.Part) {
	d.close(nil)
	d.endCall()
	d.emit(hub.Event{Kind: hub.Whole, Part: &p})
}

func (d *decoder) file(p *part) {
	f := &hub.File{}
	if p.InlineData != nil {
		f.MediaType, f.Data = p.InlineData.MimeType, p.InlineData.Data
	} else {
		f.MediaType, f.URL = p.FileData.MimeType, p.FileData.FileURI
	}
	kind := hub.FilePart
	if p.Thought {
		kind = hub.ReasoningFilePart
	}
	d.whole(hub.Part{Kind: kind, File: f, Options: p.options()})
}

// code processes a call of a tool that Google ran, or the result that follows.
func (d *decoder) code(p *part) {
	name := "code_execution"
	if d.target.Call != nil {
		for i := range d.target.Call.Tools {
			if t := &d.target.Call.Tools[i]; strings.HasSuffix(t.ProviderID, "."+name) {
				name = t.Name
				break
			}
		}
	}
	if c := p.ExecutableCode; c != nil {
		if d.calls++; d.calls > maxCalls {
			d.fail(broken(d.target, "the answer has too many tool calls", nil))
			return
		}
		d.lastCode = newID()
		d.whole(hub.Part{Kind: hub.ToolCallPart, Options: p.options(), Call: &hub.ToolCall{
			ID: d.lastCode, Name: name, Input: string(hub.MustEncode(object{"language": c.Language, "code": c.Code})), ProviderExecuted: true,
		}})
		return
	}
	if d.lastCode == "" {
		return // a result of nothing
	}
	d.whole(hub.Part{Kind: hub.ToolResultPart, Options: p.options(), Result: &hub.ToolResult{
		CallID: d.lastCode, Name: name, ProviderExecuted: true,
		Output: hub.ToolOutput{Kind: hub.OutputJSON, JSON: hub.MustEncode(object{"outcome": p.CodeExecution.Outcome, "output": p.CodeExecution.Output})},
	}})
}

// custom keeps a part of an unknown kind, so that it can be sent back unchanged.
func (d *decoder) custom(p *part) {
	var members map[string]json.RawMessage
	if json.Unmarshal(p.raw, &members) != nil {
		return
	}
	for _, name := range sorted(members) {
		switch name {
		case "thought", "thoughtSignature", "videoMetadata", "mediaResolution":
		default:
			d.whole(hub.Part{Kind: hub.CustomPart, CustomKind: optProvider + "." + name, Custom: p.raw})
			return
		}
	}
	d.text("", p) // a signature alone
}

// finishes maps Google's finish reasons other than STOP and MAX_TOKENS.
var finishes = map[string]hub.Reason{
	"SAFETY": hub.ContentFilter, "RECITATION": hub.ContentFilter, "BLOCKLIST": hub.ContentFilter, "PROHIBITED_CONTENT": hub.ContentFilter,
	"SPII": hub.ContentFilter, "IMAGE_SAFETY": hub.ContentFilter, "IMAGE_PROHIBITED_CONTENT": hub.ContentFilter, "IMAGE_RECITATION": hub.ContentFilter,
	"MODEL_ARMOR":             hub.ContentFilter,
	"MALFORMED_FUNCTION_CALL": hub.Failed, "UNEXPECTED_TOOL_CALL": hub.Failed, "TOO_MANY_TOOL_CALLS": hub.Failed, "MISSING_THOUGHT_SIGNATURE": hub.Failed,
	"MALFORMED_RESPONSE": hub.Failed,
	"MAX_TOKENS":         hub.Length,
}

// complete reports whether the answer has its end: a finish reason of the candidate, or
// the block reason of a refused prompt.
func (d *decoder) complete() bool { return d.finish != "" || d.blocked != "" && d.parts == 0 }

// end emits the events that end the answer.
func (d *decoder) end(cause error) {
	if d.done {
		return
	}
	if !d.complete() {
		d.fail(broken(d.target, "the answer broke off", cause))
		return
	}
	d.close(nil)
	d.endCall()
	for i := range d.grounding.sources {
		d.emit(hub.Event{Kind: hub.Whole, Part: &d.grounding.sources[i]})
	}
	finish := hub.Finish{Reason: hub.OtherReason, Raw: d.finish}
	switch reason, ok := finishes[d.finish]; {
	case d.finish == "":
		finish = hub.Finish{Reason: hub.ContentFilter, Raw: d.blocked}
	case ok:
		finish.Reason = reason
	case d.finish == "STOP" && d.client:
		finish.Reason = hub.ToolCalls
	case d.finish == "STOP":
		finish.Reason = hub.Stop
	}
	if d.message != "" {
		d.options.Set(optProvider, "finishMessage", d.message)
	}
	d.done = true
	d.emit(hub.Event{Kind: hub.Finished, Finish: finish, Usage: d.counted(), Options: d.options})
}

// counted returns the usage. Google counts thoughts separately from the candidates'
// tokens, and tokens that tools add to the prompt separately from the prompt's.
func (d *decoder) counted() *hub.Usage {
	u := d.usage
	if u == nil || !u.counts() {
		return nil
	}
	out := &hub.Usage{CacheRead: u.Cached.n, Reasoning: u.Thoughts.n, Tier: u.Tier, Raw: u.raw}
	if out.Tier == "" {
		out.Tier = u.Traffic
	}
	if u.Prompt.n != nil {
		out.Input = hub.N(*u.Prompt.n + hub.Count(u.ToolUse.n))
	}
	text := hub.Count(u.Candidates.n)
	out.Text, out.Output = &text, hub.N(text+hub.Count(u.Thoughts.n))
	if d.grounding.queries > 0 {
		// Models before version 3 are charged per answer, later models per query.
		n := int64(d.grounding.queries)
		if version(d.target.Model) < 3 {
			n = 1
		}
		out.Searches, out.SearchTool = &n, "google_search"
	}
	out.Fill()
	return out
}

// failure returns the error of a final Failure event, if there is one.
func failure(events []hub.Event) error {
	i := slices.IndexFunc(events, func(e hub.Event) bool { return e.Kind == hub.Failure })
	if i < 0 {
		return nil
	}
	return events[i].Err
}

var errNoCandidates = errors.New("no candidates")
