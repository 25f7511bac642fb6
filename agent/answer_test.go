package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/cayhq/cay"
)

const parts = `data: {"type":"stream-start","warnings":[{"type":"unsupported","feature":"topK","details":"no"}]}

data: {"type":"response-metadata","id":"r","modelId":"m"}

data: {"type":"reasoning-start","id":"0"}

data: {"type":"reasoning-delta","id":"0","delta":"Hm","providerMetadata":{"gateway":{"generationId":"gen_0"}}}

data: {"type":"reasoning-end","id":"0","providerMetadata":{"anthropic":{"signature":"s"}}}

data: {"type":"text-start","id":"0"}

data: {"type":"text-delta","id":"0","delta":"Hel"}

data: {"type":"source","sourceType":"url","id":"s1","url":"https://example.com","title":"T"}

data: {"type":"source","sourceType":"document","id":"s2","mediaType":"text/plain","title":"D","filename":"d.txt"}

data: {"type":"text-delta","id":"0","delta":"lo"}

data: {"type":"text-end","id":"0"}

data: {"type":"text-start","id":"1"}

data: {"type":"text-end","id":"1"}

data: {"type":"tool-input-start","id":"c0","toolName":"search","providerExecuted":true}

data: {"type":"tool-call","toolCallId":"c0","toolName":"search","input":"{\"q\":1}","providerExecuted":true}

data: {"type":"tool-result","toolCallId":"c0","toolName":"search","result":{"n":1},"preliminary":true}

data: {"type":"tool-result","toolCallId":"c0","toolName":"search","result":{"n":2}}

data: {"type":"tool-call","toolCallId":"c1","toolName":"search","input":"{}","providerExecuted":true}

data: {"type":"tool-result","toolCallId":"c1","toolName":"search","result":"gone","isError":true}

data: {"type":"tool-call","toolCallId":"c2","toolName":"mcp","input":"{}","providerExecuted":true,"dynamic":true}

data: {"type":"tool-approval-request","approvalId":"p1","toolCallId":"c2"}

data: {"type":"file","mediaType":"image/png","data":{"type":"data","data":"AA=="}}

data: {"type":"reasoning-file","mediaType":"image/png","data":{"type":"data","data":"AQ=="}}

data: {"type":"custom","kind":"openai.compaction","providerMetadata":{"openai":{"id":"x"}}}

data: {"type":"hologram"}

data: {"type":"finish","finishReason":"tool-calls","usage":{"inputTokens":{"total":1},"outputTokens":{"total":2}},"providerMetadata":{"gateway":{"generationId":"gen_0","cost":"0.001","warnings":[{"type":"other","message":"late"}]}}}

`

func build(t *testing.T, b *builder, stream string) (chunks []Chunk, err error) {
	t.Helper()
	return chunks, readAnswer(t.Context(), strings.NewReader(stream), func(p *StreamPart) error {
		more, err := b.take(p)
		chunks = append(chunks, more...)
		return err
	})
}

// Each kind of stream part becomes the right part of the conversation and the right
// chunk of the stream.
func TestBuilder(t *testing.T) {
	t.Parallel()
	b := newBuilder(answer{Number: 2}, map[string]*Tool{"search": {}}, []Message{{Role: Assistant, Parts: []Part{{Type: ToolCallPart, CallID: "c1"}}}})
	chunks, err := build(t, b, parts)
	if err != nil {
		t.Fatal(err)
	}
	message, err := json.Marshal(b.Message)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"role":"assistant","content":[` +
		`{"type":"reasoning","text":"Hm","providerOptions":{"anthropic":{"signature":"s"}}},` +
		`{"type":"text","text":"Hello"},` +
		`{"type":"tool-call","toolCallId":"c0","toolName":"search","input":{"q":1},"providerExecuted":true},` +
		`{"type":"tool-result","toolCallId":"c0","toolName":"search","output":{"type":"json","value":{"n":2}}},` +
		`{"type":"tool-call","toolCallId":"c1_2","toolName":"search","input":{},"providerExecuted":true},` +
		`{"type":"tool-result","toolCallId":"c1_2","toolName":"search","output":{"type":"error-text","value":"gone"}},` +
		`{"type":"tool-call","toolCallId":"c2","toolName":"mcp","input":{},"providerExecuted":true},` +
		`{"type":"tool-approval-request","toolCallId":"c2","approvalId":"p1"},` +
		`{"type":"file","mediaType":"image/png","data":{"type":"data","data":"AA=="}},` +
		`{"type":"reasoning-file","mediaType":"image/png","data":{"type":"data","data":"AQ=="}},` +
		`{"type":"custom","kind":"openai.compaction","providerOptions":{"openai":{"id":"x"}}}]}`
	if string(message) != want {
		t.Errorf("the message is\n%s\nwant\n%s", message, want)
	}
	if b.GenerationID != "gen_0" || b.FinishReason != FinishToolCalls || !reflect.DeepEqual(b.Usage, Usage{Calls: 1, Input: 1, Output: 2, Cost: 1e9, CostKnown: true}) {
		t.Errorf("the answer is %+v", b.answer)
	}
	if got := strings.Join(b.Warnings, "|"); got != `unsupported: topK: no|the answer had a part of the type "hologram", which is not known here|late` {
		t.Errorf("the warnings are %s", got)
	}
	if len(b.Sources) != 2 || b.Sources[1].Filename != "d.txt" {
		t.Errorf("the sources are %+v", b.Sources)
	}
	if pending := b.approvals(); len(pending) != 1 || pending[0].ID != "c2" {
		t.Errorf("the provider asks about %+v", pending)
	}
	var got bytes.Buffer
	for _, c := range chunks {
		line, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		got.Write(append(line, '\n'))
	}
	wantChunks := `{"type":"reasoning-start","id":"0"}
{"type":"reasoning-delta","id":"0","delta":"Hm"}
{"type":"reasoning-end","id":"0","providerMetadata":{"anthropic":{"signature":"s"}}}
{"type":"text-start","id":"0"}
{"type":"text-delta","id":"0","delta":"Hel"}
{"type":"source-url","title":"T","sourceId":"s1","url":"https://example.com"}
{"type":"source-document","title":"D","sourceId":"s2","mediaType":"text/plain","filename":"d.txt"}
{"type":"text-delta","id":"0","delta":"lo"}
{"type":"text-end","id":"0"}
{"type":"text-start","id":"1"}
{"type":"text-end","id":"1"}
{"type":"tool-input-start","toolCallId":"c0","toolName":"search","providerExecuted":true}
{"type":"tool-input-available","toolCallId":"c0","toolName":"search","input":{"q":1},"providerExecuted":true}
{"type":"tool-output-available","toolCallId":"c0","output":{"n":1},"preliminary":true,"providerExecuted":true}
{"type":"tool-output-available","toolCallId":"c0","output":{"n":2},"providerExecuted":true}
{"type":"tool-input-available","toolCallId":"c1_2","toolName":"search","input":{},"providerExecuted":true}
{"type":"tool-output-error","errorText":"gone","toolCallId":"c1_2","providerExecuted":true}
{"type":"tool-input-available","toolCallId":"c2","toolName":"mcp","input":{},"providerExecuted":true,"dynamic":true}
{"type":"tool-approval-request","toolCallId":"c2","approvalId":"p1"}
{"type":"file","url":"data:image/png;base64,AA==","mediaType":"image/png"}
`
	if got.String() != wantChunks {
		t.Errorf("people see\n%s", &got)
	}
}

// An answer whose parts do not fit together is retried.
func TestBuilder_Refuses(t *testing.T) {
	t.Parallel()
	for name, parts := range map[string][]StreamPart{
		"a delta of nothing": {{Type: StreamTextDelta, ID: "0"}},
		"an end of nothing":  {{Type: StreamReasoningEnd, ID: "0"}},
		"begun twice":        {{Type: StreamTextStart, ID: "0"}, {Type: StreamTextStart, ID: "0"}},
		"of another kind":    {{Type: StreamTextStart, ID: "0"}, {Type: StreamReasoningDelta, ID: "0"}},
		"after its end":      {{Type: StreamFinish}, {Type: StreamTextStart}},
		"called twice":       {{Type: StreamToolCall, ID: "a", ToolName: "t"}, {Type: StreamToolCall, ID: "a", ToolName: "t"}},
		"a nameless tool":    {{Type: StreamToolCall, ID: "a"}},
	} {
		b := newBuilder(answer{}, nil, nil)
		var err error
		for i := range parts {
			if _, err = b.take(&parts[i]); err != nil {
				break
			}
		}
		if !errors.Is(err, &cay.Error{Code: cay.Unavailable}) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Every input from a server gives an error, or an answer that can be stored.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(parts))
	f.Add([]byte("data: {\"type\":\"tool-call\",\"toolCallId\":\"a\",\"toolName\":\"t\",\"input\":\"{\"}\n\ndata: {\"type\":\"finish\"}\n\n"))
	f.Add([]byte("data: {\"type\":\"error\",\"error\":{\"statusCode\":429}}\n\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		b := newBuilder(answer{}, nil, nil)
		chunks, err := build(t, b, string(stream))
		for _, c := range chunks {
			if _, err := json.Marshal(c); err != nil {
				t.Fatalf("a chunk cannot be written: %v", err)
			}
		}
		if err != nil {
			if cay.CodeOf(err) == cay.Internal {
				t.Fatalf("the error has no code: %v", err)
			}
			return
		}
		kept, err := json.Marshal(b.answer)
		if err != nil {
			t.Fatalf("the answer cannot be kept: %v", err)
		}
		var back answer
		if err := json.Unmarshal(kept, &back); err != nil {
			t.Fatalf("the answer is kept as %s, and cannot be read: %v", kept, err)
		}
	})
}
