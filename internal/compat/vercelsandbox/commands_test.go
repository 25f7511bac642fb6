package vercelsandbox

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay/sandbox"
)

func TestCommand_Detached(t *testing.T) {
	t.Parallel()
	w := startWork(t)
	const script = "echo out; exit 3"
	id := w.start(script)
	done := w.command(script, "3", `,"durationMs":N`)
	w.want("GET", w.of("/cmd/"+id+"?wait=true"), "", done)
	w.want("GET", w.of("/cmd/"+id), "", done)
	w.want("GET", w.of("/cmd/"+id+"?wait=false"), "", done)
	again := w.id(w.want("POST", w.v1("/cmd"), shell("true", `,"unknown":{"field":[1]}`), w.commandV1("true", "null")))
	w.want("GET", w.v1("/cmd/"+again+"?wait=true"), "", w.commandV1("true", "0"))
	list := func(c string) string { return strings.TrimSuffix(strings.TrimPrefix(c, `{"command":`), "}") }
	w.want("GET", w.of("/cmd"), "", `{"commands":[`+list(w.command("true", "0", `,"durationMs":N`))+","+list(done)+"]}")
	for _, path := range []string{w.of("/cmd/" + id + "/logs"), w.v1("/cmd/" + id + "/logs")} {
		w.want("GET", path, "", `{"stream":"stdout","data":"out\n"}`)
	}
}

func TestCommand_Parameters(t *testing.T) {
	t.Parallel()
	w := startWork(t)
	w.want("POST", w.of("/fs/mkdir"), `{"path":"sub"}`, "{}")
	for name, c := range map[string]struct{ body, out string }{
		"Cwd":         {`{"command":"pwd","cwd":"sub","wait":true,"logs":true}`, `/sub\n`},
		"Env":         {`{"command":"sh","args":["-c","echo $A-$B"],"env":{"A":"1","B":"é"},"wait":true,"logs":true}`, `1-\u00e9\n`},
		"NotAShell":   {`{"command":"echo","args":["$HOME;","*"],"wait":true,"logs":true}`, `$HOME; *\n`},
		"NoArguments": {`{"command":"pwd","wait":true,"logs":true}`, `/w\n`},
	} {
		if status, got := w.do("POST", w.of("/cmd"), c.body); status != 200 || !strings.Contains(got, c.out+`"}`) || !strings.Contains(got, `"exitCode":0`) {
			t.Errorf("%s: %d %s", name, status, got)
		}
	}
	// A client may ask in the query as well.
	if _, got := w.do("POST", w.of("/cmd?wait=true&logs=true"), `{"command":"pwd"}`); strings.Count(got, "\n") != 3 {
		t.Errorf("by the query: %s", got)
	}
}

func TestCommand_Timeout(t *testing.T) {
	t.Parallel()
	w := startWork(t)
	const script = "exec sleep 1000"
	s := w.stream(t.Context(), "POST", w.of("/cmd"), shell(script, `,"wait":true,"timeout":100`))
	s.want(w.command(script, "null", ""), w.command(script, "137", `,"durationMs":N`))
	s.end()
	id := w.id(w.want("POST", w.of("/cmd"), shell(script, `,"timeout":100`), w.command(script, "null", "")))
	w.want("GET", w.of("/cmd/"+id+"?wait=true"), "", w.command(script, "137", `,"durationMs":N`))
}

// The first line comes at once, output as it is written, and the end of the
// stream does not affect the command.
func TestCommand_Stream(t *testing.T) {
	t.Parallel()
	w := startWork(t)
	goOn := w.fifo("p")
	const script = "read x < p; echo $x; read x < q; echo err >&2; read x < r"
	more, end := w.fifo("q"), w.fifo("r")
	body := shell(script, `,"wait":true,"logs":true`)
	ctx, leave := context.WithCancel(t.Context())
	s := w.stream(ctx, "POST", w.of("/cmd"), body)
	id := w.id(s.want(w.command(script, "null", "")))
	goOn()
	s.want(`{"stream":"stdout","data":"go\n"}`)
	leave()
	if _, err := io.Copy(io.Discard, s); err == nil {
		t.Error("the stream has an end")
	}
	w.want("GET", w.of("/cmd/"+id), "", w.command(script, "null", ""))
	more()
	end()
	w.want("GET", w.of("/cmd/"+id+"?wait=true"), "", w.command(script, "0", `,"durationMs":N`))

	s = w.stream(t.Context(), "POST", w.of("/cmd"), body)
	s.want(w.command(script, "null", ""))
	goOn()
	s.want(`{"stream":"stdout","data":"go\n"}`)
	more()
	s.want(`{"stream":"stderr","data":"err\n"}`)
	end()
	s.want(w.command(script, "0", `,"durationMs":N`))
	s.end()
}

// The first version's stream has two lines, whatever the request asks for.
func TestCommand_StreamV1(t *testing.T) {
	t.Parallel()
	w := startWork(t)
	s := w.stream(t.Context(), "POST", w.v1("/cmd?logs=true"), shell("echo out; exit 1", `,"wait":true,"logs":true`))
	s.want(w.commandV1("echo out; exit 1", "null"), w.commandV1("echo out; exit 1", "1"))
	s.end()
	s = w.stream(t.Context(), "POST", w.of("/cmd"), shell("echo out", `,"wait":true`))
	s.want(w.command("echo out", "null", ""), w.command("echo out", "0", `,"durationMs":N`))
	s.end()
}

// Utilities that the hosted service has, and that are not programs of the image.
func TestCommand_Utilities(t *testing.T) {
	t.Parallel()
	w := startWork(t)
	for name, code := range map[string]string{"sh": "0", "no-such-program": "127"} {
		s := w.stream(t.Context(), "POST", w.v1("/cmd"), `{"command":"command","args":["-v","`+name+`"],"wait":true}`)
		for _, code := range []string{"null", code} {
			line, err := s.ReadString('\n')
			if err != nil || !strings.Contains(line, `"name":"command","args":["-v","`+name+`"]`) || !strings.Contains(line, `"exitCode":`+code) {
				t.Errorf("%s: %s, %v", name, line, err)
			}
		}
		s.end()
	}
}

func TestCommand_Refusals(t *testing.T) {
	t.Parallel()
	w := startWork(t)
	for _, more := range []string{"", `,"wait":true`} {
		for _, path := range []string{w.of("/cmd"), w.v1("/cmd")} {
			w.refused("POST", path, `{"command":"no-such-program"`+more+`}`, 400, "executable_not_found")
			if _, got := w.do("POST", path, `{"command":""`+more+`}`); !strings.Contains(got, `{"code":"bad_request","message":"command is empty`) {
				t.Errorf("no command: %s", got)
			}
			w.refused("POST", path, `{"command":"pwd","cwd":"/nowhere"`+more+`}`, 400, "bad_request")
			w.refused("POST", path, `{"command":"pwd","timeout":99`+more+`}`, 400, "bad_request")
			w.refused("POST", path, `{"command":"pwd","timeout":0`+more+`}`, 400, "bad_request")
			w.refused("POST", path, `{"command":7`+more+`}`, 400, "bad_request")
			w.refused("POST", path, `{"command"`, 400, "bad_request")
			w.refused("POST", path, "", 400, "bad_request")
			w.refused("POST", path, `{"command":"pwd"`+more+`}`, 404, "not_found", "Authorization", "Bearer tok_b1")
			w.refused("POST", path, `{"command":"pwd"`+more+`}`, 401, "unauthorized", "Authorization", "Bearer nobody")
		}
	}
	for _, sid := range []string{w.sandbox.ID, "ses_00000000000000000000", "x"} {
		path := "/api/v2/sandboxes/sessions/" + sid
		w.refused("POST", path+"/cmd", `{"command":"pwd"}`, 404, "not_found")
		w.refused("GET", path+"/cmd", "", 404, "not_found")
		w.refused("POST", path+"/fs/read", `{"path":"/w"}`, 404, "not_found")
	}
	for _, path := range []string{w.of("/cmd/cmd_00000000000000000000"), w.v1("/cmd/cmd_00000000000000000000"), w.of("/cmd/x")} {
		w.refused("GET", path, "", 404, "not_found")
		w.refused("GET", path+"?wait=true", "", 404, "not_found")
		w.refused("GET", path+"/logs", "", 404, "not_found")
		w.refused("POST", path+"/kill", `{"signal":9}`, 404, "not_found")
	}
	w.refused("GET", "/api/v1/sandboxes/x/cmd/y", "", 404, "not_found")
}

func TestCommand_Kill(t *testing.T) {
	t.Parallel()
	w := startWork(t)
	// The script's children belong to its process group.
	const script = "trap 'exit 9' USR1; sleep 1000 & wait"
	for i, path := range []func(id string) string{
		func(id string) string { return w.of("/cmd/" + id + "/kill") },
		func(id string) string { return w.v1("/" + id + "/kill") },
		func(id string) string { return w.v1("/cmd/" + id + "/kill") },
	} {
		for signal, code := range map[int]string{2: "130", 9: "137", 15: "143"} {
			id := w.start(script)
			running, ended := w.command(script, "null", ""), w.command(script, code, `,"durationMs":N`)
			if i > 0 {
				running, ended = w.commandV1(script, "null"), w.commandV1(script, code)
			}
			body := fmt.Sprintf(`{"signal":%d}`, signal)
			if status, got := w.do("POST", path(id), body); status != 200 || !like(running, got) && !like(ended, got) {
				t.Fatalf("%d %s", status, got)
			}
			w.want("GET", w.of("/cmd/"+id+"?wait=true"), "", w.command(script, code, `,"durationMs":N`))
			w.want("POST", path(id), body, ended) // it has exited
			w.refused("POST", path(id), `{"signal":0}`, 400, "bad_request")
			w.refused("POST", path(id), `{"signal":65}`, 400, "bad_request")
			w.refused("POST", path(id), `{}`, 400, "bad_request")
		}
	}
}

// All readers get all output, whenever they connect.
func TestCommand_Logs(t *testing.T) {
	t.Parallel()
	w := startWork(t)
	release := w.fifo("p")
	id := w.start("echo one; read x < p; echo two >&2")
	var readers sync.WaitGroup
	var begun sync.WaitGroup
	for range 3 {
		begun.Add(1)
		s := w.stream(t.Context(), "GET", w.of("/cmd/"+id+"/logs"), "")
		readers.Go(func() {
			first, err := s.ReadString('\n')
			begun.Done()
			rest, err2 := io.ReadAll(s)
			if got := first + string(rest); err != nil || err2 != nil || !like(`{"stream":"stdout","data":"one\n"}`+"\n"+`{"stream":"stderr","data":"two\n"}`, got) {
				t.Errorf("got %s, %v, %v", got, err, err2)
			}
		})
	}
	begun.Wait()
	release()
	readers.Wait()
	w.want("GET", w.of("/cmd/"+id+"/logs"), "", `{"stream":"stdout","data":"one\n"}`+"\n"+`{"stream":"stderr","data":"two\n"}`)
}

// White space precedes a slow answer.
func TestCommand_WaitPads(t *testing.T) {
	t.Parallel()
	w := startWork(t, func(c *Config) { c.HeaderDelay = time.Millisecond })
	release := w.fifo("p")
	const script = "read x < p"
	id := w.start(script)
	resp := w.request(t.Context(), "GET", w.of("/cmd/"+id+"?wait=true"), nil)
	pad := make([]byte, 3)
	if _, err := io.ReadFull(resp.Body, pad); err != nil || string(pad) != "   " || resp.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("%q, %v", pad, err)
	}
	release()
	rest, err := io.ReadAll(resp.Body)
	if err != nil || !like(w.command(script, "0", `,"durationMs":N`), string(rest)) {
		t.Errorf("%s, %v", rest, err)
	}
}

// When a session ends, clients that wait get an answer, and the output stays
// readable.
func TestCommand_SessionEnds(t *testing.T) {
	t.Parallel()
	w := startWork(t)
	const script = "echo out; exit 5"
	finished := w.start(script)
	w.want("GET", w.of("/cmd/"+finished+"?wait=true"), "", w.command(script, "5", `,"durationMs":N`))
	s := w.stream(t.Context(), "POST", w.of("/cmd"), shell("echo one; exec sleep 1000", `,"wait":true,"logs":true`))
	running := w.id(s.want(w.command("echo one; exec sleep 1000", "null", ""), `{"stream":"stdout","data":"one\n"}`))
	waiting := make(chan int)
	go func() {
		status, _ := w.do("GET", w.of("/cmd/"+running+"?wait=true"), "")
		waiting <- status
	}()
	if _, err := w.Stop(w.ctx, w.sandbox.ID); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(s)
	if err != nil || strings.Count(string(rest), "\n") != 1 {
		t.Errorf("the stream ends with %q, %v", rest, err)
	}
	switch status := <-waiting; status {
	case http.StatusOK, http.StatusGone, http.StatusUnprocessableEntity: // it was killed, or the session ended first
	default:
		t.Errorf("the waiter got %d", status)
	}
	w.refused("POST", w.of("/cmd"), `{"command":"pwd"}`, 410, "sandbox_stopped")
	w.refused("POST", w.of("/fs/mkdir"), `{"path":"x"}`, 410, "sandbox_stopped")
	w.refused("POST", w.of("/fs/read"), `{"path":"x"}`, 410, "sandbox_stopped")
	w.refused("POST", w.of("/interactive"), `{}`, 410, "sandbox_stopped")
	w.want("GET", w.of("/cmd/"+finished), "", w.command(script, "5", `,"durationMs":N`))
	w.want("GET", w.of("/cmd/"+finished+"?wait=true"), "", w.command(script, "5", `,"durationMs":N`))
	w.want("POST", w.of("/cmd/"+finished+"/kill"), `{"signal":9}`, w.command(script, "5", `,"durationMs":N`))
	w.want("GET", w.of("/cmd/"+finished+"/logs"), "", `{"stream":"stdout","data":"out\n"}`)
	if s, err := w.GetSession(w.ctx, w.sandbox.SessionID); err != nil || s.Status != sandbox.Stopped {
		t.Errorf("the session was resumed: %+v, %v", s, err)
	}
}
