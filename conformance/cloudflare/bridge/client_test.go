package bridge

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/compat/cloudflare"
	"github.com/cayhq/cay/internal/testenv"
	"github.com/cayhq/cay/sandbox"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// program is the command line, which make conformance-cloudflare builds.
const program = "../../../bin/cay"

// need skips the test unless clients are to be run, for which paths are installed.
func need(t *testing.T, paths ...string) {
	t.Helper()
	if os.Getenv("CAY_CONFORMANCE") == "" {
		t.Skip("make conformance-cloudflare runs this")
	}
	for _, path := range append(paths, program) {
		if _, err := os.Stat(path); err != nil {
			t.Fatalf("%v; make build and make conformance-cloudflare-deps make it", err)
		}
	}
}

// The clients of the OpenAI Agents SDK.
func TestOpenAIAgents(t *testing.T) {
	need(t, "node_modules")
	steps(t, 15, "node", "client.mjs")
}

func TestOpenAIAgents_python(t *testing.T) {
	need(t, ".venv")
	steps(t, 20, ".venv/bin/python", "-B", "client.py")
}

// steps runs a client that prints a line for each of its steps, of which there are n.
func steps(t *testing.T, n int, argv ...string) {
	t.Helper()
	env := testenv.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "CAY_BRIDGE="+env.URL+cloudflare.Prefix, "CAY_TOKEN="+env.Token, "HOME="+t.TempDir(), "OPENAI_AGENTS_DISABLE_TRACING=1")
	cmd.Stderr, cmd.WaitDelay = t.Output(), 10*time.Second
	out, err := cmd.Output()
	passed := 0
	lines := bufio.NewScanner(strings.NewReader(string(out)))
	for lines.Scan() {
		if name, ok := strings.CutPrefix(lines.Text(), "ok "); ok {
			passed++
			t.Run(name, func(*testing.T) {})
		} else if why, ok := strings.CutPrefix(lines.Text(), "not ok "); ok {
			name, why, _ := strings.Cut(why, ": ")
			t.Run(name, func(t *testing.T) { t.Error(why) })
		} else {
			t.Log(lines.Text())
		}
	}
	if err != nil || passed != n {
		t.Errorf("%d of %d steps passed, %v", passed, n, err)
	}
	if page, err := env.Client.List(t.Context(), sandbox.ListParams{}); err != nil || len(page.Items) != 0 {
		t.Errorf("%+v is left, %v", page, err)
	}
}

// blocks are the shell script and the programs of the documentation's section.
var blocks = regexp.MustCompile("(?s)\n```(sh|js|python)\n(.*?)```")

// The examples of docs/cloudflare.md do as it says.
func TestDocs(t *testing.T) {
	need(t, "node_modules", ".venv")
	env := testenv.Start(t)
	bin, err := filepath.Abs(filepath.Dir(program))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../../docs/cloudflare.md")
	if err != nil {
		t.Fatal(err)
	}
	const stream = "{\"ok\":true}\nevent: stdout\ndata: NDIK\n\nevent: exit\ndata: {\"exit_code\":0}\n"
	if !strings.Contains(string(doc), "```\n"+stream+"```") {
		t.Error("the documentation shows another stream")
	}
	seen := 0
	for _, block := range blocks.FindAllStringSubmatch(string(doc), -1) {
		code := strings.ReplaceAll(block[2], "http://127.0.0.1:7070", env.URL)
		args, want := []string{"sh", "-eu", "-c", code}, stream
		switch block[1] {
		case "js":
			args, want = []string{"node", "--input-type=module", "-e", code}, "42"
		case "python":
			args, want = []string{".venv/bin/python", "-c", code}, "42"
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "CAY_URL="+env.URL, "CAY_TOKEN="+env.Token, "PATH="+bin+":"+os.Getenv("PATH"))
		cmd.Stderr, cmd.WaitDelay = t.Output(), 10*time.Second
		out, err := cmd.Output()
		cancel()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s\nwrote %q, %v", code, out, err)
		}
		seen++
	}
	if seen != 3 {
		t.Errorf("the documentation has %d examples", seen)
	}
	if page, err := env.Client.List(t.Context(), sandbox.ListParams{}); err != nil || len(page.Items) != 0 {
		t.Errorf("%+v is left, %v", page, err)
	}
}
