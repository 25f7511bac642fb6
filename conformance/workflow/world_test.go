package workflow

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testenv"
)

// installWorld installs @cayhq/world from a daemon into a directory, with npm.
func installWorld(t *testing.T, dir, daemon string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"private":true}`), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "npm", "install", "--no-audit", "--no-fund", daemon+"/js/cayhq-world.tgz")
	cmd.Dir, cmd.WaitDelay = dir, 10*time.Second
	cmd.Env = append(environment(), "npm_config_cache="+filepath.Join(dir, ".npm"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("npm install: %v\n%s", err, out)
	}
}

// worldEnvironment is all that an app needs of @cayhq/world.
func worldEnvironment(url, token string) []string {
	return append(environment(), "WORKFLOW_TARGET_WORLD=@cayhq/world", "CAY_URL="+url, "CAY_TOKEN="+token, "NODE_OPTIONS=--import=@cayhq/world/start")
}

// startWorld starts the app on its own, with @cayhq/world from the directory above it, and waits
// until it listens.
func (a *app) startWorld(t *testing.T) {
	t.Helper()
	cmd := exec.Command("npm", "start")
	cmd.Env = append(worldEnvironment(a.daemon, a.token), "PORT=0")
	a.listen(t, cmd)
}

// TestCayhqWorld runs the app's workflows over @cayhq/world, which only the environment selects.
func TestCayhqWorld(t *testing.T) {
	need(t, lines...)
	d := testenv.Start(t)
	for _, line := range lines {
		t.Run(line, func(t *testing.T) {
			a := buildApp(t, line, d.URL, d.Token)
			installWorld(t, filepath.Dir(a.dir), d.URL)
			a.startWorld(t)
			t.Run("results", a.testResults)
			t.Run("errors", a.testErrors)
			t.Run("hook", a.testHook)
			t.Run("hook beside a step", a.testHookBeside)
			t.Run("webhook", a.testWebhook)
			t.Run("stream", a.testStream)
			t.Run("cancel", a.testCancel)
			t.Run("secret", a.testWorldSecret)
			t.Run("killed", func(t *testing.T) { a.testKilled(t, a.startWorld) })
		})
	}
}

// Only the app itself may deliver messages.
func (a *app) testWorldSecret(t *testing.T) {
	response, err := http.Post(a.url+"/.well-known/workflow/v1/flow", "application/json", strings.NewReader(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusUnauthorized {
		t.Errorf("a delivery of somebody else: %s %q, %v", response.Status, text, err)
	}
}

// TestCayhqWorldTesting runs the SDK's own suite for Worlds over @cayhq/world.
func TestCayhqWorldTesting(t *testing.T) {
	need(t, "testing")
	d := testenv.Start(t)
	dir := t.TempDir()
	installWorld(t, dir, d.URL)
	report := filepath.Join(dir, "report.json")
	preload, err := filepath.Abs("testing/node20.mjs")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npx", "vitest", "run", "--config", "cayhq.config.mjs", "--reporter=json", "--outputFile="+report)
	cmd.Dir, cmd.WaitDelay, cmd.Stdout, cmd.Stderr = "testing", 10*time.Second, t.Output(), t.Output()
	cmd.Env = append(environment(), "CAY_URL="+d.URL, "CAY_TOKEN="+d.Token, "NODE_OPTIONS=--import="+preload,
		"CAY_TEST_WORLD="+filepath.Join(dir, "node_modules/@cayhq/world/dist/index.js"))
	failed := cmd.Run() // also when a test fails
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatalf("%v; the suite: %v", err, failed)
	}
	var results struct {
		TestResults []struct {
			AssertionResults []struct {
				FullName        string
				Status          string
				FailureMessages []string
			}
		}
	}
	if err := json.Unmarshal(text, &results); err != nil {
		t.Fatal(err)
	}
	passed := 0
	for _, file := range results.TestResults {
		for _, r := range file.AssertionResults {
			t.Run(r.FullName, func(t *testing.T) {
				if r.Status != "passed" {
					t.Errorf("%s: %s", r.Status, strings.Join(r.FailureMessages, "\n"))
					return
				}
				passed++
			})
		}
	}
	if passed < 12 {
		t.Errorf("%d tests passed, want 12 or more: %v", passed, failed)
	}
}
