package conformance

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/testenv"
)

// A person uses the web inspector: logs in, watches sandboxes, types in a terminal,
// opens a preview; and the text of hostile sandboxes is shown as text.
// CAY_SCREENSHOTS is a directory for pictures of all pages.
func TestInspector_Browser(t *testing.T) {
	t.Parallel()
	chromium := need(t, "chromium", "chromium-browser", "google-chrome")
	node := need(t, "node")
	if _, err := os.Stat("node_modules"); err != nil {
		missing(t, "playwright-core")
	}
	env := testenv.Start(t)
	// By the name below which previews have their names.
	url := strings.Replace(env.URL, "127.0.0.1", "localhost", 1)
	link, err := (&account.Client{URL: env.URL, Token: env.Token}).CreateLoginLink(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	shots := os.Getenv("CAY_SCREENSHOTS")
	if shots == "" {
		shots = t.TempDir()
	}
	cmd := exec.CommandContext(t.Context(), node, "browser/inspector.mjs", url, shots)
	cmd.Env = append(os.Environ(), "CHROMIUM="+chromium, "CAY_TOKEN="+env.Token, "CAY_LINK="+url+"/ui/login#"+link.Code)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, t.Output()
	cmd.WaitDelay = 10 * time.Second
	err = cmd.Run()
	t.Log(out.String())
	if err != nil || !strings.Contains(out.String(), "steps passed") {
		t.Fatal(err)
	}
}
