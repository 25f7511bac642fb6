package gatewayd_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd"
	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/provider"
)

// keeping is a memory ledger that stores the owners of ids.
type keeping struct {
	*memory
	mu  sync.Mutex // guards all
	all map[string]ledger.Kept
}

func (k *keeping) Keep(c *ledger.Caller, provider string, tokens int64, ids []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, id := range ids {
		k.all[provider+" "+id] = ledger.Kept{TeamID: c.TeamID, ProjectID: c.ProjectID, Tokens: tokens}
	}
}

func (k *keeping) Whose(_ context.Context, provider, id string) (*ledger.Kept, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if kept, ok := k.all[provider+" "+id]; ok {
		return &kept, nil
	}
	return nil, nil
}

// accounts returns a world with a provider account shared by many projects, which always
// gives the same answer in a format.
func accounts(t *testing.T, format, answer string) (*world, *keeping) {
	k := &keeping{all: make(map[string]ledger.Kept)}
	w := newWorld(t, func(w *world, cfg *gatewayd.Config) {
		k.memory = w.ledger
		cfg.Ledger = k
		w.settings.Custom = provider.NewBYOK(nil).Credential
	})
	url := answer
	if !strings.HasPrefix(answer, "http://") {
		url = answering(t, answer).URL
	}
	w.add(w.provider("shared", format, url))
	w.model("m/a", "shared")
	return w, k
}

// A project can continue its own answers, and no others.
func TestKept_Responses(t *testing.T) {
	t.Parallel()
	w, k := accounts(t, gatewaytest.Responses, `{"id":"resp_1","object":"response","status":"completed","model":"m","usage":{"input_tokens":700,"output_tokens":300},
		"output":[{"type":"code_interpreter_call","id":"ci_1","container_id":"cntr_1"},{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"x","annotations":[{"type":"container_file_citation","container_id":"cntr_1","file_id":"cfile_1"}]}]}]}`)
	ask := func(members string) int {
		status, body, _ := w.post("/v1/responses", `{"model":"m/a","input":"x","max_output_tokens":10,`+members+`}`)
		if status != http.StatusOK && (status != http.StatusNotFound || !strings.Contains(body, `"error":{`) || !strings.Contains(body, "foreign_ids")) {
			t.Errorf("%s: %d %s", members, status, body)
		}
		return status
	}
	if status := ask(`"store":false`); status != 200 || k.all["shared resp_1"] != (ledger.Kept{}) || k.all["shared cntr_1"].ProjectID == "" { // the container is stored all the same
		t.Fatalf("%d, kept %v", status, k.all)
	}
	if status := ask(`"previous_response_id":"resp_1"`); status != 404 {
		t.Errorf("what was not stored: %d", status)
	}
	if status := ask(`"user":"u"`); status != 200 || len(k.all) != 5 {
		t.Fatalf("%d, kept %v", status, k.all)
	}
	mine := []string{
		`"previous_response_id":"resp_1"`, `"tools":[{"type":"code_interpreter","container":"cntr_1"}]`,
		`"include":[],"input":[{"type":"item_reference","id":"msg_1"}]`, `"input":[{"role":"user","content":[{"type":"input_file","file_id":"cfile_1"}]}]`,
	}
	for _, members := range mine {
		members = strings.Replace(members, `"input"`, `"text":null,"input"`, 1)
		body := `{"model":"m/a","max_output_tokens":10,` + members + `}`
		if !strings.Contains(members, `"input"`) {
			body = `{"model":"m/a","input":"x","max_output_tokens":10,` + members + `}`
		}
		if status, answer, _ := w.post("/v1/responses", body); status != 200 {
			t.Errorf("its own: %s: %d %s", members, status, answer)
		}
		w.ledger.caller.ProjectID = "another"
		if status, answer, _ := w.post("/v1/responses", body); status != 404 {
			t.Errorf("another's: %s: %d %s", members, status, answer)
		}
		w.ledger.caller.ProjectID = "project"
	}
	// The tokens of earlier turns are reserved.
	if n := w.ledger.needs[2]; n.Tokens < 1000 || n.Tokens > 1500 {
		t.Errorf("%d tokens are reserved with 1000 before", n.Tokens)
	}
	if status := ask(`"previous_response_id":"resp_9"`); status != 404 {
		t.Errorf("nobody's: %d", status)
	}
	if status := ask(`"previous_response_id":"resp_9","providerOptions":{"gateway":{"byok":{"shared":[{"apiKey":"` + gatewaytest.Key + `"}]}}}`); status != 200 {
		t.Errorf("with a credential of its own: %d", status)
	}
	p := *w.settings.Providers.Get("shared")
	p.ForeignIDs = true
	set := *w.settings
	set.Providers = provider.NewSet(&p)
	w.settings = &set
	if status := ask(`"previous_response_id":"resp_9"`); status != 200 {
		t.Errorf("with foreign_ids: %d", status)
	}
	if n := w.ledger.needs[len(w.ledger.needs)-1]; n.Tokens < 100_000 { // the model's whole context
		t.Errorf("%d tokens are reserved with nobody knows how many before", n.Tokens)
	}
}

// A request can name kept objects in many ways, and some texts only look like ids.
func TestKept_Named(t *testing.T) {
	t.Parallel()
	type request struct{ path, body string }
	responses := func(members string) request {
		return request{"/v1/responses", `{"model":"responses/text",` + members + `}`}
	}
	messages := func(content, members string) request {
		return request{"/v1/messages", `{"model":"messages/text","max_tokens":9,"messages":[{"role":"user","content":` + content + `}]` + members + `}`}
	}
	chat := func(content string) request {
		return request{"/v1/chat/completions", `{"model":"chatcompletions/text","messages":[{"role":"user","content":` + content + `}]}`}
	}
	w := newWorld(t, func(w *world, cfg *gatewayd.Config) {
		cfg.Ledger = &keeping{memory: w.ledger, all: make(map[string]ledger.Kept)}
	})
	for _, r := range []request{
		responses(`"input":"x","conversation":"conv_1"`),
		responses(`"input":"x","conversation":{"id":"conv_1"}`),
		responses(`"input":"x","prompt":{"id":"pmpt_1"}`),
		responses(`"input":[{"id":"msg_1"}]`),
		responses(`"input":[{"role":"user","content":"x"},{ "type" : null , "id" : "msg_1" }]`),
		responses(`"input":[{"id":"msg_1","type":null}]`),
		responses(`"input":[{"type":"message","type":"item_reference","id":"msg_1"}]`),
		responses(`"input":[{"role":"user","content":[{"type":"input_image","file_id":"file_1"}]}]`),
		responses(`"input":[{"role":"user","content":[{"type":"input_image","file\u005fid":"file_1"}]}]`),
		responses(`"input":[{"type":"function_call_output","call_id":"c","output":[{"type":"input_file","file_id":"file_1"}]}]`),
		responses(`"input":"x","tools":[{"type":"file_search","vector_store_ids":["vs_1"]}]`),
		responses(`"input":"x","tools":[{"type":"code_interpreter","container":{"type":"auto","file_ids":["file_1"]}}]`),
		responses(`"input":"x","tools":[{"type":"shell","environment":{"type":"container_reference","container_id":"cntr_1"}}]`),
		messages(`[{"type":"document","source":{"type":"file","file_id":"file_1"}}]`, ""),
		messages(`[{"type":"container_upload","file_id":"file_1"}]`, ""),
		messages(`"x"`, `,"container":"container_1"`),
		messages(`"x"`, `,"container":{"id":"container_1"}`),
		messages(`"x"`, `,"container":{"skills":[{"type":"custom","skill_id":"skill_1"}]}`),
		chat(`[{"type":"file","file":{"file_id":"file_1"}}]`),
	} {
		before := len(w.up.Requests())
		if status, body, _ := w.post(r.path, r.body); status != http.StatusNotFound || !strings.Contains(body, "of this project") || len(w.up.Requests()) != before {
			t.Errorf("%s: %d %s", r.body, status, body)
		}
	}
	for _, r := range []request{
		responses(`"input":"say \"file_id\": \"file_1\""`),
		responses(`"input":[{"role":"user","content":"x"}],"tools":[{"type":"function","name":"f","parameters":{"type":"object","properties":{"file_id":{"type":"string"},"container":{"const":"a"}}}}]`),
		messages(`"x"`, `,"container":{"skills":[{"type":"anthropic","skill_id":"pptx"}]}`),
		messages(`"x"`, `,"tools":[{"name":"f","input_schema":{"type":"object","properties":{"file_id":{"default":"file_1"}}}}]`),
		chat(`"the file_id is file_1"`),
	} {
		if status, body, _ := w.post(r.path, r.body); status != http.StatusOK {
			t.Errorf("%s: %d %s", r.body, status, body)
		}
	}
	// Ids in the input of the client's own tool are not checked.
	status, body, _ := w.post("/v1/messages", `{"model":"messages/text","max_tokens":9,"messages":[{"role":"user","content":"x"},
		{"role":"assistant","content":[{"type":"tool_use","id":"toolu_1","name":"f","input":{"file_id":"file_1"}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":"ok"}]}],
		"tools":[{"name":"f","input_schema":{"type":"object"}}]}`)
	if status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}
}

// Objects in an Anthropic answer belong to its project: containers, and files created in
// them, but not ids that the model merely mentions.
func TestKept_Messages(t *testing.T) {
	t.Parallel()
	const blocks = `{"type":"bash_code_execution_tool_result","tool_use_id":"a","content":{"type":"bash_code_execution_result","content":[{"type":"bash_code_execution_output","file_id":"file_made"}]}}`
	const said = `{"type":"tool_use","id":"b","name":"f","input":{"file_id":"file_said","type":"bash_code_execution_tool_result"}}`
	for _, stream := range []bool{false, true} {
		var answer string
		contentType := "application/json"
		if stream {
			contentType = "text/event-stream"
			for _, e := range []string{
				`{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"usage":{"input_tokens":1,"output_tokens":1}}}`,
				`{"type":"content_block_start","index":0,"content_block":` + blocks + `}`, `{"type":"content_block_stop","index":0}`,
				`{"type":"content_block_start","index":1,"content_block":` + said + `}`, `{"type":"content_block_stop","index":1}`,
				`{"type":"message_delta","delta":{"stop_reason":"tool_use","container":{"id":"container_1"}},"usage":{"output_tokens":3}}`, `{"type":"message_stop"}`,
			} {
				kind, _, _ := strings.Cut(strings.TrimPrefix(e, `{"type":"`), `"`)
				answer += "event: " + kind + "\ndata: " + e + "\n\n"
			}
		} else {
			answer = fmt.Sprintf(`{"id":"msg_1","type":"message","role":"assistant","model":"m","stop_reason":"tool_use","container":{"id":"container_1"},"content":[%s,%s],"usage":{"input_tokens":1,"output_tokens":1}}`, blocks, said)
		}
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			_, _ = w.Write([]byte(answer))
		}))
		t.Cleanup(srv.Close)
		w, k := accounts(t, gatewaytest.Messages, srv.URL)
		status, body, _ := w.post("/v1/messages", `{"model":"m/a","stream":`+yes(stream)+`,"max_tokens":9,"messages":[{"role":"user","content":"x"}]}`)
		var ids []string
		k.mu.Lock()
		for id := range k.all {
			ids = append(ids, strings.TrimPrefix(id, "shared "))
		}
		k.mu.Unlock()
		slices.Sort(ids)
		if want := []string{"container_1", "file_made"}; status != 200 || !slices.Equal(ids, want) {
			t.Errorf("stream %v: %d %s: kept %v, want %v", stream, status, body, ids, want)
		}
	}
}
