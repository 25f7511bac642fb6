package vercel

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// clients are the versions of the SDK, by their names in package.json.
var clients = []string{"sandbox-v1", "sandbox-v2", "sandbox-v3"}

// tried returns the clients that run the cases, with -short only the newest.
func tried() []string {
	if testing.Short() {
		return clients[len(clients)-1:]
	}
	return clients
}

// TestSDK runs the table of cases with each version of the SDK.
func TestSDK(t *testing.T) {
	need(t, "node_modules")
	s := open(t)
	for _, client := range tried() {
		name := strings.TrimPrefix(client, "sandbox-")
		t.Run(name, func(t *testing.T) {
			s.cases(t, "sdk.test.mjs", s.world(t, name), "CAY_SDK="+client)
		})
	}
}

// TestVersions runs the cases that involve several versions of the SDK.
func TestVersions(t *testing.T) {
	complete(t)
	need(t, "node_modules")
	s := open(t)
	s.cases(t, "versions.test.mjs", s.world(t, "versions"))
}

// TestClient runs the client of the vendor's whole API.
func TestClient(t *testing.T) {
	need(t, "node_modules")
	s := open(t)
	s.cases(t, "client.test.mjs", s.world(t, "client"))
}

// TestSettings runs the cases that need a daemon with other settings.
func TestSettings(t *testing.T) {
	complete(t)
	need(t, "node_modules")
	t.Run("slow", func(t *testing.T) {
		s := open(t, func(c *config.Config) { c.VercelHeaderDelay = 100 * time.Millisecond })
		s.cases(t, "slow.test.mjs", s.world(t, "slow"))
	})
	t.Run("receiver", func(t *testing.T) {
		s := open(t, func(c *config.Config) { c.PublicURL = "https://oidc.vercel.com" })
		s.cases(t, "receiver.test.mjs", s.world(t, "receiver"))
	})
}

// complete skips a test with -short, by which make conformance-short runs a part of this
// suite for every change.
func complete(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("make conformance-vercel runs this")
	}
}

// need skips a test unless make conformance-vercel runs it, which installs the
// requirements: the tests take minutes, too long for every run of all tests.
func need(t *testing.T, path string) {
	t.Helper()
	if os.Getenv("CAY_CONFORMANCE") == "" {
		t.Skip("make conformance-vercel runs this")
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%s is missing; make conformance-vercel-deps installs it", path)
	}
}

// patience is how long a test program may run, on a busy machine.
const patience = 9 * time.Minute

// outcome is a case of a test program: see reporter.mjs.
type outcome struct {
	Name  string `json:"name"`
	OK    bool   `json:"ok"`
	Skip  string `json:"skip"`
	MS    int    `json:"ms"`
	Error string `json:"error"`
}

// cases runs a test program. Each of its cases is a subtest.
func (s *site) cases(t *testing.T, program string, w world, env ...string) {
	t.Helper()
	told, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"--import=" + s.preload, "--test-reporter=./reporter.mjs"}
	pattern := os.Getenv("CAY_CASES")
	if pattern != "" {
		args = append(args, "--test-name-pattern="+pattern)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", append(args, program)...)
	cmd.Env = append(append(environment(), "CAY_WORLD="+string(told)), env...)
	report(t, cmd, program, pattern == "")
}

// report runs a program that writes an outcome in each line, and makes a subtest
// of each.
func report(t *testing.T, cmd *exec.Cmd, program string, whole bool) {
	t.Helper()
	cmd.Stderr = t.Output()
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var outcomes []outcome
	failed := false
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var o outcome
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil || o.Name == "" {
			t.Logf("%s: %s", program, lines.Text())
			continue
		}
		outcomes = append(outcomes, o)
		failed = failed || !o.OK
	}
	if err := errors.Join(lines.Err(), cmd.Wait()); err != nil && !failed {
		t.Errorf("%s: %v", program, err)
	}
	if len(outcomes) == 0 && whole {
		t.Errorf("%s has no cases", program)
	}
	for _, o := range outcomes {
		t.Run(o.Name, func(t *testing.T) {
			t.Logf("in %d ms", o.MS)
			switch {
			case !o.OK:
				t.Error(o.Error)
			case o.Skip != "":
				t.Skip(o.Skip)
			}
		})
	}
}

// environment returns the test's environment, without variables that would
// change the clients' behaviour.
func environment() []string {
	var env []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		theirs := strings.HasPrefix(name, "VERCEL_") || strings.HasPrefix(name, "NODE_") || strings.HasPrefix(name, "CAY_")
		if !theirs && name != "SSL_CERT_DIR" && name != "CI" { // in CI they ask nobody
			env = append(env, kv)
		}
	}
	return append(env, "VERCEL_TELEMETRY_DISABLED=1")
}
