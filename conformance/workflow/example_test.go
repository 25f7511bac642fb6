package workflow

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/testenv"
	"github.com/cayhq/cay/sandbox"
)

// TestExample runs examples/workflow-js with its scripted model. Sandboxes and calls of models
// name the run whose steps made them.
func TestExample(t *testing.T) {
	const example = "../../examples/workflow-js"
	need(t, example)
	t.Setenv("CAY_SCRIPT", example+"/script.yaml")
	d := testenv.Start(t)
	a := buildIn(t, example, example, d.URL, d.Token)
	a.start(t)

	t.Run("pipeline", func(t *testing.T) {
		var run struct{ ID string }
		a.call(t, http.MethodPost, "/pipeline", []string{"echo hello > a", "cat a", "exit 3"}, &run)
		a.ends(t, run.ID)
		var got struct {
			Status  string
			Results []struct {
				ExitCode int
				Output   string
			}
		}
		a.call(t, http.MethodGet, "/pipeline/"+run.ID, nil, &got)
		if got.Status != "completed" || len(got.Results) != 3 || got.Results[1].Output != "hello\n" || got.Results[2].ExitCode != 3 {
			t.Errorf("it ends with %+v", got)
		}
		madeBy(t, d, run.ID)
	})

	t.Run("agent", func(t *testing.T) {
		question := `{"messages":[{"id":"1","role":"user","parts":[{"type":"text","text":"What is the sum of the primes below 1000?"}]}]}`
		response, err := http.Post(a.url+"/api/chat", "application/json", strings.NewReader(question))
		if err != nil {
			t.Fatal(err)
		}
		run := response.Header.Get("X-Workflow-Run-Id")
		answer := all(t, response.Body)
		if !strings.Contains(answer, "76127") || !strings.HasSuffix(answer, "data: [DONE]\n\n") {
			t.Errorf("the answer of run %s is %s", run, answer)
		}
		again, err := http.Get(a.url + "/api/chat/" + run + "/stream?startIndex=0")
		if err != nil {
			t.Fatal(err)
		}
		if text := all(t, again.Body); text != answer {
			t.Errorf("asked for again, the answer is %s, and was %s", text, answer)
		}
		a.ends(t, run)
		madeBy(t, d, run)
		calls, err := (&gateway.Client{URL: d.URL, Token: d.Token}).ListRequests(t.Context(), gateway.RequestFilter{Session: run})
		if err != nil || len(calls.Items) != 3 {
			t.Errorf("the run has %d calls of models, want 3: %v", len(calls.Items), err)
		}
	})
}

// ends waits until a run has completed.
func (a *app) ends(t *testing.T, run string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.daemon+"/v1/workflows/runs/"+run+"/wait", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+a.token)
	response, err := (&http.Client{Timeout: patience}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Status string }
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(&got); err != nil || got.Status != "completed" {
		t.Fatalf("run %s: %v, %s", run, err, text)
	}
}

// madeBy checks that one sandbox names a run, and a step of it.
func madeBy(t *testing.T, d *testenv.Env, run string) {
	t.Helper()
	page, err := d.Client.List(t.Context(), sandbox.ListParams{})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, sb := range page.Items {
		if sb.Annotations["workflow.run"] == run && strings.HasPrefix(sb.Annotations["workflow.step"], "step_") {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d sandboxes name a step of run %s, want 1: %+v", n, run, page.Items)
	}
}
