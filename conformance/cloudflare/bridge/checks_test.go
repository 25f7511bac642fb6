package bridge

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"path"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// The checks of the vendor's black-box test of the bridge, with the same names for values
// and texts, against real sandboxes.
func TestChecks(t *testing.T) {
	w := open(t)
	box := w.box(t)
	check := func(name string, f func(t *testing.T)) { t.Run(name, f) }

	check("creation returns an id", func(t *testing.T) { w.box(t) })
	check("health", func(t *testing.T) {
		if a := w.as(t, "", "GET", "/health", ""); a.status != 200 || a.at("ok") != true {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
	for name, token := range map[string]string{"no key": "", "a wrong key": "wrong-token"} {
		check(name, func(t *testing.T) {
			if a := w.as(t, token, "GET", box+"/running", ""); a.status != 401 || a.at("code") != "unauthorized" {
				t.Errorf("%d %s", a.status, a.body)
			}
		})
	}
	check("a key", func(t *testing.T) { w.want(t, 200, "running", "GET", box+"/running", "") })
	check("the document takes a key", func(t *testing.T) {
		if a := w.as(t, "", "GET", "/v1/openapi.json", ""); a.status != 401 {
			t.Errorf("%d %s", a.status, a.body)
		}
		if a := w.as(t, "", "GET", "/v1/openapi.json?token="+w.Token, ""); a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
	check("an id with characters of a shell", func(t *testing.T) {
		w.want(t, 400, "Invalid sandbox ID format", "GET", "/v1/sandbox/foo;rm/running", "")
	})
	check("a long id", func(t *testing.T) { w.want(t, 400, "", "GET", "/v1/sandbox/"+strings.Repeat("a", 129)+"/running", "") })
	check("the id is checked before the key", func(t *testing.T) {
		if a := w.as(t, "", "GET", "/v1/sandbox/UPPER/running", ""); a.status != 400 {
			t.Errorf("%d %s", a.status, a.body)
		}
	})

	check("exec of no JSON", func(t *testing.T) { w.want(t, 400, "invalid_request", "POST", box+"/exec", "not json") })
	check("exec of an empty argv", func(t *testing.T) {
		w.want(t, 400, "argv must be a non-empty array", "POST", box+"/exec", `{"argv":[]}`)
	})
	check("exec without argv", func(t *testing.T) { w.want(t, 400, "", "POST", box+"/exec", `{}`) })
	check("exec outside of the workspace", func(t *testing.T) {
		w.want(t, 403, "invalid_request", "POST", box+"/exec", `{"argv":["ls"],"cwd":"/tmp"}`)
	})
	check("exec above the workspace", func(t *testing.T) {
		w.want(t, 403, "", "POST", box+"/exec", `{"argv":["ls"],"cwd":"/workspace/../../etc"}`)
	})
	check("exec streams", func(t *testing.T) { w.exec(t, box, argv(t, "echo", "hello")).is(t, "hello\n", "", "0") })
	check("exec of a shell", func(t *testing.T) {
		w.sh(t, box, "", "pwd; echo err >&2; exit 7").is(t, "/workspace\n", "err\n", "7")
	})
	check("exec that takes too long", func(t *testing.T) {
		w.exec(t, box, `{"argv":["sleep","600"],"timeout_ms":300}`).is(t, "", "Command timed out after 300ms\n", "124")
	})
	check("exec of nothing", func(t *testing.T) {
		if got := w.exec(t, box, argv(t, "no-such-program")); got.last != `exit {"exit_code":127}` || got.stderr == "" {
			t.Errorf("%+v", got)
		}
	})

	check("a file of an empty path", func(t *testing.T) { w.want(t, 400, "", "GET", box+"/file/", "") })
	check("a file above the workspace", func(t *testing.T) {
		w.want(t, 403, "within /workspace", "GET", box+"/file/workspace%2F..%2Ftmp%2Fsecret", "")
		w.want(t, 403, "within /workspace", "PUT", box+"/file/workspace%2F..%2Ftmp%2Fevil", "bad")
	})
	check("a file outside of the workspace", func(t *testing.T) { w.want(t, 403, "", "GET", box+"/file/tmp/secret", "") })
	check("a file that is missing", func(t *testing.T) {
		w.want(t, 404, "workspace_read_not_found", "GET", box+"/file/workspace/missing", "")
	})
	check("a binary file there and back", func(t *testing.T) {
		all := make([]byte, 256)
		for i := range all {
			all[i] = byte(i)
		}
		content := strings.Repeat(string(all), 4096)
		w.want(t, 200, `{"ok":true}`, "PUT", box+"/file/workspace/a/b/raw", content)
		if got := w.want(t, 200, "", "GET", box+"/file/workspace/a/b/raw", ""); got.body != content {
			t.Errorf("%d bytes came back", len(got.body))
		}
	})

	check("running", func(t *testing.T) {
		if a := w.do(t, "GET", box+"/running", ""); a.status != 200 || a.at("running") != true {
			t.Errorf("%d %s", a.status, a.body)
		}
		w.want(t, 200, "false", "GET", "/v1/sandbox/never/running", "")
	})
	check("persist above the workspace", func(t *testing.T) { w.want(t, 400, "..", "POST", box+"/persist?excludes=../secret", "") })
	check("hydrate of nothing", func(t *testing.T) { w.want(t, 400, "Empty tar payload", "POST", box+"/hydrate", "") })
	check("persist and hydrate", func(t *testing.T) {
		w.sh(t, box, "", "mkdir -p kept/x && echo 1 > kept/x/one && ln -s one kept/x/link && echo 2 > left").is(t, "", "", "0")
		archive := w.want(t, 200, "", "POST", box+"/persist?excludes=a,left", "").body
		other := w.box(t)
		w.want(t, 200, "true", "POST", other+"/hydrate", archive)
		w.sh(t, other, "", "cat kept/x/link; ls; tar --version > /dev/null").is(t, "1\nkept\n", "", "0")
		// The system's own tar reads the archive.
		w.want(t, 200, "true", "PUT", other+"/file/workspace/a.tar", archive)
		w.sh(t, other, "", "tar tf a.tar").is(t, "./\n./kept/\n./kept/x/\n./kept/x/link\n./kept/x/one\n", "", "0")
	})
	// The requests of @mastra/cloudflare-sandbox 0.5.1.
	check("Mastra's client", func(t *testing.T) {
		mastra := []string{"Content-Type", "application/octet-stream"}
		w.want(t, 200, "", "PUT", box+"/file/workspace/mastra/a%20b.txt", "content", mastra...)
		w.exec(t, box, `{"argv":["env","A=it's","/bin/bash","-c","echo $A | cat - 'a b.txt'"],"timeout_ms":300000,"cwd":"/workspace/mastra"}`,
			"Content-Type", "application/json", "Accept", "text/event-stream").is(t, "it's\ncontent", "", "0")
		archive := w.want(t, 200, "", "GET", box+"/persist?excludes=a%2Ckept", "").body
		other := w.box(t)
		w.want(t, 200, "true", "POST", other+"/hydrate", archive, mastra...)
		w.sh(t, other, "", "cat 'mastra/a b.txt'; test ! -e kept").is(t, "content", "", "0")
		w.want(t, 501, "mount_error", "POST", box+"/mount", `{"bucket":"b","mountPath":"/data","options":{"endpoint":"https://s3.example.com","credentials":{"accessKeyId":"a","secretAccessKey":"b"}}}`)
	})
	check("mounts", func(t *testing.T) {
		w.want(t, 400, "options must be an object", "POST", box+"/mount", `{"bucket":"b","mountPath":"/d"}`)
		w.want(t, 400, "absolute path", "POST", box+"/mount", `{"bucket":"b","mountPath":"d","options":{}}`)
		w.want(t, 501, "mount_error", "POST", box+"/mount", `{"bucket":"b","mountPath":"/d","options":{"endpoint":"https://s3.example.com"}}`)
		w.want(t, 400, "must not resolve to /", "POST", box+"/unmount", `{"mountPath":"/x/.."}`)
		w.want(t, 501, "unmount_error", "POST", box+"/unmount", `{"mountPath":"/d"}`)
	})
	check("delete", func(t *testing.T) {
		gone := w.box(t)
		for range 2 {
			if a := w.do(t, "DELETE", gone, ""); a.status != 204 || a.body != "" {
				t.Errorf("%d %s", a.status, a.body)
			}
		}
	})

	check("a terminal without an upgrade", func(t *testing.T) { w.want(t, 400, "WebSocket upgrade required", "GET", box+"/pty", "") })
	for _, q := range []string{"cols=abc", "rows=xyz", "cols=0", "rows=-1", "cols=10001"} {
		check("a terminal of "+q, func(t *testing.T) {
			w.want(t, 400, "cols and rows must be valid numbers", "GET", box+"/pty?"+q, "", "Connection", "Upgrade", "Upgrade", "websocket")
		})
	}
	check("a terminal without a key", func(t *testing.T) {
		if a := w.as(t, "", "GET", box+"/pty", "", "Connection", "Upgrade", "Upgrade", "websocket"); a.status != 401 {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
	check("a terminal", func(t *testing.T) {
		c := w.dial(t, box+"/pty?cols=80&rows=24")
		if got := c.text(); got != `{"type":"ready"}` {
			t.Errorf("got %s", got)
		}
	})

	check("the document", func(t *testing.T) {
		a := w.want(t, 200, "", "GET", "/v1/openapi.json", "")
		paths, _ := a.at("paths").(map[string]any)
		if a.at("openapi") != "3.1.0" {
			t.Errorf("version %v", a.at("openapi"))
		}
		for _, p := range []string{"exec", "pty", "file/{path}", "running", "persist", "hydrate"} {
			if paths["/v1/sandbox/{id}/"+p] == nil {
				t.Errorf("no path %s", p)
			}
		}
		if paths["/health"] == nil {
			t.Error("no path /health")
		}
		for _, part := range []string{`"operationId": "ptyTerminal"`, `"cols"`, `"rows"`, `"shell"`, `"session"`, `"101"`, `"502"`} {
			if !strings.Contains(a.body, part) {
				t.Errorf("no %s", part)
			}
		}
	})
	check("the page", func(t *testing.T) {
		a := w.want(t, 200, "<!doctype html>", "GET", "/v1/openapi.html", "")
		if !strings.Contains(a.header.Get("Content-Type"), "text/html") {
			t.Errorf("type %s", a.header.Get("Content-Type"))
		}
	})
}

// Sessions keep their directory and their exported variables, each its own, also through
// the sleep of the sandbox.
func TestSessions(t *testing.T) {
	w := open(t)
	box := w.box(t)
	w.sh(t, box, "", "mkdir -p 'it'\\''s' two").is(t, "", "", "0")
	w.want(t, 200, `{"id":"one"}`, "POST", box+"/session", `{"id":"one","cwd":"/workspace/it's","env":{"WHO":"o'ne","MORE":"$HOME\n2"}}`)
	w.want(t, 200, `{"id":"two"}`, "POST", box+"/session", `{"id":"two","cwd":"two","env":{"WHO":"two"}}`)
	w.sh(t, box, "one", `echo "$WHO $MORE" in "$PWD"`).is(t, "o'ne $HOME\n2 in /workspace/it's\n", "", "0")
	w.sh(t, box, "two", `echo "$WHO" in "$PWD"`).is(t, "two in /workspace/two\n", "", "0")
	w.sh(t, box, "", `echo "$WHO" in "$PWD"`).is(t, " in /workspace\n", "", "0")
	w.want(t, 502, "session_error", "POST", box+"/session", `{"id":"one"}`)

	// Builtins of the shell change the session; programs do not.
	w.exec(t, box, argv(t, "cd", "/tmp"), "Session-Id", "two").is(t, "", "", "0")
	w.exec(t, box, argv(t, "export", "ADDED=it's new"), "Session-Id", "two").is(t, "", "", "0")
	w.sh(t, box, "two", `cd /; export ADDED=no`).is(t, "", "", "0")
	w.sh(t, box, "two", `echo "$WHO $ADDED" in "$PWD"`).is(t, "two it's new in /tmp\n", "", "0")
	// A directory for one call is for that call.
	w.exec(t, box, `{"argv":["pwd"],"cwd":"/workspace/two"}`, "Session-Id", "two").is(t, "/workspace/two\n", "", "0")
	w.exec(t, box, argv(t, "pwd"), "Session-Id", "two").is(t, "/tmp\n", "", "0")
	if got := w.exec(t, box, `{"argv":["pwd"],"cwd":"missing"}`, "Session-Id", "two"); got.last != `exit {"exit_code":1}` || !strings.Contains(got.stderr, "missing") {
		t.Errorf("%+v", got)
	}
	// An exit ends the call and not the session, as does a timeout.
	w.exec(t, box, argv(t, "exit", "7"), "Session-Id", "two").is(t, "", "", "7")
	w.exec(t, box, `{"argv":["sleep","600"],"timeout_ms":300}`, "Session-Id", "two").is(t, "", "Command timed out after 300ms\n", "124")
	w.exec(t, box, argv(t, "no-such-program"), "Session-Id", "two").isCode(t, "127")
	w.exec(t, box, argv(t, "pwd"), "Session-Id", "two").is(t, "/tmp\n", "", "0")
	// A session that was never made is made by its first call.
	w.exec(t, box, argv(t, "cd", "/usr"), "Session-Id", "third").is(t, "", "", "0")
	w.exec(t, box, argv(t, "pwd"), "Session-Id", "third").is(t, "/usr\n", "", "0")

	if _, err := w.Client.Stop(t.Context(), path.Base(box)); err != nil {
		t.Fatal(err)
	}
	w.want(t, 200, "false", "GET", box+"/running", "")
	w.sh(t, box, "two", `echo "$WHO $ADDED" in "$PWD"`).is(t, "two it's new in /tmp\n", "", "0")

	// A session whose directory is gone says so and goes on.
	w.sh(t, box, "", `rmdir "it's"`).is(t, "", "", "0")
	if got := w.exec(t, box, argv(t, "pwd"), "Session-Id", "one"); got.stdout != "/workspace\n" || !strings.Contains(got.stderr, "the session goes on in /workspace") {
		t.Errorf("%+v", got)
	}

	a := w.want(t, 200, `"success":true,"sessionId":"one"`, "DELETE", box+"/session/one", "")
	if at, err := time.Parse(time.RFC3339, a.at("timestamp").(string)); err != nil || time.Since(at) > time.Hour {
		t.Errorf("%s: %v", a.body, err)
	}
	w.want(t, 502, "session_error", "DELETE", box+"/session/one", "")
	w.want(t, 502, "session_error", "DELETE", "/v1/sandbox/never/session/one", "")
	w.sh(t, box, "one", `echo "$WHO" in "$PWD"`).is(t, " in /workspace\n", "", "0")
	w.want(t, 400, "cwd", "POST", box+"/session", `{"cwd":"/workspace/missing"}`)
	w.want(t, 400, "1BAD", "POST", box+"/session", `{"env":{"1BAD":"x"}}`)
}

// isCode compares the exit code of a result.
func (r result) isCode(t *testing.T, code string) {
	t.Helper()
	if r.last != `exit {"exit_code":`+code+`}` || r.stderr == "" {
		t.Errorf("got %+v, want code %s", r, code)
	}
}

// A session runs one command at a time, so that no change of the session is lost.
func TestSessionOrder(t *testing.T) {
	w := open(t)
	box := w.box(t)
	const calls = 20
	var wg sync.WaitGroup
	for range calls {
		wg.Go(func() {
			w.exec(t, box, argv(t, "eval", "N=$((N+1)); export N"), "Session-Id", "s").is(t, "", "", "0")
		})
	}
	wg.Wait()
	w.sh(t, box, "s", "echo $N").is(t, strconv.Itoa(calls)+"\n", "", "0")
}

// When a session is deleted its processes go on, and the command that runs ends by itself.
func TestSessionProcesses(t *testing.T) {
	w := open(t)
	box := w.box(t)
	w.sh(t, box, "s", "mkfifo go; (read -r line < go; echo released > done; mkfifo end; read -r line < end) > /dev/null 2>&1 & :").is(t, "", "", "0")
	running := w.request(t, t.Context(), w.Token, "POST", box+"/exec", argv(t, "/bin/sh", "-c", "echo up; mkfifo mine; cat mine"), "Session-Id", "s")
	if _, err := io.ReadFull(running.Body, make([]byte, len("event: stdout"))); err != nil {
		t.Fatal(err)
	}
	waiting := w.request(t, t.Context(), w.Token, "POST", box+"/session", `{"id":"x"}`) // another one does not wait
	if waiting.StatusCode != 200 {
		t.Error(waiting.Status)
	}
	w.want(t, 502, "not found", "DELETE", box+"/session/unknown", "")
	w.want(t, 200, "true", "DELETE", box+"/session/s", "")
	w.sh(t, box, "", "until [ -p mine ]; do sleep 0.1; done; echo said > mine; echo > go; until [ -p end ]; do sleep 0.1; done; cat done").is(t, "released\n", "", "0")
	if got := readEvents(t, running.Body); !strings.HasSuffix(got.last, `exit {"exit_code":0}`) || !strings.Contains(got.stdout, "said") {
		t.Errorf("%+v", got)
	}
	w.sh(t, box, "", "ls /var/lib/cay-bridge/sessions").is(t, "x.sh\n", "", "0") // and is not saved again
}

// A client that leaves ends its command, and the record of the command says by what.
func TestLeft(t *testing.T) {
	w := open(t)
	box := w.box(t)
	ctx, leave := context.WithCancel(t.Context())
	resp := w.request(t, ctx, w.Token, "POST", box+"/exec", argv(t, "/bin/sh", "-c", "trap '' TERM; echo up; sleep 600 & wait; wait; sleep 600"))
	if _, err := io.ReadFull(resp.Body, make([]byte, len("event: stdout"))); err != nil {
		t.Fatal(err)
	}
	leave()
	all, err := w.Client.ListCommands(t.Context(), path.Base(box))
	if err != nil || len(all) != 1 {
		t.Fatalf("%d commands, %v", len(all), err)
	}
	bound, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := w.Client.Wait(bound, path.Base(box), all[0].ID)
	if err != nil || c.Exit.Signal != 9 {
		t.Errorf("%+v, %v", c, err)
	}
	w.sh(t, box, "", "pgrep sleep || echo none").is(t, "none\n", "", "0")
}

func TestTerminal(t *testing.T) {
	w := open(t)
	box := w.box(t)
	c := w.dial(t, box+"/pty?cols=100&rows=30&shell=sh")
	if got := c.text(); got != `{"type":"ready"}` {
		t.Errorf("got %s", got)
	}
	c.typed("stty size; pwd; echo $TERM\n")
	c.until("30 100\r\n/workspace\r\nxterm-256color\r\n")
	c.say(`{"type":"resize","cols":120,"rows":40}`)
	c.typed("stty size\n")
	c.until("40 120\r\n")
	c.say(`{"type":"what"}`)
	if got := c.text(); got != `{"type":"error","message":"Invalid control message"}` {
		t.Errorf("got %s", got)
	}
	c.say(`{"type":"resize","cols":0,"rows":40}`)
	if got := c.text(); !strings.Contains(got, "cols and rows must be positive") {
		t.Errorf("got %s", got)
	}
	c.typed("exit 5\n")
	if got := c.text(); got != `{"type":"exit","code":5}` {
		t.Errorf("got %s", got)
	}

	// A terminal of nobody's session ends with its connection.
	c = w.dial(t, box+"/pty")
	c.text()
	c.typed("echo $((6*7)); sleep 600\n")
	c.until("42\r\n")
	c.conn.CloseNow()
	w.waitCommands(t, box)
}

// waitCommands waits until all commands of a sandbox have exited.
func (w *world) waitCommands(t *testing.T, box string) {
	t.Helper()
	all, err := w.Client.ListCommands(t.Context(), path.Base(box))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, c := range all {
		if _, err := w.Client.Wait(ctx, path.Base(box), c.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// The terminal of a session outlives its connections, can have several, and shows what
// it has shown to those who come later.
func TestTerminalOfSession(t *testing.T) {
	w := open(t)
	box := w.box(t)
	w.want(t, 200, "s", "POST", box+"/session", `{"id":"s","cwd":"/tmp","env":{"WHO":"one"}}`)
	first := w.dial(t, box+"/pty?session=s&shell=sh")
	first.text()
	first.typed("echo $WHO in $PWD\n")
	first.until("one in /tmp\r\n")
	second := w.dial(t, box+"/pty?session=s")
	second.until("one in /tmp\r\n")
	if got := second.text(); got != `{"type":"ready"}` {
		t.Errorf("got %s", got)
	}
	second.typed("echo $((6*7))\n")
	first.until("42\r\n")
	second.until("42\r\n")
	first.conn.CloseNow()
	second.conn.CloseNow()

	third := w.dial(t, box+"/pty?session=s")
	third.until("one in /tmp\r\n")
	third.until("42\r\n")
	w.want(t, 200, "true", "DELETE", box+"/session/s", "")
	for { // bash ends by itself on a hang-up, others by the signal
		if got := third.text(); got != `{"type":"ready"}` {
			if !strings.HasPrefix(got, `{"type":"exit","code":1`) {
				t.Errorf("got %s", got)
			}
			break
		}
	}
	w.waitCommands(t, box)
	// The next connection after the end of a shell starts a new shell.
	fourth := w.dial(t, box+"/pty?session=s&shell=sh")
	fourth.text()
	fourth.typed("echo \"[$WHO]\" in $PWD\n")
	fourth.until("[] in /workspace\r\n")
}

// No member of an archive leaves the workspace, where the kernel is the sandbox's own.
func TestHostileArchives(t *testing.T) {
	w := open(t)
	box := w.box(t)
	w.sh(t, box, "", "mkdir /out; echo old > /out/old; touch /tmp/before").is(t, "", "", "0")
	for name, members := range map[string][]*tar.Header{
		"Up":         {{Name: "../out/evil", Typeflag: tar.TypeReg}},
		"Absolute":   {{Name: "/out/evil", Typeflag: tar.TypeReg}},
		"Link":       {{Name: "l", Linkname: "/out", Typeflag: tar.TypeSymlink}, {Name: "l/evil", Typeflag: tar.TypeReg}},
		"LinkUp":     {{Name: "u", Linkname: "../out", Typeflag: tar.TypeSymlink}, {Name: "u/evil", Typeflag: tar.TypeReg}},
		"HardLink":   {{Name: "h", Linkname: "/out/old", Typeflag: tar.TypeLink}},
		"HardLinkUp": {{Name: "h", Linkname: "../out/old", Typeflag: tar.TypeLink}},
		"Device":     {{Name: "d", Typeflag: tar.TypeBlock, Devmajor: 8}},
		"Fifo":       {{Name: "f", Typeflag: tar.TypeFifo}},
	} {
		var b bytes.Buffer
		tw := tar.NewWriter(&b)
		for _, h := range members {
			h.Mode = 0o644
			if err := tw.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
		}
		if err := tw.Close(); err != nil {
			t.Fatal(err)
		}
		if a := w.do(t, "POST", box+"/hydrate", b.String()); a.status != 502 || a.at("code") != "workspace_archive_write_error" {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
		w.sh(t, box, "", "ls /out; cat /out/old").is(t, "old\nold\n", "", "0")
	}
}

// An idle sandbox sleeps, is not woken by a look, and keeps its files.
func TestIdle(t *testing.T) {
	w := open(t)
	box := w.box(t)
	ref := path.Base(box)
	w.want(t, 200, "true", "PUT", box+"/file/workspace/kept", "kept")
	changes, err := w.Client.WatchSandboxes(t.Context(), sandbox.ChangeParams{})
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Close()
	idle := sandbox.Duration(time.Second) // instead of 10 minutes
	if _, err := w.Client.Update(t.Context(), ref, sandbox.UpdateParams{IdleTimeout: &idle}); err != nil {
		t.Fatal(err)
	}
	for asleep := false; !asleep; {
		c, err := changes.Next()
		if err != nil {
			t.Fatal(err)
		}
		asleep = c.Sandbox != nil && c.Sandbox.Status.Final()
	}
	w.want(t, 200, "false", "GET", box+"/running", "")
	if sb, err := w.Client.Get(t.Context(), ref); err != nil || sb.Status.Final() && sb.Reason != sandbox.ReasonIdle {
		t.Errorf("%+v, %v", sb, err)
	}
	w.want(t, 200, "kept", "GET", box+"/file/workspace/kept", "")
}

// A list of sandboxes shows which are the bridge's.
func TestListed(t *testing.T) {
	w := open(t)
	box := w.box(t)
	page, err := w.Client.List(t.Context(), sandbox.ListParams{Tags: map[string]string{"cloudflare": "bridge"}})
	if err != nil || len(page.Items) != 1 || page.Items[0].Name != path.Base(box) {
		t.Fatalf("%+v, %v", page, err)
	}
	w.want(t, 204, "", "DELETE", box, "")
	if _, err := w.Client.Get(t.Context(), path.Base(box)); cay.CodeOf(err) != cay.NotFound {
		t.Error(err)
	}
}
