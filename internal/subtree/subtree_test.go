package subtree_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/subtree"
)

// patience bounds the time that a child may take on a busy machine.
const patience = time.Minute

// TestMain also plays the process whose descendants are ended, because a test runner
// has children of its own.
func TestMain(m *testing.M) {
	if script := os.Getenv("SUBTREE_SCRIPT"); script != "" {
		if err := root(script, os.Getenv("SUBTREE_KILL") != ""); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// root runs a script, and ends the processes that the script leaves behind.
func root(script string, kill bool) error {
	if err := subtree.Adopt(); err != nil {
		return err
	}
	c := exec.Command("sh", "-c", script)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	failed := c.Run()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if kill {
		cancel()
	} else {
		failed = errors.Join(failed, subtree.Signal(unix.SIGTERM))
	}
	return errors.Join(failed, subtree.End(ctx))
}

// run runs root in a process of its own and returns the script's output.
func run(t *testing.T, script string, env ...string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	c := exec.CommandContext(ctx, os.Args[0])
	c.Env = append(os.Environ(), append(env, "SUBTREE_SCRIPT="+script)...)
	c.Stderr = t.Output()
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	// The pipe ends when the last process that the script has started ends.
	text, err := io.ReadAll(bufio.NewReader(out))
	if err != nil {
		t.Error(err)
	}
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(text))
}

// gone fails the test if a process still exists.
func gone(t *testing.T, pid string) {
	t.Helper()
	n, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(n, 0); err != unix.ESRCH {
		t.Errorf("process %d: %v, want that it has ended", n, err)
	}
}

// A process in a session of its own whose parents have ended gets the signal, and End
// waits for the process's reaction.
func TestSignal(t *testing.T) {
	t.Parallel()
	said := run(t, `
		mkfifo $SUBTREE_DIR/ready
		setsid sh -c 'trap "echo told; exit 0" TERM; echo $$; echo >$SUBTREE_DIR/ready; while :; do sleep 0.05; done' &
		read -r _ <$SUBTREE_DIR/ready`, "SUBTREE_DIR="+t.TempDir())
	if len(said) != 2 || said[1] != "told" {
		t.Fatalf("the process wrote %q, want its id, and that it was told to end", said)
	}
	gone(t, said[0])
}

// Processes that ignore signals, and start others, are killed.
func TestEnd_kills(t *testing.T) {
	t.Parallel()
	said := run(t, `
		for i in 1 2 3; do
			mkfifo $SUBTREE_DIR/$i
			setsid sh -c 'trap "" TERM HUP INT; echo $$; echo >$SUBTREE_DIR/$0; for n in $(seq 1000); do sh -c "sleep 60 & sleep 0.01"; done' $i &
			read -r _ <$SUBTREE_DIR/$i
		done`, "SUBTREE_DIR="+t.TempDir(), "SUBTREE_KILL=1")
	if len(said) != 3 {
		t.Fatalf("the processes wrote %q, want three ids", said)
	}
	for _, pid := range said {
		gone(t, pid)
	}
}
