package guest

import (
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cayhq/cay/sandbox"
)

// Stat describes a file. See sandboxd.Files, as for the methods below.
func (c *Client) Stat(ctx context.Context, path string, follow bool) (*sandbox.FileInfo, error) {
	q := url.Values{"path": {path}}
	if follow {
		q.Set("follow", "1")
	}
	var e FileEntry
	if err := c.get(ctx, "/files/stat", q, &e); err != nil {
		return nil, err
	}
	return e.info("")
}

// ReadDir lists a directory, a page at a time, sorted by the bytes of the names.
func (c *Client) ReadDir(ctx context.Context, path string, p sandbox.ReadDirParams) (*sandbox.Page[sandbox.FileInfo], error) {
	q := url.Values{"path": {path}, "limit": {strconv.Itoa(p.Limit)}, "cursor": {p.Cursor}}
	limit := p.Limit
	if limit == 0 {
		limit = DefaultPage
	}
	var page DirPage
	if err := c.getFew(ctx, "/files/list", q, 16*(limit+1), &page); err != nil {
		return nil, err
	}
	if len(page.Entries) > limit || len(page.Next) > 2*maxName || !validAbs(string(page.Dir)) {
		return nil, unavailable(&protocolError{"a directory page out of bounds"})
	}
	out := &sandbox.Page[sandbox.FileInfo]{Items: make([]sandbox.FileInfo, 0, len(page.Entries)), Next: page.Next}
	for _, e := range page.Entries {
		info, err := e.info(string(page.Dir))
		if err != nil {
			return nil, err
		}
		out.Items = append(out.Items, *info)
	}
	return out, nil
}

// Glob lists the paths that match a pattern, sorted. Wildcards also match names that
// begin with a dot; ** does not enter symbolic links.
func (c *Client) Glob(ctx context.Context, pattern string) ([]string, error) {
	var res GlobResult
	if err := c.getFew(ctx, "/files/glob", url.Values{"pattern": {pattern}}, 2*MaxGlob, &res); err != nil {
		return nil, err
	}
	if len(res.Paths) > MaxGlob {
		return nil, unavailable(&protocolError{"more paths than were allowed"})
	}
	paths := make([]string, len(res.Paths))
	for i, p := range res.Paths {
		if paths[i] = string(p); !validAbs(paths[i]) {
			return nil, unavailable(&protocolError{"a path that is none"})
		}
	}
	return paths, nil
}

// ReadFile opens a file for reading. If the file shrinks meanwhile, the reader returns an
// error instead of ending early.
func (c *Client) ReadFile(ctx context.Context, path string, p sandbox.ReadParams) (io.ReadCloser, *sandbox.FileInfo, error) {
	q := url.Values{"path": {path}, "offset": {strconv.FormatInt(p.Offset, 10)}, "length": {strconv.FormatInt(p.Length, 10)}}
	resp, stop, err := c.raw(ctx, request{method: http.MethodGet, path: "/files/content", query: q, repeat: true})
	if err != nil {
		return nil, nil, err
	}
	body := &rawBody{ctx: ctx, resp: resp, stop: stop, left: -1}
	if p.Length > 0 {
		body.left = p.Length
	}
	var e FileEntry
	if json.Unmarshal([]byte(resp.Header.Get(InfoHeader)), &e) != nil {
		body.Close()
		return nil, nil, unavailable(&protocolError{"a file without description"})
	}
	info, err := e.info("")
	if err != nil {
		body.Close()
		return nil, nil, err
	}
	return body, info, nil
}

// WriteFile replaces or makes a file.
func (c *Client) WriteFile(ctx context.Context, path string, r io.Reader, p sandbox.WriteParams) (*sandbox.FileInfo, error) {
	q := url.Values{"path": {path}, "user": {p.User}, "mode": {mode(p.Mode)}}
	if p.Parents {
		q.Set("parents", "1")
	}
	// The guest, which counts the bytes that arrive, reports a wrong length; net/http
	// would only cut the connection.
	switch {
	case p.Size < 0:
		q.Set("size", "0")
	case p.Size > 0:
		q.Set("size", strconv.FormatInt(p.Size, 10))
	}
	b := newBody(ctx, r)
	defer b.Close()
	var e FileEntry
	if err := c.call(ctx, request{method: http.MethodPut, path: "/files/content", query: q, stream: b, slow: true}, &e); err != nil {
		return nil, err
	}
	return e.info("")
}

// Mkdir makes a directory.
func (c *Client) Mkdir(ctx context.Context, path string, p sandbox.MkdirParams) error {
	q := url.Values{"path": {path}, "user": {p.User}, "mode": {mode(p.Mode)}}
	if p.Parents {
		q.Set("parents", "1")
	}
	return c.call(ctx, request{method: http.MethodPost, path: "/files/mkdir", query: q, repeat: p.Parents}, nil)
}

// Rename moves a file or directory, also across file systems.
func (c *Client) Rename(ctx context.Context, from, to string) error {
	return c.call(ctx, request{method: http.MethodPost, path: "/files/rename", slow: true, query: url.Values{"from": {from}, "to": {to}}}, nil)
}

// Copy copies a file or a tree, with modes, owners, times, links, user.* attributes and
// holes.
func (c *Client) Copy(ctx context.Context, from, to string) error {
	return c.call(ctx, request{method: http.MethodPost, path: "/files/copy", slow: true, query: url.Values{"from": {from}, "to": {to}}}, nil)
}

// Remove removes a file or a directory.
func (c *Client) Remove(ctx context.Context, path string, recursive bool) error {
	q := url.Values{"path": {path}}
	if recursive {
		q.Set("recursive", "1")
	}
	return c.call(ctx, request{method: http.MethodPost, path: "/files/remove", slow: true, query: q}, nil)
}

// Symlink makes a symbolic link at path.
func (c *Client) Symlink(ctx context.Context, target, path string) error {
	return c.call(ctx, request{method: http.MethodPost, path: "/files/symlink", query: url.Values{"target": {target}, "path": {path}}}, nil)
}

// Chmod sets permission bits.
func (c *Client) Chmod(ctx context.Context, path string, mode uint32) error {
	q := url.Values{"path": {path}, "mode": {strconv.FormatUint(uint64(mode), 10)}}
	return c.call(ctx, request{method: http.MethodPost, path: "/files/chmod", query: q, repeat: true}, nil)
}

// Extract unpacks an archive below dir. Files unpacked before an error stay.
func (c *Client) Extract(ctx context.Context, dir string, r io.Reader, p sandbox.ExtractParams) error {
	q := url.Values{"path": {dir}, "format": {string(p.Format)}, "user": {p.User},
		"max_bytes": {strconv.FormatInt(p.MaxBytes, 10)}, "max_entries": {strconv.FormatInt(p.MaxEntries, 10)}}
	if p.KeepOwner {
		q.Set("keep_owner", "1")
	}
	if p.ContentOnly {
		if err := c.needs(ctx, protocolContentOnly, "content_only"); err != nil {
			return err
		}
		q.Set("content_only", "1")
	}
	b := newBody(ctx, r)
	defer b.Close()
	return c.call(ctx, request{method: http.MethodPut, path: "/files/archive", query: q, stream: b, slow: true}, nil)
}

// Archive packs a file or directory. Its reader fails if a part could not be packed.
func (c *Client) Archive(ctx context.Context, path string, format sandbox.ArchiveFormat) (io.ReadCloser, error) {
	q := url.Values{"path": {path}, "format": {string(format)}}
	resp, stop, err := c.raw(ctx, request{method: http.MethodGet, path: "/files/archive", query: q, repeat: true, slow: true})
	if err != nil {
		return nil, err
	}
	return &rawBody{ctx: ctx, resp: resp, stop: stop, left: -1}, nil
}

// DefaultPage is how many entries ReadDir returns if not told.
const DefaultPage = 1000

func mode(m fs.FileMode) string { return strconv.FormatUint(uint64(m), 10) }

func (c *Client) raw(ctx context.Context, r request) (*http.Response, context.CancelFunc, error) {
	ctx, stop := context.WithCancel(ctx)
	r.follows = true
	resp, err := c.do(ctx, r)
	if err != nil {
		stop()
		return nil, nil, err
	}
	return resp, stop, nil
}

// rawBody is the unmodified body of an answer.
type rawBody struct {
	ctx  context.Context
	resp *http.Response
	stop context.CancelFunc
	left int64 // bytes the guest may still send; -1 means any number
}

func (b *rawBody) Read(p []byte) (int, error) {
	n, err := b.resp.Body.Read(p)
	if b.left >= 0 {
		if int64(n) > b.left {
			return 0, unavailable(&protocolError{"more bytes than were asked for"})
		}
		b.left -= int64(n)
	}
	switch {
	case err == nil:
		return n, nil
	case err == io.EOF:
		if t := b.resp.Trailer.Get(ErrorTrailer); t != "" {
			return n, decodeError([]byte(t))
		}
		return n, io.EOF
	}
	return n, unavailable(contextErr(b.ctx, err))
}

// WriteTo copies with a buffer that suits large files; io.Copy uses it.
func (b *rawBody) WriteTo(w io.Writer) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{b}, make([]byte, CopyBuffer))
}

// CopyBuffer is the size of the buffers files are moved with, in bytes.
const CopyBuffer = 256 << 10

func (b *rawBody) Close() error {
	b.stop()
	return b.resp.Body.Close()
}

const maxName = 255

// info checks an entry and turns it into a FileInfo; dir is the directory of the entry,
// or "" if the entry has a path.
func (e *FileEntry) info(dir string) (*sandbox.FileInfo, error) {
	bad := func(what string) (*sandbox.FileInfo, error) {
		return nil, unavailable(&protocolError{"a file with " + what})
	}
	name, full := string(e.Name), string(e.Path)
	if dir != "" {
		full = path.Join(dir, name)
	}
	switch {
	case name == "" || name == "." || name == ".." || len(name) > maxName || strings.ContainsRune(name, 0),
		strings.Contains(name, "/") && name != "/":
		return bad("a name that is none")
	case !validAbs(full):
		return bad("a path that is none")
	case e.Size < 0:
		return bad("a negative size")
	case e.Mode > 0o7777:
		return bad("a mode out of range")
	case len(e.Target) > MaxPath || len(e.Target) > 0 && e.Type != sandbox.TypeSymlink:
		return bad("a target it cannot have")
	}
	switch e.Type {
	case sandbox.TypeFile, sandbox.TypeDir, sandbox.TypeSymlink, sandbox.TypeOther:
	default:
		return bad("an unknown type")
	}
	info := &sandbox.FileInfo{Name: name, Path: full, Type: e.Type, Size: e.Size, Mode: fs.FileMode(e.Mode),
		UID: e.UID, GID: e.GID, ModTime: e.ModTime, Target: string(e.Target)}
	if !utf8.ValidString(name) {
		info.NameBase64 = e.Name
	}
	return info, nil
}

// validAbs reports whether p can be an absolute path. The limit leaves room for a name of
// 255 bytes in a directory with the longest possible path.
func validAbs(p string) bool {
	return strings.HasPrefix(p, "/") && len(p) <= 2*MaxPath && !strings.ContainsRune(p, 0)
}
