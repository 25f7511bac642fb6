package sandboxd

import (
	"context"
	"io"
	"net"

	"github.com/cayhq/cay/sandbox"
)

// Service is everything that can be done with sandboxes. The engine implements
// it on a Runtime, *sandbox.Client over HTTP; sandboxtest holds both to the same
// behaviour. ref is a sandbox's id or its name in the caller's project. Errors
// are *cay.Error; every method can return unauthenticated, permission_denied
// and, where it takes a ref, not_found.
type Service interface {
	// Create makes a sandbox and returns when it answers commands. Errors:
	// invalid, already_exists (name), not_found (image), quota_exceeded,
	// no_space, unavailable.
	Create(ctx context.Context, p sandbox.CreateParams) (*sandbox.Sandbox, error)
	Get(ctx context.Context, ref string) (*sandbox.Sandbox, error)
	List(ctx context.Context, p sandbox.ListParams) (*sandbox.Page[sandbox.Sandbox], error)
	// Update changes what p sets. Tags and ports can be changed in every status.
	// Errors: invalid, sandbox_stopped and conflict (network or idle timeout of
	// one that has ended, or is not there yet).
	Update(ctx context.Context, ref string, p sandbox.UpdateParams) (*sandbox.Sandbox, error)
	// Extend moves the end of a running sandbox by d. Errors: invalid (beyond
	// the operator's maximum), sandbox_stopped.
	Extend(ctx context.Context, ref string, d sandbox.Duration) (*sandbox.Sandbox, error)
	// Stop ends a sandbox and returns when nothing of it runs. Stopping a
	// stopped sandbox does nothing.
	Stop(ctx context.Context, ref string) (*sandbox.Sandbox, error)
	// Pause freezes all processes; Resume lets them go on. Errors: sandbox_stopped, conflict.
	Pause(ctx context.Context, ref string) (*sandbox.Sandbox, error)
	Resume(ctx context.Context, ref string) (*sandbox.Sandbox, error)
	// Delete stops a sandbox and forgets it.
	Delete(ctx context.Context, ref string) error
	Stats(ctx context.Context, ref string) (*sandbox.Stats, error)

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

	Commands
	Files
}

// Commands runs programs in a sandbox. All return sandbox_stopped when it does
// not run, and not_found for an unknown command.
type Commands interface {
	// Start starts a command and returns at once. Errors: invalid,
	// executable_not_found, quota_exceeded (too many at once).
	Start(ctx context.Context, ref string, p sandbox.CommandParams) (*sandbox.Command, error)
	// Exec is Start and Output in one round trip: the first event carries the
	// command. Closing the Output early leaves the command running.
	Exec(ctx context.Context, ref string, p sandbox.CommandParams) (sandbox.Output, error)
	GetCommand(ctx context.Context, ref, id string) (*sandbox.Command, error)
	// ListCommands lists running commands and the newest finished ones, newest first.
	ListCommands(ctx context.Context, ref string) ([]sandbox.Command, error)
	// Wait returns when the command has exited.
	Wait(ctx context.Context, ref, id string) (*sandbox.Command, error)
	// Signal signals the command's process group. Errors: conflict if it has exited.
	Signal(ctx context.Context, ref, id string, sig sandbox.Signal) error
	// Output reads what the command wrote, from any cursor, any number of times.
	Output(ctx context.Context, ref, id string, p sandbox.OutputParams) (sandbox.Output, error)
	// WriteStdin copies r to the command's standard input or terminal, and
	// closes it at the end of r if closeAfter (on a terminal: types end-of-file).
	// Errors: conflict if stdin was not asked for, is closed, or the command has exited.
	WriteStdin(ctx context.Context, ref, id string, r io.Reader, closeAfter bool) error
	// Resize changes the size of the command's terminal. Errors: conflict if it has none.
	Resize(ctx context.Context, ref, id string, size sandbox.WindowSize) error
}

// Files works on the files of a sandbox. All return sandbox_stopped when it
// does not run, invalid for a bad path, file_not_found for a missing one.
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
