package vercel

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// browser is the program that the examples call to open a page: like a person, it
// reloads the page until the server answers, and reports the page to the test.
const browser = `#!/usr/bin/env node
(async () => {
  const URL = process.argv[2];
  for (;;) {
    const answer = await fetch(URL);
    const Text = await answer.text();
    if (!answer.ok) { await new Promise((r) => setTimeout(r, 100)); continue; }
    await fetch(process.env.CAY_CONTROL + '/opened', { method: 'POST', body: JSON.stringify({ URL, Text }) });
    return;
  }
})();
`

// fences are the code blocks of a README.
var fences = regexp.MustCompile("(?s)\n```(?:ts|typescript)\n(.*?)```")

// TestReadme runs the programs of the SDKs' READMEs: the first one clones a
// repository, installs its packages, starts its server and opens the page; the
// second one continues with the same sandbox after it was stopped.
func TestReadme(t *testing.T) {
	complete(t)
	need(t, "node_modules")
	s := open(t)
	for _, client := range clients {
		t.Run(strings.TrimPrefix(client, "sandbox-"), func(t *testing.T) {
			w := s.world(t, client)
			dir := s.project(t, client)
			readme, err := os.ReadFile(filepath.Join("node_modules", client, "README.md"))
			if err != nil {
				t.Fatal(err)
			}
			var programs []string
			for _, fence := range fences.FindAllStringSubmatch(string(readme), -1) {
				switch code := fence[1]; {
				case strings.Contains(code, "async function main()"):
					programs = append(programs, code)
				case strings.Contains(code, "const reviewer = await sandbox.createUser"):
					s.runs(t, dir, w, `import { Sandbox } from "@vercel/sandbox";`+"\n"+code+
						"\nif (blocked.exitCode === 0) throw new Error('not isolated');\nawait sandbox.stop();\n")
				}
			}
			if want := map[bool]int{true: 1, false: 2}[client == "sandbox-v1"]; len(programs) != want {
				t.Fatalf("%d programs in the README, want %d", len(programs), want)
			}
			for i, program := range programs {
				if i > 0 {
					if _, err := w.native().Stop(t.Context(), "vercel-sandbox-example"); err != nil {
						t.Fatal(err)
					}
				}
				s.opens(t, dir, w, program)
			}
		})
	}
}

// TestExamples runs our own examples for each version of the SDK.
func TestExamples(t *testing.T) {
	need(t, "node_modules")
	s := open(t)
	for _, client := range tried() {
		version := strings.TrimPrefix(client, "sandbox-v")
		t.Run("v"+version, func(t *testing.T) {
			code, err := os.ReadFile("../../examples/vercel/sdk" + version + "/app.mjs")
			if err != nil {
				t.Fatal(err)
			}
			cmd := s.program(t.Context(), t, s.project(t, client), s.world(t, client), string(code))
			cmd.Env = append(cmd.Env, "API_URL=https://api.example.com/user", "NPM_CONFIG_REGISTRY=https://packages.example.com")
			cmd.Stdout = nil
			out, err := cmd.Output()
			t.Logf("%s", out)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{
				`(?m)^npm install .* exit code 0$`,
				`(?m)^preview: two days are 172800000 ms$`,
				`(?m)^preview of .*: two days are 172800000 ms$`,
				`(?m)^curl .* https://api\.example\.com/user: exit code [1-9]`,
				`(?m)^curl .* https://api\.example\.com/user: exit code 0$`,
				`"Authorization":\["Bearer a-key-that-is-not-in-the-sandbox"\]`,
			} {
				if !regexp.MustCompile(want).Match(out) {
					t.Errorf("it does not print %s", want)
				}
			}
		})
	}
}

// project makes a directory with a client in its node_modules under its own name,
// and a browser.
func (s *site) project(t *testing.T, client string) string {
	t.Helper()
	dir := t.TempDir()
	real, err := filepath.Abs(filepath.Join("node_modules", client))
	if err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"node_modules/@vercel", "bin"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(real, filepath.Join(dir, "node_modules/@vercel/sandbox")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bin/open"), []byte(browser), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// program prepares a program, whose credentials are in its environment alone.
func (s *site) program(ctx context.Context, t *testing.T, dir string, w world, code string) *exec.Cmd {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "index.mjs"), []byte(code), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, "node", "index.mjs")
	cmd.Dir = dir
	cmd.Env = append(environment(), "NODE_OPTIONS=--import="+s.preload, "VERCEL_OIDC_TOKEN="+w.JWT,
		"CAY_CONTROL="+s.control, "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// runs runs a program to its end.
func (s *site) runs(t *testing.T, dir string, w world, code string) {
	t.Helper()
	if err := s.program(t.Context(), t, dir, w, code).Run(); err != nil {
		t.Error(err)
	}
}

// opens runs an example until it has opened its page.
func (s *site) opens(t *testing.T, dir string, w world, code string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := s.program(ctx, t, dir, w, code)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case v := <-s.opened:
		if !strings.HasSuffix(v.URL, ".vercel.run") || v.Text != "Hello from a package" {
			t.Errorf("at %s is %q", v.URL, v.Text)
		}
	case err := <-ended:
		t.Fatalf("the program ended without opening its page: %v", err)
	case <-time.After(2 * time.Minute):
		t.Error("the program does not open its page")
	}
	cancel() // it follows the server's output and would not end
	<-ended
}
