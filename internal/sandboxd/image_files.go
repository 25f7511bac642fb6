package sandboxd

import (
	"context"
	"fmt"
	"io"

	"github.com/cayhq/cay/sandbox"
)

// ImageFiles are the opened files of a snapshot from which an image is to be built.
type ImageFiles struct {
	Snapshot      sandbox.Snapshot
	RuntimeDigest string            // of Snapshot.Runtime
	Env           map[string]string // the environment that commands get from the image and the runtime
	// WriteLayer writes the changes to the image as a layer of an OCI image.
	WriteLayer func(ctx context.Context, w io.Writer) error
	// Close closes the files. The caller must call it.
	Close func()
}

// OpenImageFiles opens the files of a snapshot, by id or name. Errors: not_found,
// conflict if the snapshot is damaged.
func (e *Engine) OpenImageFiles(ctx context.Context, ref string) (*ImageFiles, error) {
	r, err := e.lookupSnapshot(ctx, ref)
	if err != nil {
		return nil, err
	}
	if err := r.Usable(); err != nil {
		return nil, err
	}
	if e.cfg.Snapshots == nil {
		return nil, errNoSnapshots
	}
	files, err := e.cfg.Snapshots.Open(ctx, r.ID)
	if err != nil {
		return nil, fmt.Errorf("open snapshot: %w", err)
	}
	return &ImageFiles{
		Snapshot: r.Snapshot, RuntimeDigest: r.RuntimeDigest, Env: r.ImageEnv,
		WriteLayer: func(ctx context.Context, w io.Writer) error { return files.WriteLayer(ctx, "/", w) },
		Close:      files.Close,
	}, nil
}
