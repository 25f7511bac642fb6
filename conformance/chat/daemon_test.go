package chat_test

import (
	"encoding/json"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// daemon is "cay serve".
type daemon struct {
	t       *testing.T
	program string
	dir     string
	script  string
	cmd     *exec.Cmd

	URL, Gateway, Token string
}

// startDaemon starts a daemon, which ends with the test.
func startDaemon(t *testing.T, script string) *daemon {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the daemon needs root")
	}
	dir := t.TempDir()
	d := &daemon{t: t, program: filepath.Join(dir, "cay"), dir: dir, script: filepath.Join(dir, "script.yaml")}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", d.program, "../../cmd/cay")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build cay: %v\n%s", err, out)
	}
	if err := os.WriteFile(d.script, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	d.start()
	t.Cleanup(d.kill)
	return d
}

func (d *daemon) start() {
	t := d.t
	t.Helper()
	listen, gateway := "127.0.0.1:0", "127.0.0.1:0"
	if d.URL != "" { // restarted: keep the address, which clients know
		listen, gateway = host(t, d.URL), host(t, d.Gateway)
	}
	d.cmd = exec.Command(d.program, "serve", "--json", "--data", filepath.Join(d.dir, "data"), "--listen", listen, "--gateway-listen", gateway, "--log-level", "warn")
	d.cmd.Env = append(os.Environ(), "CAY_SCRIPT="+d.script)
	d.cmd.Stderr, d.cmd.WaitDelay = t.Output(), 10*time.Second
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
		Gateway   string `json:"gateway_url"`
	}
	if err := json.NewDecoder(out).Decode(&started); err != nil {
		t.Fatalf("the daemon does not say where it is: %v", err)
	}
	token, err := os.ReadFile(started.TokenFile)
	if err != nil {
		t.Fatal(err)
	}
	d.URL, d.Gateway, d.Token = started.URL, started.Gateway, strings.TrimSpace(string(token))
}

// kill kills it with SIGKILL.
func (d *daemon) kill() {
	d.cmd.Process.Kill() // it may have ended
	_ = d.cmd.Wait()     // its error is the kill
}

func host(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// The page's answers come from a model behind the gateway, and a daemon keeps the
// runs: the daemon is killed in the middle of an answer, and the page has the whole
// answer in the end.
func TestPage_Daemon(t *testing.T) {
	complete(t)
	need(t)
	const script = `
replies:
  - match: weather in (\w+)
    turn: 1
    tool_calls:
      - name: weather
        input: {city: Oslo}
  - match: weather
    text: "It is {result}."
`
	d := startDaemon(t, script)
	runs := []string{"-daemon", d.URL}
	env := []string{"DAEMON_TOKEN=" + d.Token, "GATEWAY_KEY=" + d.Token}
	t.Run("scripted", func(t *testing.T) {
		serveProgram(t, env, append(runs, "-gateway", d.Gateway, "-model", "cay/scripted")...).browse("v7", "scripted")
	})
	for _, version := range versions {
		t.Run("killed/"+version, func(t *testing.T) {
			s := serveProgram(t, env, runs...)
			s.kill = func() {
				d.kill()
				d.start()
			}
			s.browse(version, "killed$")
		})
	}
}
