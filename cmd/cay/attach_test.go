package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// A signal that arrives while a program is being started, and that start never
// succeeds, ends the command line: the signal is not forwarded to a program that
// was never seen.
func TestExec_SignalBeforeStart(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Error(err)
		}
		asked <- r.Method + " " + r.URL.Path
		<-r.Context().Done() // a sandbox that does not answer
	}))
	t.Cleanup(server.Close)
	cmd := exec.CommandContext(t.Context(), "cay", "sandbox", "exec", "box", "--", "true")
	cmd.Env = append(os.Environ(), "CAY_DATA="+t.TempDir(), "CAY_URL="+server.URL, "CAY_TOKEN=cay_"+strings.Repeat("A", 43))
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case got := <-asked:
		if got != "POST /v1/sandboxes/box/commands" {
			t.Errorf("cay asked for %s", got)
		}
	case err := <-ended:
		t.Fatalf("cay ended before it asked for anything: %v", err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; cmd.ProcessState.ExitCode() != 128+int(syscall.SIGTERM) {
		t.Errorf("cay ended with %v", err)
	}
}
