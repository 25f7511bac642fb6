package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/sqlite"
)

func TestMain(m *testing.M) {
	os.Setenv(secretEnv, strings.Repeat("s3cret!.", 8))
	os.Exit(m.Run())
}

// asked is a model that wants to send a postcard, and reports the outcome.
type asked struct{}

func (asked) Stream(_ context.Context, call *agent.ModelCall, emit func(*agent.StreamPart) error) error {
	last := call.Prompt[len(call.Prompt)-1]
	parts := []agent.StreamPart{
		{Type: agent.StreamToolCall, ID: "call_1", ToolName: "send_postcard", Input: `{"city":"Oslo"}`},
		{Type: agent.StreamFinish, Reason: agent.FinishToolCalls},
	}
	if last.Role == agent.FromTool {
		parts = []agent.StreamPart{
			{Type: agent.StreamTextStart, ID: "0"}, {Type: agent.StreamTextDelta, ID: "0", Delta: "So: " + last.Parts[0].Output.Text}, {Type: agent.StreamTextEnd, ID: "0"},
			{Type: agent.StreamFinish, Reason: agent.FinishStop},
		}
	}
	for i := range parts {
		if err := emit(&parts[i]); err != nil {
			return err
		}
	}
	return nil
}

// The page is served; a tool waits for an approval, and is executed once approved.
func TestChat(t *testing.T) {
	client, err := sqlite.Open(t.Context(), t.TempDir()+"/chat.db", sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	answer := newAgent("test/asked").Workflow()
	worker := workflow.NewWorker(client, workflow.WorkerConfig{Definitions: workflow.Definitions(answer)})
	if err := worker.Start(agent.WithModels(t.Context(), asked{})); err != nil {
		t.Fatal(err)
	}
	defer worker.Stop()
	srv := httptest.NewServer(routes(client, answer))
	defer srv.Close()

	resp, err := http.Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != string(page) {
		t.Errorf("the page is %d bytes, %v", len(body), err)
	}

	user := map[string]any{"id": "u", "role": "user", "parts": []any{map[string]any{"type": "text", "text": "Send one"}}}
	chunks := post(t, srv.URL, user)
	question, ok := chunks[agent.ChunkApprovalRequest]
	if !ok || chunks[agent.ChunkFinish].Type == "" {
		t.Fatalf("the first answer is %+v", chunks)
	}
	chunks = post(t, srv.URL, user, map[string]any{"id": chunks[agent.ChunkStart].MessageID, "role": "assistant", "parts": []any{map[string]any{
		"type": "tool-send_postcard", "toolCallId": "call_1", "state": "approval-responded", "input": map[string]any{"city": "Oslo"},
		"approval": map[string]any{"id": question.ApprovalID, "approved": true, "signature": question.Signature},
	}}})
	const want = "A postcard from Oslo is on its way."
	if got := chunks[agent.ChunkToolOutput].Output; string(got) != `"`+want+`"` {
		t.Errorf("the tool has returned %s", got)
	}
	if got := chunks[agent.ChunkTextDelta].Delta; got == nil || *got != "So: "+want {
		t.Errorf("the second answer is %+v", chunks)
	}
}

// post returns the last chunk of each type of an answer.
func post(t *testing.T, url string, messages ...any) map[agent.ChunkType]agent.Chunk {
	t.Helper()
	body, err := json.Marshal(map[string]any{"id": "c", "messages": messages})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(url+"/api/chat", "application/json", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%d %s, %v", resp.StatusCode, raw, err)
	}
	chunks := map[agent.ChunkType]agent.Chunk{}
	for line := range strings.Lines(string(raw)) {
		if data, ok := strings.CutPrefix(line, "data: {"); ok {
			var c agent.Chunk
			if err := json.Unmarshal([]byte("{"+data), &c); err != nil {
				t.Fatal(err)
			}
			chunks[c.Type] = c
		}
	}
	return chunks
}
