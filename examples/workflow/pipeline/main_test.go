package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cayhq/cay/examples/workflow/crashtest"
	"github.com/cayhq/cay/internal/image/imagetest"
	"github.com/cayhq/cay/internal/sandboxd/gvisor"
	"github.com/cayhq/cay/internal/testenv"
	"github.com/cayhq/cay/sandbox"
)

// asDaemon makes the test binary a daemon.
const asDaemon = "CAY_EXAMPLE_DAEMON"

func TestMain(m *testing.M) {
	gvisor.HandleReexec()
	switch {
	case crashtest.IsProgram():
		main()
	case os.Getenv(asDaemon) != "":
		os.Exit(daemon())
	default:
		os.Exit(m.Run())
	}
}

// daemon prints its address, and serves until its input ends.
func daemon() int {
	stop, err := testenv.Examples()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer stop()
	fmt.Printf("CAY_URL=%s CAY_TOKEN=%s\n", os.Getenv("CAY_URL"), os.Getenv("CAY_TOKEN"))
	_, _ = io.Copy(io.Discard, os.Stdin) // wait for its end
	return 0
}

// startDaemon starts a daemon in a process of its own, as users do: other
// programs that this process starts while it starts sandboxes would inherit the
// sandboxes' open files. It returns the environment variables with the daemon's
// address.
func startDaemon(t *testing.T) []string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("starting sandboxes needs root")
	}
	for _, ref := range []string{"debian", "python3.13"} {
		imagetest.Acquire(t, ref)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), asDaemon+"=1", "CAY_TEST_IMAGES="+imagetest.Dir(t))
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the daemon ended with %v", err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the daemon did not start: %v", err)
	}
	return strings.Fields(line)
}

// Killed at each stage, the program ends with one report of one start of one
// command, and no sandbox is left.
func TestPipeline_Killed(t *testing.T) {
	if testing.Short() {
		t.Skip("starts sandboxes")
	}
	vars := startDaemon(t)
	t.Run("databases", func(t *testing.T) {
		crashtest.Databases(t, func(t *testing.T, db string) {
			args := []string{"-db", db, "-seconds", "2", "-key", t.Name()}
			for _, stage := range []string{"is run", "sandbox.create", "sandbox.write-files", "sandbox.start"} {
				p := crashtest.StartEnv(t, vars, args...)
				p.Expect(stage)
				p.Kill()
			}
			got := crashtest.StartEnv(t, vars, args...).Wait()
			if want := "1000 numbers, mean 508.25, analysed by 1 start(s)"; !strings.Contains(got, want) {
				t.Errorf("it printed\n%s\nwant %s", got, want)
			}
		})
	})
	url, token := strings.TrimPrefix(vars[0], "CAY_URL="), strings.TrimPrefix(vars[1], "CAY_TOKEN=")
	c := sandbox.NewClient(sandbox.ClientOptions{URL: url, Token: token})
	page, err := c.List(context.Background(), sandbox.ListParams{Status: []sandbox.Status{
		sandbox.Pending, sandbox.Running, sandbox.Paused, sandbox.Stopping, sandbox.Hibernated, sandbox.Resuming,
	}})
	if err != nil || len(page.Items) > 0 {
		t.Errorf("sandboxes left: %+v, %v", page, err)
	}
}
