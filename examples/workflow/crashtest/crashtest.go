// Package crashtest kills the examples while they run. A test of an example starts
// the test binary again as that example, in a process of its own, reads its
// output, kills it with SIGKILL, and restarts it on the same database.
package crashtest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/db/pgtest"
)

// asProgram makes a test binary run as the example.
const asProgram = "CAY_EXAMPLE"

// Main runs the tests of an example, or, in a process that Start started, the
// example: its main function. Tests call it from TestMain.
func Main(m *testing.M, program func()) int {
	if IsProgram() {
		program()
		return 0
	}
	return m.Run()
}

// IsProgram reports whether this process must run as the example, for a TestMain
// that has more to do.
func IsProgram() bool { return os.Getenv(asProgram) != "" }

// Databases runs a test on SQLite and on PostgreSQL. db is the value of the
// examples' flag -db.
func Databases(t *testing.T, test func(t *testing.T, db string)) {
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		test(t, filepath.Join(t.TempDir(), "workflows.db"))
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		test(t, pgtest.DSN(t))
	})
}

// patience bounds every wait of a test.
const patience = 60 * time.Second

// Process is a running example.
type Process struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan string   // its output; closed at its end
	done  chan struct{} // closed when it has been waited for
	err   error         // how it ended; once done is closed

	mu  sync.Mutex // guards all
	all []string   // lines read by Expect and Wait
}

// Start starts the example. If the example still runs at the end of the test, it
// is killed.
func Start(t *testing.T, args ...string) *Process {
	return StartEnv(t, nil, args...)
}

// StartEnv is Start with additional environment variables.
func StartEnv(t *testing.T, env []string, args ...string) *Process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{t: t, cmd: exec.Command(self, args...), lines: make(chan string, 10000), done: make(chan struct{})}
	p.cmd.Env = append(append(os.Environ(), env...), asProgram+"=1")
	p.cmd.Stderr = t.Output()
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		defer close(p.lines)
		s := bufio.NewScanner(out)
		for s.Scan() {
			p.lines <- s.Text()
		}
		p.err = p.cmd.Wait() // after everything was read
	}()
	t.Cleanup(p.end)
	return p
}

// end kills the process if it runs.
func (p *Process) end() {
	p.cmd.Process.Kill() // it may have ended
	for range p.lines {
	}
	<-p.done
}

// Expect waits for a line that contains want, and returns it.
func (p *Process) Expect(want string) string {
	p.t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				<-p.done
				p.t.Fatalf("it ended (%v) and did not print %q, but:\n%s", p.err, want, p.Printed())
			}
			p.note(line)
			if strings.Contains(line, want) {
				return line
			}
		case <-timeout:
			p.t.Fatalf("after %v it has not printed %q, but:\n%s", patience, want, p.Printed())
		}
	}
}

// ExpectLines waits until the example has printed n more lines, or has ended; it
// reports whether the example still runs.
func (p *Process) ExpectLines(n int) bool {
	p.t.Helper()
	timeout := time.After(patience)
	for range n {
		select {
		case line, ok := <-p.lines:
			if !ok {
				return false
			}
			p.note(line)
		case <-timeout:
			p.t.Fatalf("after %v it has not printed %d lines more; printed:\n%s", patience, n, p.Printed())
		}
	}
	return true
}

func (p *Process) note(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, line)
}

// Printed returns the program's output, as far as it was read.
func (p *Process) Printed() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.all, "\n")
}

// Type writes a line to the example's input.
func (p *Process) Type(line string) {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.stdin, line); err != nil {
		p.t.Fatalf("type %q: %v; it printed:\n%s", line, err, p.Printed())
	}
}

// Kill kills the example with SIGKILL, in the middle of its work.
func (p *Process) Kill() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Fatalf("kill: %v; it printed:\n%s", err, p.Printed())
	}
	for line := range p.lines {
		p.note(line)
	}
	<-p.done
}

// Wait waits for the example to exit, which must be with status 0, and returns its
// output.
func (p *Process) Wait() string {
	p.t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				<-p.done
				if p.err != nil {
					p.t.Fatalf("it ended with %v and printed:\n%s", p.err, p.Printed())
				}
				return p.Printed()
			}
			p.note(line)
		case <-timeout:
			p.t.Fatalf("it has not ended after %v, and printed:\n%s", patience, p.Printed())
		}
	}
}
