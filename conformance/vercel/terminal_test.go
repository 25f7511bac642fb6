package vercel

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/sandbox"
)

// console is a command line on a terminal of ours.
type console struct {
	t     testing.TB
	cmd   *exec.Cmd
	ptmx  *os.File
	shown chan []byte // the terminal's output, until it is closed
	seen  bytes.Buffer
}

// attention is how long a terminal is watched.
const attention = 2 * time.Minute

// console starts a command line, whose token is in its environment unless it is
// to find its own.
func (s *site) console(t testing.TB, bin, token string, args ...string) *console {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), attention)
	t.Cleanup(cancel)
	c := &console{t: t, cmd: exec.CommandContext(ctx, filepath.Join(bin, args[0]), args[1:]...), shown: make(chan []byte)}
	dir := t.TempDir()
	c.cmd.Dir = dir // there may be a .env elsewhere
	c.cmd.Env = append(environment(), s.commandEnvironment(dir, bin, os.Getenv("PATH"))...)
	c.cmd.Env = append(c.cmd.Env, "TERM=xterm")
	if token != "" {
		c.cmd.Env = append(c.cmd.Env, "VERCEL_OIDC_TOKEN="+token)
	}
	var err error
	if c.ptmx, err = pty.StartWithSize(c.cmd, &pty.Winsize{Rows: 24, Cols: 80}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.ptmx.Close() })
	go func() {
		defer close(c.shown)
		for {
			buf := make([]byte, 4096)
			n, err := c.ptmx.Read(buf)
			select {
			case c.shown <- buf[:n]:
			case <-ctx.Done():
				return
			}
			if err != nil { // EIO when the process has ended
				return
			}
		}
	}()
	return c
}

func (c *console) typeText(s string) {
	c.t.Helper()
	if _, err := io.WriteString(c.ptmx, s); err != nil {
		c.t.Fatal(err)
	}
}

// escapes are colors and movements of the cursor.
var escapes = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]`)

// expect reads until the terminal's output matches a pattern, discards the output
// up to the match, and returns the pattern's groups.
func (c *console) expect(pattern string) []string {
	c.t.Helper()
	want := regexp.MustCompile(pattern)
	for {
		plain := escapes.ReplaceAll(c.seen.Bytes(), nil)
		c.seen.Reset()
		c.seen.Write(plain)
		if at := want.FindSubmatchIndex(c.seen.Bytes()); at != nil {
			var groups []string
			for i := 2; i < len(at); i += 2 {
				groups = append(groups, string(c.seen.Bytes()[at[i]:at[i+1]]))
			}
			c.seen.Next(at[1])
			return groups
		}
		part, more := <-c.shown
		if !more {
			c.t.Fatalf("waiting for %q in vain; seen %q", pattern, c.seen.String())
		}
		c.seen.Write(part)
	}
}

// ends waits for the end with an exit code.
func (c *console) ends(want int) {
	c.t.Helper()
	for part := range c.shown { // the terminal has to be read for the process to end
		c.seen.Write(part)
	}
	_ = c.cmd.Wait() // the code says it all
	if code := c.cmd.ProcessState.ExitCode(); code != want {
		c.t.Fatalf("exit code %d, want %d; seen %q", code, want, c.seen.String())
	}
}

// shell uses a newly started shell as a person would, and leaves it with an exit
// code. The expected texts never equal the typed texts, because the terminal
// echoes the typed ones.
func (c *console) shell(uid, code string) {
	c.t.Helper()
	c.typeText("stty size; echo uid-$(id -u) term-$TERM\n")
	c.expect(`24 80\s`)
	c.expect("uid-" + uid + " term-xterm-256color")

	c.typeText("sh -c 'echo wait\"\"ing; exec sleep 600'\n")
	c.expect("waiting")
	c.typeText("\x03")
	c.typeText("echo still ''here\n")
	c.expect("still here")

	if err := pty.Setsize(c.ptmx, &pty.Winsize{Rows: 40, Cols: 100}); err != nil {
		c.t.Fatal(err)
	}
	c.typeText("until [ \"$(stty size)\" = '40 100' ]; do sleep 0.1; done; echo re''sized\n")
	c.expect("resized")
	c.typeText("exit " + code + "\n")
}

// TestTerminal types into shells of sandboxes.
func TestTerminal(t *testing.T) {
	complete(t)
	need(t, "node_modules")
	s := open(t)
	bin := s.commands(t)
	w := s.world(t, "terminal")
	native := sandbox.NewClient(sandbox.ClientOptions{URL: s.url, Token: w.Token})
	gone := func(t *testing.T, name string) {
		t.Helper()
		if _, err := native.Get(t.Context(), name); cay.CodeOf(err) != cay.NotFound {
			t.Errorf("sandbox %s: %v, want it gone", name, err)
		}
	}

	t.Run("v4", func(t *testing.T) {
		c := s.console(t, bin, w.JWT, "sandbox", "create", "--connect", "--name", "box", "--tag", "a=b")
		c.expect(`Sandbox .*created`)
		c.expect(`\$ sh\s`)
		c.shell("1000", "3")
		c.expect("connection to .* box closed")
		c.ends(3)

		t.Run("exec", func(t *testing.T) {
			t.Parallel()
			c := s.console(t, bin, w.JWT, "sandbox", "exec", "-i", "--tty=true", "-w", "/tmp", "-e", "A=1", "box", "--", "bash", "--norc")
			c.expect(`\$ bash --norc\s`)
			c.typeText("echo in-$PWD-$A\n")
			c.expect("in-/tmp-1")
			c.shell("1000", "7")
			c.ends(7)
		})
		t.Run("connect", func(t *testing.T) {
			t.Parallel()
			c := s.console(t, bin, w.JWT, "sandbox", "connect", "--sudo", "--no-extend-timeout", "box")
			c.expect(`\$ sh\s`)
			c.shell("0", "0")
			c.ends(0)
		})
		t.Run("sh", func(t *testing.T) {
			t.Parallel()
			c := s.console(t, bin, w.JWT, "sandbox", "sh", "--rm", "--name", "short", "--env", "A=1")
			c.expect(`\$ sh\s`)
			c.typeText("echo a-$A; exit 4\n")
			c.expect("a-1")
			c.ends(4)
			gone(t, "short")
		})
		t.Run("run", func(t *testing.T) {
			t.Parallel()
			c := s.console(t, bin, w.JWT, "sandbox", "run", "-i", "--rm", "--name", "once", "--", "sh", "-c", "stty size; read x; echo got-$x; exit 5")
			c.expect(`24 80\s`)
			c.typeText("this\n")
			c.expect("got-this")
			c.ends(5)
			gone(t, "once")
		})
		// A program whose user leaves gets a hangup.
		t.Run("hangup", func(t *testing.T) {
			t.Parallel()
			c := s.console(t, bin, w.JWT, "sandbox", "exec", "-i", "box", "--", "sh", "-c", "trap 'echo hung-up > /tmp/hangup; exit' HUP; mkfifo /tmp/hangup; echo rea''dy; while :; do sleep 1; done")
			c.expect(`ready\s`)
			if err := c.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			got, err := native.Run(t.Context(), "box", sandbox.CommandParams{Argv: []string{"cat", "/tmp/hangup"}, Timeout: sandbox.Duration(time.Minute)})
			if err != nil {
				t.Fatal(err)
			}
			if string(got.Stdout) != "hung-up\n" {
				t.Errorf("the program said %q, and cat ended with %+v", got.Stdout, got.Exit)
			}
			c.ends(-1) // it was killed
		})
		t.Run("missing", func(t *testing.T) {
			t.Parallel()
			c := s.console(t, bin, w.JWT, "sandbox", "connect", "nowhere")
			c.expect(`sandbox "nowhere" not found`)
			c.ends(1)
		})
	})

	// The command line puts its own server into the sandbox, and connects to the
	// server's port. It does not get the exit code of the program.
	t.Run("v2", func(t *testing.T) {
		var box string
		for _, shell := range []struct {
			name string
			args func() []string
			use  func(c *console)
		}{
			{"create", func() []string { return []string{"create", "--connect", "-p", "3000"} }, func(c *console) {
				box = c.expect(`\b(sbx_\w+)`)[0]
				c.expect(`\$ sh\s`)
				c.shell("1000", "3")
				c.expect("connection to .* " + box + " closed")
			}},
			{"exec", func() []string { return []string{"exec", "-i", "-w", "/tmp", "-e", "A=1", box, "--", "bash", "--norc"} }, func(c *console) {
				c.expect(`\$ bash --norc\s`)
				c.typeText("echo in-$PWD-$A\n")
				c.expect("in-/tmp-1")
				c.shell("1000", "0")
			}},
			{"connect", func() []string { return []string{"connect", "--sudo", box} }, func(c *console) {
				c.expect(`\$ sh\s`)
				c.shell("0", "0")
			}},
		} {
			t.Run(shell.name, func(t *testing.T) {
				garbles(t, func(t testing.TB) {
					c := s.console(t, bin, w.JWT, append([]string{"sandbox2"}, shell.args()...)...)
					shell.use(c)
					c.ends(0)
				})
			})
		}
	})
}

// garbles runs use, a test of the server that version 2 puts into a sandbox, up to
// four times. On a busy machine that server sometimes sends a program's output
// with the mask of a WebSocket frame still applied, and then the connection ends.
// This was seen in 3 of 34 runs; with the mask removed the text is correct.
func garbles(t *testing.T, use func(t testing.TB)) {
	for n := 1; ; n++ {
		a := &attempt{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			use(a)
		}()
		<-done
		if a.failed == "" {
			return
		}
		if n == 4 {
			t.Fatal(a.failed)
		}
		t.Logf("attempt %d: %s", n, a.failed)
	}
}

// attempt is a test whose failure ends only itself.
type attempt struct {
	testing.TB
	failed string
}

func (a *attempt) Fatal(args ...any) {
	a.failed = fmt.Sprint(args...)
	runtime.Goexit()
}

func (a *attempt) Fatalf(format string, args ...any) { a.Fatal(fmt.Sprintf(format, args...)) }

// TestLogin signs in: the command line shows a code, which a person with a token
// approves or denies.
func TestLogin(t *testing.T) {
	complete(t)
	need(t, "node_modules")
	s := open(t)
	bin := s.commands(t)
	const code = `enter ([A-Z0-9]+-[A-Z0-9]+)`
	for _, client := range clis {
		t.Run(client, func(t *testing.T) {
			t.Parallel()
			w := s.world(t, client)
			person := account.Client{URL: s.url, Token: w.Token}
			c := s.console(t, bin, "", client, "login")
			if _, err := person.DenyDeviceLogin(t.Context(), c.expect(code)[0]); err != nil {
				t.Fatal(err)
			}
			c.expect("error:")
			c.ends(1)

			c = s.console(t, bin, "", client, "login")
			l, err := person.ApproveDeviceLogin(t.Context(), c.expect(code)[0], account.ApproveParams{})
			if err != nil {
				t.Fatal(err)
			}
			if l.TeamID != w.TeamID || !strings.Contains(l.Agent, "sandbox") {
				t.Errorf("the login is %+v", l)
			}
			c.expect("You are now signed in")
			c.ends(0)

			// The login that the client has stored suffices from now on.
			env, dir := c.cmd.Env, c.cmd.Dir
			again := func(args ...string) (string, error) {
				ctx, cancel := context.WithTimeout(t.Context(), attention)
				defer cancel()
				cmd := exec.CommandContext(ctx, filepath.Join(bin, client), args...)
				cmd.WaitDelay = time.Second
				cmd.Env, cmd.Dir = env, dir
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			for _, args := range [][]string{{"list"}, {"logout"}} {
				if out, err := again(args...); err != nil {
					t.Fatalf("%v: %v\n%s", args, err, out)
				}
			}
			tokens, err := person.ListTokens(t.Context(), account.ListParams{})
			if err != nil {
				t.Fatal(err)
			}
			for _, token := range tokens.Items {
				if strings.Contains(token.Name, "login") {
					t.Errorf("after logging out there is the token %+v", token)
				}
			}
		})
	}
}
