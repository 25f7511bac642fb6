// Package ui is the web inspector: pages that a daemon serves beside its API, and that use the API
// like any other client. Package ui knows no slice, and serves nothing but the files of the pages.
//
// # Source and what is built of it
//
// src is TypeScript, built by Vite into dist, which is committed and embedded, so that building cay
// needs no Node. "make ui" builds dist; on machines with Node, a test checks that dist is up to
// date.
//
// # Protection of pages
//
// Scripts are loaded only from files of this origin, never from a page's text. Styles are loaded
// the same way, except for the elements that the terminal makes, which carry a nonce, and style
// attributes. Pages insert the output of sandboxes as text, never as HTML. The API accepts a page's
// requests only with a key that the page keeps; see api.Session.
package ui

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"

	"github.com/cayhq/cay/internal/api"
)

//go:embed all:dist
var dist embed.FS

// nonceMark is the placeholder of the nonce of a page's styles.
const nonceMark = "{{nonce}}"

// Mount serves the inspector for requests that match no route of mux: files by their paths, and the
// page itself for all other paths that a browser opens. The page's script shows the view of the
// path.
func Mount(mux *api.Mux) {
	files := sync.OnceValues(load) // compressing them is not for daemons nobody looks at
	mux.HandleRest(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			return false
		}
		name := strings.TrimPrefix(path.Clean(r.URL.Path), "/")
		isFile := strings.HasPrefix(name, "assets/") || name == "favicon.svg"
		if !isFile && !isPage(r, name) {
			return false
		}
		all, err := files()
		if err != nil {
			panic(err) // the files are part of the program
		}
		f := all[name]
		switch {
		case f != nil && isFile:
			f.serve(w, r)
		case isFile:
			return false
		default:
			servePage(w, all["index.html"])
		}
		return true
	})
}

// elsewhere are the first path elements of the other protocols. A browser that opens such a path
// without a route gets the same error as a program.
var elsewhere = map[string]bool{
	"v1": true, "v2": true, "v3": true, "v4": true, "v11": true, "api": true, "oauth": true, ".well-known": true, "vercel": true,
	"metrics": true, "healthz": true, "health": true,
}

// isPage reports whether the request is for a page: the client accepts text/html, or, at "/", which
// has no other use, accepts any type, as curl does.
func isPage(r *http.Request, name string) bool {
	first, _, _ := strings.Cut(name, "/")
	if elsewhere[first] {
		return false
	}
	accept := strings.ToLower(strings.Join(r.Header.Values("Accept"), ","))
	return strings.Contains(accept, "text/html") || name == "" && (accept == "" || strings.Contains(accept, "*/*"))
}

// file is a file of dist.
type file struct {
	kind    string // its content type
	etag    string
	plain   []byte
	gzipped []byte // nil if that is no shorter
}

// load reads the files of dist by their names, and compresses them.
func load() (map[string]*file, error) {
	all := make(map[string]*file)
	err := fs.WalkDir(dist, "dist", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := dist.ReadFile(name)
		if err != nil {
			return err
		}
		f, err := newFile(name, b)
		all[strings.TrimPrefix(name, "dist/")] = f
		return err
	})
	if err == nil && all["index.html"] == nil {
		err = fmt.Errorf("internal/ui/dist has no index.html: make ui builds it")
	}
	return all, err
}

func newFile(name string, b []byte) (*file, error) {
	sum := sha256.Sum256(b)
	f := &file{kind: contentType(name), etag: `"` + hex.EncodeToString(sum[:12]) + `"`, plain: b}
	var z bytes.Buffer
	w, err := gzip.NewWriterLevel(&z, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(b); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	if z.Len() < len(b) {
		f.gzipped = z.Bytes()
	}
	return f, nil
}

// contentType does not use the machine's configuration, which may be wrong.
func contentType(name string) string {
	switch path.Ext(name) {
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	case ".html":
		return "text/html; charset=utf-8"
	}
	return "application/octet-stream"
}

// serve answers with a file. Files below assets have their hash in their names, and never change.
func (f *file) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("Vary", "Accept-Encoding")
	h.Set("ETag", f.etag)
	h.Set("Cache-Control", "no-cache")
	if strings.HasPrefix(r.URL.Path, "/assets/") {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	if matches(r.Header.Get("If-None-Match"), f.etag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	body := f.plain
	if f.gzipped != nil && acceptsGzip(r) {
		h.Set("Content-Encoding", "gzip")
		body = f.gzipped
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // fails only when the client left
}

func matches(list, etag string) bool {
	for tag := range strings.SplitSeq(list, ",") {
		if tag = strings.TrimSpace(tag); tag == "*" || strings.TrimPrefix(tag, "W/") == etag {
			return true
		}
	}
	return false
}

func acceptsGzip(r *http.Request) bool {
	for _, v := range r.Header.Values("Accept-Encoding") {
		for e := range strings.SplitSeq(v, ",") {
			name, q, _ := strings.Cut(e, ";")
			if strings.EqualFold(strings.TrimSpace(name), "gzip") && strings.TrimSpace(q) != "q=0" {
				return true
			}
		}
	}
	return false
}

// servePage answers with the page, which is different each time: it holds the nonce of its styles.
func servePage(w http.ResponseWriter, page *file) {
	nonce := rand.Text()
	h := w.Header()
	h.Set("Content-Type", page.kind)
	h.Set("Content-Security-Policy", policy(nonce))
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()")
	_, _ = w.Write(bytes.ReplaceAll(page.plain, []byte(nonceMark), []byte(nonce))) // fails only when the client left
}

// policy returns the Content-Security-Policy of a page. Style attributes are allowed because the
// terminal sets colours by them; all of them are set by our scripts, never by markup from
// elsewhere.
func policy(nonce string) string {
	return "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-" + nonce + "'; style-src-attr 'unsafe-inline'; " +
		"img-src 'self' data:; font-src 'self'; connect-src 'self'; manifest-src 'self'; " +
		"base-uri 'none'; form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
}
