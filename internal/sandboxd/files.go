package sandboxd

import (
	"context"
	"io"

	"github.com/cayhq/cay/sandbox"
)

// The engine refuses paths that no guest can resolve; everything else about a path is
// left to the guest's kernel.

// Stat implements Service.
func (e *Engine) Stat(ctx context.Context, ref, path string, follow bool) (*sandbox.FileInfo, error) {
	if err := sandbox.CheckPath("path", path); err != nil {
		return nil, err
	}
	return get(ctx, e, ref, wakeAll, func(ctx context.Context, m *session) (*sandbox.FileInfo, error) {
		return m.guest.Stat(ctx, path, follow)
	})
}

// ReadDir implements Service.
func (e *Engine) ReadDir(ctx context.Context, ref, path string, p sandbox.ReadDirParams) (*sandbox.Page[sandbox.FileInfo], error) {
	if err := firstError(sandbox.CheckPath("path", path), p.Validate()); err != nil {
		return nil, err
	}
	return get(ctx, e, ref, wakeAll, func(ctx context.Context, m *session) (*sandbox.Page[sandbox.FileInfo], error) {
		return m.guest.ReadDir(ctx, path, p)
	})
}

// Glob implements Service.
func (e *Engine) Glob(ctx context.Context, ref, pattern string) ([]string, error) {
	if err := sandbox.CheckPath("pattern", pattern); err != nil {
		return nil, err
	}
	return get(ctx, e, ref, wakeAll, func(ctx context.Context, m *session) ([]string, error) { return m.guest.Glob(ctx, pattern) })
}

// ReadFile implements Service.
func (e *Engine) ReadFile(ctx context.Context, ref, path string, p sandbox.ReadParams) (io.ReadCloser, *sandbox.FileInfo, error) {
	if err := firstError(sandbox.CheckPath("path", path), p.Validate()); err != nil {
		return nil, nil, err
	}
	c, err := e.call(ctx, ref, true, wakeAll)
	if err != nil {
		return nil, nil, err
	}
	r, info, err := c.m.guest.ReadFile(c.ctx, path, p)
	if err != nil {
		return nil, nil, c.done(err)
	}
	return &body{r, c}, info, nil
}

// WriteFile implements Service.
func (e *Engine) WriteFile(ctx context.Context, ref, path string, r io.Reader, p sandbox.WriteParams) (*sandbox.FileInfo, error) {
	if err := firstError(sandbox.CheckPath("path", path), p.Validate()); err != nil {
		return nil, err
	}
	return get(ctx, e, ref, wakeAll, func(ctx context.Context, m *session) (*sandbox.FileInfo, error) {
		return m.guest.WriteFile(ctx, path, r, p)
	})
}

// Mkdir implements Service.
func (e *Engine) Mkdir(ctx context.Context, ref, path string, p sandbox.MkdirParams) error {
	if err := firstError(sandbox.CheckPath("path", path), p.Validate()); err != nil {
		return err
	}
	return e.do(ctx, ref, wakeAll, func(ctx context.Context, m *session) error { return m.guest.Mkdir(ctx, path, p) })
}

// Rename implements Service.
func (e *Engine) Rename(ctx context.Context, ref, from, to string) error {
	if err := firstError(sandbox.CheckPath("from", from), sandbox.CheckPath("to", to)); err != nil {
		return err
	}
	return e.do(ctx, ref, wakeAll, func(ctx context.Context, m *session) error { return m.guest.Rename(ctx, from, to) })
}

// Copy implements Service.
func (e *Engine) Copy(ctx context.Context, ref, from, to string) error {
	if err := firstError(sandbox.CheckPath("from", from), sandbox.CheckPath("to", to)); err != nil {
		return err
	}
	return e.do(ctx, ref, wakeAll, func(ctx context.Context, m *session) error { return m.guest.Copy(ctx, from, to) })
}

// Remove implements Service.
func (e *Engine) Remove(ctx context.Context, ref, path string, recursive bool) error {
	if err := sandbox.CheckPath("path", path); err != nil {
		return err
	}
	return e.do(ctx, ref, wakeAll, func(ctx context.Context, m *session) error { return m.guest.Remove(ctx, path, recursive) })
}

// Symlink implements Service.
func (e *Engine) Symlink(ctx context.Context, ref, target, path string) error {
	if err := firstError(sandbox.CheckPath("target", target), sandbox.CheckPath("path", path)); err != nil {
		return err
	}
	return e.do(ctx, ref, wakeAll, func(ctx context.Context, m *session) error { return m.guest.Symlink(ctx, target, path) })
}

// Chmod implements Service.
func (e *Engine) Chmod(ctx context.Context, ref, path string, mode uint32) error {
	if err := firstError(sandbox.CheckPath("path", path), sandbox.CheckMode(mode)); err != nil {
		return err
	}
	return e.do(ctx, ref, wakeAll, func(ctx context.Context, m *session) error { return m.guest.Chmod(ctx, path, mode) })
}

// Extract implements Service.
func (e *Engine) Extract(ctx context.Context, ref, dir string, r io.Reader, p sandbox.ExtractParams) error {
	if err := firstError(sandbox.CheckPath("dir", dir), p.Validate()); err != nil {
		return err
	}
	if p.Format == "" {
		p.Format = sandbox.Tar
	}
	return e.do(ctx, ref, wakeAll, func(ctx context.Context, m *session) error { return m.guest.Extract(ctx, dir, r, p) })
}

// Archive implements Service.
func (e *Engine) Archive(ctx context.Context, ref, path string, format sandbox.ArchiveFormat) (io.ReadCloser, error) {
	if format == "" {
		format = sandbox.Tar
	}
	if err := firstError(sandbox.CheckPath("path", path), format.Validate()); err != nil {
		return nil, err
	}
	c, err := e.call(ctx, ref, true, wakeAll)
	if err != nil {
		return nil, err
	}
	r, err := c.m.guest.Archive(c.ctx, path, format)
	if err != nil {
		return nil, c.done(err)
	}
	return &body{r, c}, nil
}

// Watch implements Service.
func (e *Engine) Watch(ctx context.Context, ref, path string, p sandbox.WatchParams) (sandbox.Watch, error) {
	if err := sandbox.CheckPath("path", path); err != nil {
		return nil, err
	}
	c, err := e.call(ctx, ref, false, wakeAll)
	if err != nil {
		return nil, err
	}
	w, err := c.m.guest.Watch(c.ctx, path, p)
	if err != nil {
		return nil, c.done(err)
	}
	return &watch{w, c}, nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
