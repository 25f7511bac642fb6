package image_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/image"
	"github.com/cayhq/cay/internal/image/imagetest"
	"github.com/cayhq/cay/sandbox"
)

// withOwn returns an archive with a changed cay.json.
func withOwn(t *testing.T, archive []byte, change func(own map[string]any)) []byte {
	t.Helper()
	var out bytes.Buffer
	tr, tw := tar.NewReader(bytes.NewReader(archive)), tar.NewWriter(&out)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		checktest.OK(t, err)
		body := checktest.Must(io.ReadAll(tr))(t)
		if h.Name == "cay.json" {
			var own map[string]any
			checktest.OK(t, json.Unmarshal(body, &own))
			change(own)
			body = checktest.Must(json.Marshal(own))(t)
			h.Size = int64(len(body))
		}
		checktest.OK(t, tw.WriteHeader(h))
		checktest.Must(tw.Write(body))(t)
	}
	checktest.OK(t, tw.Close())
	return out.Bytes()
}

// first is the first image of a cay.json.
func first(own map[string]any) map[string]any { return own["images"].([]any)[0].(map[string]any) }

// asDebian makes the first image of a cay.json one that cay has built.
func asDebian(own map[string]any) {
	first(own)["ref"], first(own)["source"], first(own)["origin"] = "debian", "debian", "recipe:"+strings.Repeat("0", 32)
}

// The packages that were added to the default image are known after an import, too: else it
// would be made anew without them.
func TestStore_ImportOwn_packages(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	checktest.Must(s.Import(t.Context(), "other", bytes.NewReader(tarOf(t, file("other", ""))), nil))(t)
	archive := withOwn(t, exported(t, s, "other"), func(own map[string]any) {
		asDebian(own)
		first(own)["packages"] = []any{"ffmpeg", "jq"}
	})
	into := newStore(t)
	for range 2 { // the second time from its own archive
		got := checktest.Must(into.Import(t.Context(), "", bytes.NewReader(archive), nil))(t)
		if !reflect.DeepEqual(got.Packages, []string{"ffmpeg", "jq"}) {
			t.Fatalf("packages: %q", got.Packages)
		}
		archive, into = exported(t, into, "debian"), newStore(t)
	}
}

// An archive of Export brings its images under their names and digests, or nothing.
func TestStore_ImportOwn(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	was := rich(t, s, "app:1")
	other := checktest.Must(s.Import(t.Context(), "other", bytes.NewReader(tarOf(t, file("other", ""))), nil))(t)
	archive := exported(t, s, "app:1", "other")

	into := newStore(t)
	var imported []string
	last := checktest.Must(into.Import(t.Context(), "", bytes.NewReader(archive), func(p sandbox.ImageProgress) {
		if p.Phase == "imported" {
			imported = append(imported, p.Item)
		}
	}))(t)
	if want := []string{"index.docker.io/library/app:1", "index.docker.io/library/other:latest"}; !reflect.DeepEqual(imported, want) || last.Digest != other.Digest {
		t.Errorf("imported %q, the last %s", imported, last.Digest)
	}
	for ref, want := range map[string]*sandbox.Image{"app:1": was, "other": other} {
		got := checktest.Must(into.Get(t.Context(), ref))(t)
		if got.Digest != want.Digest || !reflect.DeepEqual(got.Config, want.Config) || got.Source != image.SourceImport {
			t.Errorf("%s: %+v, want %+v", ref, got, want)
		}
	}

	zeros := "sha256:" + strings.Repeat("0", 64)
	for what, change := range map[string]func(own map[string]any){
		"another digest":     func(own map[string]any) { first(own)["digest"] = zeros },
		"no digest":          func(own map[string]any) { first(own)["digest"] = "../../x" },
		"a name as a path":   func(own map[string]any) { first(own)["ref"] = "../../x" },
		"another image's":    func(own map[string]any) { first(own)["config"] = own["images"].([]any)[1].(map[string]any)["config"] },
		"a member":           func(own map[string]any) { first(own)["config"] = "cay.json" },
		"a file of the host": func(own map[string]any) { first(own)["config"] = "/etc/passwd" },
		"a digest as a name": func(own map[string]any) { first(own)["ref"] = zeros },
		"not canonical":      func(own map[string]any) { first(own)["ref"] = "app:1" },
		"as built by cay":    func(own map[string]any) { first(own)["ref"] = "debian" },
		"an unknown origin": func(own map[string]any) {
			first(own)["ref"], first(own)["source"], first(own)["origin"] = "debian", "debian", "recipe:"
		},
		"a package of another image": func(own map[string]any) { first(own)["packages"] = []any{"jq"} },
		"no name of a package": func(own map[string]any) {
			asDebian(own)
			first(own)["packages"] = []any{"--include=jq"}
		},
		"nothing":  func(own map[string]any) { own["images"] = []any{} },
		"too many": func(own map[string]any) { own["images"] = make([]any, 101) },
	} {
		empty := newStore(t)
		_, err := empty.Import(t.Context(), "", bytes.NewReader(withOwn(t, archive, change)), nil)
		checktest.Code(t, err, cay.Invalid, what)
		if list := checktest.Must(empty.List(t.Context()))(t); len(list) != 0 {
			t.Errorf("%s: the store has %+v", what, list)
		}
	}
	_, err := newStore(t).Import(t.Context(), "", bytes.NewReader(withOwn(t, archive, func(own map[string]any) { own["version"] = 2 })), nil)
	checktest.Code(t, err, cay.NotSupported)
	// An archive of another program, and a name of the caller's choice.
	_, err = newStore(t).Import(t.Context(), "", bytes.NewReader(tarOf(t, file("x", ""))), nil)
	checktest.Code(t, err, cay.Invalid)
	if got := checktest.Must(into.Import(t.Context(), "other", bytes.NewReader(exported(t, s, "other")), nil))(t); got.Digest != other.Digest {
		t.Errorf("under a name: %s", got.Digest)
	}
	// Cut off anywhere, it brings nothing.
	for n := 0; n < len(archive)-1024; n += len(archive) / 40 {
		empty := newStore(t)
		_, err := empty.Import(t.Context(), "", bytes.NewReader(archive[:n]), nil)
		if list := checktest.Must(empty.List(t.Context()))(t); err == nil || len(list) != 0 && n < len(archive)/2 {
			t.Errorf("the first %d bytes: %v, %+v", n, err, list)
		}
	}
}

// An image that cay has built keeps its digest, and everything that depends on its name, on
// a machine that has it from an archive. Teams cannot bring it.
func TestStore_ImportOwn_built(t *testing.T) {
	t.Parallel()
	lease := imagetest.Acquire(t, "python3.13") // the smallest
	was := lease.Image
	s := open(t, imagetest.Dir(t), image.Options{})
	archive := exported(t, s, "python3.13")
	into := newStore(t)
	got := checktest.Must(into.Import(t.Context(), "", bytes.NewReader(archive), nil))(t)
	if got.Digest != was.Digest || got.Source != image.SourceRuntime || fmt.Sprint(got.Refs) != "[python3.13]" || !reflect.DeepEqual(got.Config, was.Config) {
		t.Errorf("got %+v, want %+v", got, was)
	}
	if old := checktest.Must(into.Outdated(t.Context(), "python3.13"))(t); old != checktest.Must(s.Outdated(t.Context(), "python3.13"))(t) {
		t.Errorf("outdated: %v", old)
	}
	_, err := newStore(t).For(image.Owner{ID: "team_a"}).Import(t.Context(), "", bytes.NewReader(archive), nil)
	checktest.Code(t, err, cay.PermissionDenied)
	// By another name it is still no root file system.
	copied := checktest.Must(into.Tag(t.Context(), "python3.13", "mine"))(t)
	third := newStore(t)
	checktest.Must(third.Import(t.Context(), "", bytes.NewReader(exported(t, into, "mine")), nil))(t)
	mine := checktest.Must(third.Get(t.Context(), "mine"))(t)
	if mine.Digest != copied.Digest || image.CheckRoot(mine) == nil {
		t.Errorf("under another name: %+v", mine)
	}
}

// The default image survives the way over an archive byte for byte.
func TestStore_ImportOwn_debian(t *testing.T) {
	checktest.Long(t)
	was := imagetest.Acquire(t, "debian").Image
	s := open(t, imagetest.Dir(t), image.Options{})
	r := checktest.Must(s.Export(t.Context(), []string{"debian"}))(t)
	got, err := newStore(t).Import(t.Context(), "", r, nil)
	checktest.OK(t, r.Close())
	if err != nil || got.Digest != was.Digest || got.Source != was.Source {
		t.Errorf("got %+v, %v; want %+v", got, err, was)
	}
}
