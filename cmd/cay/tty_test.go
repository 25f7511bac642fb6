package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/term"
)

// console is cay running on a terminal of ours.
type console struct {
	t    *testing.T
	cmd  *exec.Cmd
	ptmx *os.File
	seen bytes.Buffer
}

func startConsole(t *testing.T, args ...string) *console {
	t.Helper()
	c := &console{t: t, cmd: exec.CommandContext(t.Context(), "cay", args...)}
	c.cmd.Env = append(os.Environ(), "CAY_DATA="+t.TempDir(), "CAY_URL=", "CAY_TOKEN=", "TERM=xterm-test")
	var err error
	if c.ptmx, err = pty.StartWithSize(c.cmd, &pty.Winsize{Rows: 24, Cols: 80}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.ptmx.Close() })
	if err := c.ptmx.SetReadDeadline(time.Now().Add(5 * time.Minute)); err != nil { // for all that it shows
		t.Fatal(err)
	}
	return c
}

func (c *console) typeText(s string) {
	c.t.Helper()
	if _, err := io.WriteString(c.ptmx, s); err != nil {
		c.t.Fatal(err)
	}
}

// expect reads until the terminal has shown want, and discards the output up to
// there.
func (c *console) expect(want string) {
	c.t.Helper()
	buf := make([]byte, 4096)
	for !strings.Contains(c.seen.String(), want) {
		n, err := c.ptmx.Read(buf)
		c.seen.Write(buf[:n])
		if err != nil {
			c.t.Fatalf("waiting for %q: %v; seen %q", want, err, c.seen.String())
		}
	}
	_, rest, _ := strings.Cut(c.seen.String(), want)
	c.seen.Reset()
	c.seen.WriteString(rest)
}

// state returns the terminal's settings. It avoids Fd, which would make reads of the
// file block beyond its deadline.
func (c *console) state() *term.State {
	c.t.Helper()
	conn, err := c.ptmx.SyscallConn()
	if err != nil {
		c.t.Fatal(err)
	}
	var state *term.State
	if cerr := conn.Control(func(fd uintptr) { state, err = term.GetState(int(fd)) }); cerr != nil || err != nil {
		c.t.Fatal(cerr, err)
	}
	return state
}

func (c *console) exitCode() int {
	c.t.Helper()
	// The terminal has to be read for the process to end.
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(io.Discard, c.ptmx) // ends with EIO when the process has ended
	}()
	_ = c.cmd.Wait() // the code says it all
	<-drained
	return c.cmd.ProcessState.ExitCode()
}

func TestRun_Terminal(t *testing.T) {
	t.Parallel()
	c := startConsole(t, "run", "-q", "-it", "--", "bash", "--norc", "--noprofile", "-i")
	before := c.state()
	c.typeText("stty size; echo $TERM\n")
	c.expect("24 80")
	c.expect("xterm-test")

	// Ctrl-C goes to the program in the foreground, not to cay. The test waits for
	// the program's own output: bash may miss a signal between two commands of a
	// list.
	c.typeText("sh -c 'echo wait\"\"ing; exec sleep 600'\n")
	c.expect("waiting")
	c.typeText("\x03")
	c.typeText("echo still ''here\n")
	c.expect("still here")

	c.typeText("trap 'echo now $(stty size); kill %1' WINCH; sleep 600 & echo rea''dy; wait\n")
	c.expect("ready")
	if err := pty.Setsize(c.ptmx, &pty.Winsize{Rows: 40, Cols: 100}); err != nil {
		t.Fatal(err)
	}
	c.expect("now 40 100")

	c.typeText("exit 7\n")
	if code := c.exitCode(); code != 7 {
		t.Fatalf("exit code %d, want 7", code)
	}
	after := c.state()
	if !reflect.DeepEqual(before, after) {
		t.Fatalf("the terminal was left as %+v, it was %+v", after, before)
	}
}

// Without -i the terminal stays cooked, and Ctrl-C is a signal for the program.
func TestRun_TerminalInterrupt(t *testing.T) {
	t.Parallel()
	c := startConsole(t, "run", "-q", "--", "bash", "-c", "trap 'echo caught; exit 9' INT; sleep 600 & echo ready; wait")
	c.expect("ready")
	c.typeText("\x03")
	c.expect("caught")
	if code := c.exitCode(); code != 9 {
		t.Fatalf("exit code %d, want 9", code)
	}
}

// Progress on a terminal is drawn, and gone when the work is done.
func TestImage_ProgressBar(t *testing.T) {
	t.Parallel()
	c := startConsole(t, "image", "pull", "alpine")
	c.expect("sha256:")
	if code := c.exitCode(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
}
