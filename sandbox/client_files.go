package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
)

// getFile calls a GET below files whose answer is an object.
func getFile[T any](ctx context.Context, c *Client, ref, what string, q url.Values) (*T, error) {
	p, err := endpoint(ref, "files", what)
	if err != nil {
		return nil, err
	}
	out := new(T)
	if err := c.call(ctx, wire.Request{Method: http.MethodGet, Path: p, Query: q}, out); err != nil {
		return nil, err
	}
	return out, nil
}

// Stat describes a file without following a final link; with follow, its
// target. Errors: invalid, file_not_found, sandbox_stopped.
func (c *Client) Stat(ctx context.Context, ref, path string, follow bool) (*FileInfo, error) {
	q := url.Values{"path": {path}}
	setBool(q, "follow", follow)
	return getFile[FileInfo](ctx, c, ref, "stat", q)
}

// ReadDir returns one page of a directory, in name order. Errors: invalid,
// file_not_found, sandbox_stopped.
func (c *Client) ReadDir(ctx context.Context, ref, path string, p ReadDirParams) (*Page[FileInfo], error) {
	q := url.Values{"path": {path}}
	setInt(q, "limit", int64(p.Limit))
	setString(q, "cursor", p.Cursor)
	return getFile[Page[FileInfo]](ctx, c, ref, "list", q)
}

// Glob lists the paths that match a pattern: * ? [a-z] {a,b} within an element
// and ** across elements. Errors: invalid, sandbox_stopped, too_large beyond
// 10000.
func (c *Client) Glob(ctx context.Context, ref, pattern string) ([]string, error) {
	page, err := getFile[Page[wire.Path]](ctx, c, ref, "glob", url.Values{"pattern": {pattern}})
	if err != nil {
		return nil, err
	}
	out := make([]string, len(page.Items))
	for i, p := range page.Items {
		out[i] = string(p)
	}
	return out, nil
}

// ReadFile opens a file for reading. The FileInfo is of the file as opened.
// Errors: invalid, file_not_found, sandbox_stopped.
func (c *Client) ReadFile(ctx context.Context, ref, name string, p ReadParams) (io.ReadCloser, *FileInfo, error) {
	pth, err := endpoint(ref, "files", "content")
	if err != nil {
		return nil, nil, err
	}
	r := wire.Request{Method: http.MethodGet, Path: pth, Query: url.Values{"path": {name}}, Header: http.Header{}}
	switch {
	case p.Offset < 0:
		return nil, nil, cay.Errorf(cay.Invalid, "offset %d is negative", p.Offset)
	case p.Length < 0:
		return nil, nil, cay.Errorf(cay.Invalid, "length %d is negative", p.Length)
	case p.Length > 0:
		last := p.Offset + p.Length - 1
		if last < p.Offset {
			last = 1<<63 - 1
		}
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", p.Offset, last))
	case p.Offset > 0:
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-", p.Offset))
	}
	r.Accept = []int{http.StatusRequestedRangeNotSatisfiable}
	resp, conn, err := c.do(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	info := new(FileInfo)
	if err := json.Unmarshal([]byte(resp.Header.Get(wire.HeaderFileInfo)), info); err != nil {
		resp.Body.Close() // of no use
		return nil, nil, cay.Errorf(cay.Internal, "the daemon's description of the file cannot be read: %w", err)
	}
	if resp.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		resp.Body.Close() // beyond the end there is nothing to read
		return http.NoBody, info, nil
	}
	return &content{ctx, conn, resp.Body}, info, nil
}

// content is the body of an answer; errors of its Read are *cay.Error.
type content struct {
	ctx  context.Context // of the request, for why it ended
	conn *wire.Conn
	body io.ReadCloser
}

func (b *content) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if err != nil && err != io.EOF {
		err = b.conn.StreamError(b.ctx, err)
	}
	return n, err
}

func (b *content) Close() error { return b.body.Close() }

// WriteFile replaces or creates a file. Errors: invalid, file_not_found (no
// such directory), no_space, sandbox_stopped. When r fails, WriteFile returns
// r's error, and the file stays as it was.
func (c *Client) WriteFile(ctx context.Context, ref, name string, r io.Reader, p WriteParams) (*FileInfo, error) {
	pth, err := endpoint(ref, "files", "content")
	if err != nil {
		return nil, err
	}
	q := url.Values{"path": {name}}
	if p.Mode != 0 {
		q.Set("mode", fmt.Sprintf("%04o", uint32(p.Mode)))
	}
	setString(q, "user", p.User)
	setBool(q, "parents", p.Parents)
	size := p.Size
	if size == 0 {
		size = known(r)
	}
	if size < 0 {
		size = -1
	}
	out := new(FileInfo)
	err = c.call(ctx, wire.Request{Method: http.MethodPut, Path: pth, Query: q, Body: r, Length: size}, out)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Mkdir makes a directory. Errors: invalid, already_exists, file_not_found (no
// such parent), sandbox_stopped.
func (c *Client) Mkdir(ctx context.Context, ref, path string, p MkdirParams) error {
	return c.none(ctx, http.MethodPost, struct {
		Path wire.Path `json:"path"`
		MkdirParams
	}{wire.Path(path), p}, ref, "files", "mkdir")
}

type fromTo struct {
	From wire.Path `json:"from"`
	To   wire.Path `json:"to"`
}

// Rename moves a file or directory, replacing an existing file. Errors:
// invalid, file_not_found, already_exists, sandbox_stopped.
func (c *Client) Rename(ctx context.Context, ref, from, to string) error {
	return c.none(ctx, http.MethodPost, fromTo{wire.Path(from), wire.Path(to)}, ref, "files", "rename")
}

// Copy copies a file, or a directory with all below it; to must not exist or be
// a file to replace. Errors: invalid, file_not_found, already_exists, no_space,
// sandbox_stopped.
func (c *Client) Copy(ctx context.Context, ref, from, to string) error {
	return c.none(ctx, http.MethodPost, fromTo{wire.Path(from), wire.Path(to)}, ref, "files", "copy")
}

// Remove removes a file or an empty directory, or with recursive all below it.
// Errors: invalid, file_not_found, sandbox_stopped.
func (c *Client) Remove(ctx context.Context, ref, path string, recursive bool) error {
	return c.none(ctx, http.MethodPost, struct {
		Path      wire.Path `json:"path"`
		Recursive bool      `json:"recursive,omitempty"`
	}{wire.Path(path), recursive}, ref, "files", "remove")
}

// Symlink makes path a symbolic link to target. Errors: invalid,
// already_exists, file_not_found, sandbox_stopped.
func (c *Client) Symlink(ctx context.Context, ref, target, path string) error {
	return c.none(ctx, http.MethodPost, struct {
		Target wire.Path `json:"target"`
		Path   wire.Path `json:"path"`
	}{wire.Path(target), wire.Path(path)}, ref, "files", "symlink")
}

// Chmod sets permission bits as chmod(2), at most 07777. Errors: invalid,
// file_not_found, sandbox_stopped.
func (c *Client) Chmod(ctx context.Context, ref, path string, mode uint32) error {
	return c.none(ctx, http.MethodPost, struct {
		Path wire.Path `json:"path"`
		Mode uint32    `json:"mode"`
	}{wire.Path(path), mode}, ref, "files", "chmod")
}

// Extract unpacks an archive read from r below dir. If Extract fails, the
// members that were unpacked before the error stay, and the error has their
// number. Errors: invalid, too_large, no_space (on disk, or in memory),
// sandbox_stopped.
func (c *Client) Extract(ctx context.Context, ref, dir string, r io.Reader, p ExtractParams) error {
	pth, err := endpoint(ref, "files", "archive")
	if err != nil {
		return err
	}
	q := url.Values{"path": {dir}}
	setString(q, "format", string(p.Format))
	setString(q, "user", p.User)
	setBool(q, "keep_owner", p.KeepOwner)
	setBool(q, "content_only", p.ContentOnly)
	setInt(q, "max_bytes", p.MaxBytes)
	setInt(q, "max_entries", p.MaxEntries)
	return c.call(ctx, wire.Request{Method: http.MethodPut, Path: pth, Query: q, Body: r, Length: known(r)}, nil)
}

// Archive packs a file or directory; member names are relative to its parent.
// Errors: invalid, file_not_found, sandbox_stopped.
func (c *Client) Archive(ctx context.Context, ref, name string, format ArchiveFormat) (io.ReadCloser, error) {
	pth, err := endpoint(ref, "files", "archive")
	if err != nil {
		return nil, err
	}
	q := url.Values{"path": {name}}
	setString(q, "format", string(format))
	resp, conn, err := c.do(ctx, wire.Request{Method: http.MethodGet, Path: pth, Query: q})
	if err != nil {
		return nil, err
	}
	return &content{ctx, conn, resp.Body}, nil
}

// Watch reports changes below a directory or of a file. When the connection
// breaks, Next returns unavailable: changes from then on are not reported.
// Errors: invalid, file_not_found, sandbox_stopped.
func (c *Client) Watch(ctx context.Context, ref, name string, p WatchParams) (Watch, error) {
	pth, err := endpoint(ref, "files", "watch")
	if err != nil {
		return nil, err
	}
	q := url.Values{"path": {name}}
	setBool(q, "recursive", p.Recursive)
	s, err := c.stream(ctx, wire.Request{Method: http.MethodGet, Path: pth, Query: q})
	if err != nil {
		return nil, err
	}
	return &watch{ctx: ctx, s: s}, nil
}

// watch is the Watch of a Client.
type watch struct {
	ctx context.Context // of the call, for why it ended
	s   *stream

	mu     sync.Mutex // guards closed
	closed bool
}

// Next implements Watch.
func (w *watch) Next() (FileEvent, error) {
	line, err := w.s.next()
	if err != nil {
		return FileEvent{}, w.why(err)
	}
	var msg struct {
		FileEvent
		Error *wire.Error `json:"error"`
	}
	if err := json.Unmarshal(line, &msg); err != nil {
		return FileEvent{}, cay.Errorf(cay.Internal, "the daemon sent a change that cannot be read: %w", err)
	}
	if msg.Error != nil {
		return FileEvent{}, msg.Error.Err()
	}
	return msg.FileEvent, nil
}

func (w *watch) why(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		return errClosed
	case err == io.EOF:
		return io.EOF
	}
	return w.s.conn.StreamError(w.ctx, err)
}

// Close implements Watch. It may be called while Next waits, which then fails.
func (w *watch) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.closed = true
		w.s.close()
	}
	return nil
}
