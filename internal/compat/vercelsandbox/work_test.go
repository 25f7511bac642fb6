package vercelsandbox

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// work is a service with a running sandbox.
type work struct {
	*service
	t       *testing.T
	ctx     context.Context // as the owner of the sandbox
	sandbox *sandbox.Sandbox
}

func startWork(t *testing.T, change ...func(*Config)) *work {
	t.Helper()
	w := &work{service: serve(t, change...), t: t, ctx: sandboxtest.As(t.Context(), sandboxtest.ProjectA)}
	var err error
	w.sandbox, err = w.Create(w.ctx, sandbox.CreateParams{Image: "image", WorkDir: "/w"})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// terminals returns how many terminals are open in the session.
func (w *work) terminals() int { return w.h.terminals.of(w.sandbox.SessionID) }

// of returns a path below the sandbox's session, v1 a path below the sandbox.
func (w *work) of(path string) string {
	return "/api/v2/sandboxes/sessions/" + w.sandbox.SessionID + path
}
func (w *work) v1(path string) string { return "/api/v1/sandboxes/" + w.sandbox.ID + path }

func (w *work) request(ctx context.Context, method, path string, body io.Reader, header ...string) *http.Response {
	w.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, w.url+path, body)
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+sandboxtest.ProjectA.TokenID)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := w.client.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// do makes a request and returns the whole answer.
func (w *work) do(method, path, body string, header ...string) (int, string) {
	w.t.Helper()
	resp := w.request(w.t.Context(), method, path, strings.NewReader(body), header...)
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	if ct := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK && ct != "application/json" {
		w.t.Errorf("%s %s: an error of type %q", method, path, ct)
	}
	return resp.StatusCode, string(b)
}

// want makes a request whose answer must be 200 and match a golden text, in
// which N matches any number, and ID the id of any command.
func (w *work) want(method, path, body, golden string) string {
	w.t.Helper()
	status, got := w.do(method, path, body)
	if status != http.StatusOK || !like(golden, got) {
		w.t.Fatalf("%s %s: %d\ngot  %swant %s", method, path, status, got, golden)
	}
	return got
}

// refused makes a request whose answer must be an error.
func (w *work) refused(method, path, body string, status int, code string, header ...string) {
	w.t.Helper()
	got, b := w.do(method, path, body, header...)
	var e struct {
		Error struct{ Code, Message string }
	}
	if err := json.Unmarshal([]byte(b), &e); err != nil || got != status || e.Error.Code != code || e.Error.Message == "" {
		w.t.Errorf("%s %s %.200s: %d %s, want %d %s", method, path, body, got, b, status, code)
	}
}

func like(golden, got string) bool {
	p := regexp.QuoteMeta(strings.TrimSpace(golden))
	p = strings.NewReplacer("N", "[0-9]+", "ID", "cmd_[0-9a-z]{20}").Replace(p)
	return regexp.MustCompile("^" + p + "$").MatchString(strings.TrimSpace(got))
}

// start starts a shell script and returns the command's id.
func (w *work) start(script string) string {
	w.t.Helper()
	return w.id(w.want("POST", w.of("/cmd"), shell(script, ""), w.command(script, "null", "")))
}

func (w *work) id(answer string) string {
	w.t.Helper()
	var a commandAnswer
	if err := json.Unmarshal([]byte(strings.SplitN(answer, "\n", 2)[0]), &a); err != nil {
		w.t.Fatal(err)
	}
	return a.Command.ID
}

// shell returns the body that starts a script, with more members.
func shell(script, more string) string {
	return `{"command":"sh","args":["-c",` + quoted(script) + `]` + more + `}`
}

func quoted(s string) string {
	b, err := encode(s)
	if err != nil {
		panic(err)
	}
	return strings.TrimSpace(string(b))
}

// command returns the golden text of a shell script in answers of the session's
// routes.
func (w *work) command(script, exitCode, more string) string {
	return `{"command":{"id":"ID","name":"sh","args":["-c",` + quoted(script) + `],"cwd":"/w","sessionId":"` + w.sandbox.SessionID +
		`","exitCode":` + exitCode + `,"startedAt":N` + more + `}}`
}

func (w *work) commandV1(script, exitCode string) string {
	return strings.Replace(w.command(script, exitCode, ""), `"sessionId":"`+w.sandbox.SessionID, `"sandboxId":"`+w.sandbox.ID, 1)
}

// fifo makes a pipe in the working directory, on which scripts can wait. release
// wakes them.
func (w *work) fifo(name string) (release func()) {
	w.t.Helper()
	w.want("POST", w.of("/cmd"), `{"command":"mkfifo","args":["`+name+`"],"wait":true}`, "{\"command\":{\"id\":\"ID\",\"name\":\"mkfifo\",\"args\":[\""+name+
		"\"],\"cwd\":\"/w\",\"sessionId\":\""+w.sandbox.SessionID+"\",\"exitCode\":null,\"startedAt\":N}}\n{\"command\":{\"id\":\"ID\",\"name\":\"mkfifo\",\"args\":[\""+name+
		"\"],\"cwd\":\"/w\",\"sessionId\":\""+w.sandbox.SessionID+"\",\"exitCode\":0,\"startedAt\":N,\"durationMs\":N}}")
	return func() {
		w.t.Helper()
		// The command may exit before it is described.
		if status, answer := w.do("POST", w.of("/cmd"), shell("echo go > "+name, "")); status != http.StatusOK {
			w.t.Fatalf("%d: %s", status, answer)
		}
	}
}

// stream is an answer that is read line by line.
type stream struct {
	w *work
	*bufio.Reader
	resp *http.Response
}

func (w *work) stream(ctx context.Context, method, path, body string) *stream {
	w.t.Helper()
	resp := w.request(ctx, method, path, strings.NewReader(body))
	if ct := resp.Header["Content-Type"]; resp.StatusCode != http.StatusOK || len(ct) != 1 || ct[0] != "application/x-ndjson" {
		w.t.Fatalf("%s %s: %d %q", method, path, resp.StatusCode, ct)
	}
	return &stream{w, bufio.NewReader(resp.Body), resp}
}

// want reads lines that must match golden ones.
func (s *stream) want(golden ...string) string {
	s.w.t.Helper()
	var all strings.Builder
	for _, g := range golden {
		line, err := s.ReadString('\n')
		for err == nil && line == "\n" {
			line, err = s.ReadString('\n')
		}
		if err != nil || !like(g, line) {
			s.w.t.Fatalf("got  %s, %v\nwant %s", line, err, g)
		}
		all.WriteString(line)
	}
	return all.String()
}

func (s *stream) end() {
	s.w.t.Helper()
	if rest, err := io.ReadAll(s); err != nil || len(rest) > 0 {
		s.w.t.Fatalf("the stream goes on: %q, %v", rest, err)
	}
}
