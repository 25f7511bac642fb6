package vercel

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/compat/vercelsandbox/preload"
)

// TestPython runs the cases of the client for Python: its asynchronous API finds
// the daemon by the module that Python loads first, its synchronous API by its own
// option.
func TestPython(t *testing.T) {
	complete(t)
	need(t, ".venv")
	s := open(t)
	t.Run("async", func(t *testing.T) {
		t.Parallel()
		w := s.world(t, "async")
		s.python(t, w, "async", append(s.sitecustomize(t),
			"VERCEL_TOKEN="+w.Token, "VERCEL_TEAM_ID="+w.TeamID, "VERCEL_PROJECT_ID="+w.ProjectID)...)
	})
	t.Run("sync", func(t *testing.T) {
		t.Parallel()
		s.python(t, s.world(t, "sync"), "sync", "CAY_BASE_URL="+s.url+"/api")
	})
}

// python runs the cases for one API of the client: asynchronous or synchronous.
func (s *site) python(t *testing.T, w world, face string, env ...string) {
	t.Helper()
	told, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, ".venv/bin/python", "-B", "python/cases.py")
	cmd.Env = append(append(environment(), "CAY_WORLD="+string(told), "CAY_FACE="+face, "CAY_CASES="+os.Getenv("CAY_CASES")), env...)
	report(t, cmd, "python/cases.py", os.Getenv("CAY_CASES") == "")
}

// sitecustomize returns the variables that direct Python's client to the daemon.
func (s *site) sitecustomize(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "sitecustomize.py"), []byte(preload.Sitecustomize), 0o644); err != nil {
		t.Fatal(err)
	}
	return []string{"PYTHONPATH=" + dir, "CAY_VERCEL_URL=" + s.url}
}

// TestExec runs programs as users do, with "cay vercel exec", which directs them
// to the daemon and gives them a token: our example for Python, and the command
// line.
func TestExec(t *testing.T) {
	need(t, "node_modules")
	need(t, ".venv")
	s := open(t)
	bin := s.commands(t)
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "../../cmd/cay").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	run := func(argv ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "cay"), append([]string{"vercel", "exec", "--"}, argv...)...)
		cmd.Env = append(environment(), "CAY_URL="+s.url, "CAY_TOKEN="+s.token, "HOME="+t.TempDir(), "PATH="+bin+":"+os.Getenv("PATH"),
			"API_URL=https://api.example.com/user", "NPM_CONFIG_REGISTRY=https://packages.example.com")
		cmd.Stderr = t.Output()
		out, err := cmd.Output()
		t.Logf("%s", out)
		if err != nil {
			t.Fatalf("%v: %v", argv, err)
		}
		return string(out)
	}
	if out := run("sandbox", "run", "--silent", "--rm", "--", "echo", "hello"); out != "hello\n" {
		t.Errorf("the command line says %q", out)
	}
	out := run(".venv/bin/python", "-B", "../../examples/vercel/python/app.py")
	for _, want := range []string{
		`(?m)^npm install .* exit code 0$`,
		`(?m)^preview: two days are 172800000 ms$`,
		`(?m)^preview of .*: two days are 172800000 ms$`,
		`(?m)^curl .* https://api\.example\.com/user: exit code [1-9]`,
		`(?m)^curl .* https://api\.example\.com/user: exit code 0$`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("it does not print %s", want)
		}
	}
	if key := "Bearer a-key-that-is-not-in-the-sandbox"; !strings.Contains(out, key) {
		t.Errorf("it does not print %q", key)
	}
}
