package vercelsandbox

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

var tokenA = sandboxtest.ProjectA.TokenID

// paths are requests for all routes, with ids of objects that do not exist.
func paths(t *testing.T) (all [][2]string) {
	t.Helper()
	mux := api.NewMux(callers{})
	Routes(mux, Config{})
	names := strings.NewReplacer(
		"{sid}", "ses_00000000000000000000", "{id}", "sbx_00000000000000000000", "{cmd}", "cmd_00000000000000000000",
		"{snapshot}", "snap_00000000000000000000", "{action}", "fork", v1Host, "/",
	)
	for _, r := range mux.Routes() {
		method, path, ok := strings.Cut(r, " ")
		if !ok || strings.HasSuffix(path, "/health") || strings.HasSuffix(path, ".mjs") {
			continue
		}
		path = names.Replace(path)
		for _, v := range []string{"{name}", "{drive}", "{team}", "{project}"} {
			path = strings.ReplaceAll(path, v, "nothing")
		}
		all = append(all, [2]string{method, path})
	}
	return all
}

// Requests without a valid token find nothing.
func TestNoToken(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for _, p := range paths(t) {
		for _, token := range []string{"", "tok_none"} {
			if a := s.do(t, token, p[0], p[1], ""); a.status != http.StatusUnauthorized || a.text("error.code") == "" {
				t.Errorf("%s %s with token %q: %d %s", p[0], p[1], token, a.status, a.body)
			}
		}
	}
}

// All routes below /api also exist at the root, except for the older protocol's.
func TestBothRoots(t *testing.T) {
	t.Parallel()
	mux := api.NewMux(callers{})
	Routes(mux, Config{})
	has := map[string]bool{}
	for _, r := range mux.Routes() {
		has[r] = true
	}
	n := 0
	for r := range has {
		method, path, _ := strings.Cut(r, " ")
		below, ok := strings.CutPrefix(path, "/api")
		if !ok {
			continue
		}
		n++
		if strings.HasPrefix(below, "/v1/sandboxes") {
			below = v1Host + below
		}
		if !has[method+" "+below] {
			t.Errorf("there is %s, but not %s %s", r, method, below)
		}
	}
	if n < 45 {
		t.Errorf("only %d routes are below /api", n)
	}
}

// At the root, the older protocol's paths belong to our own API, except at the
// protocol's host.
func TestNativeAtRoot(t *testing.T) {
	t.Parallel()
	s := serve(t)
	s.must(t, tokenA, "POST", "/api/v3/sandboxes", `{"name":"box"}`)
	if a := s.must(t, tokenA, "GET", "/v1/sandboxes", ""); a.text("items.0.name") != "box" {
		t.Errorf("GET /v1/sandboxes: %s", a.body)
	}
	if a := s.must(t, tokenA, "GET", "//v1/sandboxes", ""); a.text("sandboxes.0.sourceSandboxName") != "box" {
		t.Errorf("GET /v1/sandboxes of %s: %s", v1Host, a.body)
	}
}

// Another team's or project's objects are not found, by id or by name.
func TestScope(t *testing.T) {
	t.Parallel()
	s := serve(t)
	const body = `{"projectId":"prj_a","name":"box"}`
	box := s.must(t, sandboxtest.TeamA.TokenID, "POST", "/api/v3/sandboxes?teamId=team_a", body)
	sid := box.text("session.id")
	snap := s.must(t, tokenA, "POST", named+"sessions/"+sid+"/snapshot", "").text("snapshot.id")
	s.must(t, tokenA, "POST", named+"drives/data", `{}`)
	sb, err := s.Engine.Get(sandboxtest.As(t.Context(), sandboxtest.TeamA), "box")
	if err != nil {
		t.Fatal(err)
	}
	objects := []string{
		named + "box", named + "sessions/" + sid, named + "snapshots/" + snap, named + "drives/data",
		"/api/v1/sandboxes/" + sb.ID, "/api/v1/sandboxes/" + sid, "/api/v1/sandboxes/snapshots/" + snap,
	}
	for _, o := range objects {
		for _, token := range []string{sandboxtest.TeamB.TokenID, sandboxtest.ProjectB.TokenID, sandboxtest.ProjectA2.TokenID, operator.TokenID} {
			s.refused(t, token, "GET", o, "", http.StatusNotFound, codeNotFound)
		}
		s.refused(t, tokenA, "GET", o+"?projectId=prj_a2", "", http.StatusNotFound, codeNotFound)
		s.refused(t, sandboxtest.TeamB.TokenID, "GET", o+"?teamId=team_a", "", http.StatusForbidden, "forbidden")
		for _, q := range []string{"", "?teamId=team_a", "?slug=name-team_a&projectId=name-prj_a", "?teamId=name-team_a&project=prj_a"} {
			if a := s.do(t, tokenA, "GET", o+q, ""); a.status != http.StatusOK {
				t.Errorf("GET %s: %d %s", o+q, a.status, a.body)
			}
		}
		if a := s.do(t, operator.TokenID, "GET", o+"?teamId=name-team_a&projectId=prj_a", ""); a.status != http.StatusOK {
			t.Errorf("GET %s as operator: %d %s", o, a.status, a.body)
		}
	}
	// Lists of others are empty.
	for _, l := range []string{"/api/v2/sandboxes", named + "sessions", named + "snapshots", named + "drives", "/api/v1/sandboxes", "/api/v1/sandboxes/snapshots"} {
		if a := s.must(t, sandboxtest.ProjectA2.TokenID, "GET", l, ""); a.at("pagination.count") != 0.0 {
			t.Errorf("GET %s of another project: %s", l, a.body)
		}
		if a := s.must(t, sandboxtest.TeamA.TokenID, "GET", l+"?project=name-prj_a&projectId=prj_a", ""); a.at("pagination.count") != 1.0 {
			t.Errorf("GET %s: %s", l, a.body)
		}
	}
	// The same name is free in another project.
	s.must(t, sandboxtest.TeamA.TokenID, "POST", "/api/v3/sandboxes", `{"projectId":"prj_a2","name":"box"}`)
	s.refused(t, tokenA, "POST", "/api/v3/sandboxes", `{"projectId":"prj_a2"}`, http.StatusNotFound, codeNotFound)
}

// A slow answer begins before its result is known.
func TestPadding(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, body string
		fails      bool
	}{
		{"Success", `{"name":"box"}`, false},
		{"Failure", `{"image":"missing-later"}`, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			goOn := make(chan struct{})
			s := serve(t, func(cfg *Config) {
				cfg.HeaderDelay = time.Millisecond
				cfg.Sandboxes = slow{cfg.Sandboxes, goOn, c.fails}
			})
			r, err := http.NewRequestWithContext(t.Context(), "POST", s.url+"/api/v3/sandboxes", strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+tokenA)
			resp, err := s.client.Do(r) // returns with the headers
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "application/json" {
				t.Errorf("headers: %d %q", resp.StatusCode, resp.Header.Get("Content-Type"))
			}
			body := bufio.NewReader(resp.Body)
			for range 3 {
				if b, err := body.ReadByte(); err != nil || b != ' ' {
					t.Fatalf("padding %q: %v", b, err)
				}
			}
			close(goOn)
			rest, err := io.ReadAll(body)
			if c.fails {
				if err == nil {
					t.Errorf("the answer ends as if it were whole: %q", rest)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			a := answer{resp.StatusCode, resp.Header, rest}
			if checkAnswer(t, "POST", a); a.text("sandbox.name") != "box" {
				t.Errorf("body %q", rest)
			}
		})
	}
}

// slow creates a sandbox when the test tells it to, or fails then.
type slow struct {
	Sandboxes
	goOn  <-chan struct{}
	fails bool
}

func (s slow) Create(ctx context.Context, p sandbox.CreateParams) (*sandbox.Sandbox, error) {
	select {
	case <-s.goOn:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.fails {
		return nil, cay.Errorf(cay.NotFound, "image %q not found", p.Image)
	}
	return s.Sandboxes.Create(ctx, p)
}

// When a handler panics after its padding began, the padding stops.
func TestPadding_Panic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &handler{Config: Config{HeaderDelay: time.Second}}
		w := &counting{ResponseRecorder: httptest.NewRecorder()}
		func() {
			defer func() { _ = recover() }()
			_ = h.padded(w, httptest.NewRequestWithContext(t.Context(), "GET", "/", nil), func(context.Context) (int, any, error) {
				time.Sleep(5500 * time.Millisecond)
				panic("no")
			})
		}()
		n := w.n.Load()
		time.Sleep(time.Minute)
		if now := w.n.Load(); n != 5 || now != n {
			t.Errorf("%d writes, and then %d", n, now)
		}
	})
}

// counting counts writes, and simulates a client that leaves after some.
type counting struct {
	*httptest.ResponseRecorder
	n atomic.Int32
}

func (c *counting) Write(p []byte) (int, error) {
	if c.n.Add(1) > 20 {
		return 0, io.ErrClosedPipe
	}
	return c.ResponseRecorder.Write(p)
}

// A sandbox needs a snapshot that is deleted: clients recreate the sandbox then, but not
// if the snapshot never existed.
func TestSnapshotGone(t *testing.T) {
	t.Parallel()
	s := serve(t)
	box := s.must(t, tokenA, "POST", "/api/v3/sandboxes", `{"name":"box"}`)
	stopped := s.must(t, tokenA, "POST", named+"sessions/"+box.text("session.id")+"/stop", "")
	snap := stopped.text("snapshot.id")
	if snap == "" || stopped.text("sandbox.currentSnapshotId") != snap || stopped.text("sandbox.status") != "stopped" {
		t.Fatalf("stopped: %s", stopped.body)
	}
	from := fmt.Sprintf(`{"source":{"type":"snapshot","snapshotId":%q}}`, snap)
	s.must(t, tokenA, "POST", "/api/v3/sandboxes", from)
	if a := s.must(t, tokenA, "DELETE", named+"snapshots/"+snap, ""); a.text("snapshot.status") != "deleted" {
		t.Errorf("deleted: %s", a.body)
	}
	s.refused(t, tokenA, "POST", "/api/v3/sandboxes", from, http.StatusGone, codeSnapshotNotFound)
	s.refused(t, tokenA, "GET", named+"box?resume=true", "", http.StatusGone, codeSnapshotNotFound)
	s.refused(t, tokenA, "POST", named+"box/fork", `{}`, http.StatusGone, codeSnapshotNotFound)
	if a := s.must(t, tokenA, "GET", named+"box", ""); a.text("session.status") != "stopped" {
		t.Errorf("the sandbox: %s", a.body)
	}
	s.must(t, tokenA, "PATCH", named+"box", `{"currentSnapshotId":""}`)
	s.must(t, tokenA, "GET", named+"box?resume=true", "")
}

// Each stop of a persistent sandbox makes a snapshot, whether or not files have changed,
// and all snapshots stay until they expire, unless keepLastSnapshots says otherwise;
// also after keepLastSnapshots is cleared, and after the sandbox is removed.
func TestSnapshots_EachStop(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		create, update string
		shown          bool // keepLastSnapshots is
		keep           int
	}{
		"by default": {create: `{"name":"box"}`, keep: 5},
		"keepLast":   {create: `{"name":"box","keepLastSnapshots":{"count":2}}`, shown: true, keep: 2},
		"null":       {create: `{"name":"box","keepLastSnapshots":null}`, keep: 5},
		"cleared":    {create: `{"name":"box","keepLastSnapshots":{"count":2}}`, update: `{"keepLastSnapshots":null}`, keep: 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			a := s.must(t, tokenA, "POST", "/api/v3/sandboxes", c.create)
			if c.update != "" {
				a = s.must(t, tokenA, "PATCH", named+"box", c.update)
				a = s.must(t, tokenA, "GET", named+"box", "")
			}
			if shown := strings.Contains(string(a.body), "keepLastSnapshots"); shown != c.shown {
				t.Errorf("keepLastSnapshots is shown: %v, want %v: %s", shown, c.shown, a.body)
			}
			var made []string
			for range 5 {
				s.Clock.Advance(time.Second)
				stopped := s.must(t, tokenA, "POST", named+"sessions/"+a.text("session.id")+"/stop", "")
				made = append(made, stopped.text("snapshot.id"))
				a = s.must(t, tokenA, "GET", named+"box?resume=true", "")
			}
			slices.Sort(made)
			if made = slices.Compact(made); len(made) != 5 {
				t.Errorf("5 stops made the snapshots %q", made)
			}
			kept := func() (n int) {
				for _, id := range made {
					if s.must(t, tokenA, "GET", named+"snapshots/"+id, "").text("snapshot.status") == "created" {
						n++
					}
				}
				return n
			}
			for began := time.Now(); kept() > c.keep; { // thinning out goes on in the background
				if time.Since(began) > time.Minute {
					t.Fatalf("%d snapshots are there, want %d", kept(), c.keep)
				}
			}
			s.must(t, tokenA, "DELETE", named+"box", "")
			if n := kept(); n != c.keep {
				t.Errorf("%d snapshots are left, want %d", n, c.keep)
			}
		})
	}
}

// Concurrent resumes get the same session.
func TestResume_Together(t *testing.T) {
	t.Parallel()
	s := serve(t)
	box := s.must(t, tokenA, "POST", "/api/v3/sandboxes", `{"name":"box","persistent":false}`)
	s.must(t, tokenA, "POST", named+"sessions/"+box.text("session.id")+"/stop", "")
	var all sync.WaitGroup
	var mu sync.Mutex
	sessions := map[string]int{}
	for range 4 {
		all.Go(func() {
			a := s.do(t, tokenA, "GET", named+"box?resume=true", "")
			mu.Lock()
			defer mu.Unlock()
			if a.text("session.status") != "running" {
				t.Errorf("resumed: %s", a.body)
			}
			sessions[a.text("session.id")]++
		})
	}
	all.Wait()
	if len(sessions) != 1 || sessions[box.text("session.id")] != 0 {
		t.Errorf("sessions %v after %s", sessions, box.text("session.id"))
	}
}

// A client that resumes a sandbox while another client creates it gets the running
// sandbox.
func TestResume_Pending(t *testing.T) {
	t.Parallel()
	s := serve(t, func(cfg *Config) { cfg.HeaderDelay = time.Millisecond })
	unblock := s.Images.Block()
	t.Cleanup(unblock)
	var created answer
	var creator sync.WaitGroup
	creator.Go(func() { created = s.do(t, tokenA, "POST", "/api/v3/sandboxes", `{"name":"box"}`) })
	for s.do(t, tokenA, "GET", named+"box", "").text("session.status") != "pending" {
		if t.Context().Err() != nil {
			t.Fatal("the sandbox is never there")
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), "GET", s.url+named+"box?resume=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+tokenA)
	resp, err := s.client.Do(r) // returns with the headers, while it waits
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	unblock()
	body, err := io.ReadAll(resp.Body)
	creator.Wait()
	got := answer{resp.StatusCode, resp.Header, body}
	if err != nil || got.status != http.StatusOK || got.text("session.status") != "running" || got.at("resumed") != false ||
		got.text("session.id") != created.text("session.id") {
		t.Errorf("resumed: %d %s, %v; created: %s", got.status, body, err, created.body)
	}
}

// A session that is stopping has another status than a session that has stopped.
func TestEnding(t *testing.T) {
	t.Parallel()
	status := sandbox.Stopping
	s := serve(t, func(cfg *Config) { cfg.Sandboxes = &ending{cfg.Sandboxes, &status} })
	sid := s.must(t, tokenA, "POST", "/api/v3/sandboxes", `{"name":"box"}`).text("session.id")
	const wait = http.StatusUnprocessableEntity
	s.refused(t, tokenA, "POST", named+"sessions/"+sid+"/extend-timeout", `{"duration":1000}`, wait, codeStopping)
	done := s.h.snapshotting.add(sid)
	s.refused(t, tokenA, "POST", named+"sessions/"+sid+"/extend-timeout", `{"duration":1000}`, wait, codeSnapshotting)
	if a := s.must(t, tokenA, "GET", named+"sessions/"+sid, ""); a.text("session.status") != "snapshotting" {
		t.Errorf("session: %s", a.body)
	}
	done()
	status = sandbox.Stopped
	s.refused(t, tokenA, "POST", named+"sessions/"+sid+"/extend-timeout", `{"duration":1000}`, http.StatusGone, codeStopped)
}

// ending reports a status for every session, and refuses all use of the sandboxes.
type ending struct {
	Sandboxes
	status *sandbox.Status
}

func (e *ending) GetSession(ctx context.Context, id string) (*sandbox.Session, error) {
	s, err := e.Sandboxes.GetSession(ctx, id)
	if err == nil {
		s.Status = *e.status
	}
	return s, err
}

func (e *ending) Extend(context.Context, string, sandbox.Duration) (*sandbox.Sandbox, error) {
	return nil, cay.Errorf(cay.Stopped, "the session has ended")
}

// While a terminal is open, a client can extend to the maximum, and further requests
// wait until the terminal is closed.
func TestExtend_Terminal(t *testing.T) {
	t.Parallel()
	s := serve(t)
	sid := s.must(t, tokenA, "POST", "/api/v3/sandboxes", fmt.Sprintf(`{"name":"box","timeout":%d}`, (sandboxtest.MaxTimeout-time.Minute).Milliseconds())).text("session.id")
	extend := func() answer {
		return s.do(t, tokenA, "POST", named+"sessions/"+sid+"/extend-timeout", `{"duration":300000}`)
	}
	if a := extend(); a.status != http.StatusBadRequest || a.text("error.code") != codeTimeoutInvalid {
		t.Fatalf("without a terminal: %d %s", a.status, a.body)
	}
	done := s.h.terminals.add(sid)
	if a := extend(); a.at("session.timeout") != float64(sandboxtest.MaxTimeout.Milliseconds()) {
		t.Fatalf("with a terminal: %d %s", a.status, a.body)
	}
	held := make(chan answer)
	go func() { held <- extend() }()
	done()
	if a := <-held; a.status != http.StatusGone && a.status != http.StatusBadRequest { // the latter if it was too late to hold
		t.Errorf("after the terminal: %d %s", a.status, a.body)
	}
}

// When the timeout cannot be extended any more, the request is held until the last
// terminal is closed.
func TestExtend_Held(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &handler{Config: Config{MaxTimeout: time.Hour}}
		first, second := h.terminals.add("ses_a"), h.terminals.add("ses_a")
		h.terminals.add("ses_b")
		over := make(chan error)
		go func() {
			over <- h.extendTerminal(t.Context(), &sandbox.Session{ID: "ses_a", Timeout: sandbox.Duration(time.Hour)})
		}()
		for _, done := range []func(){first, second} {
			synctest.Wait()
			select {
			case err := <-over:
				t.Fatalf("let go with a terminal open: %v", err)
			default:
			}
			done()
		}
		if err := <-over; cay.CodeOf(err) != cay.Stopped {
			t.Errorf("let go with %v", err)
		}
		if len(h.terminals.n) != 1 {
			t.Errorf("sessions without terminals are remembered: %v", h.terminals.n)
		}
	})
}

// Lists that go by time leave nothing out, even if several items have the same time.
func TestV1_List(t *testing.T) {
	t.Parallel()
	s := serve(t)
	want := map[string]bool{}
	for i := range 5 {
		want[s.must(t, tokenA, "POST", "/api/v1/sandboxes", `{}`).text("sandbox.id")] = true
		if i%2 == 1 {
			s.Clock.Advance(time.Second)
		}
	}
	all := func(query, cursor, next string) (n int) {
		got := map[string]bool{}
		for {
			a := s.must(t, tokenA, "GET", "/api/v1/sandboxes?limit=1"+query, "")
			for i := range int(a.at("pagination.count").(float64)) {
				id := a.text(fmt.Sprintf("sandboxes.%d.id", i))
				if got[id] || !want[id] {
					t.Errorf("%s is there again, or nobody's", id)
				}
				got[id] = true
			}
			at, ok := a.at("pagination." + next).(float64)
			if !ok || next == "prev" {
				return len(got)
			}
			query = fmt.Sprintf("&%s=%d", cursor, int64(at))
		}
	}
	if n := all("", "until", "next"); n != 5 {
		t.Errorf("%d of 5 sandboxes", n)
	}
	oldest := s.must(t, tokenA, "GET", "/api/v1/sandboxes?limit=5", "").at("sandboxes.4.createdAt").(float64)
	if n := len(s.must(t, tokenA, "GET", fmt.Sprintf("/api/v1/sandboxes?since=%d", int64(oldest)), "").at("sandboxes").([]any)); n != 3 {
		t.Errorf("%d of 3 sandboxes are newer than the oldest", n)
	}
}

// The port for terminals stays when ports change, gives way to a port that the client
// requests, and is listed only with __includeSystemRoutes.
func TestInteractivePort(t *testing.T) {
	t.Parallel()
	s := serve(t)
	box := s.must(t, tokenA, "POST", "/api/v3/sandboxes", `{"name":"box","ports":[23456],"__interactive":true}`)
	for _, c := range []struct {
		ports string
		want  float64
	}{{"", 23457}, {`{"ports":[]}`, 23457}, {`{"ports":[23457,23458]}`, 23459}, {`{"ports":[23457]}`, 23459}} {
		if c.ports != "" {
			s.must(t, tokenA, "PATCH", named+"box", c.ports)
		}
		box = s.must(t, tokenA, "GET", named+"box?__includeSystemRoutes=true", "")
		routes := box.at("routes").([]any)
		last := routes[len(routes)-1].(map[string]any)
		if box.at("session.interactivePort") != c.want || last["port"] != c.want || last["system"] != true {
			t.Errorf("after %q: %s", c.ports, box.body)
		}
		if shown := s.must(t, tokenA, "GET", named+"box", "").at("routes").([]any); len(shown) != len(routes)-1 {
			t.Errorf("after %q: it is shown: %v", c.ports, shown)
		}
	}
	for body, want := range map[string]any{`{}`: nil, `{"ports":[8080],"__interactive":true}`: 23456.0} {
		if fork := s.must(t, tokenA, "POST", named+"box/fork", body); fork.at("session.interactivePort") != want {
			t.Errorf("fork %s: %s", body, fork.body)
		}
	}
}

// Images with the vendor's names are replaced by similar images of ours, unless an image
// was imported under that name.
func TestImages(t *testing.T) {
	t.Parallel()
	h := &handler{Config: Config{HasImage: func(_ context.Context, ref string) (bool, error) {
		return ref == "vercel/sandbox/python:3.14" || ref == "vercel/sandbox/node:22", nil
	}}}
	for _, c := range []struct {
		route, image, runtime string // asked for
		byImage               bool
		wantImage, wantRun    string
		note                  string
	}{
		{"Nothing", "", "", false, "", "", ""},
		{"NothingV3", "", "", true, "", "node24", defaultImage},
		{"Runtime", "", "python3.13", true, "", "python3.13", ""},
		{"Universal", "vercel/sandbox/universal", "", true, "", "node24", "vercel/sandbox/universal"},
		{"Node26", "vercel/sandbox/node:26", "", true, "", "node26", "vercel/sandbox/node:26"},
		{"Imported", "vercel/sandbox/python:3.14", "", true, "vercel/sandbox/python:3.14", "", "vercel/sandbox/python:3.14"},
		{"ImportedWins", "vercel/sandbox/node:22", "", true, "vercel/sandbox/node:22", "", "vercel/sandbox/node:22"},
		{"Other", "alpine:3", "", false, "alpine:3", "", "alpine:3"},
	} {
		t.Run(c.route, func(t *testing.T) {
			p, err := h.params(t.Context(), &createRequest{Image: c.image, Runtime: c.runtime}, c.byImage)
			if err != nil {
				t.Fatal(err)
			}
			if p.Image != c.wantImage || p.Runtime != c.wantRun || p.Annotations[noteImage] != c.note {
				t.Errorf("image %q, runtime %q, noted %q", p.Image, p.Runtime, p.Annotations[noteImage])
			}
		})
	}
	if _, err := h.params(t.Context(), &createRequest{Image: "vercel/sandbox/arch"}, true); cay.CodeOf(err) != cay.Invalid {
		t.Errorf("an image that we have not: %v", err)
	}
}

// The default region among the failover regions is an error only if the client has set
// the region.
func TestRegions(t *testing.T) {
	t.Parallel()
	h := &handler{Config: Config{HasImage: func(context.Context, string) (bool, error) { return false, nil }}}
	for _, c := range []struct{ region, failover, want string }{
		{"", "iad1,sfo1", "sfo1"},
		{"", "iad1", ""},
		{"", "sfo1,cle1", "sfo1,cle1"},
		{"sfo1", "iad1,cle1", "iad1,cle1"},
		{"iad1", "iad1,sfo1", "refused"},
		{"sfo1", "sfo1", "refused"},
	} {
		others := strings.Split(c.failover, ",")
		p, err := h.params(t.Context(), &createRequest{settings: settings{Region: c.region, FailoverRegions: &others}}, true)
		got := p.Annotations[noteFailover]
		if cay.CodeOf(err) == cay.Invalid {
			got = "refused"
		} else if err != nil {
			t.Fatal(err)
		} else if want := cmp.Or(c.region, defaultRegion); p.Annotations[noteRegion] != want {
			t.Errorf("region %q: %q", c.region, p.Annotations[noteRegion])
		}
		if got != c.want {
			t.Errorf("region %q, failover %q: %q, want %q", c.region, c.failover, got, c.want)
		}
	}
}

// A sandbox that a step of a workflow creates records the step; a fork records its own.
func TestStep(t *testing.T) {
	t.Parallel()
	h := &handler{Config: Config{HasImage: func(context.Context, string) (bool, error) { return false, nil }}}
	for _, c := range []struct{ run, step, want string }{
		{"wrun_1", "step_2", "wrun_1 step_2"},
		{"", "", " "},
		{"wrun_1", "", " "},
		{"wrun_1", "a b", " "},
		{strings.Repeat("w", 129), "step_2", " "},
	} {
		header := http.Header{}
		header.Set("X-Cay-Workflow-Run", c.run)
		header.Set("X-Cay-Workflow-Step", c.step)
		var q createRequest
		q.readStep(header)
		p, err := h.params(t.Context(), &q, true)
		if err != nil {
			t.Fatal(err)
		}
		fork, err := q.forkParams(&sandbox.Sandbox{Annotations: map[string]string{noteRun: "wrun_0", noteStep: "step_0", noteRegion: "iad1"}})
		if err != nil {
			t.Fatal(err)
		}
		for name, notes := range map[string]map[string]string{"create": p.Annotations, "fork": fork.Annotations} {
			if got := notes[noteRun] + " " + notes[noteStep]; got != c.want {
				t.Errorf("%s of %q %q: noted %q, want %q", name, c.run, c.step, got, c.want)
			}
		}
	}
}

// Git sources are cloned into the directory that the vendor's clients expect.
func TestSource(t *testing.T) {
	t.Parallel()
	h := &handler{Config: Config{HasImage: func(context.Context, string) (bool, error) { return false, nil }}}
	for _, c := range []struct {
		url, runtime string
		byImage      bool
		dir          string
	}{
		{"https://example.com/a/repo.git", "", true, "repo"},
		{"https://example.com/a/repo/?x=/y", "", true, "repo"},
		{"https://example.com/a/..", "", true, ""},
		{"https://example.com/a/repo.git", "node24", true, ""},
		{"https://example.com/a/repo.git", "", false, ""},
	} {
		q := &createRequest{Runtime: c.runtime, Source: &sourceRequest{Type: "git", URL: c.url, Depth: 1, Revision: "main", Username: "u", Password: "p"}}
		p, err := h.params(t.Context(), q, c.byImage)
		if err != nil {
			t.Fatal(err)
		}
		want := sandbox.Source{Type: sandbox.GitSource, URL: c.url, Dir: c.dir, Depth: 1, Revision: "main", Username: "u", Password: "p"}
		if *p.Source != want {
			t.Errorf("%s: %+v, want %+v", c.url, *p.Source, want)
		}
	}
}

// Every body is accepted or refused, and never causes an internal error.
func FuzzCreate(f *testing.F) {
	for _, body := range []string{
		`{}`, `null`, `{"projectId":"p","name":"n","ports":[1,2],"timeout":1e3,"resources":{"vcpus":2,"memory":4096}}`,
		`{"networkPolicy":{"allow":["a"]},"keepLastSnapshots":{"count":1,"expiration":0},"mounts":{"/a":{"drive":"d","mode":"x"}}}`,
		`{"source":{"type":"git","url":"https://a/b"},"image":"a","__interactive":true}`, `{"resources":{"vcpus":1e308}}`, `{"networkId":null}`,
		`{"resources":{"vcpus":-2}}`, `{"failoverRegions":["a","b"],"region":"a"}`, `{"snapshotExpiration":-1}`,
	} {
		f.Add(body)
	}
	h := &handler{Config: Config{HasImage: func(context.Context, string) (bool, error) { return false, nil }}}
	f.Fuzz(func(t *testing.T, body string) {
		read := func(v any) bool {
			err := readJSON(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "POST", "/", strings.NewReader(body)), v)
			if c := cay.CodeOf(err); err != nil && c != cay.Invalid && c != cay.TooLarge {
				t.Fatalf("read: %v", err)
			}
			return err == nil
		}
		var create createRequest
		if read(&create) {
			p, err := h.params(t.Context(), &create, true)
			if err == nil {
				err = p.Validate()
			}
			if err != nil && cay.CodeOf(err) != cay.Invalid {
				t.Fatalf("create: %v", err)
			}
			fork, err := create.forkParams(&sandbox.Sandbox{})
			if err == nil {
				err = fork.Validate()
			}
			if err != nil && cay.CodeOf(err) != cay.Invalid {
				t.Fatalf("fork: %v", err)
			}
		}
		var update updateRequest
		if read(&update) {
			p, err := update.params(&sandbox.Sandbox{})
			if err == nil {
				err = p.Validate()
			}
			if err != nil && cay.CodeOf(err) != cay.Invalid {
				t.Fatalf("update: %v", err)
			}
		}
	})
}
