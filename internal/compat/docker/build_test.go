package docker

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// showContext is a builder that says what it was given.
func showContext(_ context.Context, b Build) (*sandbox.Image, error) {
	err := filepath.WalkDir(b.Context, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(b.Context, p)
		if err != nil || name == "." {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		b.Say(fmt.Sprintf("%s %v\n", name, info.Mode()))
		return nil
	})
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(b.Context)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	text, err := root.ReadFile(b.File)
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "the Dockerfile cannot be read: %w", err)
	}
	b.Say(fmt.Sprintf("%s for %v, %v, %s, %v\n", text, b.Tags, b.Args, b.Target, b.NoCache))
	if strings.Contains(string(text), "fail") {
		return nil, cay.Errorf(cay.Invalid, "step 1 exited with status 3")
	}
	img := picture(b.Tags[0])
	return &img, nil
}

// archive makes a tar of headers; a file holds its Linkname.
func archive(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range headers {
		text := ""
		if h.Typeflag == tar.TypeReg {
			text, h.Linkname = h.Linkname, ""
			h.Size = int64(len(text))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestBuild(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	plain := archive(t,
		tar.Header{Name: "sub/", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "sub/run.sh", Typeflag: tar.TypeReg, Linkname: "true", Mode: 0o755},
		tar.Header{Name: "./sub/link", Typeflag: tar.TypeSymlink, Linkname: "run.sh"},
		tar.Header{Name: "Dockerfile", Typeflag: tar.TypeReg, Linkname: "FROM x"},
	)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	z.Write(plain)
	z.Close()
	q := "?t=app:1&t=app:2&target=last&nocache=1&buildargs=" + url.QueryEscape(`{"A":"1","B":null}`)
	for what, body := range map[string][]byte{"plain": plain, "gzip": packed.Bytes()} {
		got := string(b.do("POST", "/v1.41/build"+q, body).want(200).body)
		for _, want := range []string{
			`"sub drwxr-xr-x\n"`, `"sub/run.sh -rwxr-xr-x\n"`, `"sub/link Lrwxrwxrwx\n"`, `FROM x for [app:1 app:2], map[A:1], last, true`,
			`"ID":"sha256:abab`, `Successfully built abababababab\n`, `Successfully tagged app:2\n`,
		} {
			if !strings.Contains(got, want) {
				t.Errorf("%s: the answer lacks %s: %s", what, want, got)
			}
		}
	}
	failing := archive(t, tar.Header{Name: "D", Typeflag: tar.TypeReg, Linkname: "fail"})
	if got := string(b.do("POST", "/build?dockerfile=D", failing).want(200).body); !strings.Contains(got, `"error":"step 1 exited with status 3"`) || strings.Contains(got, "Successfully") {
		t.Errorf("a build that fails answers %s", got)
	}
	for _, q := range []string{"remote=git", "dockerfile=../x", "networkmode=host", "platform=linux/s390x", "buildargs=1"} {
		b.do("POST", "/build?"+q, plain).want(400)
	}
	b.do("POST", "/build?version=2", plain).want(501)
	for range maxBuilds {
		b.server.builds <- struct{}{}
	}
	b.do("POST", "/build", plain).want(429)
	for range maxBuilds {
		<-b.server.builds
	}
	b.do("POST", "/build", []byte("no archive at all, and long enough to be looked at")).want(400)
}

// No name in an archive leads out of the directory of the build.
func TestBuild_hostile(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	out := filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(out, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, headers := range map[string][]tar.Header{
		"parent": {{Name: "../../../../../../.." + out, Typeflag: tar.TypeReg, Linkname: "changed"}},
		"link":   {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: filepath.Dir(out)}, {Name: "l/out", Typeflag: tar.TypeReg, Linkname: "changed"}},
		"hard":   {{Name: "h", Typeflag: tar.TypeLink, Linkname: "../../../../../../.." + out}},
		"device": {{Name: "d", Typeflag: tar.TypeChar}},
		"fifo":   {{Name: "f", Typeflag: tar.TypeFifo}},
	} {
		headers = append(headers, tar.Header{Name: "Dockerfile", Typeflag: tar.TypeReg, Linkname: "FROM x"})
		if got := string(b.do("POST", "/build", archive(t, headers...)).want(400).body); strings.Contains(got, "secret") {
			t.Errorf("%s: %s", what, got)
		}
	}
	link := archive(t, tar.Header{Name: "Dockerfile", Typeflag: tar.TypeSymlink, Linkname: out})
	if got := string(b.do("POST", "/build", link).body); strings.Contains(got, "secret") || strings.Contains(got, "Successfully") {
		t.Errorf("a Dockerfile that is a link: %s", got)
	}
	if text, err := os.ReadFile(out); err != nil || string(text) != "secret" {
		t.Errorf("the file outside holds %q, %v", text, err)
	}
}
