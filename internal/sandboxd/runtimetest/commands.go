package runtimetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/sandbox"
)

func testCommands(t *testing.T, c *guest.Client) {
	for name, test := range map[string]func(*testing.T, *guest.Client){
		"Output":         testExecOutput,
		"LongArguments":  testLongArguments,
		"Describe":       testDescribe,
		"Exit":           testExit,
		"Invalid":        testInvalidCommands,
		"Environment":    testEnvironment,
		"Main":           testMain,
		"Descriptors":    testDescriptors,
		"MagicWorkDir":   testMagicWorkDir,
		"Signal":         testSignal,
		"Timeout":        testTimeout,
		"Stdin":          testStdin,
		"Terminal":       testTerminal,
		"TerminalEOF":    testTerminalEOF,
		"HeldPipes":      testHeldPipes,
		"EndlessChild":   testEndlessChild,
		"Cursors":        testCursors,
		"Truncation":     testTruncation,
		"SlowReader":     testSlowReader,
		"Detached":       testDetached,
		"Many":           testMany,
		"Users":          testUsers,
		"UnknownCommand": testUnknownCommand,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, c)
		})
	}
}

func testExecOutput(t *testing.T, c *guest.Client) {
	r := run(t, c, sandbox.CommandParams{Argv: []string{"sh", "-c", "echo out; echo err >&2; sleep 0.01; exit 3"}})
	equal(t, "stdout", r.stdout, "out\n")
	equal(t, "stderr", r.stderr, "err\n")
	equal(t, "exit code", r.exit.Code, 3)
	equal(t, "end", r.end, 8)
	if r.command == nil || len(r.command.Argv) != 3 {
		t.Fatalf("first event is not the command: %+v", r.command)
	}
	if r.exit.At.IsZero() || r.exit.Duration <= 0 {
		t.Errorf("exit without time: %+v", r.exit)
	}
}

// The guest's kernel accepts all arguments that CommandParams.Validate accepts.
func testLongArguments(t *testing.T, c *guest.Client) {
	const longest = 128<<10 - 1
	p := sandbox.CommandParams{
		Argv: []string{"sh", "-c", `echo ${#1} ${#A}`, "sh", strings.Repeat("x", longest)},
		Env:  map[string]string{"A": strings.Repeat("y", longest-len("A="))},
	}
	checktest.OK(t, p.Validate())
	equal(t, "lengths", run(t, c, p).stdout, fmt.Sprintln(longest, longest-len("A=")))

	// Very many arguments, like the result of a shell's glob, and few very long ones.
	for name, argv := range map[string][]string{
		"many": slices.Repeat([]string{"x"}, 200_000), "large": slices.Repeat([]string{strings.Repeat("x", 127<<10)}, 15),
	} {
		p := sandbox.CommandParams{Argv: append([]string{"sh", "-c", "echo $#", "sh"}, argv...)}
		checktest.OK(t, p.Validate())
		equal(t, name, run(t, c, p).stdout, fmt.Sprintln(len(argv)))
	}
}

func testDescribe(t *testing.T, c *guest.Client) {
	ctx := testContext(t)
	d := dir(t, c)
	cmd, err := c.Start(ctx, sandbox.CommandParams{Argv: []string{"sleep", "1000"}, WorkDir: d})
	checktest.OK(t, err)
	got, err := c.GetCommand(ctx, cmd.ID)
	checktest.OK(t, err)
	equal(t, "argv", strings.Join(got.Argv, " "), "sleep 1000")
	equal(t, "workdir", got.WorkDir, d)
	if got.PID <= 0 || got.StartedAt.IsZero() || got.Exit != nil || got.User == "" {
		t.Errorf("described as %+v", got)
	}
	list, err := c.ListCommands(ctx)
	checktest.OK(t, err)
	i := slices.IndexFunc(list, func(o sandbox.Command) bool { return o.ID == cmd.ID })
	if i < 0 {
		t.Fatal("not listed")
	}
	checktest.OK(t, c.Signal(ctx, cmd.ID, 9))
	done, err := c.Wait(ctx, cmd.ID)
	checktest.OK(t, err)
	equal(t, "code", done.Exit.Code, 137)
	equal(t, "signal", done.Exit.Signal, 9)
}

func testExit(t *testing.T, c *guest.Client) {
	for script, want := range map[string]int{
		"exit 0": 0, "exit 255": 255, "kill -TERM $$": 143, "kill -KILL $$": 137,
		// The init process handles signals specially; its commands do not.
		"kill -HUP $$": 129, "kill -INT $$": 130, "kill -PIPE $$": 141,
	} {
		r := run(t, c, sandbox.CommandParams{Argv: []string{"sh", "-c", script}})
		equal(t, script, r.exit.Code, want)
	}
}

func testInvalidCommands(t *testing.T, c *guest.Client) {
	d := dir(t, c)
	write(t, c, d+"/plain", "not a program")
	write(t, c, d+"/script", "#!/no/such/interpreter\n")
	checktest.OK(t, c.Chmod(testContext(t), d+"/script", 0o755))
	write(t, c, d+"/binary", "\x01\x02\x03")
	checktest.OK(t, c.Chmod(testContext(t), d+"/binary", 0o755))
	argv := func(a ...string) sandbox.CommandParams { return sandbox.CommandParams{Argv: a, WorkDir: d} }
	for _, tt := range []struct {
		name string
		p    sandbox.CommandParams
		code cay.Code
		says string
	}{
		{"no argv", argv(), cay.Invalid, "argv"},
		{"empty program", argv(""), cay.Invalid, "argv"},
		{"NUL", argv("echo", "a\x00b"), cay.Invalid, "argv[1]"},
		{"too many", argv(slices.Repeat([]string{"x"}, 210_000)...), cay.Invalid, "2100000"},
		{"too long", argv(slices.Repeat([]string{strings.Repeat("x", 100<<10)}, 21)...), cay.Invalid, "2097152"},
		{"too long with the environment", sandbox.CommandParams{Argv: slices.Repeat([]string{strings.Repeat("x", 100<<10)}, 19),
			Env: map[string]string{"A": strings.Repeat("x", 100<<10), "B": strings.Repeat("x", 100<<10)}}, cay.Invalid, "environment"},
		{"missing", argv("no-such-program"), cay.ExecutableMissing, "no-such-program"},
		{"missing path", argv("./none"), cay.ExecutableMissing, "./none"},
		{"missing interpreter", argv("./script"), cay.ExecutableMissing, "interpreter"},
		{"not executable", argv("./plain"), cay.Invalid, "./plain"},
		{"not a program", argv("./binary"), cay.Invalid, "./binary"},
		{"directory", argv("/"), cay.Invalid, "directory"},
		{"workdir missing", sandbox.CommandParams{Argv: []string{"true"}, WorkDir: "/no/such"}, cay.Invalid, "/no/such"},
		{"workdir a file", sandbox.CommandParams{Argv: []string{"true"}, WorkDir: d + "/plain"}, cay.Invalid, "plain"},
		{"workdir NUL", sandbox.CommandParams{Argv: []string{"true"}, WorkDir: "a\x00"}, cay.Invalid, "NUL"},
		{"env name", sandbox.CommandParams{Argv: []string{"true"}, Env: map[string]string{"A=B": ""}}, cay.Invalid, "A=B"},
		{"env NUL", sandbox.CommandParams{Argv: []string{"true"}, Env: map[string]string{"A": "\x00"}}, cay.Invalid, "A"},
		{"timeout", sandbox.CommandParams{Argv: []string{"true"}, Timeout: sandbox.Duration(time.Millisecond)}, cay.Invalid, "1ms"},
		{"window", sandbox.CommandParams{Argv: []string{"true"}, PTY: &sandbox.WindowSize{Cols: 0, Rows: 1}}, cay.Invalid, "0x1"},
		{"PATH", sandbox.CommandParams{Argv: []string{"ls"}, Env: map[string]string{"PATH": "/nowhere"}}, cay.ExecutableMissing, "ls"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := c.Start(testContext(t), tt.p)
			checktest.Code(t, err, tt.code)
			if !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%q does not mention %q", err, tt.says)
			}
			_, err = c.Exec(testContext(t), tt.p)
			checktest.Code(t, err, tt.code)
		})
	}
}

func testEnvironment(t *testing.T, c *guest.Client) {
	d := dir(t, c)
	write(t, c, d+"/tool", "#!/bin/sh\necho tool $X\n")
	checktest.OK(t, c.Chmod(testContext(t), d+"/tool", 0o755))
	r := run(t, c, sandbox.CommandParams{Argv: []string{"tool"}, WorkDir: d, Env: map[string]string{"PATH": "/bin:/usr/bin:.", "X": "y z"}})
	equal(t, "PATH relative to the working directory", r.stdout, "tool y z\n")
	out := run(t, c, sandbox.CommandParams{Argv: []string{"env"}, Env: map[string]string{"HOME": "/elsewhere"}}).stdout
	for _, want := range []string{"PATH=", "HOME=/elsewhere\n", "USER=", "LOGNAME=", "SHELL=", "LANG=C.UTF-8\n", "PWD="} {
		if !strings.Contains("\n"+out, "\n"+want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	if strings.Contains(out, guest.ConfigEnv) {
		t.Error("the guest's configuration is in a command's environment")
	}
}

// Process 1 shows the command that the sandbox is for, and its memory has room for its text.
func testMain(t *testing.T, c *guest.Client) {
	if !realRoot(t, c) {
		t.Skip("process 1 belongs to this host")
	}
	shown := func() string {
		return run(t, c, sandbox.CommandParams{Argv: []string{"cat", "/proc/1/cmdline"}}).stdout
	}
	own := strings.TrimRight(shown(), "\x00")
	for _, last := range []string{"one two", strings.Repeat("long", 10_000), "x"} {
		run(t, c, sandbox.CommandParams{Argv: []string{"echo", last}, Main: true})
		got, want := strings.TrimRight(shown(), "\x00"), own+" -- echo "+last
		if len(want) > 100 {
			want = want[:100]
			got = got[:min(len(got), 100)]
		}
		equal(t, "command line", got, want)
		run(t, c, sandbox.CommandParams{Argv: []string{"echo", "another"}})
	}
}

// A command gets its three descriptors and none of the agent's.
func testDescriptors(t *testing.T, c *guest.Client) {
	if !realRoot(t, c) {
		t.Skip("commands are processes of this host and inherit what it leaks")
	}
	for _, p := range []sandbox.CommandParams{{}, {Stdin: true}, {PTY: &sandbox.WindowSize{Cols: 80, Rows: 24}}} {
		p.Argv = []string{"sh", "-c", "echo /proc/$$/fd/*"}
		for _, fd := range strings.Fields(run(t, c, p).stdout) {
			switch fd[strings.LastIndexByte(fd, '/')+1:] {
			case "0", "1", "2":
			case "10", "255", "3": // opened by the shell itself, and by its glob
			default:
				t.Errorf("%+v: descriptor %s", p, fd)
			}
		}
	}
}

func testMagicWorkDir(t *testing.T, c *guest.Client) {
	d := dir(t, c)
	checktest.OK(t, c.Symlink(testContext(t), "/proc/self/fd/5", d+"/link"))
	dirs := []string{"/proc/self", "/proc/self/cwd", "/proc/self/root", "/proc/1/root", "/proc/thread-self/cwd"}
	for i := range 64 {
		dirs = append(dirs, fmt.Sprintf("/proc/self/fd/%d", i))
	}
	if realRoot(t, c) {
		dirs = append(dirs, d+"/link", d+"/link/..")
	}
	for _, wd := range dirs {
		_, err := c.Start(testContext(t), sandbox.CommandParams{Argv: []string{"true"}, WorkDir: wd})
		if cay.CodeOf(err) != cay.Invalid {
			t.Errorf("working directory %s: %v", wd, err)
		}
	}
}

func testSignal(t *testing.T, c *guest.Client) {
	ctx := testContext(t)
	// The signal reaches the process group, not only the shell.
	o, err := c.Exec(ctx, sandbox.CommandParams{Argv: []string{"sh", "-c", "sleep 1000 & echo $!; wait"}})
	checktest.OK(t, err)
	first, err := o.Next()
	checktest.OK(t, err)
	ev, err := o.Next()
	checktest.OK(t, err)
	child := strings.TrimSpace(string(ev.Data))
	checktest.Code(t, c.Signal(ctx, first.Command.ID, 0), cay.Invalid)
	checktest.Code(t, c.Signal(ctx, first.Command.ID, 65), cay.Invalid)
	checktest.OK(t, c.Signal(ctx, first.Command.ID, 15))
	equal(t, "code", collect(t, o).exit.Code, 143)
	checktest.Code(t, c.Signal(ctx, first.Command.ID, 15), cay.Conflict)
	// The child dies, if not at once. It may remain a zombie if its parent has died.
	dead := `while state=$(cut -d' ' -f3 /proc/$0/stat) && test "$state" != Z; do sleep 0.1; done 2>/dev/null`
	run(t, c, sandbox.CommandParams{Argv: []string{"sh", "-c", dead, child}})
}

func testTimeout(t *testing.T, c *guest.Client) {
	const begin = 2 * time.Second // until a shell reaches its second command on a busy machine
	r := run(t, c, sandbox.CommandParams{Argv: []string{"sh", "-c", "echo before; sleep 1000"}, Timeout: sandbox.Duration(begin)})
	equal(t, "stdout", r.stdout, "before\n")
	equal(t, "code", r.exit.Code, 124)
	equal(t, "timed out", r.exit.TimedOut, true)
	if d := time.Duration(r.exit.Duration); d < begin {
		t.Errorf("it ran for %v", d)
	}
	r = run(t, c, sandbox.CommandParams{Argv: []string{"true"}, Timeout: sandbox.Duration(time.Hour)})
	equal(t, "code in time", r.exit.Code, 0)
	r = run(t, c, sandbox.CommandParams{Argv: []string{"sh", "-c", "trap 'exit 3' INT; sleep 1000 & wait"},
		Timeout: sandbox.Duration(begin), TimeoutSignal: 2})
	equal(t, "code it makes of the signal", r.exit.Code, 3)
	equal(t, "timed out", r.exit.TimedOut, true)
}

func testStdin(t *testing.T, c *guest.Client) {
	ctx := testContext(t)
	o, err := c.Exec(ctx, sandbox.CommandParams{Argv: []string{"cat"}, Stdin: true})
	checktest.OK(t, err)
	first, err := o.Next()
	checktest.OK(t, err)
	id := first.Command.ID
	checktest.OK(t, c.WriteStdin(ctx, id, strings.NewReader("one "), false))
	checktest.OK(t, c.WriteStdin(ctx, id, strings.NewReader(""), false))
	big := strings.Repeat("0123456789abcdef", 1<<16)
	wrote := make(chan error, 1)
	go func() { wrote <- c.WriteStdin(ctx, id, strings.NewReader(big), true) }()
	r := collect(t, o)
	checktest.OK(t, <-wrote)
	equal(t, "bytes through cat", len(r.stdout), len("one ")+len(big))
	if r.stdout != "one "+big {
		t.Error("bytes differ")
	}
	equal(t, "code", r.exit.Code, 0)
	checktest.Code(t, c.WriteStdin(ctx, id, strings.NewReader("x"), false), cay.Conflict)

	cmd, err := c.Start(ctx, sandbox.CommandParams{Argv: []string{"cat"}})
	checktest.OK(t, err)
	done, err := c.Wait(ctx, cmd.ID)
	checktest.OK(t, err)
	equal(t, "cat of nothing", done.Exit.Code, 0)
	checktest.Code(t, c.WriteStdin(ctx, cmd.ID, strings.NewReader("x"), true), cay.Conflict)

	// A writer to a command that does not read can be canceled.
	cmd, err = c.Start(ctx, sandbox.CommandParams{Argv: []string{"sleep", "1000"}, Stdin: true})
	checktest.OK(t, err)
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	err = c.WriteStdin(short, cmd.ID, strings.NewReader(big+big), true)
	checktest.Code(t, err, cay.DeadlineExceeded)
	checktest.OK(t, c.Signal(ctx, cmd.ID, 9))

	broken := errors.New("the source broke")
	cmd, err = c.Start(ctx, sandbox.CommandParams{Argv: []string{"cat"}, Stdin: true})
	checktest.OK(t, err)
	err = c.WriteStdin(ctx, cmd.ID, io.MultiReader(strings.NewReader("x"), failingReader{broken}), true)
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want the source's error", err)
	}
	checktest.OK(t, c.WriteStdin(ctx, cmd.ID, strings.NewReader(""), true))
	checktest.Code(t, c.WriteStdin(ctx, cmd.ID, strings.NewReader("more"), true), cay.Conflict)
}

type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }

func testTerminal(t *testing.T, c *guest.Client) {
	ctx := testContext(t)
	o, err := c.Exec(ctx, sandbox.CommandParams{
		Argv: []string{"sh", "-c", `trap 'stty size; exit 5' WINCH; tty; echo $TERM; stty size; echo ready; while :; do read line; done`},
		PTY:  &sandbox.WindowSize{Cols: 132, Rows: 43}})
	checktest.OK(t, err)
	first, err := o.Next()
	checktest.OK(t, err)
	if !first.Command.PTY {
		t.Error("not described as having a terminal")
	}
	var out strings.Builder
	for !strings.Contains(out.String(), "ready") {
		ev, err := o.Next()
		checktest.OK(t, err)
		if ev.Stream == sandbox.Stderr {
			t.Error("a terminal has one stream")
		}
		out.Write(ev.Data)
	}
	if s := out.String(); !strings.Contains(s, "/dev/pts/") || !strings.Contains(s, "xterm-256color") || !strings.Contains(s, "43 132") {
		t.Errorf("a terminal that says %q", s)
	}
	checktest.Code(t, c.Resize(ctx, first.Command.ID, sandbox.WindowSize{Cols: 0, Rows: 10}), cay.Invalid)
	checktest.OK(t, c.Resize(ctx, first.Command.ID, sandbox.WindowSize{Cols: 90, Rows: 30}))
	// Some shells run the trap at once, others when read returns.
	if err := c.WriteStdin(ctx, first.Command.ID, strings.NewReader("\n"), false); cay.CodeOf(err) != cay.Conflict {
		checktest.OK(t, err)
	}
	r := collect(t, o)
	if !strings.Contains(r.stdout, "30 90") {
		t.Errorf("after resize: %q", r.stdout)
	}
	equal(t, "code", r.exit.Code, 5)

	cmd, err := c.Start(ctx, sandbox.CommandParams{Argv: []string{"sleep", "1000"}})
	checktest.OK(t, err)
	checktest.Code(t, c.Resize(ctx, cmd.ID, sandbox.WindowSize{Cols: 90, Rows: 30}), cay.Conflict)
	checktest.OK(t, c.Signal(ctx, cmd.ID, 9))
}

func testTerminalEOF(t *testing.T, c *guest.Client) {
	ctx := testContext(t)
	for _, input := range []string{"line\n", "no end of line", ""} {
		o, err := c.Exec(ctx, sandbox.CommandParams{Argv: []string{"sh", "-c", "stty -echo; echo ready; cat; echo done"},
			PTY: &sandbox.WindowSize{Cols: 80, Rows: 24}})
		checktest.OK(t, err)
		first, err := o.Next()
		checktest.OK(t, err)
		for ready := ""; !strings.Contains(ready, "ready"); {
			ev, err := o.Next()
			checktest.OK(t, err)
			ready += string(ev.Data)
		}
		checktest.OK(t, c.WriteStdin(ctx, first.Command.ID, strings.NewReader(input), true))
		r := collect(t, o)
		if !strings.Contains(r.stdout, strings.TrimSpace(input)) || !strings.Contains(r.stdout, "done") {
			t.Errorf("after %q and end-of-file: %q", input, r.stdout)
		}
		equal(t, "code", r.exit.Code, 0)
	}
}

// A child that keeps the pipes open does not keep the command from ending, and is not
// killed when it writes later.
func testHeldPipes(t *testing.T, c *guest.Client) {
	d := dir(t, c)
	// The child keeps its pipes open until the test creates a file. A command that waited
	// for the pipes would not end.
	r := run(t, c, sandbox.CommandParams{Argv: []string{"sh", "-c",
		"(trap '' HUP; i=0; until test -e ended || test $((i+=1)) -gt 2000; do sleep 0.05; done; echo late; echo late >&2; echo alive > later) & echo now"}, WorkDir: d})
	equal(t, "stdout", r.stdout, "now\n")
	sh(t, c, d, "echo > ended; i=0; until test -s later; do test $((i+=1)) -lt 2000 || exit 1; sleep 0.05; done")
	// The later output is there for later readers.
	for follow := true; ; follow = !follow {
		o, err := c.Output(testContext(t), r.command.ID, sandbox.OutputParams{Follow: follow})
		checktest.OK(t, err)
		all := collect(t, o)
		equal(t, "truncated", all.truncated, false)
		if all.stdout == "now\nlate\n" && all.stderr == "late\n" {
			return
		}
		if all.stdout != "now\n" && all.stdout != "now\nlate\n" || t.Context().Err() != nil {
			t.Fatalf("later there are %q and %q", all.stdout, all.stderr)
		}
		if time.Since(r.exit.At) > patience {
			t.Fatalf("what was written after its end is not there: %q, %q", all.stdout, all.stderr)
		}
	}
}

// A command ends, and so does its output, even if a child that it has left writes without
// end.
func testEndlessChild(t *testing.T, c *guest.Client) {
	r := run(t, c, sandbox.CommandParams{Argv: []string{"sh", "-c", "yes >&2 & echo $!"}})
	defer sh(t, c, "", "kill -9 "+r.stdout)
	o, err := c.Output(testContext(t), r.command.ID, sandbox.OutputParams{Follow: true})
	checktest.OK(t, err)
	all := collect(t, o)
	equal(t, "stdout", all.truncated || all.stdout == r.stdout, true)
	equal(t, "code", all.exit.Code, 0)
	// Not by the cursors, which also count dropped bytes.
	if kept := len(all.stdout) + len(all.stderr); kept > 5<<20 {
		t.Errorf("kept %d bytes", kept)
	}
}

func testCursors(t *testing.T, c *guest.Client) {
	ctx := testContext(t)
	r := run(t, c, sandbox.CommandParams{Argv: []string{"sh", "-c", "printf 0123456789"}})
	id := r.command.ID
	for cursor, want := range []string{"0123456789", "123456789", "23456789"} {
		for _, follow := range []bool{false, true} {
			o, err := c.Output(ctx, id, sandbox.OutputParams{Cursor: int64(cursor), Follow: follow})
			checktest.OK(t, err)
			got := collect(t, o)
			equal(t, "output", got.stdout, want)
			equal(t, "end", got.end, 10)
		}
	}
	o, err := c.Output(ctx, id, sandbox.OutputParams{Cursor: 10})
	checktest.OK(t, err)
	equal(t, "at the end", collect(t, o).stdout, "")
	_, err = c.Output(ctx, id, sandbox.OutputParams{Cursor: 11})
	checktest.Code(t, err, cay.Invalid)
	_, err = c.Output(ctx, id, sandbox.OutputParams{Cursor: -1})
	checktest.Code(t, err, cay.Invalid)

	// Without Follow, the output of a running command ends at its current end.
	o, err = c.Exec(ctx, sandbox.CommandParams{Argv: []string{"sh", "-c", "echo some; sleep 1000"}})
	checktest.OK(t, err)
	first, err := o.Next()
	checktest.OK(t, err)
	_, err = o.Next()
	checktest.OK(t, err)
	now, err := c.Output(ctx, first.Command.ID, sandbox.OutputParams{})
	checktest.OK(t, err)
	equal(t, "so far", collect(t, now).stdout, "some\n")
	checktest.OK(t, o.Close())
	if _, err := o.Next(); cay.CodeOf(err) != cay.Canceled {
		t.Errorf("after Close: %v", err)
	}
	checktest.OK(t, c.Signal(ctx, first.Command.ID, 9))
}

// Without a reader the oldest output is dropped, and readers are told.
func testTruncation(t *testing.T, c *guest.Client) {
	ctx := testContext(t)
	const total = 12 << 20
	cmd, err := c.Start(ctx, sandbox.CommandParams{Argv: []string{"sh", "-c", fmt.Sprintf("head -c %d /dev/zero; read x", total)}, Stdin: true})
	checktest.OK(t, err)
	// The command keeps running until all its output was read from the pipes: after its
	// exit the guest reads them only briefly.
	for cmd.OutputEnd < total {
		cmd, err = c.GetCommand(ctx, cmd.ID)
		checktest.OK(t, err)
	}
	checktest.OK(t, c.WriteStdin(ctx, cmd.ID, strings.NewReader("\n"), true))
	done, err := c.Wait(ctx, cmd.ID)
	checktest.OK(t, err)
	equal(t, "end", done.OutputEnd, total)
	kept := done.OutputEnd - done.OutputStart
	if done.OutputStart == 0 || kept > 4<<20 || kept < 1<<20 {
		t.Errorf("kept %d bytes", kept)
	}
	o, err := c.Output(ctx, cmd.ID, sandbox.OutputParams{})
	checktest.OK(t, err)
	r := collect(t, o)
	equal(t, "truncated", r.truncated, true)
	equal(t, "bytes read", int64(len(r.stdout)), kept)
	equal(t, "end read", r.end, total)
}

// A reader from the start gets every byte, however slow it is: the command waits.
func testSlowReader(t *testing.T, c *guest.Client) {
	const total = 24 << 20
	ctx := testContext(t)
	o, err := c.Exec(ctx, sandbox.CommandParams{Argv: []string{"sh", "-c", fmt.Sprintf("head -c %d /dev/zero; read x", total)}, Stdin: true})
	checktest.OK(t, err)
	defer o.Close()
	first, err := o.Next()
	checktest.OK(t, err)
	var got int64
	for i := 0; ; i++ {
		ev, err := o.Next()
		checktest.OK(t, err)
		if ev.Truncated {
			t.Fatal("truncated under a reader")
		}
		got += int64(len(ev.Data))
		if len(ev.Data) > 0 && got == total { // end the command now that all output has arrived: see testTruncation
			checktest.OK(t, c.WriteStdin(ctx, first.Command.ID, strings.NewReader("\n"), true))
		}
		if i == 10 {
			// Gives the writer time to fill the buffers.
			sh(t, c, "", "sleep 0.5")
		}
		if ev.Exit != nil {
			break
		}
	}
	equal(t, "bytes", got, total)
}

func testDetached(t *testing.T, c *guest.Client) {
	d := dir(t, c)
	ctx, cancel := context.WithCancel(testContext(t))
	o, err := c.Exec(ctx, sandbox.CommandParams{Argv: []string{"sh", "-c", "echo started; until test -e left; do sleep 0.05; done; echo finished > file"}, WorkDir: d})
	checktest.OK(t, err)
	first, err := o.Next()
	checktest.OK(t, err)
	_, err = o.Next()
	checktest.OK(t, err)
	cancel()
	if _, err := o.Next(); cay.CodeOf(err) != cay.Canceled {
		t.Errorf("after cancel: %v", err)
	}
	write(t, c, d+"/left", "")
	done, err := c.Wait(testContext(t), first.Command.ID)
	checktest.OK(t, err)
	equal(t, "code", done.Exit.Code, 0)
	equal(t, "file", read(t, c, d+"/file"), "finished\n")
}

func testMany(t *testing.T, c *guest.Client) {
	var all sync.WaitGroup
	for i := range 32 {
		all.Go(func() {
			o, err := c.Exec(testContext(t), sandbox.CommandParams{Argv: []string{"sh", "-c", fmt.Sprintf("echo %d; exit %d", i, i)}})
			if err != nil {
				t.Error(err)
				return
			}
			defer o.Close()
			var out string
			for {
				ev, err := o.Next()
				if err != nil {
					t.Error(err)
					return
				}
				out += string(ev.Data)
				if ev.Exit != nil {
					if ev.Exit.Code != i || out != fmt.Sprintln(i) {
						t.Errorf("command %d: exit %d, output %q", i, ev.Exit.Code, out)
					}
					return
				}
			}
		})
	}
	all.Wait()
}

func testUsers(t *testing.T, c *guest.Client) {
	if !canSwitchUsers(t, c) {
		_, err := c.Start(testContext(t), sandbox.CommandParams{Argv: []string{"true"}, Sudo: true, User: "nobody"})
		checktest.Code(t, err, cay.NotSupported)
		t.Skip("this machine has one user")
	}
	id := func(p sandbox.CommandParams) string {
		p.Argv, p.WorkDir = []string{"sh", "-c", "echo $(id -u) $(id -g) $(id -G) $USER $HOME $SUDO_USER"}, "/"
		return strings.TrimSpace(run(t, c, p).stdout)
	}
	for _, tt := range []struct {
		p      sandbox.CommandParams
		prefix string
	}{
		{sandbox.CommandParams{User: "root"}, "0 0 0"},
		{sandbox.CommandParams{User: "nobody"}, "65534 65534 65534 nobody"},
		{sandbox.CommandParams{User: "12345"}, "12345 0 0 12345 /"},
		{sandbox.CommandParams{User: "12345:54321"}, "12345 54321 54321"},
		{sandbox.CommandParams{User: "nobody:root"}, "65534 0"},
		{sandbox.CommandParams{User: "nobody", Sudo: true}, "0 0 0"},
	} {
		if got := id(tt.p); !strings.HasPrefix(got, tt.prefix) {
			t.Errorf("%+v: %q, want %q...", tt.p, got, tt.prefix)
		}
	}
	if got := id(sandbox.CommandParams{User: "nobody", Sudo: true}); !strings.HasSuffix(got, " root /root nobody") {
		t.Errorf("sudo: %q", got)
	}
	for _, user := range []string{"no-such-user", "a:b:c", ":0", "0:", "root:no-such-group", "-1", "a/b"} {
		_, err := c.Start(testContext(t), sandbox.CommandParams{Argv: []string{"true"}, User: user})
		checktest.Code(t, err, cay.Invalid)
	}
}

func testUnknownCommand(t *testing.T, c *guest.Client) {
	ctx := testContext(t)
	for _, id := range []string{"", "x", "../health", "cmd_aaaaaaaaaaaaaaaaaaaa", "cmd_AAAAAAAAAAAAAAAAAAAA"} {
		_, err := c.GetCommand(ctx, id)
		checktest.Code(t, err, cay.NotFound)
		_, err = c.Wait(ctx, id)
		checktest.Code(t, err, cay.NotFound)
		_, err = c.Output(ctx, id, sandbox.OutputParams{Follow: true})
		checktest.Code(t, err, cay.NotFound)
		checktest.Code(t, c.Signal(ctx, id, 9), cay.NotFound)
		checktest.Code(t, c.Resize(ctx, id, sandbox.WindowSize{Cols: 1, Rows: 1}), cay.NotFound)
		checktest.Code(t, c.WriteStdin(ctx, id, strings.NewReader(""), true), cay.NotFound)
	}
}
