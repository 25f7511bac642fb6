package sandbox

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"time"

	"github.com/cayhq/cay"
)

// Handle is one sandbox of a Client, with the methods that programs call most.
// A Handle is a name, not a connection: making a Handle sends no request, and a
// Handle needs no Close. Methods are safe for concurrent use.
type Handle struct {
	c   *Client
	ref string
}

// Sandbox returns a Handle of the sandbox with the given id or name.
func (c *Client) Sandbox(ref string) *Handle { return &Handle{c: c, ref: ref} }

// Ref returns the id or name that the Handle was made with.
func (h *Handle) Ref() string { return h.ref }

// Get returns the current state of the sandbox.
func (h *Handle) Get(ctx context.Context) (*Sandbox, error) { return h.c.Get(ctx, h.ref) }

// Extend moves the end of the sandbox by d.
func (h *Handle) Extend(ctx context.Context, d time.Duration) (*Sandbox, error) {
	return h.c.Extend(ctx, h.ref, Duration(d))
}

// Stop ends the sandbox and returns when all its processes have ended.
func (h *Handle) Stop(ctx context.Context) (*Sandbox, error) { return h.c.Stop(ctx, h.ref) }

// Delete stops the sandbox and deletes it.
func (h *Handle) Delete(ctx context.Context) error { return h.c.Delete(ctx, h.ref) }

// maxRead is the most bytes that Handle.ReadFile returns.
const maxRead = 256 << 20

// ReadFile returns the content of a file of at most 256 MiB. Errors:
// file_not_found, too_large, sandbox_stopped. Client.ReadFile streams larger
// files.
func (h *Handle) ReadFile(ctx context.Context, path string) ([]byte, error) {
	r, info, err := h.c.ReadFile(ctx, h.ref, path, ReadParams{})
	if err != nil {
		return nil, err
	}
	defer r.Close() // it was only read
	var b bytes.Buffer
	if info.Size <= maxRead {
		b.Grow(int(info.Size) + bytes.MinRead)
	}
	n, err := b.ReadFrom(io.LimitReader(r, maxRead+1))
	if err != nil {
		return nil, err
	}
	if n > maxRead {
		return nil, cay.Errorf(cay.TooLarge, "%q has more than %d bytes", path, maxRead).WithHint("stream it with Client.ReadFile")
	}
	return b.Bytes(), nil
}

// WriteFile replaces or makes a file, and makes missing parent directories.
// mode is its permission bits; 0 means the old file's, else 0644. Errors:
// invalid, no_space, sandbox_stopped.
func (h *Handle) WriteFile(ctx context.Context, path string, data []byte, mode fs.FileMode) error {
	_, err := h.c.WriteFile(ctx, h.ref, path, bytes.NewReader(data), WriteParams{Mode: mode, Parents: true})
	return err
}

// Result is the result of a finished command.
type Result struct {
	Stdout []byte // the newest 16 MiB
	Stderr []byte // the newest 16 MiB
	// Truncated says that a part of Stdout or Stderr is missing.
	Truncated bool
	Exit      Exit
}

// maxCapture bounds each stream of a Result, in bytes.
const maxCapture = 16 << 20

// Run runs a command to its end and returns its output. An exit status other
// than 0 is no error. When ctx ends first, the command is killed. Errors:
// invalid, executable_not_found, sandbox_stopped, quota_exceeded.
func (c *Client) Run(ctx context.Context, ref string, p CommandParams) (*Result, error) {
	stdout, stderr := &tail{limit: maxCapture}, &tail{limit: maxCapture}
	cmd := &Cmd{Params: p, Stdout: stdout, Stderr: stderr, h: c.Sandbox(ref), ctx: ctx}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	exit, err := cmd.wait()
	if err != nil {
		return nil, err
	}
	return &Result{
		Stdout:    stdout.bytes(),
		Stderr:    stderr.bytes(),
		Truncated: stdout.cut || stderr.cut || cmd.truncated,
		Exit:      *exit,
	}, nil
}

// Run runs a command to its end and returns its output; see Client.Run.
func (h *Handle) Run(ctx context.Context, p CommandParams) (*Result, error) {
	return h.c.Run(ctx, h.ref, p)
}

// tail keeps the last bytes written to it.
type tail struct {
	limit int
	buf   []byte // up to twice the limit, so that bytes are moved rarely
	cut   bool
}

func (t *tail) Write(p []byte) (int, error) {
	n := len(p)
	if n > t.limit {
		t.cut = true
		t.buf, p = t.buf[:0], p[n-t.limit:]
	}
	t.buf = append(t.buf, p...)
	if len(t.buf) > 2*t.limit {
		t.buf = append(t.buf[:0], t.bytes()...)
	}
	return n, nil
}

func (t *tail) bytes() []byte {
	if len(t.buf) <= t.limit {
		return t.buf
	}
	t.cut = true
	return t.buf[len(t.buf)-t.limit:]
}
