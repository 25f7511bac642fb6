package docker

import (
	"archive/tar"
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// pathStat describes a file to clients. Mode is a Go file mode.
type pathStat struct {
	Name       string    `json:"name"`
	Size       int64     `json:"size"`
	Mode       uint32    `json:"mode"`
	Mtime      time.Time `json:"mtime"`
	LinkTarget string    `json:"linkTarget"`
}

// statOf translates the description of a file.
func statOf(f *sandbox.FileInfo) pathStat {
	mode := f.Mode & fs.ModePerm
	for bit, flag := range map[fs.FileMode]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if f.Mode&bit != 0 {
			mode |= flag
		}
	}
	switch f.Type {
	case sandbox.TypeDir:
		mode |= fs.ModeDir
	case sandbox.TypeSymlink:
		mode |= fs.ModeSymlink
	case sandbox.TypeOther:
		mode |= fs.ModeIrregular
	}
	return pathStat{f.Name, f.Size, uint32(mode), f.ModTime, f.Target}
}

// stat describes the file that a request is about. Errors: 400, 404.
func (s *Server) stat(r *http.Request, c *container, follow bool) (string, *sandbox.FileInfo, error) {
	path := r.URL.Query().Get("path")
	if path == "" {
		return "", nil, failf(http.StatusBadRequest, "missing parameter: path")
	}
	if path[0] != '/' {
		path = "/" + path // paths of this API are relative to the root
	}
	info, err := s.cfg.Sandboxes.Stat(r.Context(), c.box.ID, path, follow)
	if cay.CodeOf(err) == cay.FileNotFound {
		return "", nil, failf(http.StatusNotFound, "Could not find the file %.300s in container %s", path, c.ID)
	}
	return path, info, err
}

// handleGetArchive answers GET and HEAD.
func (s *Server) handleGetArchive(w http.ResponseWriter, r *http.Request, c *container) error {
	path, info, err := s.stat(r, c, false)
	if err != nil {
		return err
	}
	text, err := json.Marshal(statOf(info))
	if err != nil {
		return err
	}
	head := func() {
		w.Header().Set("X-Docker-Container-Path-Stat", base64.StdEncoding.EncodeToString(text))
		w.Header().Set("Content-Type", "application/x-tar")
		w.WriteHeader(http.StatusOK)
	}
	if r.Method == http.MethodHead {
		head()
		return nil
	}
	archive, err := s.cfg.Sandboxes.Archive(r.Context(), c.box.ID, path, sandbox.Tar)
	if err != nil {
		return err
	}
	defer archive.Close()
	head()
	send := func() (err error) { _, err = io.Copy(w, archive); return err }
	if info.Type == sandbox.TypeDir && strings.HasSuffix(r.URL.Query().Get("path"), "/.") {
		send = func() error { return rebase(w, archive) }
	}
	if err := send(); err != nil {
		return s.broken(err) // half an archive must not look like one
	}
	return nil
}

// rebase copies an archive of a directory with names from within the directory, as
// clients expect for a path that ends with "/.".
func rebase(w io.Writer, r io.Reader) error {
	in, out := tar.NewReader(r), tar.NewWriter(w)
	for {
		h, err := in.Next()
		if err == io.EOF {
			return out.Close()
		}
		if err != nil {
			return err
		}
		_, name, _ := strings.Cut(h.Name, "/")
		h.Name = "./" + name
		if h.Typeflag == tar.TypeLink {
			_, target, _ := strings.Cut(h.Linkname, "/")
			h.Linkname = "./" + target
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
}

func (s *Server) handlePutArchive(w http.ResponseWriter, r *http.Request, c *container) error {
	path, info, err := s.stat(r, c, true)
	if err != nil {
		return err
	}
	if info.Type != sandbox.TypeDir {
		return failf(http.StatusBadRequest, "extraction point is not a directory: %.300s", path)
	}
	body := bufio.NewReader(r.Body)
	p := sandbox.ExtractParams{Format: sandbox.Tar, KeepOwner: !flag(r, "copyUIDGID")}
	if magic, _ := body.Peek(6); bytes.HasPrefix(magic, []byte{0x1f, 0x8b}) { // shorter archives are not compressed
		p.Format = sandbox.TarGz
	} else if bytes.HasPrefix(magic, []byte("BZh")) || bytes.HasPrefix(magic, []byte("\xfd7zXZ\x00")) {
		return failf(http.StatusBadRequest, "the archive is compressed with bzip2 or xz; cay takes tar, plain or with gzip")
	}
	if err := s.cfg.Sandboxes.Extract(r.Context(), c.box.ID, path, body, p); err != nil {
		return err
	}
	if err := s.saveFilled(r.Context(), c, path); err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}
