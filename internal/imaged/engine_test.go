package imaged_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sync/errgroup"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/image"
	"github.com/cayhq/cay/internal/imaged"
	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/sandbox"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// world is an engine with a store of its own.
type world struct {
	*imaged.Engine
	t      *testing.T
	dir    string
	store  *image.Store
	quota  account.Quota
	needed string // a digest that a snapshot needs
}

func (w *world) Quota(context.Context, string) (account.Quota, error) { return w.quota, nil }

func open(t *testing.T, transport http.RoundTripper) *world {
	t.Helper()
	if transport == nil {
		tr := &http.Transport{}
		t.Cleanup(tr.CloseIdleConnections)
		transport = tr
	}
	w := &world{t: t, dir: t.TempDir()}
	store, err := image.Open(w.dir, image.Options{
		Transport: transport, Keychain: machine{},
		Needed: func(_ context.Context, digest string) (bool, error) { return digest == w.needed, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	w.store = store
	w.Engine = imaged.NewEngine(imaged.Config{Store: store, Accounts: w})
	return w
}

// as returns the context of a request with the given token.
func (w *world) as(token string) context.Context {
	return api.WithPrincipal(w.t.Context(), principals[token])
}

// archive returns an image archive with one file.
func archive(t *testing.T, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "f", Mode: 0o644, Size: int64(len(content))})
	if err == nil {
		_, err = tw.Write(content)
	}
	if err = errors.Join(err, tw.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// noise returns n bytes, which differ for each seed.
func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = r.Read(b) // never fails
	return b
}

func (w *world) bring(token, ref string, content []byte) *sandbox.Image {
	w.t.Helper()
	img, err := w.Import(w.as(token), ref, bytes.NewReader(archive(w.t, content)), nil)
	if err != nil {
		w.t.Fatalf("%s brings %s: %v", token, ref, err)
	}
	return img
}

func (w *world) refs(token string) (all []string) {
	w.t.Helper()
	list, err := w.List(w.as(token))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, img := range list {
		all = append(all, img.Refs...)
	}
	slices.Sort(all)
	return all
}

const hub = "index.docker.io/library/"

// A team sees its own images and the installation's, and no others.
func TestEngine_Teams(t *testing.T) {
	t.Parallel()
	w := open(t, nil)
	w.bring("admin", "base", []byte("base"))
	mine := w.bring("team", "app", []byte("a's"))
	theirs := w.bring("other", "app", []byte("b's"))
	for token, want := range map[string][]string{
		"admin": {hub + "base:latest"}, "team": {hub + "app:latest", hub + "base:latest"},
		"project": {hub + "app:latest", hub + "base:latest"}, "other": {hub + "app:latest", hub + "base:latest"},
	} {
		if got := w.refs(token); !slices.Equal(got, want) {
			t.Errorf("%s sees %q, want %q", token, got, want)
		}
	}
	for token, want := range map[string]string{"team": mine.Digest, "project": mine.Digest, "other": theirs.Digest} {
		got, err := w.Get(w.as(token), "app")
		if err != nil || got.Digest != want || !slices.Equal(got.TeamRefs, []string{hub + "app:latest"}) {
			t.Errorf("%s's app is %+v, %v", token, got, err)
		}
	}
	_, err := w.Get(w.as("admin"), "app")
	checktest.Code(t, err, cay.NotFound, "a team's image as the installation's")
	_, err = w.Get(w.as("other"), mine.Digest)
	checktest.Code(t, err, cay.NotFound, "another team's image by its digest")
	_, err = w.Ensure(w.as("other"), "team_b", mine.Digest)
	checktest.Code(t, err, cay.NotFound, "a sandbox from another team's digest")
	_, err = w.Ensure(w.as("project"), "team_c", "app")
	checktest.Code(t, err, cay.PermissionDenied, "a sandbox from another team's name")

	// For the team, its name takes precedence over the installation's.
	shadow := w.bring("team", "base", []byte("a's base"))
	for token, same := range map[string]bool{"team": true, "other": false} {
		got, err := w.Get(w.as(token), "base")
		if err != nil || (got.Digest == shadow.Digest) != same {
			t.Errorf("base of %s is %+v, %v", token, got, err)
		}
		digest, err := w.Digest(t.Context(), principals[token].TeamID, "base")
		if err != nil || (digest == shadow.Digest) != same {
			t.Errorf("base of %s is %s, %v", token, digest, err)
		}
	}
	if err := w.Remove(w.as("team"), "base"); err != nil {
		t.Error(err)
	}
	checktest.Code(t, w.Remove(w.as("team"), "base"), cay.PermissionDenied, "a team removes the installation's")
	if err := w.Remove(w.as("other"), "app"); err != nil {
		t.Error(err)
	}
	if got, err := w.Get(w.as("team"), "app"); err != nil || got.Digest != mine.Digest {
		t.Errorf("the other team has removed %+v, %v", got, err)
	}
	if has, err := w.InUse(t.Context(), "team_a"); err != nil || has != "1 image" {
		t.Errorf("the team has %q, %v", has, err)
	}
	// A new name belongs to the team, or to all if an operator gives it; but an image of
	// one team stays invisible to others.
	for _, tt := range []struct{ token, ref, name string }{{"team", "app", "mine"}, {"other", "base", "theirs"}, {"admin", "base", "all"}} {
		if _, err := w.Tag(w.as(tt.token), tt.ref, tt.name); err != nil {
			t.Errorf("%s tags %s: %v", tt.token, tt.ref, err)
		}
	}
	if got, want := w.refs("other"), []string{hub + "all:latest", hub + "base:latest", hub + "theirs:latest"}; !slices.Equal(got, want) {
		t.Errorf("the other team sees %q, want %q", got, want)
	}
	checktest.Code(t, errOf(w.Tag(w.as("other"), "mine", "x")), cay.NotFound, "a tag of another team's image")
	checktest.Code(t, errOf(w.Tag(w.as("project"), "base", "x")), cay.PermissionDenied, "a tag without the right")
	speaker := api.WithPrincipal(t.Context(), api.Principal{TokenID: "tok_admin", TeamID: "team_a", Admin: true})
	if img, err := w.Tag(speaker, "mine", "hers"); err != nil || !slices.Contains(img.TeamRefs, hub+"hers:latest") {
		t.Errorf("an operator gives a team's image the name %+v, %v", img, err)
	}
	if err := errors.Join(w.Remove(w.as("team"), "mine"), w.Remove(w.as("team"), "hers")); err != nil {
		t.Error(err)
	}
	// An operator that acts for a team removes its images.
	operator := api.WithPrincipal(t.Context(), api.Principal{TokenID: "tok_admin", TeamID: "team_a", Admin: true})
	if err := w.Remove(operator, "app"); err != nil {
		t.Error(err)
	}
	if has, err := w.InUse(t.Context(), "team_a"); err != nil || has != "" {
		t.Errorf("the team has %q, %v", has, err)
	}
}

// A team's id is never used as a path, whatever characters it has.
func TestEngine_OddTeams(t *testing.T) {
	t.Parallel()
	w := open(t, nil)
	base := w.bring("admin", "base", []byte("base"))
	for _, team := range []string{"..", "../images", "a/b", "x\x00", strings.Repeat("x", 200)} {
		ctx := api.WithPrincipal(t.Context(), api.Principal{TokenID: "tok", TeamID: team})
		img, err := w.Import(ctx, "own", bytes.NewReader(archive(t, []byte(team))), nil)
		if err != nil || !slices.Equal(img.TeamRefs, []string{hub + "own:latest"}) {
			t.Errorf("team %q brought %+v, %v", team, img, err)
		}
		if got, err := w.Get(ctx, "base"); err != nil || got.Digest != base.Digest {
			t.Errorf("team %q sees %+v, %v", team, got, err)
		}
	}
	if got := w.refs("admin"); len(got) != 1 {
		t.Errorf("the installation has %q", got)
	}
	nobody := api.WithPrincipal(t.Context(), api.Principal{TokenID: "tok"})
	if _, err := w.Import(nobody, "own", bytes.NewReader(archive(t, nil)), nil); err == nil {
		t.Error("a token without a team brings images for all")
	}
}

// A project's token can add images only if it has the right to.
func TestEngine_Rights(t *testing.T) {
	t.Parallel()
	w := open(t, nil)
	w.bring("builder", "app", []byte("app"))
	for what, err := range map[string]error{
		"import": errOf(w.Import(w.as("project"), "x", strings.NewReader(""), nil)),
		"pull":   errOf(w.Pull(w.as("project"), "127.0.0.1:1/x", nil)),
		"image":  errOf(w.FromSnapshot(w.as("project"), sandbox.ImageSnapshotParams{Snapshot: "s", Ref: "x"}, nil)),
		"push":   errOf(w.Push(w.as("project"), sandbox.ImagePushParams{Ref: "app"}, nil)),
		"remove": w.Remove(w.as("project"), "app"),
		"gc":     errOf(w.GC(w.as("team"), sandbox.ImageGCParams{})),
		"start":  errOf(w.Ensure(w.as("project"), "team_a", "127.0.0.1:1/x")),
	} {
		checktest.Code(t, err, cay.PermissionDenied, what)
	}
	for what, err := range map[string]error{
		"list by nobody": errOf(w.List(t.Context())), "pull by nobody": errOf(w.Pull(t.Context(), "x", nil)),
	} {
		checktest.Code(t, err, cay.Unauthenticated, what)
	}
	// A sandbox that wakes by itself has no principal, so it fetches nothing.
	checktest.Code(t, errOf(w.Ensure(t.Context(), "team_a", "127.0.0.1:1/x")), cay.NotFound, "start by nobody")
}

// Teams read and push images that they see. Only admin tokens push with the credentials
// of the daemon's machine.
func TestEngine_Export(t *testing.T) {
	t.Parallel()
	own := false // whether a push came with the credentials of the machine
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		user, _, ok := r.BasicAuth()
		if !ok {
			rw.Header().Set("Www-Authenticate", `Basic realm="test"`)
			rw.WriteHeader(http.StatusUnauthorized)
			return
		}
		own = own || user == "machine"
		inner.ServeHTTP(rw, r)
	}))
	t.Cleanup(srv.Close)
	ref := strings.TrimPrefix(srv.URL, "http://") + "/app:1"
	w := open(t, nil)
	w.bring("team", ref, []byte("app"))
	for token, code := range map[string]cay.Code{"team": "", "project": "", "other": cay.NotFound} {
		r, err := w.Export(w.as(token), []string{ref})
		if cay.CodeOf(err) != code {
			t.Errorf("%s reads it: %v", token, err)
		}
		if err != nil {
			continue
		}
		if b, err := io.ReadAll(r); err != nil || len(b) < 1024 {
			t.Errorf("%s reads %d bytes, %v", token, len(b), err)
		}
		checktest.OK(t, r.Close())
	}
	// An archive that is not closed makes the team wait, and no other team.
	first := checktest.Must(w.Export(w.as("team"), []string{ref}))(t)
	waits, cancel := context.WithCancel(w.as("team"))
	second := make(chan error, 1)
	go func() {
		_, err := w.Export(waits, []string{ref})
		second <- err
	}()
	_, err := w.Export(w.as("other"), []string{ref})
	checktest.Code(t, err, cay.NotFound)
	cancel()
	if err := <-second; err == nil {
		t.Error("a team packs two images at once")
	}
	checktest.OK(t, first.Close())

	_, err = w.Export(t.Context(), []string{ref})
	checktest.Code(t, err, cay.Unauthenticated)
	p := sandbox.ImagePushParams{Ref: ref}
	_, err = w.Push(w.as("other"), p, nil)
	checktest.Code(t, err, cay.NotFound)
	_, err = w.Push(w.as("team"), p, nil)
	checktest.Code(t, err, cay.PermissionDenied)
	if own {
		t.Error("a team pushes as the daemon's machine")
	}
	p.Auth.Username, p.Auth.Password = "team", "secret"
	checktest.Must(w.Push(w.as("team"), p, nil))(t)
	checktest.Must(w.Push(w.as("builder"), p, nil))(t)
	w.bring("admin", ref, []byte("common"))
	checktest.Must(w.Push(w.as("admin"), sandbox.ImagePushParams{Ref: ref}, nil))(t)
	if !own {
		t.Error("the operator does not push as the daemon's machine")
	}
}

// machine has the credentials of the daemon's machine.
type machine struct{}

func (machine) Resolve(authn.Resource) (authn.Authenticator, error) {
	return authn.FromConfig(authn.AuthConfig{Username: "machine", Password: "secret"}), nil
}

func errOf[T any](_ T, err error) error { return err }

// The images that a team adds count against its quota, once, until they are removed.
func TestEngine_Quota(t *testing.T) {
	t.Parallel()
	w := open(t, nil)
	w.quota.ImageMB = 2
	big := func(seed uint64) []byte { return noise(seed, 900<<10) }
	used := func(want bool) {
		t.Helper()
		n, err := w.store.For(image.Owner{ID: "team_a"}).Used()
		if err != nil || n > 0 != want {
			t.Errorf("the team has %d bytes, %v", n, err)
		}
	}
	_, err := w.Import(w.as("team"), "huge", bytes.NewReader(archive(t, noise(9, 3<<20))), nil)
	checktest.Code(t, err, cay.QuotaExceeded, "more than the quota")
	used(false)
	first := w.bring("team", "first", big(1))
	w.bring("team", "again", big(1)) // the same content
	w.bring("team", "more", big(5))
	w.bring("other", "theirs", big(2))
	_, err = w.Import(w.as("team"), "second", bytes.NewReader(archive(t, big(3))), nil)
	checktest.Code(t, err, cay.QuotaExceeded, "more than is left")
	if got := w.refs("team"); len(got) != 3 {
		t.Errorf("the team has %q", got)
	}
	if report, err := w.GC(w.as("admin"), sandbox.ImageGCParams{DryRun: true}); err != nil || report.Removed != 0 {
		t.Errorf("what was refused has left %+v, %v", report, err)
	}

	// An image without a name stays, if a snapshot or sandbox needs it.
	if err := w.Remove(w.as("team"), first.Digest); err != nil {
		t.Fatal(err)
	}
	w.needed = first.Digest
	used(true)
	_, err = w.Import(w.as("team"), "second", bytes.NewReader(archive(t, big(3))), nil)
	checktest.Code(t, err, cay.QuotaExceeded, "beside what a snapshot needs")
	w.needed = ""
	w.bring("team", "second", big(3)) // makes room for itself
	if _, err := w.Lease(t.Context(), first.Digest); cay.CodeOf(err) != cay.NotFound {
		t.Errorf("what nobody needs is still there: %v", err)
	}

	// Images of the installation do not count against a team's quota.
	w.bring("admin", "common", big(3))
	w.bring("admin", "others", big(5))
	used(false)
	w.bring("team", "third", big(4))
	used(true)
}

func TestEngine_GC(t *testing.T) {
	t.Parallel()
	w := open(t, nil)
	kept, gone := w.bring("team", "kept", []byte("1")), w.bring("admin", "gone", []byte("2"))
	if err := w.Remove(w.as("admin"), "gone"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		report, err := w.GC(w.as("admin"), sandbox.ImageGCParams{DryRun: true})
		if err != nil || report.Removed != 1 || report.FreedBytes < gone.SizeBytes || len(report.Images) != 1 ||
			report.Images[0].Digest != gone.Digest || report.Images[0].SizeBytes != gone.SizeBytes || report.Images[0].Source != "import" {
			t.Errorf("it would remove %+v, %v", report, err)
		}
	}
	if report, err := w.GC(w.as("admin"), sandbox.ImageGCParams{}); err != nil || report.Removed != 1 || report.Images[0].Digest != gone.Digest {
		t.Errorf("it has removed %+v, %v", report, err)
	}
	if _, err := w.Lease(t.Context(), gone.Digest); cay.CodeOf(err) != cay.NotFound {
		t.Errorf("what was removed: %v", err)
	}
	if l, err := w.Lease(t.Context(), kept.Digest); err != nil {
		t.Error(err)
	} else {
		l.Release()
	}
}

// serveRegistry is an OCI registry that counts the requests for blobs.
func serveRegistry(t *testing.T) (host string, blobs *atomic.Int64) {
	t.Helper()
	blobs = new(atomic.Int64)
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			blobs.Add(1)
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://"), blobs
}

// push puts an image of one file into a registry.
func push(t *testing.T, ref string, content []byte) {
	t.Helper()
	b := archive(t, content)
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", runtime.GOARCH
	var pushed v1.Image
	if pushed, err = mutate.ConfigFile(img, c); err != nil {
		t.Fatal(err)
	}
	parsed, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	if err := remote.Write(parsed, pushed, remote.WithTransport(tr)); err != nil {
		t.Fatal(err)
	}
}

// A sandbox's image is fetched for the team of the caller, and its content only once.
func TestEngine_Ensure(t *testing.T) {
	t.Parallel()
	host, blobs := serveRegistry(t)
	push(t, host+"/app:1", noise(1, 64<<10))
	w := open(t, nil)
	ensure := func(ctx context.Context, team string) string {
		t.Helper()
		l, err := w.Ensure(ctx, team, host+"/app:1")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Release()
		return l.Image.Digest
	}
	digest := ensure(w.as("team"), "team_a")
	if got := w.refs("team"); !slices.Equal(got, []string{host + "/app:1"}) {
		t.Errorf("the team has %q", got)
	}
	if got := w.refs("other"); len(got) != 0 {
		t.Errorf("the other team sees %q", got)
	}
	before := blobs.Load()
	ensure(w.as("project"), "team_a") // the image exists, so no right is needed
	if n := blobs.Load() - before; n > 0 {
		t.Errorf("%d blobs were fetched for what is there", n)
	}
	// Another team downloads an image of one team again.
	if got := ensure(w.as("other"), "team_b"); got != digest {
		t.Errorf("the other team has %s, not %s", got, digest)
	}
	if n := blobs.Load() - before; n < 2 { // the configuration, and a layer
		t.Errorf("%d blobs were fetched for what another team has", n)
	}
	if l, err := w.Ensure(t.Context(), "", host+"/app:1"); err != nil { // a pool
		t.Error(err)
	} else {
		l.Release()
	}
	before = blobs.Load()
	ensure(w.as("other"), "team_c") // the installation's is everybody's
	if n := blobs.Load() - before; n > 1 {
		t.Errorf("%d blobs were fetched for what the installation has", n)
	}
	if got, err := w.Get(w.as("admin"), host+"/app:1"); err != nil || len(got.TeamRefs) != 0 {
		t.Errorf("the pool's image is %+v, %v", got, err)
	}
}

func TestEngine_Downloads(t *testing.T) {
	t.Parallel()
	host, blobs := serveRegistry(t)
	w := open(t, nil)
	w.quota.ImageDownloadMB = 1
	for i, ref := range []string{"/a", "/b", "/c"} {
		push(t, host+ref, noise(uint64(i), 700<<10))
	}
	if _, err := w.Pull(w.as("team"), host+"/a", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Pull(w.as("team"), host+"/a", nil); err != nil {
		t.Errorf("what is there: %v", err)
	}
	before := blobs.Load()
	_, err := w.Pull(w.as("team"), host+"/b", nil)
	checktest.Code(t, err, cay.QuotaExceeded, "more than a day's")
	if n := blobs.Load() - before; n > 1 { // the configuration
		t.Errorf("%d blobs were fetched for what was refused", n)
	}
	if _, err := w.Pull(w.as("other"), host+"/b", nil); err != nil {
		t.Errorf("another team: %v", err)
	}
	_, err = w.Pull(w.as("team"), host+"/b", nil)
	checktest.Code(t, err, cay.QuotaExceeded, "what another team has")
	if _, err := w.Pull(w.as("admin"), host+"/b", nil); err != nil {
		t.Errorf("an operator: %v", err)
	}
	if _, err := w.Pull(w.as("team"), host+"/b", nil); err != nil { // the installation has it
		t.Errorf("what needs no download: %v", err)
	}
	if _, err := w.Pull(w.as("admin"), host+"/c", nil); err != nil {
		t.Errorf("an operator: %v", err)
	}
}

// Downloads for an image that does not fit are removed.
func TestEngine_DownloadsInVain(t *testing.T) {
	t.Parallel()
	host, blobs := serveRegistry(t)
	w := open(t, nil)
	w.quota.ImageMB = 1
	push(t, host+"/packed", make([]byte, 8<<20)) // too large when unpacked
	push(t, host+"/large", noise(1, 2<<20))      // at once
	for _, ref := range []string{"/packed", "/large"} {
		before := blobs.Load()
		_, err := w.Pull(w.as("team"), host+ref, nil)
		checktest.Code(t, err, cay.QuotaExceeded, ref)
		if n := blobs.Load() - before; ref == "/large" && n > 1 { // the configuration
			t.Errorf("%d blobs were fetched for what does not fit", n)
		}
		left, err := os.ReadDir(filepath.Join(w.dir, "blobs"))
		if err != nil || len(left) > 0 {
			t.Errorf("%s has left %v, %v", ref, left, err)
		}
	}
	if _, err := w.Pull(w.as("admin"), host+"/large", nil); err != nil {
		t.Errorf("an operator: %v", err)
	}
}

// watched signals its first read, and its end.
type watched struct {
	io.Reader
	begun, ended func()
}

func (r watched) Read(p []byte) (int, error) {
	r.begun()
	n, err := r.Reader.Read(p)
	if err == io.EOF {
		r.ended()
	}
	return n, err
}

// A team adds one image at a time, because each call may use all that is left of the
// team's quota.
func TestEngine_Turns(t *testing.T) {
	t.Parallel()
	w := open(t, nil)
	content := archive(t, []byte("x"))
	more, rest := io.Pipe()
	began := make(chan struct{})
	var firstEnded atomic.Bool
	var g errgroup.Group
	g.Go(func() error {
		r := watched{more, sync.OnceFunc(func() { close(began) }), func() { firstEnded.Store(true) }}
		_, err := w.Import(w.as("team"), "first", r, nil)
		return err
	})
	<-began
	g.Go(func() error {
		r := watched{bytes.NewReader(content), sync.OnceFunc(func() {
			if !firstEnded.Load() {
				t.Error("the second image of the team was read before the first was")
			}
		}), func() {}}
		_, err := w.Import(w.as("team"), "second", r, nil)
		return err
	})
	gone, leave := context.WithCancel(w.as("team"))
	leave()
	if _, err := w.Import(gone, "third", bytes.NewReader(content), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("who leaves while it waits: %v", err)
	}
	w.bring("other", "theirs", []byte("x"))
	w.bring("admin", "all", []byte("x"))
	if _, err := rest.Write(content); err != nil {
		t.Fatal(err)
	}
	rest.Close()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

// Errors are for the caller. Details that only operators may know are in the log.
func TestEngine_ErrorsTellNothing(t *testing.T) {
	t.Parallel()
	const resolver, inside = "10.9.8.7:53", "10.1.2.3"
	for name, cause := range map[string]error{
		"no such host":     &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "registry.example", Server: resolver, IsNotFound: true}},
		"resolver is down": &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "i/o timeout", Name: "registry.example", Server: resolver, IsTimeout: true}},
		"refused":          &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.ParseIP(inside), Port: 443}, Err: errors.New("connection refused")},
		"private":          cay.Errorf(cay.PermissionDenied, "address %s is not on the public internet", inside).WithHint("the operator can allow its range with allow_ranges"),
	} {
		w := open(t, failing{cause})
		_, err := w.Pull(w.as("team"), "registry.example/app", nil)
		checktest.Code(t, err, cay.Unavailable, name)
		var e *cay.Error
		if !errors.As(err, &e) {
			continue
		}
		for _, secret := range []string{"10.", "dial", "lookup", "proxy"} {
			if strings.Contains(e.Message+e.Hint, secret) {
				t.Errorf("%s: %q (%s) tells %q", name, e.Message, e.Hint, secret)
			}
		}
		if !strings.Contains(e.Message, "registry.example") || !errors.Is(err, cause) {
			t.Errorf("%s: %q does not say what failed, or the cause is lost", name, e.Message)
		}
	}
}

type failing struct{ err error }

func (f failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.err }
