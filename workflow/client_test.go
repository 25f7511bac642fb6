package workflow_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/workflowtest"
)

func replayFile(t *testing.T, file string, definitions ...workflow.Workflow) error {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var h workflow.History
	if err := json.Unmarshal(b, &h); err != nil {
		t.Fatal(err)
	}
	return workflow.Replay(&h, workflow.ClientOptions{}, definitions...)
}

func TestReplay(t *testing.T) {
	returns := func(s string) *workflow.Definition[int, string] {
		return workflow.Define("returns", func(workflow.Context, int) (string, error) { return s, nil })
	}
	k := workflowtest.New(t, workflowtest.Options{}, returns("<a>"))
	run, _, err := result(t, k, returns("<a>"), 1)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "history.json")
	k.SaveHistory(run.ID, file)
	if err := replayFile(t, file, returns("<a>")); err != nil {
		t.Errorf("same code: %v", err)
	}
	if err := replayFile(t, file, returns("b")); cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), `"b"`) {
		t.Errorf("other result: %v", err)
	}
	fails := workflow.Define("returns", func(workflow.Context, int) (string, error) { return "", errOdd })
	if err := replayFile(t, file, fails); cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), "odd") {
		t.Errorf("other end: %v", err)
	}
	if err := replayFile(t, file, approval); cay.CodeOf(err) != cay.NotFound {
		t.Errorf("other workflow: %v", err)
	}
}

func TestClient_Start(t *testing.T) {
	k := workflowtest.New(t, workflowtest.Options{}, approval)
	ctx := t.Context()
	first, err := approval.Start(ctx, k.Client, "token", workflow.Key("k"), workflow.WithAttributes(map[string]string{"a": "b"}))
	if err != nil || !first.Created {
		t.Fatal(first, err)
	}
	second, err := approval.Start(ctx, k.Client, "other", workflow.Key("k"))
	if err != nil || second.Created || second.ID != first.ID {
		t.Errorf("same key: %+v, %v", second, err)
	}
	page, err := k.Client.List(ctx, workflow.Query{Attributes: map[string]string{"a": "b"}})
	if err != nil || len(page.Items) != 1 || page.Items[0].ID != first.ID {
		t.Errorf("by attribute: %+v, %v", page, err)
	}
	if _, err := approval.Start(ctx, nil, ""); cay.CodeOf(err) != cay.Invalid {
		t.Errorf("without a client: %v", err)
	}
	if _, err := workflow.GetRun[int](k.Client, "wrun_01ARZ3NDEKTSV4RRFFQ69G5FAV").Result(ctx); cay.CodeOf(err) != cay.NotFound {
		t.Errorf("result of no run: %v", err)
	}
}

func TestClient_ResultIsOfTheLastRun(t *testing.T) {
	var count *workflow.Definition[int, int]
	count = workflow.Define("count", func(ctx workflow.Context, n int) (int, error) {
		if n < 3 {
			return 0, count.ContinueAsNew(ctx, n+1)
		}
		return n, nil
	})
	for name, o := range map[string]workflow.ClientOptions{"clear": {}, "sealed": {Keys: []workflow.EncryptionKey{workflow.NewEncryptionKey()}}} {
		t.Run(name, func(t *testing.T) {
			k := workflowtest.New(t, workflowtest.Options{Client: o}, count)
			if _, got, err := result(t, k, count, 0); err != nil || got != 3 {
				t.Error(got, err)
			}
		})
	}
}

type secretPart struct{ Text string }

func TestClient_SealsEverything(t *testing.T) {
	const secret = "plaintext-of-a-secret"
	emit := workflow.Step("emit", func(ctx context.Context, in secretPart) (secretPart, error) {
		s := workflow.Stream[secretPart](ctx, "parts")
		if err := s.Send(in, in); err != nil {
			return in, err
		}
		b := workflow.ByteStream(ctx, "bytes")
		if _, err := io.WriteString(b, in.Text); err != nil {
			return in, err
		}
		return in, errors.Join(s.Close(), b.Close())
	})
	fail := workflow.Step("fail", func(_ context.Context, in secretPart) (secretPart, error) {
		return in, workflow.Fatal(errors.New(in.Text))
	})
	child := workflow.Define("child", func(ctx workflow.Context, in secretPart) (secretPart, error) { return emit.Run(ctx, in) })
	d := workflow.Define("secret", func(ctx workflow.Context, in secretPart) (secretPart, error) {
		if _, err := emit.Run(ctx, in); err != nil {
			return in, err
		}
		if _, err := fail.Run(ctx, in); err == nil || !strings.Contains(err.Error(), secret) {
			return in, errors.New("the error was lost")
		}
		c, err := child.StartChild(ctx, in)
		if err != nil {
			return in, err
		}
		if in, err = c.Result(ctx); err != nil {
			return in, err
		}
		hook, err := workflow.NewHook[secretPart](ctx, "token")
		if err != nil {
			return in, err
		}
		return hook.Receive(ctx)
	})
	path := filepath.Join(t.TempDir(), "workflows.db")
	o := workflow.ClientOptions{Keys: []workflow.EncryptionKey{workflow.NewEncryptionKey()}}
	k := workflowtest.New(t, workflowtest.Options{Path: path, Client: o}, d, child)
	run, err := d.Start(t.Context(), k.Client, secretPart{secret})
	if err != nil {
		t.Fatal(err)
	}
	k.WaitForHook(run.ID)
	if err := workflow.ResumeHook(t.Context(), k.Client, "token", secretPart{secret}); err != nil {
		t.Fatal(err)
	}
	if got, err := run.Result(t.Context()); err != nil || got.Text != secret {
		t.Errorf("%+v, %v", got, err)
	}
	for item, err := range workflow.ReadStream[secretPart](t.Context(), k.Client, run.ID, "parts", 0) {
		if err != nil || item.Value.Text != secret {
			t.Errorf("%+v, %v", item, err)
		}
	}
	for item, err := range workflow.ReadBytes(t.Context(), k.Client, run.ID, "bytes", 0) {
		if err != nil || string(item.Value) != secret {
			t.Errorf("%+v, %v", item, err)
		}
	}
	again, err := k.Client.Rerun(t.Context(), run.ID, workflow.RerunParams{})
	if err != nil {
		t.Fatal(err)
	}
	k.WaitForHook(again.ID) // the input was readable
	other := k.Client.With(workflow.ClientOptions{})
	if _, err := workflow.GetRun[secretPart](other, run.ID).Result(t.Context()); cay.CodeOf(err) != cay.PermissionDenied {
		t.Errorf("without the key: %v", err)
	}
	k.Close()
	files, err := filepath.Glob(path + "*")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b, []byte(secret)) {
			t.Errorf("%s has the secret in the clear", filepath.Base(f))
		}
	}
}

func TestStream(t *testing.T) {
	emit := workflow.Step("emit", func(ctx context.Context, n int) (int, error) {
		s := workflow.Stream[int](ctx, "numbers")
		for i := range n {
			if err := s.Send(i); err != nil {
				return 0, err
			}
		}
		return n, nil
	})
	closes := workflow.Step("close", func(ctx context.Context, n int) (int, error) {
		s := workflow.Stream[int](ctx, "numbers")
		if err := errors.Join(s.Close(), s.Close()); err != nil {
			return 0, err
		}
		if err := s.Send(1); cay.CodeOf(err) != cay.Conflict {
			return 0, workflow.Fatal(errors.New("a closed stream takes more"))
		}
		return 0, nil
	})
	d := workflow.Define("streams", func(ctx workflow.Context, token string) (int, error) {
		if _, err := emit.Run(ctx, 2000); err != nil {
			return 0, err
		}
		hook, err := workflow.NewHook[int](ctx, token)
		if err != nil {
			return 0, err
		}
		if _, err := hook.Receive(ctx); err != nil {
			return 0, err
		}
		if _, err := emit.Run(ctx, 3); err != nil {
			return 0, err
		}
		return closes.Run(ctx, 1)
	})
	k := workflowtest.New(t, workflowtest.Options{}, d)
	run, err := d.Start(t.Context(), k.Client, "token")
	if err != nil {
		t.Fatal(err)
	}
	var got []int
	for item, err := range workflow.ReadStream[int](t.Context(), k.Client, run.ID, "numbers", 0) {
		if err != nil {
			t.Fatal(err)
		}
		if int(item.Index) != len(got) {
			t.Fatalf("index %d after %d items", item.Index, len(got))
		}
		if got = append(got, item.Value); len(got) == 2000 {
			k.WaitForHook(run.ID)
			if err := workflow.ResumeHook(t.Context(), k.Client, "token", 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(got) != 2003 || got[1999] != 1999 || !slices.Equal(got[2000:], []int{0, 1, 2}) {
		t.Errorf("%d items, the last %v", len(got), got[max(0, len(got)-4):])
	}
	if _, err := run.Result(t.Context()); err != nil {
		t.Error(err)
	}
	got = nil
	for item, err := range workflow.ReadStream[int](t.Context(), k.Client, run.ID, "numbers", -2) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, item.Value)
	}
	if !slices.Equal(got, []int{1, 2}) {
		t.Errorf("from -2: %v", got)
	}

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := k.Client.ServeStream(w, r, run.ID, "numbers"); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	}))
	defer server.Close()
	for url, want := range map[string]string{
		"?from=-1":   ": stream\n\nid: 2002\ndata: 2\n\nevent: end\ndata:\n\n",
		"?last=2000": ": stream\n\nid: 2001\ndata: 1\n\nid: 2002\ndata: 2\n\nevent: end\ndata:\n\n",
		"?from=x":    "\"x\" is no index of a stream\n",
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, last, ok := strings.Cut(url, "last="); ok {
			req.Header.Set("Last-Event-ID", last)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(body) != want {
			t.Errorf("%s: %q, %v", url, body, err)
		}
	}
	if err := workflow.Stream[int](t.Context(), "numbers").Send(1); cay.CodeOf(err) != cay.Invalid {
		t.Errorf("outside of a step: %v", err)
	}
}

// A stream gets its last values and its end together or neither, and a step can read the
// items that it has sent before.
func TestStream_End(t *testing.T) {
	last := func(s *workflow.StreamWriter[int], n int) (got []int, err error) {
		items, err := s.Last(n)
		for i, item := range items {
			if item.Index != items[0].Index+int64(i) {
				return nil, workflow.Fatal(fmt.Errorf("index %d after %d", item.Index, items[0].Index))
			}
			got = append(got, item.Value)
		}
		return got, err
	}
	ends := workflow.Step("end", func(ctx context.Context, _ int) ([][]int, error) {
		s := workflow.Stream[int](ctx, "numbers")
		none, err := last(s, 10)
		if err != nil {
			return nil, err
		}
		for i := range 600 {
			if err := s.Send(i); err != nil {
				return nil, err
			}
		}
		few, err := last(s, 3)
		if err != nil {
			return nil, err
		}
		many, err := last(s, 1000)
		if err != nil {
			return nil, err
		}
		if _, err := s.Last(0); cay.CodeOf(err) != cay.Invalid {
			return nil, workflow.Fatal(fmt.Errorf("the last 0: %v", err))
		}
		if err := s.End(-7, -8); err != nil {
			return nil, err
		}
		if err := s.Flush(); err != nil {
			return nil, err
		}
		if err := s.End(-9); cay.CodeOf(err) != cay.Conflict { // the error does not fail the step
			return nil, workflow.Fatal(fmt.Errorf("a second end: %v", err))
		}
		all, err := last(s, 2)
		return [][]int{none, few, {len(many)}, all}, err
	})
	d := workflow.Define("ends", func(ctx workflow.Context, n int) ([][]int, error) { return ends.Run(ctx, n) })
	k := workflowtest.New(t, workflowtest.Options{}, d)
	run, err := d.Start(t.Context(), k.Client, 0)
	if err != nil {
		t.Fatal(err)
	}
	got, err := run.Result(t.Context())
	if want := "[[] [597 598 599] [600] [-7 -8]]"; err != nil || fmt.Sprint(got) != want {
		t.Errorf("it saw %v, %v; want %s", got, err, want)
	}
	n := 0
	for item, err := range workflow.ReadStream[int](t.Context(), k.Client, run.ID, "numbers", 0) {
		if err != nil {
			t.Fatal(err)
		}
		n++
		if item.Value == -9 {
			t.Error("what came after the end is there")
		}
	}
	if n != 602 {
		t.Errorf("%d items, want 602", n)
	}
}

// Too many calls of a webhook are refused, and the run goes on.
func TestClient_WebhookCrowded(t *testing.T) {
	d := workflow.Define("crowded", func(ctx workflow.Context, _ int) (int, error) {
		w, err := workflow.NewWebhook(ctx)
		if err != nil {
			return 0, err
		}
		n := 0
		for ; n < 4 && err == nil; n++ {
			_, err = w.Receive(ctx)
			if n == 0 && err == nil {
				err = workflow.Sleep(ctx, time.Hour)
			}
		}
		return n, err
	}, workflow.MaxEvents(16))
	k := workflowtest.New(t, workflowtest.Options{}, d)
	server := httptest.NewServer(k.Client.WebhookHandler())
	defer server.Close()
	run, err := d.Start(t.Context(), k.Client, 0)
	if err != nil {
		t.Fatal(err)
	}
	url := server.URL + workflow.WebhookPath + k.WaitForHook(run.ID).Token
	for i := range 10 {
		resp, err := http.Post(url, "text/plain", nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if want := i >= 4; err != nil || want != (resp.StatusCode == http.StatusTooManyRequests) || want != strings.Contains(string(body), "quota_exceeded") {
			t.Errorf("call %d is answered by %d %s, %v", i+1, resp.StatusCode, body, err)
		}
	}
	k.WaitForSleep(run.ID)
	k.Wake(run.ID)
	if n, err := run.Result(t.Context()); err != nil || n != 4 {
		t.Errorf("the run returned %d, %v", n, err)
	}
}

func TestClient_WebhookHandler(t *testing.T) {
	answer := workflow.Step("answer", func(ctx context.Context, r workflow.WebhookRequest) (string, error) {
		return string(r.Body), r.Respond(ctx, workflow.WebhookResponse{Status: 201, Body: append([]byte("you said "), r.Body...)})
	})
	d := workflow.Define("webhooks", func(ctx workflow.Context, how string) (string, error) {
		var opts []workflow.WebhookOption
		switch how {
		case "value":
			opts = append(opts, workflow.RespondWith(workflow.WebhookResponse{Header: http.Header{"X-A": {"b"}}, Body: []byte("fixed")}))
		case "step", "silent":
			opts = append(opts, workflow.RespondByStep())
		}
		w, err := workflow.NewWebhook(ctx, opts...)
		if err != nil {
			return "", err
		}
		r, err := w.Receive(ctx)
		if err != nil || how == "silent" {
			return "", err
		}
		if how == "step" {
			return answer.Run(ctx, r)
		}
		return r.Method + " " + string(r.Body), nil
	})
	k := workflowtest.New(t, workflowtest.Options{}, d, approval)
	server := httptest.NewServer(k.Client.WebhookHandler())
	defer server.Close()
	post := func(token, body string) (int, string, http.Header) {
		resp, err := http.Post(server.URL+workflow.WebhookPath+token, "text/plain", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b), resp.Header
	}
	for how, want := range map[string]struct {
		status       int
		body, result string
	}{
		"nothing": {202, "", "POST hi"}, "value": {200, "fixed", "POST hi"}, "step": {201, "you said hi", "hi"},
		"silent": {502, `{"error":{"code":"unavailable","message":"the workflow ended without an answer"}}` + "\n", ""},
	} {
		t.Run(how, func(t *testing.T) {
			run, err := d.Start(t.Context(), k.Client, how)
			if err != nil {
				t.Fatal(err)
			}
			status, body, header := post(k.WaitForHook(run.ID).Token, "hi")
			if status != want.status || body != want.body || (how == "value" && header.Get("X-A") != "b") {
				t.Errorf("%d %q %v", status, body, header)
			}
			if got, err := run.Result(t.Context()); err != nil || got != want.result {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	run, err := approval.Start(t.Context(), k.Client, "no-webhook")
	if err != nil {
		t.Fatal(err)
	}
	k.WaitForHook(run.ID)
	for token, want := range map[string]int{"no-webhook": 404, "none": 404, "": 404, "a/b": 404} {
		if status, body, _ := post(token, "hi"); status != want {
			t.Errorf("%q: %d %s", token, status, body)
		}
	}
	run, err = d.Start(t.Context(), k.Client, "nothing")
	if err != nil {
		t.Fatal(err)
	}
	if status, _, _ := post(k.WaitForHook(run.ID).Token, strings.Repeat("a", 5<<20)); status != http.StatusRequestEntityTooLarge {
		t.Errorf("5 MiB: %d", status)
	}
}
