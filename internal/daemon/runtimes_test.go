package daemon_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/image/imagetest"
	"github.com/cayhq/cay/internal/testenv"
	"github.com/cayhq/cay/sandbox"
)

// Every runtime and every image of Vercel's names that docs/vercel.md lists starts, and its
// programs run.
func TestRuntimes_run(t *testing.T) {
	listed := func(row string) []string {
		t.Helper()
		page, err := os.ReadFile("../../docs/vercel.md")
		if err != nil {
			t.Fatal(err)
		}
		line := regexp.MustCompile(`(?m)^\| ` + row + " (`.*?) \\|").FindSubmatch(page)
		if line == nil {
			t.Fatalf("docs/vercel.md has no row %q", row)
		}
		return strings.Split(strings.Trim(string(line[1]), "`"), "`, `")
	}
	runtimes, images := listed("runtimes"), listed("images")
	if !slices.Equal(runtimes, sandbox.Runtimes) || len(images) < 2 {
		t.Fatalf("docs/vercel.md lists runtimes %q, images %q; cay has runtimes %q", runtimes, images, sandbox.Runtimes)
	}
	for _, name := range runtimes {
		imagetest.Acquire(t, name)
	}
	env := testenv.Start(t)
	for _, name := range runtimes {
		t.Run(name, func(t *testing.T) {
			s, err := env.Client.Create(t.Context(), sandbox.CreateParams{Name: "run-" + strings.ReplaceAll(name, ".", "-"), Runtime: name})
			if err != nil {
				t.Fatal(err)
			}
			wantRuns(t, env.Client, s.Name, name)
		})
	}
	for _, name := range images {
		t.Run(name, func(t *testing.T) {
			box := "image-" + strings.ReplaceAll(name, ":", "-")
			body, err := json.Marshal(map[string]any{"name": box, "image": "vercel/sandbox/" + name})
			if err != nil {
				t.Fatal(err)
			}
			q, err := http.NewRequestWithContext(t.Context(), "POST", env.URL+"/api/v3/sandboxes", bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			q.Header.Set("Authorization", "Bearer "+env.Token)
			resp, err := http.DefaultClient.Do(q)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Fatalf("create: %s", resp.Status)
			}
			// The name of the image has the version of its programs.
			wantRuns(t, env.Client, box, strings.ReplaceAll(name, ":", ""))
		})
	}
}

// wantRuns runs programs in a sandbox and compares their version with a name such as node24.
func wantRuns(t *testing.T, c *sandbox.Client, ref, name string) {
	t.Helper()
	program := []string{"node", "-p", "'node' + process.versions.node.split('.')[0]"}
	switch {
	case name == "universal":
		name = "node24"
	case strings.HasPrefix(name, "python"):
		program = []string{"python", "-c", "import sys, ssl, sqlite3; print('python%d.%d' % sys.version_info[:2])"}
	}
	out, err := c.Sandbox(ref).Command(t.Context(), program[0], program[1:]...).Output()
	if err != nil || strings.TrimSpace(string(out)) != name {
		t.Errorf("%q: %v\n%s", program, err, out)
	}
}
