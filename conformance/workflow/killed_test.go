package workflow

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testenv"
)

// TestKilled kills the app while a run sleeps, in the middle of a step, and before the run has
// begun. When the app is started again, at another address, its runs complete without further
// requests.
func TestKilled(t *testing.T) {
	need(t, lines...)
	d := testenv.Start(t)
	for _, line := range lines {
		t.Run(line, func(t *testing.T) {
			a := buildApp(t, line, d.URL, d.Token)
			a.start(t)
			a.testKilled(t, a.start)
		})
	}
}

// testKilled kills the app, and starts it again with start.
func (a *app) testKilled(t *testing.T, start func(*testing.T)) {
	asleep, cutOff := a.run(t, "asleep", 3000), a.run(t, "cutOff")
	a.waitFor(t, asleep, `"asleep"`)
	a.waitFor(t, cutOff, `"begins"`)
	fresh := a.run(t, "sequential", 3)
	a.kill()
	start(t)
	a.sleptFor(t, asleep, 3000)
	attempt, got := 0, a.result(t, cutOff)
	if _, err := fmt.Sscanf(got, `{"result":%d}`, &attempt); err != nil || attempt < 2 {
		t.Errorf("the step that was cut off: %s", got)
	}
	if got := a.result(t, fresh); got != `{"result":6}` {
		t.Errorf("the run that had just been started: %s", got)
	}
}

// TestDaemonKilled kills the daemon while the app works on a step. A step that ends when the
// daemon is back has run once; a step that ended in between continues without waiting for the end
// of its lease.
func TestDaemonKilled(t *testing.T) {
	need(t, lines...)
	d := startDaemon(t)
	for _, line := range lines {
		t.Run(line, func(t *testing.T) {
			a := buildApp(t, line, d.URL, d.Token)
			a.start(t)
			t.Run("under way", func(t *testing.T) { a.testUnderWay(t, d) })
			t.Run("ended", func(t *testing.T) {
				run := a.run(t, "held")
				a.waitFor(t, run, `"begins"`)
				d.kill()
				a.letGo(t)
				d.start(t)
				since := time.Now()
				again := a.stream(t, run, 1) // the outcome is lost, unless the SDK asked once more
				defer again.Close()
				for lines := bufio.NewScanner(again); lines.Scan(); {
					a.letGo(t)
				}
				if got := a.result(t, run); !strings.HasPrefix(got, `{"result":`) {
					t.Errorf("the result is %s", got)
				}
				t.Logf("it ends %v after the daemon is back", time.Since(since).Round(time.Millisecond))
			})
		})
	}
}

// testUnderWay kills the daemon during a step, which ends when the daemon is back.
func (a *app) testUnderWay(t *testing.T, d *daemon) {
	run := a.run(t, "held")
	a.waitFor(t, run, `"begins"`)
	d.kill()
	d.start(t)
	a.sleptFor(t, a.run(t, "asleep", 3000), 3000) // the app registers meanwhile
	a.letGo(t)
	if got := a.result(t, run); got != `{"result":1}` {
		t.Errorf("the result is %s", got)
	}
	if got := all(t, a.stream(t, run, 0)); got != "\"begins\"\n" {
		t.Errorf("the step's body writes %q", got)
	}
}

// letGo ends the step of the workflow held.
func (a *app) letGo(t *testing.T) {
	t.Helper()
	var done any
	a.call(t, "POST", "/let-go", nil, &done)
}

// daemon is "cay serve".
type daemon struct {
	dir, listen string
	cmd         *exec.Cmd

	URL, Token string
}

// startDaemon starts a daemon, which ends with the test.
func startDaemon(t *testing.T) *daemon {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the daemon needs root")
	}
	d := &daemon{dir: t.TempDir(), listen: "127.0.0.1:0"}
	d.start(t)
	t.Cleanup(d.kill)
	return d
}

// start starts the daemon, after a kill at the same address.
func (d *daemon) start(t *testing.T) {
	t.Helper()
	d.cmd = exec.Command(program(t), "serve", "--json", "--data", d.dir, "--listen", d.listen, "--gateway-listen", "off", "--log-level", "warn")
	d.cmd.Env, d.cmd.WaitDelay, d.cmd.Stderr = environment(), 10*time.Second, t.Output()
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var started struct {
		URL       string `json:"url"`
		TokenFile string `json:"token_file"`
	}
	if err := json.NewDecoder(out).Decode(&started); err != nil {
		t.Fatalf("the daemon does not say where it is: %v", err)
	}
	token, err := os.ReadFile(started.TokenFile)
	if err != nil {
		t.Fatal(err)
	}
	at, err := url.Parse(started.URL)
	if err != nil {
		t.Fatal(err)
	}
	d.URL, d.Token, d.listen = started.URL, strings.TrimSpace(string(token)), at.Host
}

// kill kills it with SIGKILL.
func (d *daemon) kill() {
	_ = d.cmd.Process.Kill() // it may have ended
	_ = d.cmd.Wait()         // its error is the kill
}
