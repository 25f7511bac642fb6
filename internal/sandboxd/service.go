package sandboxd

import (
	"context"
	"io"
	"net"

	"github.com/cayhq/cay/sandbox"
)

// The client and the engine are the two implementations of the contract.
var (
	_ Service = (*sandbox.Client)(nil)
	_ Service = (*Engine)(nil)
)

// Service is everything that can be done with sandboxes. The engine implements
// it on a Runtime, *sandbox.Client over HTTP; sandboxtest holds both to the same
// behaviour. Errors are *cay.Error; every method can return unauthenticated,
// permission_denied and, where it takes a ref, not_found.
//
// ref is a sandbox's id or its name in the caller's project, or the id of one of
// its sessions. Then the call is about that session alone: it resumes nothing, and
// returns sandbox_stopped once that has ended, also while a later one runs. All the
// same, Get, Sessions and Flows return what is of the sandbox, and Stop returns
// without having stopped anything.
type Service interface {
	// Create makes a sandbox and returns when it answers commands. Errors:
	// invalid, already_exists (name), not_found (image), quota_exceeded,
	// no_space, unavailable.
	Create(ctx context.Context, p sandbox.CreateParams) (*sandbox.Sandbox, error)
	Get(ctx context.Context, ref string) (*sandbox.Sandbox, error)
	List(ctx context.Context, p sandbox.ListParams) (*sandbox.Page[sandbox.Sandbox], error)
	// WatchSandboxes reports which sandboxes are new, changed or gone, from when it
	// returns until it is closed or ctx ends. Errors: invalid, not_found (project),
	// quota_exceeded (too many of the team watch).
	WatchSandboxes(ctx context.Context, p sandbox.ChangeParams) (sandbox.Changes, error)
	// Update changes what p sets. Tags, annotations and ports can be changed in every
	// status; for a sandbox that has ended all else is its next session's. Errors:
	// invalid, sandbox_stopped (it is ending), conflict (it is not there yet).
	Update(ctx context.Context, ref string, p sandbox.UpdateParams) (*sandbox.Sandbox, error)
	// Extend moves the end of a running sandbox by d. Errors: invalid (beyond
	// the operator's maximum), sandbox_stopped.
	Extend(ctx context.Context, ref string, d sandbox.Duration) (*sandbox.Sandbox, error)
	// Stop ends a sandbox and returns when nothing of it runs. Stopping a
	// stopped sandbox does nothing.
	Stop(ctx context.Context, ref string) (*sandbox.Sandbox, error)
	// Pause freezes all processes. Errors: sandbox_stopped, conflict.
	Pause(ctx context.Context, ref string) (*sandbox.Sandbox, error)
	// Resume makes a sandbox run: one that is paused or hibernated goes on, a
	// persistent one that has ended is started from what was saved of it, any that has
	// ended with p.Anew; one that runs is left alone. One that is stopping, or being
	// created, is waited for. Callers at one time make one session. Errors: sandbox_stopped (not
	// persistent), not_found (its snapshot is gone), not_supported (hibernated by another build), quota_exceeded,
	// no_space, unavailable.
	Resume(ctx context.Context, ref string, p sandbox.ResumeParams) (*sandbox.Sandbox, error)
	// DeleteWith stops a sandbox and forgets it, with its automatic snapshots, unless
	// they are to be kept or other sandboxes start from them.
	DeleteWith(ctx context.Context, ref string, p sandbox.DeleteParams) error
	Stats(ctx context.Context, ref string) (*sandbox.Stats, error)
	// WatchStats reads the counters every two seconds, once for all who watch. Errors:
	// sandbox_stopped, conflict, quota_exceeded (too many watch).
	WatchStats(ctx context.Context, ref string) (sandbox.StatsWatch, error)

	// Flows returns one page of the flow log, oldest first, of a sandbox in any
	// status. Errors: invalid.
	Flows(ctx context.Context, ref string, p sandbox.FlowParams) (*sandbox.Page[sandbox.Flow], error)
	// WatchFlows reports the records after p.After, and then each as it is made,
	// until the sandbox ends. It is no activity. Errors: invalid, quota_exceeded
	// (too many watch).
	WatchFlows(ctx context.Context, ref string, p sandbox.FlowParams) (sandbox.FlowWatch, error)

	// CreateLink makes a link to a private port's preview. Errors: invalid,
	// not_found (the port is not declared), conflict (it is public).
	CreateLink(ctx context.Context, ref string, port int, p sandbox.LinkParams) (*sandbox.Link, error)
	// DialPort connects to a TCP port a program in the sandbox listens on,
	// declared or not. ctx bounds the dialling. The connection has CloseWrite and
	// ends with the sandbox, which is not idle while it is open. Errors: invalid,
	// unavailable (nothing listens), sandbox_stopped, conflict (paused),
	// quota_exceeded.
	DialPort(ctx context.Context, ref string, port int) (net.Conn, error)

	Outbounds
	Commands
	Files
	Snapshots
	Drives
	Pools
}

// Outbounds lets a program outside handle connections that programs in a sandbox open,
// where Network.Handled says so.
type Outbounds interface {
	// HandleOutbound makes the caller the egress handler of a running sandbox, in place
	// of the one before, until its session or ctx ends. Errors: sandbox_stopped,
	// conflict (it is not there yet).
	HandleOutbound(ctx context.Context, ref string) (sandbox.OutboundWatch, error)
	// TakeOutbound takes over an offered connection, by HandleRaw or HandlePlain.
	// Errors: invalid, not_found (it has ended, or was answered), unavailable (its TLS
	// cannot be opened), sandbox_stopped.
	TakeOutbound(ctx context.Context, ref, id string, as sandbox.Handling) (net.Conn, error)
	// DeclineOutbound answers an offered connection by HandlePass or HandleRefuse.
	// Errors: invalid, not_found (it has ended, or was answered), sandbox_stopped.
	DeclineOutbound(ctx context.Context, ref, id string, as sandbox.Handling) error
	// Authority returns the certificate, as PEM, of the authority that opened TLS is
	// signed by. Errors: not_supported.
	Authority(ctx context.Context) ([]byte, error)
}

// Snapshots keeps what sandboxes are, beyond their machines, and copies them.
type Snapshots interface {
	// Hibernate saves a running or paused sandbox with its processes and frees
	// what it used of memory and CPU. Hibernating a hibernated one does nothing.
	// Errors: sandbox_stopped, conflict, no_space, quota_exceeded, not_supported.
	Hibernate(ctx context.Context, ref string) (*sandbox.Sandbox, error)
	// Fork copies a sandbox, or starts several from a snapshot's id ("snap_...").
	// Errors: those of Create, conflict, not_supported.
	Fork(ctx context.Context, ref string, p sandbox.ForkParams) (*sandbox.Fork, error)
	// Sessions lists the sessions of a sandbox, newest first unless p says otherwise.
	// Errors: invalid.
	Sessions(ctx context.Context, ref string, p sandbox.SessionParams) (*sandbox.Page[sandbox.Session], error)

	// ListSessions lists the sessions of many sandboxes. Errors: invalid.
	ListSessions(ctx context.Context, p sandbox.SessionListParams) (*sandbox.Page[sandbox.Session], error)
	// GetSession returns a session by its id, ended or not, while its sandbox is there
	// and it is one of that's last 1000.
	GetSession(ctx context.Context, id string) (*sandbox.Session, error)

	// CreateSnapshot saves a sandbox that runs or is paused, which goes on
	// meanwhile but for moments; then the sandbox's next session starts from it.
	// One that has ended is not started for it. Errors: invalid, already_exists
	// (name), sandbox_stopped, conflict, quota_exceeded, no_space, not_supported.
	CreateSnapshot(ctx context.Context, ref string, p sandbox.SnapshotParams) (*sandbox.Snapshot, error)
	// GetSnapshot, as all that take one, takes the id or the name of a snapshot.
	GetSnapshot(ctx context.Context, ref string) (*sandbox.Snapshot, error)
	ListSnapshots(ctx context.Context, p sandbox.SnapshotListParams) (*sandbox.Page[sandbox.Snapshot], error)
	SnapshotTree(ctx context.Context, ref string, p sandbox.SnapshotTreeParams) (*sandbox.SnapshotTree, error)
	// DeleteSnapshot removes the files of a snapshot. What is starting from it
	// goes on. Deleting a deleted one does nothing. Errors: conflict (the next
	// session of a persistent sandbox is to start from it, and not Force).
	DeleteSnapshot(ctx context.Context, ref string, p sandbox.DeleteSnapshotParams) (*sandbox.Snapshot, error)
	// PruneSnapshots deletes the automatic snapshots that no persistent sandbox starts
	// from the next time. Errors: invalid.
	PruneSnapshots(ctx context.Context, p sandbox.PruneSnapshotsParams) (*sandbox.SnapshotPrune, error)
	// ExportSnapshot reads a snapshot as one file, for ImportSnapshot. Errors:
	// not_found (also of a deleted one), conflict (damaged).
	ExportSnapshot(ctx context.Context, ref string) (io.ReadCloser, error)
	// ImportSnapshot makes a snapshot of such a file. Errors: invalid,
	// not_supported, already_exists, too_large, no_space, quota_exceeded,
	// permission_denied (Memory, and the token is not an operator's).
	ImportSnapshot(ctx context.Context, r io.Reader, p sandbox.ImportParams) (*sandbox.Snapshot, error)
}

// Drives keeps file systems that sandboxes mount.
type Drives interface {
	// CreateDrive makes a drive. Errors: invalid, already_exists, quota_exceeded,
	// no_space, not_supported (the daemon keeps none); conflict (From is changing
	// hands, or what it holds is not there).
	CreateDrive(ctx context.Context, p sandbox.CreateDriveParams) (*sandbox.Drive, error)
	GetDrive(ctx context.Context, ref string) (*sandbox.Drive, error)
	ListDrives(ctx context.Context, p sandbox.DriveListParams) (*sandbox.Page[sandbox.Drive], error)
	// SaveDrive saves what a drive holds now, without waiting for the sandbox that
	// has it to stop: what its programs have written, not what they have yet to.
	// One that no sandbox has is saved already, one of a sandbox that is stopping
	// is once it has stopped. Errors: no_space, too_large, quota_exceeded (only if
	// it holds more than before), conflict (it is changing hands, or the sandbox
	// has unmounted it).
	SaveDrive(ctx context.Context, ref string) (*sandbox.Drive, error)
	// DeleteDrive removes a drive and what it holds. Those that read it go on.
	// Errors: conflict (a sandbox has it read-write, or is hibernated with it).
	DeleteDrive(ctx context.Context, ref string) error
}

// Pools tells of booted machines that wait.
type Pools interface {
	// Pools lists the daemon's pools. Errors: permission_denied unless the token is
	// an operator's.
	Pools(ctx context.Context) ([]sandbox.Pool, error)
}

// Commands runs programs in a sandbox. Those to run and to wait for resume a
// persistent sandbox that does not run, see State; all return sandbox_stopped
// when it cannot be, and not_found for an unknown command.
//
// GetCommand, ListCommands, Wait and Output also answer for sessions that have
// ended, from what was kept of their commands, and resume nothing for that: of the
// session ref is, or of all of the sandbox it names, which a guest that runs is
// asked before. A command that ran when its session ended has the exit code 137.
// Where nothing was kept they return sandbox_stopped.
type Commands interface {
	// Start starts a command and returns at once. Errors: invalid,
	// executable_not_found, quota_exceeded (too many at once).
	Start(ctx context.Context, ref string, p sandbox.CommandParams) (*sandbox.Command, error)
	// Exec is Start and Output in one round trip: the first event carries the
	// command. Closing the Output early leaves the command running.
	Exec(ctx context.Context, ref string, p sandbox.CommandParams) (sandbox.Output, error)
	GetCommand(ctx context.Context, ref, id string) (*sandbox.Command, error)
	// ListCommands lists running commands and the newest finished ones, newest first,
	// of the sandbox's newest session if ref is no session.
	ListCommands(ctx context.Context, ref string) ([]sandbox.Command, error)
	// WatchCommands reports the commands of a sandbox that runs, as they begin and end.
	// It resumes nothing. Errors: conflict (it does not run), quota_exceeded (too many watch).
	WatchCommands(ctx context.Context, ref string) (sandbox.CommandWatch, error)
	// Wait returns when the command has exited.
	Wait(ctx context.Context, ref, id string) (*sandbox.Command, error)
	// Signal signals the command's process group. Errors: conflict if it has exited.
	Signal(ctx context.Context, ref, id string, sig sandbox.Signal) error
	// Output reads what the command wrote, from any cursor, any number of times.
	Output(ctx context.Context, ref, id string, p sandbox.OutputParams) (sandbox.Output, error)
	// WriteStdin copies r to the command's standard input or terminal, and
	// closes it at the end of r if closeAfter (on a terminal: types end-of-file).
	// Errors: conflict if stdin was not asked for, is closed, or the command has exited.
	// After an error a Read of r may still be under way, whose data is lost.
	WriteStdin(ctx context.Context, ref, id string, r io.Reader, closeAfter bool) error
	// Resize changes the size of the command's terminal. Errors: conflict if it has none.
	Resize(ctx context.Context, ref, id string, size sandbox.WindowSize) error
}

// Files works on the files of a sandbox, and resumes a persistent one that does
// not run. All return sandbox_stopped when it cannot be, invalid for a bad path, file_not_found for a missing one.
type Files interface {
	// Stat describes a file without following a final link; with follow, its target.
	Stat(ctx context.Context, ref, path string, follow bool) (*sandbox.FileInfo, error)
	ReadDir(ctx context.Context, ref, path string, p sandbox.ReadDirParams) (*sandbox.Page[sandbox.FileInfo], error)
	// Glob lists the paths that match a pattern: * ? [a-z] {a,b} within an
	// element and ** across elements. At most 10000, else too_large.
	Glob(ctx context.Context, ref, pattern string) ([]string, error)
	// ReadFile opens a file for reading. The FileInfo is of the file as opened.
	ReadFile(ctx context.Context, ref, path string, p sandbox.ReadParams) (io.ReadCloser, *sandbox.FileInfo, error)
	// WriteFile replaces or makes a file. Errors: no_space.
	WriteFile(ctx context.Context, ref, path string, r io.Reader, p sandbox.WriteParams) (*sandbox.FileInfo, error)
	Mkdir(ctx context.Context, ref, path string, p sandbox.MkdirParams) error
	// Rename moves a file or directory, replacing an existing file.
	Rename(ctx context.Context, ref, from, to string) error
	// Copy copies a file, or a directory with all below it; to must not exist
	// or be a file to replace.
	Copy(ctx context.Context, ref, from, to string) error
	// Remove removes a file or an empty directory, or with recursive all below it.
	Remove(ctx context.Context, ref, path string, recursive bool) error
	Symlink(ctx context.Context, ref, target, path string) error
	// Chmod sets permission bits as chmod(2), at most 07777.
	Chmod(ctx context.Context, ref, path string, mode uint32) error
	// Extract unpacks an archive read from r below dir.
	Extract(ctx context.Context, ref, dir string, r io.Reader, p sandbox.ExtractParams) error
	// Archive packs a file or directory; member names are relative to its parent.
	Archive(ctx context.Context, ref, path string, format sandbox.ArchiveFormat) (io.ReadCloser, error)
	Watch(ctx context.Context, ref, path string, p sandbox.WatchParams) (sandbox.Watch, error)
}
