package agent

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cayhq/cay"
)

// answer is the answer of a model as the log keeps it: the result of the step
// StepModel.
type answer struct {
	Agent   string  `json:"agent"`
	Number  int     `json:"number"` // of the model's call, from 0
	Model   string  `json:"model"`  // that was asked
	Message Message `json:"message"`
	// Invalid has, by the call's id, the reason why a call cannot be made.
	Invalid map[string]string `json:"invalid,omitempty"`
	// Unfit is why the text does not fit the output format of the Config.
	Unfit string `json:"unfit,omitempty"`

	FinishReason FinishReason `json:"finish_reason"`
	Usage        Usage        `json:"usage"`
	GenerationID string       `json:"generation_id,omitempty"`
	Warnings     []string     `json:"warnings,omitempty"`
	Sources      []Source     `json:"sources,omitempty"`
}

// The limits of the parts of an answer that the log keeps.
const (
	maxParts    = 10_000
	maxWarnings = 64
	maxSources  = 1000
)

// builder builds an answer from its parts, and makes the chunks that readers get.
type builder struct {
	answer
	tools map[string]*Tool // that were offered
	known map[string]bool  // ids of calls in the conversation before

	blocks map[string]int           // open blocks of text and reasoning, to the index of their part
	texts  map[int]*strings.Builder // of parts of the message, until the end
	names  map[string]string        // ids of calls, as the model has them, to ours
	ended  bool
}

// newBuilder returns a builder of the answer with the number a.Number.
func newBuilder(a answer, tools map[string]*Tool, prompt []Message) *builder {
	b := &builder{
		answer: a, tools: tools,
		known: make(map[string]bool), blocks: make(map[string]int), names: make(map[string]string), texts: make(map[int]*strings.Builder),
	}
	b.Message.Role = Assistant
	for i := range prompt {
		for j := range prompt[i].Parts {
			if p := &prompt[i].Parts[j]; p.Type == ToolCallPart {
				b.known[p.CallID] = true
			}
		}
	}
	return b
}

// take adds the next stream part, and returns the chunks for readers. Errors: unavailable
// for parts that do not fit together.
func (b *builder) take(p *StreamPart) ([]Chunk, error) {
	if b.ended {
		return nil, cay.Errorf(cay.Unavailable, "the model's answer went on after its end")
	}
	if b.GenerationID == "" {
		b.GenerationID = p.GenerationID
	}
	if p.ID == "" && kinds[p.Type].block != "" { // clients want an id
		named := *p
		named.ID = "0"
		p = &named
	}
	for _, w := range p.Warnings {
		if len(b.Warnings) < maxWarnings && !slices.Contains(b.Warnings, w) {
			b.Warnings = append(b.Warnings, w)
		}
	}
	switch p.Type {
	case StreamTextStart, StreamReasoningStart:
		return b.begin(p)
	case StreamTextDelta, StreamReasoningDelta:
		return b.delta(p)
	case StreamTextEnd, StreamReasoningEnd:
		return b.end(p)
	case StreamToolInputStart:
		return []Chunk{{
			Type: ChunkToolInputStart, ToolCallID: b.callID(p.ID), ToolName: p.ToolName,
			ProviderExecuted: p.ProviderExecuted, Dynamic: b.dynamic(p.ToolName, p.Dynamic),
		}}, nil
	case StreamToolInputDelta:
		return []Chunk{{Type: ChunkToolInputDelta, ToolCallID: b.callID(p.ID), InputTextDelta: &p.Delta}}, nil
	case StreamToolCall:
		return b.call(p)
	case StreamToolResult:
		return b.result(p)
	case StreamApproval:
		id := b.callID(p.ID)
		return []Chunk{{Type: ChunkApprovalRequest, ApprovalID: p.ApprovalID, ToolCallID: id}},
			b.add(Part{Type: ApprovalRequest, ApprovalID: p.ApprovalID, CallID: id, Options: p.Metadata})
	case StreamFile:
		var seen []Chunk
		if len(p.File.Reference) == 0 { // an id at the provider shows nobody anything
			seen = []Chunk{{Type: ChunkFile, URL: p.File.address(), MediaType: p.File.MediaType, ProviderMetadata: p.Metadata}}
		}
		return seen, b.add(Part{Type: FilePart, File: p.File, Options: p.Metadata})
	case StreamReasoningFile:
		return nil, b.add(Part{Type: ReasoningFile, File: p.File, Options: p.Metadata})
	case StreamSource:
		return b.source(p), nil
	case StreamCustom:
		return nil, b.add(Part{Type: Custom, Kind: p.Kind, Options: p.Metadata})
	case StreamFinish:
		b.ended = true
		b.FinishReason, b.Usage = p.Reason, p.Usage
		for i, text := range b.texts {
			b.Message.Parts[i].Text = text.String()
		}
		b.drop()
	}
	return nil, nil
}

// add adds a part of the message.
func (b *builder) add(p Part) error {
	if len(b.Message.Parts) >= maxParts {
		return cay.Errorf(cay.TooLarge, "the model's answer has more than %d parts", maxParts)
	}
	if err := p.check(); err != nil {
		return cay.Errorf(cay.Unavailable, "the model's answer: %w", err)
	}
	b.Message.Parts = append(b.Message.Parts, p)
	return nil
}

// kinds has the types of the parts and chunks of a block.
var kinds = map[StreamPartType]struct {
	block PartType
	chunk ChunkType
}{
	StreamTextStart:      {Text, ChunkTextStart},
	StreamTextDelta:      {Text, ChunkTextDelta},
	StreamTextEnd:        {Text, ChunkTextEnd},
	StreamReasoningStart: {Reasoning, ChunkReasoningStart},
	StreamReasoningDelta: {Reasoning, ChunkReasoningDelta},
	StreamReasoningEnd:   {Reasoning, ChunkReasoningEnd},
}

// key distinguishes blocks of text from blocks of reasoning with the same id.
func key(t PartType, id string) string { return string(t) + " " + id }

func (b *builder) begin(p *StreamPart) ([]Chunk, error) {
	k := kinds[p.Type]
	if _, open := b.blocks[key(k.block, p.ID)]; open {
		return nil, cay.Errorf(cay.Unavailable, "the model's answer begins the block %.64q twice", p.ID)
	}
	if err := b.add(Part{Type: k.block, Options: maps.Clone(p.Metadata)}); err != nil {
		return nil, err
	}
	i := len(b.Message.Parts) - 1
	b.blocks[key(k.block, p.ID)], b.texts[i] = i, new(strings.Builder)
	return []Chunk{{Type: k.chunk, ID: p.ID, ProviderMetadata: p.Metadata}}, nil
}

func (b *builder) block(p *StreamPart) (*strings.Builder, error) {
	i, open := b.blocks[key(kinds[p.Type].block, p.ID)]
	if !open {
		return nil, cay.Errorf(cay.Unavailable, "the model's answer has a part of the block %.64q, which is not open", p.ID)
	}
	part := &b.Message.Parts[i]
	for name, v := range p.Metadata {
		if part.Options == nil {
			part.Options = make(Options)
		}
		part.Options[name] = v // later metadata includes the earlier ones
	}
	return b.texts[i], nil
}

func (b *builder) delta(p *StreamPart) ([]Chunk, error) {
	text, err := b.block(p)
	if err != nil {
		return nil, err
	}
	text.WriteString(p.Delta)
	return []Chunk{{Type: kinds[p.Type].chunk, ID: p.ID, Delta: &p.Delta, ProviderMetadata: p.Metadata}}, nil
}

func (b *builder) end(p *StreamPart) ([]Chunk, error) {
	if _, err := b.block(p); err != nil {
		return nil, err
	}
	delete(b.blocks, key(kinds[p.Type].block, p.ID))
	return []Chunk{{Type: kinds[p.Type].chunk, ID: p.ID, ProviderMetadata: p.Metadata}}, nil
}

// callID returns our id of a call: the model's own, unless the conversation already
// has a call with that id. Some providers count from 0 in each answer.
func (b *builder) callID(id string) string {
	if ours, ok := b.names[id]; ok {
		return ours
	}
	ours := id
	for n := 0; ours == "" || b.known[ours]; n++ {
		ours = id + "_" + strconv.Itoa(b.Number)
		if n > 0 {
			ours += "_" + strconv.Itoa(n)
		}
	}
	b.names[id] = ours
	b.known[ours] = true
	return ours
}

// dynamic reports whether a tool was not offered to the model.
func (b *builder) dynamic(name string, said bool) bool { return said || b.tools[name] == nil }

func (b *builder) call(p *StreamPart) ([]Chunk, error) {
	id := b.callID(p.ID)
	for i := range b.Message.Parts {
		if c := &b.Message.Parts[i]; c.Type == ToolCallPart && c.CallID == id {
			return nil, cay.Errorf(cay.Unavailable, "the model's answer has two calls of the id %.64q", p.ID)
		}
	}
	input, problem := readInput(p.Input)
	if !p.ProviderExecuted && problem == nil {
		problem = fits(b.tools, p.ToolName, input)
	}
	if err := b.add(Part{Type: ToolCallPart, CallID: id, ToolName: p.ToolName, Input: input, ProviderExecuted: p.ProviderExecuted, Options: p.Metadata}); err != nil {
		return nil, err
	}
	if problem != nil && !p.ProviderExecuted {
		if b.Invalid == nil {
			b.Invalid = make(map[string]string)
		}
		b.Invalid[id] = problem.Error()
		return nil, nil // the chunk depends on whether the call is repaired
	}
	return []Chunk{{
		Type: ChunkToolInputAvailable, ToolCallID: id, ToolName: p.ToolName, Input: input,
		ProviderExecuted: p.ProviderExecuted, Dynamic: b.dynamic(p.ToolName, p.Dynamic), ProviderMetadata: p.Metadata,
	}}, nil
}

// readInput reads the input that a model wrote. Input that is not JSON becomes a
// string.
func readInput(text string) (json.RawMessage, error) {
	raw := bytes.TrimSpace([]byte(text))
	if len(raw) == 0 {
		return json.RawMessage("{}"), nil
	}
	if json.Valid(raw) {
		return raw, nil
	}
	var v any
	problem := fmt.Errorf("the input is not JSON: %w", json.Unmarshal(raw, &v))
	quoted, err := json.Marshal(text)
	if err != nil {
		return json.RawMessage("{}"), err
	}
	return quoted, problem
}

// fits returns an error if a call cannot be made.
func fits(tools map[string]*Tool, name string, input json.RawMessage) error {
	t := tools[name]
	if t == nil {
		names := slices.Sorted(maps.Keys(tools))
		if len(names) == 0 {
			return fmt.Errorf("there is no tool %.64q, nor any other", name)
		}
		return fmt.Errorf("there is no tool %.64q; the tools are %v", name, names)
	}
	if err := t.schema.fit(input); err != nil {
		return fmt.Errorf("the input does not fit the tool's schema: %w", err)
	}
	return nil
}

func (b *builder) result(p *StreamPart) ([]Chunk, error) {
	id := b.callID(p.ID)
	o := outputOf(p.Result)
	if p.IsError {
		o.Type = map[OutputType]OutputType{OutputText: OutputErrorText, OutputJSON: OutputErrorJSON}[o.Type]
	}
	c, err := outputChunk(id, &o, p.Result)
	if err != nil {
		return nil, err
	}
	c.ProviderExecuted, c.Dynamic, c.Preliminary = true, b.dynamic(p.ToolName, p.Dynamic), p.Preliminary
	if c.Type != ChunkToolOutput {
		c.Preliminary = false
	}
	if p.Preliminary {
		return []Chunk{c}, nil
	}
	return []Chunk{c}, b.add(Part{Type: ToolResultPart, CallID: id, ToolName: p.ToolName, Output: &o, Options: p.Metadata})
}

// outputChunk returns the chunk that shows an output to readers; value is the
// tool's result.
func outputChunk(id string, o *Output, value json.RawMessage) (Chunk, error) {
	switch {
	case o.Type == OutputDenied:
		return Chunk{Type: ChunkToolOutputDenied, ToolCallID: id}, nil
	case o.Type == OutputErrorText && o.Text == "": // clients want a text
		return Chunk{Type: ChunkToolOutputError, ToolCallID: id, ErrorText: "The tool failed."}, nil
	case o.Type == OutputErrorText:
		return Chunk{Type: ChunkToolOutputError, ToolCallID: id, ErrorText: o.Text}, nil
	case o.Type == OutputErrorJSON:
		return Chunk{Type: ChunkToolOutputError, ToolCallID: id, ErrorText: string(o.JSON)}, nil
	}
	if len(value) == 0 {
		var err error
		if value, err = o.value(); err != nil {
			return Chunk{}, err
		}
	}
	return Chunk{Type: ChunkToolOutput, ToolCallID: id, Output: value}, nil
}

func (b *builder) source(p *StreamPart) []Chunk {
	s := p.Source
	if len(b.Sources) < maxSources {
		b.Sources = append(b.Sources, *s)
	}
	if s.URL != "" {
		return []Chunk{{Type: ChunkSourceURL, SourceID: s.ID, URL: s.URL, Title: s.Title, ProviderMetadata: p.Metadata}}
	}
	return []Chunk{{
		Type: ChunkSourceDocument, SourceID: s.ID, MediaType: s.MediaType, Title: s.Title, Filename: s.Filename, ProviderMetadata: p.Metadata,
	}}
}

// drop removes texts that are empty: providers refuse them when the conversation is
// sent back. Empty texts with options stay, because their options may matter to the
// provider.
func (b *builder) drop() {
	b.Message.Parts = slices.DeleteFunc(b.Message.Parts, func(p Part) bool {
		return (p.Type == Text || p.Type == Reasoning) && p.Text == "" && len(p.Options) == 0
	})
}

// address returns the URL of a file, a data URL if its data is known.
func (f *File) address() string {
	if f.URL != "" {
		return f.URL
	}
	return "data:" + f.MediaType + ";base64," + base64.StdEncoding.EncodeToString(f.Data)
}

// calls returns the calls of the answer, in order.
func (a *answer) calls() (calls []ToolCall) {
	for i := range a.Message.Parts {
		if p := &a.Message.Parts[i]; p.Type == ToolCallPart {
			calls = append(calls, ToolCall{ID: p.CallID, Name: p.ToolName, Input: p.Input, ProviderExecuted: p.ProviderExecuted, Invalid: a.Invalid[p.CallID]})
		}
	}
	return calls
}

// reasoning returns the model's reasoning.
func (a *answer) reasoning() string {
	var b bytes.Buffer
	for i := range a.Message.Parts {
		if p := &a.Message.Parts[i]; p.Type == Reasoning {
			b.WriteString(p.Text)
		}
	}
	return b.String()
}

// results returns the results of the tools that the provider ran.
func (a *answer) results() (results []ToolResult) {
	for i := range a.Message.Parts {
		if p := &a.Message.Parts[i]; p.Type == ToolResultPart {
			results = append(results, ToolResult{CallID: p.CallID, Name: p.ToolName, Output: *p.Output})
		}
	}
	return results
}

// approvals returns the calls for which the provider asks for approval.
func (a *answer) approvals() (pending []ToolCall) {
	for i := range a.Message.Parts {
		if p := &a.Message.Parts[i]; p.Type == ApprovalRequest {
			for _, c := range a.calls() {
				if c.ID == p.CallID {
					pending = append(pending, c)
				}
			}
		}
	}
	return pending
}
