package chatcompletions

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

func TestReadEmbedCall(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]hub.EmbedCall{
		`{"model":"m","input":"a"}`: {Values: []string{"a"}},
		`{"input":["a","b"],"dimensions":256,"encoding_format":"base64","user":"ann","providerOptions":{"gateway":{},"cohere":{"inputType":"x"}},"truncate":"END"}`: {
			Values: []string{"a", "b"}, Dimensions: 256, User: "ann",
			Options:  hub.Options{own: {"encodingFormat": raw(`"base64"`)}, "cohere": {"inputType": raw(`"x"`)}},
			Warnings: []hub.Warning{{Kind: hub.WarnUnsupported, Feature: "truncate"}},
		},
	} {
		if got, err := ReadEmbedCall([]byte(body)); err != nil || show(got) != show(want) {
			t.Errorf("%s: %v\n%s", body, err, show(got))
		}
	}
	many := `{"input":[` + strings.Repeat(`"a",`, maxValues) + `"a"]}`
	for body, param := range map[string]string{
		`[]`: "", `{}`: "input", `{"input":[]}`: "input", `{"input":[1,2]}`: "input[0]", `{"input":{}}`: "input", many: "input",
		`{"input":"a","dimensions":0}`: "dimensions", `{"input":"a","encoding_format":"int8"}`: "encoding_format",
	} {
		_, err := ReadEmbedCall([]byte(body))
		var e *hub.Error
		if !errors.As(err, &e) || e.Kind != hub.BadRequest || e.Param != param {
			t.Errorf("%.60s: %+v", body, err)
		}
	}
}

// Vectors survive both encodings, numbers and base64, unchanged.
func TestEmbed_RoundTrip(t *testing.T) {
	t.Parallel()
	f := gatewaytest.Named(t, "openai/embedding-openai-embedding")
	want, err := ReadEmbedResult(&hub.Target{}, f.Whole, 2)
	if err != nil || len(want.Vectors) != 2 || len(want.Vectors[0]) != 5 || want.Vectors[1][0] != -0.037104916 || hub.Count(want.Usage.Input) != 12 {
		t.Fatalf("%v %s", err, show(want))
	}
	for _, format := range []string{"float", "base64"} {
		c, err := ReadEmbedCall([]byte(`{"input":["a","b"],"encoding_format":"` + format + `"}`))
		if err != nil {
			t.Fatal(err)
		}
		body := WriteEmbedResult(answerTo(nil), c, want)
		if !json.Valid(body) || bytes.Contains(body, []byte(`"embedding":"`)) != (format == "base64") || !bytes.Contains(body, []byte(`"providerMetadata":{"gateway":{`)) {
			t.Errorf("%s: %s", format, body)
		}
		got, err := ReadEmbedResult(&hub.Target{}, body, 2)
		if err != nil || show(got.Vectors) != show(want.Vectors) || hub.Count(got.Usage.Input) != 12 {
			t.Errorf("%s: %v %s", format, err, show(got))
		}
	}
}

func TestWriteEmbedCall(t *testing.T) {
	t.Parallel()
	c := &hub.EmbedCall{Values: []string{"a", "b"}, Dimensions: 8, User: "ann", Options: hub.Options{"mistral": {"outputDtype": raw(`"float"`), "model": raw(`"x"`)}, "openai": {"x": raw("1")}}}
	for server, want := range map[string]string{
		"openai":  `{"model":"m","input":["a","b"],"dimensions":8,"encoding_format":"base64","user":"ann","x":1}`,
		"mistral": `{"model":"m","input":["a","b"],"dimensions":8,"output_dtype":"float"}`,
	} {
		out, warnings, err := WriteEmbedCall(c, &hub.Target{Provider: server, Model: "m", Quirks: Known(server)})
		if err != nil || string(out.Body) != want || out.Path != "/embeddings" || len(warnings) != map[string]int{"mistral": 2}[server] {
			t.Errorf("%s: %v %v %s", server, err, warnings, out.Body)
		}
	}
}

func TestReadEmbedResult_Errors(t *testing.T) {
	t.Parallel()
	for body, kind := range map[string]hub.ErrorKind{
		`no`: hub.UpstreamFailed, `{"data":[]}`: hub.UpstreamFailed, `{"data":[{"index":1,"embedding":[1]}]}`: hub.UpstreamFailed,
		`{"data":[{"embedding":["a"]}]}`: hub.UpstreamFailed, `{"data":[{"embedding":"AAAA"}]}`: hub.UpstreamFailed, `{"data":[{"embedding":"AADAfw=="}]}`: hub.UpstreamFailed,
		`{"error":{"message":"m","code":429}}`: hub.RateLimited,
	} {
		_, err := ReadEmbedResult(&hub.Target{Provider: "p"}, []byte(body), 1)
		var e *hub.Error
		if !errors.As(err, &e) || e.Kind != kind || e.Provider != "p" {
			t.Errorf("%s: %+v", body, err)
		}
	}
	// Vectors are ordered by index, like the values.
	r, err := ReadEmbedResult(&hub.Target{}, []byte(`{"data":[{"index":1,"embedding":[2]},{"index":0,"embedding":[1]}]}`), 2)
	if err != nil || r.Vectors[0][0] != 1 || r.Usage != nil {
		t.Errorf("%v %s", err, show(r))
	}
}

func TestImages(t *testing.T) {
	t.Parallel()
	c, err := ReadImageCall([]byte(`{"model":"m","prompt":"p","n":2,"size":"auto","quality":"high","output_format":"webp","response_format":"url","user":"ann","seed":4,"foo":1}`))
	want := hub.ImageCall{Prompt: "p", N: 2, Seed: hub.N(4), User: "ann", Options: hub.Options{"openai": {"quality": raw(`"high"`), "outputFormat": raw(`"webp"`)}}, Warnings: []hub.Warning{{Kind: hub.WarnUnsupported, Feature: "foo"}}}
	if err != nil || show(c) != show(want) {
		t.Errorf("%v %s", err, show(c))
	}
	for body, param := range map[string]string{`{}`: "prompt", `{"prompt":"p","n":11}`: "n", `{"prompt":"p","stream":true}`: "stream", `{"prompt":1}`: "prompt", `1`: ""} {
		_, err := ReadImageCall([]byte(body))
		var e *hub.Error
		if !errors.As(err, &e) || e.Kind != hub.BadRequest || e.Param != param {
			t.Errorf("%s: %+v", body, err)
		}
	}
	for model, want := range map[string]string{
		"gpt-image-1": `{"model":"gpt-image-1","prompt":"p","n":2,"user":"ann","output_format":"webp","quality":"high"}`,
		"dall-e-3":    `{"model":"dall-e-3","prompt":"p","n":2,"user":"ann","response_format":"b64_json","output_format":"webp","quality":"high"}`,
	} {
		out, warnings, err := WriteImageCall(c, &hub.Target{Provider: "openai", Model: model, Quirks: Known("openai")})
		if err != nil || string(out.Body) != want || fmt.Sprint(warnings) == "[]" || out.Path != "/images/generations" {
			t.Errorf("%v %v %s", err, warnings, out.Body)
		}
	}
	c.Mask = &hub.File{}
	if _, _, err := WriteImageCall(c, &hub.Target{}); err == nil {
		t.Error("a mask is left out silently")
	}

	f := gatewaytest.Named(t, "openai/image-openai-image")
	r, err := ReadImageResult(&hub.Target{}, f.Whole)
	if err != nil || len(r.Images) != 2 || r.Images[0].MediaType != "image/png" || !strings.HasPrefix(r.Images[0].RevisedPrompt, "A small and") {
		t.Fatalf("%v %s", err, show(r))
	}
	r.Usage = &hub.Usage{Input: hub.N(3), Output: hub.N(4)}
	r.Images = append(r.Images, hub.Image{URL: "https://e.com/a.png"})
	again, err := ReadImageResult(&hub.Target{}, WriteImageResult(answerTo(nil), r))
	if err != nil {
		t.Fatal(err)
	}
	again.Usage.Raw, again.Usage.NoCache = nil, nil
	if show(again) != show(r) {
		t.Errorf("%s", show(again))
	}
	for _, body := range []string{`{}`, `{"data":[{}]}`, `{"data":[{"b64_json":"!"}]}`, `{"error":"no"}`} {
		if _, err := ReadImageResult(&hub.Target{}, []byte(body)); err == nil {
			t.Errorf("%s is taken for images", body)
		}
	}
}

func FuzzEmbed(f *testing.F) {
	f.Add([]byte(`{"input":["a"],"encoding_format":"base64"}`), []byte(`{"data":[{"index":0,"embedding":[1,2]}],"usage":{"prompt_tokens":1}}`))
	f.Add([]byte(`{"input":"a"}`), []byte(`{"data":[{"embedding":"AACAPw=="}]}`))
	f.Fuzz(func(t *testing.T, call, answer []byte) {
		c, err := ReadEmbedCall(call)
		if err != nil {
			return
		}
		r, err := ReadEmbedResult(&hub.Target{}, answer, len(c.Values))
		if err != nil {
			return
		}
		if body := WriteEmbedResult(hub.Answer{}, c, r); !json.Valid(body) {
			t.Fatalf("written as %s", body)
		}
	})
}
