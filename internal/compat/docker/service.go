package docker

import (
	"context"
	"io"
	"log/slog"
	"net"

	"github.com/cayhq/cay/sandbox"
)

// Sandboxes is the part of the sandbox service that containers need; see
// *sandbox.Client, which has it.
type Sandboxes interface {
	Create(ctx context.Context, p sandbox.CreateParams) (*sandbox.Sandbox, error)
	Get(ctx context.Context, ref string) (*sandbox.Sandbox, error)
	List(ctx context.Context, p sandbox.ListParams) (*sandbox.Page[sandbox.Sandbox], error)
	Update(ctx context.Context, ref string, p sandbox.UpdateParams) (*sandbox.Sandbox, error)
	Extend(ctx context.Context, ref string, d sandbox.Duration) (*sandbox.Sandbox, error)
	Stop(ctx context.Context, ref string) (*sandbox.Sandbox, error)
	Pause(ctx context.Context, ref string) (*sandbox.Sandbox, error)
	Resume(ctx context.Context, ref string, p sandbox.ResumeParams) (*sandbox.Sandbox, error)
	Stats(ctx context.Context, ref string) (*sandbox.Stats, error)
	Delete(ctx context.Context, ref string) error

	Start(ctx context.Context, ref string, p sandbox.CommandParams) (*sandbox.Command, error)
	Exec(ctx context.Context, ref string, p sandbox.CommandParams) (sandbox.Output, error)
	GetCommand(ctx context.Context, ref, id string) (*sandbox.Command, error)
	Wait(ctx context.Context, ref, id string) (*sandbox.Command, error)
	Signal(ctx context.Context, ref, id string, sig sandbox.Signal) error
	Output(ctx context.Context, ref, id string, p sandbox.OutputParams) (sandbox.Output, error)
	WriteStdin(ctx context.Context, ref, id string, r io.Reader, closeAfter bool) error
	Resize(ctx context.Context, ref, id string, size sandbox.WindowSize) error

	Stat(ctx context.Context, ref, path string, follow bool) (*sandbox.FileInfo, error)
	Extract(ctx context.Context, ref, dir string, r io.Reader, p sandbox.ExtractParams) error
	Archive(ctx context.Context, ref, name string, format sandbox.ArchiveFormat) (io.ReadCloser, error)

	CreateSnapshot(ctx context.Context, ref string, p sandbox.SnapshotParams) (*sandbox.Snapshot, error)
	DeleteSnapshot(ctx context.Context, ref string, p sandbox.DeleteSnapshotParams) (*sandbox.Snapshot, error)

	CreateDrive(ctx context.Context, p sandbox.CreateDriveParams) (*sandbox.Drive, error)
	ListDrives(ctx context.Context, p sandbox.DriveListParams) (*sandbox.Page[sandbox.Drive], error)
	SaveDrive(ctx context.Context, ref string) (*sandbox.Drive, error)
	DeleteDrive(ctx context.Context, ref string) error

	DialPort(ctx context.Context, ref string, port int) (net.Conn, error)
	ServeOutbound(ctx context.Context, ref string, h sandbox.OutboundHandler, ready func()) error
	Authority(ctx context.Context) ([]byte, error)
}

// Images is the part of the image service that containers need; see
// *sandbox.Images, which has it.
type Images interface {
	List(ctx context.Context) ([]sandbox.Image, error)
	Get(ctx context.Context, ref string) (*sandbox.Image, error)
	Pull(ctx context.Context, ref string, progress func(sandbox.ImageProgress)) (*sandbox.Image, error)
	Import(ctx context.Context, ref string, r io.Reader, progress func(sandbox.ImageProgress)) (*sandbox.Image, error)
	Export(ctx context.Context, refs []string) (io.ReadCloser, error)
	Push(ctx context.Context, p sandbox.ImagePushParams, progress func(sandbox.ImageProgress)) (*sandbox.Image, error)
	Tag(ctx context.Context, ref, name string) (*sandbox.Image, error)
	Remove(ctx context.Context, ref string) error
	FromSnapshot(ctx context.Context, p sandbox.ImageSnapshotParams, progress func(sandbox.ImageProgress)) (*sandbox.Image, error)
}

var (
	_ Sandboxes = (*sandbox.Client)(nil)
	_ Images    = (*sandbox.Images)(nil)
)

// Config is what a Server needs.
type Config struct {
	Sandboxes Sandboxes
	Images    Images
	// ProjectID is the project of all containers. Empty: the token's own.
	ProjectID string
	Version   string // of cay, for /version
	// Build builds the image of a Dockerfile. Nil: builds are refused.
	Build  func(ctx context.Context, b Build) (*sandbox.Image, error)
	Logger *slog.Logger
}
