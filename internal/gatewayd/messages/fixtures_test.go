package messages

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

var anthropic = &hub.Target{Provider: "anthropic", Model: "claude-sonnet-4-5-20250929", MaxOutput: 64000}

// read reads a stream to its end and checks the order of its events.
func read(t *testing.T, target *hub.Target, stream io.Reader) (*hub.Result, *hub.Error) {
	t.Helper()
	var checker hub.Checker
	var collector hub.Collector
	r := New().NewReader(target, stream)
	for {
		events, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("Next: %v", err)
		}
		if len(events) == 0 {
			t.Fatal("Next returned no event")
		}
		for i := range events {
			if err := checker.Add(&events[i]); err != nil {
				t.Fatal(err)
			}
			collector.Add(&events[i])
		}
	}
	if err := checker.End(); err != nil {
		t.Fatal(err)
	}
	return collector.Result()
}

// answers splits a fixture, which may contain the answers of a whole conversation, into
// the events of each answer.
func answers(chunks [][]byte) [][][]byte {
	var all [][][]byte
	for _, c := range chunks {
		if bytes.Contains(c, []byte(`"message_start"`)) || len(all) == 0 {
			all = append(all, nil)
		}
		all[len(all)-1] = append(all[len(all)-1], c)
	}
	return all
}

// messagesFixtures returns the fixtures of Anthropic Messages.
func messagesFixtures(t *testing.T) []gatewaytest.Fixture {
	t.Helper()
	var all []gatewaytest.Fixture
	for _, f := range gatewaytest.Fixtures(t, "anthropic") {
		if f.Format == gatewaytest.Messages {
			all = append(all, f)
		}
	}
	if len(all) < 30 {
		t.Fatalf("there are %d fixtures", len(all))
	}
	return all
}

// recorded returns all recorded answers, whole and streamed ones.
func recorded(t *testing.T) map[string]*hub.Result {
	t.Helper()
	all := make(map[string]*hub.Result)
	for _, f := range messagesFixtures(t) {
		if f.Whole != nil {
			r, err := New().ReadResult(anthropic, f.Whole)
			if err != nil {
				t.Fatalf("%s: %v", f.Name, err)
			}
			all[f.Name] = r
		}
		for i, chunks := range answers(f.Chunks) {
			r, failed := read(t, anthropic, bytes.NewReader(gatewaytest.Frames(gatewaytest.Messages, chunks)))
			if failed != nil {
				t.Fatalf("%s: %v", f.Name, failed)
			}
			all[f.Name+" streamed "+string(rune('a'+i))] = r
		}
	}
	return all
}

func TestFixtures(t *testing.T) {
	t.Parallel()
	all := recorded(t)
	if len(all) < 60 {
		t.Errorf("%d answers were read", len(all))
	}
	for name, r := range all {
		var checker hub.Checker
		events := r.Events()
		for i := range events {
			if err := checker.Add(&events[i]); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if r.Response.ID == "" || r.Response.Model == "" || r.Usage == nil || r.Usage.Input == nil || r.Usage.Output == nil {
			t.Errorf("%s: response %+v, usage %+v", name, r.Response, r.Usage)
		}
		if r.Finish.Reason == hub.OtherReason {
			t.Errorf("%s: finish %+v", name, r.Finish)
		}
		for i := range r.Content {
			p := &r.Content[i]
			if p.Kind == hub.ToolResultPart && (p.Result.Name == "" || p.Result.CallID == "" || !json.Valid(p.Result.Output.JSON)) {
				t.Errorf("%s: result %+v", name, p.Result)
			}
			if p.Kind == hub.ReasoningPart && p.Options.String("anthropic", "signature") == "" {
				t.Errorf("%s: a thought without its signature", name)
			}
		}
	}
}

// The expected values were read from the fixtures by a person.
func TestFixtures_Meaning(t *testing.T) {
	t.Parallel()
	all := recorded(t)
	get := func(name string) *hub.Result {
		t.Helper()
		r := all["anthropic/"+name]
		if r == nil {
			t.Fatalf("there is no answer %s", name)
		}
		return r
	}
	kinds := func(r *hub.Result) string {
		var kinds []string
		for i := range r.Content {
			k := string(r.Content[i].Kind)
			if r.Content[i].Call != nil {
				k += ":" + r.Content[i].Call.Name
			}
			kinds = append(kinds, k)
		}
		return strings.Join(kinds, " ")
	}

	r := get("anthropic-text streamed a")
	if !strings.HasPrefix(r.Text(), "Hello! I") || r.Finish != (hub.Finish{Reason: hub.Stop, Raw: "end_turn"}) || *r.Usage.Input != 12 {
		t.Errorf("text: %q, %+v, %+v", r.Text(), r.Finish, r.Usage)
	}
	r = get("anthropic-mcp.1")
	if got := kinds(r); got != "tool-call:echo tool-result text" {
		t.Errorf("mcp: %s", got)
	}
	if c := r.Content[0]; !c.Call.ProviderExecuted || !c.Call.Dynamic || c.Call.Input != `{"message":"hello world"}` || c.Options.String("anthropic", "serverName") != "echo" {
		t.Errorf("mcp: %+v %v", c.Call, c.Options)
	}
	if c := get("anthropic-mcp.1 streamed a").Content[0].Call; c.Input != `{"message": "hello world"}` {
		t.Errorf("mcp: %+v", c)
	}
	r = get("anthropic-tool-no-args streamed a")
	if got := kinds(r); got != "text tool-call:updateIssueList" || r.Content[1].Call.Input != "{}" || r.Finish.Reason != hub.ToolCalls {
		t.Errorf("no args: %s, %+v", got, r.Finish)
	}
	r = get("anthropic-refusal streamed a")
	var details struct{ Category, RecommendedModel string }
	if r.Finish.Reason != hub.ContentFilter || !r.Options.Get("anthropic", "stopDetails", &details) || details.Category != "cyber" || details.RecommendedModel != "claude-fable-5" {
		t.Errorf("refusal: %+v %v", r.Finish, r.Options)
	}
	// 682 + 60385 tokens of prompt and 1320 + 592 of output.
	r = get("anthropic-compaction.1")
	if *r.Usage.Input != 61067 || *r.Usage.Output != 1912 || r.Content[0].Options.String("anthropic", "type") != "compaction" || !strings.HasPrefix(r.Content[0].Text, "## Summary") {
		t.Errorf("compaction: %+v", r.Usage)
	}
	r = get("anthropic-fallback")
	if *r.Usage.Input != 412 || *r.Usage.Output != 264 || r.Content[0].CustomKind != "anthropic.fallback" || !strings.Contains(string(r.Content[0].Custom), "claude-opus-4-8") {
		t.Errorf("fallback: %+v %+v", r.Usage, r.Content[0])
	}
	r = get("anthropic-advisor-20260301.1") // the advisor's 874 tokens are another model's
	if *r.Usage.Input != 2414 || *r.Usage.Output != 3200 {
		t.Errorf("advisor: %+v", r.Usage)
	}
	r = get("anthropic-claude-opus-5-reasoning-high.1")
	if *r.Usage.Reasoning != 139 || *r.Usage.Text != 1699-139 || kinds(r) != "reasoning text" {
		t.Errorf("reasoning: %+v %s", r.Usage, kinds(r))
	}
	r = get("anthropic-web-fetch-tool.error")
	if o := r.Content[2].Result; o.Name != "web_fetch" || o.Output.Kind != hub.OutputErrorJSON {
		t.Errorf("web fetch: %+v", o)
	}
	r = get("anthropic-web-search-tool.1 streamed a")
	sources, cited := 0, 0
	for _, p := range r.Content {
		if p.Kind == hub.SourcePart {
			sources++
		}
		var citations []json.RawMessage
		if p.Options.Get("anthropic", "citations", &citations) {
			cited += len(citations)
		}
	}
	if cited != 14 || sources != 14+10 {
		t.Errorf("web search: %d citations, %d sources", cited, sources)
	}
	// The stream has no message_delta: all usage is in message_start.
	r = get("anthropic-programmatic-tool-calling.1 streamed b")
	if kinds(r) != "tool-call:rollDie" || r.Finish.Reason != hub.ToolCalls || r.Content[0].Call.Input != `{"player":"player2"}` {
		t.Errorf("programmatic: %s %+v %+v", kinds(r), r.Finish, r.Content[0].Call)
	}
	var caller struct{ Type, ToolID string }
	if !r.Content[0].Options.Get("anthropic", "caller", &caller) || caller.ToolID != "srvtoolu_01MzSrFWsmzBdcoQkGWLyRjK" {
		t.Errorf("programmatic: %v", r.Content[0].Options)
	}
}

// asStream converts a whole answer to the stream that Anthropic would send.
func asStream(t *testing.T, whole []byte) []byte {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(whole, &m); err != nil {
		t.Fatal(err)
	}
	content := m["content"].([]any)
	delta := map[string]any{"stop_reason": m["stop_reason"], "stop_sequence": m["stop_sequence"]}
	for _, name := range []string{"container", "stop_details"} {
		if v, ok := m[name]; ok {
			delta[name] = v
		}
	}
	end := map[string]any{"type": "message_delta", "delta": delta, "usage": m["usage"], "context_management": m["context_management"]}
	m["content"], m["stop_reason"], m["stop_sequence"] = []any{}, nil, nil
	m["usage"] = map[string]any{"input_tokens": 1, "output_tokens": 1}
	delete(m, "container")
	delete(m, "stop_details")
	delete(m, "context_management")
	events := []any{map[string]any{"type": "message_start", "message": m}}
	for i, c := range content {
		b := c.(map[string]any)
		var deltas []map[string]any
		grow := func(kind, member, text string) {
			for chunk := range slices.Chunk([]rune(text), 7) {
				deltas = append(deltas, map[string]any{"type": kind, member: string(chunk)})
			}
		}
		switch b["type"] {
		case "text":
			grow("text_delta", "text", b["text"].(string))
			b["text"] = ""
			if list, ok := b["citations"].([]any); ok {
				var cited []map[string]any
				for _, c := range list {
					cited = append(cited, map[string]any{"type": "citations_delta", "citation": c})
				}
				deltas = append(cited, deltas...)
				b["citations"] = []any{}
			}
		case "thinking":
			grow("thinking_delta", "thinking", b["thinking"].(string))
			grow("signature_delta", "signature", b["signature"].(string))
			b["thinking"], b["signature"] = "", ""
		case "compaction":
			grow("compaction_delta", "content", b["content"].(string))
			b["content"] = nil
		case "tool_use", "server_tool_use", "mcp_tool_use":
			raw, err := hub.Encode(b["input"])
			if err != nil {
				t.Fatal(err)
			}
			grow("input_json_delta", "partial_json", string(raw))
			b["input"] = map[string]any{}
		}
		events = append(events, map[string]any{"type": "content_block_start", "index": i, "content_block": b}, map[string]any{"type": "ping"})
		for _, d := range deltas {
			events = append(events, map[string]any{"type": "content_block_delta", "index": i, "delta": d})
		}
		events = append(events, map[string]any{"type": "content_block_stop", "index": i})
	}
	events = append(events, end, map[string]any{"type": "message_stop"})
	chunks := make([][]byte, len(events))
	for i, e := range events {
		raw, err := hub.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		chunks[i] = raw
	}
	return gatewaytest.Frames(gatewaytest.Messages, chunks)
}

// canonical returns a result in a form in which equal results are equal texts: JSON
// without white space, in fixed order and without empty options.
func canonical(t *testing.T, r *hub.Result) string {
	t.Helper()
	c := *r
	c.Content = slices.Clone(r.Content)
	for i := range c.Content {
		if call := c.Content[i].Call; call != nil && json.Valid([]byte(call.Input)) {
			copied := *call
			copied.Input = sorted(t, []byte(call.Input))
			c.Content[i].Call = &copied
		}
	}
	if r.Usage != nil {
		u := *r.Usage
		u.Raw = nil
		u.Others, u.Model = nil, "" // not sent to clients
		c.Usage = &u
	}
	raw, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return sorted(t, raw)
}

// differ shows the first difference between two texts.
func differ(got, want string) string {
	at := 0
	for at < len(got) && at < len(want) && got[at] == want[at] {
		at++
	}
	from := max(0, at-200)
	return "\ngot  ..." + got[from:min(len(got), at+300)] + "\nwant ..." + want[from:min(len(want), at+300)]
}

func sorted(t *testing.T, raw []byte) string {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	raw, err := hub.Encode(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestReader_StreamedIsWhole(t *testing.T) {
	t.Parallel()
	n := 0
	for _, f := range messagesFixtures(t) {
		if f.Whole == nil {
			continue
		}
		n++
		whole, err := New().ReadResult(anthropic, f.Whole)
		if err != nil {
			t.Fatal(err)
		}
		stream := asStream(t, f.Whole)
		for name, r := range map[string]io.Reader{"at once": bytes.NewReader(stream), "byte by byte": iotest.OneByteReader(bytes.NewReader(stream))} {
			streamed, failed := read(t, anthropic, r)
			if failed != nil {
				t.Fatalf("%s: %v", f.Name, failed)
			}
			if got, want := canonical(t, streamed), canonical(t, whole); got != want {
				t.Errorf("%s, %s: %s", f.Name, name, differ(got, want))
			}
		}
	}
	if n < 25 {
		t.Errorf("%d whole answers", n)
	}
}

// A provider's answer that is written for a client decodes to the same result.
func TestFixtures_RoundTrip(t *testing.T) {
	t.Parallel()
	for name, r := range recorded(t) {
		a := hub.Answer{ID: r.Response.ID, Model: r.Response.Model}
		body, err := New().WriteResult(a, r)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		again, err := New().ReadResult(anthropic, body)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := canonical(t, r)
		if got := canonical(t, again); got != want {
			t.Errorf("%s, whole: %s", name, differ(got, want))
		}
		w := New().NewWriter(a)
		var stream []byte
		events := r.Events()
		for i := range events {
			stream = w.Append(stream, &events[i])
			stream = w.KeepAlive(stream)
		}
		streamed, failed := read(t, anthropic, bytes.NewReader(stream))
		if failed != nil {
			t.Errorf("%s: %v", name, failed)
			continue
		}
		if got := canonical(t, streamed); got != want {
			t.Errorf("%s, streamed: %s", name, differ(got, want))
		}
	}
}

// A collected stream equals the whole answer.
func TestWriter_StreamedIsWhole(t *testing.T) {
	t.Parallel()
	for name, r := range recorded(t) {
		a := hub.Answer{ID: "gen_1", Model: "anthropic/claude", Metadata: func() []byte { return []byte(`{"cost":"1"}`) }}
		whole, err := New().WriteResult(a, r)
		if err != nil {
			t.Fatal(err)
		}
		streamed := accumulate(t, write(a, r.Events()...))
		for _, member := range []string{"id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"} {
			got, want := streamed.Get(member).Raw, gjson.GetBytes(whole, member).Raw
			if got, want := sorted(t, []byte(got)), sorted(t, []byte(want)); got != want {
				t.Errorf("%s: %s: %s", name, member, differ(got, want))
			}
		}
	}
}

// Writer emits the same stream events that the Reader decoded.
func TestWriter_PassesEventsOn(t *testing.T) {
	t.Parallel()
	for _, f := range messagesFixtures(t) {
		for _, chunks := range answers(f.Chunks) {
			in := gatewaytest.Frames(gatewaytest.Messages, chunks)
			r := New().NewReader(anthropic, bytes.NewReader(in))
			w := New().NewWriter(hub.Answer{ID: "gen_1", Model: "anthropic/claude"})
			var out []byte
			for {
				events, err := r.Next()
				if err != nil {
					break
				}
				for i := range events {
					out = w.Append(out, &events[i])
				}
			}
			want, _ := read(t, anthropic, bytes.NewReader(in))
			got, failed := read(t, anthropic, bytes.NewReader(out))
			if failed != nil {
				t.Fatalf("%s: %v", f.Name, failed)
			}
			got.Response, want.Response = hub.Response{}, hub.Response{}
			if g, w := canonical(t, got), canonical(t, want); g != w {
				t.Errorf("%s: %s", f.Name, differ(g, w))
			}
		}
	}
}

// A stream may break off at any byte. Then neither the Reader nor the Tap considers the
// answer complete.
func TestTruncated(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"anthropic/anthropic-text", "anthropic/anthropic-mcp.1", "anthropic/anthropic-refusal", "anthropic/anthropic-json-other-tool.1"} {
		stream := gatewaytest.Frames(gatewaytest.Messages, gatewaytest.Named(t, name).Chunks)
		whole, failed := read(t, anthropic, bytes.NewReader(stream))
		if failed != nil {
			t.Fatal(failed)
		}
		end := bytes.LastIndex(stream, []byte("\n\n")) + 1 // the event ends with the second one
		for cut := range len(stream) + 1 {
			tap := New().Tap(anthropic, true)
			tap.Write(stream[:cut/2])
			tap.Write(stream[cut/2 : cut])
			seen := tap.End()
			if complete := cut > end; seen.Complete != complete {
				t.Fatalf("%s: the first %d of %d bytes are complete: %v", name, cut, len(stream), seen.Complete)
			}
			if cut == len(stream) {
				if !reflect.DeepEqual(seen.Usage, whole.Usage) || seen.Finish != whole.Finish || seen.Response != whole.Response {
					t.Errorf("%s: the tap saw %+v, %+v; the reader %+v, %+v", name, seen.Usage, seen.Finish, whole.Usage, whole.Finish)
				}
			}
			_, failed := read(t, anthropic, bytes.NewReader(stream[:cut]))
			if cut <= end && (failed == nil || failed.Kind != hub.UpstreamFailed) {
				t.Fatalf("%s: the first %d of %d bytes are read as complete", name, cut, len(stream))
			}
		}
	}
}

func TestTap_Whole(t *testing.T) {
	t.Parallel()
	for _, f := range messagesFixtures(t) {
		if f.Whole == nil {
			continue
		}
		want, err := New().ReadResult(anthropic, f.Whole)
		if err != nil {
			t.Fatal(err)
		}
		tap := New().Tap(anthropic, false)
		if tap.Begun() {
			t.Error("a tap has begun before the first byte")
		}
		tap.Write(f.Whole[:10])
		tap.Write(f.Whole[10:])
		seen := tap.End()
		if !seen.Complete || !tap.Begun() || seen.Finish != want.Finish || seen.Response != want.Response || !reflect.DeepEqual(seen.Usage, want.Usage) || seen.OutputBytes == 0 {
			t.Errorf("%s: %+v", f.Name, seen)
		}
		cut := New().Tap(anthropic, false)
		cut.Write(bytes.TrimSpace(f.Whole)[:len(bytes.TrimSpace(f.Whole))-1])
		if seen := cut.End(); seen.Complete || seen.Usage != nil {
			t.Errorf("%s without its last byte: %+v", f.Name, seen)
		}
	}
}
