package gemini

import (
	"encoding/json"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// EmbedBatch returns the maximum number of values per call of the target's model.
func EmbedBatch(t *hub.Target) int {
	switch {
	case !t.Is(QuirkVertex):
		return 100
	case strings.Contains(t.Model, "gemini-embedding"):
		return 1
	}
	return 250
}

// modelName returns the model's name as request bodies have it.
func modelName(t *hub.Target) string {
	if strings.Contains(t.Model, "/") {
		return t.Model
	}
	return "models/" + t.Model
}

// WriteEmbedCall encodes a call of an embedding model: embedContent for one value,
// batchEmbedContents for several, predict on Vertex. Google's options taskType, title,
// autoTruncate and outputDimensionality are passed on.
func WriteEmbedCall(c *hub.EmbedCall, t *hub.Target) (*hub.Outgoing, []hub.Warning, error) {
	if n := EmbedBatch(t); len(c.Values) == 0 || len(c.Values) > n {
		return nil, nil, invalid("values", "there are %d values, and the model takes 1 to %d in one call", len(c.Values), n)
	}
	var warnings []hub.Warning
	options := make(map[string]json.RawMessage)
	for _, name := range []string{optProvider, "vertex", t.Provider} {
		for k, v := range c.Options[name] {
			options[k] = v
		}
	}
	if c.Dimensions > 0 {
		options["outputDimensionality"] = hub.MustEncode(c.Dimensions)
	}
	if c.User != "" {
		warnings = append(warnings, hub.Warning{Kind: hub.WarnUnsupported, Feature: "user"})
	}
	for _, name := range sorted(options) {
		switch name {
		case "taskType", "title", "outputDimensionality":
			continue
		case "autoTruncate":
			if t.Is(QuirkVertex) {
				continue
			}
		}
		delete(options, name)
		warnings = append(warnings, hub.Warning{Kind: hub.WarnUnsupported, Feature: "providerOptions.google." + name})
	}
	if t.Is(QuirkVertex) {
		return predict(c, t, options), warnings, nil
	}
	requests := make([]object, len(c.Values))
	for i, value := range c.Values {
		requests[i] = object{"model": modelName(t), "content": object{"parts": []any{object{"text": value}}}}
		for name, v := range options {
			requests[i][name] = v
		}
	}
	if len(requests) == 1 {
		return &hub.Outgoing{Path: path(t, "embedContent"), Body: hub.MustEncode(requests[0])}, warnings, nil
	}
	return &hub.Outgoing{Path: path(t, "batchEmbedContents"), Body: hub.MustEncode(object{"requests": requests})}, warnings, nil
}

func predict(c *hub.EmbedCall, t *hub.Target, options map[string]json.RawMessage) *hub.Outgoing {
	instances := make([]object, len(c.Values))
	parameters := object{}
	for i, value := range c.Values {
		instances[i] = object{"content": value}
		for name, v := range options {
			switch name {
			case "taskType":
				instances[i]["task_type"] = v
			case "title":
				instances[i][name] = v
			default:
				parameters[name] = v
			}
		}
	}
	return &hub.Outgoing{Path: path(t, "predict"), Body: hub.MustEncode(object{"instances": instances, "parameters": parameters})}
}

// ReadEmbedResult decodes the vectors of n values. Vertex reports token counts; AI Studio
// does so only for newer models.
func ReadEmbedResult(t *hub.Target, body []byte, n int) (*hub.EmbedResult, error) {
	type vector struct {
		Values     []float64 `json:"values"`
		Statistics *struct {
			Tokens *float64 `json:"token_count"`
		} `json:"statistics"`
	}
	var answer struct {
		Embedding   *vector  `json:"embedding"`
		Embeddings  []vector `json:"embeddings"`
		Predictions []struct {
			Embeddings vector `json:"embeddings"`
		} `json:"predictions"`
		UsageMetadata *usageMetadata `json:"usageMetadata"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, broken(t, "the vectors make no sense", err)
	}
	all := answer.Embeddings
	if answer.Embedding != nil {
		all = append(all, *answer.Embedding)
	}
	for _, p := range answer.Predictions {
		all = append(all, p.Embeddings)
	}
	if len(all) != n {
		return nil, broken(t, "the number of vectors is not that of the values", nil)
	}
	r := &hub.EmbedResult{}
	tokens, counted := int64(0), 0
	for _, v := range all {
		if len(v.Values) == 0 {
			return nil, broken(t, "a vector is empty", nil)
		}
		r.Vectors = append(r.Vectors, v.Values)
		if s := v.Statistics; s != nil && s.Tokens != nil {
			tokens += int64(*s.Tokens)
			counted++
		}
	}
	switch u := answer.UsageMetadata; {
	case u != nil && u.Prompt.n != nil:
		r.Usage = &hub.Usage{Input: u.Prompt.n, Raw: u.raw}
	case counted == n:
		r.Usage = &hub.Usage{Input: &tokens}
	}
	return r, nil
}
