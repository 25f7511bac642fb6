package chat_test

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/examples/workflow/crashtest"
)

// versions are the pages, by the version of the AI SDK.
var versions = []string{"v5", "v6", "v7"}

// bundle builds the page into a directory.
func bundle(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, args := range [][]string{{"page/v5.jsx", "--alias:ai=ai-v5"}, {"page/v6.jsx"}, {"page/v7.jsx"}} {
		args = append(args, "--bundle", "--format=esm", "--jsx=automatic", "--minify", "--log-level=error", `--define:process.env.NODE_ENV="production"`, "--outdir="+dir)
		if out, err := exec.CommandContext(t.Context(), "node_modules/.bin/esbuild", args...).CombinedOutput(); err != nil {
			t.Fatalf("bundle the page: %v\n%s", err, out)
		}
	}
	for _, version := range versions {
		html := `<!doctype html><meta charset="utf-8"><title>Chat</title><link rel="icon" href="data:,"><div id="root"></div><script type="module" src="/` + version + `.js"></script>`
		if err := os.WriteFile(filepath.Join(dir, version+".html"), []byte(html), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatal("chromium is missing; make conformance-chat-deps installs it")
	return ""
}

// served is the program that serves the page.
type served struct {
	t    *testing.T
	args []string
	env  []string
	p    *crashtest.Process
	addr string
	kill func() // kills and restarts the process under test
}

func serveProgram(t *testing.T, env []string, args ...string) *served {
	t.Helper()
	args = append([]string{"-db", filepath.Join(t.TempDir(), "chat.db"), "-page", bundle(t)}, args...)
	s := &served{t: t, args: args, env: append(env, secretEnv+"="+strings.Repeat("s3cret!.", 8)), addr: "127.0.0.1:0"}
	s.kill = func() {
		s.p.Kill()
		s.start()
	}
	s.start()
	return s
}

func (s *served) start() {
	s.t.Helper()
	s.p = crashtest.StartEnv(s.t, s.env, append(s.args, "-listen", s.addr)...)
	s.addr = strings.TrimPrefix(s.p.Expect("listening "), "listening ")
}

// browse runs browser.mjs, and makes a subtest of each case.
func (s *served) browse(version, only string) {
	t := s.t
	t.Helper()
	shots := os.Getenv("CAY_SCREENSHOTS") // a directory, to keep what was seen
	if shots == "" {
		shots = t.TempDir()
	}
	cmd := exec.CommandContext(t.Context(), "node", "browser.mjs", version, "http://"+s.addr, shots, only)
	cmd.Env = append(os.Environ(), "CHROMIUM="+chromium(t))
	cmd.Stderr = t.Output()
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cases := 0
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			Name, Error string
			OK, Kill    bool
			MS          int
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Errorf("it says %s", lines.Bytes())
			continue
		}
		if line.Kill {
			s.kill()
			continue
		}
		cases++
		t.Run(line.Name, func(t *testing.T) {
			t.Logf("%d ms", line.MS)
			if !line.OK {
				t.Error(line.Error)
			}
		})
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if cases == 0 {
		t.Error("there was no case")
	}
}

// A page built with useChat and WorkflowChatTransport, of AI SDK 5, 6 and 7, has the
// whole answer, exactly once, whatever happens meanwhile.
func TestPage(t *testing.T) {
	complete(t)
	need(t)
	for _, version := range versions {
		t.Run(version, func(t *testing.T) { serveProgram(t, nil).browse(version, os.Getenv("CAY_CASES")) })
	}
}
