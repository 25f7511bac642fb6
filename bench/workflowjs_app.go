package bench

import (
	"bufio"
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"time"
)

// jsProgram is the app that is measured.
//
//go:embed workload/workflow-js
var jsProgram embed.FS

// jsBuild bounds the build of the app, jsReady its start, and jsRun one run.
const (
	jsBuild = 5 * time.Minute
	jsReady = 2 * time.Minute
	jsRun   = 15 * time.Minute
)

// jsStage is the app, built with one line of the SDK, in one process for each World.
type jsStage struct {
	*jsBench
	line          jsLine
	dir           string // dir/app is the app, dir/node_modules has Worlds
	apps          []*jsApp
	postgres      *postgresServer
	steps, values int // in a run, in a stream

	stepRounds, streamRounds []map[string]jsOutcome
}

// jsApp is a process of the app over a World.
type jsApp struct {
	world string
	// broken says why an opponent did not start.
	broken error
	// serverCPU returns the CPU time of the server behind the World until now, in seconds.
	serverCPU func() (float64, error)

	cmd   *exec.Cmd
	stdin io.Closer
	url   string
}

// open builds the app with a line of the SDK, and starts it over each World.
func (b *jsBench) open(ctx context.Context, line jsLine) (_ *jsStage, err error) {
	s := &jsStage{jsBench: b, line: line, steps: 80, values: b.o.Values}
	if line == jsV5 {
		s.steps = 200
	}
	s.steps = cmp.Or(b.o.Steps, s.steps)
	if s.dir, err = os.MkdirTemp(b.o.WorkDir, "workflow-js-"); err != nil {
		return nil, fmt.Errorf("make directory of the app: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if err := s.build(ctx); err != nil {
		return nil, err
	}
	worlds := []string{jsStock, jsCayhq}
	if b.o.Opponents {
		worlds = append(worlds, jsLocal)
		if b.missingPostgres(line) == "" {
			worlds = append(worlds, jsPostgres)
		}
	}
	for _, world := range worlds {
		a, err := s.start(ctx, world)
		if a != nil {
			s.apps = append(s.apps, a)
		}
		if err == nil {
			err = a.warmUp(ctx)
		}
		if err != nil && (ctx.Err() != nil || world == jsStock || world == jsCayhq) {
			return nil, err
		}
		if err != nil {
			a.broken = err
		}
	}
	return s, nil
}

// build copies the app, and builds it as its users would.
func (s *jsStage) build(ctx context.Context) error {
	const root = "workload/workflow-js"
	program, err := fs.Sub(jsProgram, root)
	if err != nil {
		return fmt.Errorf("copy the app: %w", err)
	}
	app := filepath.Join(s.dir, "app")
	if err := os.CopyFS(app, program); err != nil {
		return fmt.Errorf("copy the app: %w", err)
	}
	packages, err := filepath.Abs(s.installed(s.line))
	if err == nil {
		err = os.Symlink(packages, filepath.Join(app, "node_modules"))
	}
	if err != nil {
		return fmt.Errorf("copy the app: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, jsBuild)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "run", "build")
	cmd.Dir, cmd.Env, cmd.WaitDelay = app, s.env(), 10*time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the app: %w: %s", err, out)
	}
	return s.installWorld(ctx)
}

// installWorld unpacks @cayhq/world, as the daemon serves it, where the app finds it.
func (s *jsStage) installWorld(ctx context.Context) error {
	to := filepath.Join(s.dir, "node_modules", "@cayhq", "world")
	if err := os.MkdirAll(to, 0o755); err != nil {
		return fmt.Errorf("install @cayhq/world: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.o.Daemon.at.URL+"/js/cayhq-world.tgz", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("install @cayhq/world: %w", err)
	}
	defer resp.Body.Close() // it was only read
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("install @cayhq/world: %s", resp.Status)
	}
	cmd := exec.CommandContext(ctx, "tar", "-xz", "--strip-components=1", "-C", to)
	cmd.Stdin, cmd.WaitDelay = resp.Body, 10*time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("install @cayhq/world: %w: %s", err, lastLine(out))
	}
	return nil
}

// env is an environment in which the SDK behaves as for its users.
func (s *jsStage) env(more ...string) []string {
	return append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "XDG_CACHE_HOME=" + filepath.Join(s.dir, ".cache"),
		"npm_config_update_notifier=false", "NODE_ENV=production", "VERCEL_TELEMETRY_DISABLED=1",
	}, more...)
}

// start starts the app over a World, and returns when it listens. It returns the app also
// with an error.
func (s *jsStage) start(ctx context.Context, world string) (*jsApp, error) {
	a := &jsApp{world: world, serverCPU: func() (float64, error) { return 0, nil }}
	port, err := freePort()
	if err != nil {
		return a, err
	}
	d := s.o.Daemon
	argv := []string{"node", "server.mjs"}
	env := s.env(fmt.Sprintf("PORT=%d", port))
	// The daemon shares a deployment's messages among its processes: each app is its own.
	cay := append(env, "CAY_URL="+d.at.URL, "CAY_TOKEN="+d.at.Token, "CAY_DEPLOYMENT=bench-"+string(s.line)+"-"+world)
	switch world {
	case jsStock:
		argv, env = append(s.o.Exec, argv...), cay
	case jsCayhq:
		env = append(cay, "WORKFLOW_TARGET_WORLD=@cayhq/world", "NODE_OPTIONS=--import=@cayhq/world/start")
	case jsLocal:
		env = append(env, "WORKFLOW_TARGET_WORLD=local", "WORKFLOW_LOCAL_DATA_DIR="+filepath.Join(s.dir, "local"))
	case jsPostgres:
		if err := s.setUpPostgres(ctx); err != nil {
			return a, err
		}
		env = append(env, "WORKFLOW_TARGET_WORLD=@workflow/world-postgres", "WORKFLOW_POSTGRES_URL="+s.postgres.DSN, "START_WORLD=1")
		a.serverCPU = s.postgres.cpu
	}
	if world == jsStock || world == jsCayhq {
		a.serverCPU = func() (float64, error) { return threadsCPU(d.PID) }
	}
	a.cmd = exec.Command(argv[0], argv[1:]...)
	a.cmd.Dir, a.cmd.Env, a.cmd.Stderr, a.cmd.SysProcAttr = filepath.Join(s.dir, "app"), env, s.o.Stderr, newSession()
	return a, a.listen(ctx)
}

var jsListens = regexp.MustCompile(`^listening on (http://127\.0\.0\.1:\d+)`)

// listen starts the process and waits until it has said where it listens.
func (a *jsApp) listen(ctx context.Context) error {
	stdin, err := a.cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("start the app: %w", err)
	}
	stdout, err := a.cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("start the app: %w", err)
	}
	if err := a.cmd.Start(); err != nil {
		return fmt.Errorf("start the app: %w", err)
	}
	a.stdin = stdin
	at := make(chan string, 1)
	go func() {
		defer close(at)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if m := jsListens.FindStringSubmatch(lines.Text()); m != nil {
				at <- m[1]
				break
			}
		}
		io.Copy(io.Discard, stdout) // until the process ends
	}()
	timeout := time.NewTimer(jsReady)
	defer timeout.Stop()
	select {
	case url, ok := <-at:
		if !ok {
			return fmt.Errorf("start the app over the World %s: it ended", a.world)
		}
		a.url = url
		return nil
	case <-timeout.C:
		return fmt.Errorf("start the app over the World %s: it does not listen", a.world)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// warmUp runs what is measured once, smaller.
func (a *jsApp) warmUp(ctx context.Context) error {
	if _, err := a.runSteps(ctx, 20); err != nil {
		return err
	}
	_, err := a.runStream(ctx, 10)
	return err
}

// get asks the app and decodes its answer.
func (a *jsApp) get(ctx context.Context, path string, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, jsRun)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+path, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("ask the app over the World %s: %w", a.world, err)
	}
	defer resp.Body.Close() // it was only read
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	if err == nil {
		err = json.Unmarshal(text, answer)
	}
	if err != nil {
		return fmt.Errorf("ask the app over the World %s: %w", a.world, err)
	}
	return nil
}

// close ends the process.
func (a *jsApp) close() error {
	if a.stdin == nil {
		return nil // it has not started
	}
	a.stdin.Close() // the process may be gone
	kill := time.AfterFunc(30*time.Second, func() { syscall.Kill(-a.cmd.Process.Pid, syscall.SIGKILL) })
	defer kill.Stop()
	if err := a.cmd.Wait(); err != nil && a.broken == nil {
		return fmt.Errorf("end the app over the World %s: %w", a.world, err)
	}
	return nil
}

// setUpPostgres starts a server, and lets the vendor's program make its tables.
func (s *jsStage) setUpPostgres(ctx context.Context) error {
	installed, err := filepath.Abs(filepath.Join(s.o.Postgres, "node_modules", "@workflow", "world-postgres"))
	if err != nil {
		return err
	}
	into := filepath.Join(s.dir, "node_modules", "@workflow")
	if err := os.MkdirAll(into, 0o755); err != nil {
		return fmt.Errorf("install @workflow/world-postgres: %w", err)
	}
	if err := os.Symlink(installed, filepath.Join(into, "world-postgres")); err != nil {
		return fmt.Errorf("install @workflow/world-postgres: %w", err)
	}
	if s.postgres, err = startPostgres(ctx, "/var/tmp"); err != nil { // its user cannot enter our own directories
		return err
	}
	cmd := exec.CommandContext(ctx, "node", filepath.Join(installed, "bin", "setup.js"))
	cmd.Dir, cmd.Env, cmd.WaitDelay = s.dir, s.env("WORKFLOW_POSTGRES_URL="+s.postgres.DSN), 10*time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make the tables of @workflow/world-postgres: %w: %s", err, lastLine(out))
	}
	return nil
}

// close ends all processes and removes their files.
func (s *jsStage) close() error {
	var errs []error
	for _, a := range s.apps {
		errs = append(errs, a.close())
	}
	if s.postgres != nil {
		errs = append(errs, s.postgres.stop())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}
