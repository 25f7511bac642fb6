package conformance

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testenv"
	"github.com/cayhq/cay/sandbox"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// need returns the path of the first of some programs that is installed.
func need(t *testing.T, names ...string) string {
	t.Helper()
	for _, name := range names {
		if p, err := exec.LookPath(name); err == nil {
			return p
		}
	}
	missing(t, names[0])
	return ""
}

// missing skips a test because a program is missing, and fails it in CI, where the
// program must be installed.
func missing(t *testing.T, program string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("%s is missing; make conformance-deps installs it", program)
	}
	t.Skipf("%s is missing; make conformance-deps installs it", program)
}

// The development server of examples/preview runs in a sandbox, on the sandbox's
// localhost; a browser opens its preview, and shows a changed file at once.
func TestPreview_Browser(t *testing.T) {
	t.Parallel()
	chromium := need(t, "chromium", "chromium-browser", "google-chrome")
	node := need(t, "node")
	if _, err := os.Stat("node_modules"); err != nil {
		missing(t, "playwright-core")
	}
	env := testenv.Start(t)
	ctx := t.Context()
	sb, err := env.Client.Create(ctx, sandbox.CreateParams{
		Network: sandbox.Network{Mode: sandbox.DenyAll}, Ports: []sandbox.PortParams{{Port: 3000}},
	})
	if err != nil {
		t.Fatal(err)
	}
	box := env.Client.Sandbox(sb.ID)
	if err := box.CopyTo(ctx, "../examples/preview", "site"); err != nil {
		t.Fatal(err)
	}
	server := box.Command(ctx, "node", "site/serve.mjs")
	log, logs := io.Pipe()
	server.Stdout, server.Stderr = logs, t.Output()
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	says := bufio.NewReader(log)
	if line, err := says.ReadString('\n'); err != nil { // printed when it listens
		t.Fatalf("the server said %q, %v", line, err)
	}

	shots := os.Getenv("CAY_SCREENSHOTS") // a directory, to keep what was seen
	if shots == "" {
		shots = t.TempDir()
	}
	cmd := exec.CommandContext(ctx, node, "browser/preview.mjs", sb.Ports[0].URL, "Hello from a sandbox", "Changed while you looked", shots)
	cmd.Env = append(os.Environ(), "CHROMIUM="+chromium)
	cmd.Stderr = t.Output()
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	says = bufio.NewReader(out)
	if line, err := says.ReadString('\n'); line != "live\n" {
		t.Fatalf("the browser said %q, %v; %v", line, err, cmd.Wait())
	}
	page, err := os.ReadFile("../examples/preview/index.html")
	if err != nil {
		t.Fatal(err)
	}
	page = bytes.Replace(page, []byte("Hello from a sandbox"), []byte("Changed while you looked"), 1)
	if err := box.WriteFile(ctx, "site/index.html", page, 0o644); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(says)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if string(rest) != "changed\n" || err != nil {
		t.Fatalf("the browser said %q, %v", rest, err)
	}
	for _, name := range []string{"before.png", "after.png"} {
		if info, err := os.Stat(filepath.Join(shots, name)); err != nil || info.Size() < 5000 {
			t.Errorf("screenshot %s: %v, %v", name, info, err)
		}
	}
}
