package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/chatcompletions"
	"github.com/cayhq/cay/internal/gatewayd/converse"
	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/gemini"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/messages"
	"github.com/cayhq/cay/internal/gatewayd/responses"
)

// formats are the wire formats of providers, for reading recordings.
func formats() []any {
	return []any{chatcompletions.New(), messages.New(), responses.New(), gemini.New(), converse.New()}
}

// upstream returns the Upstream of a format.
func upstream(format string) hub.Upstream {
	for _, f := range formats() {
		if u, ok := f.(hub.Upstream); ok && u.Name() == format {
			return u
		}
	}
	return nil
}

// site is a daemon and the providers behind it.
type site struct {
	*providers
	world    world
	names    map[string]string // of recorded answers, by the ids of their models
	settings settings

	program, url, token string // of the daemon: its program, its API, its admin's token
}

// settings are the daemon's settings: JSON is YAML.
type settings struct {
	Environment bool                      `json:"environment"`
	Providers   map[string]map[string]any `json:"providers"`
	Models      map[string]*model         `json:"models"`
}

type model struct {
	Kind         string               `json:"kind"`
	Context      int                  `json:"context"`
	MaxOutput    int                  `json:"max_output"`
	Capabilities []string             `json:"capabilities"`
	Input        []string             `json:"input"`
	Endpoints    map[string]*endpoint `json:"endpoints"`
}

type endpoint struct {
	Model string            `json:"model"`
	Price map[string]string `json:"price"`
}

// modelNames returns the models that all providers have; see gatewaytest.
func modelNames() []string {
	names := []string{"text", "echo", "caller", "json", "tools", "noargs", "think", "muse", "agent", "long", "filtered", "slow", "flaky"}
	for _, f := range gatewaytest.Faults() {
		names = append(names, "fail-"+strings.ReplaceAll(string(f.Kind), " ", "-"))
	}
	return names
}

// open starts a site that ends with the test.
func open(t *testing.T) *site {
	t.Helper()
	s := &site{providers: play(t), names: map[string]string{}}
	s.settings = settings{Providers: map[string]map[string]any{}, Models: map[string]*model{}}
	for _, name := range s.providers.names() {
		format := dialects[name]
		s.provider(name, format, s.played[name].URL)
		for _, m := range modelNames() {
			s.model(name+"/"+m, "language", name, m)
		}
		for _, f := range gatewaytest.Language(t) {
			if f.Format == format && (f.Provider == "openai") == (name == "chat" || name == "responses") {
				id := name + "/fixture/" + f.Name
				s.names[id] = f.Name
				s.model(id, "language", name, s.played[name].Replay(f))
			}
		}
	}
	s.provider("refusing", gatewaytest.Chat, gatewaytest.Refused(t))
	for _, name := range []string{"messages", "converse"} { // that has a cache, by its name
		const claude = "anthropic.claude-sonnet-4-5-20250929-v1:0"
		s.played[name].As(claude, "echo")
		s.model(name+"/claude", "language", name, claude)
	}
	s.model("chat/embed", "embedding", "chat", "embed")
	s.model("chat/draw", "image", "chat", "draw")
	s.model("chat/rank", "reranking", "chat", "rank")
	s.model("twice/text", "language", "refusing", "text")
	s.settings.Models["twice/text"].Endpoints["chat"] = &endpoint{"text", price}
	s.start(t)
	return s
}

// price of all models: 1 and 4 dollars for a million tokens.
var price = map[string]string{"input": "1", "output": "4"}

func (s *site) provider(name, format, url string) {
	base := url + "/v1"
	switch format {
	case gatewaytest.Gemini:
		base = url + "/v1beta"
	case gatewaytest.Converse:
		base = url
	}
	p := map[string]any{"format": format, "base_url": base, "key": gatewaytest.Key, "first_byte": "5s", "idle": "20s"}
	if format == gatewaytest.Chat {
		p["paths"] = map[string]string{"embeddings": "/embeddings", "images": "/images/generations", "rerank": "/rerank"}
	}
	s.settings.Providers[name] = p
}

func (s *site) model(id, kind, provider, name string) {
	s.settings.Models[id] = &model{
		Kind: kind, Context: 200_000, MaxOutput: 8192, Input: []string{"text", "image", "file"},
		Capabilities: []string{"tool-use", "reasoning", "vision", "structured-output"},
		Endpoints:    map[string]*endpoint{provider: {name, price}},
	}
}

// programDir is the directory with the program that program built, if it was
// called. TestMain removes the directory.
var programDir string

// program returns the path of cay, which is built at the first call.
var program = sync.OnceValues(func() (string, error) {
	var err error
	if programDir, err = os.MkdirTemp("", "cay-conformance-"); err != nil {
		return "", err
	}
	path := filepath.Join(programDir, "cay")
	build := exec.Command("go", "build", "-o", path, "../../cmd/cay")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build cay: %w: %s", err, out)
	}
	return path, nil
})

// start runs "cay serve" until the test ends, with env added to its environment.
func (s *site) start(t *testing.T, env ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the daemon needs root")
	}
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	raw, err := json.Marshal(s.settings)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "settings.yaml")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "serve", "--json", "--data", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0",
		"--gateway-listen", "127.0.0.1:0", "--gateway-config", file, "--log-level", "warn")
	cmd.Env, cmd.Stderr, cmd.WaitDelay = append(environment(), env...), t.Output(), 10*time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		if err := cmd.Wait(); err != nil {
			t.Errorf("the daemon: %v", err)
		}
	})
	var started struct {
		URL       string `json:"url"`
		TokenFile string `json:"token_file"`
		Gateway   string `json:"gateway_url"`
	}
	if err := json.NewDecoder(out).Decode(&started); err != nil {
		t.Fatalf("the daemon does not say where it is: %v", err)
	}
	token, err := os.ReadFile(started.TokenFile)
	if err != nil {
		t.Fatal(err)
	}
	s.program, s.url, s.token = path, started.URL, strings.TrimSpace(string(token))
	c := gateway.Client{URL: s.url, Token: s.token}
	key := func(p gateway.CreateKeyParams) string {
		k, err := c.CreateKey(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		return k.Secret
	}
	s.world = world{
		URL: started.Gateway, Control: s.control, Dialects: s.providers.names(),
		Key:    key(gateway.CreateKeyParams{Name: "all", Budget: &gateway.BudgetParams{Limit: 100 * gateway.Dollar, Period: gateway.Daily}}),
		Spent:  key(gateway.CreateKeyParams{Name: "spent", Budget: &gateway.BudgetParams{Limit: 1, Period: gateway.Daily}}),
		Narrow: key(gateway.CreateKeyParams{Name: "narrow", KeyScope: gateway.KeyScope{Models: []string{"chat/*"}}}),
	}
}

// recording is a recorded answer: see replay.test.mjs.
type recording struct {
	Model  string `json:"model"`
	Stream bool   `json:"stream"`
	Fails  bool   `json:"fails"`
	Want   want   `json:"want"`
}

// want is the meaning of an answer, read by the answer's own format.
type want struct {
	Text      string       `json:"text"`
	Reasoning string       `json:"reasoning"`
	Calls     []wantedCall `json:"calls"`
	Finish    []hub.Reason `json:"finish"` // one of them
	Usage     wantedUsage  `json:"usage"`
}

type wantedCall struct {
	Name  string          `json:"name"`
	Input json.RawMessage `json:"input"`
}

type wantedUsage struct {
	Input  *int64 `json:"input"`
	Output *int64 `json:"output"`
}

// spoken are the formats that clients speak. The gateway passes providers'
// answers in these formats unchanged: see TestRaw.
var spoken = map[string]string{"openai": gatewaytest.Chat, "responses": gatewaytest.Responses, "anthropic": gatewaytest.Messages}

// deferred is the recorded result of a tool whose call was in an answer before.
// Clients of the AI SDK accept such a result only for tools that they have
// declared.
const deferred = "anthropic/anthropic-tool-search-deferred-bm25.2"

// recordings are all recorded answers of the providers that are translated for a
// client.
func (s *site) recordings(t *testing.T, client string) map[string][]recording {
	t.Helper()
	all := map[string][]recording{}
	for _, name := range s.providers.names() {
		format := dialects[name]
		u := upstream(format)
		kind, _, _ := strings.Cut(client, "-")
		if format == spoken[kind] {
			continue
		}
		for model, id := range s.names {
			if !strings.HasPrefix(model, name+"/") {
				continue
			}
			if kind == "ai" && id == deferred {
				continue
			}
			f := gatewaytest.Named(t, id)
			target := &hub.Target{Provider: name, Model: "fixture/" + id}
			if f.Whole != nil {
				r, err := u.ReadResult(target, f.Whole)
				all[name] = append(all[name], newRecording(id, false, r, err))
			}
			if f.Chunks != nil {
				r, err := collect(t, u.NewReader(target, bytes.NewReader(gatewaytest.Frames(format, f.Chunks))))
				all[name] = append(all[name], newRecording(id, true, r, err))
			}
		}
	}
	return all
}

func collect(t *testing.T, r hub.Reader) (*hub.Result, error) {
	t.Helper()
	var c hub.Collector
	for {
		events, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := range events {
			c.Add(&events[i])
		}
	}
	if result, err := c.Result(); err == nil {
		return result, nil
	} else {
		return result, err
	}
}

func newRecording(id string, stream bool, r *hub.Result, err error) recording {
	out := recording{Model: "fixture/" + id, Stream: stream, Fails: err != nil}
	if err != nil {
		return out
	}
	w := want{Text: r.Text(), Calls: []wantedCall{}, Finish: []hub.Reason{r.Finish.Reason}}
	for i := range r.Content {
		switch p := &r.Content[i]; {
		case p.Kind == hub.ReasoningPart:
			w.Reasoning += p.Text
		case p.Kind == hub.ToolCallPart && !p.Call.ProviderExecuted:
			w.Calls = append(w.Calls, wantedCall{p.Call.Name, p.Call.InputValue()})
		}
	}
	// Some formats cannot say that a model stopped in order to have its calls
	// run.
	if len(w.Calls) > 0 && r.Finish.Reason == hub.Stop {
		w.Finish = append(w.Finish, hub.ToolCalls)
	}
	if r.Usage != nil {
		w.Usage = wantedUsage{r.Usage.Input, r.Usage.Output}
	}
	out.Want = w
	return out
}
