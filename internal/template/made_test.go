package template

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/sandbox"
)

// make builds a template of Make.
func (b *bench) make(t Template) (*Result, error) {
	b.t.Helper()
	made, err := Make(t, "Dockerfile", b.dir)
	if err != nil {
		return nil, err
	}
	b.ran, b.created = nil, nil
	return (&Builder{Sandboxes: b.world, Images: images{b.world}}).Build(b.t.Context(), made)
}

// made returns the files of a result's layer, with their content.
func (b *bench) made(r *Result) string {
	files := b.snapshots[r.Snapshot.ID].files
	var all []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		all = append(all, name+"="+files[name])
	}
	return fmt.Sprint(all)
}

// Copies of a Dockerfile take the content of directories and the files that match
// patterns, and go into an existing directory; ignored files do not exist.
func TestMake_merge(t *testing.T) {
	b := newBench(t, map[string]string{"d/x": "1", "d/sub/y": "2", "a.txt": "3", "b.txt": "4", "hidden/z": "5"})
	ignored := func(p string) (bool, bool) { return p == "hidden" || p == "d/sub/y", true }
	copyOf := func(to string, from ...string) Step { return Step{Merge: true, Copy: from, To: to, User: "root"} }
	r, err := b.make(Template{Output: Layer, Ignored: ignored, From: From{Image: "alpine:3"}, Steps: []Step{
		{Mkdir: "/there"}, copyOf("/m/", "d", "*.txt"), copyOf("/m2", "d"), copyOf("/name", "a.txt"), copyOf("/there", "b.txt"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	b.left(t)
	if got, want := b.made(r), "[/m/a.txt=3 /m/b.txt=4 /m/sub= /m/x=1 /m2/sub= /m2/x=1 /name=3 /there/= /there/b.txt=4]"; got != want {
		t.Errorf("the layer has %s, want %s", got, want)
	}
	for _, from := range []string{"hidden", "*.md", "absent"} {
		_, err := b.make(Template{Output: Layer, Ignored: ignored, From: From{Image: "alpine:3"}, Steps: []Step{copyOf("/m/", from)}})
		checktest.Code(t, err, cay.Invalid, "copy of "+from)
	}
	_, err = b.make(Template{Output: Layer, From: From{Image: "alpine:3"}, Steps: []Step{copyOf("/m", "*.txt")}})
	checktest.Code(t, err, cay.Invalid, "two files of one name")
}

// A step copies from the layer of another template, and the sandbox of that layer is
// deleted. The step runs again if that layer has changed.
func TestMake_source(t *testing.T) {
	b := newBench(t, nil)
	stage := func(text string) *Result {
		t.Helper()
		r, err := b.make(Template{Output: Layer, From: From{Image: "alpine:3"}, Steps: []Step{{Run: Command{"write /opt/tree/leaf " + text}}}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	final := func(source *Result) *Result {
		t.Helper()
		r, err := b.make(Template{Output: Layer, From: From{Image: "alpine:3"}, Steps: []Step{
			{Merge: true, Source: From{Snapshot: source.Snapshot.ID}, Copy: []string{"/opt/tree/leaf"}, To: "/one/"},
			{Merge: true, Source: From{Snapshot: source.Snapshot.ID}, Copy: []string{"/opt/tree/leaf"}, To: "/two"},
		}})
		if err != nil {
			t.Fatal(err)
		}
		b.left(t)
		return r
	}
	first := stage("a")
	if got, want := b.made(final(first)), "[/one/leaf=a /two=a]"; got != want {
		t.Errorf("the layer has %s, want %s", got, want)
	}
	if r := final(stage("a")); r.Cached != 2 {
		t.Errorf("%d of 2 steps are known", r.Cached)
	}
	if r := final(stage("b")); r.Cached != 0 || b.made(r) != "[/one/leaf=b /two=b]" {
		t.Errorf("with another source %d steps are known, and the layer has %s", r.Cached, b.made(r))
	}
	for _, from := range []string{"relative", "/wild*"} {
		_, err := Make(Template{Output: Layer, Steps: []Step{{Merge: true, Source: From{Image: "alpine:3"}, Copy: []string{from}, To: "/x/"}}}, "f", "")
		checktest.Code(t, err, cay.Invalid, from)
	}
}

// A template without steps has a layer, too, and an image has the configuration of the
// template.
func TestMake_image(t *testing.T) {
	b := newBench(t, nil)
	config := &sandbox.ImageConfig{Env: []string{"A=1"}, User: "web", WorkDir: "/srv", Entrypoint: []string{"/run"}, Labels: map[string]string{"k": "v"}, ExposedPorts: []string{"80/tcp"}}
	for i, snapshots := range []int{1, 1} {
		if _, err := b.make(Template{Name: "x:1", Output: Image, From: From{Image: "alpine:3"}, Config: config}); err != nil {
			t.Fatal(err)
		}
		b.left(t)
		if len(b.snapshots) != snapshots || i == 1 && len(b.created) > 0 {
			t.Errorf("build %d: %d layers, %d sandboxes", i, len(b.snapshots), len(b.created))
		}
	}
	p := b.outputs[0]
	if got := fmt.Sprint(p.Ref, p.Env, p.User, p.WorkDir, p.Entrypoint, p.Labels, p.ExposedPorts); got != "x:1[A=1]web/srv[/run] map[k:v] [80/tcp]" {
		t.Errorf("the image is made with %s", got)
	}
}

func TestFile_chmod(t *testing.T) {
	mode := fs.FileMode(0o700)
	for before, want := range map[fs.FileMode]fs.FileMode{0o644: 0o700, fs.ModeDir | 0o755: fs.ModeDir | 0o700, fs.ModeSymlink: fs.ModeSymlink} {
		f := file{Mode: before}
		if f.chmod(&mode); f.Mode != want {
			t.Errorf("%v becomes %v, want %v", before, f.Mode, want)
		}
		if f.chmod(nil); f.Mode != want {
			t.Errorf("nil changes %v to %v", want, f.Mode)
		}
	}
}
