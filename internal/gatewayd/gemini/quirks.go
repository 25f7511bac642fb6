package gemini

import (
	"strconv"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Quirks, for hub.Target.
const (
	// QuirkVertex says that it is Vertex AI: embeddings are predictions, tokens are
	// counted of a request without its model, and service tiers are a header. The
	// base URL ends with /publishers/google.
	QuirkVertex = "vertex"
	// QuirkOpenAPISchema models know schemas in the subset of OpenAPI only, and not
	// JSON Schema.
	QuirkOpenAPISchema = "openapi-schema"
	// QuirkThinkingLevel and QuirkThinkingBudget say how a model is told how hard to
	// think, whatever it is called.
	QuirkThinkingLevel  = "thinking-level"
	QuirkThinkingBudget = "thinking-budget"
	// QuirkNoSystem models know no systemInstruction, as Gemma.
	QuirkNoSystem = "no-system"
)

// version is that of a Gemini model by its name: 2.5 of gemini-2.5-pro. Names
// without one (gemini-flash-latest) are taken for 2.5, whose settings newer models
// know as well; what is no Gemini model is 0.
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

// path is that of a method of the target's model. Models are in models/ unless
// their name says where they are (tunedModels/x).
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

// escape keeps what a name of a model consists of.
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
