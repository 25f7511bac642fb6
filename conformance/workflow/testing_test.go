package workflow

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testenv"
)

// TestWorld runs the SDK's own suite for Worlds, over its client of the hosted service.
func TestWorld(t *testing.T) {
	need(t, "testing")
	d := testenv.Start(t)
	report := filepath.Join(t.TempDir(), "report.json")
	preload, err := filepath.Abs("testing/node20.mjs")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program(t), "vercel", "exec", "--deployment", "world-testing", "--",
		"npx", "vitest", "run", "--reporter=json", "--outputFile="+report)
	cmd.Dir, cmd.WaitDelay, cmd.Stdout, cmd.Stderr = "testing", 10*time.Second, t.Output(), t.Output()
	cmd.Env = append(environment(), "CAY_URL="+d.URL, "CAY_TOKEN="+d.Token, "XDG_CACHE_HOME="+t.TempDir(), "NODE_OPTIONS=--import="+preload)
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
