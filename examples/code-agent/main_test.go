package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/examples/workflow/crashtest"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/daemon"
	"github.com/cayhq/cay/internal/image/imagetest"
	"github.com/cayhq/cay/internal/sandboxd/gvisor"
	"github.com/cayhq/cay/sandbox"
	"github.com/cayhq/cay/workflow"
)

// asDaemon makes the test binary a daemon; its value is the place.
const asDaemon = "CAY_EXAMPLE_DAEMON"

// place is the configuration of a daemon, which stays the same when the daemon is
// killed and restarted.
type place struct{ Data, Images, Listen, Gateway, Workflows string }

func TestMain(m *testing.M) {
	gvisor.HandleReexec()
	switch {
	case crashtest.IsProgram():
		main()
	case os.Getenv(asDaemon) != "":
		log := os.Stderr // beDaemon detaches itself from it
		if err := beDaemon(); err != nil {
			fmt.Fprintln(log, err)
			os.Exit(1)
		}
	default:
		os.Exit(m.Run())
	}
}

// beDaemon serves until its input ends.
func beDaemon() error {
	var p place
	if err := json.Unmarshal([]byte(os.Getenv(asDaemon)), &p); err != nil {
		return err
	}
	in, out, log := os.Stdin, os.Stdout, os.Stderr
	if err := gvisor.DetachStdio(); err != nil { // or machines would hold them open
		return err
	}
	cfg := config.Default()
	cfg.Data, cfg.Listen, cfg.GatewayListen, cfg.WorkflowDatabase = p.Data, p.Listen, p.Gateway, p.Workflows
	ctx := context.Background()
	d, err := daemon.New(ctx, cfg, daemon.Options{
		Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn})), ImageDir: p.Images, DestroyOnStop: true,
	})
	if err != nil {
		return err
	}
	if err := d.Start(ctx); err != nil {
		return err
	}
	fmt.Fprintln(out, d.URL(), d.GatewayURL())
	_, _ = io.Copy(io.Discard, in) // wait for its end
	return d.Stop()
}

// installation is a daemon in a process of its own, which can be killed.
type installation struct {
	t     *testing.T
	place place
	cmd   *exec.Cmd
	in    io.Closer
	vars  []string
}

// newInstallation starts a daemon. workflows is the database of the daemon's
// workflows; empty means a file of the daemon.
func newInstallation(t *testing.T, workflows string) *installation {
	t.Helper()
	if testing.Short() {
		t.Skip("starts sandboxes")
	}
	if os.Geteuid() != 0 {
		t.Skip("starting sandboxes needs root")
	}
	for _, ref := range []string{"debian", "python3.13"} {
		imagetest.Acquire(t, ref)
	}
	i := &installation{t: t, place: place{Data: t.TempDir(), Images: imagetest.Dir(t), Listen: "127.0.0.1:0", Gateway: "127.0.0.1:0", Workflows: workflows}}
	i.start()
	token, err := os.ReadFile(filepath.Join(i.place.Data, "admin.token"))
	if err != nil {
		t.Fatal(err)
	}
	i.vars = append(i.vars, "CAY_TOKEN="+strings.TrimSpace(string(token)), "CAY_GATEWAY_KEY="+strings.TrimSpace(string(token)))
	t.Cleanup(func() {
		i.in.Close()
		if err := i.cmd.Wait(); err != nil {
			t.Errorf("the daemon ended with %v", err)
		}
	})
	return i
}

// start starts the daemon, at its former address after a kill.
func (i *installation) start() {
	i.t.Helper()
	where, err := json.Marshal(i.place)
	if err != nil {
		i.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		i.t.Fatal(err)
	}
	script, err := filepath.Abs("script.yaml")
	if err != nil {
		i.t.Fatal(err)
	}
	i.cmd = exec.Command(self)
	i.cmd.Env = append(os.Environ(), asDaemon+"="+string(where), "CAY_SCRIPT="+script)
	i.cmd.Stderr = i.t.Output()
	if i.in, err = i.cmd.StdinPipe(); err != nil {
		i.t.Fatal(err)
	}
	out, err := i.cmd.StdoutPipe()
	if err != nil {
		i.t.Fatal(err)
	}
	if err := i.cmd.Start(); err != nil {
		i.t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		i.t.Fatalf("the daemon did not start: %v", err)
	}
	url, gatewayURL, _ := strings.Cut(strings.TrimSpace(line), " ")
	if i.vars == nil {
		i.vars = []string{"CAY_URL=" + url, "CAY_GATEWAY_URL=" + gatewayURL}
		i.place.Listen, i.place.Gateway = strings.TrimPrefix(url, "http://"), strings.TrimPrefix(gatewayURL, "http://")
	}
}

// kill kills the daemon with SIGKILL and starts it again.
func (i *installation) kill() {
	i.t.Helper()
	if err := i.cmd.Process.Kill(); err != nil {
		i.t.Fatal(err)
	}
	_ = i.cmd.Wait() // it was killed
	i.start()
}

func (i *installation) variable(name string) string {
	for _, v := range i.vars {
		if rest, ok := strings.CutPrefix(v, name+"="); ok {
			return rest
		}
	}
	return ""
}

// check checks that a run made answers calls of models, each of which was charged
// once, and that no sandbox is left.
func (i *installation) check(answers int) {
	i.t.Helper()
	ctx := i.t.Context()
	books := &gateway.Client{URL: i.variable("CAY_URL"), Token: i.variable("CAY_TOKEN")}
	page, err := books.ListRequests(ctx, gateway.RequestFilter{})
	if err != nil {
		i.t.Fatal(err)
	}
	charged := 0
	for _, r := range page.Items {
		if r.Status == gateway.Succeeded {
			charged++
		}
	}
	if charged != answers {
		i.t.Errorf("%d answers were charged, want %d: %+v", charged, answers, page.Items)
	}
	boxes := sandbox.NewClient(sandbox.ClientOptions{URL: i.variable("CAY_URL"), Token: i.variable("CAY_TOKEN")})
	left, err := boxes.List(ctx, sandbox.ListParams{Status: []sandbox.Status{
		sandbox.Pending, sandbox.Running, sandbox.Paused, sandbox.Stopping, sandbox.Hibernated, sandbox.Resuming,
	}})
	if err != nil || len(left.Items) > 0 {
		i.t.Errorf("sandboxes left: %+v, %v", left, err)
	}
}

const roman = "Write whole numbers as Roman numerals: to_roman(number)."

// The first program fails its tests and is fixed. The second run finds the packages
// that the first run has installed.
func TestCodeAgent(t *testing.T) {
	t.Parallel()
	i := newInstallation(t, "")
	out := crashtest.StartEnv(t, i.vars, "-prompt", roman).Wait()
	for _, want := range []string{"FAIL  test_solution.ToRoman.test_subtracts", "3 tests, 2 failed", "3 tests, 0 failed", "attempt 2 of 3", `(900, "CM")`} {
		if !strings.Contains(out, want) {
			t.Errorf("it printed\n%s\nwant %q", out, want)
		}
	}
	i.check(3)
	if again := crashtest.StartEnv(t, i.vars, "-prompt", roman).Wait(); strings.Contains(again, "keep what is installed") || !strings.Contains(again, "3 tests, 0 failed") {
		t.Errorf("the second run printed\n%s", again)
	}
	i.check(6)
}

// The daemon is killed in each phase, and the program too. The run ends once.
func TestCodeAgent_Killed(t *testing.T) {
	t.Parallel()
	crashtest.Databases(t, func(t *testing.T, db string) {
		if !strings.HasPrefix(db, "postgres") {
			db = ""
		}
		testKilled(t, newInstallation(t, db))
	})
}

func testKilled(t *testing.T, i *installation) {
	args := []string{"-prompt", roman, "-key", "once"}
	p := crashtest.StartEnv(t, i.vars, args...)
	for _, phase := range []string{"run wrun_", "...     make a sandbox", "...     ask a model", "coder (cay/scripted) wrote", "...     ask a model", "tester (cay/scripted) wrote", "done    write solution.py", "done    start", "| FAIL", "...     ask a model"} {
		p.Expect(phase)
		both := phase == "run wrun_" || phase == "| FAIL" // the program and the daemon
		if both {
			p.Kill()
		}
		i.kill()
		if both {
			p = crashtest.StartEnv(t, i.vars, args...)
		}
	}
	if out := p.Wait(); !strings.Contains(out, "3 tests, 0 failed") {
		t.Errorf("it printed\n%s", out)
	}
	i.check(3)
}

// After the last failed attempt the run gives up, and its sandbox is deleted.
func TestCodeAgent_GivesUp(t *testing.T) {
	t.Parallel()
	i := newInstallation(t, "")
	client, err := workflow.Connect(workflow.RemoteOptions{URL: i.variable("CAY_URL"), Token: i.variable("CAY_TOKEN")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	p := crashtest.StartEnv(t, i.vars, "-listen", "127.0.0.1:0")
	_, url, _ := strings.Cut(p.Expect("listening on"), "listening on ")

	post := func(body string) (int, map[string]any) {
		t.Helper()
		resp, err := http.Post(url+"/programs", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var v map[string]any
		if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, v
	}
	if status, v := post(`{"prompt": " "}`); status != http.StatusBadRequest || !strings.Contains(fmt.Sprint(v), "prompt is empty") {
		t.Errorf("an empty prompt: %d %v", status, v)
	}
	begun := time.Now()
	status, v := post(`{"prompt": "do the impossible"}`)
	id, _ := v["run_id"].(string)
	if status != http.StatusAccepted || id == "" {
		t.Fatalf("%d %v", status, v)
	}
	t.Logf("answered after %v", time.Since(begun))
	run, err := client.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range client.Follow(t.Context(), id, 1) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type.String() == "run_failed" && !strings.Contains(client.Err(e.Payload).Error(), "nothing is good enough") {
			t.Errorf("run %s failed with %v", run.ID, client.Err(e.Payload))
		}
	}
	resp, err := http.Get(url + "/programs/" + id)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Contains(body, []byte(`"status":"failed"`)) || !bytes.Contains(body, []byte("after 3 attempts")) {
		t.Errorf("%s, %v", body, err)
	}
	// A reader of the stream gets the error and the finish, and need not reconnect.
	stream, err := http.Get(url + "/programs/" + id + "/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	told, err := io.ReadAll(stream.Body)
	last := told[max(0, bytes.LastIndex(told, []byte(`"type":"error"`))):]
	if err != nil || !bytes.Contains(last, []byte(`"type":"error"`)) || !bytes.Contains(last, []byte(`"type":"finish"`)) {
		t.Errorf("the stream ends with %s, %v", last, err)
	}
	i.check(4)
}
