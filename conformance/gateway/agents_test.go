package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
)

// agent plays a model that is asked to write a file: it calls the coding agent's tool for
// that, looks at the result, and says that it is done. Its other requests (a title, a
// summary) get a text.
func agent(tool, input string) func(*gatewaytest.Request) gatewaytest.Answer {
	return playing(tool, input, true)
}

// playing is agent; signs says that the coding agent sends the model's signatures back.
func playing(tool, input string, signs bool) func(*gatewaytest.Request) gatewaytest.Answer {
	return func(q *gatewaytest.Request) gatewaytest.Answer {
		if !slices.Contains(q.Asked.Tools, tool) {
			return gatewaytest.Answer{Reply: gatewaytest.Reply{Text: "A file"}}
		}
		for _, turn := range slices.Backward(q.Asked.Turns) {
			if len(turn.Results) > 0 {
				if r := turn.Results[0]; r.Failed {
					return gatewaytest.Answer{Reply: gatewaytest.Reply{Text: "The tool failed: " + r.Text}}
				}
				if signed := slices.ContainsFunc(q.Asked.Turns, func(t gatewaytest.Turn) bool { return slices.Contains(t.Signed, gatewaytest.Signature) }); signs && !signed && q.Format != gatewaytest.Chat {
					return gatewaytest.Answer{Reply: gatewaytest.Reply{Text: "The signature did not come back."}}
				}
				return gatewaytest.Answer{Reply: gatewaytest.Reply{Text: "The file is written."}}
			}
		}
		return gatewaytest.Answer{Reply: gatewaytest.Reply{
			Reasoning: "I write the file.", Signature: gatewaytest.Signature, Text: "I write it.",
			Calls: []gatewaytest.ReplyCall{{ID: "call_write", Name: tool, Input: input}}, Usage: gatewaytest.ReplyUsage{Input: 900, CacheRead: 100, Output: 30, Reasoning: 5},
		}}
	}
}

// home is where an agent of a test lives and works.
type home struct{ dir, work, file string }

func newHome(t *testing.T) home {
	t.Helper()
	dir := t.TempDir()
	h := home{dir: dir, work: filepath.Join(dir, "work")}
	h.file = filepath.Join(h.work, "hello.txt")
	if err := os.Mkdir(h.work, 0o700); err != nil {
		t.Fatal(err)
	}
	return h
}

// run runs an agent in h and returns its output. The agent cannot reach other hosts,
// because its proxy does not exist.
func (h home) run(t *testing.T, env []string, name string, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.WaitDelay = h.work, 10*time.Second
	cmd.Env = append([]string{
		"HOME=" + h.dir, "PATH=" + os.Getenv("PATH"), "TMPDIR=" + h.dir, "LANG=C.UTF-8", "SHELL=/bin/bash",
		"HTTPS_PROXY=http://127.0.0.1:9", "HTTP_PROXY=http://127.0.0.1:9", "NO_PROXY=127.0.0.1",
	}, env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err != nil {
		t.Errorf("%s: %v\n%.3000s\n%.3000s", filepath.Base(name), err, stdout.String(), stderr.String())
	}
	return stdout.Bytes()
}

// wrote checks that the file exists.
func (h home) wrote(t *testing.T, want string) {
	t.Helper()
	if got, err := os.ReadFile(h.file); err != nil || strings.TrimSpace(string(got)) != want {
		t.Errorf("the file has %q (%v) and not %q", got, err, want)
	}
}

// TestClaudeCode has Claude Code write a file with models of providers that speak
// Anthropic's format, OpenAI's, Gemini's and Bedrock's.
func TestClaudeCode(t *testing.T) {
	complete(t)
	need(t, "agents/node_modules/.bin/claude")
	claude, err := filepath.Abs("agents/node_modules/.bin/claude")
	if err != nil {
		t.Fatal(err)
	}
	s := open(t)
	passed := 0
	for _, dialect := range s.providers.names() {
		ok := t.Run(dialect, func(t *testing.T) {
			h := newHome(t)
			s.played[dialect].Play("agent", agent("Write", fmt.Sprintf(`{"file_path":%q,"content":"Hello by %s"}`, h.file, dialect)))
			out := h.run(t, s.claude(dialect+"/agent"), claude, "-p", "Write hello.txt", "--output-format", "json", "--allowedTools", "Write", "--max-turns", "4")
			var result struct {
				Subtype string `json:"subtype"`
				IsError bool   `json:"is_error"`
				Result  string `json:"result"`
				Turns   int    `json:"num_turns"`
				Session string `json:"session_id"`
				Usage   struct {
					Output int `json:"output_tokens"`
				} `json:"usage"`
			}
			if err := json.Unmarshal(out, &result); err != nil {
				t.Fatalf("%v: %.2000s", err, out)
			}
			if result.IsError || result.Result != "The file is written." || result.Turns != 2 || result.Usage.Output != 40 {
				t.Errorf("%+v", result)
			}
			h.wrote(t, "Hello by "+dialect)
		})
		if ok {
			passed++
		}
	}
	counted(t.Name(), passed, len(s.providers.names())-passed)
}

// TestClaudeCode_scripted lets Claude Code write a file with the model cay/scripted,
// whose script needs no provider.
func TestClaudeCode_scripted(t *testing.T) {
	complete(t)
	need(t, "agents/node_modules/.bin/claude")
	claude, err := filepath.Abs("agents/node_modules/.bin/claude")
	if err != nil {
		t.Fatal(err)
	}
	h := newHome(t)
	script := filepath.Join(h.dir, "script.json")
	raw := `{"replies": [
		{"match": "Write hello", "turn": 1, "text": "I run it.", "tool_calls": [{"name": "Bash", "input": {"command": "printf scripted > hello.txt && echo written"}}]},
		{"match": "Write hello", "text": "It said: {result}"},
		{"text": "A file"}]}`
	if err := os.WriteFile(script, []byte(raw), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &site{providers: &providers{}}
	s.start(t, "CAY_SCRIPT="+script)
	out := h.run(t, s.claude("cay/scripted"), claude, "-p", "Write hello.txt", "--output-format", "stream-json", "--verbose", "--allowedTools", "Bash", "--max-turns", "4")
	if !strings.Contains(string(out), `"result":"It said: written`) {
		t.Errorf("it says %.3000s", out)
	}
	h.wrote(t, "scripted")
}

// claude returns the environment in which Claude Code uses a model of the gateway.
func (s *site) claude(model string) []string {
	return []string{
		"ANTHROPIC_BASE_URL=" + s.world.URL + "/claude-code", "ANTHROPIC_AUTH_TOKEN=" + s.world.Key,
		"ANTHROPIC_MODEL=" + model, "ANTHROPIC_DEFAULT_HAIKU_MODEL=" + model, "ANTHROPIC_SMALL_FAST_MODEL=" + model,
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1", "DISABLE_TELEMETRY=1", "DISABLE_ERROR_REPORTING=1",
	}
}

// TestCodex has Codex write a file by a command, with models of providers that speak any
// format. Codex's web search is off, because OpenAI's servers run it.
func TestCodex(t *testing.T) {
	complete(t)
	need(t, "agents/node_modules/.bin/codex")
	codex, err := filepath.Abs("agents/node_modules/.bin/codex")
	if err != nil {
		t.Fatal(err)
	}
	s := open(t)
	passed := 0
	for _, dialect := range s.providers.names() {
		ok := t.Run(dialect, func(t *testing.T) {
			h := newHome(t)
			s.played[dialect].Play("agent", agent("exec_command", `{"cmd":"printf 'Hello by `+dialect+`' > hello.txt"}`))
			args := []string{"exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-m", dialect + "/agent"}
			for _, setting := range [][2]string{
				{"model_provider", "cay"}, {"model_providers.cay.name", "cay"}, {"model_providers.cay.base_url", s.world.URL + "/codex/v1"},
				{"model_providers.cay.wire_api", "responses"}, {"model_providers.cay.env_key", "CAY_KEY"}, {"web_search", "disabled"},
			} {
				args = append(args, "-c", fmt.Sprintf("%s=%q", setting[0], setting[1]))
			}
			out := string(h.run(t, []string{"CAY_KEY=" + s.world.Key}, codex, append(args, "Write hello.txt")...))
			for _, says := range []string{`"text":"I write it."`, `"text":"The file is written."`, `"exit_code":0`, `"output_tokens":40`} {
				if !strings.Contains(out, says) {
					t.Errorf("it does not say %s: %.3000s", says, out)
				}
			}
			h.wrote(t, "Hello by "+dialect)
		})
		if ok {
			passed++
		}
	}
	counted(t.Name(), passed, len(s.providers.names())-passed)
}

// TestOpencode has opencode write a file, with models of providers that speak any format.
// It speaks Chat Completions, by the AI SDK's client for compatible services, which knows
// no signatures of reasoning.
func TestOpencode(t *testing.T) {
	complete(t)
	need(t, "agents/node_modules/.bin/opencode")
	opencode, err := filepath.Abs("agents/node_modules/.bin/opencode")
	if err != nil {
		t.Fatal(err)
	}
	s := open(t)
	passed := 0
	for _, dialect := range s.providers.names() {
		ok := t.Run(dialect, func(t *testing.T) {
			h := newHome(t)
			s.played[dialect].Play("agent", playing("write", fmt.Sprintf(`{"filePath":%q,"content":"Hello by %s"}`, h.file, dialect), false))
			settings := fmt.Sprintf(`{"autoupdate": false, "share": "disabled", "permission": {"edit": "allow"}, "provider": {"cay": {
				"npm": "@ai-sdk/openai-compatible", "name": "cay", "options": {"baseURL": %q, "apiKey": %q},
				"models": {%q: {"name": "agent", "limit": {"context": 100000, "output": 10000}}}}}}`, s.world.URL+"/v1", s.world.Key, dialect+"/agent")
			if err := os.WriteFile(filepath.Join(h.work, "opencode.json"), []byte(settings), 0o600); err != nil {
				t.Fatal(err)
			}
			out := string(h.run(t, []string{"OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1"}, opencode, "run", "--format", "json", "--model", "cay/"+dialect+"/agent", "Write hello.txt"))
			for _, says := range []string{`"I write it."`, `"The file is written."`} {
				if !strings.Contains(out, says) {
					t.Errorf("it does not say %s: %.3000s", says, out)
				}
			}
			h.wrote(t, "Hello by "+dialect)
		})
		if ok {
			passed++
		}
	}
	counted(t.Name(), passed, len(s.providers.names())-passed)
}
