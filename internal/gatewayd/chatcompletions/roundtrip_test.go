package chatcompletions

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/seedtest"
)

// client is a target with all features that the surface writes.
var client = &hub.Target{Provider: "client", Model: "creator/model", Quirks: map[string]bool{
	ReasoningDetails: true, CacheControl: true, TopK: true, ReasoningObject: true, OurSignatures: true,
}}

func answerTo(c *hub.Call) hub.Answer {
	return hub.Answer{ID: "gen_1", Model: "creator/model", Call: c, Metadata: func() []byte { return []byte(`{"generationId":"gen_1","cost":"0.5"}`) }}
}

// said returns an answer without the gateway's metadata.
func said(r *hub.Result) *hub.Result {
	c := *r
	c.Content = slices.Clone(r.Content)
	for i, p := range c.Content {
		if p.Kind == hub.ToolCallPart && p.Options == nil { // as when the client sends it back
			call := *p.Call
			call.ID, c.Content[i].Options = hub.UnpackID(call.ID)
			c.Content[i].Call = &call
		}
	}
	c.Response = hub.Response{}
	if c.Finish.Raw = ""; c.Usage != nil {
		u := *c.Usage
		u.Raw, u.Cost, u.Tier = nil, "", ""
		c.Usage = &u
	}
	if len(c.Content) == 0 {
		c.Content = nil
	}
	return &c
}

func same(t rapid.TB, what string, got, want *hub.Result) {
	t.Helper()
	if got, want := show(said(got)), show(said(want)); got != want {
		t.Errorf("%s is\n%s\nwant\n%s", what, got, want)
	}
}

// rewrite writes an answer for a client and decodes the client's view.
func rewrite(t rapid.TB, r *hub.Result) *hub.Result {
	t.Helper()
	body, err := New().WriteResult(answerTo(nil), r)
	if err != nil || !json.Valid(body) {
		t.Fatalf("WriteResult: %v\n%s", err, body)
	}
	return whole(t, client, body)
}

// restream does the same with a stream.
func restream(t rapid.TB, events []hub.Event) *hub.Result {
	t.Helper()
	call := new(hub.Call)
	call.Options.Set(own, "includeUsage", true)
	w := New().NewWriter(answerTo(call))
	var out []byte
	for i := range events {
		out = w.Append(out, &events[i])
		out = w.KeepAlive(out)
	}
	r, _, failed := stream(t, client, bytes.NewReader(out))
	if failed != nil {
		t.Fatalf("the stream that was written failed: %v\n%s", failed, out)
	}
	return r
}

func TestRecorded_RoundTrip(t *testing.T) {
	t.Parallel()
	for _, f := range recorded(t) {
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			if f.Whole != nil {
				r := whole(t, targetOf(&f), f.Whole)
				same(t, "whole and written", rewrite(t, r), r)
				same(t, "whole and streamed", restream(t, r.Events()), r)
			}
			if f.Chunks != nil {
				r, events, failed := stream(t, targetOf(&f), bytes.NewReader(gatewaytest.Frames(gatewaytest.Chat, f.Chunks)))
				if failed != nil {
					t.Fatal(failed)
				}
				same(t, "streamed and written", rewrite(t, r), r)
				same(t, "streamed and streamed", restream(t, events), r)
			}
		})
	}
}

// Any provider's answer reaches the client completely, with the data that must be sent
// back.
func TestProperty_Answers(t *testing.T) {
	t.Parallel()
	seedtest.Check(t, func(t *rapid.T) {
		r := genResult().Draw(t, "result")
		same(t, "written", rewrite(t, r), r)
		same(t, "streamed", restream(t, r.Events()), r)
	})
}

// An assistant message comes back from the client unchanged, with signatures.
func TestProperty_History(t *testing.T) {
	t.Parallel()
	seedtest.Check(t, func(t *rapid.T) {
		r := genResult().Draw(t, "result")
		body, err := New().WriteResult(answerTo(nil), r)
		if err != nil {
			t.Fatal(err)
		}
		var answer struct {
			Choices []struct{ Message json.RawMessage }
		}
		if err := json.Unmarshal(body, &answer); err != nil {
			t.Fatal(err)
		}
		call, err := New().ReadCall(nil, fmt.Appendf(nil, `{"messages":[{"role":"user","content":"x"},%s]}`, answer.Choices[0].Message))
		if err != nil {
			t.Fatalf("%v\n%s", err, body)
		}
		var want []hub.Part
		for _, p := range r.Content {
			if p.Kind != hub.SourcePart {
				want = append(want, p)
			}
		}
		var got []hub.Part
		for _, p := range call.Prompt[1].Parts {
			if p.Kind != hub.TextPart || p.Text != "" {
				got = append(got, p)
			}
		}
		if show(got) != show(want) {
			t.Fatalf("came back as\n%s\nwant\n%s\nin %s", show(got), show(want), body)
		}
	})
}

// An OpenAI client keeps only the last value of an unknown streamed member, and still all
// reasoning comes back. A client that knows the member keeps all items, with the same
// result.
func TestProperty_StreamedHistory(t *testing.T) {
	t.Parallel()
	seedtest.Check(t, func(t *rapid.T) {
		r := &hub.Result{Content: genReasoning(t), Finish: hub.Finish{Reason: hub.Stop}}
		w := New().NewWriter(answerTo(nil))
		var out []byte
		for _, e := range r.Events() {
			out = w.Append(out, &e)
		}
		var last json.RawMessage
		var all []json.RawMessage
		for line := range bytes.Lines(out) {
			var chunk struct {
				Choices []struct {
					Delta struct {
						Details json.RawMessage `json:"reasoning_details"`
					}
				}
			}
			data := bytes.TrimPrefix(bytes.TrimSpace(line), []byte("data: "))
			if json.Unmarshal(data, &chunk) != nil || len(chunk.Choices) == 0 || chunk.Choices[0].Delta.Details == nil {
				continue
			}
			last = chunk.Choices[0].Delta.Details
			var items []json.RawMessage
			if err := json.Unmarshal(last, &items); err != nil {
				t.Fatal(err)
			}
			all = append(all, items...)
		}
		every, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		signed := false // of the last block; without a signature nothing must come back
		if n := len(r.Content); n > 0 {
			o := r.Content[n-1].Options
			signed = len(o) > 0 && len(o["openai"]) != 1
		}
		for name, details := range map[string]json.RawMessage{"the last": last, "all": every} {
			if name == "the last" && !signed {
				continue
			}
			call, err := New().ReadCall(nil, fmt.Appendf(nil, `{"messages":[{"role":"assistant","content":"x","reasoning":"...","reasoning_details":%s}]}`, details))
			if err != nil {
				t.Fatal(err)
			}
			parts := call.Prompt[0].Parts
			if got, want := show(parts[:len(parts)-1]), show(r.Content); len(r.Content) > 0 && got != want {
				t.Fatalf("%s: came back as\n%s\nwant\n%s\nin %s", name, got, want, details)
			}
		}
	})
}

// Calls within the format's features survive encoding and decoding.
func TestProperty_Calls(t *testing.T) {
	t.Parallel()
	seedtest.Check(t, func(t *rapid.T) {
		c := genCall().Draw(t, "call")
		before := show(c)
		out, warnings, err := New().WriteCall(c, client)
		if err != nil || !json.Valid(out.Body) || len(warnings) > 0 {
			t.Fatalf("WriteCall: %v, warnings %v\n%s", err, warnings, out)
		}
		if show(c) != before {
			t.Fatal("WriteCall changed the call")
		}
		got, err := New().ReadCall(nil, out.Body)
		if err != nil {
			t.Fatalf("ReadCall: %v\n%s", err, out.Body)
		}
		delete(got.Options, own)
		if len(got.Options) == 0 {
			got.Options = nil
		}
		got.Members = nil // only the client's spelling of members in Options
		if got, want := show(got), show(c); got != want {
			t.Fatalf("read as\n%s\nwant\n%s\nin %s", got, want, out.Body)
		}
	})
}

// For any call, each kind of server gets JSON that it accepts, or no request.
func TestProperty_AllServers(t *testing.T) {
	t.Parallel()
	seedtest.Check(t, func(t *rapid.T) {
		c := genCall().Draw(t, "call")
		for server := range known {
			target := &hub.Target{Provider: server, Model: rapid.SampledFrom([]string{"gpt-5.1", "gpt-4o", "grok-4", "m"}).Draw(t, "model"), Quirks: Known(server)}
			out, _, err := New().WriteCall(c, target)
			if err != nil {
				if e, ok := err.(*hub.Error); !ok || e.Kind != hub.BadRequest || e.Message == "" {
					t.Fatalf("%s: %v", server, err)
				}
				continue
			}
			if !json.Valid(out.Body) {
				t.Fatalf("%s: %s", server, out.Body)
			}
			checkMembers(t, server, out.Body)
			if !New().Passes(target, out.Body) {
				t.Fatalf("%s: what was written for it does not pass: %s", server, out.Body)
			}
		}
	})
}

// checkMembers fails if an object has duplicate members.
func checkMembers(t *rapid.T, server string, body []byte) {
	d := json.NewDecoder(bytes.NewReader(body))
	var walk func()
	walk = func() {
		tok, err := d.Token()
		if err != nil {
			t.Fatal(err)
		}
		switch tok {
		case json.Delim('{'):
			seen := map[json.Token]bool{}
			for d.More() {
				key, _ := d.Token()
				if seen[key] {
					t.Fatalf("%s: member %v is there twice: %s", server, key, body)
				}
				seen[key] = true
				walk()
			}
			_, _ = d.Token()
		case json.Delim('['):
			for d.More() {
				walk()
			}
			_, _ = d.Token()
		}
	}
	walk()
}

func genText() *rapid.Generator[string] {
	return rapid.OneOf(rapid.StringMatching(`[a-z \n"\\<>&]{1,20}`), rapid.StringN(1, 20, -1)).
		Filter(func(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\ufffd") })
}

func genID() *rapid.Generator[string] {
	return rapid.OneOf(rapid.StringMatching(`call_[a-zA-Z0-9]{8,24}`), rapid.StringMatching(`[a-zA-Z0-9]{9}`), rapid.StringMatching(`fc[:.][a-z]{5}`))
}

func genJSON() *rapid.Generator[json.RawMessage] {
	return rapid.Custom(func(t *rapid.T) json.RawMessage {
		raw, err := json.Marshal(rapid.MapOf(rapid.StringMatching(`[a-z]{1,5}`), genText()).Draw(t, "object"))
		if err != nil {
			t.Fatal(err)
		}
		return raw
	})
}

// genSignature generates the options that providers want back with reasoning.
func genSignature(t *rapid.T, text string) (o hub.Options) {
	value := rapid.StringMatching(`[A-Za-z0-9+/=]{8,40}`)
	switch rapid.IntRange(0, 7).Draw(t, "provider") {
	case 1:
		o.Set("anthropic", "signature", value.Draw(t, "signature"))
	case 2:
		o.Set("openai", "itemId", value.Draw(t, "id"))
		o.Set("openai", "reasoningEncryptedContent", value.Draw(t, "content"))
	case 3:
		o.Set("google", "thoughtSignature", value.Draw(t, "signature"))
	case 4:
		o.Set("bedrock", "signature", value.Draw(t, "signature"))
	case 5:
		o.Set("vertex.anthropic", "signature", value.Draw(t, "signature"))
		o.Set("anthropic", "signature", value.Draw(t, "signature"))
	case 6:
		o.Set("openai", "itemId", value.Draw(t, "id"))
	case 7:
		o.Set("openai", "reasoningEncryptedContent", nil)
		o.Set("openai", "itemId", value.Draw(t, "id"))
	}
	return o
}

func genReasoning(t *rapid.T) (parts []hub.Part) {
	for range rapid.IntRange(0, 3).Draw(t, "thoughts") {
		p := hub.Part{Kind: hub.ReasoningPart, Text: genText().Draw(t, "thought")}
		if rapid.IntRange(0, 4).Draw(t, "redacted") == 0 {
			p.Text = ""
			p.Options.Set("anthropic", "redactedData", rapid.StringMatching(`[A-Za-z0-9+/=]{8,40}`).Draw(t, "data"))
		} else {
			p.Options = genSignature(t, p.Text)
		}
		parts = append(parts, p)
	}
	return parts
}

func genCalls(t *rapid.T) (parts []hub.Part) {
	for _, id := range rapid.SliceOfNDistinct(genID(), 0, 3, rapid.ID[string]).Draw(t, "ids") {
		p := hub.Part{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: id, Name: rapid.SampledFrom([]string{"weather", "time"}).Draw(t, "name"), Input: string(genJSON().Draw(t, "input"))}}
		parts = append(parts, p)
	}
	return parts
}

func genResult() *rapid.Generator[*hub.Result] {
	return rapid.Custom(func(t *rapid.T) *hub.Result {
		r := &hub.Result{Content: genReasoning(t)}
		text := rapid.Bool().Draw(t, "has text")
		if text {
			r.Content = append(r.Content, hub.Part{Kind: hub.TextPart, Text: genText().Draw(t, "text")})
		}
		if rapid.Bool().Draw(t, "has an image") {
			r.Content = append(r.Content, hub.Part{Kind: hub.FilePart, File: &hub.File{MediaType: "image/png", Data: []byte(genText().Draw(t, "image"))}})
		}
		calls := genCalls(t)
		for i := range calls {
			if rapid.Bool().Draw(t, "has a signature") {
				calls[i].Options.Set("google", "thoughtSignature", "c2ln")
			}
		}
		r.Content = append(r.Content, calls...)
		r.Finish.Reason = rapid.SampledFrom([]hub.Reason{hub.Stop, hub.Length, hub.ContentFilter}).Draw(t, "reason")
		if len(calls) > 0 && r.Finish.Reason == hub.Stop {
			r.Finish.Reason = hub.ToolCalls
		}
		if text && rapid.Bool().Draw(t, "has a source") {
			r.Content = append(r.Content, hub.Part{Kind: hub.SourcePart, Source: &hub.Source{ID: "source-0", URL: "https://example.com/a", Title: "A"}})
		}
		if rapid.Bool().Draw(t, "has usage") {
			n := rapid.Int64Range(0, 1000)
			r.Usage = &hub.Usage{Input: hub.N(1000 + n.Draw(t, "input")), CacheRead: hub.N(n.Draw(t, "read") / 2), Output: hub.N(1000 + n.Draw(t, "output"))}
			if rapid.Bool().Draw(t, "all counts") {
				r.Usage.CacheWrite, r.Usage.Reasoning = hub.N(n.Draw(t, "write")/2), hub.N(n.Draw(t, "reasoning"))
			}
			r.Usage.Fill()
		}
		return r
	})
}

func genOptional[T any](t *rapid.T, g *rapid.Generator[T], name string) *T {
	if !rapid.Bool().Draw(t, "has "+name) {
		return nil
	}
	v := g.Draw(t, name)
	return &v
}

func mark(t *rapid.T, o *hub.Options) {
	if rapid.IntRange(0, 3).Draw(t, "marked") == 0 {
		o.SetRaw("anthropic", "cacheControl", json.RawMessage(`{"type":"ephemeral"}`))
	}
}

func genUserParts(t *rapid.T) (parts []hub.Part) {
	for range rapid.IntRange(1, 3).Draw(t, "parts") {
		p := hub.Part{Kind: hub.FilePart}
		switch rapid.IntRange(0, 4).Draw(t, "kind") {
		case 1:
			p.File = &hub.File{MediaType: "image/png", Data: []byte(genText().Draw(t, "image"))}
			p.Options.Set("openai", "imageDetail", "high")
		case 2:
			p.File = &hub.File{MediaType: "image/*", URL: "https://example.com/a.png"}
		case 3:
			p.File = &hub.File{MediaType: "application/pdf", Name: "a.pdf", Data: []byte(genText().Draw(t, "pdf"))}
		case 4:
			p.File = &hub.File{MediaType: "audio/wav", Data: []byte(genText().Draw(t, "audio"))}
		default:
			p.Kind, p.Text = hub.TextPart, genText().Draw(t, "text")
		}
		mark(t, &p.Options)
		parts = append(parts, p)
	}
	return parts
}

// genCall generates calls within the format's features.
func genCall() *rapid.Generator[*hub.Call] {
	return rapid.Custom(func(t *rapid.T) *hub.Call {
		unit := rapid.Float64Range(0, 2)
		c := &hub.Call{
			MaxOutputTokens: genOptional(t, rapid.Int64Range(1, 1e6), "maxOutputTokens"),
			Sampling: hub.Sampling{
				Temperature: genOptional(t, unit, "temperature"), TopP: genOptional(t, unit, "topP"),
				TopK: genOptional(t, rapid.Float64Range(1, 100), "topK"), PresencePenalty: genOptional(t, unit, "presencePenalty"), FrequencyPenalty: genOptional(t, unit, "frequencyPenalty"),
				Seed: genOptional(t, rapid.Int64Range(-1<<53, 1<<53), "seed"),
			},
			User:        rapid.SampledFrom([]string{"", "ann"}).Draw(t, "user"),
			ServiceTier: rapid.SampledFrom([]string{"", "flex", "priority"}).Draw(t, "tier"), Stream: rapid.Bool().Draw(t, "stream"), HideReasoning: rapid.Bool().Draw(t, "hide"),
		}
		for range rapid.IntRange(0, 2).Draw(t, "stops") {
			c.StopSequences = append(c.StopSequences, genText().Draw(t, "stop"))
		}
		switch rapid.IntRange(0, 2).Draw(t, "reasoning") {
		case 1:
			c.Effort = rapid.SampledFrom([]hub.Effort{hub.EffortNone, hub.EffortLow, hub.EffortMax}).Draw(t, "effort")
		case 2:
			c.ThinkingBudget = hub.N(2048)
		}
		switch rapid.IntRange(0, 2).Draw(t, "format") {
		case 1:
			c.Format = &hub.Format{}
		case 2:
			no := false
			c.Format = &hub.Format{Name: "answer", Description: "what", Schema: genJSON().Draw(t, "schema"), Strict: &no}
		}
		if rapid.Bool().Draw(t, "has tools") {
			c.Tools = []hub.Tool{
				{Name: "weather", Description: "of a place", InputSchema: genJSON().Draw(t, "schema"), Strict: genOptional(t, rapid.Bool(), "strict")},
				{Name: "time", InputSchema: json.RawMessage(noParameters)},
			}
			mark(t, &c.Tools[0].Options)
			c.ToolChoice = rapid.SampledFrom([]hub.ToolChoice{{}, {Mode: hub.ToolAuto}, {Mode: hub.ToolNone}, {Mode: hub.ToolRequired}, {Mode: hub.ToolNamed, Tool: "time"}}).Draw(t, "choice")
			c.ParallelTools = genOptional(t, rapid.Bool(), "parallel")
		}
		if rapid.Bool().Draw(t, "has a system message") {
			m := hub.Message{Role: hub.System, Parts: []hub.Part{{Kind: hub.TextPart, Text: genText().Draw(t, "system")}}}
			mark(t, &m.Parts[0].Options)
			c.Prompt = append(c.Prompt, m)
		}
		for range rapid.IntRange(1, 3).Draw(t, "turns") {
			c.Prompt = append(c.Prompt, hub.Message{Role: hub.User, Parts: genUserParts(t)})
			turn := hub.Message{Role: hub.Assistant, Parts: genReasoning(t)}
			calls := genCalls(t)
			if len(calls) == 0 || rapid.Bool().Draw(t, "says something") {
				turn.Parts = append(turn.Parts, hub.Part{Kind: hub.TextPart, Text: genText().Draw(t, "said")})
			}
			turn.Parts = append(turn.Parts, calls...)
			c.Prompt = append(c.Prompt, turn)
			if len(calls) > 0 {
				c.Prompt = append(c.Prompt, genResults(t, calls))
			}
		}
		return c
	})
}

func genResults(t *rapid.T, calls []hub.Part) hub.Message {
	m := hub.Message{Role: hub.ToolRole}
	for _, p := range calls {
		r := &hub.ToolResult{CallID: p.Call.ID, Name: p.Call.Name, Output: hub.ToolOutput{Kind: hub.OutputText, Text: genText().Draw(t, "output")}}
		if rapid.Bool().Draw(t, "several") {
			r.Output = hub.ToolOutput{Kind: hub.OutputContent, Content: []hub.Part{{Kind: hub.TextPart, Text: "a"}, {Kind: hub.TextPart, Text: genText().Draw(t, "b")}}}
		}
		m.Parts = append(m.Parts, hub.Part{Kind: hub.ToolResultPart, Result: r})
	}
	return m
}

// The streamed and the whole form of a provider's answer decode to the same result.
func TestRendered(t *testing.T) {
	t.Parallel()
	for name, reply := range map[string]gatewaytest.Reply{
		"text":      {Text: "Hello, what a day it is today."},
		"reasoning": {Reasoning: "Let me think about that.", Text: "Well."},
		"calls":     {Text: "I look.", Calls: []gatewaytest.ReplyCall{{ID: "call_1", Name: "weather", Input: `{"city":"Berlin"}`}, {ID: "call_2", Name: "weather", Input: `{"city":"Kiel"}`}}},
		"length":    {Text: "And so", Finish: "length"},
		"cached":    {Text: "x", Usage: gatewaytest.ReplyUsage{Input: 100, CacheRead: 60, Output: 20, Reasoning: 5}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := reply.Render(gatewaytest.Chat, "m")
			target := targetOf(&f)
			a, b := whole(t, target, f.Whole), streamed(t, target, f.Chunks)
			same(t, "the stream", b, a)
			if a.Text() != reply.Text || len(reply.Calls) != len(callsOf(a)) || a.Response.ID == "" {
				t.Errorf("it says %s", show(a))
			}
		})
	}
}

func callsOf(r *hub.Result) (calls []*hub.ToolCall) {
	for _, p := range r.Content {
		if p.Kind == hub.ToolCallPart {
			calls = append(calls, p.Call)
		}
	}
	return calls
}
