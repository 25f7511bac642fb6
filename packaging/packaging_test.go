package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

var commitTime = time.Date(2027, 1, 31, 12, 0, 0, 0, time.UTC)

func TestVersionOf(t *testing.T) {
	t.Parallel()
	changelog := []string{"TEMPLATE", "unreleased", "0.9.0_2026-12-01", "0.10.0_2027-01-01"}
	const commit = "0123456789abcdef"
	for _, tc := range []struct {
		name    string
		tags    []string
		changed bool
		want    string
		log     string
	}{
		{"Tagged", []string{"nightly", "v0.11.0"}, false, "0.11.0", "0.11.0"},
		{"Between", nil, false, "0.10.0+20270131120000.g01234567", "unreleased"},
		{"Changed", []string{"v0.11.0"}, true, "0.10.0+20270131120000.g01234567.changed", "unreleased"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			version, log := versionOf(tc.tags, changelog, commit, commitTime, tc.changed)
			if version != tc.want || log != tc.log {
				t.Errorf("got %s and the changelog of %s, want %s and %s", version, log, tc.want, tc.log)
			}
			if !validVersion.MatchString(version) {
				t.Errorf("%s is no version of a package", version)
			}
		})
	}
}

// example is a command line as cay describes it.
func example(t *testing.T) described {
	t.Helper()
	b, err := os.ReadFile("testdata/describe.json")
	if err != nil {
		t.Fatal(err)
	}
	var d described
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestManuals(t *testing.T) {
	t.Parallel()
	all, err := manuals(example(t), "1.2.3", commitTime)
	if err != nil {
		t.Fatal(err)
	}
	for name, parts := range map[string][]string{
		"cay.1":       {`.TH "CAY" "1" "Jan 2027" "cay 1.2.3"`, "An agent cloud"},
		"cay-serve.1": {"\\fB--quota-sandboxes\\fP", "sandboxes a team may run", "-c"},
	} {
		page := string(all[name])
		for _, part := range parts {
			if !strings.Contains(page, part) {
				t.Errorf("%s has no %q:\n%s", name, part, page)
			}
		}
	}
	if len(all) != 2 {
		t.Errorf("there are %d pages", len(all))
	}
}

func TestCommentedSettings(t *testing.T) {
	t.Parallel()
	b, err := commentedSettings(example(t))
	if err != nil {
		t.Fatal(err)
	}
	got := string(b)
	if !strings.HasPrefix(got, settingsHead) {
		t.Error("the head is missing")
	}
	want := `
# names of hosts
#allowed_hosts: []

# host:port of the API
#listen: 127.0.0.1:7070

#quota:
#   # sandboxes a team may run
#   sandboxes: 200
`
	if got = strings.TrimPrefix(got, settingsHead); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// testRelease is a release whose programs are small files.
func testRelease(t *testing.T) (*release, *programs, []file) {
	t.Helper()
	dir := t.TempDir()
	p := &programs{arch: "amd64", cay: filepath.Join(dir, "cay")}
	if err := os.WriteFile(p.cay, []byte("#!/bin/true\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	r := &release{repo: "..", version: "1.2.3+x", commit: "0123", time: commitTime}
	content, err := r.files(p, &pages{
		manuals: map[string][]byte{"cay.1": []byte("page")}, completions: map[string][]byte{}, settings: []byte("# all\n"), changelog: []byte("# 1.2.3\n"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return r, p, content
}

// Every archive is the same when it is made again, and depends on no clock.
func TestArchives_Reproducible(t *testing.T) {
	t.Parallel()
	r, p, content := testRelease(t)
	for name, write := range map[string]func(w io.Writer) error{
		"deb":     func(w io.Writer) error { return r.pack(w, "deb", "amd64", content) },
		"rpm":     func(w io.Writer) error { return r.pack(w, "rpm", "amd64", content) },
		"tarball": func(w io.Writer) error { return r.tarball(w, content) },
		"image":   func(w io.Writer) error { return r.ociArchive(w, p) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var first, second bytes.Buffer
			if err := write(&first); err != nil {
				t.Fatal(err)
			}
			later := time.Now().Add(time.Hour)
			if err := os.Chtimes(p.cay, later, later); err != nil {
				t.Fatal(err)
			}
			if err := write(&second); err != nil {
				t.Fatal(err)
			}
			if first.Len() == 0 || !bytes.Equal(first.Bytes(), second.Bytes()) {
				t.Errorf("%d and %d bytes differ", first.Len(), second.Len())
			}
		})
	}
}

// entries reads a tar archive.
func entries(t *testing.T, r io.Reader) (map[string][]byte, map[string]*tar.Header) {
	t.Helper()
	data, headers := map[string][]byte{}, map[string]*tar.Header{}
	for a := tar.NewReader(r); ; {
		h, err := a.Next()
		if err == io.EOF {
			return data, headers
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(a)
		if err != nil {
			t.Fatal(err)
		}
		data[h.Name], headers[h.Name] = b, h
	}
}

func gunzip(t *testing.T, b []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestTarball(t *testing.T) {
	t.Parallel()
	r, _, content := testRelease(t)
	var b bytes.Buffer
	if err := r.tarball(&b, content); err != nil {
		t.Fatal(err)
	}
	data, headers := entries(t, bytes.NewReader(gunzip(t, b.Bytes())))
	for name, mode := range map[string]int64{"usr/bin/cay": 0o755, "install.sh": 0o755, "usr/lib/systemd/system/cay.service": 0o644, "etc/cay/cay.yaml": 0o644} {
		h := headers["cay-1.2.3+x/"+name]
		if h == nil || h.Mode != mode || h.Uid != 0 || !h.ModTime.Equal(commitTime) {
			t.Errorf("%s: %+v", name, h)
		}
	}
	if page := gunzip(t, data["cay-1.2.3+x/usr/share/man/man1/cay.1.gz"]); string(page) != "page" {
		t.Errorf("the page is %q", page)
	}
}

func TestImage(t *testing.T) {
	t.Parallel()
	r, p, _ := testRelease(t)
	var b bytes.Buffer
	if err := r.ociArchive(&b, p); err != nil {
		t.Fatal(err)
	}
	blobs, _ := entries(t, &b)
	follow := func(digest string, into any) {
		t.Helper()
		if err := json.Unmarshal(blobs["blobs/sha256/"+strings.TrimPrefix(digest, "sha256:")], into); err != nil {
			t.Fatal(err)
		}
	}
	type ref struct{ Digest string }
	var index struct{ Manifests []ref }
	if err := json.Unmarshal(blobs["index.json"], &index); err != nil {
		t.Fatal(err)
	}
	var manifest struct {
		Config ref
		Layers []ref
	}
	follow(index.Manifests[0].Digest, &manifest)
	var config struct {
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
		Config struct{ Entrypoint []string }
	}
	follow(manifest.Config.Digest, &config)
	layer := gunzip(t, blobs["blobs/sha256/"+strings.TrimPrefix(manifest.Layers[0].Digest, "sha256:")])
	if got := hash(layer).String(); config.RootFS.DiffIDs[0] != got {
		t.Errorf("the layer is %s, the config says %s", got, config.RootFS.DiffIDs[0])
	}
	_, headers := entries(t, bytes.NewReader(layer))
	if headers["usr/bin/cay"] == nil || headers["tmp/"].Mode != 0o1777 || headers["var/lib/cay/"].Mode != 0o700 {
		t.Errorf("the layer has %v", headers)
	}
}

func TestLocked(t *testing.T) {
	t.Parallel()
	all, err := locked([]byte(`{"packages": {"": {"version": "1"}, "node_modules/@a/b": {"version": "2.0.0", "integrity": "sha512-AAEC"},
		"node_modules/tool": {"version": "3.0.0", "dev": true}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || all[0].PURL != "pkg:npm/%40a/b@2.0.0" || all[0].Hashes[0].Content != "000102" {
		t.Errorf("got %+v", all)
	}
}

func TestLibraryOf(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		m    debug.Module
		want string
		has  property
	}{
		{"Plain", debug.Module{Path: "a.example/b", Version: "v1.2.3", Sum: "h1:x"}, "pkg:golang/a.example/b@v1.2.3", property{"cay:go.sum", "h1:x"}},
		{"Replaced", debug.Module{Path: "a.example/b", Version: "v1.2.3", Replace: &debug.Module{Path: "c.example/d", Version: "v2.0.0", Sum: "h1:y"}},
			"pkg:golang/c.example/d@v2.0.0", property{"cay:go.sum", "h1:y"}},
		{"Edited", debug.Module{Path: "a.example/b", Version: "v1.2.3", Replace: &debug.Module{Path: "./.cache/b", Version: "(devel)"}},
			"pkg:golang/a.example/b@v1.2.3", property{"cay:edited", "by internal/sandboxd/gvisor/edits"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := libraryOf(&tc.m)
			if c.PURL != tc.want || len(c.Properties) != 1 || c.Properties[0] != tc.has {
				t.Errorf("got %+v, want %s with %v", c, tc.want, tc.has)
			}
		})
	}
}
