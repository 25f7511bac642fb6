package docker

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"strings"
	"testing"
)

func TestLoad(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	saved := func(list string) []byte {
		return archive(t, tar.Header{Name: "a/layer.tar", Typeflag: tar.TypeReg, Linkname: "layer"}, tar.Header{Name: "manifest.json", Typeflag: tar.TypeReg, Linkname: list})
	}
	two := saved(`[{"Config":"c","RepoTags":["app:1","app:2"],"Layers":["a/layer.tar"]},{"RepoTags":["other:1"]}]`)
	want := `{"stream":"Loaded image: app:1\n"} {"stream":"Loaded image: app:2\n"} {"stream":"Loaded image: other:1\n"}`
	got := strings.Join(strings.Fields(string(b.do("POST", "/v1.41/images/load?quiet=1", two).want(200).body)), " ")
	if got != strings.Join(strings.Fields(want), " ") {
		t.Errorf("the answer is %s", got)
	}
	for what, body := range map[string][]byte{
		"nothing": nil, "no archive": []byte(strings.Repeat("no archive ", 100)), "no list": archive(t, tar.Header{Name: "layer", Typeflag: tar.TypeReg}),
		"no JSON": saved("{"), "no name": saved(`[{"RepoTags":null}]`), "cut gzip": {0x1f, 0x8b},
		"not to be imported": archive(t, tar.Header{Name: "manifest.json", Typeflag: tar.TypeReg, Linkname: `[{"RepoTags":["app:1"]}]`}),
	} {
		if a := b.do("POST", "/images/load", body).want(400); a.at("message") == "" {
			t.Errorf("%s: the answer is %s", what, a.body)
		}
	}
	// The second name fails after a line was written.
	if got := string(b.do("POST", "/images/load", saved(`[{"RepoTags":["app:1","app:3"]}]`)).want(200).body); !strings.Contains(got, `"error":`) {
		t.Errorf("the answer has no error: %s", got)
	}
	for range maxBuilds {
		b.server.builds <- struct{}{}
	}
	b.do("POST", "/images/load", two).want(429)
	for range maxBuilds {
		<-b.server.builds
	}
}

func TestLoad_gzip(t *testing.T) {
	t.Parallel()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(archive(t, tar.Header{Name: "./manifest.json", Typeflag: tar.TypeReg, Linkname: `[{"RepoTags":["app:1"]}]`})); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if images, err := savedImages(bytes.NewReader(packed.Bytes())); err != nil || len(images) != 1 || images[0][0] != "app:1" {
		t.Errorf("savedImages: %v, %v", images, err)
	}
}
