package vercel

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// clis are the versions of the command line: their names in package.json, and
// their names in scripts.
var clis = map[string]string{"sandbox-cli-v4": "sandbox", "sandbox-cli-v2": "sandbox2"}

// TestCLI runs testdata/script, each script with a team and a project of its own.
// The token is in the environment in the form that says what it is for.
//
//	sandbox, sandbox2    the command line, versions 4 and 2 (exec sandbox ls)
//	$TOKEN               a plain token of the same team
//	code N cmd...        run a command that must exit with N
//	capture VAR FILE RE  set a variable to what a pattern's group matches, in stdout, stderr or a file
func TestCLI(t *testing.T) {
	complete(t)
	need(t, "node_modules")
	s := open(t)
	scripts, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	worlds := make(map[string]world)
	for _, script := range scripts {
		name := strings.TrimSuffix(filepath.Base(script), ".txtar")
		worlds[name] = s.world(t, strings.ReplaceAll(name, "_", "-"))
	}
	bin := s.commands(t)
	testscript.Run(t, testscript.Params{
		Files:               scripts,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			w := worlds[strings.TrimPrefix(filepath.Base(e.WorkDir), "script-")]
			for _, kv := range s.commandEnvironment(e.WorkDir, bin, e.Getenv("PATH")) {
				name, value, _ := strings.Cut(kv, "=")
				e.Setenv(name, value)
			}
			e.Setenv("VERCEL_OIDC_TOKEN", w.JWT)
			e.Setenv("TOKEN", w.Token)
			e.Setenv("TEAM", w.TeamID)
			e.Setenv("PROJECT", w.ProjectID)
			e.Setenv("SINGLE_TOKEN", w.Single.Token)
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"code":    cmdCode,
			"capture": cmdCapture,
		},
	})
}

// commands makes a directory with the command lines in it.
func (s *site) commands(t *testing.T) string {
	t.Helper()
	bin := t.TempDir()
	for client, name := range clis {
		program, err := filepath.Abs(filepath.Join("node_modules", client, "bin/sandbox.mjs"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(bin, name), fmt.Appendf(nil, "#!/bin/sh\nexec node '%s' \"$@\"\n", program), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return bin
}

// commandEnvironment returns the environment that command lines need besides a
// token. They keep their files in dir.
func (s *site) commandEnvironment(dir, bin, path string) []string {
	return []string{
		"PATH=" + bin + ":" + path,
		"HOME=" + dir, "XDG_DATA_HOME=" + filepath.Join(dir, "data"),
		"NODE_OPTIONS=--import=" + s.preload,
		"VERCEL_TELEMETRY_DISABLED=1", "VERCEL_SANDBOX_TELEMETRY_DISABLED=1", "SANDBOX_SKIP_VERSION_CHECK=1",
		"NO_COLOR=1",
	}
}

// cmdCode runs a command and checks its exit code, which Exec only hints at.
func cmdCode(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: code N command...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
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

// cmdCapture sets a variable to a part of a command's output.
func cmdCapture(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: capture VAR stdout|stderr|FILE PATTERN")
	}
	pattern, err := regexp.Compile("(?m)" + args[2])
	ts.Check(err)
	found := pattern.FindStringSubmatch(ts.ReadFile(args[1]))
	if len(found) != 2 {
		ts.Fatalf("%s does not match %#q with one group", args[1], args[2])
	}
	ts.Setenv(args[0], found[1])
}
