package cloudflare

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/api/apitest"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

func TestRoutes(t *testing.T) {
	mux := api.NewMux(callers{})
	Routes(mux, Config{})
	apitest.Golden(t, mux)
}

// The document has every route, and no others.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	s := serve(t)
	a := s.must("GET", "/v1/openapi.json", "")
	var doc openapi3.T
	if err := json.Unmarshal([]byte(a.body), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.OpenAPI != "3.1.0" {
		t.Errorf("version %q", doc.OpenAPI)
	}
	var described, served []string
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			described = append(described, method+" "+Prefix+path)
			if op.OperationID == "" || op.Summary == "" {
				t.Errorf("%s %s has no id or summary", method, path)
			}
		}
	}
	mux := api.NewMux(callers{})
	Routes(mux, Config{})
	for _, r := range mux.Routes() {
		if r != Prefix+"/" && r != "GET "+Prefix+"/v1/openapi" {
			served = append(served, strings.ReplaceAll(r, "...}", "}"))
		}
	}
	slices.Sort(described)
	slices.Sort(served)
	if !slices.Equal(described, served) {
		t.Errorf("described %q\nserved %q", described, served)
	}

	page := s.must("GET", "/v1/openapi.html", "")
	if !strings.HasPrefix(page.body, "<!doctype html>") || !strings.Contains(page.body, "/v1/sandbox/{id}/exec") ||
		!strings.HasPrefix(page.header.Get("Content-Type"), "text/html") {
		t.Errorf("the page is %s %.300s", page.header, page.body)
	}
}

func TestAuth(t *testing.T) {
	t.Parallel()
	s := serve(t)
	box := s.box()
	for _, c := range []struct {
		token, method, path string
		status              int
	}{
		{"", "GET", "/health", 200},
		{"", "GET", box + "/running", 401},
		{"wrong", "GET", box + "/running", 401},
		{"", "GET", "/v1/sandbox/UPPER/running", 400}, // the id is looked at first
		{"wrong", "GET", "/v1/sandbox/foo;rm/running", 400},
		{"", "POST", "/v1/sandbox", 401},
		{"", "GET", "/v1/pool/stats", 401},
		{"", "GET", "/v1/openapi.json", 401},
		{"", "GET", "/v1/openapi.json?token=" + mine, 200},
		{"", "GET", "/v1/openapi.html?token=" + mine, 200},
		{"", "GET", "/v1/openapi.json?token=wrong", 401},
		{"wrong", "GET", "/v1/openapi.json?token=" + mine, 401}, // the header wins
		{"", "GET", box + "/running?token=" + mine, 401},
		{"", "GET", box + "/pty?authorization=Bearer%20" + mine, 400}, // known, but no WebSocket
		{"", "GET", box + "/pty?authorization=wrong", 401},
		{"", "GET", "/v1/nothing", 404},
		{mine, "PATCH", box, 404},
	} {
		a := s.do(c.token, c.method, c.path, "")
		if a.status != c.status || c.status == 401 && a.at("code") != "unauthorized" || c.status == 400 && a.at("code") != "invalid_request" {
			t.Errorf("%q %s %s: %d %s, want %d", c.token, c.method, c.path, a.status, a.body, c.status)
		}
	}
}

func TestIDs(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for _, id := range []string{"A", "a1", "a_b", "sbx_a", "a%2Fb", strings.Repeat("a", 129), "%20"} {
		s.refused("GET", "/v1/sandbox/"+id+"/running", "", 400, codeInvalid, "Invalid sandbox ID format")
	}
	for _, id := range []string{"a", strings.Repeat("7", 128)} {
		s.must("GET", "/v1/sandbox/"+id+"/running", "")
	}
	for _, sid := range []string{"a..b", "a%20b", strings.Repeat("s", 129), "a;b"} {
		s.refused("DELETE", "/v1/sandbox/a/session/"+sid, "", 400, codeInvalid, "Invalid session ID format")
	}
	s.refused("POST", "/v1/sandbox/a/exec", `{"argv":["true"]}`, 400, codeInvalid, "Invalid session ID format", "Session-Id", "a b")
}

func (s *service) running(box string) bool {
	s.t.Helper()
	var out struct{ Running bool }
	if err := json.Unmarshal([]byte(s.must("GET", box+"/running", "").body), &out); err != nil {
		s.t.Fatal(err)
	}
	return out.Running
}

// all lists the sandboxes of a caller.
func (s *service) all(p api.Principal) []sandbox.Sandbox {
	s.t.Helper()
	page, err := s.List(sandboxtest.As(s.t.Context(), p), sandbox.ListParams{})
	if err != nil {
		s.t.Fatal(err)
	}
	return page.Items
}

func TestLife(t *testing.T) {
	t.Parallel()
	s := serve(t)
	if s.running("/v1/sandbox/never") || len(s.all(sandboxtest.ProjectA)) != 0 {
		t.Error("a look at a sandbox made it")
	}
	s.must("DELETE", "/v1/sandbox/never", "")

	box := s.box()
	all := s.all(sandboxtest.ProjectA)
	if len(all) != 1 {
		t.Fatalf("%d sandboxes", len(all))
	}
	sb := all[0]
	if "/v1/sandbox/"+sb.Name != box || sb.Tags["cloudflare"] != "bridge" || sb.WorkDir != "/workspace" || sb.User != "root" ||
		sb.Image != "image" || time.Duration(sb.IdleTimeout) != 10*time.Minute || time.Duration(sb.Timeout) != sandboxtest.MaxTimeout || !sb.Persistent {
		t.Errorf("the sandbox is %+v", sb)
	}
	if !s.running(box) {
		t.Error("it does not run")
	}

	// Asleep, it is not woken by a look, and by a call is, with its files.
	s.must("PUT", box+"/file/workspace/a", "kept")
	if _, err := s.Stop(sandboxtest.As(t.Context(), sandboxtest.ProjectA), sb.ID); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if s.running(box) {
			t.Error("a stopped sandbox runs")
		}
	}
	if got := s.must("GET", box+"/file/workspace/a", "").body; got != "kept" {
		t.Errorf("the file is %q", got)
	}
	if !s.running(box) {
		t.Error("a call did not wake it")
	}

	for range 2 {
		if a := s.must("DELETE", box, ""); a.status != 204 || a.body != "" {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	if s.running(box) || len(s.all(sandboxtest.ProjectA)) != 0 {
		t.Error("it is still there")
	}
	s.refused("GET", box+"/file/workspace/a", "", 404, codeFileNotFound, "a") // of a new one
}

// A sandbox whose saved files have expired is made anew by the next call.
func TestExpired(t *testing.T) {
	t.Parallel()
	s := serve(t)
	box := s.box()
	s.must("PUT", box+"/file/workspace/a", "old")
	ctx := sandboxtest.As(t.Context(), sandboxtest.ProjectA)
	sb, err := s.Stop(ctx, strings.TrimPrefix(box, "/v1/sandbox/"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.DeleteSnapshot(ctx, sb.SnapshotID, sandbox.DeleteSnapshotParams{Force: true}); err != nil {
		t.Fatal(err)
	}
	s.refused("GET", box+"/file/workspace/a", "", 404, codeFileNotFound, "a")
	if all := s.all(sandboxtest.ProjectA); len(all) != 1 || all[0].ID == sb.ID || !s.running(box) {
		t.Errorf("the sandboxes are %+v", all)
	}
}

// A session, and all else of a sandbox, outlives a restart of the daemon.
func TestRestart(t *testing.T) {
	t.Parallel()
	s := serve(t)
	box := s.box()
	s.must("PUT", box+"/file/workspace/a", "kept")
	s.must("POST", box+"/session", `{"id":"s","env":{"A":"1"}}`)
	s.Restart(t)
	s.h.Sandboxes = s.Engine
	if got := s.must("GET", box+"/file/workspace/a", "").body; got != "kept" || !s.running(box) {
		t.Errorf("the file is %q", got)
	}
	s.refused("POST", box+"/session", `{"id":"s"}`, 502, codeSession, "exists already")
	s.must("DELETE", box+"/session/s", "")
	s.refused("DELETE", box+"/session/s", "", 502, codeSession, "not found")
	s.must("POST", box+"/session", `{"id":"s"}`)
	if id := s.must("POST", box+"/session", "").at("id"); !strings.HasPrefix(id, "session-") {
		t.Errorf("the id %q", id)
	}
	for body, text := range map[string]string{
		`{"id":"a..b"}`: "Invalid session ID", `{"id":7}`: "id", `{"env":{"A":1}}`: "env", `{"env":{"A-B":"1"}}`: `"A-B"`, `{"env":{"A":"a\u0000"}}`: "NUL",
		`{"cwd":"/workspace/none"}`: "/workspace/none", `{"cwd":"a"}`: "/workspace/a",
		`{"env":{"A":"` + strings.Repeat("x", maxSessionEnvBytes) + `"}}`: "262145",
	} {
		s.refused("POST", box+"/session", body, 400, codeInvalid, text)
	}
}

// A sandbox that a call before has paused says so, and is not touched.
func TestPaused(t *testing.T) {
	t.Parallel()
	s := serve(t)
	box := s.box()
	if _, err := s.Pause(sandboxtest.As(t.Context(), sandboxtest.ProjectA), strings.TrimPrefix(box, "/v1/sandbox/")); err != nil {
		t.Fatal(err)
	}
	s.refused("POST", box+"/exec", `{"argv":["true"]}`, 409, "conflict", "paused")
	if s.running(box) {
		t.Error("a paused sandbox runs")
	}
}

// First calls for one id at the same time make one sandbox.
func TestFirstCalls(t *testing.T) {
	t.Parallel()
	s := serve(t)
	const calls, box = 20, "/v1/sandbox/together"
	var wg sync.WaitGroup
	for i := range calls {
		wg.Go(func() {
			path := fmt.Sprintf("%s/file/workspace/f%d", box, i)
			a := s.do(mine, "PUT", path, "x")
			if a.status != 200 {
				t.Errorf("%d: %d %s", i, a.status, a.body)
			}
		})
	}
	wg.Wait()
	if n := len(s.all(sandboxtest.ProjectA)); n != 1 {
		t.Errorf("%d sandboxes", n)
	}
	for i := range calls {
		s.must("GET", fmt.Sprintf("%s/file/workspace/f%d", box, i), "")
	}
	s.must("DELETE", box, "")
	if n := len(s.all(sandboxtest.ProjectA)); n != 0 {
		t.Errorf("%d sandboxes are left", n)
	}
}

// A token of another project sees nothing of a sandbox; the same id is another sandbox
// there. A sandbox that the bridge did not make is not the bridge's to use or delete.
func TestStrangers(t *testing.T) {
	t.Parallel()
	s := serve(t)
	box := s.box()
	s.must("PUT", box+"/file/workspace/secret", "mine")
	for _, token := range []string{theirs, sandboxtest.ProjectA2.TokenID} {
		if a := s.do(token, "GET", box+"/running", ""); a.body != "{\"running\":false}\n" {
			t.Errorf("%s sees %s", token, a.body)
		}
		if a := s.do(token, "GET", box+"/file/workspace/secret", ""); a.status != 404 {
			t.Errorf("%s reads %d %s", token, a.status, a.body)
		}
		if a := s.do(token, "DELETE", box, ""); a.status != 204 {
			t.Errorf("%s deletes with %d", token, a.status)
		}
	}
	if got := s.must("GET", box+"/file/workspace/secret", "").body; got != "mine" {
		t.Errorf("the file is %q", got)
	}

	ctx := sandboxtest.As(t.Context(), sandboxtest.ProjectA)
	if _, err := s.Create(ctx, sandbox.CreateParams{Name: "other", Image: "image"}); err != nil {
		t.Fatal(err)
	}
	const other = "/v1/sandbox/other"
	s.refused("GET", other+"/running", "", 409, "conflict", "not made by the bridge")
	s.refused("DELETE", other, "", 409, "conflict", "cloudflare=bridge")
	s.refused("POST", other+"/exec", `{"argv":["true"]}`, 409, "conflict", `"other"`)
	if _, err := s.Get(ctx, "other"); err != nil {
		t.Error(err)
	}
}

// A team that may have no more sandboxes gets the code and the status of a full pool.
func TestQuota(t *testing.T) {
	t.Parallel()
	s := serve(t)
	s.Accounts.Set("team_a", account.Quota{Sandboxes: 1})
	s.box()
	for _, call := range [][2]string{{"POST", "/v1/sandbox"}, {"GET", "/v1/sandbox/second/file/workspace/a"}} {
		a := s.do(mine, call[0], call[1], "")
		if a.status != 503 || a.at("code") != codeCapacity || a.header.Get("Retry-After") == "" {
			t.Errorf("%s: %d %s", call[1], a.status, a.body)
		}
	}
}

// Requests that cay cannot serve are refused with the reason, and make no sandbox.
func TestRefused(t *testing.T) {
	t.Parallel()
	s := serve(t)
	const box = "/v1/sandbox/nobody"
	for _, c := range []struct{ body, text string }{
		{`{`, "Invalid JSON body"},
		{`[]`, "Invalid JSON body"},
		{`{}`, "mountPath"},
		{`{"mountPath":"","options":{}}`, "mountPath must be a non-empty string"},
		{`{"mountPath":7,"options":{}}`, "mountPath must be a non-empty string"},
		{`{"mountPath":"data","options":{}}`, "absolute path"},
		{`{"mountPath":"/d"}`, "options must be an object"},
		{`{"mountPath":"/d","options":[]}`, "options must be an object"},
		{`{"mountPath":"/d","options":{},"bucket":""}`, "bucket must be a non-empty string"},
		{`{"mountPath":"/d","options":{}}`, "binding"},
		{`{"mountPath":"/d","options":{},"binding":7}`, "binding"},
		{`{"mountPath":"/d","options":{"endpoint":"https://s3"},"binding":"B"}`, "not both"},
		{`{"mountPath":"/d","options":{"endpoint":7},"bucket":"b"}`, "options.endpoint"},
		{`{"mountPath":"/d","options":{"endpoint":"https://s3"}}`, "bucket must be"},
		{`{"mountPath":"/d","options":{"endpoint":"https://s3","readOnly":1},"bucket":"b"}`, "options.readOnly"},
		{`{"mountPath":"/d","options":{"endpoint":"https://s3","s3fsOptions":[1]},"bucket":"b"}`, "options.s3fsOptions"},
		{`{"mountPath":"/d","options":{"endpoint":"https://s3","credentials":{"accessKeyId":"a"}},"bucket":"b"}`, "options.credentials"},
		{`{"mountPath":"/d","options":{"prefix":1},"binding":"B"}`, "options.prefix"},
	} {
		s.refused("POST", box+"/mount", c.body, 400, codeInvalid, c.text)
	}
	s.refused("POST", box+"/mount", `{"bucket":"b","mountPath":"/d","options":{"endpoint":"https://s3"}}`, 501, codeMount, "mounts no buckets")
	s.refused("POST", box+"/mount", `{"binding":"B","mountPath":"/d","options":{}}`, 501, codeMount, "/d")

	s.refused("POST", box+"/unmount", `{"mountPath":"d"}`, 400, codeInvalid, "absolute")
	s.refused("POST", box+"/unmount", `{"mountPath":"/a/.."}`, 400, codeInvalid, "must not resolve to /")
	s.refused("POST", box+"/unmount", `{"mountPath":"/d"}`, 501, codeUnmount, "nothing is mounted")
	s.refused("POST", "/v1/sandbox", `{"mounts":[{"bucket":"b"}]}`, 501, codeMount, "mounts has 1 entries")

	for _, port := range []string{"0", "65536", "x", "-1", "+5"} {
		s.refused("POST", box+"/tunnel/"+port, "", 400, codeInvalid, "Invalid port")
	}
	s.refused("POST", box+"/tunnel/80", `{"name":7}`, 400, codeInvalid, "name must be a string")
	s.refused("POST", box+"/tunnel/80", "", 501, codeTunnel, "previews")
	s.refused("DELETE", box+"/tunnel/80", "", 501, codeTunnel, "no tunnels")
	if n := len(s.all(sandboxtest.ProjectA)); n != 0 {
		t.Errorf("%d sandboxes were made", n)
	}
	// Members that do nothing anywhere are no error.
	s.must("POST", "/v1/sandbox", `{"exposedPorts":[3000],"timeoutMs":1000,"createTimeoutMs":1000,"mounts":[],"more":{}}`)
}

func TestPool(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for _, call := range [][2]string{{"GET", "/v1/pool/stats"}, {"POST", "/v1/pool/prime"}, {"POST", "/v1/pool/shutdown-prewarmed"}} {
		if a := s.do(mine, call[0], call[1], ""); a.status != http.StatusForbidden {
			t.Errorf("%s: %d %s", call[1], a.status, a.body)
		}
	}
	as := operator.TokenID
	s.do(as, "POST", "/v1/sandbox", "")
	const want = `{"warm":0,"assigned":1,"total":1,"config":{"warmTarget":0,"refreshInterval":0,"maxInstances":null,"scaleBatchSize":0},"maxInstances":null}` + "\n"
	if a := s.do(as, "GET", "/v1/pool/stats", ""); a.body != want {
		t.Errorf("got %s want %s", a.body, want)
	}
	if a := s.do(as, "POST", "/v1/pool/prime", ""); a.status != 501 || !strings.Contains(a.at("error"), "--pool") {
		t.Errorf("prime: %d %s", a.status, a.body)
	}
	if a := s.do(as, "POST", "/v1/pool/shutdown-prewarmed", ""); a.status != 501 || a.at("code") != codePool {
		t.Errorf("shutdown: %d %s", a.status, a.body)
	}
}
