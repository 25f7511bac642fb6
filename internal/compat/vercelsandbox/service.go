package vercelsandbox

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/sandbox"
)

// Sandboxes has the methods that the facade needs of the sandbox service; its engine
// and its client implement them. sandboxd.Service describes the methods.
type Sandboxes interface {
	Create(ctx context.Context, p sandbox.CreateParams) (*sandbox.Sandbox, error)
	Get(ctx context.Context, ref string) (*sandbox.Sandbox, error)
	List(ctx context.Context, p sandbox.ListParams) (*sandbox.Page[sandbox.Sandbox], error)
	Update(ctx context.Context, ref string, p sandbox.UpdateParams) (*sandbox.Sandbox, error)
	Extend(ctx context.Context, ref string, d sandbox.Duration) (*sandbox.Sandbox, error)
	Stop(ctx context.Context, ref string) (*sandbox.Sandbox, error)
	Resume(ctx context.Context, ref string, p sandbox.ResumeParams) (*sandbox.Sandbox, error)
	Fork(ctx context.Context, ref string, p sandbox.ForkParams) (*sandbox.Fork, error)
	DeleteWith(ctx context.Context, ref string, p sandbox.DeleteParams) error

	Sessions(ctx context.Context, ref string, p sandbox.SessionParams) (*sandbox.Page[sandbox.Session], error)
	ListSessions(ctx context.Context, p sandbox.SessionListParams) (*sandbox.Page[sandbox.Session], error)
	GetSession(ctx context.Context, id string) (*sandbox.Session, error)

	CreateSnapshot(ctx context.Context, ref string, p sandbox.SnapshotParams) (*sandbox.Snapshot, error)
	GetSnapshot(ctx context.Context, ref string) (*sandbox.Snapshot, error)
	ListSnapshots(ctx context.Context, p sandbox.SnapshotListParams) (*sandbox.Page[sandbox.Snapshot], error)
	SnapshotTree(ctx context.Context, ref string, p sandbox.SnapshotTreeParams) (*sandbox.SnapshotTree, error)
	DeleteSnapshot(ctx context.Context, ref string, p sandbox.DeleteSnapshotParams) (*sandbox.Snapshot, error)

	CreateDrive(ctx context.Context, p sandbox.CreateDriveParams) (*sandbox.Drive, error)
	GetDrive(ctx context.Context, ref string) (*sandbox.Drive, error)
	ListDrives(ctx context.Context, p sandbox.DriveListParams) (*sandbox.Page[sandbox.Drive], error)
	DeleteDrive(ctx context.Context, ref string) error

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
	Mkdir(ctx context.Context, ref, path string, p sandbox.MkdirParams) error
	Extract(ctx context.Context, ref, dir string, r io.Reader, p sandbox.ExtractParams) error
}

// Accounts has the methods that the facade needs of the account service.
// accountd.Service describes them.
type Accounts interface {
	WhoAmI(ctx context.Context) (*account.Identity, error)
	GetTeam(ctx context.Context, id string) (*account.Team, error)
	ListTeams(ctx context.Context, p account.ListParams) (*account.Page[account.Team], error)
	GetProject(ctx context.Context, id string) (*account.Project, error)
	ListProjects(ctx context.Context, p account.ListParams) (*account.Page[account.Project], error)
	CreateProject(ctx context.Context, p account.CreateProjectParams) (*account.Project, error)
	CreateJWT(ctx context.Context, projectID string) (*account.JWT, error)
}

// Config has the dependencies of the facade.
type Config struct {
	Sandboxes Sandboxes
	Accounts  Accounts
	// HasImage reports whether the image store has an image with exactly that
	// reference.
	HasImage func(ctx context.Context, reference string) (bool, error)
	// Sign signs a short text for the URL of a terminal, and Open returns the text.
	Sign func(purpose string, text []byte) string
	Open func(purpose, signed string) ([]byte, error)
	// PublicURL is the public URL of the daemon, without a slash at its end. Empty
	// means the URL of each request.
	PublicURL string
	// Gateway returns the URL at which the sender of a request reaches the daemon's AI
	// gateway. Errors: not_found (the gateway is off), invalid (the sender cannot
	// reach it). Nil: the URL is unknown.
	Gateway func(r *http.Request) (string, error)
	// MaxTimeout is the longest time that a session may last. 0 means unknown.
	MaxTimeout time.Duration
	// HeaderDelay is how long an answer may take before its headers are sent ahead of
	// it. 0 means 20 s.
	HeaderDelay time.Duration
	Logger      *slog.Logger
}
