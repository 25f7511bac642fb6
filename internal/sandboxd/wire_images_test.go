package sandboxd_test

import (
	"context"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// imageOf has every field set.
func imageOf() sandbox.ImageSnapshotParams {
	return sandbox.ImageSnapshotParams{
		Snapshot: "ready", Ref: "mine:1", Env: []string{"A=b"}, User: "web", WorkDir: "/srv", Entrypoint: []string{"init"}, Cmd: []string{"serve", "80"},
	}
}

func TestImages_Calls(t *testing.T) {
	t.Parallel()
	var steps []string
	progress := func(p sandbox.ImageProgress) { steps = append(steps, p.Phase) }
	tests := []struct {
		name  string
		do    func(ctx context.Context, i *sandbox.Images) (any, error)
		want  []any // arguments the service got
		give  any
		steps string
	}{
		{"List", func(ctx context.Context, i *sandbox.Images) (any, error) { return i.List(ctx) }, nil, []sandbox.Image{*someImage()}, ""},
		{"Get", func(ctx context.Context, i *sandbox.Images) (any, error) { return i.Get(ctx, "debian:13") }, []any{"debian:13"}, someImage(), ""},
		{"Pull", func(ctx context.Context, i *sandbox.Images) (any, error) { return i.Pull(ctx, "a/b:1", progress) }, []any{"a/b:1"}, someImage(), "download done"},
		{"Build", func(ctx context.Context, i *sandbox.Images) (any, error) { return i.Build(ctx, "node24", progress) }, []any{"node24"}, someImage(), "build done"},
		{"Import", func(ctx context.Context, i *sandbox.Images) (any, error) {
			return i.Import(ctx, "mine", strings.NewReader("tar"), progress)
		}, []any{"mine", "tar"}, someImage(), "unpack done"},
		{"FromSnapshot", func(ctx context.Context, i *sandbox.Images) (any, error) {
			return i.FromSnapshot(ctx, imageOf(), progress)
		}, []any{imageOf()}, someImage(), "unpack done"},
		{"Remove", func(ctx context.Context, i *sandbox.Images) (any, error) { return nil, i.Remove(ctx, "debian") }, []any{"debian"}, nil, ""},
		{"GC", func(ctx context.Context, i *sandbox.Images) (any, error) { return i.GC(ctx) }, nil, &sandbox.ImageGC{Removed: 1, FreedBytes: 9}, ""},
	}
	for _, tt := range tests {
		_, rec, srv := dialRecorder(t)
		images := dialWire(t, srv.URL, conformance(t)).Images()
		steps = nil
		got, err := tt.do(t.Context(), images)
		if err != nil || differ(got, tt.give) || strings.Join(steps, " ") != tt.steps {
			t.Errorf("%s: %+v, %v, steps %v", tt.name, got, err, steps)
		}
		if call := rec.last(t); call.Method != tt.name || len(call.Args) > 0 && differ(call.Args, tt.want) {
			t.Errorf("%s: the service got %+v", tt.name, call)
		}
		want := cay.Errorf(cay.NoSpace, "full").WithHint("delete something")
		rec.err = want
		_, err = tt.do(t.Context(), images)
		checkWireError(t, err, want)
	}
	// References hold slashes and colons.
	c, rec, _ := dialRecorder(t)
	const ref = "registry.example:5000/team/app@sha256:00"
	if _, err := c.Images().Get(t.Context(), ref); err != nil || differ(rec.last(t).Args, []any{ref}) {
		t.Errorf("%s: %v", ref, err)
	}
}
