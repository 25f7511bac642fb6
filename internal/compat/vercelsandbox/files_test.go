package vercelsandbox

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/sandbox"
)

// packed returns an archive in the form that clients send. The content of a regular
// file is its name.
func packed(t *testing.T, members ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, h := range members {
		if h.Mode == 0 && h.Typeflag != tar.TypeXGlobalHeader {
			h.Mode = 0o644
		}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(h.Name))
		}
		err := w.WriteHeader(&h)
		if err == nil && h.Typeflag == tar.TypeReg {
			_, err = io.WriteString(w, h.Name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func (w *work) read(path string) string {
	w.t.Helper()
	resp := w.request(w.t.Context(), "POST", w.of("/fs/read"), strings.NewReader(`{"path":`+quoted(path)+`}`))
	b, err := io.ReadAll(resp.Body)
	if ct := resp.Header.Get("Content-Type"); err != nil || resp.StatusCode != http.StatusOK || ct != "application/octet-stream" {
		w.t.Fatalf("read %s: %d %q %.200s, %v", path, resp.StatusCode, ct, b, err)
	}
	return string(b)
}

func (w *work) stat(path string) *sandbox.FileInfo {
	w.t.Helper()
	info, err := w.Stat(w.ctx, w.sandbox.ID, path, false)
	if err != nil {
		w.t.Fatal(err)
	}
	return info
}

func TestFiles_Write(t *testing.T) {
	t.Parallel()
	w := startWork(t)
	long := "w/" + strings.Repeat("long/", 60) + "é"
	start := time.Now().Add(-time.Minute)
	body := packed(t,
		tar.Header{Name: "w/new/deep/file"},
		tar.Header{Name: "w/script", Mode: 0o755, Uid: 4242, Gid: 4242, ModTime: time.Unix(86400, 0)},
		tar.Header{Name: long, Format: tar.FormatPAX})
	for _, path := range []string{w.of("/fs/write"), w.v1("/fs/write")} {
		// A body of unknown length, as one client sends it, and a body of known
		// length.
		for _, b := range []io.Reader{io.MultiReader(bytes.NewReader(body)), bytes.NewReader(body)} {
			resp := w.request(t.Context(), "POST", path, b, "Content-Type", "application/gzip", "X-Cwd", "/")
			if got, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 200 || strings.TrimSpace(string(got)) != "{}" {
				t.Fatalf("%d %s, %v", resp.StatusCode, got, err)
			}
		}
	}
	for _, name := range []string{"w/new/deep/file", "w/script", long} {
		if got := w.read("/" + name); got != name {
			t.Errorf("%s: %q", name, got)
		}
	}
	if info := w.stat("/w/script"); info.Mode != 0o755 || info.UID == 4242 || info.ModTime.Before(start) {
		t.Errorf("got %+v", info)
	}
	if info := w.stat("/w/new"); info.Type != sandbox.TypeDir || info.Mode != 0o755 {
		t.Errorf("got %+v", info)
	}
	// Without the header, or with a relative one, the base is the working directory.
	for cwd, name := range map[string]string{"": "/w/plain", "sub": "/w/sub/plain", "/w/other": "/w/other/plain"} {
		header := []string{"X-Cwd", cwd}
		if cwd == "" {
			header = nil
		}
		if status, got := w.do("POST", w.of("/fs/write"), string(packed(t, tar.Header{Name: "plain"})), header...); status != 200 {
			t.Errorf("%q: %d %s", cwd, status, got)
		}
		if got := w.read(name); got != "plain" {
			t.Errorf("%q: %q", cwd, got)
		}
	}
}

func TestFiles_WriteRefusals(t *testing.T) {
	t.Parallel()
	w := startWork(t)
	good := packed(t, tar.Header{Name: "good"})
	header := func(more func(*tar.Writer)) []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		tw := tar.NewWriter(z)
		more(tw)
		tw.Flush()
		z.Close()
		return b.Bytes()
	}
	for name, c := range map[string]struct {
		body []byte
		code string
	}{
		"Parent":           {packed(t, tar.Header{Name: "../escaped"}), "bad_request"},
		"ParentInside":     {packed(t, tar.Header{Name: "a/../../escaped"}), "bad_request"},
		"Absolute":         {packed(t, tar.Header{Name: "/in/escaped"}), "bad_request"},
		"Directory":        {packed(t, tar.Header{Name: "dir/", Typeflag: tar.TypeDir}), "bad_request"},
		"Link":             {packed(t, tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: ".."}, tar.Header{Name: "link/escaped"}), "bad_request"},
		"HardLink":         {packed(t, tar.Header{Name: "hard", Typeflag: tar.TypeLink, Linkname: "../outside"}), "bad_request"},
		"Device":           {packed(t, tar.Header{Name: "dev", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}), "bad_request"},
		"Pipe":             {packed(t, tar.Header{Name: "pipe", Typeflag: tar.TypeFifo}), "bad_request"},
		"PaxName":          {packed(t, tar.Header{Name: strings.Repeat("../", 50) + "escaped", Format: tar.FormatPAX}), "bad_request"},
		"PaxGlobal":        {packed(t, tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"path": "../escaped"}}), "bad_request"},
		"TheDirectory":     {packed(t, tar.Header{Name: "."}), "bad_request"},
		"ExistingDir":      {packed(t, tar.Header{Name: "full"}), "bad_request"},
		"FileAsDir":        {packed(t, tar.Header{Name: "file"}, tar.Header{Name: "file/below"}), "bad_request"},
		"Empty":            {nil, "bad_request"},
		"NotGzip":          {[]byte("garbage"), "bad_request"},
		"NotTar":           {header(func(tw *tar.Writer) {})[:10], "bad_request"},
		"Cut":              {good[:len(good)-20], "bad_request"},
		"GarbageAfter":     {append(bytes.Clone(good), "garbage"...), "bad_request"},
		"ContentMissing":   {header(func(tw *tar.Writer) { tw.WriteHeader(&tar.Header{Name: "x", Typeflag: tar.TypeReg, Size: 1000}) }), "bad_request"},
		"ClaimsTooMuch":    {header(func(tw *tar.Writer) { tw.WriteHeader(&tar.Header{Name: "x", Typeflag: tar.TypeReg, Size: 1 << 50}) }), "too_large"},
		"NameOf256":        {packed(t, tar.Header{Name: strings.Repeat("x", 256)}), "bad_request"},
		"NameOfManyLevels": {packed(t, tar.Header{Name: strings.Repeat("x/", 3000) + "x"}), "bad_request"},
	} {
		dir := "/w/" + name
		w.want("POST", w.of("/fs/mkdir"), `{"path":"`+dir+`/in/full","recursive":true}`, "{}")
		status := map[string]int{"bad_request": 400, "too_large": 413}[c.code]
		w.refused("POST", w.of("/fs/write"), string(c.body), status, c.code, "X-Cwd", dir+"/in", "Content-Type", "application/gzip")
		page, err := w.ReadDir(w.ctx, w.sandbox.ID, dir, sandbox.ReadDirParams{})
		if err != nil || len(page.Items) != 1 {
			t.Errorf("%s: %+v, %v", name, page, err)
		}
	}
	w.refused("POST", w.of("/fs/write"), string(packed(t, tar.Header{Name: "w"})), 400, "bad_request", "X-Cwd", "/")
}

// A refusal arrives while the client still sends the archive; the sending may then
// break off.
func TestFiles_WriteRefusedEarly(t *testing.T) {
	t.Parallel()
	w := startWork(t)
	r, typing := io.Pipe()
	go func() {
		b := packed(t, tar.Header{Name: "../escaped"})
		for _, err := typing.Write(b); err == nil; _, err = typing.Write(bytes.Repeat([]byte("x"), 1<<16)) {
		}
	}()
	defer typing.Close()
	resp := w.request(t.Context(), "POST", w.of("/fs/write"), r)
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("got %d", resp.StatusCode)
	}
	r.Close()
}

func TestFiles_Read(t *testing.T) {
	t.Parallel()
	w := startWork(t)
	big := strings.Repeat("0123456789abcdef", 100_000)
	for name, content := range map[string]string{"empty": "", "small": "a\x00\xff", "big": big} {
		if _, err := w.WriteFile(w.ctx, w.sandbox.ID, "sub/"+name, strings.NewReader(content), sandbox.WriteParams{Parents: true}); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"/w/sub/" + name, "sub/" + name} {
			if got := w.read(path); got != content {
				t.Errorf("%s: %d bytes", path, len(got))
			}
		}
		for _, cwd := range []string{"/w/sub", "sub", "/w/../w/sub"} {
			resp := w.request(t.Context(), "POST", w.v1("/fs/read"), strings.NewReader(fmt.Sprintf(`{"path":%q,"cwd":%q}`, name, cwd)))
			if got, err := io.ReadAll(resp.Body); err != nil || string(got) != content || resp.ContentLength != int64(len(content)) {
				t.Errorf("%s in %s: %d bytes, %v", name, cwd, len(got), err)
			}
		}
	}
	w.refused("POST", w.of("/fs/read"), `{"path":"/w/none"}`, 404, "not_found")
	w.refused("POST", w.of("/fs/read"), `{"path":"/none/at/all"}`, 404, "not_found")
	w.refused("POST", w.of("/fs/read"), `{"path":"/w/sub"}`, 400, "bad_request")
	w.refused("POST", w.v1("/fs/read"), `{"path":"/w/sub"}`, 404, "not_found") // or it would be read as the file
	w.refused("POST", w.of("/fs/read"), `{"path":""}`, 400, "bad_request")
	w.refused("POST", w.of("/fs/read"), `{}`, 400, "bad_request")
	w.refused("POST", w.of("/fs/read"), `{"path":"/w/sub/small"}`, 404, "not_found", "Authorization", "Bearer tok_b1")
}

// A client that leaves in the middle leaves no resources behind; TestMain finds
// leaks.
func TestFiles_ReadBrokenOff(t *testing.T) {
	t.Parallel()
	w := startWork(t)
	if _, err := w.WriteFile(w.ctx, w.sandbox.ID, "big", bytes.NewReader(make([]byte, 64<<20)), sandbox.WriteParams{}); err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	resp := w.request(ctx, "POST", w.of("/fs/read"), strings.NewReader(`{"path":"big"}`))
	if _, err := io.ReadFull(resp.Body, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	leave()
	if _, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Error("all of it was there")
	}
}

func TestFiles_Mkdir(t *testing.T) {
	t.Parallel()
	w := startWork(t)
	w.want("POST", w.of("/fs/mkdir"), `{"path":"a"}`, "{}")
	w.want("POST", w.of("/fs/mkdir"), `{"path":"b","cwd":"a"}`, "{}")
	w.want("POST", w.of("/fs/mkdir"), `{"path":"/w/c/d/e","cwd":"/nowhere","recursive":true}`, "{}")
	w.want("POST", w.of("/fs/mkdir"), `{"path":"/w/c/d/e","recursive":true}`, "{}")
	w.want("POST", w.v1("/fs/mkdir"), `{"path":"v1"}`, "{}")
	for _, dir := range []string{"/w/a/b", "/w/c/d/e", "/w/v1"} {
		if info := w.stat(dir); info.Type != sandbox.TypeDir || info.Mode != 0o755 {
			t.Errorf("%s: %+v", dir, info)
		}
	}
	w.refused("POST", w.of("/fs/mkdir"), `{"path":"a"}`, 400, "bad_request")
	w.refused("POST", w.of("/fs/mkdir"), `{"path":"none/x"}`, 400, "path_not_found")
	w.refused("POST", w.of("/fs/mkdir"), `{"path":"none/x","recursive":false}`, 400, "path_not_found")
	w.refused("POST", w.of("/fs/mkdir"), `{}`, 400, "bad_request")
}
