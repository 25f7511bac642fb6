package sandboxtool_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/agent/sandboxtool"
	"github.com/cayhq/cay/internal/testenv"
	"github.com/cayhq/cay/sandbox"
	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/durable"
	"github.com/cayhq/cay/workflow/workflowtest"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// talk is a model: turn returns its next calls, given the results of the tools.
type talk struct {
	turn func(n int, results []json.RawMessage) (calls []call, text string)
}

type call struct{ tool, input string }

func (m talk) Stream(_ context.Context, c *agent.ModelCall, emit func(*agent.StreamPart) error) error {
	var results []json.RawMessage
	n := 0
	for _, message := range c.Prompt {
		if message.Role == agent.Assistant {
			n++
		}
		for _, p := range message.Parts {
			if p.Type == agent.ToolResultPart {
				results = append(results, p.Output.JSON)
				if p.Output.Type == agent.OutputErrorText {
					results[len(results)-1], _ = json.Marshal(map[string]string{"error": p.Output.Text})
				}
			}
		}
	}
	calls, text := m.turn(n, results)
	parts := []agent.StreamPart{{Type: agent.StreamStart}}
	reason := agent.FinishStop
	for i, c := range calls {
		reason = agent.FinishToolCalls
		parts = append(parts, agent.StreamPart{Type: agent.StreamToolCall, ID: fmt.Sprintf("call-%d-%d", n, i), ToolName: c.tool, Input: c.input})
	}
	if text != "" {
		parts = append(parts, agent.StreamPart{Type: agent.StreamTextStart, ID: "0"}, agent.StreamPart{Type: agent.StreamTextDelta, ID: "0", Delta: text}, agent.StreamPart{Type: agent.StreamTextEnd, ID: "0"})
	}
	parts = append(parts, agent.StreamPart{Type: agent.StreamFinish, Reason: reason})
	for i := range parts {
		if err := emit(&parts[i]); err != nil {
			return err
		}
	}
	return nil
}

// work runs an agent with the tools of a Box on a real daemon, and returns its
// answer and the remaining sandboxes.
func work(t *testing.T, e *testenv.Env, o sandboxtool.Options, turn func(n int, results []json.RawMessage) ([]call, string)) (string, error) {
	t.Helper()
	d := workflow.Define("work", func(ctx workflow.Context, _ int) (_ string, err error) {
		box := sandboxtool.New(o)
		defer func() { err = errors.Join(err, box.Close(workflow.WithoutCancel(ctx))) }()
		r, err := agent.New(agent.Config{Name: "worker", Model: "any", Tools: box.Tools()}).Stream(ctx, agent.Call{Prompt: "Work."})
		if err != nil {
			return "", err
		}
		return r.Text, nil
	})
	kit := workflowtest.New(t, workflowtest.Options{Context: func(ctx context.Context) context.Context {
		return agent.WithModels(durable.WithClient(ctx, e.Client), talk{turn})
	}}, d)
	run, err := d.Start(t.Context(), kit.Client, 0)
	if err != nil {
		t.Fatal(err)
	}
	return run.Result(t.Context())
}

// left returns the existing sandboxes.
func left(t *testing.T, e *testenv.Env) []sandbox.Sandbox {
	t.Helper()
	page, err := e.Client.List(t.Context(), sandbox.ListParams{Status: []sandbox.Status{
		sandbox.Pending, sandbox.Running, sandbox.Paused, sandbox.Stopping, sandbox.Hibernated, sandbox.Resuming,
	}})
	if err != nil {
		t.Fatal(err)
	}
	return page.Items
}

// visit gets a preview, without a resolver for its name.
func visit(t *testing.T, e *testenv.Env, page string) (*http.Response, error) {
	t.Helper()
	u, err := url.Parse(page)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), "GET", e.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = u.Host
	return http.DefaultClient.Do(r)
}

func small() sandbox.CreateParams {
	return sandbox.CreateParams{Runtime: "python3.13", VCPUs: 1, MemoryMB: 256, DiskMB: 256, Network: sandbox.Network{Mode: sandbox.DenyAll}}
}

// field is a member of a tool's result.
func field(t *testing.T, result json.RawMessage, name string) string {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(result, &v); err != nil {
		t.Errorf("%s: %v", result, err)
	}
	return fmt.Sprint(v[name])
}

func TestBox(t *testing.T) {
	e := testenv.Start(t)
	o := sandboxtool.Options{Sandbox: small(), Snapshots: true}
	o.Sandbox.Ports = []sandbox.PortParams{{Port: 8000}}
	var page string
	text, err := work(t, e, o, func(n int, results []json.RawMessage) ([]call, string) {
		last := json.RawMessage("{}")
		if len(results) > 0 {
			last = results[len(results)-1]
		}
		switch n {
		case 0: // both need the Box's only sandbox
			return []call{{"create_sandbox", `{}`}, {"write_files", `{"files": [{"path": "site/index.html", "content": "<h1>hello</h1>"}, {"path": "go.sh", "content": "#!/bin/sh\necho $((6*7)); exit 3\n", "executable": true}]}`}}, ""
		case 1:
			if len(left(t, e)) != 1 {
				t.Errorf("there are %d sandboxes", len(left(t, e)))
			}
			return []call{{"run_command", `{"command": "./go.sh"}`}}, ""
		case 2:
			if field(t, last, "exit_code") != "3" || field(t, last, "stdout") != "42\n" {
				t.Errorf("go.sh: %s", last)
			}
			return []call{{"run_command", `{"command": "python3 -m http.server 8000", "workdir": "site", "background": true}`}, {"preview_url", `{"port": 8000}`}, {"preview_url", `{"port": 22}`}}, ""
		case 3:
			page = field(t, results[len(results)-2], "url")
			if got := field(t, last, "error"); !strings.Contains(got, "listen on one of [8000]") {
				t.Errorf("a port that is not shown: %s", last)
			}
			return []call{{"run_command", `{"command": "until python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:8000\").read())'; do :; done"}`}, {"read_file", `{"path": "site/index.html"}`}, {"save_snapshot", `{}`}}, ""
		case 4:
			if field(t, results[len(results)-2], "content") != "<h1>hello</h1>" || !strings.HasPrefix(field(t, last, "snapshot_id"), "snap_") {
				t.Errorf("read, saved: %s", results[len(results)-2:])
			}
			resp, err := visit(t, e, page)
			if err != nil {
				t.Error(err)
				return nil, "no page"
			}
			defer resp.Body.Close()
			if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "<h1>hello</h1>" {
				t.Errorf("the preview is %q, %v", body, err)
			}
			id := field(t, results[4-1], "command_id")
			return []call{{"read_output", fmt.Sprintf(`{"command_id": %q}`, id)}}, ""
		case 5:
			id := field(t, last, "command_id")
			return []call{{"stop_command", fmt.Sprintf(`{"command_id": %q}`, id)}, {"stop_command", `{"command_id": "cmd_none"}`}}, ""
		}
		if field(t, results[len(results)-3], "running") != "true" || field(t, results[len(results)-2], "exit_code") == "0" || !strings.Contains(field(t, last, "error"), "no command") {
			t.Errorf("the server: %s", results[len(results)-3:])
		}
		return nil, "done"
	})
	if err != nil || text != "done" {
		t.Errorf("%q, %v", text, err)
	}
	if boxes := left(t, e); len(boxes) > 0 {
		t.Errorf("left: %+v", boxes)
	}
}

// The model is told of a sandbox that has ended, and the next call creates a new
// one. A run that fails leaves no sandbox.
func TestBox_Ended(t *testing.T) {
	e := testenv.Start(t)
	_, err := work(t, e, sandboxtool.Options{Sandbox: small()}, func(n int, results []json.RawMessage) ([]call, string) {
		switch n {
		case 0:
			return []call{{"run_command", `{"command": "touch here"}`}}, ""
		case 1:
			for _, s := range left(t, e) {
				if _, err := e.Client.Stop(t.Context(), s.ID); err != nil {
					t.Error(err)
				}
			}
			return []call{{"run_command", `{"command": "ls here"}`}}, ""
		case 2:
			if got := field(t, results[1], "error"); !strings.Contains(got, "the sandbox has ended") {
				t.Errorf("the command after the end: %s", results[1])
			}
			return []call{{"run_command", `{"command": "ls here; sleep 60", "timeout_seconds": 1}`}, {"write_files", `{"files": []}`},
				{"run_command", `{"command": "yes é | head -c 70000 > big"}`}}, ""
		case 3:
			return []call{{"read_file", `{"path": "big"}`}, {"read_file", `{"path": "big", "offset": 65535}`}, {"read_file", `{"path": "none"}`}}, ""
		case 4:
			return []call{{"delete_sandbox", `{}`}}, ""
		}
		if field(t, results[2], "exit_code") != "124" || !strings.Contains(field(t, results[2], "stderr"), "stopped after 1s") {
			t.Errorf("the command that took long: %s", results[2])
		}
		if !strings.Contains(field(t, results[3], "error"), "0 entries") || field(t, results[8], "deleted") != "true" {
			t.Errorf("no files, deleted: %s", results[3:])
		}
		if n := len(field(t, results[5], "content")); n < 65532 || field(t, results[5], "size") != "70000" || !strings.HasPrefix(field(t, results[5], "next_offset"), "6553") {
			t.Errorf("the first part has %d bytes", n)
		}
		if n := len(field(t, results[6], "content")); n != 70000-65535 && field(t, results[6], "error") == "" {
			t.Errorf("the second part has %d bytes", n)
		}
		if !strings.Contains(field(t, results[7], "error"), "none cannot be read") {
			t.Errorf("no file: %s", results[7])
		}
		return []call{{"run_command", `{"command": "true"}`}}, ""
	})
	if err != nil {
		t.Errorf("%v", err) // MaxSteps ends it
	}
	if boxes := left(t, e); len(boxes) > 0 {
		t.Errorf("left: %+v", boxes)
	}
}

// A run that is cancelled deletes its sandbox.
func TestBox_Cancelled(t *testing.T) {
	e := testenv.Start(t)
	d := workflow.Define("work", func(ctx workflow.Context, _ int) (_ string, err error) {
		box := sandboxtool.New(sandboxtool.Options{Sandbox: small()})
		defer func() { err = errors.Join(err, box.Close(workflow.WithoutCancel(ctx))) }()
		r, err := agent.New(agent.Config{Name: "worker", Model: "any", Tools: box.Tools()}).Stream(ctx, agent.Call{Prompt: "Work."})
		if err != nil {
			return "", err
		}
		return r.Text, nil
	})
	kit := workflowtest.New(t, workflowtest.Options{Context: func(ctx context.Context) context.Context {
		return agent.WithModels(durable.WithClient(ctx, e.Client), talk{func(int, []json.RawMessage) ([]call, string) {
			return []call{{"run_command", `{"command": "sleep 600"}`}}, ""
		}})
	}}, d)
	run, err := d.Start(t.Context(), kit.Client, 0)
	if err != nil {
		t.Fatal(err)
	}
	for event, err := range run.Follow(t.Context(), 1) {
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(event.ID, "sandbox.wait") {
			break
		}
	}
	if err := run.Cancel(t.Context(), workflow.CancelParams{Reason: "enough"}); err != nil {
		t.Fatal(err)
	}
	if _, err := run.Result(t.Context()); !errors.Is(err, workflow.ErrCancelled) {
		t.Errorf("it ended with %v", err)
	}
	// The deletion is a step of the run, so it is done when the run has ended.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for ctx.Err() == nil && len(left(t, e)) > 0 {
	}
	if boxes := left(t, e); len(boxes) > 0 {
		t.Errorf("left: %+v", boxes)
	}
}
