package docker

import (
	"archive/tar"
	"bytes"
	"strings"
	"testing"
)

// A commit makes an image of a running container, and of an exited one.
func TestCommit(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	id := b.create("one", "sleep 600", nil)
	b.start(id)
	if got := b.do("POST", "/commit?container=one&repo=app&tag=2&pause=true", nil).want(201).at("Id"); got != picture("x").Digest {
		t.Errorf("the image is %s", got)
	}
	b.do("POST", "/containers/one/stop?t=0", nil).want(204)
	b.do("POST", "/commit?container=one&repo=app:2", nil).want(201)
	for query, status := range map[string]int{
		"container=none&repo=app:2": 404, "container=one": 400, "container=one&repo=app:2&changes=CMD+x": 400,
	} {
		b.do("POST", "/commit?"+query, nil).want(status)
	}
	addr := b.sidecar("1")
	if addr == "" {
		t.Error("there is no sidecar")
	}
	b.do("POST", "/commit?container="+long+"-proxy&repo=app:2", nil).want(409)
}

// workerd fills and copies volumes by containers of its sidecar's image. A container
// that is never started keeps what was put into its volume.
func TestHelper(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	image := "cloudflare/proxy-everything:3cb1195"
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&tar.Header{Name: "./a.txt", Mode: 0o644, Size: 5}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	filled := b.do("POST", "/containers/create", m{"Image": image, "HostConfig": m{"Binds": []string{"source:/workspace/s"}}}).want(201).at("Id")
	b.do("PUT", "/containers/"+filled+"/archive?path=/workspace/s", archive.Bytes()).want(200)
	// While the first is still there: workerd removes it in the background.
	copied := b.do("POST", "/containers/create", m{
		"Image": image, "Entrypoint": []string{"/bin/sh"}, "Cmd": []string{"-c", "cp -a s/. d/ && cat d/a.txt"}, "WorkingDir": "/workspace",
		"HostConfig": m{"Binds": []string{"source:/workspace/s:ro", "copy:/workspace/d"}},
	}).want(201).at("Id")
	b.start(copied)
	if code := b.wait(copied); code != "0" {
		t.Errorf("the copy exits with %s", code)
	}
	if got := frames(t, b.do("GET", "/containers/"+copied+"/logs?stdout=1", nil).want(200).body)[1]; strings.TrimSpace(got) != "hello" {
		t.Errorf("it has copied %q", got)
	}
	for _, id := range []string{filled, copied} {
		b.do("DELETE", "/containers/"+id+"?force=1", nil).want(204)
	}
}
