package route

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/http"
	"strconv"
	"unicode/utf8"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

func (h *routes) handleReadFile(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	path := q.Required("path")
	if err := q.Err(); err != nil {
		return err
	}
	ref := r.PathValue("ref")
	rng, ranged := api.ParseRange(r.Header.Get("Range"))
	if ranged && rng.First < 0 {
		// For the last bytes, the size is needed to find their beginning.
		info, err := h.svc.Stat(r.Context(), ref, path, true)
		if err != nil {
			return err
		}
		rng.First = max(0, info.Size-rng.Length)
	}
	src, info, err := h.svc.ReadFile(r.Context(), ref, path, sandbox.ReadParams{Offset: rng.First, Length: rng.Length})
	if err != nil {
		return err
	}
	defer src.Close() // it was only read

	buf, free := api.Buffer()
	defer free()
	n, err := io.ReadFull(src, buf)
	whole := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if err != nil && !whole {
		return err
	}
	header := w.Header()
	if err := setFileInfo(header, info); err != nil {
		return err
	}
	header.Set("Accept-Ranges", "bytes")
	if ranged && n == 0 {
		header.Set("Content-Range", fmt.Sprintf("bytes */%d", info.Size))
		e := cay.Errorf(cay.Invalid, "the file has %d bytes, none in the range asked for", info.Size)
		return api.WriteJSON(w, http.StatusRequestedRangeNotSatisfiable, wire.ErrorBody{Error: wire.FromError(e)})
	}
	setForeign(header, wire.TypeBytes)
	// Files of proc and sys have content of another length than their size, so the size
	// counts only when the content exceeds the buffer.
	length := int64(-1)
	switch {
	case whole:
		length = int64(n)
	case info.Type == sandbox.TypeFile && info.Size-rng.First > int64(n):
		length = info.Size - rng.First
		if rng.Length > 0 {
			length = min(length, rng.Length)
		}
	}
	status := http.StatusOK
	if length >= 0 {
		header.Set("Content-Length", strconv.FormatInt(length, 10))
		if ranged {
			status = http.StatusPartialContent
			header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", rng.First, rng.First+length-1, max(info.Size, rng.First+length)))
		}
	} else if ranged && rng.First > 0 {
		return cay.Errorf(cay.NotSupported, "%q has no size, so a part of it cannot be sent", path).WithHint("read it from the start")
	}
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return nil
	}
	// A file that grows while it is read is sent up to its size when it was opened.
	rest := io.Reader(src)
	if length >= 0 {
		rest = io.LimitReader(src, length-int64(n))
	}
	return api.Copy(w, buf[:n], rest, buf)
}

// setForeign marks content that users wrote as a download, so that a browser never shows
// it as a page of this origin.
func setForeign(h http.Header, media string) {
	h.Set("Content-Type", media)
	h.Set("Content-Disposition", "attachment")
}

// setFileInfo puts info into a header: JSON with all non-ASCII characters escaped.
func setFileInfo(h http.Header, info *sandbox.FileInfo) error {
	b, err := json.Marshal(info)
	if err != nil {
		return fmt.Errorf("encode file info: %w", err)
	}
	out := make([]byte, 0, len(b)+16)
	for len(b) > 0 {
		c, n := utf8.DecodeRune(b)
		switch {
		case c == 0x7f || c >= 0x80 && c <= 0xffff:
			out = fmt.Appendf(out, `\u%04x`, c)
		case c > 0xffff:
			c -= 0x10000
			out = fmt.Appendf(out, `\u%04x\u%04x`, 0xd800+c>>10, 0xdc00+c&0x3ff)
		default:
			out = append(out, b[0])
		}
		b = b[n:]
	}
	h.Set(wire.HeaderFileInfo, string(out))
	return nil
}

func (h *routes) handleWriteFile(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	path := q.Required("path")
	p := sandbox.WriteParams{
		Mode:    fs.FileMode(q.Octal("mode")),
		User:    q.String("user"),
		Parents: q.Bool("parents"),
	}
	if err := q.Err(); err != nil {
		return err
	}
	switch r.ContentLength {
	case 0:
		p.Size = -1
	case -1:
		p.Size = 0
	default:
		p.Size = r.ContentLength
	}
	info, err := h.svc.WriteFile(r.Context(), r.PathValue("ref"), path, api.Body(w, r), p)
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, info)
}

func (h *routes) handleStat(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	path, follow := q.Required("path"), q.Bool("follow")
	if err := q.Err(); err != nil {
		return err
	}
	info, err := h.svc.Stat(r.Context(), r.PathValue("ref"), path, follow)
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, info)
}

func (h *routes) handleReadDir(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	path := q.Required("path")
	p := sandbox.ReadDirParams{Limit: int(q.Int("limit", 1, 10000, 0)), Cursor: q.String("cursor")}
	if err := q.Err(); err != nil {
		return err
	}
	page, err := h.svc.ReadDir(r.Context(), r.PathValue("ref"), path, p)
	if err != nil {
		return err
	}
	return writePage(w, page)
}

func (h *routes) handleGlob(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	pattern := q.Required("pattern")
	if err := q.Err(); err != nil {
		return err
	}
	paths, err := h.svc.Glob(r.Context(), r.PathValue("ref"), pattern)
	if err != nil {
		return err
	}
	out := make([]wire.Path, len(paths))
	for i, p := range paths {
		out[i] = wire.Path(p)
	}
	return writePage(w, &sandbox.Page[wire.Path]{Items: out})
}

func (h *routes) handleMkdir(w http.ResponseWriter, r *http.Request) error {
	var p struct {
		Path    wire.Path   `json:"path"`
		Mode    fs.FileMode `json:"mode"`
		User    string      `json:"user"`
		Parents bool        `json:"parents"`
	}
	return h.doneJSON(w, r, &p, func() error {
		return h.svc.Mkdir(r.Context(), r.PathValue("ref"), string(p.Path), sandbox.MkdirParams{Mode: p.Mode, User: p.User, Parents: p.Parents})
	})
}

// fromTo is the body of requests on two paths.
type fromTo struct {
	From wire.Path `json:"from"`
	To   wire.Path `json:"to"`
}

func (h *routes) handleRename(w http.ResponseWriter, r *http.Request) error {
	var p fromTo
	return h.doneJSON(w, r, &p, func() error {
		return h.svc.Rename(r.Context(), r.PathValue("ref"), string(p.From), string(p.To))
	})
}

func (h *routes) handleCopy(w http.ResponseWriter, r *http.Request) error {
	var p fromTo
	return h.doneJSON(w, r, &p, func() error {
		return h.svc.Copy(r.Context(), r.PathValue("ref"), string(p.From), string(p.To))
	})
}

func (h *routes) handleRemove(w http.ResponseWriter, r *http.Request) error {
	var p struct {
		Path      wire.Path `json:"path"`
		Recursive bool      `json:"recursive"`
	}
	return h.doneJSON(w, r, &p, func() error {
		return h.svc.Remove(r.Context(), r.PathValue("ref"), string(p.Path), p.Recursive)
	})
}

func (h *routes) handleSymlink(w http.ResponseWriter, r *http.Request) error {
	var p struct {
		Target wire.Path `json:"target"`
		Path   wire.Path `json:"path"`
	}
	return h.doneJSON(w, r, &p, func() error {
		return h.svc.Symlink(r.Context(), r.PathValue("ref"), string(p.Target), string(p.Path))
	})
}

func (h *routes) handleChmod(w http.ResponseWriter, r *http.Request) error {
	var p struct {
		Path wire.Path `json:"path"`
		Mode *uint32   `json:"mode"`
	}
	return h.doneJSON(w, r, &p, func() error {
		if p.Mode == nil {
			return cay.Errorf(cay.Invalid, "field %q is missing", "mode")
		}
		return h.svc.Chmod(r.Context(), r.PathValue("ref"), string(p.Path), *p.Mode)
	})
}

// archiveFormat takes the query parameter "format".
func archiveFormat(q *api.Query) sandbox.ArchiveFormat {
	return sandbox.ArchiveFormat(q.Enum("format", string(sandbox.Tar), string(sandbox.Tar), string(sandbox.TarGz)))
}

func (h *routes) handleExtract(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	path := q.Required("path")
	p := sandbox.ExtractParams{
		Format:      archiveFormat(q),
		User:        q.String("user"),
		KeepOwner:   q.Bool("keep_owner"),
		ContentOnly: q.Bool("content_only"),
		MaxBytes:    q.Int("max_bytes", 1, math.MaxInt64, 0),
		MaxEntries:  q.Int("max_entries", 1, math.MaxInt64, 0),
	}
	if err := q.Err(); err != nil {
		return err
	}
	if err := h.svc.Extract(r.Context(), r.PathValue("ref"), path, api.Body(w, r), p); err != nil {
		return err
	}
	return api.NoContent(w)
}

func (h *routes) handleArchive(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	path, format := q.Required("path"), archiveFormat(q)
	if err := q.Err(); err != nil {
		return err
	}
	src, err := h.svc.Archive(r.Context(), r.PathValue("ref"), path, format)
	if err != nil {
		return err
	}
	defer src.Close() // it was only read
	media := "application/x-tar"
	if format == sandbox.TarGz {
		media = "application/gzip"
	}
	setForeign(w.Header(), media)
	w.WriteHeader(http.StatusOK)
	buf, free := api.Buffer()
	defer free()
	return api.Copy(w, nil, src, buf)
}

func (h *routes) handleWatch(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	path := q.Required("path")
	p := sandbox.WatchParams{Recursive: q.Bool("recursive")}
	if err := q.Err(); err != nil {
		return err
	}
	watch, err := h.svc.Watch(r.Context(), r.PathValue("ref"), path, p)
	if err != nil {
		return err
	}
	return api.ServeLines(w, r, watch, api.JSONLines[sandbox.FileEvent]{})
}
