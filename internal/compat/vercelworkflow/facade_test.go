package vercelworkflow

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/queue"
	"github.com/cayhq/cay/internal/workflowd/sqlstore"
	"github.com/cayhq/cay/workflow"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// tokens: each token is the id of its project.
// published is a Queue that keeps the last message.
type published struct {
	Queue
	last queue.Message
}

func (p *published) Publish(_ context.Context, m queue.Message) (string, error) {
	p.last = m
	return "msg_1", nil
}

// A message has the priority of its workflow. The facade finds the workflow by the topic, or by
// the run of the message.
func TestPublish_Priority(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.begin()
	q := new(published)
	h := &handler{Config: Config{Runs: s.runs, Queue: q, Priorities: func(context.Context, string) (map[string]int, error) {
		return map[string]int{"workflow//./w//f": 4, "workflow//./w//g": 2}, nil
	}}}
	for _, tt := range []struct {
		topic, run string
		want       int
	}{
		{"__wkf_workflow_workflow----w--f", "wrun_of_later", 4}, {"__wkf_workflow_workflow----w--g", "wrun_of_later", 2}, {"__wkf_workflow_workflow----w--h", testRun, 0},
		{"__wkf_step_step------w--s", testRun, 4}, {"__wkf_step_step------w--s", "wrun_of_none", 0}, {"__wkf_step_step------w--s", "", 0},
	} {
		if _, err := h.publish(t.Context(), queue.Message{Project: "prj_a", Topic: tt.topic, Run: tt.run}); err != nil || q.last.Priority != tt.want {
			t.Errorf("%s of %s: %d, want %d: %v", tt.topic, tt.run, q.last.Priority, tt.want, err)
		}
	}
}

type tokens struct{}

func (tokens) Authenticate(_ context.Context, secret string) (api.Principal, error) {
	return api.Principal{TeamID: account.DefaultTeam, ProjectID: secret}, nil
}

// service is the facade on an engine and a queue of its own.
type service struct {
	*testing.T
	server *httptest.Server
	agent  string
	runs   func(project string) Runs
}

func newService(t *testing.T) *service {
	t.Helper()
	s, stop := openService(t, t.TempDir())
	t.Cleanup(stop)
	return s
}

// openService is newService on a database in a directory.
func openService(t *testing.T, dir string) (s *service, stop func()) {
	t.Helper()
	logger := slog.New(slog.NewTextHandler(t.Output(), nil))
	store, err := sqlstore.OpenSQLite(t.Context(), filepath.Join(dir, "w.db"), sqlstore.SQLiteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e, err := workflowd.Open(t.Context(), workflowd.Config{Store: store, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	pusher := NewPusher()
	q, err := queue.Open(t.Context(), queue.Config{Store: store.Queue(), Pusher: pusher, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	pulls := NewPulls(q, nil, logger)
	pusher.Pulls = pulls
	mux := api.NewMux(tokens{})
	runs := func(project string) Runs { return e.External(project, history.JavaScript) }
	Routes(mux, Config{
		Pulls: pulls,
		Runs:  runs,
		Queue: q,
		Check: pusher.Check,
		Project: func(ctx context.Context, _ string) (string, error) {
			p, _ := api.PrincipalFrom(ctx)
			return p.ProjectID, nil
		},
	})
	server := httptest.NewServer(mux)
	stop = func() {
		server.CloseClientConnections()
		server.Close()
		q.Close()
		pulls.Close()
		pusher.Close()
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	return &service{t, server, "@workflow/world-vercel/5.0.0-beta.50", runs}, stop
}

// do sends a request and returns the answer and its body.
func (s *service) do(method, path string, body []byte, head ...string) (*http.Response, []byte) {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), method, s.server.URL+path, bytes.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer prj_a")
	req.Header.Set("User-Agent", s.agent)
	for i := 0; i < len(head); i += 2 {
		req.Header.Set(head[i], head[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.Fatal(err)
	}
	return resp, b
}

const testRun = "wrun_01M8BS00000000000000000000"

// post appends an event to a run and returns the status and the answer.
func (s *service) post(fields map[string]any, body string) (int, map[string]any) {
	s.Helper()
	frame, err := appendFrame(nil, fields, []byte(body))
	if err != nil {
		s.Fatal(err)
	}
	resp, b := s.do("POST", serverBase+"/v4/runs/"+testRun+"/events/"+fields["eventType"].(string), frame)
	var o map[string]any
	if resp.StatusCode == http.StatusOK {
		err = decoding.Unmarshal(b, &o)
	} else {
		err = json.Unmarshal(b, &o)
	}
	if err != nil {
		s.Fatalf("%s: %v in %q", resp.Status, err, b)
	}
	return resp.StatusCode, o
}

func (s *service) begin() {
	s.Helper()
	for _, f := range []map[string]any{
		{"eventType": "run_created", "specVersion": 7, "deploymentId": "dpl_1", "workflowName": "workflow//./w//f", "executionContext": map[string]any{"a": 1}},
		{"eventType": "run_started", "specVersion": 7, "skipPreload": true},
	} {
		body := ""
		if f["eventType"] == "run_created" {
			body = "devl[]"
		}
		if status, o := s.post(f, body); status != http.StatusOK {
			s.Fatalf("%v: %d %v", f, status, o)
		}
	}
}

// frames reads the frames of an answer.
func (s *service) frames(b []byte) (metas []map[string]any, bodies []string) {
	s.Helper()
	for len(b) > 0 {
		var m map[string]any
		body, rest, err := takeFrame(b, &m)
		if err != nil {
			s.Fatal(err)
		}
		metas, bodies, b = append(metas, m), append(bodies, string(body)), rest
	}
	return metas, bodies
}

func TestPost(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.begin()
	occurred := time.UnixMilli(time.Now().UnixMilli() + 1000).UTC()
	lazy := map[string]any{
		"eventType": "step_started", "specVersion": 7, "correlationId": "step_1", "stepName": "step//./w//s", "ownerMessageId": "msg_1",
		"occurredAt": occurred, "remoteRefBehavior": "resolve",
	}
	status, o := s.post(lazy, "devl1")
	step, _ := o["step"].(map[any]any)
	if status != 200 || o["stepCreated"] != true || step["status"] != "running" || step["attempt"] != uint64(1) || string(step["input"].([]byte)) != "devl1" {
		t.Errorf("a step created and started at once: %d %v", status, o)
	}
	event, _ := o["event"].(map[any]any)
	if event["eventType"] != "step_started" || event["eventId"] != "evnt_00000000000000000000000004" || millis(event["createdAt"].(time.Time)) != occurred.UnixMilli() {
		t.Errorf("its event is %v", event)
	}
	if status, o := s.post(lazy, "devl1"); status != http.StatusConflict {
		t.Errorf("again: %d %v", status, o)
	}
	delete(lazy, "stepName")
	if status, o := s.post(lazy, ""); status != 200 || o["step"].(map[any]any)["attempt"] != uint64(2) {
		t.Errorf("its second attempt: %d %v", status, o)
	}
	status, o = s.post(map[string]any{"eventType": "step_completed", "specVersion": 7, "correlationId": "step_1", "sinceCursor": "eid:evnt_00000000000000000000000003"}, "devl2")
	if events, _ := o["events"].([]any); status != 200 || len(events) != 3 || o["cursor"] != "eid:evnt_00000000000000000000000006" {
		t.Errorf("completed: %d %v", status, o)
	}
	_, b := s.do("GET", serverBase+"/v4/runs/"+testRun+"/events?returnAll=true", nil)
	metas, bodies := s.frames(b)
	if len(metas) != 7 || metas[6]["_end"] != uint64(1) || metas[6]["next"] != "eid:evnt_00000000000000000000000006" || bodies[2] != "devl1" || bodies[5] != "devl2" {
		t.Errorf("the log is %v, %q", metas, bodies)
	}
	if data := metas[0]["eventData"].(map[any]any); data["deploymentId"] != "dpl_1" || data["executionContext"] == nil {
		t.Errorf("run_created has %v", data)
	}
	if data := metas[3]["eventData"].(map[any]any); data["ownerMessageId"] != "msg_1" {
		t.Errorf("step_started has %v", data)
	}
	s.agent = "@workflow/world-vercel/4.7.4"
	_, b = s.do("GET", serverBase+"/v4/runs/"+testRun+"/events?cursor=eid:evnt_00000000000000000000000004", nil)
	if metas, _ := s.frames(b); len(metas) != 3 || metas[2]["next"] != nil {
		t.Errorf("the 4.7 line gets %v", metas)
	}
}

// The SDK acts upon the status of what is refused.
func TestPost_refused(t *testing.T) {
	t.Parallel()
	s := newService(t)
	if status, _ := s.post(map[string]any{"eventType": "step_started", "specVersion": 7, "correlationId": "step_1"}, ""); status != http.StatusNotFound {
		t.Errorf("a run that is not there: %d", status)
	}
	s.begin()
	later := time.Now().Add(time.Hour).UTC()
	for _, tt := range []struct {
		fields map[string]any
		body   string
		want   int
	}{
		{map[string]any{"eventType": "step_started", "correlationId": "step_0"}, "", 404},
		{map[string]any{"eventType": "step_created", "correlationId": "step_1", "stepName": "s"}, "devl1", 200},
		{map[string]any{"eventType": "step_created", "correlationId": "step_1", "stepName": "s"}, "devl1", 409},
		{map[string]any{"eventType": "step_retrying", "correlationId": "step_1", "retryAfter": later}, "devl1", 200},
		{map[string]any{"eventType": "step_started", "correlationId": "step_1"}, "", 425},
		{map[string]any{"eventType": "wait_completed", "correlationId": "wait_1"}, "", 404},
		{map[string]any{"eventType": "wait_created", "correlationId": "wait_1"}, "", 400},
		{map[string]any{"eventType": "hook_received", "correlationId": "hook_1"}, "devl1", 404},
		{map[string]any{"eventType": "attr_set", "changes": []map[string]any{{"key": "$mine", "value": "1"}}}, "", 400},
		{map[string]any{"eventType": "noop"}, "", 400},
		{map[string]any{"eventType": "run_cancelled", "cancelReason": "enough"}, "", 200},
		{map[string]any{"eventType": "run_cancelled"}, "", 200},
		{map[string]any{"eventType": "run_completed"}, "devl1", 409},
		{map[string]any{"eventType": "step_started", "correlationId": "step_1"}, "", 410},
		{map[string]any{"eventType": "run_started"}, "", 410},
		{map[string]any{"eventType": "hook_received", "correlationId": "hook_1"}, "devl1", 410},
	} {
		tt.fields["specVersion"] = 7
		if got, o := s.post(tt.fields, tt.body); got != tt.want {
			t.Errorf("%v: %d %v; want %d", tt.fields, got, o, tt.want)
		}
	}
}

// A run whose run_created was lost is created by run_started.
func TestPost_resilientStart(t *testing.T) {
	t.Parallel()
	s := newService(t)
	frame, err := appendFrame(nil, map[string]any{"eventType": "run_started", "specVersion": 7, "deploymentId": "dpl_1", "workflowName": "w"}, []byte("devl[]"))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second finds it running
		resp, b := s.do("POST", serverBase+"/v4/runs/"+testRun+"/events/run_started", frame, "Accept", frameType)
		metas, bodies := s.frames(b)
		if resp.StatusCode != 200 || len(metas) != 3 || bodies[0] != "devl[]" || metas[1]["eventType"] != "run_started" || resp.Header.Get("X-Wf-Max-Events") != "25000" {
			t.Errorf("%s: %v, %q", resp.Status, metas, bodies)
		}
	}
}

// A batch appends what it can, and a step that is created and started goes to one caller.
func TestBatch(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.begin()
	var b []byte
	for _, f := range []map[string]any{
		{"eventType": "step_created", "correlationId": "step_1", "stepName": "s"}, {"eventType": "step_started", "correlationId": "step_1"},
		{"eventType": "wait_created", "correlationId": "wait_1", "resumeAt": time.Now().UTC()},
	} {
		f["specVersion"] = 7
		body := ""
		if f["eventType"] == "step_created" {
			body = "devl1"
		}
		var err error
		if b, err = appendFrame(b, f, []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range [][3]uint64{{200, 200, 200}, {409, 409, 409}} {
		_, answer := s.do("POST", serverBase+"/v4/runs/"+testRun+"/events/batch", b)
		var o struct {
			Results []struct {
				Status uint64 `cbor:"status"`
				Event  struct {
					Type string `cbor:"eventType"`
				} `cbor:"event"`
			} `cbor:"results"`
		}
		if err := decoding.Unmarshal(answer, &o); err != nil || len(o.Results) != 3 {
			t.Fatalf("%v in %q", err, answer)
		}
		for j, r := range o.Results {
			if r.Status != want[j] {
				t.Errorf("time %d, event %d: %+v", i+1, j, r)
			}
		}
	}
}

// Nobody sees runs, hooks and streams of another project.
func TestTenancy(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.begin()
	s.post(map[string]any{"eventType": "hook_created", "specVersion": 7, "correlationId": "hook_1", "hookToken": "t"}, "")
	for _, path := range []string{"/v4/runs/" + testRun + "/events", "/v2/runs/" + testRun, "/v2/runs/" + testRun + "/steps", "/v2/hooks/by-token?token=t", "/v2/hooks/hook_1", "/v2/runs/" + testRun + "/streams/x/info",
		"/v2/analytics/runs/" + testRun, "/v2/analytics/runs/" + testRun + "/events", "/v2/analytics/hooks?runId=" + testRun} {
		own, _ := s.do("GET", serverBase+path, nil)
		other, _ := s.do("GET", serverBase+path, nil, "Authorization", "Bearer prj_b")
		if own.StatusCode != 200 || other.StatusCode != 404 {
			t.Errorf("%s: %s, and for others %s", path, own.Status, other.Status)
		}
	}
	frame, err := appendFrame(nil, map[string]any{"eventType": "run_cancelled", "specVersion": 7}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp, b := s.do("POST", serverBase+"/v4/runs/"+testRun+"/events/run_cancelled", frame, "Authorization", "Bearer prj_b"); resp.StatusCode != 404 {
		t.Errorf("cancelled by others: %s %s", resp.Status, b)
	}
}

// Streams are read while they are written, by index, and end when they are closed.
func TestStreams(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const name = "strm_01M8BS00000000000000000000_user"
	read := make(chan string, 1)
	go func() {
		_, b := s.do("GET", serverBase+"/v2/stream/"+name+"?startIndex=1", nil) // before there is a run
		read <- string(b)
	}()
	s.begin()
	put := func(body string, head ...string) {
		t.Helper()
		if resp, b := s.do("PUT", serverBase+"/v2/runs/"+testRun+"/stream/"+name, []byte(body), head...); resp.StatusCode >= 300 {
			t.Fatalf("%s: %s", resp.Status, b)
		}
	}
	put("a")
	put("\x00\x00\x00\x01b\x00\x00\x00\x00\x00\x00\x00\x02cc", "X-Stream-Multi", "true") // with one without bytes
	put("")                                                                              // no chunk
	lost, err := http.NewRequestWithContext(t.Context(), "PUT", s.server.URL+serverBase+"/v2/runs/"+testRun+"/stream/"+name, io.NopCloser(strings.NewReader("")))
	if err != nil {
		t.Fatal(err)
	}
	lost.ContentLength = -1 // as of a client that has lost the body
	lost.Header.Set("Authorization", "Bearer prj_a")
	resp, err := http.DefaultClient.Do(lost)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body.Close(); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("a write that has lost its body: %s", resp.Status)
	}
	put("", "X-Stream-Done", "true")
	put("", "X-Stream-Done", "true") // twice is fine
	if got := <-read; got != "bcc" {
		t.Errorf("read %q", got)
	}
	if _, b := s.do("GET", serverBase+"/v3/runs/"+testRun+"/stream/"+name+"?startIndex=-1", nil); string(b) != "cc" {
		t.Errorf("the last is %q", b)
	}
	var info struct {
		Tail int  `cbor:"tailIndex"`
		Done bool `cbor:"done"`
	}
	_, b := s.do("GET", serverBase+"/v2/runs/"+testRun+"/streams/"+name+"/info", nil)
	if err := decoding.Unmarshal(b, &info); err != nil || info.Tail != 2 || !info.Done {
		t.Errorf("%+v: %v", info, err)
	}
	if _, b := s.do("GET", serverBase+"/v2/runs/"+testRun+"/streams", nil); string(bytes.TrimSpace(b)) != `["`+name+`"]` {
		t.Errorf("streams: %s", b)
	}
}

// A message is delivered to the app of its deployment with what the SDK needs to take it,
// and is gone when the app acknowledges.
func TestQueue(t *testing.T) {
	t.Parallel()
	s := newService(t)
	type delivery struct {
		path string
		head http.Header
		body string
	}
	got := make(chan delivery, 10)
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery == "__health" {
			io.WriteString(w, `{"healthy":true}`)
			return
		}
		b, _ := io.ReadAll(r.Body)
		got <- delivery{r.URL.Path, r.Header, string(b)}
		receipt := r.Header.Get("ce-vqsreceipthandle")
		req, err := http.NewRequestWithContext(r.Context(), "DELETE", s.server.URL+queueBase+"/topic/t/consumer/default/lease/"+receipt, nil)
		if err != nil {
			t.Error(err)
			return
		}
		req.Header.Set("Authorization", "Bearer prj_a")
		resp, err := http.DefaultClient.Do(req)
		if err != nil || resp.StatusCode != http.StatusNoContent {
			t.Error(resp, err)
			return
		}
		resp.Body.Close()
	}))
	defer app.Close()
	const topic = "/topic/__wkf_step_step---w--s"
	publish := []string{"Vqs-Deployment-Id", "dpl_1", "Vqs-Idempotency-Key", "k", "Content-Type", "application/cbor", "X-Vercel-Workflow-Run-Id", testRun}
	var first, second struct {
		ID string `json:"messageId"`
	}
	_, b := s.do("POST", queueBase+topic, []byte("hello"), publish...)
	_, again := s.do("POST", proxyBase+"/api/v3"+topic, []byte("hello"), publish...)
	if err := json.Unmarshal(b, &first); err != nil || json.Unmarshal(again, &second) != nil || first.ID == "" || first.ID != second.ID {
		t.Errorf("%s, %s", b, again)
	}
	var waiting struct{ Items []workflow.Delivery }
	_, b = s.do("GET", "/v1/workflows/messages?run="+testRun, nil)
	if err := json.Unmarshal(b, &waiting); err != nil || len(waiting.Items) != 1 || waiting.Items[0].ID != first.ID || waiting.Items[0].Attempt != 0 {
		t.Errorf("what waits for the app: %s", b)
	}
	if _, b := s.do("GET", "/v1/workflows/messages?run="+testRun, nil, "Authorization", "Bearer prj_b"); !strings.Contains(string(b), `"items":[]`) {
		t.Errorf("others see %s", b)
	}
	reg, err := json.Marshal(map[string]string{"url": app.URL, "secret": "0123456789abcdef"})
	if err != nil {
		t.Fatal(err)
	}
	if resp, b := s.do("PUT", "/v1/workflows/deployments/dpl_1", reg, "Content-Type", "application/json"); resp.StatusCode != 200 || strings.Contains(string(b), "0123456789abcdef") {
		t.Fatalf("%s: %s", resp.Status, b)
	}
	d := <-got
	if d.path != "/.well-known/workflow/v1/step" || d.body != "hello" || d.head.Get("X-Cay-Delivery") != "0123456789abcdef" ||
		d.head.Get("Content-Type") != "application/cbor" || d.head.Get("ce-vqsmessageid") != first.ID || d.head.Get("ce-vqsdeliverycount") != "1" {
		t.Errorf("it got %+v", d)
	}
	if resp, b := s.do("GET", apiBase+"/resolve-latest-deployment/dpl_0", nil); string(bytes.TrimSpace(b)) != `{"id":"dpl_1"}` {
		t.Errorf("%s: %s", resp.Status, b)
	}
	other := httptest.NewServer(http.NotFoundHandler()) // it is no app
	defer other.Close()
	for _, url := range []string{other.URL, "http://127.0.0.1:1", "http://169.254.169.254"} {
		reg := []byte(`{"url":"` + url + `","secret":"0123456789abcdef"}`)
		if resp, b := s.do("PUT", "/v1/workflows/deployments/dpl_2", reg, "Content-Type", "application/json"); resp.StatusCode != 409 {
			t.Errorf("%s registers: %s %s", url, resp.Status, b)
		}
	}
	for _, bad := range []string{`{"url":"ftp://127.0.0.1","secret":"0123456789abcdef"}`, `{"url":"http://u@127.0.0.1","secret":"0123456789abcdef"}`, `{"url":"http://127.0.0.1","secret":"x"}`} {
		if resp, _ := s.do("PUT", "/v1/workflows/deployments/dpl_1", []byte(bad), "Content-Type", "application/json"); resp.StatusCode != 400 {
			t.Errorf("%s: %s", bad, resp.Status)
		}
	}
}

// What is no app, or not there, is told from an app that fails.
func TestPush(t *testing.T) {
	t.Parallel()
	p := NewPusher()
	defer p.Close()
	status := http.StatusOK
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	defer app.Close()
	for s, want := range map[int]error{200: nil, 400: nil, 404: queue.ErrUnreachable, 502: queue.ErrUnreachable, 401: queue.ErrUnreachable, 500: errAny} {
		status = s
		err := p.Push(t.Context(), queue.Deployment{URL: app.URL}, queue.Message{Topic: "t"})
		if want == errAny && (err == nil || is(err, queue.ErrUnreachable)) || want != errAny && !is(err, want) {
			t.Errorf("status %d: %v", s, err)
		}
	}
	for _, url := range []string{"http://127.0.0.1:1", "http://169.254.169.254", "http://0.0.0.0"} {
		if err := p.Push(t.Context(), queue.Deployment{URL: url}, queue.Message{Topic: "t"}); !is(err, queue.ErrUnreachable) {
			t.Errorf("%s: %v", url, err)
		}
	}
}

var errAny = errors.New("any")

func is(err, want error) bool {
	return want == nil && err == nil || want != nil && errors.Is(err, want)
}

func FuzzFrame(f *testing.F) {
	frame, err := appendFrame(nil, object{"eventType": "run_created", "specVersion": 7}, []byte("devl[]"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(frame)
	f.Add(append(frame, frame[:7]...))
	f.Add([]byte{255, 255, 255, 255, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		for len(b) > 0 {
			var m meta
			body, rest, err := takeFrame(b, &m)
			if err != nil {
				return
			}
			if len(rest) >= len(b) {
				t.Fatal("it does not end")
			}
			if _, err := entryOf(&m, body); err == nil && m.EventType == "run_created" {
				t.Error("a run is created as an event of one")
			}
			b = rest
		}
	})
}
