package cloudflare

import (
	"io"
	"net/http"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/sandbox"
)

// filePath returns the absolute path of the file that a request names: the rest of the URL
// is the path without its first slash. Errors: invalid.
func filePath(r *http.Request) (string, error) {
	rest := r.PathValue("path")
	if rest == "" {
		return "", cay.Errorf(cay.Invalid, "file path must not be empty").WithHint("it is a path in %s, as in file/workspace/main.py", workspace)
	}
	p, ok := inWorkspace("/" + rest)
	if !ok {
		return "", outside("path", "/"+rest)
	}
	_, err := headerSession(r) // paths are absolute, so its directory does not matter
	return p, err
}

func (h *handler) handleReadFile(w http.ResponseWriter, r *http.Request) error {
	path, err := filePath(r)
	if err != nil {
		return err
	}
	sb, err := h.ensure(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	src, info, err := h.Sandboxes.ReadFile(r.Context(), sb.ID, path, sandbox.ReadParams{})
	if err != nil {
		return forCodes(http.StatusNotFound, codeFileNotFound, err, cay.FileNotFound, cay.Invalid)
	}
	defer src.Close() // it was only read
	return api.SendFile(w, src, info.Size)
}

func (h *handler) handleWriteFile(w http.ResponseWriter, r *http.Request) error {
	path, err := filePath(r)
	if err != nil {
		return err
	}
	body, err := upload(w, r, "file")
	if err != nil {
		return err
	}
	sb, err := h.ensure(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	p := sandbox.WriteParams{Parents: true, Size: max(r.ContentLength, 0)}
	if r.ContentLength == 0 {
		p.Size = -1
	}
	if _, err := h.Sandboxes.WriteFile(r.Context(), sb.ID, path, body, p); err != nil {
		return forCodes(http.StatusBadGateway, codeArchiveWrite, err,
			cay.Invalid, cay.FileNotFound, cay.PermissionDenied, cay.NoSpace, cay.Conflict)
	}
	return api.WriteJSON(w, http.StatusOK, done)
}

// upload returns the body of a request: at most maxUpload bytes. Errors: too_large, here
// or from a Read.
func upload(w http.ResponseWriter, r *http.Request, kind string) (io.Reader, error) {
	tooLarge := cay.Errorf(cay.TooLarge, "payload too large: the %s has more than %d bytes", kind, maxUpload)
	if n := r.ContentLength; n > maxUpload {
		return nil, cay.Errorf(cay.TooLarge, "payload too large: the %s has %d bytes, more than %d", kind, n, maxUpload)
	}
	return &bounded{r: api.Body(w, r), left: maxUpload, end: tooLarge}, nil
}

// bounded reads at most left bytes of r, and fails with end if r has more.
type bounded struct {
	r    io.Reader
	left int64
	end  error
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, b.end
	}
	return n, err
}
