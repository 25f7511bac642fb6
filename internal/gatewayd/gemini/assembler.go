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

// assembler turns answers into events, whether the answer is whole or streamed: a whole
// answer is treated as a stream of one event.
type assembler struct {
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
	sources         []hub.Part
	known           map[string]bool // sources already returned
	queries         int
}

// openCall is a function call whose arguments are streamed.
type openCall struct {
	part  hub.Part
	args  arguments
	input strings.Builder
}

func (a *assembler) emit(e hub.Event) { a.out = append(a.out, e) }

func (a *assembler) fail(e *hub.Error) {
	if !a.done {
		a.done = true
		a.emit(hub.Event{Kind: hub.Failure, Err: e})
	}
}

// add processes a whole answer or an event.
func (a *assembler) add(g *generated) {
	if !hub.IsNull(g.Error) {
		a.fail(inStream(a.target, g.Error))
		return
	}
	if !a.started {
		a.started = true
		a.emit(hub.Event{Kind: hub.Start})
	}
	now := hub.Response{ID: g.ResponseID, Model: g.ModelVersion, Created: g.CreateTime.UTC()}
	if g.CreateTime.IsZero() {
		now.Created = g.CreateTime
	}
	if now != a.response && now != (hub.Response{}) && a.response == (hub.Response{}) {
		a.response = now
		a.emit(hub.Event{Kind: hub.Metadata, Response: now})
	}
	if u := g.UsageMetadata; u != nil && (u.counts() || a.usage == nil) {
		a.usage = u
	}
	if !hub.IsNull(g.PromptFeedback) {
		var feedback struct{ BlockReason string }
		if json.Unmarshal(g.PromptFeedback, &feedback) == nil {
			a.blocked = feedback.BlockReason
		}
		a.options.SetRaw(optProvider, "promptFeedback", hub.Compact(g.PromptFeedback))
	}
	if len(g.Candidates) == 0 {
		return
	}
	c := &g.Candidates[0]
	for i := range c.Content.Parts {
		if a.parts++; a.parts > maxParts {
			a.fail(broken(a.target, "the answer has too many parts", nil))
		}
		if a.done {
			return
		}
		a.part(&c.Content.Parts[i])
	}
	a.candidate(c)
}

// candidate processes the candidate's members other than parts.
func (a *assembler) candidate(c *candidate) {
	if c.FinishReason != "" {
		a.finish, a.message = c.FinishReason, c.FinishMessage
	}
	for _, m := range []struct {
		name string
		raw  json.RawMessage
	}{
		{"groundingMetadata", c.GroundingMetadata}, {"urlContextMetadata", c.URLContextMetadata},
		{"safetyRatings", c.SafetyRatings}, {"citationMetadata", c.CitationMetadata},
	} {
		if !hub.IsNull(m.raw) {
			a.options.SetRaw(optProvider, m.name, hub.Compact(m.raw))
		}
	}
	a.grounding(c.GroundingMetadata)
}

func (a *assembler) part(p *part) {
	switch {
	case p.Text != nil:
		a.text(*p.Text, p)
	case p.FunctionCall != nil:
		a.functionCall(p)
	case p.InlineData != nil || p.FileData != nil:
		a.file(p)
	case p.ExecutableCode != nil || p.CodeExecution != nil:
		a.code(p)
	case len(p.raw) > 0:
		a.custom(p)
	}
}

// text appends to the open text block. A signature closes the block, since it signs the
// whole block; with an empty text, the signature belongs to the block before.
func (a *assembler) text(s string, p *part) {
	if s == "" && p.Signature == "" {
		return
	}
	if a.open == "" || a.thought != p.Thought {
		a.close(nil)
		a.thought = p.Thought
		a.open = strconv.Itoa(a.blocks)
		a.blocks++
		a.emit(hub.Event{Kind: a.kind(hub.TextStart), ID: a.open})
	}
	if s != "" {
		a.emit(hub.Event{Kind: a.kind(hub.TextDelta), ID: a.open, Delta: s})
	}
	if p.Signature != "" {
		a.close(p.options())
	}
}

// kind returns the reasoning variant of k if the open block is reasoning.
func (a *assembler) kind(k hub.EventKind) hub.EventKind {
	if a.thought {
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
func (a *assembler) close(o hub.Options) {
	if a.open != "" {
		a.emit(hub.Event{Kind: a.kind(hub.TextEnd), ID: a.open, Options: o})
		a.open = ""
	}
}

func (a *assembler) functionCall(p *part) {
	c := p.FunctionCall
	a.close(nil)
	if c.Name != "" {
		a.endCall()
		if a.calls++; a.calls > maxCalls {
			a.fail(broken(a.target, "the answer has too many tool calls", nil))
			return
		}
		id := c.ID
		o := p.options()
		if id == "" {
			id = newID()
		} else {
			o.Set(optProvider, optID, id)
		}
		a.client = true
		a.call = &openCall{part: hub.Part{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: id, Name: c.Name}, Options: o}}
		a.emit(hub.Event{Kind: hub.InputStart, ID: id, Name: c.Name, Options: o})
	} else if a.call != nil {
		a.call.part.Options.Merge(p.options())
	}
	if a.call == nil {
		if len(c.PartialArgs) > 0 || !hub.IsNull(c.Args) {
			a.fail(broken(a.target, "the answer has a tool call without a name", nil))
		}
		return
	}
	if !hub.IsNull(c.Args) && len(c.PartialArgs) == 0 && a.call.input.Len() == 0 && (!c.WillContinue || string(hub.Compact(c.Args)) != "{}") {
		a.input(string(hub.Compact(c.Args)))
		a.endCall()
		return
	}
	for i := range c.PartialArgs {
		s, err := a.call.args.add(&c.PartialArgs[i])
		if err != nil {
			a.fail(broken(a.target, err.Error(), err))
			return
		}
		a.input(s)
	}
	if !c.WillContinue {
		a.endCall()
	}
}

func (a *assembler) input(s string) {
	if s != "" {
		a.call.input.WriteString(s)
		a.emit(hub.Event{Kind: hub.InputDelta, ID: a.call.part.Call.ID, Delta: s})
	}
}

// endCall closes the open function call.
func (a *assembler) endCall() {
	if a.call == nil {
		return
	}
	a.input(a.call.args.end())
	if a.call.input.Len() == 0 { // a function without arguments
		a.input("{}")
	}
	p := a.call.part
	p.Call.Input = a.call.input.String()
	a.call = nil
	a.emit(hub.Event{Kind: hub.InputEnd, ID: p.Call.ID})
	a.emit(hub.Event{Kind: hub.Whole, Part: &p})
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

func (a *assembler) whole(p hub.Part) {
	a.close(nil)
	a.endCall()
	a.emit(hub.Event{Kind: hub.Whole, Part: &p})
}

func (a *assembler) file(p *part) {
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
	a.whole(hub.Part{Kind: kind, File: f, Options: p.options()})
}

// code processes a call of a tool that Google ran, or the result that follows.
func (a *assembler) code(p *part) {
	name := "code_execution"
	if a.target.Call != nil {
		for i := range a.target.Call.Tools {
			if t := &a.target.Call.Tools[i]; strings.HasSuffix(t.ProviderID, "."+name) {
				name = t.Name
				break
			}
		}
	}
	if c := p.ExecutableCode; c != nil {
		if a.calls++; a.calls > maxCalls {
			a.fail(broken(a.target, "the answer has too many tool calls", nil))
			return
		}
		a.lastCode = newID()
		a.whole(hub.Part{Kind: hub.ToolCallPart, Options: p.options(), Call: &hub.ToolCall{
			ID: a.lastCode, Name: name, Input: string(hub.MustEncode(object{"language": c.Language, "code": c.Code})), ProviderExecuted: true,
		}})
		return
	}
	if a.lastCode == "" {
		return // a result of nothing
	}
	a.whole(hub.Part{Kind: hub.ToolResultPart, Options: p.options(), Result: &hub.ToolResult{
		CallID: a.lastCode, Name: name, ProviderExecuted: true,
		Output: hub.ToolOutput{Kind: hub.OutputJSON, JSON: hub.MustEncode(object{"outcome": p.CodeExecution.Outcome, "output": p.CodeExecution.Output})},
	}})
}

// custom keeps a part of an unknown kind, so that it can be sent back unchanged.
func (a *assembler) custom(p *part) {
	var members map[string]json.RawMessage
	if json.Unmarshal(p.raw, &members) != nil {
		return
	}
	for _, name := range sorted(members) {
		switch name {
		case "thought", "thoughtSignature", "videoMetadata", "mediaResolution":
		default:
			a.whole(hub.Part{Kind: hub.CustomPart, CustomKind: optProvider + "." + name, Custom: p.raw})
			return
		}
	}
	a.text("", p) // a signature alone
}

// chunk is one grounding source.
type chunk struct {
	Web, Maps, RetrievedContext *struct {
		URI, Title string
	}
}

// grounding collects sources for the end of the answer, because some events repeat them.
func (a *assembler) grounding(raw json.RawMessage) {
	if hub.IsNull(raw) {
		return
	}
	var g struct {
		GroundingChunks  []chunk
		WebSearchQueries []string
	}
	if json.Unmarshal(raw, &g) != nil {
		return
	}
	queries := 0
	for _, q := range g.WebSearchQueries {
		if q != "" {
			queries++
		}
	}
	a.queries = max(a.queries, queries)
	for _, c := range g.GroundingChunks {
		from := c.Web
		if from == nil {
			from = c.Maps
		}
		if from == nil {
			from = c.RetrievedContext
		}
		if from == nil || from.URI == "" && from.Title == "" || a.known[from.URI+"\n"+from.Title] {
			continue
		}
		if a.known == nil {
			a.known = make(map[string]bool)
		}
		a.known[from.URI+"\n"+from.Title] = true
		s := &hub.Source{ID: "source-" + strconv.Itoa(len(a.sources)), Title: from.Title}
		if strings.HasPrefix(from.URI, "http://") || strings.HasPrefix(from.URI, "https://") {
			s.URL = from.URI
		} else { // gs://bucket/file.pdf, or a file of a store
			s.Filename = from.URI[strings.LastIndexByte(from.URI, '/')+1:]
			s.MediaType = "application/octet-stream"
			if strings.HasSuffix(s.Filename, ".pdf") {
				s.MediaType = "application/pdf"
			}
			if s.Title == "" {
				s.Title = s.Filename
			}
		}
		a.sources = append(a.sources, hub.Part{Kind: hub.SourcePart, Source: s})
	}
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
func (a *assembler) complete() bool { return a.finish != "" || a.blocked != "" && a.parts == 0 }

// end emits the events that end the answer.
func (a *assembler) end(cause error) {
	if a.done {
		return
	}
	if !a.complete() {
		a.fail(broken(a.target, "the answer broke off", cause))
		return
	}
	a.close(nil)
	a.endCall()
	for i := range a.sources {
		a.emit(hub.Event{Kind: hub.Whole, Part: &a.sources[i]})
	}
	finish := hub.Finish{Reason: hub.OtherReason, Raw: a.finish}
	switch reason, ok := finishes[a.finish]; {
	case a.finish == "":
		finish = hub.Finish{Reason: hub.ContentFilter, Raw: a.blocked}
	case ok:
		finish.Reason = reason
	case a.finish == "STOP" && a.client:
		finish.Reason = hub.ToolCalls
	case a.finish == "STOP":
		finish.Reason = hub.Stop
	}
	if a.message != "" {
		a.options.Set(optProvider, "finishMessage", a.message)
	}
	a.done = true
	a.emit(hub.Event{Kind: hub.Finished, Finish: finish, Usage: a.counted(), Options: a.options})
}

// counted returns the usage. Google counts thoughts separately from the candidates'
// tokens, and tokens that tools add to the prompt separately from the prompt's.
func (a *assembler) counted() *hub.Usage {
	u := a.usage
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
	if a.queries > 0 {
		// Models before version 3 are charged per answer, later models per query.
		n := int64(a.queries)
		if version(a.target.Model) < 3 {
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
