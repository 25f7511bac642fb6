package image_test

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/image"
	"github.com/cayhq/cay/sandbox"
)

// rich imports an image with files of all kinds.
func rich(t *testing.T, s *image.Store, ref string) *sandbox.Image {
	t.Helper()
	at := time.Date(2020, 1, 2, 3, 4, 5, 678900, time.UTC)
	layer := tarOf(t,
		member{tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o711, ModTime: at}, ""},
		member{tar.Header{Typeflag: tar.TypeDir, Name: "srv", Mode: 0o1777, Uid: 7, Gid: 8, ModTime: at, Format: tar.FormatPAX}, ""},
		member{tar.Header{Typeflag: tar.TypeReg, Name: "srv/tool", Mode: 0o4755, Uid: 1 << 30, ModTime: at, Format: tar.FormatPAX}, "#!/bin/sh\n"},
		member{tar.Header{Typeflag: tar.TypeLink, Name: "srv/twin", Linkname: "srv/tool"}, ""},
		member{tar.Header{Typeflag: tar.TypeSymlink, Name: "srv/link", Linkname: "../nowhere", ModTime: at}, ""},
		file("srv/"+strings.Repeat("long", 60), "x"), file("srv/empty", ""), file("srv/ä", "utf8"),
	)
	archive := dockerArchive(t, map[string]v1.Image{"example.com/rich": imageOf(t, layerOf(t, layer), layerOf(t, tarOf(t, file("top", strings.Repeat("top\n", 5000)))))})
	return checktest.Must(s.Import(t.Context(), ref, bytes.NewReader(archive), nil))(t)
}

func exported(t *testing.T, s *image.Store, refs ...string) []byte {
	t.Helper()
	r := checktest.Must(s.Export(t.Context(), refs))(t)
	b := checktest.Must(io.ReadAll(r))(t)
	checktest.OK(t, r.Close())
	return b
}

// working lists the working directories of a store.
func working(t *testing.T, dir string) []os.DirEntry {
	t.Helper()
	return checktest.Must(os.ReadDir(filepath.Join(dir, "tmp")))(t)
}

// An image that was exported and imported is the same, byte for byte.
func TestStore_Export(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, image.Options{})
	was := rich(t, s, "app:1")
	checktest.Must(s.Tag(t.Context(), "app:1", "registry.example.com/app:2"))(t)
	other := checktest.Must(s.Import(t.Context(), "other", bytes.NewReader(tarOf(t, file("other", ""))), nil))(t)
	archive := exported(t, s, "app:1", "registry.example.com/app:2", "other")
	if again := exported(t, s, "app:1", "registry.example.com/app:2", "other"); len(again) != len(archive) {
		t.Errorf("archives of %d and %d bytes", len(archive), len(again))
	}
	// What other programs read.
	manifest := checktest.Must(tarball.LoadManifest(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil }))(t)
	names := map[string]bool{}
	for _, d := range manifest {
		for _, tag := range d.RepoTags {
			names[tag] = true
		}
	}
	if want := map[string]bool{"app:1": true, "registry.example.com/app:2": true, "other:latest": true}; len(manifest) != 2 || !reflect.DeepEqual(names, want) {
		t.Errorf("the archive has %+v", manifest)
	}
	tag := checktest.Must(name.NewTag("app:1"))(t)
	img := checktest.Must(tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil }, &tag))(t)
	config := checktest.Must(img.ConfigFile())(t)
	if config.OS != "linux" || config.Architecture != was.Arch || config.Config.User != "app:app" || len(config.Config.ExposedPorts) != 2 || len(config.History) != 1 {
		t.Errorf("its configuration is %+v", config)
	}
	// What cay reads.
	into := newStore(t)
	for ref, want := range map[string]*sandbox.Image{"app:1": was, "registry.example.com/app:2": was, "other": other} {
		got, err := into.Import(t.Context(), ref, bytes.NewReader(archive), nil)
		if err != nil || got.Digest != want.Digest || !reflect.DeepEqual(got.Config, want.Config) {
			t.Errorf("%s: got %+v, %v; want %+v", ref, got, err, want)
		}
	}
	// By a digest it has no name.
	b := exported(t, s, was.Digest)
	if m := checktest.Must(tarball.LoadManifest(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }))(t); len(m) != 1 || len(m[0].RepoTags) != 0 {
		t.Errorf("by its digest: %+v", m)
	}

	for what, refs := range map[string][]string{"none": nil, "too many": make([]string, 101), "not a name": {"A B"}} {
		_, err := s.Export(t.Context(), refs)
		checktest.Code(t, err, cay.Invalid, what)
	}
	_, err := s.Export(t.Context(), []string{"app:1", "missing"})
	checktest.Code(t, err, cay.NotFound)
	_, err = s.For(image.Owner{ID: "team_b"}).Export(t.Context(), []string{"nothing"})
	checktest.Code(t, err, cay.NotFound)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Export(canceled, []string{"app:1"})
	checktest.Code(t, err, cay.Canceled)
	// Who reads only the beginning leaves nothing behind.
	r := checktest.Must(s.Export(t.Context(), []string{"app:1"}))(t)
	if _, err := io.ReadFull(r, make([]byte, 700)); err != nil {
		t.Fatal(err)
	}
	checktest.OK(t, r.Close())
	checktest.OK(t, r.Close())
	if left := working(t, dir); len(left) != 0 {
		t.Errorf("working files are left: %v", left)
	}
}

// guarded is a registry on loopback that takes one user's password.
func guarded(t *testing.T) (host string, refuse *bool) {
	t.Helper()
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	refuse = new(bool)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, ok := r.BasicAuth(); !ok || user != "me" || password != "secret" {
			w.Header().Set("Www-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if *refuse && r.Method != http.MethodGet {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://"), refuse
}

// keychain has one user's password for all registries.
type keychain struct{ authn.AuthConfig }

func (k keychain) Resolve(authn.Resource) (authn.Authenticator, error) {
	return authn.FromConfig(k.AuthConfig), nil
}

// An image that was pushed and pulled is the same.
func TestStore_Push(t *testing.T) {
	t.Parallel()
	host, refuse := guarded(t)
	me := authn.AuthConfig{Username: "me", Password: "secret"}
	dir := t.TempDir()
	s := open(t, dir, image.Options{Keychain: keychain{me}})
	was := rich(t, s, "app:1")
	ref := host + "/team/app:1"
	checktest.Must(s.Tag(t.Context(), "app:1", ref))(t)
	_, err := s.Push(t.Context(), image.PushParams{Ref: ref}, nil)
	checktest.Code(t, err, cay.PermissionDenied, "without credentials")
	_, err = s.Push(t.Context(), image.PushParams{Ref: ref, Own: true, Auth: authn.AuthConfig{Username: "me", Password: "wrong"}}, nil)
	checktest.Code(t, err, cay.PermissionDenied, "the wrong ones come before those of the machine")
	_, err = s.Push(t.Context(), image.PushParams{Ref: host + "/team/missing:1", Own: true}, nil)
	checktest.Code(t, err, cay.NotFound)
	for what, name := range map[string]string{"an image of cay": "debian", "a digest": was.Digest, "with a digest": host + "/app@" + was.Digest, "no name": "A B"} {
		_, err = s.Push(t.Context(), image.PushParams{Ref: name, Own: true}, nil)
		checktest.Code(t, err, cay.Invalid, what)
	}

	for _, p := range []image.PushParams{{Ref: ref, Auth: me}, {Ref: ref, Own: true}} {
		var phases []string
		var digest string
		var sent, total int64
		img, err := s.Push(t.Context(), p, func(st sandbox.ImageProgress) {
			phases = append(phases, st.Phase)
			switch st.Phase {
			case "upload":
				sent, total = st.Current, st.Total
			case "pushed":
				digest = st.Item
			}
		})
		if err != nil || img.Digest != was.Digest {
			t.Fatalf("got %+v, %v", img, err)
		}
		if got := strings.Join(phases, " "); p.Own && got != "pack pushed done" || !p.Own && got != "pack upload pushed done" || sent != total {
			t.Errorf("the steps are %s, %d of %d bytes", got, sent, total)
		}
		into := open(t, t.TempDir(), image.Options{Keychain: keychain{me}})
		for _, from := range []string{ref, host + "/team/app@" + digest} {
			got, err := into.Pull(t.Context(), from, nil)
			if err != nil || got.Digest != was.Digest || !reflect.DeepEqual(got.Config, was.Config) {
				t.Errorf("%s: pulled %+v, %v; want %+v", from, got, err, was)
			}
		}
	}

	*refuse = true
	if _, err = s.Push(t.Context(), image.PushParams{Ref: ref, Own: true}, nil); cay.CodeOf(err) != cay.PermissionDenied || !strings.Contains(err.Error(), "does not take") {
		t.Errorf("a registry that refuses: %v", err)
	}
	if left := working(t, dir); len(left) != 0 {
		t.Errorf("working files are left: %v", left)
	}
}
