package workflowd_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/api/apitest"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db/pgtest"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/workflow"
)

const watchPatience = 2 * time.Minute

// changeLine is a line in the form that programs without the SDK read.
type changeLine struct {
	Type string
	ID   string
	Run  map[string]any
}

// feedLines reads the lines of a streaming answer.
type feedLines struct {
	t    *testing.T
	scan *bufio.Scanner
}

// openFeed requests changes like a program without the SDK. It returns the answer's
// status, and its lines if the status is 200. They end with the test, or with a call of
// end.
func (s *served) openFeed(t *testing.T, token, query string) (status int, lines *feedLines, end func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), watchPatience)
	req, err := http.NewRequestWithContext(ctx, "GET", s.server.URL+"/v1/workflows/runs/changes?"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := s.server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	end = func() {
		cancel()
		resp.Body.Close()
	}
	t.Cleanup(end)
	if resp.StatusCode == http.StatusOK && resp.Header.Get("Content-Type") != "application/x-ndjson" {
		t.Errorf("it is %s", resp.Header.Get("Content-Type"))
	}
	return resp.StatusCode, &feedLines{t, bufio.NewScanner(resp.Body)}, end
}

// next returns the next line that is not a heartbeat, unchanged.
func (l *feedLines) next() string {
	l.t.Helper()
	for l.scan.Scan() {
		if line := l.scan.Text(); line != "" {
			return line
		}
	}
	l.t.Fatalf("the feed has ended: %v", l.scan.Err())
	return ""
}

// told is next, but skips the "missed" that an engine reports when it begins to share its
// database.
func (l *feedLines) told() string {
	l.t.Helper()
	for {
		if line := l.next(); line != `{"type":"missed"}` {
			return line
		}
	}
}

func (l *feedLines) change() (c changeLine) {
	l.t.Helper()
	line := l.next()
	if err := json.Unmarshal([]byte(line), &c); err != nil {
		l.t.Fatalf("%s: %v", line, err)
	}
	return c
}

func onBothStores(t *testing.T, test func(t *testing.T, s *served)) {
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		test(t, serve(t))
	})
	t.Run("Postgres", func(t *testing.T) {
		t.Parallel()
		test(t, serveEngine(t, openShared(t, pgtest.DSN(t), workflowd.Config{})))
	})
}

func TestWatch_Lines(t *testing.T) {
	t.Parallel()
	onBothStores(t, func(t *testing.T, s *served) {
		_, lines, _ := s.openFeed(t, "prj_a", "attribute=$agent&workflow=chat")
		if line := lines.next(); line != `{"type":"ready"}` {
			t.Errorf("the first line is %s", line)
		}
		a, b := s.dial(t, "prj_a", ""), s.dial(t, "prj_b", "")
		// Changes of another project, and changes that the query does not select, are not
		// reported.
		for _, other := range []workflow.Backend{b, a} {
			p := workflow.NewRun{Workflow: "chat", Attributes: map[string]string{"$agent": "x"}}
			if other == a {
				p.Workflow = "order"
			}
			if _, _, err := other.CreateRun(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.PutSchedule(t.Context(), workflow.Schedule{ID: "theirs", Workflow: "chat", Cron: "0 3 * * *"}); err != nil {
			t.Fatal(err)
		}
		run, _, err := a.CreateRun(t.Context(), workflow.NewRun{Workflow: "chat", Input: []byte(`json{"secret":1}`), Attributes: map[string]string{"$agent": "coder"}})
		if err != nil {
			t.Fatal(err)
		}
		line := lines.told()
		var c changeLine
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatal(err)
		}
		_, body := s.request(t, "GET", "/v1/workflows/runs/"+run.ID, "", nil)
		var listed map[string]any
		if err := json.Unmarshal([]byte(body), &listed); err != nil {
			t.Fatal(err)
		}
		if c.Type != "changed" || c.ID != run.ID || fmt.Sprint(c.Run) != fmt.Sprint(listed) || strings.Contains(line, "secret") {
			t.Errorf("the line is %s, the run %s", line, body)
		}
		apitest.Content(t, "a line of watchRuns", mustSpec(t).Paths.Find("/v1/workflows/runs/changes").Get.Responses.Status(200).Value.Content, "application/x-ndjson", []byte(line))
		if _, err := a.CancelRun(t.Context(), run.ID, workflow.CancelParams{}); err != nil {
			t.Fatal(err)
		}
		if line := lines.told(); !strings.Contains(line, `"type":"changed"`) || !strings.Contains(line, `"status":"cancelled"`) {
			t.Errorf("then it says %s", line)
		}
		if err := a.DeleteRun(t.Context(), run.ID); err != nil {
			t.Fatal(err)
		}
		if line := lines.told(); line != `{"type":"deleted","id":"`+run.ID+`"}` {
			t.Errorf("at last it says %s", line)
		}
	})
}

func TestWatch_Refused(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for query, want := range map[string]int{"project=prj_b": 404, "status=odd": 400, "attribute==x": 400, "limit=3": 400, "project=none": 404} {
		if status, _, _ := s.openFeed(t, "prj_a", query); status != want {
			t.Errorf("%s: %d, want %d", query, status, want)
		}
	}
	if status, _, _ := s.openFeed(t, "", ""); status != http.StatusUnauthorized {
		t.Errorf("without a token: %d", status)
	}
	if status, lines, _ := s.openFeed(t, "team", "project=prj_b"); status != 200 || lines.change().Type != "ready" {
		t.Errorf("a token of the team: %d", status)
	}
}

// Many clients watch at a time. When there are too many watches, a new watch is refused
// until a client has left, in whatever way.
func TestWatch_ManyReaders(t *testing.T) {
	t.Parallel()
	s := serve(t)
	const most = 64
	var all []*feedLines
	var ends []func()
	for range most {
		status, lines, end := s.openFeed(t, "prj_a", "")
		if status != http.StatusOK || lines.change().Type != "ready" {
			t.Fatalf("reader %d: %d", len(all), status)
		}
		all, ends = append(all, lines), append(ends, end)
	}
	if status, _, _ := s.openFeed(t, "prj_a", ""); status != http.StatusTooManyRequests {
		t.Errorf("one more: %d", status)
	}
	if status, _, _ := s.openFeed(t, "prj_b", ""); status != http.StatusOK {
		t.Errorf("one of another project: %d", status)
	}
	run, _, err := s.engine.For("prj_a").CreateRun(t.Context(), workflow.NewRun{Workflow: "order"})
	if err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	for _, lines := range all {
		reading.Go(func() {
			for lines.scan.Scan() {
				if strings.Contains(lines.scan.Text(), run.ID) {
					return
				}
			}
			t.Errorf("a reader heard nothing: %v", lines.scan.Err())
		})
	}
	reading.Wait()
	for _, end := range ends[:most/2] {
		end()
	}
	deadline := time.Now().Add(watchPatience)
	for had := 0; had < most/2; {
		status, _, _ := s.openFeed(t, "prj_a", "")
		if status == http.StatusOK {
			had++
		} else if time.Now().After(deadline) {
			t.Fatalf("%d of %d places that were given up can be had: %d", had, most/2, status)
		}
	}
	if status, _, _ := s.openFeed(t, "prj_a", ""); status != http.StatusTooManyRequests {
		t.Errorf("one more again: %d", status)
	}
}

// A reader that pauses then gets the latest states, or Missed.
func TestWatch_SlowReader(t *testing.T) {
	checktest.Long(t)
	t.Parallel()
	s := serve(t)
	_, lines, _ := s.openFeed(t, "prj_a", "")
	b := s.engine.For("prj_a")
	// The changes exceed the buffer of one watch: some 10 MB, of which the connection
	// holds 4 MB even if the reader is slow.
	const runs = 4000
	large := map[string]string{"a": strings.Repeat("x", 1024), "b": strings.Repeat("y", 1024)}
	var last string
	var creating sync.WaitGroup
	ids := make([]string, runs)
	for part := range 8 {
		creating.Go(func() {
			for i := part; i < runs; i += 8 {
				run, _, err := b.CreateRun(t.Context(), workflow.NewRun{Workflow: "w", Attributes: large})
				if err != nil {
					t.Error(err)
					return
				}
				ids[i] = run.ID
			}
		})
	}
	creating.Wait()
	run, _, err := b.CreateRun(t.Context(), workflow.NewRun{Workflow: "last"})
	if err != nil {
		t.Fatal(err)
	}
	last = run.ID
	known := make(map[string]bool)
	missed := false
	for !known[last] {
		switch c := lines.change(); c.Type {
		case "changed":
			known[c.ID] = true
		case "missed":
			missed = true
			for cursor, more := "", true; more; {
				page, err := b.ListRuns(t.Context(), workflow.Query{Cursor: cursor, Limit: 1000})
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range page.Items {
					known[r.ID] = true
				}
				cursor, more = page.Cursor, page.Cursor != ""
			}
		}
	}
	if i := slices.IndexFunc(ids, func(id string) bool { return !known[id] }); i >= 0 || !missed {
		t.Errorf("missed: %t; run %d is not known", missed, i)
	}
}

// A watch through the SDK survives broken connections and restarts of the daemon, and
// reports Ready each time.
func TestWatch_Reconnects(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "workflows.db")
	var now atomic.Pointer[api.Mux]
	begin := func() (*workflowd.Engine, func()) {
		e := open(t, path, workflowd.Config{})
		mux := api.NewMux(tokens{})
		routes := workflowd.NewRoutes(mux, e, tokens{})
		now.Store(mux)
		return e, func() {
			routes.Close()
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	first, end := begin()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		api.Log(slog.New(slog.DiscardHandler), now.Load()).ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	wire := cutter(t, server.Listener.Addr().String())
	c := workflow.NewClient(wire.dial(t), workflow.ClientOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	step := 0
	var run *workflow.RunInfo
	for change, err := range c.Watch(ctx, workflow.Query{}) {
		if err != nil {
			t.Fatalf("after step %d: %v", step, err)
		}
		switch {
		case change.Type == workflow.ChangeReady && step == 0:
			wire.cut()
		case change.Type == workflow.ChangeReady && step == 1:
			if run, _, err = first.For("prj_a").CreateRun(ctx, workflow.NewRun{Workflow: "order"}); err != nil {
				t.Fatal(err)
			}
		case change.Type == workflow.ChangeRun && step == 2 && change.ID == run.ID:
			end()
			var second *workflowd.Engine
			second, end = begin()
			first = second
			defer end()
		case change.Type == workflow.ChangeReady && step >= 3: // the wire may have been cut once more
			if _, err := first.For("prj_a").CancelRun(ctx, run.ID, workflow.CancelParams{}); err != nil {
				t.Fatal(err)
			}
		case change.Type == workflow.ChangeRun && step >= 4:
			if change.Run.ID != run.ID || change.Run.Status != workflow.StatusCancelled {
				t.Errorf("at last it says %+v", change.Run)
			}
			return
		default:
			t.Fatalf("at step %d: %+v", step, change)
		}
		step++
	}
}

// Changes that other processes make to runs, hooks and schedules are reported.
func TestWatch_Elsewhere(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	here, there := openShared(t, dsn, workflowd.Config{}), openShared(t, dsn, workflowd.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	watch := func(project string) (read func() workflow.RunChange) {
		r, err := here.For(project).WatchRuns(ctx, workflow.Query{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		var have []workflow.RunChange
		return func() workflow.RunChange {
			t.Helper()
			for len(have) == 0 {
				if have, err = r.ReadChanges(ctx); err != nil {
					t.Fatal(err)
				}
			}
			c := have[0]
			have = have[1:]
			return c
		}
	}
	ours := watch("p")
	if c := ours(); c.Type != workflow.ChangeReady {
		t.Fatalf("first %+v", c)
	}
	until := func(what string, is func(c workflow.RunChange) bool) {
		t.Helper()
		for {
			c := ours()
			if is(c) {
				return
			}
			if c.Type == workflow.ChangeRun && c.Run.Project != "p" {
				t.Fatalf("until %s: another project's %+v", what, c.Run)
			}
		}
	}
	// Until the two processes know of each other, changes are not reported, but Missed
	// is.
	b := there.For("p")
	if _, _, err := there.For("q").CreateRun(ctx, workflow.NewRun{Workflow: "order"}); err != nil {
		t.Fatal(err)
	}
	run, _, err := b.CreateRun(ctx, workflow.NewRun{Workflow: "order"})
	if err != nil {
		t.Fatal(err)
	}
	until("a run is made", func(c workflow.RunChange) bool {
		return c.Type == workflow.ChangeMissed || c.Type == workflow.ChangeRun && c.ID == run.ID
	})
	if _, err := b.CancelRun(ctx, run.ID, workflow.CancelParams{}); err != nil {
		t.Fatal(err)
	}
	until("it is cancelled", func(c workflow.RunChange) bool {
		return c.Type == workflow.ChangeMissed || c.Type == workflow.ChangeRun && c.ID == run.ID && c.Run.Status == workflow.StatusCancelled
	})
	if err := b.DeleteRun(ctx, run.ID); err != nil {
		t.Fatal(err)
	}
	until("it is deleted", func(c workflow.RunChange) bool { return c.Type == workflow.ChangeMissed })
	if _, err := b.PutSchedule(ctx, workflow.Schedule{ID: "nightly", Workflow: "order", Cron: "0 3 * * *"}); err != nil {
		t.Fatal(err)
	}
	until("a schedule is put", func(c workflow.RunChange) bool { return c.Type == workflow.ChangeSchedules })
}

func TestCounts_PlainHTTP(t *testing.T) {
	t.Parallel()
	onBothStores(t, func(t *testing.T, s *served) {
		for _, project := range []string{"prj_a", "prj_a", "prj_b"} {
			if _, _, err := s.engine.For(project).CreateRun(t.Context(), workflow.NewRun{Workflow: "order", Attributes: map[string]string{"$agent": "x"}}); err != nil {
				t.Fatal(err)
			}
		}
		for query, want := range map[string]string{
			"":                                  `{"counts":{"cancelled":{"count":0},"completed":{"count":0},"failed":{"count":0},"pending":{"count":2},"running":{"count":0}}}`,
			"?status=pending&status=failed":     `{"counts":{"failed":{"count":0},"pending":{"count":2}}}`,
			"?attribute=$agent&status=pending":  `{"counts":{"pending":{"count":2}}}`,
			"?attribute=$agents&status=pending": `{"counts":{"pending":{"count":0}}}`,
			"?workflow=chat&status=pending":     `{"counts":{"pending":{"count":0}}}`,
		} {
			if status, body := s.request(t, "GET", "/v1/workflows/runs/counts"+query, "", nil); status != http.StatusOK || strings.TrimSpace(body) != want {
				t.Errorf("%s: %d %s, want %s", query, status, body, want)
			}
		}
		for _, query := range []string{"?limit=3", "?status=odd", "?attribute=", "?cursor=x"} {
			if status, body := s.request(t, "GET", "/v1/workflows/runs/counts"+query, "", nil); status != http.StatusBadRequest {
				t.Errorf("%s: %d %s", query, status, body)
			}
		}
	})
}

func TestSchedules_Patch(t *testing.T) {
	t.Parallel()
	s := serve(t)
	const path = "/v1/workflows/schedules/nightly"
	if status, body := s.request(t, "PATCH", path, `{"paused": true}`, nil); status != http.StatusNotFound {
		t.Errorf("one that is not there: %d %s", status, body)
	}
	if status, body := s.request(t, "PUT", path, `{"workflow": "order", "cron": "0 3 * * *", "input": {"json": 1}}`, nil); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	if status, body := s.request(t, "PATCH", path, `{"paused": true}`, nil); status != http.StatusOK ||
		!strings.Contains(body, `"paused":true`) || !strings.Contains(body, `"cron":"0 3 * * *"`) || !strings.Contains(body, `"input":{"json":1}`) {
		t.Errorf("paused: %d %s", status, body)
	}
	for _, bad := range []string{`{"cron": "never"}`, `{"zone": "Nowhere"}`, `{"pause": true}`, `{"paused": 1}`} {
		if status, body := s.request(t, "PATCH", path, bad, nil); status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", bad, status, body)
		}
	}
	_, err := s.dial(t, "prj_b", "").UpdateSchedule(t.Context(), "nightly", workflow.ScheduleUpdate{})
	if cay.CodeOf(err) != cay.NotFound {
		t.Errorf("by another project: %v", err)
	}
}
