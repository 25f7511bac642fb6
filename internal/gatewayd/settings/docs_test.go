package settings

import (
	"os"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/provider"
)

// The settings shown in docs/gateway.md must load, and the table there must have every
// kind of provider with its variables.
func TestDocs(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../../docs/gateway.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(raw)
	_, rest, ok := strings.Cut(page, "\n## Configuration\n")
	_, rest, yaml := strings.Cut(rest, "```yaml\n")
	text, _, closed := strings.Cut(rest, "```")
	if !ok || !yaml || !closed {
		t.Fatal("docs/gateway.md has no example of settings under \"Configuration\"")
	}
	s, err := load(t, text, "OPENAI_API_KEY", "k", "HOOK_TOKEN", "h", "OPENAI_KEY_OF_ONE", "k1")
	if err != nil {
		t.Fatal(err)
	}
	if got := configured(s); got != "azure bedrock cay house openai openai-eu" {
		t.Errorf("configured: %s", got)
	}
	if s.Guards == nil || !s.Guards.GuardsAnswers() {
		t.Error("the guards of the example guard nothing")
	}
	for _, k := range provider.KnownKinds() {
		_, row, ok := strings.Cut(page, "\n| `"+k.Kind+"` |")
		row, _, _ = strings.Cut(row, "\n")
		if !ok {
			t.Errorf("the table has no %s", k.Kind)
		}
		for _, want := range append(append([]string{string(k.Auth)}, k.Formats...), append(k.KeyEnv, k.URLEnv...)...) {
			if !strings.Contains(row, want) {
				t.Errorf("the row of %s does not say %s", k.Kind, want)
			}
		}
	}
}
