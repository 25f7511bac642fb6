package durable

import (
	"bytes"
	"context"
	"io"
	"io/fs"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
	"github.com/cayhq/cay/workflow"
)

// MaxFile bounds what ReadFile returns, in bytes.
const MaxFile = 8 << 20

// File is a file to write.
type File struct {
	Path string
	Data []byte
	Mode fs.FileMode // 0 means the old file's, else 0644
}

// WriteFile creates or replaces a file, and creates missing parent directories.
func (h *Handle) WriteFile(ctx workflow.Context, path string, data []byte, mode fs.FileMode) error {
	return h.WriteFiles(ctx, File{Path: path, Data: data, Mode: mode})
}

// WriteFiles writes several files in one step, in the order given. Each file has either
// its old content or the new one, even if the step fails.
func (h *Handle) WriteFiles(ctx workflow.Context, files ...File) error {
	return h.act(ctx, "write-files", func(ctx context.Context, box *sandbox.Handle) error {
		for _, f := range files {
			if err := box.WriteFile(ctx, f.Path, f.Data, f.Mode); err != nil {
				return err
			}
		}
		return nil
	})
}

// ReadFile returns the content of a file of at most 8 MiB, which becomes part of the log.
// Errors: file_not_found, too_large.
func (h *Handle) ReadFile(ctx workflow.Context, path string) ([]byte, error) {
	data, err := do(ctx, "read-file", func(ctx context.Context, c *sandbox.Client) (text, error) {
		r, _, err := c.ReadFile(ctx, h.ID, path, sandbox.ReadParams{Length: MaxFile + 1})
		if err != nil {
			return nil, err
		}
		defer r.Close() // only reads precede it
		var b bytes.Buffer
		if _, err := io.Copy(&b, r); err != nil {
			return nil, err
		}
		if b.Len() > MaxFile {
			return nil, cay.Errorf(cay.TooLarge, "%q has more than %d bytes", path, MaxFile).WithHint("read it in a step that makes less of it")
		}
		return b.Bytes(), nil
	})
	return data, err
}

// Remove removes a file or an empty directory, or, if recursive is set, a directory with
// its contents. Removing a missing file is no error.
func (h *Handle) Remove(ctx workflow.Context, path string, recursive bool) error {
	_, err := do(ctx, "remove", func(ctx context.Context, c *sandbox.Client) (none, error) {
		err := c.Remove(ctx, h.ID, path, recursive)
		if is(err, cay.FileNotFound) {
			err = nil
		}
		return none{}, err
	})
	return err
}
