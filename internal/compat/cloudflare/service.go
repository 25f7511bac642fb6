package cloudflare

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/cayhq/cay/sandbox"
)

// Sandboxes is the part of the sandbox service that the bridge calls. See
// sandboxd.Service for the methods.
type Sandboxes interface {
	Create(ctx context.Context, p sandbox.CreateParams) (*sandbox.Sandbox, error)
	Get(ctx context.Context, ref string) (*sandbox.Sandbox, error)
	List(ctx context.Context, p sandbox.ListParams) (*sandbox.Page[sandbox.Sandbox], error)
	Resume(ctx context.Context, ref string, p sandbox.ResumeParams) (*sandbox.Sandbox, error)
	DeleteWith(ctx context.Context, ref string, p sandbox.DeleteParams) error
	GetSnapshot(ctx context.Context, ref string) (*sandbox.Snapshot, error)
	Pools(ctx context.Context) ([]sandbox.Pool, error)

	Start(ctx context.Context, ref string, p sandbox.CommandParams) (*sandbox.Command, error)
	Exec(ctx context.Context, ref string, p sandbox.CommandParams) (sandbox.Output, error)
	GetCommand(ctx context.Context, ref, id string) (*sandbox.Command, error)
	ListCommands(ctx context.Context, ref string) ([]sandbox.Command, error)
	Wait(ctx context.Context, ref, id string) (*sandbox.Command, error)
	Signal(ctx context.Context, ref, id string, sig sandbox.Signal) error
	Output(ctx context.Context, ref, id string, p sandbox.OutputParams) (sandbox.Output, error)
	WriteStdin(ctx context.Context, ref, id string, r io.Reader, closeAfter bool) error
	Resize(ctx context.Context, ref, id string, size sandbox.WindowSize) error

	Stat(ctx context.Context, ref, path string, follow bool) (*sandbox.FileInfo, error)
	ReadFile(ctx context.Context, ref, path string, p sandbox.ReadParams) (io.ReadCloser, *sandbox.FileInfo, error)
	WriteFile(ctx context.Context, ref, path string, r io.Reader, p sandbox.WriteParams) (*sandbox.FileInfo, error)
	Remove(ctx context.Context, ref, path string, recursive bool) error
	Archive(ctx context.Context, ref, path string, format sandbox.ArchiveFormat) (io.ReadCloser, error)
	Extract(ctx context.Context, ref, dir string, r io.Reader, p sandbox.ExtractParams) error
}

// Config configures the bridge.
type Config struct {
	Sandboxes Sandboxes
	// Image is the image of new sandboxes. Empty: the daemon's default image.
	Image string
	// MaxTimeout is the timeout of new sandboxes: the longest that the daemon allows.
	// 0: the service's default.
	MaxTimeout time.Duration
	Logger     *slog.Logger
}
