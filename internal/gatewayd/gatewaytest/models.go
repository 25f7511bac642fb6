package gatewaytest

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Signature is the signature that the model think sends and requires back. It is base64,
// like providers' signatures.
const Signature = "c2lnbmF0dXJlIG9mIHRoZSBtb2RlbCB0aGluaysvPQ=="

// builtin are the models of every Upstream:
//
//	text       says "Hello from the provider.", with tokens read from the cache
//	echo       answers with Asked, as JSON
//	caller     calls its first tool with Asked as the input
//	json       answers with JSON of the requested schema, or with a call of a
//	           tool if the request forces one
//	tools      calls weather for Paris and for Oslo, both at once, then answers with the results
//	noargs     calls its first tool without input
//	think      thinks and calls weather; refuses the next request without its signature
//	muse       thinks and answers; refuses the next request like think
//	long       stops at the request's output limit
//	filtered   stops with the reason content-filter
//	slow       text in many events, one every 10 ms
//	flaky      fails with 500 at the first request with each text, then answers like text
//	fail-KIND  fails: see Fault. Spaces are hyphens
var builtin = func() map[string]func(*Request) Answer {
	hello := Reply{Text: "Hello from the provider.", Usage: ReplyUsage{Input: 40, CacheRead: 16, Output: 12}}
	says := func(r Reply) func(*Request) Answer { return func(*Request) Answer { return Answer{Reply: r} } }
	all := map[string]func(*Request) Answer{
		"text":     says(hello),
		"long":     says(Reply{Text: "It goes on and", Finish: "length"}),
		"filtered": says(Reply{Text: "I would", Finish: "content-filter"}),
		"slow": func(*Request) Answer {
			return Answer{Reply: Reply{Text: strings.Repeat("Slowly now. ", 200)}, Pace: 10 * time.Millisecond}
		},
		"echo": func(q *Request) Answer { return Answer{Reply: Reply{Text: string(encode(q.Asked))}} },
		"caller": func(q *Request) Answer {
			return Answer{Reply: Reply{Calls: []ReplyCall{{"call_asked", slices.Concat(q.Asked.Tools, []string{"none"})[0], string(encode(q.Asked))}}}}
		},
		"json":   playJSON,
		"tools":  playTools,
		"noargs": playNoArguments,
		"think":  playThink,
		"muse":   playMuse,
	}
	for _, f := range Faults() {
		name := strings.ReplaceAll(string(f.Kind), " ", "-")
		all["fail-"+name] = func(*Request) Answer { return Answer{Reply: hello, Fault: f} }
	}
	return all
}()

func playJSON(q *Request) Answer {
	const object = `{"city":"Paris","degrees":21}`
	if c := q.Asked.Choice; slices.Contains(q.Asked.Tools, c) || c == "required" && len(q.Asked.Tools) == 1 {
		return Answer{Reply: Reply{Calls: []ReplyCall{{"call_json", q.Asked.Tools[0], object}}}}
	}
	if q.Asked.Schema == nil {
		return Answer{Reply: Reply{Text: "Nobody asked for JSON."}}
	}
	return Answer{Reply: Reply{Text: object}}
}

var cities = []ReplyCall{
	{"call_paris", "weather", `{"city":"Paris","days":3}`},
	{"call_oslo", "weather", `{"city":"Oslo, \"Norge\" – øst","days":1}`},
}

func playTools(q *Request) Answer {
	if results := q.Asked.Turns[len(q.Asked.Turns)-1].Results; len(results) > 0 {
		var said []string
		for _, r := range results {
			said = append(said, r.Text)
		}
		return Answer{Reply: Reply{Text: fmt.Sprintf("%d results: %s", len(results), strings.Join(said, " and "))}}
	}
	if !slices.Contains(q.Asked.Tools, "weather") {
		return Answer{Reply: Reply{Text: "There is no tool for the weather."}}
	}
	return Answer{Reply: Reply{Text: "I look it up.", Calls: cities}}
}

func playNoArguments(q *Request) Answer {
	if len(q.Asked.Tools) == 0 || len(q.Asked.Turns) > 1 {
		return Answer{Reply: Reply{Text: "Done."}}
	}
	return Answer{Reply: Reply{Calls: []ReplyCall{{"call_none", q.Asked.Tools[0], "{}"}}}}
}

// signed reports whether the request contains the signature. Chatcompletions has no
// signatures.
func (q *Request) signed() bool {
	if q.Format == Gemini && q.Model == "muse" { // Gemini does not require the signatures of text
		return true
	}
	return q.Format == Chat || slices.ContainsFunc(q.Asked.Turns, func(t Turn) bool { return slices.Contains(t.Signed, Signature) })
}

var thought = ReplyUsage{Input: 30, Output: 25, Reasoning: 15}

func playThink(q *Request) Answer {
	if len(q.Asked.Turns) == 1 {
		return Answer{Reply: Reply{Reasoning: "The user wants the weather.", Signature: Signature, Calls: cities[:1], Usage: thought}}
	}
	if !q.signed() {
		return Answer{Fault: Fault{Kind: Rejected}}
	}
	return Answer{Reply: Reply{Text: "The signature came back."}}
}

func playMuse(q *Request) Answer {
	if len(q.Asked.Turns) == 1 {
		return Answer{Reply: Reply{Reasoning: "Let me think about it.", Signature: Signature, Text: "I have thought.", Usage: thought}}
	}
	return playThink(q)
}

// flaky returns the model flaky.
func flaky() func(*Request) Answer {
	asked := make(map[string]bool)
	return func(q *Request) Answer {
		text := q.Format + q.Asked.Turns[0].Text
		if !asked[text] {
			asked[text] = true
			return Answer{Fault: Fault{Kind: ServerError}}
		}
		return builtin["text"](q)
	}
}

// Once makes a model fail at its first call and then answer like text.
func (u *Upstream) Once(model string, f Fault) {
	u.On(model, Answer{Fault: f}, builtin["text"](nil))
}

// As makes a model answer like a builtin model.
func (u *Upstream) As(model, builtinName string) { u.Play(model, builtin[builtinName]) }

// Replay makes a model answer with a fixture, and returns the model's name: fixture- and
// f's name, without slashes. Requests must be in f's format.
func (u *Upstream) Replay(f Fixture) (model string) {
	model = "fixture-" + strings.ReplaceAll(f.Name, "/", "-")
	u.On(model, Answer{Fixture: &f})
	return model
}

// other answers requests for endpoints other than language models. It returns false for
// an unknown path.
func (q *Request) other(w http.ResponseWriter) bool {
	v := parse(q.Body)
	answer := func(v any) bool {
		w.Header().Set("Content-Type", "application/json")
		w.Write(encode(v)) // the client may have left
		return true
	}
	path := q.URL.Path[strings.LastIndexByte(q.URL.Path, '/')+1:]
	switch {
	case path == "count_tokens":
		return answer(object{"input_tokens": 42})
	case path == "models" && q.Method == http.MethodGet:
		var list []any
		for _, name := range slices.Sorted(maps.Keys(builtin)) {
			list = append(list, object{"id": name, "object": "model", "created": created, "owned_by": "mock"})
		}
		return answer(object{"object": "list", "data": list})
	case path == "embeddings":
		inputs := v.at("input").texts()
		if text := v.at("input").text(); text != "" {
			inputs = []string{text}
		}
		var data []any
		for i, text := range inputs {
			data = append(data, object{"object": "embedding", "index": i, "embedding": vector(text, v.at("encoding_format").text() == "base64")})
		}
		return answer(object{"object": "list", "model": q.Model, "data": data, "usage": object{"prompt_tokens": 3 * len(inputs), "total_tokens": 3 * len(inputs)}})
	case strings.HasSuffix(q.URL.Path, "/images/generations"):
		var data []any
		for range max(1, v.at("n").number()) {
			data = append(data, object{"b64_json": Pixel})
		}
		return answer(object{"created": created, "data": data, "usage": object{"input_tokens": 9, "output_tokens": 100, "total_tokens": 109}})
	case path == "rerank":
		var results []any
		for i := range v.at("documents").list() { // the last is the best
			at := len(v.at("documents").list()) - 1 - i
			results = append(results, object{"index": at, "relevance_score": 1 / float64(i+2)})
		}
		if n := v.at("top_n").number(); n > 0 {
			results = results[:min(n, len(results))]
		}
		return answer(object{"id": "rerank", "results": results, "meta": object{"billed_units": object{"search_units": 1}}})
	case path == "speech":
		w.Header().Set("Content-Type", "audio/mpeg")
		w.Write([]byte("ID3 not really")) // as above
		return true
	case path == "transcriptions":
		return answer(object{"text": "What was said.", "usage": object{"type": "tokens", "input_tokens": 5, "output_tokens": 4, "total_tokens": 9}})
	}
	return false
}

// Pixel is a PNG of one pixel, in base64.
const Pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

// vector is an embedding of four numbers: the length of the text, and 1, 2, 3.
func vector(text string, packed bool) any {
	numbers := []float32{float32(len(text)), 0.25, 0.5, -0.75}
	if !packed {
		return numbers
	}
	var b []byte
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(n))
	}
	return base64.StdEncoding.EncodeToString(b)
}

// parse decodes a body that may be JSON.
func parse(body []byte) value {
	var v value
	if json.Unmarshal(body, &v.v) != nil { // not JSON: an empty value
		v.v = nil
	}
	return v
}
