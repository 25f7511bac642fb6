package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/db/dbtest"
	"github.com/cayhq/cay/internal/gatewayd"
	"github.com/cayhq/cay/internal/gatewayd/aisdk"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/scripted"
	"github.com/cayhq/cay/internal/gatewayd/settings"
	"github.com/cayhq/cay/workflow"
)

// serve starts the gateway of a daemon, whose model cay/scripted has a script. The
// book is sure to have all streamed calls once the engine is closed.
func serve(t *testing.T, text string) (*agent.Gateway, *ledger.Book, *gatewayd.Engine) {
	t.Helper()
	d := dbtest.Open(t)
	book, err := ledger.Open(t.Context(), d, ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = book.Close() })
	loaded, err := settings.Load("", nil)
	if err != nil {
		t.Fatal(err)
	}
	replies, err := scripted.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	current := &gatewayd.Settings{Providers: loaded.Snapshot.Providers, Catalog: loaded.Snapshot.Catalog}
	engine := gatewayd.New(gatewayd.Config{
		Ledger: book, Formats: []any{aisdk.New()}, Scripted: scripted.NewSource(replies), Settings: func() *gatewayd.Settings { return current },
	})
	t.Cleanup(func() { engine.Close(context.Background()) })
	server := httptest.NewServer(engine)
	t.Cleanup(server.Close)
	key, err := book.CreateKey(t.Context(), account.DefaultTeam, gateway.CreateKeyParams{ProjectID: account.DefaultProject})
	if err != nil {
		t.Fatal(err)
	}
	return &agent.Gateway{URL: server.URL, Key: key.Secret, User: "ada", Tags: []string{"test, with comma"}}, book, engine
}

const weatherScript = `
replies:
  - match: umbrella
    turn: 1
    reasoning: They want the weather.
    tool_calls: [{name: weather, input: {city: Oslo}}, {name: weather, input: "{"}]
    usage: {input: 20, output: 5, cache_read: 10, reasoning: 2}
  - match: umbrella
    text: "It is {result}."
  - match: json
  - match: broken
    text: This is where
    error: {status: 503, message: Overloaded.}
  - match: refused
    error: {status: 400, message: That is wrong.}
`

// An agent calls a model through the gateway of a daemon, which records the call.
func TestGateway(t *testing.T) {
	t.Parallel()
	g, book, engine := serve(t, weatherScript)
	a := agent.New(agent.Config{Name: "assistant", Model: "cay/scripted", Instructions: "Be brief.", Tools: []agent.Tool{weather}, Settings: agent.Settings{Reasoning: "low"}})
	r, stream, err := answered(t, g, a, agent.Call{Prompt: "Do I need an umbrella?"})
	if err != nil {
		t.Fatal(err)
	}
	if r.Text != "It is the input is not JSON: unexpected end of JSON input." || r.Steps[0].Reasoning != "They want the weather." || len(r.Steps[0].ToolCalls) != 2 {
		t.Errorf("the result is %+v", r)
	}
	first := r.Steps[0]
	if u := first.Usage; u.Input != 20 || u.Output != 5 || u.CacheRead != 10 || u.Reasoning != 2 || !u.CostKnown || !strings.HasPrefix(first.GenerationID, "gen_") {
		t.Errorf("the first step is %+v", first)
	}
	var text, thought strings.Builder
	for _, c := range undisturbed(stream) {
		switch c.Type {
		case agent.ChunkTextDelta:
			text.WriteString(*c.Delta)
		case agent.ChunkReasoningDelta:
			thought.WriteString(*c.Delta)
		}
		if len(c.ProviderMetadata) > 0 {
			t.Errorf("the stream has metadata of the gateway: %+v", c)
		}
	}
	if text.String() != r.Text || thought.String() != first.Reasoning {
		t.Errorf("the stream says %q and %q", &thought, &text)
	}
	engine.Close(t.Context()) // an answer is settled when all of it has been sent, so maybe after we have read it
	page, err := book.Requests(t.Context(), account.DefaultTeam, "", gateway.RequestFilter{User: "ada", Tag: "agent:assistant", Limit: 10})
	if err != nil || len(page.Items) != 2 {
		t.Fatalf("the gateway knows of %+v, %v", page, err)
	}
	for _, q := range page.Items {
		if q.Status != gateway.Succeeded || q.App != "assistant" || !slices.Contains(q.Tags, "test, with comma") || !strings.HasPrefix(q.Session, "wrun_") || !q.Streamed {
			t.Errorf("the gateway knows %+v", q)
		}
	}
	if page.Items[1].ID != first.GenerationID {
		t.Errorf("it calls the first request %s, we %s", page.Items[1].ID, first.GenerationID)
	}
}

// Structured output, files and results of every kind get through.
func TestGateway_Prompt(t *testing.T) {
	t.Parallel()
	g, _, _ := serve(t, weatherScript)
	a := agent.New(agent.Config{Model: "cay/scripted", Output: agent.OutputOf[forecast](), Tools: []agent.Tool{agent.NewProviderTool("openai.web_search", "search", map[string]any{"n": 1})}})
	r, _, err := answered(t, g, a, agent.Call{Messages: []agent.Message{
		{Role: agent.System, Parts: []agent.Part{{Type: agent.Text, Text: "s"}}},
		{Role: agent.User, Parts: []agent.Part{{Type: agent.Text, Text: "json"}, {Type: agent.FilePart, File: &agent.File{MediaType: "image/png", Data: []byte("x")}}}},
		{Role: agent.Assistant, Parts: []agent.Part{
			{Type: agent.Reasoning, Text: "hm", Options: agent.Options{"anthropic": json.RawMessage(`{"signature":"s"}`)}},
			{Type: agent.ToolCallPart, CallID: "1", ToolName: "t"}, {Type: agent.ToolCallPart, CallID: "2", ToolName: "t"}, {Type: agent.ToolCallPart, CallID: "3", ToolName: "t"},
			{Type: agent.ApprovalRequest, ApprovalID: "approval-3", CallID: "3", Signature: "x"},
		}},
		{Role: agent.FromTool, Parts: []agent.Part{
			{Type: agent.ToolResultPart, CallID: "1", ToolName: "t", Output: &agent.Output{Type: agent.OutputDenied, Text: "no"}},
			{Type: agent.ToolResultPart, CallID: "2", ToolName: "t", Output: &agent.Output{Type: agent.OutputContent, Parts: []agent.Part{{Type: agent.Text, Text: "x"}, {Type: agent.FilePart, File: &agent.File{MediaType: "image/png", URL: "https://example.com/x.png"}}}}},
		}},
		agent.UserMessage("json"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := agent.Decode[forecast](r); err != nil || got.City == "" || len(r.Steps) != 1 {
		t.Errorf("the output is %s, %v, after %d steps", r.Output, err, len(r.Steps))
	}
	for _, w := range r.Steps[0].Warnings {
		if strings.Contains(w, "does not know") {
			t.Errorf("the gateway warns: %s", w)
		}
	}
}

func TestGateway_Errors(t *testing.T) {
	t.Parallel()
	g, _, _ := serve(t, weatherScript)
	ask := func(g *agent.Gateway, model, prompt string) (text string, err error) {
		err = g.Stream(t.Context(), &agent.ModelCall{Model: model, Prompt: []agent.Message{agent.UserMessage(prompt)}}, func(p *agent.StreamPart) error {
			text += p.Delta
			return nil
		})
		return text, err
	}
	if text, err := ask(g, "cay/scripted", "broken"); cay.CodeOf(err) != cay.Unavailable || text != "This is where" {
		t.Errorf("an answer that breaks off is %q, %v", text, err)
	}
	for name, c := range map[string]struct {
		gateway       *agent.Gateway
		model, prompt string
		code          cay.Code
	}{
		"refused":   {g, "cay/scripted", "refused", cay.Invalid},
		"no model":  {g, "nobody/nothing", "x", cay.NotFound},
		"no key":    {&agent.Gateway{URL: g.URL, Key: "cgk_wrong"}, "cay/scripted", "x", cay.Unauthenticated},
		"nobody":    {&agent.Gateway{URL: "http://127.0.0.1:1", Key: "x"}, "cay/scripted", "x", cay.Unavailable},
		"address":   {&agent.Gateway{URL: "ftp://x", Key: "x"}, "cay/scripted", "x", cay.Invalid},
		"bad name":  {g, "a\nb", "x", cay.Invalid},
		"no prompt": {g, "cay/scripted", "", ""},
	} {
		if _, err := ask(c.gateway, c.model, c.prompt); cay.CodeOf(err) != c.code && c.code != "" {
			t.Errorf("%s: %v (%s), want %s", name, err, cay.CodeOf(err), c.code)
		}
	}
}

// The possible answers of a server, and the results that Gateway makes of them.
func TestGateway_Answers(t *testing.T) {
	t.Parallel()
	const finish = `data: {"type":"finish","finishReason":{"unified":"stop","raw":"x"},"usage":{"inputTokens":{"total":3,"cacheRead":1},"outputTokens":{"total":2,"reasoning":1}},"providerMetadata":{"gateway":{"generationId":"gen_1","cost":"0.5"}}}` + "\n\n"
	for name, c := range map[string]struct {
		status int
		header map[string]string
		body   string
		code   cay.Code
		words  string
		fatal  bool
		after  time.Duration
	}{
		"finish":           {body: finish},
		"pings and more":   {body: ": hello\n\ndata: {\"type\":\"ping\"}\n\ndata: {\"type\":\"raw\",\"rawValue\":1}\n\n" + finish + "data: [DONE]\n\n"},
		"no finish":        {body: "data: {\"type\":\"stream-start\",\"warnings\":[]}\n\n", code: cay.Unavailable, words: "broke off"},
		"done, no finish":  {body: "data: [DONE]\n\n", code: cay.Unavailable, words: "without saying how"},
		"cut in an event":  {body: finish[:20], code: cay.Unavailable, words: "broke off"},
		"no JSON":          {body: "data: {\n\n", code: cay.Unavailable, words: "no part of an answer"},
		"fails later":      {body: `data: {"type":"error","error":{"message":"Overloaded.","statusCode":503}}` + "\n\n", code: cay.Unavailable, words: "Overloaded."},
		"refused later":    {body: `data: {"type":"error","error":{"message":"No.","statusCode":400}}` + "\n\n", code: cay.Invalid, words: "No."},
		"says only a word": {body: `data: {"type":"error","error":"why"}` + "\n\n", code: cay.Unavailable, words: "why"},
		"bad file":         {body: `data: {"type":"file","mediaType":"x/y","data":3}` + "\n\n", code: cay.Unavailable, words: "a file that is none"},
		"too much":         {body: "data: \"" + strings.Repeat("x", 17<<20) + "\"\n\n", code: cay.TooLarge, words: "16 MiB"},
		"400":              {status: 400, body: `{"error":{"message":"bad","type":"invalid_request_error"}}`, code: cay.Invalid, words: "bad"},
		"402":              {status: 402, body: `{"error":{"message":"no money"}}`, code: cay.QuotaExceeded, words: "no money", fatal: true},
		"403":              {status: 403, body: `{"error":{"message":"no"}}`, code: cay.PermissionDenied, words: "no"},
		"413":              {status: 413, body: `{}`, code: cay.TooLarge, words: "Request Entity Too Large"},
		"424":              {status: 424, body: ``, code: cay.NotSupported},
		"429":              {status: 429, header: map[string]string{"Retry-After": "7", "Retry-After-Ms": "6500"}, body: `{"error":{"message":"slow"}}`, code: cay.QuotaExceeded, words: "slow", after: 6500 * time.Millisecond},
		"503":              {status: 503, header: map[string]string{"Retry-After": "3"}, body: `<html>`, code: cay.Unavailable, after: 3 * time.Second},
		"redirect":         {status: 302, header: map[string]string{"Location": "http://127.0.0.1:1/"}, code: cay.Invalid, words: "redirect to"},
		"another server":   {header: map[string]string{"Content-Type": "text/html"}, body: "<html>", code: cay.Invalid, words: "not with a stream of events"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				want := map[string]string{
					"Authorization": "Bearer key", "Content-Type": "application/json", "Ai-Language-Model-Id": "a/b", "Ai-Language-Model-Streaming": "true",
					"Ai-Language-Model-Specification-Version": "4", "X-Session-Id": "run", "X-Title": "app", "X-Cay-Tags": "agent%3Aapp%0A",
				}
				for name, value := range want {
					if got := r.Header.Get(name); got != value {
						t.Errorf("the header %s is %q, want %q", name, got, value)
					}
				}
				if _, err := io.Copy(io.Discard, r.Body); err != nil {
					t.Error(err)
				}
				if r.URL.Path != "/v4/ai/language-model" || r.Method != http.MethodPost {
					t.Errorf("it is asked %s %s", r.Method, r.URL)
				}
				w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
				for name, value := range c.header {
					w.Header().Set(name, value)
				}
				w.WriteHeader(max(c.status, 200) % 1000)
				_, _ = io.WriteString(w, c.body) // the client leaves when it has read enough
			}))
			defer server.Close()
			g := &agent.Gateway{URL: server.URL, Key: "key"}
			var last agent.StreamPart
			err := g.Stream(t.Context(), &agent.ModelCall{Model: "a/b", Session: "run", App: "app\n", Prompt: []agent.Message{agent.UserMessage("x")}}, func(p *agent.StreamPart) error { last = *p; return nil })
			if c.code == "" {
				want := agent.StreamPart{Type: agent.StreamFinish, Reason: agent.FinishStop, GenerationID: "gen_1",
					Usage: agent.Usage{Calls: 1, Input: 3, CacheRead: 1, Output: 2, Reasoning: 1, Cost: gateway.Dollar / 2, CostKnown: true}}
				if err != nil || !reflect.DeepEqual(last, want) {
					t.Errorf("it ends with %+v, %v", last, err)
				}
				return
			}
			var e *cay.Error
			if !errors.As(err, &e) || e.Code != c.code || !strings.Contains(e.Message, c.words) || e.RetryAfter != c.after {
				t.Errorf("the error is %v (%+v), want %s %q after %s", err, e, c.code, c.words, c.after)
			}
			var fatal *workflow.FatalError
			if errors.As(err, &fatal) != c.fatal {
				t.Errorf("the error is a %T", err)
			}
		})
	}
}

// A call ends with its context, and with the error of the function that takes its
// parts.
func TestGateway_Stops(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {\"type\":\"text-start\",\"id\":\"0\"}\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	defer server.Close()
	g := &agent.Gateway{URL: server.URL, Key: "key"}
	call := &agent.ModelCall{Model: "a/b", Prompt: []agent.Message{agent.UserMessage("x")}}
	enough, late := errors.New("enough"), errors.New("late")
	if err := g.Stream(t.Context(), call, func(*agent.StreamPart) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("the error is %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	if err := g.Stream(ctx, call, func(*agent.StreamPart) error { cancel(late); return nil }); !errors.Is(err, late) {
		t.Errorf("the error is %v", err)
	}
}
