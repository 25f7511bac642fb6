package workflow

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cayhq/cay/internal/testenv"
)

// script makes the model pause before and after it calls the tool.
const script = `replies:
  - {match: "(?i)primes", turn: 1, text: "I need a moment.", tool_calls: [%s]}
  - {match: "(?i)primes", turn: 2, delay: 3s, tool_calls: [{name: runCode, input: {code: "console.log(76127) ?? 76127"}}]}
  - {match: "(?i)primes", delay: 1s, text: "The sum is {result}."}
`

// TestChat reloads a chat page in a browser in the middle of an answer, with the
// WorkflowChatTransport of both lines: with DurableAgent in examples/workflow-js, and
// with WorkflowAgent (AI SDK 7) in ./agent. The page then shows the answer once and
// whole.
func TestChat(t *testing.T) {
	for name, tt := range map[string]struct{ source, first string }{
		"DurableAgent":  {"../../examples/workflow-js", "{name: makeSandbox, input: {}}"},
		"WorkflowAgent": {"agent", `{name: runCode, input: {code: "1"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			need(t, tt.source, "..")
			file := filepath.Join(t.TempDir(), "script.yaml")
			if err := os.WriteFile(file, []byte(fmt.Sprintf(script, tt.first)), 0o600); err != nil {
				t.Fatal(err)
			}
			t.Setenv("CAY_SCRIPT", file)
			d := testenv.Start(t)
			a := buildIn(t, tt.source, tt.source, d.URL, d.Token)
			a.start(t)
			var seen struct{ Before, After, Again []string }
			if err := json.Unmarshal(browse(t, "chat.mjs", a.url, name), &seen); err != nil {
				t.Fatal(err)
			}
			if want := []string{"I need a moment."}; !slices.Equal(seen.Before, want) {
				t.Errorf("before the reload the page shows %q, want %q", seen.Before, want)
			}
			want := []string{"I need a moment. The sum is 76127."}
			if !slices.Equal(seen.After, want) || !slices.Equal(seen.Again, want) {
				t.Errorf("after the reload the page shows %q, after another one %q, want %q", seen.After, seen.Again, want)
			}
		})
	}
}

// browse runs a program of ../browser on a URL, and returns its output. Its picture gets
// a name.
func browse(t *testing.T, program, url, name string) []byte {
	t.Helper()
	var chromium string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			chromium = path
			break
		}
	}
	if chromium == "" {
		t.Fatal("there is no browser; make browser-deps installs one")
	}
	directory := os.Getenv("CAY_SCREENSHOTS")
	if directory == "" {
		directory = t.TempDir()
	}
	cmd := exec.CommandContext(t.Context(), "node", filepath.Join("../browser", program), url, directory, name)
	cmd.Env, cmd.Stderr = append(os.Environ(), "CHROMIUM="+chromium), t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", program, err)
	}
	return out
}
