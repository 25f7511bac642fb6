package template

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/internal/testenv"
	"github.com/cayhq/cay/sandbox"
)

func TestMain(m *testing.M) { leaktest.Main(tests{m}) }

// tests runs the tests of a binary that is also started as a sandbox's helper.
type tests struct{ *testing.M }

func (t tests) Run() int { return testenv.Main(t.M) }

// bench is a directory with a template, and a world to build it in.
type bench struct {
	*world
	t      *testing.T
	dir    string
	log    bytes.Buffer // what Progress was told
	change func(*Builder)
}

func newBench(t *testing.T, files map[string]string) *bench {
	return &bench{world: newWorld(), t: t, dir: tree(t, files)}
}

// build builds a template.
func (b *bench) build(ctx context.Context, text string) (*Result, error) {
	b.t.Helper()
	file := filepath.Join(b.dir, "cay.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
	tmpl, err := Read(file)
	if err != nil {
		b.t.Fatal(err)
	}
	b.ran, b.created = nil, nil
	builder := &Builder{Sandboxes: b.world, Images: images{b.world}, Progress: func(e Event) {
		switch {
		case e.Phase != "":
			b.log.WriteString(string(e.Phase) + " " + e.Text + "\n")
		case e.Output != nil:
			b.log.Write(e.Output)
		}
	}}
	if b.change != nil {
		b.change(builder)
	}
	return builder.Build(ctx, tmpl)
}

func (b *bench) mustBuild(text string) *Result {
	b.t.Helper()
	r, err := b.build(b.t.Context(), text)
	if err != nil {
		b.t.Fatal(err)
	}
	b.left(b.t)
	return r
}

const files3 = `
name: web
output: snapshot
env: {A: b}
workdir: /srv
steps:
  - run: write /one 1
  - copy: a
  - run: write /two 2; say done
`

func TestBuild_Snapshot(t *testing.T) {
	t.Parallel()
	b := newBench(t, map[string]string{"a": "content"})
	r := b.mustBuild(files3)
	s := b.snapshots[r.Snapshot.ID]
	want := map[string]string{"/srv/": "", "/one": "1", "a": "content", "/two": "2"}
	if s.Name != "web" || s.Kind != sandbox.FilesystemSnapshot || !maps.Equal(s.files, want) || !maps.Equal(s.env, map[string]string{"A": "b"}) {
		t.Errorf("snapshot %+v", s)
	}
	if r.Steps != 3 || r.Cached != 0 || !slices.Equal(b.ran, []string{"A=b write /one 1", "A=b write /two 2; say done"}) {
		t.Errorf("result %+v, ran %q", r, b.ran)
	}
	if !strings.Contains(b.log.String(), "step copy a to ./\nstep run write /two 2; say done\ndone\nlayer \nsave snapshot web\n") {
		t.Errorf("log:\n%s", &b.log)
	}
	for _, p := range b.created {
		if p.Network.Mode != sandbox.AllowAll { // of a base that is a snapshot, too
			t.Errorf("created with the network policy %v", p.Network)
		}
		if *p.Persistent || p.WorkDir != "/srv" || p.Timeout != sandbox.Duration(time.Hour) {
			t.Errorf("created %+v", p)
		}
	}

	first := r.Snapshot.ID
	r = b.mustBuild(files3)
	if r.Cached != 3 || len(b.ran) > 0 || !maps.Equal(b.snapshots[r.Snapshot.ID].files, want) {
		t.Errorf("again: %+v, ran %q", r, b.ran)
	}
	if b.snapshots[first] != nil || !slices.Equal(b.names(), []string{"web"}) {
		t.Errorf("the former snapshot is still there: %q", b.names())
	}
}

// Each slow step has a layer, so that a change of the last step repeats only that
// step.
func TestBuild_Layers(t *testing.T) {
	t.Parallel()
	dir := t
	synctest.Test(t, func(t *testing.T) {
		b := &bench{world: newWorld(), t: t, dir: tree(dir, map[string]string{"a": "1"})}
		b.calls["Exec"] = func() error { time.Sleep(2 * time.Second); return nil }
		b.mustBuild(files3)
		if n := len(b.snapshots); n != 3 {
			t.Errorf("%d snapshots, want those of steps 1 and 3, and the result", n)
		}
		r := b.mustBuild(strings.Replace(files3, "/two 2", "/two 3", 1))
		if r.Cached != 1 || !slices.Equal(b.ran, []string{"A=b write /two 3; say done"}) {
			t.Errorf("a change of the last step: %+v, ran %q", r, b.ran)
		}
		if err := os.WriteFile(filepath.Join(b.dir, "a"), []byte("2"), 0o600); err != nil {
			t.Fatal(err)
		}
		if r := b.mustBuild(files3); r.Cached != 1 || b.snapshots[r.Snapshot.ID].files["a"] != "2" {
			t.Errorf("a change of a copied file: %+v", r)
		}
		if r := b.mustBuild(strings.Replace(files3, "A: b", "A: c", 1)); r.Cached != 0 {
			t.Errorf("a change of the environment: %+v", r)
		}
		b.images["node24"] = &sandbox.Image{Digest: "sha256:newer"}
		if r := b.mustBuild(files3); r.Cached != 0 {
			t.Errorf("a newer base: %+v", r)
		}
		if r := b.mustBuild(files3); r.Cached != 3 {
			t.Errorf("no change: %+v", r)
		}
		before := len(b.snapshots)
		b.change = func(b *Builder) { b.NoCache = true }
		if r := b.mustBuild(files3); r.Cached != 0 || len(b.snapshots) != before {
			t.Errorf("without the cache: %+v, %d snapshots became %d", r, before, len(b.snapshots))
		}
	})
}

// A layer that cannot be used does not fail the build.
func TestBuild_LayerGone(t *testing.T) {
	t.Parallel()
	for _, code := range []cay.Code{cay.NotFound, cay.Conflict, cay.NotSupported} {
		b := newBench(t, map[string]string{"a": "1"})
		b.mustBuild(files3)
		for _, s := range b.snapshots {
			s.files = map[string]string{"wrong": ""} // whatever starts from it would show
		}
		refused := false
		b.calls["Create"] = func() error {
			if !refused {
				refused = true
				return cay.Errorf(code, "not this one")
			}
			return nil
		}
		r := b.mustBuild(files3 + "  - run: say last\n")
		if files := b.snapshots[r.Snapshot.ID].files; !refused || files["/one"] != "1" {
			t.Errorf("%s: %+v, files %q", code, r, files)
		}
	}
}

// Another build that makes the same layer at the same time does not fail this
// one.
func TestBuild_LayerMadeMeanwhile(t *testing.T) {
	t.Parallel()
	b, other := newBench(t, map[string]string{"a": "1"}), newBench(t, map[string]string{"a": "1"})
	other.mustBuild(files3)
	b.calls["CreateSnapshot"] = func() error {
		for id, s := range other.snapshots {
			if strings.HasPrefix(s.Name, layerPrefix) {
				b.snapshots["other "+id] = s
			}
		}
		return nil
	}
	if r := b.mustBuild(files3); r.Cached != 0 || b.snapshots[r.Snapshot.ID].files["/two"] != "2" {
		t.Errorf("got %+v", r)
	}
}

func TestBuild_FailingStep(t *testing.T) {
	t.Parallel()
	const text = "name: web\noutput: snapshot\nsteps:\n  - run: say first\n  - run: say no; say why; exit 3\n    env: {C: d}\n"
	b := newBench(t, nil)
	_, err := b.build(t.Context(), text)
	var failed *StepError
	if !errors.As(err, &failed) || failed.Step != 2 || failed.Exit.Code != 3 || string(failed.Output) != "no\nwhy\n" {
		t.Fatalf("got %+v, %v", failed, err)
	}
	if want := "step 2 (run say no; say why; exit 3) exited with status 3"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
	b.left(t)
	if len(b.snapshots) > 0 {
		t.Errorf("%d snapshots are left", len(b.snapshots))
	}

	b.change = func(b *Builder) { b.Keep = true }
	if _, err := b.build(t.Context(), text); err == nil || len(b.boxes) != 1 || !strings.Contains(b.log.String(), "kept build-") {
		t.Errorf("kept: %v, %d sandboxes, log:\n%s", err, len(b.boxes), &b.log)
	}
}

// Whichever call fails, or is cancelled, only layers are left, and the result of
// an earlier build stays.
func TestBuild_Fault(t *testing.T) {
	t.Parallel()
	const text = `
name: web
output: memory
workdir: /srv
steps:
  - copy: a
  - run: write /one 1
start:
  command: serve 80
  ready: {port: 80}
`
	for _, call := range []string{"Create", "Mkdir", "Exec", "Extract", "DialPort", "CreateSnapshot", "GetSnapshot"} {
		for nth := range 6 {
			for _, how := range []string{"fails", "is given up"} {
				b := newBench(t, map[string]string{"a": "1"})
				former := b.mustBuild(text).Snapshot.ID
				if err := os.WriteFile(filepath.Join(b.dir, "a"), []byte("2"), 0o600); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				n := 0
				b.calls[call] = func() error {
					n++
					if n-1 != nth {
						return nil
					}
					if how == "is given up" {
						cancel()
						return context.Canceled
					}
					return cay.Errorf(cay.NoSpace, "it is full")
				}
				_, err := b.build(ctx, text)
				cancel()
				b.calls = nil
				if n <= nth {
					break // there are fewer such calls
				}
				want := cay.NoSpace
				if how == "is given up" {
					want = cay.Canceled
				}
				if cay.CodeOf(err) != want {
					t.Errorf("call %d of %s %s: got %v, want %s", nth, call, how, err, want)
				}
				b.left(t)
				if s, err := b.GetSnapshot(t.Context(), "web"); err != nil || s.ID != former {
					t.Errorf("call %d of %s %s: the former result is gone: %v", nth, call, how, err)
				}
			}
		}
	}
}

// A former result that is still needed does not fail the build.
func TestBuild_FormerNeeded(t *testing.T) {
	t.Parallel()
	b := newBench(t, map[string]string{"a": "1"})
	former := b.mustBuild(files3).Snapshot.ID
	b.calls["DeleteSnapshot"] = func() error { return cay.Errorf(cay.Conflict, "a sandbox needs it") }
	if r := b.mustBuild(files3); r.Snapshot.Name != "web" || r.Snapshot.ID == former || b.snapshots[former].Name != "" {
		t.Errorf("got %+v", r.Snapshot)
	}
	if !strings.Contains(b.log.String(), "left the former snapshot "+former+": a sandbox needs it") {
		t.Errorf("log:\n%s", &b.log)
	}
}

func TestBuild_SandboxEnded(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	b.calls["Exec"] = func() error { return cay.Errorf(cay.Stopped, "it ran out of time") }
	_, err := b.build(t.Context(), "name: a\nsteps: [{run: say hi}]\n")
	var e *cay.Error
	if !errors.As(err, &e) || e.Code != cay.Stopped || !strings.Contains(e.Hint, "time") || !strings.Contains(e.Message, "step 1 (run say hi): it ran out of time") {
		t.Errorf("got %v", err)
	}
	b.left(t)
}

func TestBuild_BaseChanged(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	b.calls["Create"] = func() error {
		b.images["alpine:3"] = &sandbox.Image{Digest: "sha256:newer"}
		return nil
	}
	_, err := b.build(t.Context(), "name: a\nfrom: {image: 'alpine:3'}\nsteps: [{run: say hi}]\n")
	if cay.CodeOf(err) != cay.Conflict || len(b.ran) > 0 {
		t.Errorf("got %v, ran %q", err, b.ran)
	}
	b.left(t)
}

func TestBuild_FromSnapshot(t *testing.T) {
	t.Parallel()
	b := newBench(t, map[string]string{"a": "1"})
	b.mustBuild(files3)
	r := b.mustBuild("name: more\nfrom: {snapshot: web}\noutput: snapshot\nsteps: [{run: write /three 3}]\n")
	if files := b.snapshots[r.Snapshot.ID].files; files["/one"] != "1" || files["/three"] != "3" || !b.created[0].FilesOnly {
		t.Errorf("files %q, created %+v", files, b.created[0])
	}
	if _, err := b.build(t.Context(), "name: more\nfrom: {snapshot: missing}\nsteps: [{run: say hi}]\n"); cay.CodeOf(err) != cay.NotFound {
		t.Errorf("a missing base: %v", err)
	}
}

func TestBuild_Image(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	r := b.mustBuild("name: acme/web:2\nfrom: {image: 'alpine:3'}\nenv: {B: '2', A: '1'}\nuser: root\nworkdir: /srv\nsteps: [{run: write /x y}]\nstart: {command: [serve, '80']}\n")
	if r.Image == nil || r.Snapshot != nil || len(b.outputs) != 1 {
		t.Fatalf("result %+v", r)
	}
	p := b.outputs[0]
	layer, err := b.snapshot(p.Snapshot)
	if err != nil || layer.files["/x"] != "y" || p.Ref != "acme/web:2" || !slices.Equal(p.Env, []string{"A=1", "B=2"}) ||
		p.User != "root" || p.WorkDir != "/srv" || !slices.Equal(p.Cmd, []string{"serve", "80"}) {
		t.Errorf("made of %+v, %v", p, err)
	}
}

func memory(command, ready string) string {
	return "name: web\noutput: memory\nenv: {A: b}\nsteps: [{run: write /x y}]\nstart:\n  command: " + command + "\n  env: {C: d}\n  ready: " + ready + "\n"
}

func TestBuild_Memory(t *testing.T) {
	t.Parallel()
	for _, ready := range []string{"{port: 80}", "{file: /run/ready}", "{log: serving}", "{command: say yes}"} {
		b := newBench(t, nil)
		r := b.mustBuild(memory("serve 80", ready))
		s := b.snapshots[r.Snapshot.ID]
		if s.Kind != sandbox.MemorySnapshot || !s.ports[80] || s.files["/x"] != "y" || b.ran[1] != "A=b C=d serve 80" {
			t.Errorf("%s: %+v, ran %q", ready, s, b.ran)
		}
		if len(b.created) != 2 || b.created[1].Snapshot == "" {
			t.Errorf("%s: the program was started where the steps ran: %+v", ready, b.created)
		}
	}
}

func TestBuild_NotReady(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ command, ready, want string }{
		{"say hello", "{port: 80}", "the start command (say hello) exited with status 0"},
		{"say hello; exit 4", "{log: serving}", "the start command (say hello; exit 4) exited with status 4"},
		{"hang", "{port: 80, timeout: 2s}", "hang was not ready within 2s"},
		{"hang", "{file: /run/ready, timeout: 2s}", "hang was not ready within 2s"},
		{"hang", "{log: serving, timeout: 2s}", "hang was not ready within 2s"},
		{"hang", "{command: hang, timeout: 2s}", "hang was not ready within 2s"},
		{"hang", "{command: say no; exit 1}", "the ready check (say no; exit 1) exited with status 1"},
	} {
		outer := t
		synctest.Test(t, func(t *testing.T) {
			b := &bench{world: newWorld(), t: t, dir: tree(outer, nil)}
			_, err := b.build(t.Context(), memory(c.command, strings.ReplaceAll(c.ready, "say no; exit 1", "'say no; exit 1'")))
			if err == nil || err.Error() != c.want {
				t.Errorf("%s, %s: got %v, want %q", c.command, c.ready, err, c.want)
			}
			b.left(t)
			if len(b.names()) > 0 {
				t.Errorf("%s, %s: snapshots %q", c.command, c.ready, b.names())
			}
		})
	}
}

func TestBuild_OutputIsBounded(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	var said []string
	for range 90 {
		said = append(said, "say "+strings.Repeat("x", 500))
	}
	_, err := b.build(t.Context(), "name: web\nsteps:\n  - run: "+strings.Join(said, "; ")+"; say end; exit 1\n")
	var failed *StepError
	if !errors.As(err, &failed) || len(failed.Output) > tailSize || !bytes.HasSuffix(failed.Output, []byte("x\nend\n")) {
		t.Fatalf("got %v", err)
	}
}
