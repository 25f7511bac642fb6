package vercelsandbox

import (
	"cmp"
	"net/http"
	"path"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/sandbox"
)

// pathRequest is the body of requests about one path.
type pathRequest struct {
	Path      string `json:"path"`
	Cwd       string `json:"cwd"` // the base of a relative path; empty: the working directory
	Recursive bool   `json:"recursive"`
}

// path does not clean the path: the meaning of ".." after a link is up to the
// sandbox's kernel.
func (in pathRequest) path() string {
	if in.Cwd == "" || in.Path == "" || path.IsAbs(in.Path) {
		return in.Path
	}
	return in.Cwd + "/" + in.Path
}

// handleWrite unpacks files. Their names are relative to a directory that clients
// send in a header; it is the root.
func (h *handler) handleWrite(w http.ResponseWriter, r *http.Request) error {
	o, err := ownerOf(r)
	if err != nil {
		return err
	}
	dir := cmp.Or(r.Header.Get("X-Cwd"), ".")
	p := sandbox.ExtractParams{Format: sandbox.TarGz, ContentOnly: true}
	if err := h.Sandboxes.Extract(r.Context(), o.ref, dir, api.Body(w, r), p); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, struct{}{})
}

func (h *handler) handleRead(w http.ResponseWriter, r *http.Request) error {
	o, err := ownerOf(r)
	if err != nil {
		return err
	}
	var in pathRequest
	if err := readJSON(w, r, &in); err != nil {
		return err
	}
	src, info, err := h.Sandboxes.ReadFile(r.Context(), o.ref, in.path(), sandbox.ReadParams{})
	if o.v1 && cay.CodeOf(err) == cay.Invalid {
		// These clients take every answer but a 404 for the file's content.
		return shaped(http.StatusNotFound, codeNotFound, err)
	}
	if err != nil {
		return err
	}
	defer src.Close() // it was only read
	return api.SendFile(w, src, info.Size)
}

func (h *handler) handleMkdir(w http.ResponseWriter, r *http.Request) error {
	o, err := ownerOf(r)
	if err != nil {
		return err
	}
	var in pathRequest
	if err := readJSON(w, r, &in); err != nil {
		return err
	}
	err = h.Sandboxes.Mkdir(r.Context(), o.ref, in.path(), sandbox.MkdirParams{Parents: in.Recursive})
	if cay.CodeOf(err) == cay.FileNotFound {
		return shaped(http.StatusBadRequest, codePathNotFound, err)
	}
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, struct{}{})
}
