package converse

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

var claudeModel = &hub.Target{Provider: "bedrock", Model: "us.anthropic.claude-3-7-sonnet-20250219-v1:0", MaxOutput: 64000}

// read reads a stream to its end and checks the order of its events.
func read(t *testing.T, stream io.Reader) (*hub.Result, *hub.Error) {
	t.Helper()
	var checker hub.Checker
	var collector hub.Collector
	r := New().NewReader(claudeModel, stream)
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

func fixtures(t *testing.T) []gatewaytest.Fixture {
	t.Helper()
	var all []gatewaytest.Fixture
	for _, f := range gatewaytest.Fixtures(t, "amazon-bedrock") {
		if f.Format == gatewaytest.Converse {
			all = append(all, f)
		}
	}
	if len(all) < 10 {
		t.Fatalf("there are %d fixtures", len(all))
	}
	return all
}

// shape summarizes an answer without its texts.
func shape(r *hub.Result) string {
	var parts []string
	for i := range r.Content {
		p := &r.Content[i]
		s := string(p.Kind)
		if p.Call != nil {
			s += ":" + p.Call.Name + p.Call.Input
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, " ") + " " + string(r.Finish.Reason)
}

func TestFixtures(t *testing.T) {
	t.Parallel()
	whole := map[string]string{
		"json-other-tool.1":       `tool-call:get-weather{"location":"San Francisco"} tool-calls`,
		"json-tool-with-answer.1": `text tool-call:json{"firstName":"John","lastName":"Doe"} tool-calls`,
		"json-tool.2":             `text tool-call:json{"value":"test data"} tool-calls`,
		"json-with-tool.1":        `text tool-call:get-weather{"location":"SF"} text tool-call:json{"result":"data"} tool-calls`,
		"text":                    `text stop`,
		"tool-call.1":             `tool-call:bash{"command":"ls -l"} tool-calls`,
	}
	streamed := map[string]string{
		"json-only-text-first.1":                  `text tool-call:json{"name":"John"} tool-calls`,
		"json-tool-text-then-weather-then-json.1": `text tool-call:weather{"location":"San Francisco"} tool-call:weather{"location":"London"} tool-calls`,
		"json-tool.3":                             `text text text tool-call:json{"result":42} tool-calls`,
		"json-with-tools.1":                       `text tool-call:tool-a{"a":"1"} tool-call:tool-b{"b":"2"} text tool-call:json{"final":"result"} tool-calls`,
		"text":                                    `text stop`,
		"tool-call.1":                             `tool-call:test-tool{"value":"Sparkle Day"} tool-calls`,
	}
	for _, f := range fixtures(t) {
		name := strings.TrimPrefix(f.Name, "amazon-bedrock/amazon-bedrock-")
		if f.Whole != nil {
			r, err := New().ReadResult(claudeModel, f.Whole)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			var checker hub.Checker
			events := r.Events()
			for i := range events {
				if err := checker.Add(&events[i]); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			if want := whole[name]; want != "" && shape(r) != want {
				t.Errorf("%s: %s, want %s", name, shape(r), want)
			}
			if r.Usage == nil || *r.Usage.Input == 0 || *r.Usage.Output == 0 {
				t.Errorf("%s: %+v", name, r.Usage)
			}
			delete(whole, name)
		}
		if f.Chunks != nil {
			stream := gatewaytest.Frames(gatewaytest.Converse, f.Chunks)
			r, failed := read(t, bytes.NewReader(stream))
			if failed != nil {
				t.Errorf("%s: %v", name, failed)
				continue
			}
			if want := streamed[name]; want != "" && shape(r) != want {
				t.Errorf("%s streamed: %s, want %s", name, shape(r), want)
			}
			again, failed := read(t, iotest.OneByteReader(bytes.NewReader(stream)))
			if failed != nil || !reflect.DeepEqual(again, r) {
				t.Errorf("%s byte by byte: %+v, %v; want %+v", name, again, failed, r)
			}
			delete(streamed, name)
		}
	}
	if len(whole)+len(streamed) > 0 {
		t.Errorf("no fixtures for %v and %v", whole, streamed)
	}
	text := gatewaytest.Named(t, "amazon-bedrock/amazon-bedrock-text")
	r, _ := read(t, bytes.NewReader(gatewaytest.Frames(gatewaytest.Converse, text.Chunks)))
	if !strings.HasSuffix(r.Text(), "There are **3** r's in \"strawberry.\"") || *r.Usage.Input != 22 || *r.Usage.Output != 55 || r.Finish.Raw != "end_turn" {
		t.Errorf("text: %q, %+v, %+v", r.Text(), r.Usage, r.Finish)
	}
}

const everything = `{
	"output": {"message": {"role": "assistant", "content": [
		{"reasoningContent": {"reasoningText": {"text": "Let me see.", "signature": "c2ln"}}},
		{"reasoningContent": {"redactedContent": "cmVkYWN0ZWQ="}},
		{"text": "Hello"},
		{"citationsContent": {"content": [{"text": "cited"}], "citations": [{"title": "A", "location": {"web": {"url": "https://a.example"}}, "sourceContent": [{"text": "from a"}]}]}},
		{"toolUse": {"toolUseId": "t1", "name": "f", "input": {"a": [1, 2]}}},
		{"toolUse": {"toolUseId": "t2", "name": "none", "input": {}}},
		{"toolUse": {"toolUseId": "t3", "name": "nova_grounding", "input": {}, "type": "server_tool_use"}},
		{"toolResult": {"toolUseId": "t3", "content": [{"text": "found"}], "status": "error"}},
		{"image": {"format": "png", "source": {"bytes": "aW1n"}}},
		{"new": {"x": 1}}
	]}},
	"stopReason": "stop_sequence",
	"additionalModelResponseFields": {"stop_sequence": "END"},
	"serviceTier": {"type": "priority"},
	"usage": {"inputTokens": 10, "outputTokens": 5, "totalTokens": 25, "cacheReadInputTokens": 3, "cacheWriteInputTokens": 7, "cacheDetails": [{"ttl": "1h", "inputTokens": 4}, {"ttl": "5m", "inputTokens": 3}]}
}`

func TestReadResult_Everything(t *testing.T) {
	t.Parallel()
	r, err := New().ReadResult(claudeModel, []byte(everything))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := shape(r), `reasoning reasoning text text source tool-call:f{"a":[1,2]} tool-call:none{} tool-call:nova_grounding{} tool-result file custom stop`; got != want {
		t.Fatalf("%s\nwant %s", got, want)
	}
	c := r.Content
	if c[0].Text != "Let me see." || c[0].Options.String("bedrock", "signature") != "c2ln" || c[1].Options.String("bedrock", "redactedData") != "cmVkYWN0ZWQ=" {
		t.Errorf("reasoning: %+v", c[:2])
	}
	if c[4].Source.URL != "https://a.example" || c[4].Options.String("bedrock", "citedText") != "from a" {
		t.Errorf("source: %+v", c[4])
	}
	if res := c[8].Result; res.Name != "nova_grounding" || !res.ProviderExecuted || res.Output.Kind != hub.OutputErrorJSON || string(res.Output.JSON) != `[{"text": "found"}]` {
		t.Errorf("result: %+v", res)
	}
	if string(c[9].File.Data) != "img" || c[9].File.MediaType != "image/png" || c[10].CustomKind != "bedrock.new" {
		t.Errorf("file: %+v, custom: %+v", c[9].File, c[10])
	}
	if r.Options.String("bedrock", "stopSequence") != "END" {
		t.Errorf("options: %v", r.Options)
	}
	want := hub.Usage{
		Input: hub.N(20), NoCache: hub.N(10), CacheRead: hub.N(3), CacheWrite: hub.N(7), CacheWrite1h: hub.N(4), Output: hub.N(5), Tier: "priority",
		Raw: r.Usage.Raw,
	}
	if !reflect.DeepEqual(*r.Usage, want) {
		t.Errorf("usage: %+v", r.Usage)
	}
}

// chunk returns a stream event in the form that Frames takes.
func chunk(text string) []byte { return []byte(text) }

func TestReader_StreamedIsWhole(t *testing.T) {
	t.Parallel()
	whole, err := New().ReadResult(claudeModel, []byte(`{
		"output": {"message": {"role": "assistant", "content": [
			{"reasoningContent": {"reasoningText": {"text": "Let me see.", "signature": "c2lnbmVk"}}},
			{"reasoningContent": {"redactedContent": "cmVkYWN0ZWQ="}},
			{"text": "Hello"},
			{"toolUse": {"toolUseId": "t1", "name": "f", "input": {"a":[1,2]}}},
			{"toolUse": {"toolUseId": "t2", "name": "none", "input": {}}},
			{"toolUse": {"toolUseId": "t3", "name": "search", "input": {}, "type": "server_tool_use"}},
			{"toolResult": {"toolUseId": "t3", "content": [{"text":"found"}], "status": "success"}}
		]}},
		"stopReason": "tool_use", "usage": {"inputTokens":10,"outputTokens":5}}`))
	if err != nil {
		t.Fatal(err)
	}
	chunks := [][]byte{
		chunk(`{"messageStart":{"role":"assistant"}}`),
		chunk(`{"contentBlockDelta":{"contentBlockIndex":0,"delta":{"reasoningContent":{"text":"Let me "}}}}`),
		chunk(`{"contentBlockDelta":{"contentBlockIndex":0,"delta":{"reasoningContent":{"text":"see."}}}}`),
		chunk(`{"contentBlockDelta":{"contentBlockIndex":0,"delta":{"reasoningContent":{"signature":"c2ln"}}}}`),
		chunk(`{"contentBlockDelta":{"contentBlockIndex":0,"delta":{"reasoningContent":{"signature":"bmVk"}}}}`),
		chunk(`{"contentBlockStop":{"contentBlockIndex":0}}`),
		chunk(`{"contentBlockDelta":{"contentBlockIndex":1,"delta":{"reasoningContent":{"redactedContent":"cmVkYQ=="}}}}`),
		chunk(`{"contentBlockDelta":{"contentBlockIndex":1,"delta":{"reasoningContent":{"redactedContent":"Y3RlZA=="}}}}`),
		chunk(`{"contentBlockStop":{"contentBlockIndex":1}}`),
		chunk(`{"contentBlockStart":{"contentBlockIndex":2,"start":{}}}`),
		chunk(`{"contentBlockDelta":{"contentBlockIndex":2,"delta":{"text":"Hel"},"p":"abcdef"}}`),
		chunk(`{"contentBlockDelta":{"contentBlockIndex":2,"delta":{"text":"lo"}}}`),
		chunk(`{"contentBlockStop":{"contentBlockIndex":2}}`),
		chunk(`{"contentBlockStart":{"contentBlockIndex":3,"start":{"toolUse":{"toolUseId":"t1","name":"f"}}}}`),
		chunk(`{"contentBlockDelta":{"contentBlockIndex":3,"delta":{"toolUse":{"input":""}}}}`),
		chunk(`{"contentBlockDelta":{"contentBlockIndex":3,"delta":{"toolUse":{"input":"{\"a\":[1"}}}}`),
		chunk(`{"contentBlockDelta":{"contentBlockIndex":3,"delta":{"toolUse":{"input":",2]}"}}}}`),
		chunk(`{"contentBlockStop":{"contentBlockIndex":3}}`),
		chunk(`{"contentBlockStart":{"contentBlockIndex":4,"start":{"toolUse":{"toolUseId":"t2","name":"none"}}}}`),
		chunk(`{"contentBlockStop":{"contentBlockIndex":4}}`),
		chunk(`{"contentBlockStart":{"contentBlockIndex":5,"start":{"toolUse":{"toolUseId":"t3","name":"search","type":"server_tool_use"}}}}`),
		chunk(`{"contentBlockStop":{"contentBlockIndex":5}}`),
		chunk(`{"contentBlockStart":{"contentBlockIndex":6,"start":{"toolResult":{"toolUseId":"t3","status":"success"}}}}`),
		chunk(`{"contentBlockDelta":{"contentBlockIndex":6,"delta":{"toolResult":[{"text":"found"}]}}}`),
		chunk(`{"contentBlockStop":{"contentBlockIndex":6}}`),
		chunk(`{"messageStop":{"stopReason":"tool_use"}}`),
		chunk(`{"somethingNew":{"x":1}}`),
		chunk(`{"metadata":{"usage":{"inputTokens":10,"outputTokens":5},"metrics":{"latencyMs":1}}}`),
	}
	streamed, failed := read(t, bytes.NewReader(gatewaytest.Frames(gatewaytest.Converse, chunks)))
	if failed != nil {
		t.Fatal(failed)
	}
	if !reflect.DeepEqual(streamed, whole) {
		t.Errorf("streamed %+v\nwhole    %+v", streamed, whole)
	}
}

// A call of hub.AnswerTool becomes the text of the answer.
func TestReader_AnswerTool(t *testing.T) {
	t.Parallel()
	whole, err := New().ReadResult(claudeModel, []byte(`{"output":{"message":{"content":[{"toolUse":{"toolUseId":"t1","name":"`+hub.AnswerTool+`","input":{"a":1}}}]}},"stopReason":"tool_use"}`))
	if err != nil || shape(whole) != "text stop" || whole.Text() != `{"a":1}` {
		t.Errorf("whole: %+v, %v", whole, err)
	}
	streamed, failed := read(t, bytes.NewReader(gatewaytest.Frames(gatewaytest.Converse, [][]byte{
		chunk(`{"contentBlockStart":{"contentBlockIndex":0,"start":{"toolUse":{"toolUseId":"t1","name":"` + hub.AnswerTool + `"}}}}`),
		chunk(`{"contentBlockDelta":{"contentBlockIndex":0,"delta":{"toolUse":{"input":"{\"a\""}}}}`),
		chunk(`{"contentBlockDelta":{"contentBlockIndex":0,"delta":{"toolUse":{"input":":1}"}}}}`),
		chunk(`{"contentBlockStop":{"contentBlockIndex":0}}`),
		chunk(`{"messageStop":{"stopReason":"tool_use"}}`),
	})))
	if failed != nil || shape(streamed) != "text stop" || streamed.Text() != `{"a":1}` {
		t.Errorf("streamed: %+v, %v", streamed, failed)
	}
}

func TestReader_Truncated(t *testing.T) {
	t.Parallel()
	f := gatewaytest.Named(t, "amazon-bedrock/amazon-bedrock-text")
	stream := gatewaytest.Frames(gatewaytest.Converse, f.Chunks)
	metadata := len(gatewaytest.Frame(gatewaytest.Converse, f.Chunks[len(f.Chunks)-1]))
	for cut := range len(stream) {
		r, failed := read(t, bytes.NewReader(stream[:cut]))
		if cut == len(stream)-metadata { // after messageStop it is complete, only the usage is missing
			if failed != nil || r.Usage != nil || r.Finish.Reason != hub.Stop {
				t.Errorf("after messageStop: %+v, %v", r, failed)
			}
			continue
		}
		if failed == nil || failed.Kind != hub.UpstreamFailed {
			t.Fatalf("the first %d of %d bytes are read as complete", cut, len(stream))
		}
	}
	for at := range len(stream) - metadata {
		flipped := bytes.Clone(stream)
		flipped[at] ^= 1
		if _, failed := read(t, bytes.NewReader(flipped)); failed == nil || failed.Kind != hub.UpstreamFailed {
			t.Fatalf("a wrong bit in byte %d was not seen", at)
		}
	}
}

// A frame that announces more than the limit is refused before memory is allocated.
func TestReader_FrameTooLarge(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ total, headers uint32 }{{maxFrame + 1, 0}, {0xffffffff, 0}, {100, 90}, {1000, 0xffffffff}, {15, 0}, {0, 0}, {maxFrame, maxHeaders + 1}} {
		b := binary.BigEndian.AppendUint32(nil, c.total)
		b = binary.BigEndian.AppendUint32(b, c.headers)
		b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
		endless := io.MultiReader(bytes.NewReader(b), io.LimitReader(zeros{}, 64<<20))
		if _, failed := read(t, endless); failed == nil || !strings.Contains(failed.Message, "no event stream") {
			t.Errorf("a frame of %d bytes with %d of headers: %v", c.total, c.headers, failed)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestReader_Exceptions(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]hub.ErrorKind{
		"throttlingException": hub.RateLimited, "modelStreamErrorException": hub.UpstreamFailed, "internalServerException": hub.UpstreamFailed,
		"serviceUnavailableException": hub.Overloaded, "validationException": hub.BadRequest, "modelTimeoutException": hub.Timeout, "newException": hub.UpstreamFailed,
	} {
		frame := gatewaytest.EventStream([]byte(`{"message":"no, key sk-abcdefghijklmnop"}`), ":message-type", "exception", ":exception-type", name)
		for _, before := range [][]byte{nil, gatewaytest.Frame(gatewaytest.Converse, chunk(`{"messageStart":{"role":"assistant"}}`))} {
			_, failed := read(t, bytes.NewReader(append(bytes.Clone(before), frame...)))
			if failed == nil || failed.Kind != want || failed.Code != name || failed.Message != "no, key [redacted]" || failed.Provider != "bedrock" {
				t.Errorf("%s: %+v", name, failed)
			}
		}
	}
	frame := gatewaytest.EventStream(nil, ":message-type", "error", ":error-code", "InternalFailure", ":error-message", "An internal server error occurred")
	if _, failed := read(t, bytes.NewReader(frame)); failed == nil || failed.Kind != hub.UpstreamFailed || failed.Message != "An internal server error occurred" {
		t.Errorf("error: %+v", failed)
	}
	frame = gatewaytest.Frame(gatewaytest.Converse, chunk(`{"messageStart":{"role":"assistant"}}`))
	bad := gatewaytest.EventStream([]byte(`{"contentBlockIndex":`), ":message-type", "event", ":event-type", "contentBlockDelta")
	if _, failed := read(t, bytes.NewReader(append(frame, bad...))); failed == nil || failed.Kind != hub.UpstreamFailed {
		t.Errorf("no JSON: %+v", failed)
	}
}

func TestReader_ReadingFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("connection reset")
	r := New().NewReader(claudeModel, iotest.ErrReader(broken))
	if _, err := r.Next(); !errors.Is(err, broken) {
		t.Errorf("Next: %v", err)
	}
}

func TestReadError(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status        int
		kind, body    string
		want          hub.ErrorKind
		code, message string
	}{
		{400, "ValidationException:http://internal.amazon.com/coral/", `{"message":"The provided model identifier is invalid."}`, hub.BadRequest, "ValidationException", "The provided model identifier is invalid."},
		{429, "ThrottlingException", `{"message":"Too many requests"}`, hub.RateLimited, "ThrottlingException", "Too many requests"},
		{403, "", `{"Message":"no access","__type":"com.amazon#AccessDeniedException"}`, hub.UpstreamFailed, "AccessDeniedException", "no access"},
		{404, "ResourceNotFoundException", `{}`, hub.ModelNotFound, "ResourceNotFoundException", "bedrock answered with the status 404"},
		{424, "ModelErrorException", `{"message":"it failed"}`, hub.UpstreamFailed, "ModelErrorException", "it failed"},
		{408, "ModelTimeoutException", ``, hub.Timeout, "ModelTimeoutException", "bedrock answered with the status 408"},
		{503, "", `<html>`, hub.Overloaded, "", "bedrock answered with the status 503"},
		{400, "ServiceQuotaExceededException", `{"message":"quota"}`, hub.RateLimited, "ServiceQuotaExceededException", "quota"},
	} {
		head := http.Header{"Retry-After": {"7"}}
		head.Set("X-Amzn-Errortype", c.kind)
		e := New().ReadError(claudeModel, c.status, head, []byte(c.body))
		if e.Kind != c.want || e.Code != c.code || e.Message != c.message || e.Status != c.status || e.RetryAfter != 7*time.Second || e.Provider != "bedrock" {
			t.Errorf("%d %s: %+v", c.status, c.kind, e)
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add(gatewaytest.Frames(gatewaytest.Converse, [][]byte{
		chunk(`{"messageStart":{"role":"assistant"}}`), chunk(`{"contentBlockDelta":{"contentBlockIndex":0,"delta":{"text":"a"}}}`),
		chunk(`{"messageStop":{"stopReason":"end_turn"}}`), chunk(`{"metadata":{"usage":{"inputTokens":1,"outputTokens":1}}}`),
	}))
	f.Fuzz(func(t *testing.T, stream []byte) { _, _ = read(t, bytes.NewReader(stream)) })
}

// FuzzEvents fuzzes the content of frames, which FuzzReader cannot reach because of
// checksums: each line is an event's type and JSON.
func FuzzEvents(f *testing.F) {
	f.Add("messageStart {}\ncontentBlockDelta {\"contentBlockIndex\":0,\"delta\":{\"text\":\"a\"}}\nmessageStop {\"stopReason\":\"end_turn\"}")
	f.Add("contentBlockStart {\"contentBlockIndex\":1,\"start\":{\"toolUse\":{\"toolUseId\":\"a\",\"name\":\"b\"}}}\ncontentBlockStop {\"contentBlockIndex\":1}\nmessageStop {}")
	f.Add("contentBlockDelta {\"contentBlockIndex\":1,\"delta\":{\"reasoningContent\":{\"redactedContent\":\"YQ==\"}}}\nmetadata {}\nmessageStop {}")
	f.Add("contentBlockStart {\"contentBlockIndex\":1,\"start\":{\"toolResult\":{\"toolUseId\":\"a\"}}}\ncontentBlockDelta {\"contentBlockIndex\":1,\"delta\":{\"toolResult\":[{}]}}\nmessageStop {}")
	f.Fuzz(func(t *testing.T, lines string) {
		var stream []byte
		for line := range strings.SplitSeq(lines, "\n") {
			kind, payload, _ := strings.Cut(line, " ")
			if len(kind) < 255 {
				stream = append(stream, gatewaytest.EventStream([]byte(payload), ":message-type", "event", ":event-type", kind)...)
			}
		}
		_, _ = read(t, bytes.NewReader(stream))
	})
}

func FuzzReadResult(f *testing.F) {
	f.Add([]byte(everything))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := New().ReadResult(claudeModel, body)
		if err != nil {
			return
		}
		var checker hub.Checker
		events := r.Events()
		for i := range events {
			if err := checker.Add(&events[i]); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func FuzzReadError(f *testing.F) {
	f.Add(400, "ValidationException:x", []byte(`{"message":"x"}`))
	f.Fuzz(func(t *testing.T, status int, kind string, body []byte) {
		e := New().ReadError(claudeModel, status, http.Header{"X-Amzn-Errortype": {kind}}, body)
		if e.Kind == "" || e.Message == "" {
			t.Fatalf("%+v", e)
		}
	})
}

// A block without a start may lack an end; the next block ends it.
func TestReader_ImpliedEnds(t *testing.T) {
	t.Parallel()
	r := New().NewReader(claudeModel, bytes.NewReader(gatewaytest.Frames(gatewaytest.Converse, [][]byte{
		chunk(`{"contentBlockDelta":{"contentBlockIndex":0,"delta":{"text":"a"}}}`),
		chunk(`{"contentBlockStart":{"contentBlockIndex":1,"start":{"toolUse":{"toolUseId":"t","name":"f"}}}}`),
		chunk(`{"contentBlockStop":{"contentBlockIndex":1}}`),
		chunk(`{"messageStop":{"stopReason":"tool_use"}}`),
	})))
	var kinds []hub.EventKind
	for {
		events, err := r.Next()
		if err != nil {
			break
		}
		for _, e := range events {
			kinds = append(kinds, e.Kind)
		}
	}
	want := []hub.EventKind{hub.Start, hub.TextStart, hub.TextDelta, hub.TextEnd, hub.InputStart, hub.InputDelta, hub.InputEnd, hub.Whole, hub.Finished}
	if !reflect.DeepEqual(kinds, want) {
		t.Errorf("%v, want %v", kinds, want)
	}
	stream := gatewaytest.Frames(gatewaytest.Converse, [][]byte{
		chunk(`{"contentBlockDelta":{"contentBlockIndex":1,"delta":{"text":"a"}}}`), chunk(`{"contentBlockDelta":{"contentBlockIndex":0,"delta":{"text":"b"}}}`),
	})
	if _, failed := read(t, bytes.NewReader(stream)); failed == nil || failed.Kind != hub.UpstreamFailed {
		t.Errorf("blocks out of order: %v", failed)
	}
}
