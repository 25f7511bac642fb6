package template

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/sandbox"
)

const full = `# all there is
name: web
from: {runtime: node24}
resources:
  vcpus: 1.5
  memory: 1GiB
  disk: 2GiB
env:
  NODE_ENV: production
  PORT: 3000
user: root
workdir: /srv/web
network:
  allow:
    - name: registry.example.org
      ports: [443]
      rules:
        - match: {path: {prefix: /private/}}
          set_headers: {authorization: Bearer 12345678}
          scrub: true
  deny_cidrs: [203.0.113.0/24]
steps:
  - copy: package.json
    to: ./
  - run: |
      npm ci
      npm cache clean --force
    timeout: 10m
    env: {CI: 1}
  - copy: [src, public]
    exclude: [node_modules, "src/**/*.test.js"]
    user: nobody
  - run: [node, build.mjs]
    user: nobody
    workdir: src
start:
  command: node server.mjs
  env: {DEBUG: "no"}
  ready: {port: 3000, timeout: 30s}
output: memory
`

func TestParse(t *testing.T) {
	t.Parallel()
	got, err := Parse("cay.yaml", []byte(full))
	if err != nil {
		t.Fatal(err)
	}
	prefix := "/private/"
	want := &Template{
		Name: "web", From: From{Runtime: "node24"}, Resources: Resources{1.5, config.GiB, 2 * config.GiB},
		Env: map[string]string{"NODE_ENV": "production", "PORT": "3000"}, User: "root", WorkDir: "/srv/web",
		Network: network{sandbox.Network{
			Allow: []sandbox.Domain{{Name: "registry.example.org", Ports: []uint16{443}, Rules: []sandbox.Rule{{
				Match:      sandbox.Match{Path: &sandbox.TextMatch{Prefix: &prefix}},
				SetHeaders: map[string]string{"authorization": "Bearer 12345678"}, Scrub: true,
			}}}},
			DenyCIDRs: []string{"203.0.113.0/24"},
		}},
		Steps: []Step{
			{Copy: texts{"package.json"}, To: "./"},
			{Run: Command{"/bin/sh", "-ec", "npm ci\nnpm cache clean --force\n"}, Timeout: 10 * time.Minute, Env: map[string]string{"CI": "1"}},
			{Copy: texts{"src", "public"}, Exclude: []string{"node_modules", "src/**/*.test.js"}, User: "nobody"},
			{Run: Command{"node", "build.mjs"}, User: "nobody", WorkDir: "src"},
		},
		Start: &Start{
			Command: Command{"/bin/sh", "-ec", "node server.mjs"}, Env: map[string]string{"DEBUG": "no"},
			Ready: &Ready{Port: 3000, Timeout: 30 * time.Second},
		},
		Output: Memory, file: "cay.yaml",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestParse_Defaults(t *testing.T) {
	t.Parallel()
	got, err := Parse("cay.yaml", []byte("name: a\nnetwork: deny-all\nsteps: [{run: 'true'}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got.Output != Image || got.Network.Mode != sandbox.DenyAll || got.Steps[0].String() != "run true" {
		t.Errorf("got %+v", got)
	}
}

func TestParse_Refused(t *testing.T) {
	t.Parallel()
	ok := "name: web\nsteps: [{run: 'true'}]\n"
	start := "name: web\noutput: memory\nstart:\n  command: serve\n"
	for _, c := range []struct{ name, in, want string }{
		{"empty", "", "1: name is missing"},
		{"no mapping", "- a\n", "1: "},
		{"unknown key", ok + "nmae: b\n", `3: unknown field "nmae"`},
		{"unknown key of a step", "name: web\nsteps:\n  - run: 'true'\n    whenever: 1\n", `4: unknown field "whenever"`},
		{"unknown key of a rule", ok + "network:\n  allow:\n    - nam: x\n", `5: unknown field "nam"`},
		{"key twice", ok + "name: b\n", `3: mapping key "name" already defined`},
		{"two documents", ok + "---\nname: b\n", "4: there is more than one document"},
		{"anchor", "name: &a web\nsteps: [{run: 'true'}]\n", "1: templates have no anchors"},
		{"alias", "name: web\nuser: *a\n", "2: templates have no aliases"},
		{"name", "name: a b\noutput: snapshot\nsteps: [{run: 'true'}]\n", `1: name "a b" is not 1 to 128`},
		{"name of a layer", "output: snapshot\nname: tmpl-a\nsteps: [{run: 'true'}]\n", `2: name "tmpl-a" begins with`},
		{"name of an id", "output: snapshot\nname: snap_a\nsteps: [{run: 'true'}]\n", `2: name "snap_a" begins with`},
		{"two bases", ok + "from:\n  image: a\n  runtime: node24\n", "choose one"},
		{"unknown runtime", ok + "from: {runtime: perl}\n", `runtime "perl" is not one of`},
		{"output", ok + "output: tape\n", `3: output "tape" is not image, snapshot or memory`},
		{"no steps", "name: web\n", "there are no steps"},
		{"size", ok + "resources: {memory: 12}\n", `size "12" has no unit`},
		{"vcpus", ok + "resources: {vcpus: 1000}\n", "vcpus 1000 is not 0.1 to 64"},
		{"network", ok + "network: sometimes\n", "sometimes"},
		{"network's names", ok + "network: {allow: [{name: 'a b'}]}\n", "a b"},
		{"relative workdir", ok + "workdir: srv\n", `workdir "srv" is not absolute`},
		{"step of nothing", "name: web\nsteps:\n  - run: 'true'\n  - user: root\n", "4: a step says run or copy"},
		{"step of two things", "name: web\nsteps:\n  - run: 'true'\n    copy: a\n", "3: a step either runs or copies"},
		{"run to", "name: web\nsteps:\n  - run: 'true'\n    to: a\n", "3: to and exclude are for steps that copy"},
		{"copy with env", "name: web\nsteps:\n  - copy: a\n    env: {A: b}\n", "3: env, workdir and timeout are for steps that run"},
		{"copy up", "name: web\nsteps:\n  - copy: ../a\n", `3: "../a" is not a path below`},
		{"copy up, hidden", "name: web\nsteps:\n  - copy: a/../../b\n", "is not a path below"},
		{"copy absolute", "name: web\nsteps:\n  - copy: /etc/passwd\n", "is not a path below"},
		{"copy nothing", "name: web\nsteps:\n  - copy: ''\n", "is not a path below"},
		{"several copies of one name", "name: web\nsteps:\n  - copy: [a, b]\n    to: c\n", "4: 2 copies cannot all be called"},
		{"pattern", "name: web\nsteps:\n  - copy: a\n    exclude: ['[']\n", `4: "[" is not a pattern`},
		{"timeout", "name: web\nsteps:\n  - run: 'true'\n    timeout: -1s\n", "4: timeout -1s is negative"},
		{"timeout of no unit", "name: web\nsteps:\n  - run: 'true'\n    timeout: 5\n", "4: "},
		{"env", "name: web\nsteps:\n  - run: 'true'\n    env: {'A=B': c}\n", `has = or NUL in its name`},
		{"user", "name: web\nsteps:\n  - run: 'true'\n    user: a/b\n", `user "a/b"`},
		{"no start", "name: web\noutput: memory\n", "start is missing"},
		{"start of a snapshot", "name: web\noutput: snapshot\nsteps: [{run: 'true'}]\nstart: {command: a}\n", "4: nothing runs in a snapshot of files"},
		{"ready of an image", ok + "start: {command: a, ready: {port: 1}}\n", "nothing runs in an image"},
		{"start env of an image", ok + "start: {command: a, env: {B: c}}\n", "set the template's instead"},
		{"no command", "name: web\noutput: memory\nstart: {ready: {port: 1}}\n", "argv names no program"},
		{"no ready", start, "ready is missing"},
		{"two readies", start + "  ready: {port: 1, log: a}\n", "5: ready takes exactly one of"},
		{"ready of nothing", start + "  ready: {timeout: 1s}\n", "5: ready takes exactly one of"},
		{"port", start + "  ready:\n    port: 65536\n", "6: port 65536 is not 1 to 65535"},
		{"long log", start + "  ready: {log: " + strings.Repeat("a", maxLog+1) + "}\n", "log has 1025 bytes"},
		{"nested", ok + "env: " + strings.Repeat("[", 100_000), "3: it is nested too deeply"},
		{"large", strings.Repeat("#", kind.Limit+1), "larger than 256 KiB"},
		{"many steps", "name: web\nsteps:\n" + strings.Repeat("  - run: 'true'\n", maxSteps+1), "there are 201 steps"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse("cay.yaml", []byte(c.in))
			if cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want invalid with %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("%q is more than one line", err)
			}
		})
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "cay.yaml")
	if err := os.WriteFile(file, []byte(full), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Read(file)
	if err != nil || got.dir != dir {
		t.Errorf("got %+v, %v", got, err)
	}
	if err := got.Rename("snap_x"); cay.CodeOf(err) != cay.Invalid {
		t.Errorf("an id as the name: %v", err)
	}
	if _, err := Read(filepath.Join(dir, "missing")); cay.CodeOf(err) != cay.Invalid {
		t.Errorf("a missing file: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(full))
	f.Add([]byte("name: web\nsteps: [{run: [a, b]}, {copy: a, to: /b}]\n"))
	f.Add([]byte("? [a]\n: {b: !!str 1}\n--- |\n x\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		tmpl, err := Parse("cay.yaml", b)
		if err != nil {
			if cay.CodeOf(err) != cay.Invalid {
				t.Fatalf("got %v, want invalid", err)
			}
			return
		}
		if f := tmpl.check(); f != nil {
			t.Fatalf("accepted, but %v", f.err)
		}
		for i, s := range tmpl.Steps {
			if len(s.Run) > 0 == (len(s.Copy) > 0) {
				t.Fatalf("step %d: %+v", i, s)
			}
			for _, src := range s.Copy {
				if !filepath.IsLocal(src) {
					t.Fatalf("step %d copies %q", i, src)
				}
			}
		}
	})
}
