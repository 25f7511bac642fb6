package imaged_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/api/apitest"
	"github.com/cayhq/cay/internal/imaged"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

// imageOf has every field set.
func imageOf() sandbox.ImageSnapshotParams {
	return sandbox.ImageSnapshotParams{
		Snapshot: "ready", Ref: "mine:1", Env: []string{"A=b"}, User: "web", WorkDir: "/srv", Entrypoint: []string{"init"}, Cmd: []string{"serve", "80"},
		Labels: map[string]string{"a": "b"}, ExposedPorts: []string{"80/tcp"},
	}
}

// pushOf has every field set that may be set together.
func pushOf() sandbox.ImagePushParams {
	return sandbox.ImagePushParams{Ref: "a/b:1", Auth: sandbox.RegistryAuth{Username: "me", Password: "secret"}}
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
		{"BuildDefault", func(ctx context.Context, i *sandbox.Images) (any, error) {
			return i.BuildDefault(ctx, []string{"jq", "ffmpeg"}, progress)
		}, []any{[]string{"jq", "ffmpeg"}}, someImage(), "build done"},
		{"Import", func(ctx context.Context, i *sandbox.Images) (any, error) {
			return i.Import(ctx, "mine", strings.NewReader("tar"), progress)
		}, []any{"mine", "tar"}, someImage(), "unpack done"},
		{"FromSnapshot", func(ctx context.Context, i *sandbox.Images) (any, error) {
			return i.FromSnapshot(ctx, imageOf(), progress)
		}, []any{imageOf()}, someImage(), "unpack done"},
		{"Export", func(ctx context.Context, i *sandbox.Images) (any, error) {
			r, err := i.Export(ctx, []string{"a:1", "b"})
			if err != nil {
				return nil, err
			}
			defer r.Close()
			b, err := io.ReadAll(r)
			return string(b), err
		}, []any{[]string{"a:1", "b"}}, "archive", ""},
		{"Push", func(ctx context.Context, i *sandbox.Images) (any, error) { return i.Push(ctx, pushOf(), progress) }, []any{pushOf()}, someImage(), "upload pushed done"},
		{"Remove", func(ctx context.Context, i *sandbox.Images) (any, error) { return nil, i.Remove(ctx, "debian") }, []any{"debian"}, nil, ""},
		{"Tag", func(ctx context.Context, i *sandbox.Images) (any, error) { return i.Tag(ctx, "debian", "a/b:2") }, []any{"debian", "a/b:2"}, someImage(), ""},
		{"GC", func(ctx context.Context, i *sandbox.Images) (any, error) {
			return i.GC(ctx, sandbox.ImageGCParams{DryRun: true})
		}, []any{sandbox.ImageGCParams{DryRun: true}}, someGC(), ""},
	}
	for _, tt := range tests {
		rec := new(recorder)
		images := dial(t, rec, "admin").Images()
		steps = nil
		got, err := tt.do(t.Context(), images)
		if err != nil || tt.give != nil && !reflect.DeepEqual(got, tt.give) || strings.Join(steps, " ") != tt.steps {
			t.Errorf("%s: %+v, %v, steps %v", tt.name, got, err, steps)
		}
		if rec.call != tt.name || len(tt.want) > 0 && !reflect.DeepEqual(rec.args, tt.want) {
			t.Errorf("%s: the service got %s %+v", tt.name, rec.call, rec.args)
		}
		want := cay.Errorf(cay.NoSpace, "full").WithHint("delete something")
		rec.err = want
		_, err = tt.do(t.Context(), images)
		var e *cay.Error
		if !errors.As(err, &e) || e.Code != want.Code || e.Message != want.Message || e.Hint != want.Hint {
			t.Errorf("%s failed with %v", tt.name, err)
		}
	}
	// References hold slashes and colons.
	rec := new(recorder)
	const ref = "registry.example:5000/team/app@sha256:00"
	plain := sandbox.NewClient(sandbox.ClientOptions{URL: apitest.Serve(t, muxOf(rec)).URL, Token: "admin"})
	if _, err := plain.Images().Get(t.Context(), ref); err != nil || !reflect.DeepEqual(rec.args, []any{ref}) {
		t.Errorf("%s: %v", ref, err)
	}
}

// Nothing is an empty list.
func TestRoutes_Empty(t *testing.T) {
	t.Parallel()
	w := open(t, nil)
	srv := apitest.Serve(t, muxOf(w))
	for path, want := range map[string]string{
		"GET /v1/images":                  `{"items":[]}`,
		"POST /v1/images/gc?dry_run=true": `{"removed":0,"freed_bytes":0,"images":[]}`,
	} {
		method, path, _ := strings.Cut(path, " ")
		r, err := http.NewRequestWithContext(t.Context(), method, srv.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer admin")
		resp, err := srv.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("%s %s: %s, %v; want %s", method, path, got, err, want)
		}
	}
}

// Invalid requests are refused before the service is called and before the body is read.
func TestRoutes_Errors(t *testing.T) {
	t.Parallel()
	rec := new(recorder)
	srv := apitest.Serve(t, muxOf(rec))
	for _, tt := range []struct {
		name, token, method, path, body string
		status                          int
		code                            cay.Code
		says                            string
	}{
		{"pull without the right", "project", "POST", "/v1/images/pull", `{"ref":"a"}`, 403, cay.PermissionDenied, "images:write"},
		{"import without the right", "project", "POST", "/v1/images/import?ref=x", "", 403, cay.PermissionDenied, "images:write"},
		{"image of a snapshot without the right", "project", "POST", "/v1/images/snapshot", `{"snapshot":"a","ref":"b"}`, 403, cay.PermissionDenied, "images:write"},
		{"removal without the right", "project", "DELETE", "/v1/images/debian", "", 403, cay.PermissionDenied, "images:write"},
		{"collection by a team", "team", "POST", "/v1/images/gc", "", 403, cay.PermissionDenied, "admin"},
		{"collection by halves", "admin", "POST", "/v1/images/gc?dry_run=maybe", "", 400, cay.Invalid, "dry_run"},
		{"image of no snapshot", "team", "POST", "/v1/images/snapshot", `{"ref": "b"}`, 400, cay.Invalid, "snapshot"},
		{"image without a name", "team", "POST", "/v1/images/snapshot", `{"snapshot": "a"}`, 400, cay.Invalid, "ref"},
		{"image with a bad variable", "team", "POST", "/v1/images/snapshot", `{"snapshot": "a", "ref": "b", "env": ["C"]}`, 400, cay.Invalid, "is not K=V"},
		{"image with a relative directory", "team", "POST", "/v1/images/snapshot", `{"snapshot": "a", "ref": "b", "workdir": "c"}`, 400, cay.Invalid, "absolute"},
		{"image with a bad port", "team", "POST", "/v1/images/snapshot", `{"snapshot": "a", "ref": "b", "exposed_ports": ["http"]}`, 400, cay.Invalid, "exposed port"},
		{"push without the right", "project", "POST", "/v1/images/push", `{"ref":"a"}`, 403, cay.PermissionDenied, "images:write"},
		{"push of nothing", "team", "POST", "/v1/images/push", `{}`, 400, cay.Invalid, "ref"},
		{"push with two credentials", "team", "POST", "/v1/images/push", `{"ref":"a","auth":{"username":"a","registry_token":"b"}}`, 400, cay.Invalid, "more than one"},
		{"tag without the right", "project", "POST", "/v1/images/tag", `{"ref":"a","name":"b"}`, 403, cay.PermissionDenied, "images:write"},
		{"tag without a name", "team", "POST", "/v1/images/tag", `{"ref":"a"}`, 400, cay.Invalid, "name"},
		{"import with two names", "team", "POST", "/v1/images/import?ref=a&ref=b", "", 400, cay.Invalid, "ref"},
		{"list with a query", "team", "GET", "/v1/images?limit=1", "", 400, cay.Invalid, "limit"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), tt.method, srv.URL+tt.path, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+tt.token)
		r.Header.Set("Content-Type", "application/json")
		resp, err := srv.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		var got wire.ErrorBody
		err = json.NewDecoder(resp.Body).Decode(&got)
		resp.Body.Close()
		if err != nil || got.Error == nil || resp.StatusCode != tt.status || got.Error.Code != tt.code || !strings.Contains(got.Error.Message+got.Error.Hint, tt.says) {
			t.Errorf("%s: %d %+v, %v; want %d %s with %q", tt.name, resp.StatusCode, got.Error, err, tt.status, tt.code, tt.says)
		}
	}
	if rec.call != "" {
		t.Errorf("%s reached the service", rec.call)
	}
}

func muxOf(svc imaged.Service) *api.Mux {
	mux := api.NewMux(tokens{})
	imaged.Routes(mux, svc)
	mux.ServeOpenAPI("test")
	return mux
}

var spec = sync.OnceValues(func() (*openapi3.T, error) { return apitest.Spec(muxOf(new(recorder))) })

func TestRoutes_Golden(t *testing.T) {
	t.Parallel()
	apitest.Golden(t, muxOf(new(recorder)))
}

func TestOpenAPI_DescribesRoutes(t *testing.T) {
	t.Parallel()
	doc, err := spec()
	if err != nil {
		t.Fatal(err)
	}
	apitest.Described(t, muxOf(new(recorder)), doc)
}

// tokens has the tokens of an admin, of a team, and of projects with and without the
// right to write images.
type tokens struct{}

var principals = map[string]api.Principal{
	"admin":   {TokenID: "tok_admin", TeamID: "team_default", Admin: true},
	"team":    {TokenID: "tok_team", TeamID: "team_a"},
	"other":   {TokenID: "tok_other", TeamID: "team_b"},
	"project": {TokenID: "tok_project", TeamID: "team_a", ProjectID: "prj_a"},
	"builder": {TokenID: "tok_builder", TeamID: "team_a", ProjectID: "prj_a", Images: true},
}

func (tokens) Authenticate(_ context.Context, secret string) (api.Principal, error) {
	p, ok := principals[secret]
	if !ok {
		return p, cay.Errorf(cay.Unauthenticated, "the token is not valid")
	}
	return p, nil
}

// dial serves svc and returns a client, whose traffic is checked against the document.
func dial(t *testing.T, svc imaged.Service, token string) *sandbox.Client {
	t.Helper()
	doc, err := spec()
	if err != nil {
		t.Fatal(err)
	}
	srv := apitest.Serve(t, muxOf(svc))
	return sandbox.NewClient(sandbox.ClientOptions{
		URL: srv.URL, Token: token,
		HTTPClient: &http.Client{Transport: apitest.Conform(t, doc, nil)(srv.Client().Transport)},
	})
}

// recorder is a Service that records its calls and answers with fixed values, or with
// err.
type recorder struct {
	call string
	args []any
	err  error
}

func someImage() *sandbox.Image {
	return &sandbox.Image{Digest: "sha256:00", Refs: []string{"debian"}, Source: "debian", Arch: "amd64", SizeBytes: 5, CreatedAt: someTime, UsedAt: someTime}
}

func (s *recorder) List(_ context.Context) ([]sandbox.Image, error) {
	return []sandbox.Image{*someImage()}, s.note("List")
}

func (s *recorder) Get(_ context.Context, ref string) (*sandbox.Image, error) {
	return someImage(), s.note("Get", ref)
}

func (s *recorder) Pull(_ context.Context, ref string, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	progress(sandbox.ImageProgress{Phase: "download", Item: "layer", Current: 1, Total: 2})
	return someImage(), s.note("Pull", ref)
}

func (s *recorder) Build(_ context.Context, name string, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	progress(sandbox.ImageProgress{Phase: "build"})
	return someImage(), s.note("Build", name)
}

func (s *recorder) BuildDefault(_ context.Context, packages []string, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	progress(sandbox.ImageProgress{Phase: "build"})
	return someImage(), s.note("BuildDefault", packages)
}

func (s *recorder) Import(_ context.Context, ref string, r io.Reader, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	if s.err != nil {
		return nil, s.note("Import")
	}
	progress(sandbox.ImageProgress{Phase: "unpack"})
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	return someImage(), s.note("Import", ref, string(b))
}

func (s *recorder) FromSnapshot(_ context.Context, p sandbox.ImageSnapshotParams, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	progress(sandbox.ImageProgress{Phase: "unpack"})
	return someImage(), s.note("FromSnapshot", p)
}

func (s *recorder) Export(_ context.Context, refs []string) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("archive")), s.note("Export", refs)
}

func (s *recorder) Push(_ context.Context, p sandbox.ImagePushParams, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	progress(sandbox.ImageProgress{Phase: "upload", Item: "layer", Current: 1, Total: 2})
	progress(sandbox.ImageProgress{Phase: "pushed", Item: "sha256:00", Total: 2})
	return someImage(), s.note("Push", p)
}

func (s *recorder) Tag(_ context.Context, ref, name string) (*sandbox.Image, error) {
	return someImage(), s.note("Tag", ref, name)
}

func (s *recorder) Remove(_ context.Context, ref string) error {
	return s.note("Remove", ref)
}

func (s *recorder) GC(_ context.Context, p sandbox.ImageGCParams) (*sandbox.ImageGC, error) {
	return someGC(), s.note("GC", p)
}

var someTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func someGC() *sandbox.ImageGC {
	return &sandbox.ImageGC{Removed: 1, FreedBytes: 9, Images: []sandbox.Image{*someImage()}}
}

func (s *recorder) note(call string, args ...any) error {
	s.call, s.args = call, args
	return s.err
}
