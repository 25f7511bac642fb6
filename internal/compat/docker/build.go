package docker

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/cayhq/cay"
)

// Bounds of builds and of the files that come with one.
const (
	maxContext      = 4 << 30 // bytes
	maxContextFiles = 200_000
	maxBuilds       = 4 // at a time
)

// Build is a build that a client asks for.
type Build struct {
	Context string   // a directory with the client's files, which may hold links to anywhere
	File    string   // the Dockerfile, within Context
	Tags    []string // names of the image, at least one
	Target  string   // stage; empty: the last one
	Args    map[string]string
	NoCache bool
	Offline bool // RUN has no network
	// Say is told what happens, in whole lines or parts of them.
	Say func(text string)
}

// handleBuild builds an image of the archive in the body, and answers with a line for
// each thing that happens.
func (s *Server) handleBuild(w http.ResponseWriter, r *http.Request) error {
	if s.cfg.Build == nil {
		return failf(http.StatusNotImplemented, "cay has not (yet) on this socket: building images")
	}
	b, notes, err := readBuild(r)
	if err != nil {
		return err
	}
	if err := s.beginBuild(); err != nil {
		return err
	}
	defer s.endBuild()
	dir, err := os.MkdirTemp("", "cay-build")
	if err != nil {
		return cay.Errorf(cay.Unavailable, "make a directory for the files of the build: %w", err)
	}
	defer os.RemoveAll(dir) // of what is left nothing is of use
	if err := extract(dir, r.Body); err != nil {
		return err
	}
	lines := &progress{w: w}
	var one sync.Mutex
	b.Context, b.Say = dir, func(text string) {
		one.Lock()
		defer one.Unlock()
		_ = lines.line(map[string]string{"stream": text}) // remembered in gone
	}
	for _, n := range notes {
		b.Say(n + "\n")
	}
	img, err := s.cfg.Build(r.Context(), *b)
	if err != nil {
		return lines.fail(err)
	}
	_ = lines.line(map[string]any{"aux": map[string]string{"ID": img.Digest}})
	b.Say("Successfully built " + strings.TrimPrefix(img.Digest, "sha256:")[:12] + "\n")
	for _, tag := range b.Tags {
		b.Say("Successfully tagged " + tag + "\n")
	}
	return nil
}

// beginBuild takes one of the places of builds and loads; endBuild gives it back.
func (s *Server) beginBuild() error {
	select {
	case s.builds <- struct{}{}:
		return nil
	default:
		return failf(http.StatusTooManyRequests, "%d images are built or loaded; wait for one to be done", maxBuilds)
	}
}

func (s *Server) endBuild() { <-s.builds }

// readBuild reads the query of a build. notes say what is left out.
func readBuild(r *http.Request) (b *Build, notes []string, err error) {
	q := r.URL.Query()
	b = &Build{File: "Dockerfile", Tags: q["t"], Target: q.Get("target"), Args: map[string]string{}, NoCache: flag(r, "nocache")}
	if f := q.Get("dockerfile"); f != "" {
		b.File = path.Clean(f)
	}
	if len(b.Tags) == 0 {
		b.Tags = []string{"cay-build:" + newID()[:12]} // cay keeps images by their names
	}
	if p := q.Get("platform"); p != "" && p != "linux/"+runtime.GOARCH && p != "linux" {
		return nil, nil, failf(http.StatusBadRequest, "cay refuses platform %.50s: images are those of linux/%s, the machine's own", p, runtime.GOARCH)
	}
	switch mode := q.Get("networkmode"); mode {
	case "", "default", "bridge":
	case "none":
		b.Offline = true
	default:
		return nil, nil, failf(http.StatusBadRequest, "cay refuses the network %.50q: a build has the network of its sandboxes", mode)
	}
	switch {
	case q.Get("version") == "2":
		return nil, nil, failf(http.StatusNotImplemented, "cay does not speak BuildKit's protocol: set DOCKER_BUILDKIT=0, or use \"cay docker build\"")
	case q.Get("remote") != "":
		return nil, nil, failf(http.StatusBadRequest, "cay refuses the remote context %.100q: send the files", q.Get("remote"))
	case !filepath.IsLocal(b.File):
		return nil, nil, failf(http.StatusBadRequest, "the Dockerfile %.300q is outside of the files of the build", b.File)
	}
	if text := q.Get("buildargs"); text != "" {
		args := map[string]*string{}
		if err := json.Unmarshal([]byte(text), &args); err != nil {
			return nil, nil, failf(http.StatusBadRequest, "buildargs are not a JSON object of texts: %v", err)
		}
		for name, value := range args {
			if value != nil { // without a value it is not given
				b.Args[name] = *value
			}
		}
	}
	for _, name := range []string{"labels", "extrahosts", "squash", "memory", "cpuquota", "cachefrom"} {
		if v := q.Get(name); flag(r, name) && v != "{}" && v != "[]" && v != "null" {
			notes = append(notes, name+" is left out")
		}
	}
	return b, notes, nil
}

// extract writes the files of an archive, plain or with gzip, below a directory that no
// name in the archive leads out of.
func extract(dir string, r io.Reader) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() // it was only written below
	buffered := bufio.NewReader(r)
	body := io.Reader(buffered)
	if magic, _ := buffered.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) { // shorter archives are not compressed
		if body, err = gzip.NewReader(buffered); err != nil {
			return badContext(err)
		}
	}
	archive, left := tar.NewReader(body), int64(maxContext)
	for files := 0; ; files++ {
		h, err := archive.Next()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return badContext(err)
		case files == maxContextFiles:
			return failf(http.StatusRequestEntityTooLarge, "the build has more than %d files; name those it does not need in .dockerignore", maxContextFiles)
		case h.Size > left:
			return failf(http.StatusRequestEntityTooLarge, "the files of the build have more than %d bytes; name those it does not need in .dockerignore", int64(maxContext))
		}
		left -= h.Size
		if err := extractOne(root, h, archive); err != nil {
			return badContext(err)
		}
	}
}

func badContext(err error) error {
	if errors.As(err, new(*failure)) {
		return err
	}
	return failf(http.StatusBadRequest, "the archive with the files of the build cannot be extracted: %v", err)
}

func extractOne(root *os.Root, h *tar.Header, r io.Reader) error {
	name, mode := path.Clean(strings.TrimLeft(h.Name, "/")), fs.FileMode(h.Mode).Perm()
	if name == "." {
		return nil
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeDir {
		if err := root.MkdirAll(name, 0o755); err != nil {
			return err
		}
		return root.Chmod(name, mode|0o700) // so that the files below it can be written and removed
	}
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		if err := errors.Join(err, f.Chmod(mode|0o400), f.Close()); err != nil {
			return err
		}
		return root.Chtimes(name, h.ModTime, h.ModTime)
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		return root.Link(path.Clean(strings.TrimLeft(h.Linkname, "/")), name)
	case tar.TypeXGlobalHeader:
		return nil
	}
	return failf(http.StatusBadRequest, "the archive with the files of the build has %.300q, which is no file, directory or link", h.Name)
}
