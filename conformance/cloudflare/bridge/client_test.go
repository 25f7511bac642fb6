package bridge

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/compat/cloudflare"
	"github.com/cayhq/cay/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// The client of the OpenAI Agents SDK.
func TestOpenAIAgents(t *testing.T) {
	if os.Getenv("CAY_CONFORMANCE") == "" {
		t.Skip("make conformance-cloudflare runs this")
	}
	if _, err := os.Stat("node_modules"); err != nil {
		t.Fatalf("%v; make conformance-cloudflare-deps makes it", err)
	}
	env := testenv.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "client.mjs")
	cmd.Env = append(os.Environ(), "CAY_BRIDGE="+env.URL+cloudflare.Prefix, "CAY_TOKEN="+env.Token, "OPENAI_AGENTS_DISABLE_TRACING=1")
	cmd.Stderr, cmd.WaitDelay = t.Output(), 10*time.Second
	out, err := cmd.Output()
	steps := 0
	lines := bufio.NewScanner(strings.NewReader(string(out)))
	for lines.Scan() {
		if name, ok := strings.CutPrefix(lines.Text(), "ok "); ok {
			steps++
			t.Run(name, func(*testing.T) {})
		} else if why, ok := strings.CutPrefix(lines.Text(), "not ok "); ok {
			name, why, _ := strings.Cut(why, ": ")
			t.Run(name, func(t *testing.T) { t.Error(why) })
		} else {
			t.Log(lines.Text())
		}
	}
	if err != nil || steps < 14 {
		t.Errorf("%d steps passed, %v", steps, err)
	}
}
