package messages

import (
	"encoding/json"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// WriteCount encodes c as the body of POST /messages/count_tokens, which counts the
// tokens of c's prompt. Errors and warnings: see WriteCall.
func (*Format) WriteCount(c *hub.Call, t *hub.Target) (*hub.Outgoing, []hub.Warning, error) {
	w := newCallWriter(c, t)
	if err := w.write(); err != nil {
		return nil, nil, err
	}
	o := &w.out // count_tokens refuses members about the answer
	o.MaxTokens, o.Stream, o.StopSequences, o.Temperature, o.TopP, o.TopK = 0, false, nil, nil, nil, nil
	o.Metadata, o.ServiceTier, o.Container, o.InferenceGeo = nil, "", nil, nil
	return w.outgoing("/messages/count_tokens")
}

// ReadCount decodes the answer to WriteCount. Errors: UpstreamFailed.
func (*Format) ReadCount(t *hub.Target, body []byte) (int64, error) {
	if json.Valid(body) {
		if n := number(gjson.GetBytes(body, "input_tokens")); n != nil {
			return *n, nil
		}
	}
	return 0, errorf(t, "%s sent a count of tokens that is none", t.Provider)
}

// WriteCounted encodes the answer to a client that asked for count_tokens.
func (*Format) WriteCounted(n int64) []byte {
	body, _ := hub.Encode(map[string]int64{"input_tokens": n}) // a number
	return body
}

// These are the sizes that EstimateTokens assumes. Images have the largest size that
// providers scale to; a PDF page takes some 3 KB of text or 50 KB of scan, and has about
// 2,000 tokens.
const (
	imageTokens   = 1600
	pdfPageBytes  = 50 << 10
	pdfPageTokens = 2000
	turnTokens    = 4   // around a message, a tool or a tool call
	toolsTokens   = 300 // for the explanation of tools to the model
)

// EstimateTokens estimates the number of tokens of c's prompt, for providers that do not
// count. For English text and JSON the estimate is within some 20 %.
func EstimateTokens(c *hub.Call) int64 {
	var n int64
	for i := range c.Prompt {
		n += turnTokens + partsTokens(c.Prompt[i].Parts)
	}
	if len(c.Tools) > 0 {
		n += toolsTokens
	}
	for i := range c.Tools {
		t := &c.Tools[i]
		n += turnTokens + textTokens(t.Name) + textTokens(t.Description) + textTokens(string(t.InputSchema)) + textTokens(string(t.Args))
		for _, example := range t.Examples {
			n += textTokens(string(example))
		}
	}
	if c.Format != nil {
		n += textTokens(string(c.Format.Schema))
	}
	return n
}

func partsTokens(parts []hub.Part) int64 {
	var n int64
	for i := range parts {
		p := &parts[i]
		n += textTokens(p.Text) + textTokens(string(p.Custom))
		if p.File != nil {
			n += fileTokens(p.File)
		}
		if p.Call != nil {
			n += turnTokens + textTokens(p.Call.Name) + textTokens(p.Call.Input)
		}
		if p.Result != nil {
			o := &p.Result.Output
			n += turnTokens + textTokens(o.Text) + textTokens(string(o.JSON)) + partsTokens(o.Content)
		}
	}
	return n
}

func fileTokens(f *hub.File) int64 {
	if f.Text != "" {
		return textTokens(f.Text)
	}
	if len(f.MediaType) > 5 && f.MediaType[:5] == "text/" {
		return textTokens(string(f.Data))
	}
	if f.MediaType == "application/pdf" {
		return pdfPageTokens * (1 + int64(len(f.Data))/pdfPageBytes)
	}
	return imageTokens
}

// textTokens counts one token per four ASCII letters, or per two letters of other
// scripts.
func textTokens(s string) int64 {
	runes := utf8.RuneCountInString(s)
	others := (len(s) - runes + 1) / 2 // about: they have two to four bytes
	others = min(others, runes)
	return int64((runes-others+3)/4 + (others+1)/2)
}
