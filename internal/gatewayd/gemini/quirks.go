package gemini

import (
	"strconv"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Quirks, for hub.Target.
const (
	// QuirkVertex selects Vertex AI: embeddings use predict, countTokens takes a request
	// without the model, and the service tier is a header. The base URL ends with
	// /publishers/google.
	QuirkVertex = "vertex"
	// QuirkOpenAPISchema models accept only a subset of OpenAPI schemas, and no JSON
	// Schema.
	QuirkOpenAPISchema = "openapi-schema"
	// QuirkThinkingLevel and QuirkThinkingBudget select how the thinking effort is sent,
	// regardless of the model's name.
	QuirkThinkingLevel  = "thinking-level"
	QuirkThinkingBudget = "thinking-budget"
	// QuirkNoSystem models, such as Gemma, have no systemInstruction.
	QuirkNoSystem = "no-system"
)

// version returns the version in a Gemini model's name: 2.5 for gemini-2.5-pro. Names
// without a version (gemini-flash-latest) count as 2.5, whose settings newer models
// accept as well; other models are 0.
func version(model string) float64 {
	at := strings.LastIndex(model, "gemini-")
	if at < 0 {
		return 0
	}
	rest := model[at+len("gemini-"):]
	end := strings.IndexFunc(rest, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
	if end < 0 {
		end = len(rest)
	}
	if v, err := strconv.ParseFloat(rest[:end], 64); err == nil {
		return v
	}
	return 2.5
}

func noSystem(t *hub.Target) bool {
	return t.Is(QuirkNoSystem) || strings.HasPrefix(t.Model[strings.LastIndexByte(t.Model, '/')+1:], "gemma-")
}

// path returns the path of a method of the target's model. A model is in models/ unless
// its name contains another collection (tunedModels/x).
func path(t *hub.Target, method string) string {
	var b strings.Builder
	if !strings.Contains(t.Model, "/") {
		b.WriteString("/models")
	}
	for segment := range strings.SplitSeq(t.Model, "/") {
		b.WriteByte('/')
		escape(&b, segment)
	}
	return b.String() + ":" + method
}

// escape writes s escaped; the characters of model names stay.
func escape(b *strings.Builder, s string) {
	const hex = "0123456789ABCDEF"
	dots := strings.Trim(s, ".") == ""
	for i := range len(s) {
		c := s[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '@' || c == '.' && !dots {
			b.WriteByte(c)
			continue
		}
		b.Write([]byte{'%', hex[c>>4], hex[c&15]})
	}
}
