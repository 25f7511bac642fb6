package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/testenv"
	"github.com/cayhq/cay/workflow"
)

// modelSettings are the gateway's settings; house and spare are addresses.
const modelSettings = `
providers:
  house: {format: chatcompletions, base_url: %q, key: secret-house, unlisted: true, price: {input: 0.5, output: 1.5}}
  spare: {format: chatcompletions, base_url: %q, key: secret-spare}
models:
  acme/large:
    name: Acme Large
    context: 128000
    max_output: 8192
    capabilities: [tool-use, reasoning]
    endpoints:
      spare: {model: large-b, price: {input: 2, output: 8}}
      house: {model: large-a, price: {input: 2.5, output: 10, cache_read: 0.25}}
  acme/small:
    name: Acme Small
    context: 32000
    endpoints: {house: {model: small-a, price: {input: 0.15, output: 0.6}}}
capture: {requests: true, answers: true}
`

// modelScript has the answers of cay/scripted.
const modelScript = `
replies:
  - match: umbrella
    turn: 1
    reasoning: They ask about rain. The weather tool knows, so I call it for Oslo.
    tool_calls:
      - {name: weather, input: {city: Oslo}}
  - match: umbrella
    text: Take a light jacket. An umbrella is not needed today, though evenings near the fjord are often damp.
  - match: delete
    turn: 1
    text: I would delete the file, if you agree.
    tool_calls:
      - {name: delete_file, input: {name: "report <b>old</b>.txt"}}
  - match: delete
    text: "Done: {result}"
  - match: hostile
    text: "<img src=x onerror=alert(1)><script>alert(2)</script> [click](javascript:alert(3)) \u202Egnp.exe \x1b]0;evil\x07 # not a heading **nor bold**"
  - text: "You said: {question}"
`

// A person looks at the calls of models in the web inspector: at the gateway's
// requests as they end, at keys, budgets, providers and models, at the output of
// agents and their questions for approval. Text of models, providers and clients is
// shown as text, never as HTML.
func TestInspector_Models(t *testing.T) {
	chromium := need(t, "chromium", "chromium-browser", "google-chrome")
	node := need(t, "node")
	if _, err := os.Stat("node_modules"); err != nil {
		missing(t, "playwright-core")
	}
	dir := t.TempDir()
	seen := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/", serveHouse)
	mux.HandleFunc("POST /seen", func(w http.ResponseWriter, _ *http.Request) {
		close(seen)
		w.WriteHeader(http.StatusNoContent)
	})
	house, spare := httptest.NewServer(mux), httptest.NewServer(http.HandlerFunc(serveSpare))
	defer house.Close()
	defer spare.Close()
	settings, script := filepath.Join(dir, "gateway.yaml"), filepath.Join(dir, "script.yaml")
	for file, text := range map[string]string{settings: fmt.Sprintf(modelSettings, house.URL+"/v1", spare.URL+"/v1"), script: modelScript} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("CAY_SCRIPT", script)
	env := testenv.Start(t, func(c *config.Config) { c.GatewayConfig = settings })
	startAssistant(t, env, seen)

	shots := os.Getenv("CAY_SCREENSHOTS")
	if shots == "" {
		shots = t.TempDir()
	}
	cmd := exec.CommandContext(t.Context(), node, "browser/models.mjs", env.URL, shots)
	cmd.Env = append(os.Environ(), "CHROMIUM="+chromium, "CAY_TOKEN="+env.Token, "CAY_GATEWAY="+env.GatewayURL)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, t.Output()
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	t.Log(out.String())
	if err != nil || !strings.Contains(out.String(), "steps passed") {
		t.Fatal(err)
	}
}

// serveHouse answers as a provider that works.
func serveHouse(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if strings.HasSuffix(r.URL.Path, "/models") {
		_, _ = w.Write([]byte(`{"object":"list","data":[{"id":"small-a","object":"model"}]}`)) // the client may have left
		return
	}
	var asked struct {
		Model string `json:"model"`
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{ // the client may have left
		"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": asked.Model,
		"choices": []any{map[string]any{"index": 0, "finish_reason": "stop", "message": map[string]any{"role": "assistant", "content": "Hello. <b>bold</b>"}}},
		"usage": map[string]any{
			"prompt_tokens": 340, "completion_tokens": 120, "total_tokens": 460,
			"prompt_tokens_details": map[string]any{"cached_tokens": 64}, "completion_tokens_details": map[string]any{"reasoning_tokens": 17},
		},
	})
}

// serveSpare answers as a provider that is down, with a hostile text.
func serveSpare(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = w.Write([]byte(`{"error":{"message":"Overloaded <img src=x onerror=alert(1)>","type":"server_error"}}`)) // the client may have left
}

// startAssistant executes runs of the agent "assistant" until the test ends. For a
// prompt that asks for a slow answer, it writes half of the answer and then waits
// until seen is closed.
func startAssistant(t *testing.T, env *testenv.Env, seen <-chan struct{}) {
	client, err := workflow.Connect(workflow.RemoteOptions{URL: env.URL, Token: env.Token})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() }) // it has been stopped
	assistant := agent.New(agent.Config{Name: "assistant", Model: "cay/scripted", Tools: []agent.Tool{
		agent.NewTool("weather", "The weather of a city.", func(_ context.Context, in struct {
			City string `json:"city"`
		}) (map[string]any, error) {
			return map[string]any{"celsius": 7, "city": in.City, "sky": "overcast <img src=x onerror=alert(1)>"}, nil
		}),
		agent.NewTool("delete_file", "Deletes a file.", func(_ context.Context, in struct {
			Name string `json:"name"`
		}) (string, error) {
			return "deleted " + in.Name, nil
		}, agent.NeedsApproval()),
	}})
	worker := workflow.NewWorker(client, workflow.WorkerConfig{Definitions: workflow.Definitions(assistant.Workflow())})
	if err := worker.Start(agent.WithModels(t.Context(), &moody{&agent.Gateway{URL: env.GatewayURL, Key: env.Token}, seen})); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(worker.Stop)
}

// moody calls the gateway, but answers slowly or breaks off if the prompt says so.
type moody struct {
	*agent.Gateway
	seen <-chan struct{}
}

// pace is how long it takes for a word.
const pace = 120 * time.Millisecond

// Stream implements agent.Models.
func (m *moody) Stream(ctx context.Context, call *agent.ModelCall, emit func(*agent.StreamPart) error) error {
	told := call.Prompt[len(call.Prompt)-1].Text()
	var words []string
	switch {
	case strings.HasPrefix(told, "slow"):
		for i := range 40 {
			words = append(words, fmt.Sprintf("word%d ", i+1))
		}
	case told == "break off" && workflow.StepInfo(ctx).Attempt == 1:
		words = []string{"This ", "will ", "never ", "be"}
	case told == "break off":
		words = []string{"This is the whole answer."}
	default:
		return m.Gateway.Stream(ctx, call, emit)
	}
	if err := emit(&agent.StreamPart{Type: agent.StreamTextStart, ID: "0"}); err != nil {
		return err
	}
	for i, w := range words {
		select {
		case <-time.After(pace):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if i == 20 {
			select {
			case <-m.seen:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if err := emit(&agent.StreamPart{Type: agent.StreamTextDelta, ID: "0", Delta: w}); err != nil {
			return err
		}
	}
	if words[0] == "This " {
		return cay.Errorf(cay.Unavailable, "the model broke off")
	}
	if err := emit(&agent.StreamPart{Type: agent.StreamTextEnd, ID: "0"}); err != nil {
		return err
	}
	return emit(&agent.StreamPart{Type: agent.StreamFinish, Reason: agent.FinishStop})
}
