package daemon_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/backup"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/daemon"
	"github.com/cayhq/cay/internal/embedded"
	"github.com/cayhq/cay/internal/image/imagetest"
	"github.com/cayhq/cay/internal/sandboxd/gvisor"
	"github.com/cayhq/cay/internal/testenv"
	"github.com/cayhq/cay/sandbox"
)

// daemonEnv makes the test binary a daemon over the directory it names.
const daemonEnv = "CAY_TEST_DAEMON"

// ephemeralEnv makes the test binary a command with an engine of its own, which
// hangs.
const ephemeralEnv = "CAY_TEST_EPHEMERAL"

func TestMain(m *testing.M) {
	os.Exit(func() int {
		if data := os.Getenv(daemonEnv); data != "" && !isHelper() {
			return beDaemon(data)
		}
		if data := os.Getenv(ephemeralEnv); data != "" && !isHelper() {
			return beEphemeral(data)
		}
		if isHelper() {
			return testenv.Main(m)
		}
		undo, err := trustInternet()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer undo()
		return testenv.Main(m)
	}())
}

// isHelper reports whether gVisor started this process: helpers inherit no
// environment variables, so they must be recognised by other means.
func isHelper() bool {
	return strings.HasPrefix(os.Args[0], "runsc-") || os.Args[0] == "/proc/self/exe"
}

func settings(data string) config.Config {
	cfg := config.Default()
	cfg.Data, cfg.Listen = data, "127.0.0.1:0"
	return cfg
}

func beDaemon(data string) int {
	out, log := detached()
	opts, err := outpost(os.Getenv(internetEnv))
	if err == nil {
		opts.Handover, err = handoverOptions(out, log)
	}
	if err == nil {
		opts.Logger = slog.New(slog.NewTextHandler(log, nil))
		err = daemon.Run(context.Background(), settings(data), opts, func(url, _ string) { fmt.Fprintln(out, url) })
	}
	fmt.Fprintln(log, err)
	return 1
}

// detached replaces the standard streams, as main does. Sandboxes that held them
// would keep a test waiting for their end.
func detached() (out, log *os.File) {
	out, log = os.Stdout, os.Stderr
	if err := gvisor.DetachStdio(); err != nil {
		panic(err)
	}
	return out, log
}

func beEphemeral(data string) int {
	out, log := detached()
	c, _, err := daemon.Ephemeral(context.Background(), settings(data), slog.New(slog.DiscardHandler))
	if err == nil {
		_, err = c.Create(context.Background(), sandbox.CreateParams{Name: "left"})
	}
	if err != nil {
		fmt.Fprintln(log, err)
		return 1
	}
	fmt.Fprintln(out, "ready")
	select {}
}

// process is the test binary in another role.
type process struct {
	*exec.Cmd
	first string // line of its output
}

// spawn starts a process over data, with additional environment variables.
func spawn(t *testing.T, env, data string, more ...string) *process {
	t.Helper()
	return spawnWith(t, func(*exec.Cmd) {}, env, data, more...)
}

// spawnWith is spawn of a process that change prepares.
func spawnWith(t *testing.T, change func(*exec.Cmd), env, data string, more ...string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), env+"="+data), more...)
	cmd.Stderr = t.Output()
	change(cmd)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: cmd}
	t.Cleanup(p.kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the process says nothing: %v", err)
	}
	p.first = strings.TrimSpace(line)
	return p
}

// kill is kill -9.
func (p *process) kill() {
	p.Process.Kill()
	p.Wait()
}

// data returns a data directory that shares the test images.
func data(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("starting sandboxes needs root")
	}
	imagetest.Acquire(t, "debian")
	imagetest.Acquire(t, "node24")
	dir := t.TempDir()
	if err := os.Symlink(imagetest.Dir(t), filepath.Join(dir, "images")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func client(t *testing.T, url, data string) *sandbox.Client {
	t.Helper()
	token, err := os.ReadFile(filepath.Join(data, "admin.token"))
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return sandbox.NewClient(sandbox.ClientOptions{URL: url, Token: strings.TrimSpace(string(token)), HTTPClient: &http.Client{Transport: tr}})
}

// sentries counts the sentries whose state is below dir. It checks that sentries
// run the program cay-sentry, if this build has cay-sentry embedded.
func sentries(t *testing.T, dir string) int {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, path := range all {
		if b, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(b), "runsc-sandbox\x00") && strings.Contains(string(b), dir) {
			n++
			program, err := os.Readlink(filepath.Join(filepath.Dir(path), "exe"))
			if err == nil && embedded.Sentry() != nil && !strings.HasPrefix(filepath.Base(program), "cay-sentry-") {
				t.Errorf("a sentry is a process of %s", program)
			}
		}
	}
	return n
}

// awaitSentries waits until there are as many sentries as sandboxes: a sentry that
// was starting when its daemon was killed takes a moment to end.
func awaitSentries(t *testing.T, dir string, sandboxes int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
		n := sentries(t, dir)
		if n == sandboxes {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%d sentries for %d sandboxes", n, sandboxes)
			return
		}
	}
}

// Row I11: a killed daemon loses no running sandbox, and the next daemon cleans
// up everything else.
func TestDaemon_Killed(t *testing.T) {
	dir := data(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	first := spawn(t, daemonEnv, dir)
	c := client(t, first.first, dir)
	running, err := c.Create(ctx, sandbox.CreateParams{Name: "running", Network: sandbox.Network{Mode: sandbox.DenyAll}})
	if err != nil {
		t.Fatal(err)
	}
	paused, err := c.Create(ctx, sandbox.CreateParams{Name: "paused"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Pause(ctx, "paused"); err != nil {
		t.Fatal(err)
	}
	dead, err := c.Create(ctx, sandbox.CreateParams{Name: "dead"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.WriteFile(ctx, "running", "file", strings.NewReader("kept"), sandbox.WriteParams{}); err != nil {
		t.Fatal(err)
	}
	cmd, err := c.Start(ctx, "running", sandbox.CommandParams{Argv: []string{"sh", "-c", "echo before; read x; echo $x; exit 5"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	// Creations under way, too.
	for i := range 4 {
		go c.Create(ctx, sandbox.CreateParams{Name: fmt.Sprintf("half-%d", i)})
	}
	first.kill()
	if n := sentries(t, dir); n < 3 {
		t.Fatalf("%d sentries survive the daemon, want at least 3", n)
	}
	if err := exec.Command("pkill", "-9", "-f", "runsc-sandbox .*"+dead.SessionID).Run(); err != nil {
		t.Fatalf("kill a sentry meanwhile: %v", err)
	}

	second := spawn(t, daemonEnv, dir)
	c = client(t, second.first, dir)
	for name, want := range map[string]sandbox.Status{"running": sandbox.Running, "paused": sandbox.Paused, "dead": sandbox.Failed} {
		s, err := c.Get(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		if s.Status != want {
			t.Errorf("%s is %s (%s %s), want %s", name, s.Status, s.Reason, s.Message, want)
		}
	}
	if s, err := c.Get(ctx, running.ID); err != nil || s.Network.Mode != sandbox.DenyAll {
		t.Errorf("the network policy of the adopted sandbox: %+v, %v", s, err)
	}
	body, _, err := c.ReadFile(ctx, "running", "file", sandbox.ReadParams{})
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if b, err := io.ReadAll(body); err != nil || string(b) != "kept" {
		t.Errorf("file: %q, %v", b, err)
	}
	if err := c.WriteStdin(ctx, "running", cmd.ID, strings.NewReader("after\n"), true); err != nil {
		t.Fatal(err)
	}
	if done, err := c.Wait(ctx, "running", cmd.ID); err != nil || done.Exit == nil || done.Exit.Code != 5 {
		t.Errorf("the command: %+v, %v", done, err)
	}
	if _, err := c.Resume(ctx, paused.ID, sandbox.ResumeParams{}); err != nil {
		t.Error(err)
	}
	if r, err := c.Run(ctx, paused.ID, sandbox.CommandParams{Argv: []string{"echo", "awake"}}); err != nil || string(r.Stdout) != "awake\n" {
		t.Errorf("after resume: %+v, %v", r, err)
	}
	// Sandboxes that were being created have failed, and have no sentry.
	page, err := c.List(ctx, sandbox.ListParams{NamePrefix: "half-"})
	if err != nil {
		t.Fatal(err)
	}
	alive := 2
	for _, s := range page.Items {
		switch s.Status {
		case sandbox.Running:
			alive++
		case sandbox.Failed:
		default:
			t.Errorf("%s is %s", s.Name, s.Status)
		}
	}
	awaitSentries(t, dir, alive)

	page, err = c.List(ctx, sandbox.ListParams{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range page.Items {
		if err := c.Delete(ctx, s.ID); err != nil {
			t.Error(err)
		}
	}
	second.kill()
	awaitSentries(t, dir, 0)
	if left, _ := filepath.Glob(filepath.Join(dir, "machines", "ses_*")); len(left) != 0 {
		t.Errorf("left below machines: %q", left)
	}
}

// A killed command with an engine of its own leaves sandboxes behind until the
// next one starts.
func TestEphemeral_Killed(t *testing.T) {
	dir := data(t)
	p := spawn(t, ephemeralEnv, dir)
	if n := sentries(t, dir); n != 1 {
		t.Fatalf("%d sentries, want 1", n)
	}
	other := spawn(t, ephemeralEnv, dir) // a daemon does not reap another live one
	if n := sentries(t, dir); n != 2 {
		t.Fatalf("%d sentries, want 2", n)
	}
	p.kill()
	other.kill()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, stop, err := daemon.Ephemeral(ctx, settings(dir), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if n := sentries(t, dir); n != 0 {
		t.Errorf("%d sentries were not reaped", n)
	}
	if r, err := c.List(ctx, sandbox.ListParams{}); err != nil || len(r.Items) != 0 {
		t.Errorf("list: %+v, %v", r, err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "run", "*")); len(left) != 0 {
		t.Errorf("left below run: %q", left)
	}
}

func TestDaemon_OneForADirectory(t *testing.T) {
	dir := data(t)
	spawn(t, daemonEnv, dir)
	_, err := daemon.New(t.Context(), settings(dir), daemon.Options{})
	if !errors.Is(err, &cay.Error{Code: cay.Conflict}) {
		t.Errorf("a second daemon: %v, want conflict", err)
	}
}

// The public routes need no token, metrics need an operator's.
func TestDaemon_Routes(t *testing.T) {
	env := testenv.Start(t)
	get := func(path, token string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), "GET", env.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(b)
	}
	for _, tt := range []struct {
		path, token, want string
		status            int
	}{
		{"/healthz", "", `{"status":"ok"}`, 200},
		{"/v1/version", "", "unauthenticated", 401},
		{"/v1/version", env.Token, `"version"`, 200},
		{"/v1/openapi.json", "", `"/v1/sandboxes/{ref}"`, 200},
		{"/.well-known/openid-configuration", "", `"issuer":"` + env.URL + `"`, 200},
		{"/.well-known/jwks", "", `"RS256"`, 200},
		{"/oauth/device", "", "Approve a login", 200},
		{"/metrics", "", "unauthenticated", 401},
		{"/metrics", env.Token, "cay_sandboxes 0", 200},
		{"/v1/sandboxes", "", "unauthenticated", 401},
		{"/v1/sandboxes", "cay_wrong", "unauthenticated", 401},
		{"/nowhere", env.Token, "not_found", 404},
	} {
		if status, body := get(tt.path, tt.token); status != tt.status || !strings.Contains(body, tt.want) {
			t.Errorf("GET %s: %d %.200s, want %d with %s", tt.path, status, body, tt.status, tt.want)
		}
	}
	if _, err := env.Client.Create(t.Context(), sandbox.CreateParams{}); err != nil {
		t.Fatal(err)
	}
	if _, body := get("/metrics", env.Token); !strings.Contains(body, "cay_sandboxes 1") || !strings.Contains(body, "cay_sandbox_create_seconds") {
		t.Error("metrics do not count the sandbox")
	}
}

// Row N23: a caller's image reference cannot direct the daemon into the
// operator's network.
func TestDaemon_PullGuard(t *testing.T) {
	reached := false
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	defer inside.Close()
	ref := strings.TrimPrefix(inside.URL, "http://") + "/secret:latest"

	env := testenv.Start(t)
	if _, err := env.Client.Images().Pull(t.Context(), ref, nil); err == nil || reached {
		t.Errorf("pull of %s: %v, reached: %t", ref, err, reached)
	}
	env = testenv.Start(t, func(c *config.Config) { c.AllowRanges = []string{"127.0.0.0/8"} })
	if _, err := env.Client.Images().Pull(t.Context(), ref, nil); err == nil || !reached {
		t.Errorf("pull from an allowed range: %v, reached: %t", err, reached)
	}
}

// A daemon does not start on a directory whose restore was not finished, and leaves it as
// it is.
func TestDaemon_unfinishedRestore(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	cfg.Data = t.TempDir()
	marker := filepath.Join(cfg.Data, backup.Marker)
	if err := os.WriteFile(marker, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := daemon.New(t.Context(), cfg, daemon.Options{NoWorkflows: true, NoGateway: true})
	if cay.CodeOf(err) != cay.Conflict || !strings.Contains(err.Error(), "was not finished") {
		t.Errorf("a daemon on half a backup: %v", err)
	}
	if _, err := os.Stat(marker); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(cfg.DatabaseFile()); err == nil {
		t.Error("it has made a database")
	}
}
