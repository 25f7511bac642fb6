package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// clients are the clients for JavaScript: see clients.mjs.
var clients = []string{
	"openai-v6", "openai-v7", "responses-v6", "responses-v7", "anthropic-v0", "anthropic-v1", "ai-v5", "ai-v6", "ai-v7",
}

// pythons are the clients for Python: see python/cases.py.
var pythons = []string{"openai", "responses", "anthropic"}

// complete skips a test with -short, by which make conformance-short runs a part of this
// suite for every change.
func complete(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("make conformance-gateway runs this")
	}
}

// need skips a test unless make conformance-gateway runs it, which installs the
// requirements.
func need(t *testing.T, path string) {
	t.Helper()
	if os.Getenv("CAY_CONFORMANCE") == "" {
		t.Skip("make conformance-gateway runs this")
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%s is missing; make conformance-gateway-deps installs it", path)
	}
}

// patience is how long a test program may run, on a busy machine.
const patience = 9 * time.Minute

// outcome is a case of a test program.
type outcome struct {
	Name  string `json:"name"`
	OK    bool   `json:"ok"`
	Skip  string `json:"skip"`
	MS    int    `json:"ms"`
	Error string `json:"error"`
}

// node runs a test program with a client.
func node(t *testing.T, w world, client, program string) {
	t.Helper()
	args := []string{"--test-reporter=../vercel/reporter.mjs"}
	if pattern := os.Getenv("CAY_CASES"); pattern != "" {
		args = append(args, "--test-name-pattern="+pattern)
	}
	run(t, w, client, "node", append(args, program)...)
}

// run runs a program that writes an outcome in each line, and makes a subtest of
// each.
func run(t *testing.T, w world, client, name string, args ...string) {
	t.Helper()
	told, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "world.json")
	if err := os.WriteFile(file, told, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(environment(), "CAY_WORLD="+file, "CAY_CLIENT="+client, "CAY_CASES="+os.Getenv("CAY_CASES"))
	cmd.Stderr = t.Output()
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	passed, failed := 0, 0
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<22)
	for lines.Scan() {
		var o outcome
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil || o.Name == "" {
			t.Log(lines.Text())
			continue
		}
		if o.OK {
			passed++
		} else {
			failed++
		}
		t.Run(o.Name, func(t *testing.T) {
			switch {
			case !o.OK:
				t.Error(o.Error)
			case o.Skip != "":
				t.Skip(o.Skip)
			}
		})
	}
	if err := errors.Join(lines.Err(), cmd.Wait()); err != nil && failed == 0 {
		t.Errorf("%s: %v", filepath.Base(args[len(args)-1]), err)
	}
	if passed+failed == 0 && os.Getenv("CAY_CASES") == "" {
		t.Error("there are no cases")
	}
	counted(t.Name(), passed, failed)
}

// environment returns the test's environment, without variables that would change
// the clients' behaviour.
func environment() []string {
	var env []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		theirs := false
		for _, prefix := range []string{"OPENAI_", "ANTHROPIC_", "AI_", "VERCEL_", "NODE_", "CAY_"} {
			theirs = theirs || strings.HasPrefix(name, prefix)
		}
		if !theirs && !strings.HasSuffix(strings.ToLower(name), "_proxy") {
			env = append(env, kv)
		}
	}
	return append(env, "VERCEL_TELEMETRY_DISABLED=1")
}

// TestProviders runs clients against the providers themselves, without the gateway,
// to check that the simulated providers behave as clients expect.
func TestProviders(t *testing.T) {
	complete(t)
	need(t, "node_modules")
	p := play(t)
	for _, client := range []string{"openai-v7", "responses-v7", "anthropic-v1"} {
		t.Run(client, func(t *testing.T) { node(t, p.direct(), client, "clients.test.mjs") })
	}
}

// tried returns the clients that run a table of cases, with -short only the newest ones.
func tried(newest ...string) []string {
	if testing.Short() {
		return newest
	}
	return clients
}

// TestClients runs the table of cases with each client.
func TestClients(t *testing.T) {
	need(t, "node_modules")
	s := open(t)
	for _, client := range tried("openai-v7", "anthropic-v1", "ai-v7") {
		t.Run(client, func(t *testing.T) { node(t, s.world, client, "clients.test.mjs") })
	}
}

// TestKinds runs the calls of other kinds of models.
func TestKinds(t *testing.T) {
	complete(t)
	need(t, "node_modules")
	s := open(t)
	for _, client := range clients {
		t.Run(client, func(t *testing.T) { node(t, s.world, client, "kinds.test.mjs") })
	}
}

// TestReplay checks that each client understands the providers' recorded answers.
func TestReplay(t *testing.T) {
	need(t, "node_modules")
	s := open(t)
	for _, client := range tried("ai-v7") {
		t.Run(client, func(t *testing.T) {
			w := s.world
			w.Recorded = s.recordings(t, client)
			node(t, w, client, "replay.test.mjs")
		})
	}
}

// TestPython runs the cases of the clients for Python.
func TestPython(t *testing.T) {
	complete(t)
	need(t, ".venv")
	s := open(t)
	for _, client := range pythons {
		t.Run(client, func(t *testing.T) { run(t, s.world, client, ".venv/bin/python", "-B", "python/cases.py") })
	}
}
