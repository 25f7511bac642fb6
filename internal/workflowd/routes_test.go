package workflowd_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/backendtest"
	"github.com/cayhq/cay/workflow"
)

// tokens are the accounts of a test: each token is the id of its project; "team" has
// access to all projects of its team.
type tokens struct{}

func (tokens) Authenticate(_ context.Context, secret string) (api.Principal, error) {
	switch secret {
	case "":
		return api.Principal{}, cay.Errorf(cay.Unauthenticated, "no")
	case "team":
		return api.Principal{TeamID: account.DefaultTeam}, nil
	}
	return api.Principal{TeamID: account.DefaultTeam, ProjectID: secret}, nil
}

func (tokens) CheckProject(_ context.Context, _, projectID string) error {
	if strings.HasPrefix(projectID, "prj_") {
		return nil
	}
	return cay.Errorf(cay.NotFound, "project %q not found", projectID)
}

// served is an engine behind HTTP.
type served struct {
	engine *workflowd.Engine
	server *httptest.Server
	routes *workflowd.Routes
}

// serve serves an engine on a new database until the test ends.
func serve(t *testing.T) *served {
	t.Helper()
	return serveEngine(t, open(t, filepath.Join(t.TempDir(), "workflows.db"), workflowd.Config{}))
}

// serveEngine serves an engine until the test ends.
func serveEngine(t *testing.T, e *workflowd.Engine) *served {
	t.Helper()
	s := &served{engine: e}
	mux := api.NewMux(tokens{})
	s.routes = workflowd.NewRoutes(mux, s.engine, tokens{})
	s.server = httptest.NewServer(api.Log(slog.New(slog.NewTextHandler(t.Output(), nil)), mux))
	t.Cleanup(func() {
		s.routes.Close()
		s.server.Close()
	})
	return s
}

// dial returns the backend that a token has access to, for the requested project.
func (s *served) dial(t *testing.T, token, project string) workflow.Backend {
	t.Helper()
	tr := &http.Transport{}
	b, err := workflow.Dial(workflow.RemoteOptions{
		URL: s.server.URL, Token: token, Project: project, HTTPClient: &http.Client{Transport: conform(t, tr)},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.CloseIdleConnections)
	return b
}

func TestRemote(t *testing.T) {
	backendtest.Run(t, func(t *testing.T) backendtest.Backend {
		return backendtest.Backend{Backend: serve(t).dial(t, "prj_a", ""), Remote: true}
	})
}

func TestSocket(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40)) // longer than the kernel accepts
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := workflowd.SocketPath(filepath.Join(dir, "app.db"))
	if _, err := workflowd.DialSocket(t.Context(), path); cay.CodeOf(err) != cay.NotFound {
		t.Errorf("no socket: %v", err)
	}
	e := open(t, filepath.Join(dir, "app.db"), workflowd.Config{})
	if err := os.WriteFile(path, nil, 0o600); err != nil { // left over
		t.Fatal(err)
	}
	s, err := workflowd.ServeSocket(path, e, nil)
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v, %v", fi.Mode(), err)
	}
	b, err := workflowd.DialSocket(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	run, _, err := b.CreateRun(t.Context(), workflow.NewRun{Workflow: "order"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := e.For("").GetRun(t.Context(), run.ID); err != nil || got.Workflow != "order" {
		t.Errorf("in the engine: %+v, %v", got, err)
	}
	follow, err := b.Follow(t.Context(), run.ID, 1) // must not keep the socket from closing
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := follow.Close(); err != nil {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if _, err := workflowd.DialSocket(t.Context(), path); cay.CodeOf(err) != cay.NotFound {
		t.Errorf("after the end: %v", err)
	}
}

func TestRoutes_Projects(t *testing.T) {
	t.Parallel()
	s := serve(t)
	a, b := s.dial(t, "prj_a", ""), s.dial(t, "prj_b", "")
	run, _, err := a.CreateRun(t.Context(), workflow.NewRun{Workflow: "order", Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func() error{
		"get":    func() error { _, err := b.GetRun(t.Context(), run.ID); return err },
		"wait":   func() error { _, err := b.WaitRun(t.Context(), run.ID); return err },
		"events": func() error { _, err := b.Events(t.Context(), run.ID, 1, 1); return err },
		"follow": func() error { _, err := b.Follow(t.Context(), run.ID, 1); return err },
		"cancel": func() error {
			_, err := b.CancelRun(t.Context(), run.ID, workflow.CancelParams{Force: true})
			return err
		},
		"wake":   func() error { _, err := b.WakeRun(t.Context(), run.ID, nil); return err },
		"rerun":  func() error { _, err := b.RerunRun(t.Context(), run.ID, workflow.RerunParams{}); return err },
		"delete": func() error { return b.DeleteRun(t.Context(), run.ID) },
		"tag": func() error {
			_, err := b.SetAttributes(t.Context(), run.ID, map[string]string{"a": "1"})
			return err
		},
		"write":   func() error { return b.WriteStream(t.Context(), run.ID, "", [][]byte{[]byte("x")}, false) },
		"read":    func() error { _, err := b.ReadStream(t.Context(), run.ID, "", 0); return err },
		"streams": func() error { _, err := b.ListStreams(t.Context(), run.ID); return err },
		"another project of the team": func() error {
			_, err := s.dial(t, "prj_a", "prj_b").GetRun(t.Context(), run.ID)
			return err
		},
		"by a token of another project": func() error {
			_, err := s.dial(t, "prj_b", "prj_a").GetRun(t.Context(), run.ID)
			return err
		},
		"no project": func() error {
			_, err := s.dial(t, "team", "none").GetRun(t.Context(), run.ID)
			return err
		},
		"the default project": func() error { _, err := s.dial(t, "team", "").GetRun(t.Context(), run.ID); return err },
	} {
		if err := call(); cay.CodeOf(err) != cay.NotFound {
			t.Errorf("%s: %v, want not_found", name, err)
		}
	}
	if page, err := b.ListRuns(t.Context(), workflow.Query{}); err != nil || len(page.Items) != 0 {
		t.Errorf("list: %+v, %v", page, err)
	}
	if _, created, err := b.CreateRun(t.Context(), workflow.NewRun{Workflow: "order", Key: "k"}); err != nil || !created {
		t.Errorf("the same key in another project: %v, %v", created, err)
	}
	if got, err := s.dial(t, "team", "prj_a").GetRun(t.Context(), run.ID); err != nil || got.Project != "prj_a" {
		t.Errorf("by a token of the team: %+v, %v", got, err)
	}
	if _, err := s.dial(t, "", "").ListRuns(t.Context(), workflow.Query{}); err == nil {
		t.Error("listed without a token")
	}
}

// request sends a request like a program without the SDK.
func (s *served) request(t *testing.T, method, path, body string, header http.Header) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.server.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	req.Header.Set("Authorization", "Bearer prj_a")
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := s.server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestRoutes_PlainHTTP(t *testing.T) {
	t.Parallel()
	s := serve(t)
	status, body := s.request(t, "POST", "/v1/workflows/runs", `{"id": "wrun_01K00000000000000000000000", "workflow": "order", "input": {"json": {"n": [1, 2.50]}}}`, nil)
	if status != http.StatusCreated || !strings.Contains(body, `"created":true`) {
		t.Fatalf("start: %d %s", status, body)
	}
	const run = "/v1/workflows/runs/wrun_01K00000000000000000000000"
	if _, body = s.request(t, "GET", run+"/events", "", nil); !strings.Contains(body, `"payload":{"json":{"n":[1,2.50]}}`) {
		t.Errorf("events: %s", body)
	}
	if status, body = s.request(t, "POST", run+"/stream", `{"chunks": [{"json": "a\nb"}, {"base64": "AP8="}]}`, nil); status != http.StatusNoContent {
		t.Errorf("write: %d %s", status, body)
	}
	if _, body = s.request(t, "GET", run+"/stream?from=-1", "", nil); body != `{"index":1,"data":{"base64":"AP8="}}`+"\n" {
		t.Errorf("the last chunk: %q", body)
	}
	if _, body = s.request(t, "GET", run+"/stream", "", http.Header{"Accept": {"application/octet-stream"}}); body != "json\"a\\nb\"\x00\xff" {
		t.Errorf("bytes: %q", body)
	}
	want := "id: 0\ndata: \"a\\nb\"\n\nid: 1\ndata: {\"base64\":\"AP8=\"}\n\nevent: end\ndata: {}\n\n"
	if _, body = s.request(t, "GET", run+"/stream", "", http.Header{"Accept": {"text/event-stream"}}); body != want {
		t.Errorf("server-sent events: %q", body)
	}
	if _, body = s.request(t, "GET", run+"/stream", "", http.Header{"Accept": {"text/event-stream"}, "Last-Event-Id": {"0"}}); body != want[strings.Index(want, "id: 1"):] {
		t.Errorf("later ones: %q", body)
	}
	for _, tt := range []struct{ method, path, body, want string }{
		{"POST", "/v1/workflows/runs", `{"workflow": "order", "inputs": 1}`, "inputs"},
		{"POST", "/v1/workflows/runs", `{"workflow": "order", "input": {"n": 1}}`, "payload"},
		{"GET", "/v1/workflows/runs?statuses=x", "", "statuses"},
		{"GET", "/v1/workflows/runs?status=odd", "", "odd"},
		{"GET", "/v1/workflows/runs?attribute==x", "", "name=value"},
		{"GET", "/v1/workflows/runs?limit=1001", "", "1001"},
		{"POST", "/v1/workflows/runs/cancel", `{"limit": 501}`, "501"},
		{"GET", run + "/events?from=0", "", "from"},
		{"GET", run + "/stream?follow=maybe", "", "maybe"},
		{"GET", "/v1/workflows/attach", "", "upgrade"},
	} {
		status, body := s.request(t, tt.method, tt.path, tt.body, nil)
		if status != http.StatusBadRequest || !strings.Contains(body, tt.want) {
			t.Errorf("%s %s %s: %d %s", tt.method, tt.path, tt.body, status, body)
		}
	}
}
