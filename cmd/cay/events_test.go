package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/sandbox"
)

// Events shows each change of a sandbox once it is ready, until it is interrupted.
func TestEvents(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	cfg.Data, cfg.Listen = t.TempDir(), "127.0.0.1:0"
	b, err := startTestbed(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
	cmd := exec.CommandContext(t.Context(), "cay", "events", "--json")
	cmd.Env = append(os.Environ(), "CAY_URL="+b.url, "CAY_TOKEN="+b.token, "CAY_DATA="+filepath.Join(cfg.Data, "none"))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := json.NewDecoder(bufio.NewReader(out))
	next := func() (c sandbox.Change) {
		t.Helper()
		if err := lines.Decode(&c); err != nil {
			t.Fatal(err)
		}
		return c
	}
	if c := next(); c.Type != sandbox.Ready {
		t.Fatalf("the first change is %+v", c)
	}
	client := sandbox.NewClient(sandbox.ClientOptions{URL: b.url, Token: b.token})
	box, err := client.Create(t.Context(), sandbox.CreateParams{Name: "box"})
	if err != nil {
		t.Fatal(err)
	}
	for c := next(); ; c = next() {
		if c.ID != box.ID || c.Sandbox == nil || c.Sandbox.Name != "box" {
			t.Fatalf("after it was created: %+v", c)
		}
		if c.Sandbox.Status == sandbox.Running {
			break
		}
	}
	if err := client.Delete(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	for c := next(); c.Type != sandbox.Deleted; c = next() {
		if c.ID != box.ID {
			t.Fatalf("after it was deleted: %+v", c)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != exitSignal+int(syscall.SIGINT) {
		t.Errorf("interrupted, it ends with %v", err)
	}
}
