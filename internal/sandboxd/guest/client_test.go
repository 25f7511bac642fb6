package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/sandbox"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// hostile serves a test's handler in place of an agent.
func hostile(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	c := NewClient(func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	}, "token")
	t.Cleanup(func() {
		c.CloseIdleConnections()
		s.Close()
		<-served
	})
	return c
}

func answer(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, body) }
}

func TestClient_hostileAnswers(t *testing.T) {
	t.Parallel()
	id := NewCommandID()
	endless := func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, `{"boot_id":"`)
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, strings.Repeat("x", 1<<16)); err != nil {
				return
			}
		}
	}
	health := func(c *Client) error { _, err := c.Health(t.Context()); return err }
	stat := func(c *Client) error { _, err := c.Stat(t.Context(), "/a", false); return err }
	list := func(c *Client) error {
		_, err := c.ReadDir(t.Context(), "/a", sandbox.ReadDirParams{Limit: 1})
		return err
	}
	get := func(c *Client) error { _, err := c.GetCommand(t.Context(), id); return err }
	glob := func(c *Client) error { _, err := c.Glob(t.Context(), "/*"); return err }
	entry := func(change func(*FileEntry)) http.HandlerFunc {
		e := FileEntry{Path: []byte("/a"), Name: []byte("a"), Type: sandbox.TypeFile}
		change(&e)
		b, _ := json.Marshal(e)
		return answer(string(b))
	}
	command := func(change func(*sandbox.Command)) http.HandlerFunc {
		cmd := sandbox.Command{ID: id, PID: 1}
		change(&cmd)
		b, _ := json.Marshal(cmd)
		return answer(string(b))
	}
	for name, tt := range map[string]struct {
		serve http.HandlerFunc
		call  func(*Client) error
	}{
		"no JSON":          {answer("nonsense"), health},
		"wrong JSON":       {answer(`{"processes":"many"}`), health},
		"deep JSON":        {answer(strings.Repeat("[", 1<<20)), health},
		"endless JSON":     {endless, health},
		"large header":     {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 1<<20)) }, health},
		"connection cut":   {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, health},
		"empty name":       {entry(func(e *FileEntry) { e.Name = nil }), stat},
		"name with slash":  {entry(func(e *FileEntry) { e.Name = []byte("../x") }), stat},
		"dot dot":          {entry(func(e *FileEntry) { e.Name = []byte("..") }), stat},
		"name with NUL":    {entry(func(e *FileEntry) { e.Name = []byte("a\x00") }), stat},
		"long name":        {entry(func(e *FileEntry) { e.Name = make([]byte, 300) }), stat},
		"relative path":    {entry(func(e *FileEntry) { e.Path = []byte("a") }), stat},
		"negative size":    {entry(func(e *FileEntry) { e.Size = -1 }), stat},
		"mode":             {entry(func(e *FileEntry) { e.Mode = 1 << 20 }), stat},
		"type":             {entry(func(e *FileEntry) { e.Type = "door" }), stat},
		"target of a file": {entry(func(e *FileEntry) { e.Target = []byte("x") }), stat},
		"large page":       {answer(`{"dir":"L2E=","entries":[{"name":"YQ==","type":"file"},{"name":"Yg==","type":"file"}]}`), list},
		"page of nowhere":  {answer(`{"dir":"","entries":[]}`), list},
		"long cursor":      {answer(`{"dir":"L2E=","entries":[],"next":"` + strings.Repeat("x", 1000) + `"}`), list},
		"glob":             {answer(`{"paths":["YQ=="]}`), glob},
		"another command":  {command(func(c *sandbox.Command) { c.ID = NewCommandID() }), get},
		"pid":              {command(func(c *sandbox.Command) { c.PID = -1 }), get},
		"output bounds":    {command(func(c *sandbox.Command) { c.OutputStart = 5 }), get},
		"long user":        {command(func(c *sandbox.Command) { c.User = strings.Repeat("u", 1000) }), get},
		"exit code":        {command(func(c *sandbox.Command) { c.Exit = &sandbox.Exit{Code: 1000} }), get},
		"exit signal":      {command(func(c *sandbox.Command) { c.Exit = &sandbox.Exit{Signal: -9} }), get},
	} {
		t.Run(name, func(t *testing.T) {
			err := tt.call(hostile(t, tt.serve))
			if cay.CodeOf(err) != cay.Unavailable {
				t.Fatalf("got %v (%s)", err, cay.CodeOf(err))
			}
		})
	}
}

// A few bytes of JSON can encode many values: decoding a guest's answer must not take
// many times the memory of the answer.
func TestClient_hostileAmounts(t *testing.T) {
	id := NewCommandID()
	of := func(begin, one, end string) http.HandlerFunc {
		return answer(begin + strings.Repeat(one+",", (4<<20)/(len(one)+1)) + one + end)
	}
	for name, tt := range map[string]struct {
		serve http.HandlerFunc
		call  func(*Client) error
	}{
		"commands":           {of("[", "{}", "]"), func(c *Client) error { _, err := c.ListCommands(t.Context()); return err }},
		"no commands":        {of("[", "null", "]"), func(c *Client) error { _, err := c.ListCommands(t.Context()); return err }},
		"arguments":          {of(`{"id":"`+id+`","pid":1,"argv":[`, `""`, "]}"), func(c *Client) error { _, err := c.GetCommand(t.Context(), id); return err }},
		"arguments in lists": {of(`[{"id":"`+id+`","pid":1,"argv":[`, `""`, "]}]"), func(c *Client) error { _, err := c.ListCommands(t.Context()); return err }},
		"files":              {of(`{"dir":"L2E=","entries":[`, "{}", "]}"), func(c *Client) error { _, err := c.ReadDir(t.Context(), "/a", sandbox.ReadDirParams{}); return err }},
		"paths":              {of(`{"paths":[`, `""`, "]}"), func(c *Client) error { _, err := c.Glob(t.Context(), "/*"); return err }},
		"started": {of(`{"id":"`+id+`","pid":1,"argv":[`, `""`, "]}"), func(c *Client) error {
			_, err := c.Start(t.Context(), sandbox.CommandParams{Argv: []string{"true"}})
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c := hostile(t, tt.serve)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := tt.call(c)
			runtime.ReadMemStats(&after)
			if cay.CodeOf(err) != cay.Unavailable {
				t.Errorf("got %v (%s)", err, cay.CodeOf(err))
			}
			// This includes the memory for reading 4 MiB, here and in the server.
			if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 64 {
				t.Errorf("it took %d MiB", took)
			}
		})
	}
}

// The client accepts the longest description of a command that an agent can send.
func TestClient_longCommand(t *testing.T) {
	t.Parallel()
	cmd := sandbox.Command{
		ID: NewCommandID(), PID: 1, Argv: []string{strings.Repeat("\x01", MaxArgvShown-8), "…"},
		WorkDir: strings.Repeat("\x01", MaxPath), User: strings.Repeat("u", maxUser),
	}
	one, err := json.Marshal(cmd)
	if err != nil {
		t.Fatal(err)
	}
	got, err := hostile(t, answer(string(one))).GetCommand(t.Context(), cmd.ID)
	if err != nil || !slices.Equal(got.Argv, cmd.Argv) {
		t.Errorf("got %v", err)
	}
	all, err := hostile(t, answer("["+string(one)+","+string(one)+"]")).ListCommands(t.Context())
	if err != nil || len(all) != 2 || all[1].WorkDir != cmd.WorkDir {
		t.Errorf("got %d commands, %v", len(all), err)
	}
}

func TestClient_hostileErrors(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		body string
		code cay.Code
		text string
		wait time.Duration
	}{
		"taken":          {`{"code":"file_not_found","message":"no such file"}`, cay.FileNotFound, "no such file", 0},
		"not its to say": {`{"code":"unauthenticated","message":"log in"}`, cay.Unavailable, "log in", 0},
		"stopped":        {`{"code":"sandbox_stopped","message":"x"}`, cay.Unavailable, "x", 0},
		"invented":       {`{"code":"own3d","message":"x"}`, cay.Unavailable, "x", 0},
		"steering":       {`{"code":"invalid","message":"\u001b]52;c;x\u0007\u202etxt\u009b"}`, cay.Invalid, `\u001b]52;c;x\u0007\u202etxt\u009b`, 0},
		"long":           {`{"code":"invalid","message":"` + strings.Repeat("ü", 5000) + `"}`, cay.Invalid, strings.Repeat("ü", 511) + "…", 0},
		"for ever":       {`{"code":"quota_exceeded","message":"x","retry_after_ms":9223372036854775807}`, cay.QuotaExceeded, "x", time.Minute},
		"negative":       {`{"code":"quota_exceeded","message":"x","retry_after_ms":-5}`, cay.QuotaExceeded, "x", 0},
		"no JSON":        {`<html>`, cay.Unavailable, "", 0},
		"huge":           {`{"message":"` + strings.Repeat("x", 1<<20) + `"}`, cay.Unavailable, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := hostile(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(400)
				io.WriteString(w, tt.body)
			})
			_, err := c.Health(t.Context())
			e, ok := errors.AsType[*cay.Error](err)
			if !ok || e.Code != tt.code || e.RetryAfter != tt.wait || tt.text != "" && e.Message != tt.text {
				t.Fatalf("got %#v", err)
			}
		})
	}
}

func frame(kind Kind, cursor int64, payload string) string {
	return string(AppendHeader(nil, kind, cursor, len(payload))) + payload
}

func TestClient_hostileOutput(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"gap":           frame(KindStdout, 5, "x"),
		"repetition":    frame(KindStdout, 0, "xx") + frame(KindStdout, 1, "x"),
		"empty":         frame(KindStdout, 0, ""),
		"back":          frame(KindStdout, 0, "xx") + frame(KindTruncated, 1, ""),
		"end of follow": frame(KindEnd, 0, ""),
		"wrong kind":    frame(KindFileEvent, 0, "{}"),
		"no kind":       frame(77, 0, ""),
		"bad exit":      frame(KindExit, 0, "x"),
		"odd exit":      frame(KindExit, 0, `{"code":-1}`),
		"large":         string(AppendHeader(nil, KindStdout, 0, 1<<30)),
		"negative":      string(AppendHeader(nil, KindStdout, -1, 1)) + "x",
		"cut":           frame(KindStdout, 0, "xx")[:17],
		"nothing":       "",
		"error":         frame(KindError, 0, `{"code":"sandbox_stopped"}`),
	} {
		t.Run(name, func(t *testing.T) {
			requests := 0
			c := hostile(t, func(w http.ResponseWriter, _ *http.Request) {
				if requests++; requests > 5 {
					t.Error("it tries again and again")
				}
				io.WriteString(w, body)
			})
			o, err := c.Output(t.Context(), NewCommandID(), sandbox.OutputParams{Follow: true})
			for err == nil {
				_, err = o.Next()
			}
			if cay.CodeOf(err) != cay.Unavailable {
				t.Fatalf("got %v", err)
			}
			if _, again := o.Next(); again != err {
				t.Errorf("then %v", again)
			}
		})
	}
}

func TestClient_hostileFiles(t *testing.T) {
	t.Parallel()
	c := hostile(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(InfoHeader, `{"path":"L2E=","name":"YQ==","type":"file","size":5}`)
		fmt.Fprint(w, "more than was asked for")
	})
	r, _, err := c.ReadFile(t.Context(), "/a", sandbox.ReadParams{Length: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if data, err := io.ReadAll(r); cay.CodeOf(err) != cay.Unavailable || len(data) > 3 {
		t.Errorf("got %q, %v", data, err)
	}
	c = hostile(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "10")
		w.Header().Set(InfoHeader, `{"path":"L2E=","name":"YQ==","type":"file","size":10}`)
		fmt.Fprint(w, "cut")
	})
	r, _, err = c.ReadFile(t.Context(), "/a", sandbox.ReadParams{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.ReadAll(r); cay.CodeOf(err) != cay.Unavailable {
		t.Errorf("a file that was cut ends with %v", err)
	}
	c = hostile(t, answer("no description"))
	if _, _, err := c.ReadFile(t.Context(), "/a", sandbox.ReadParams{}); cay.CodeOf(err) != cay.Unavailable {
		t.Errorf("got %v", err)
	}
}

// An upload ends with its connection, also if its source blocks.
func TestClient_blockedSource(t *testing.T) {
	t.Parallel()
	c := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		r.Body.Read(make([]byte, 5))
		// A handler that panics would wait for the rest of the body.
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		conn.Close()
	})
	r, w := io.Pipe()
	defer w.Close()
	go w.Write([]byte("hello"))
	if _, err := c.WriteFile(t.Context(), "/a", r, sandbox.WriteParams{}); cay.CodeOf(err) != cay.Unavailable {
		t.Errorf("got %v", err)
	}
}

func TestClient_hostileTrust(t *testing.T) {
	t.Parallel()
	c := hostile(t, answer(`{"id":"\u001b]52;c;x","problem":"\u202e`+strings.Repeat("x", 5000)+`"}`))
	got, err := c.Trust(t.Context(), TrustRequest{Certificates: "x"})
	if err != nil || got.ID != `\u001b]52;c;x` || !strings.HasPrefix(got.Problem, `\u202ex`) || len(got.Problem) > 1100 {
		t.Errorf("got %+v, %v", got, err)
	}
}

// A guest of an earlier build would ignore parameters that it does not know.
func TestClient_earlierGuest(t *testing.T) {
	t.Parallel()
	c := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/health" {
			t.Errorf("it was asked for %s", r.URL)
		}
		io.WriteString(w, `{"boot_id":"x"}`)
	})
	p := sandbox.CommandParams{Argv: []string{"true"}, Timeout: 1e9, TimeoutSignal: 9}
	if _, err := c.Start(t.Context(), p); cay.CodeOf(err) != cay.NotSupported {
		t.Errorf("start: %v", err)
	}
	if _, err := c.Exec(t.Context(), p); cay.CodeOf(err) != cay.NotSupported {
		t.Errorf("exec: %v", err)
	}
}

func TestParseConfig(t *testing.T) {
	t.Parallel()
	sum := HashToken("x")
	for name, in := range map[string]string{
		"nothing":   "",
		"no token":  `{"hostname":"h"}`,
		"bad token": `{"hostname":"h","token_sha256":"zz"}`,
		"no host":   `{"token_sha256":"` + sum + `"}`,
		"bad host":  `{"hostname":"a b","token_sha256":"` + sum + `"}`,
		"workdir":   `{"hostname":"h","workdir":"x","token_sha256":"` + sum + `"}`,
		"gateway":   `{"hostname":"h","gateway":"x","token_sha256":"` + sum + `"}`,
		"too much":  `{"hostname":"h","certificates":"` + strings.Repeat("x", MaxConfigCertificates+1) + `","token_sha256":"` + sum + `"}`,
	} {
		if _, err := ParseConfig([]byte(in)); cay.CodeOf(err) != cay.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	c, err := ParseConfig([]byte(`{"hostname":"h","token_sha256":"` + sum + `"}`))
	if err != nil || c.Port != Port || c.WorkDir != "/" || c.MaxProcesses != 4096 {
		t.Errorf("got %+v, %v", c, err)
	}
}
