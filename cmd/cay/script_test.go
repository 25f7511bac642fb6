package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/cayhq/cay/internal/config"
	"os/signal"
)

var update = flag.Bool("update", false, "rewrite the expected output in scripts and golden files")

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) != "cay" {
		// Processes that a test starts would inherit the signals that this
		// process ignores, as it does under nohup or in the background of a
		// script.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT)
	}
	testscript.Main(m, map[string]func(){"cay": testMain})
}

// TestScripts runs testdata/script. Scripts begin without a daemon; the command
// "daemon" starts one and points cay at it.
//
//	daemon [DIR]       start a daemon, set CAY_URL and CAY_TOKEN
//	code N cmd...      run a command that must exit with N
//	worker             start a worker of workflows that is connected to the daemon
//	program DB|stop    start, or stop, a program that keeps workflows in DB
//	signal SIG FILE    signal the process whose id is in a file
//	request KEY        have the gateway answer some requests with a key whose secret is in a file
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("CAY_DATA", filepath.Join(e.WorkDir, "data"))
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("NO_COLOR", "1")
			e.Values[programKey{}] = new(program)
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"daemon": cmdDaemon,
			"code":   cmdCode,
			"signal": cmdSignal,

			"worker":  cmdWorker,
			"program": cmdProgram,
			"request": cmdRequest,
		},
	})
}

func cmdDaemon(ts *testscript.TestScript, _ bool, args []string) {
	cfg := config.Default()
	cfg.Data = ts.MkAbs(append(args, "daemon")[0])
	cfg.Listen = "127.0.0.1:0"
	b, err := startTestbed(context.Background(), cfg)
	ts.Check(err)
	ts.Defer(func() { ts.Check(b.stop()) })
	ts.Value(programKey{}).(*program).book = b.book
	ts.Setenv("CAY_URL", b.url)
	ts.Setenv("CAY_TOKEN", b.token)
}

// cmdCode runs a command and checks its exit code, which Exec only hints at.
func cmdCode(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: code N command...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if err != nil {
		exit, ok := err.(interface{ ExitCode() int })
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// cmdSignal signals the process whose id is in a file.
func cmdSignal(ts *testscript.TestScript, _ bool, args []string) {
	signals := map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM}
	if len(args) != 2 || signals[args[0]] == 0 {
		ts.Fatalf("usage: signal INT|TERM pid-file")
	}
	pid, err := strconv.Atoi(strings.TrimSpace(ts.ReadFile(args[1])))
	ts.Check(err)
	ts.Check(syscall.Kill(pid, signals[args[0]]))
}

// TestHelp keeps the help of every command in one golden file, so that
// reviewers see each change of the command line.
func TestHelp(t *testing.T) {
	t.Setenv("CAY_DATA", "/var/lib/cay")
	var b strings.Builder
	root := newRootCommand(newApp())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	walk(root, func(path, help string) { fmt.Fprintf(&b, "== %s ==\n%s\n", path, help) })
	golden := filepath.Join("testdata", "help.golden")
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != b.String() {
		t.Fatalf("the help has changed; if it should, run go test ./cmd/cay -run TestHelp -update\n%s", firstDifference(string(want), b.String()))
	}
}

// walk calls f with the help of cmd and of all commands below it, except
// cobra's own.
func walk(cmd *cobra.Command, f func(path, help string)) {
	if cmd.Hidden || cmd.Name() == "completion" || cmd.Name() == "help" {
		return
	}
	cmd.InitDefaultHelpFlag()
	f(cmd.CommandPath(), strings.TrimSpace(cmd.Long+"\n\n"+cmd.UsageString())+"\n")
	for _, c := range cmd.Commands() {
		walk(c, f)
	}
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(w), len(g)) {
		switch {
		case i >= len(w):
			return fmt.Sprintf("line %d: extra %q", i+1, g[i])
		case i >= len(g):
			return fmt.Sprintf("line %d: missing %q", i+1, w[i])
		case w[i] != g[i]:
			return fmt.Sprintf("line %d:\nwant %q\ngot  %q", i+1, w[i], g[i])
		}
	}
	return ""
}
