package sandboxd

import (
	"context"
	"io"
	"net"

	"github.com/cayhq/cay/sandbox"
)

// The client and the engine both implement Service.
var (
	_ Service = (*sandbox.Client)(nil)
	_ Service = (*Engine)(nil)
)

// Service is the interface of sandboxes. The engine implements it on a Runtime,
// *sandbox.Client over HTTP; sandboxtest holds both to the same behaviour. Errors are
// *cay.Error; every method can return unauthenticated, permission_denied and, if it takes
// a ref, not_found.
//
// ref is a sandbox's id or its name in the caller's project, or the id of one of its
// sessions. A call with a session's id is restricted to that session: it resumes nothing,
// and returns sandbox_stopped once the session has ended, even if a later session runs.
// As exceptions, Get, Sessions and Flows return the sandbox's data, and Stop returns
// without stopping anything.
type Service interface {
	// Create creates a sandbox and returns when it answers commands. Errors: invalid,
	// source_unavailable, already_exists (name), not_found (image), quota_exceeded, no_space,
	// unavailable.
	Create(ctx context.Context, p sandbox.CreateParams) (*sandbox.Sandbox, error)
	Get(ctx context.Context, ref string) (*sandbox.Sandbox, error)
	List(ctx context.Context, p sandbox.ListParams) (*sandbox.Page[sandbox.Sandbox], error)
	// WatchSandboxes reports which sandboxes are new, changed or gone, from its return
	// until the watch is closed or ctx ends. Errors: invalid, not_found (project),
	// quota_exceeded (the team has too many watches).
	WatchSandboxes(ctx context.Context, p sandbox.ChangeParams) (sandbox.Changes, error)
	// Update changes the fields that p sets. Tags, annotations and ports can be changed
	// in every status. Other changes to a sandbox that has ended take effect in its next
	// session. Errors: invalid, sandbox_stopped (it is ending), conflict (it is being
	// created).
	Update(ctx context.Context, ref string, p sandbox.UpdateParams) (*sandbox.Sandbox, error)
	// Extend moves the end of a running sandbox by d. Errors: invalid (beyond
	// the operator's maximum), sandbox_stopped.
	Extend(ctx context.Context, ref string, d sandbox.Duration) (*sandbox.Sandbox, error)
	// Stop stops a sandbox and returns when nothing of it runs. Stopping a stopped
	// sandbox does nothing.
	Stop(ctx context.Context, ref string) (*sandbox.Sandbox, error)
	// Pause freezes all processes. Errors: sandbox_stopped, conflict.
	Pause(ctx context.Context, ref string) (*sandbox.Sandbox, error)
	// Resume makes a sandbox run. A paused or hibernated sandbox goes on; a persistent
	// sandbox that has ended is started from its last saved files; any other sandbox that
	// has ended is started with p.Fresh only. A running sandbox is left alone. Resume
	// waits for a sandbox that is stopping or being created. Concurrent calls start one
	// session. Errors: sandbox_stopped (not persistent), not_found (its snapshot is
	// gone), not_supported (a snapshot's memory that cannot go on), quota_exceeded, no_space,
	// unavailable.
	Resume(ctx context.Context, ref string, p sandbox.ResumeParams) (*sandbox.Sandbox, error)
	// DeleteWith stops a sandbox and deletes it with its automatic snapshots, except
	// snapshots that other sandboxes start from, or all if p keeps them.
	DeleteWith(ctx context.Context, ref string, p sandbox.DeleteParams) error
	Stats(ctx context.Context, ref string) (*sandbox.Stats, error)
	// WatchStats reads the counters every 2 s, once for all watches. Errors:
	// sandbox_stopped, conflict, quota_exceeded (too many watches).
	WatchStats(ctx context.Context, ref string) (sandbox.StatsWatch, error)

	// Flows returns one page of the flow log, oldest first, of a sandbox in any
	// status. Errors: invalid.
	Flows(ctx context.Context, ref string, p sandbox.FlowParams) (*sandbox.Page[sandbox.Flow], error)
	// WatchFlows reports the records after p.After, and then each new record, until the
	// sandbox ends. A watch does not count as activity. Errors: invalid, quota_exceeded
	// (too many watches).
	WatchFlows(ctx context.Context, ref string, p sandbox.FlowParams) (sandbox.FlowWatch, error)

	// CreateLink creates a link to a private port's preview. Errors: invalid, not_found
	// (the port is not declared), conflict (the port is public).
	CreateLink(ctx context.Context, ref string, port int, p sandbox.LinkParams) (*sandbox.Link, error)
	// DialPort connects to a TCP port that a program in the sandbox listens on, declared
	// or not. ctx bounds the dialing. The connection has CloseWrite and ends with the
	// sandbox. The sandbox is not idle while the connection is open. Errors: invalid,
	// unavailable (nothing listens), sandbox_stopped, conflict (paused), quota_exceeded.
	DialPort(ctx context.Context, ref string, port int) (net.Conn, error)

	Outbounds
	Commands
	Files
	Snapshots
	Drives
	Pools
}

// Outbounds lets a program outside a sandbox handle connections that programs in the
// sandbox open, for the rules of Network.Handled.
type Outbounds interface {
	// HandleOutbound makes the caller the egress handler of a running sandbox, replacing
	// an earlier one, until the session or ctx ends. Errors: sandbox_stopped, conflict
	// (it is being created).
	HandleOutbound(ctx context.Context, ref string) (sandbox.OutboundWatch, error)
	// TakeOutbound takes over an offered connection, by HandleRaw or HandlePlain. Errors:
	// invalid, not_found (the connection has ended, or was answered), unavailable (its
	// TLS cannot be opened), sandbox_stopped.
	TakeOutbound(ctx context.Context, ref, id string, as sandbox.Handling) (net.Conn, error)
	// DeclineOutbound answers an offered connection with HandlePass or HandleRefuse.
	// Errors: invalid, not_found (the connection has ended, or was answered),
	// sandbox_stopped.
	DeclineOutbound(ctx context.Context, ref, id string, as sandbox.Handling) error
	// Authority returns the certificate, as PEM, of the authority that signs the
	// certificates of opened TLS. Errors: not_supported.
	Authority(ctx context.Context) ([]byte, error)
}

// Snapshots saves, hibernates and copies sandboxes.
type Snapshots interface {
	// Hibernate saves a running or paused sandbox with its processes and frees its memory
	// and CPU. Hibernating a hibernated sandbox does nothing. Errors: sandbox_stopped,
	// conflict, no_space, quota_exceeded, not_supported.
	Hibernate(ctx context.Context, ref string) (*sandbox.Sandbox, error)
	// Fork copies a sandbox, or starts several from a snapshot's id ("snap_...").
	// Errors: those of Create, conflict, not_supported.
	Fork(ctx context.Context, ref string, p sandbox.ForkParams) (*sandbox.Fork, error)
	// Sessions lists the sessions of a sandbox, newest first unless p says otherwise.
	// Errors: invalid.
	Sessions(ctx context.Context, ref string, p sandbox.SessionParams) (*sandbox.Page[sandbox.Session], error)

	// ListSessions lists the sessions of many sandboxes. Errors: invalid.
	ListSessions(ctx context.Context, p sandbox.SessionListParams) (*sandbox.Page[sandbox.Session], error)
	// GetSession returns a session by its id, ended or not. It exists as long as its
	// sandbox does, and is among the sandbox's last 1000. Errors: not_found.
	GetSession(ctx context.Context, id string) (*sandbox.Session, error)

	// CreateSnapshot saves a running or paused sandbox, which goes on meanwhile except
	// for short pauses. The sandbox's next session then starts from the snapshot. A
	// sandbox that has ended is not resumed for this. Errors: invalid, already_exists
	// (name), sandbox_stopped, conflict, quota_exceeded, no_space, not_supported.
	CreateSnapshot(ctx context.Context, ref string, p sandbox.SnapshotParams) (*sandbox.Snapshot, error)
	// GetSnapshot returns a snapshot. As in all methods that take one, ref is its id or
	// its name.
	GetSnapshot(ctx context.Context, ref string) (*sandbox.Snapshot, error)
	ListSnapshots(ctx context.Context, p sandbox.SnapshotListParams) (*sandbox.Page[sandbox.Snapshot], error)
	SnapshotTree(ctx context.Context, ref string, p sandbox.SnapshotTreeParams) (*sandbox.SnapshotTree, error)
	// DeleteSnapshot removes the files of a snapshot. Sandboxes that are starting from it
	// are not disturbed. Deleting a deleted snapshot does nothing. Errors: conflict (the
	// next session of a persistent sandbox is to start from it, and p.Force is not set).
	DeleteSnapshot(ctx context.Context, ref string, p sandbox.DeleteSnapshotParams) (*sandbox.Snapshot, error)
	// PruneSnapshots deletes the automatic snapshots that are not the start of a
	// persistent sandbox's next session. Errors: invalid.
	PruneSnapshots(ctx context.Context, p sandbox.PruneSnapshotsParams) (*sandbox.SnapshotPrune, error)
	// ExportSnapshot reads a snapshot as one file, for ImportSnapshot. Errors: not_found
	// (also if it was deleted), conflict (damaged).
	ExportSnapshot(ctx context.Context, ref string) (io.ReadCloser, error)
	// ImportSnapshot creates a snapshot from an exported file. Errors: invalid,
	// not_supported, already_exists, too_large, no_space, quota_exceeded,
	// permission_denied (Memory is set, and the token is not an operator's).
	ImportSnapshot(ctx context.Context, r io.Reader, p sandbox.ImportParams) (*sandbox.Snapshot, error)
}

// Drives manages file systems that sandboxes mount.
type Drives interface {
	// CreateDrive creates a drive. Errors: invalid, already_exists, quota_exceeded,
	// no_space, not_supported (the daemon has no store of drives); conflict (From is
	// changing hands, or its content is missing).
	CreateDrive(ctx context.Context, p sandbox.CreateDriveParams) (*sandbox.Drive, error)
	GetDrive(ctx context.Context, ref string) (*sandbox.Drive, error)
	ListDrives(ctx context.Context, p sandbox.DriveListParams) (*sandbox.Page[sandbox.Drive], error)
	// SaveDrive saves the current content of a drive without waiting for its sandbox to
	// stop: everything that programs have written so far. A drive without a sandbox is
	// saved already. SaveDrive waits for a stopping sandbox, whose stop saves the drive.
	// Errors: no_space, too_large, quota_exceeded (only if the content has grown),
	// conflict (the drive is changing hands, or the sandbox has unmounted it).
	SaveDrive(ctx context.Context, ref string) (*sandbox.Drive, error)
	// DeleteDrive deletes a drive and its content. Sandboxes that read it are not
	// disturbed. Errors: conflict (a sandbox has it read-write, or is hibernated with
	// it).
	DeleteDrive(ctx context.Context, ref string) error
}

// Pools shows the pools of booted machines that wait.
type Pools interface {
	// Pools lists the daemon's pools. Errors: permission_denied unless the token is
	// an operator's.
	Pools(ctx context.Context) ([]sandbox.Pool, error)
}

// Commands runs programs in a sandbox. Methods that run a command or wait for one resume
// a persistent sandbox that does not run, see State. All return sandbox_stopped when it
// cannot be resumed, and not_found for an unknown command.
//
// GetCommand, ListCommands, Wait and Output also answer from the kept commands of ended
// sessions, and resume nothing for that. A running guest is asked first; then the kept
// commands of the session ref, or of all sessions of the sandbox ref, are searched. A
// command that was running when its session ended has the exit code 137. The methods
// return sandbox_stopped if no commands were kept.
type Commands interface {
	// Start starts a command and returns at once. Errors: invalid, executable_not_found,
	// quota_exceeded (too many commands at once).
	Start(ctx context.Context, ref string, p sandbox.CommandParams) (*sandbox.Command, error)
	// Exec is Start and Output in one round trip: the first event carries the
	// command. Closing the Output early leaves the command running.
	Exec(ctx context.Context, ref string, p sandbox.CommandParams) (sandbox.Output, error)
	GetCommand(ctx context.Context, ref, id string) (*sandbox.Command, error)
	// ListCommands lists running commands and the newest finished ones, newest first, of
	// the session ref, or of the newest session of the sandbox ref.
	ListCommands(ctx context.Context, ref string) ([]sandbox.Command, error)
	// WatchCommands reports the starts and exits of commands in a running sandbox. It
	// resumes nothing. Errors: conflict (the sandbox does not run), quota_exceeded (too
	// many watches).
	WatchCommands(ctx context.Context, ref string) (sandbox.CommandWatch, error)
	// Wait returns when the command has exited.
	Wait(ctx context.Context, ref, id string) (*sandbox.Command, error)
	// Signal signals the command's process group. Errors: conflict if it has exited.
	Signal(ctx context.Context, ref, id string, sig sandbox.Signal) error
	// Output reads the output of the command, from any cursor, any number of times.
	Output(ctx context.Context, ref, id string, p sandbox.OutputParams) (sandbox.Output, error)
	// WriteStdin copies r to the command's standard input or terminal, and closes it at
	// the end of r if closeAfter is set (on a terminal: types end-of-file). Errors:
	// conflict if the command has exited, or its stdin was not requested or is closed.
	// After an error, a Read of r may still be under way; its data is lost.
	WriteStdin(ctx context.Context, ref, id string, r io.Reader, closeAfter bool) error
	// Resize changes the size of the command's terminal. Errors: conflict if it has no
	// terminal.
	Resize(ctx context.Context, ref, id string, size sandbox.WindowSize) error
}

// Files works on the files of a sandbox, and resumes a persistent sandbox that does not
// run. All methods return sandbox_stopped when it cannot be resumed, invalid for a bad
// path, file_not_found for a missing file.
type Files interface {
	// Stat describes a file without following a final link; with follow, its target.
	Stat(ctx context.Context, ref, path string, follow bool) (*sandbox.FileInfo, error)
	ReadDir(ctx context.Context, ref, path string, p sandbox.ReadDirParams) (*sandbox.Page[sandbox.FileInfo], error)
	// Glob lists the paths that match a pattern: * ? [a-z] {a,b} within an
	// element and ** across elements. At most 10000, else too_large.
	Glob(ctx context.Context, ref, pattern string) ([]string, error)
	// ReadFile opens a file for reading. The FileInfo describes the file as opened.
	ReadFile(ctx context.Context, ref, path string, p sandbox.ReadParams) (io.ReadCloser, *sandbox.FileInfo, error)
	// WriteFile replaces or creates a file. Errors: no_space.
	WriteFile(ctx context.Context, ref, path string, r io.Reader, p sandbox.WriteParams) (*sandbox.FileInfo, error)
	Mkdir(ctx context.Context, ref, path string, p sandbox.MkdirParams) error
	// Rename moves a file or directory, replacing an existing file.
	Rename(ctx context.Context, ref, from, to string) error
	// Copy copies a file, or a directory with everything below it. to must not exist, or
	// be a file, which is replaced.
	Copy(ctx context.Context, ref, from, to string) error
	// Remove removes a file or an empty directory; with recursive, everything below a
	// directory, too.
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
