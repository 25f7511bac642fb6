package sandbox

import (
	"io"
	"time"
)

// CommandParams describes a program to run in a sandbox.
type CommandParams struct {
	// Argv is the program and its arguments: 1 to 4096 strings of at most 131071
	// bytes, 1 MiB together. A name without a slash is looked up in PATH.
	Argv []string `json:"argv"`
	// Env is added to the sandbox's own.
	Env map[string]string `json:"env,omitempty"`
	// WorkDir is absolute, or relative to the sandbox's. Empty means the sandbox's.
	WorkDir string `json:"workdir,omitempty"`
	// User is a name or a numeric id in the guest. Empty means the sandbox's.
	User string `json:"user,omitempty"`
	// Sudo runs the command as root, with SUDO_USER set to User.
	Sudo bool `json:"sudo,omitempty"`
	// Timeout is how long the command may run: then its process group gets SIGTERM,
	// and 5 s later SIGKILL. At least 100 ms; 0 means no limit. Time in which the
	// sandbox stood still does not count, to within a fiftieth of it or 5 s,
	// whichever is less.
	Timeout Duration `json:"timeout_ms,omitempty"`
	// TimeoutSignal is sent at Timeout instead of SIGTERM, and the exit code is
	// then the program's own. 0 means SIGTERM, and an exit code of 124.
	TimeoutSignal Signal `json:"timeout_signal,omitempty"`
	// Stdin keeps standard input open for WriteStdin. Otherwise it is empty.
	Stdin bool `json:"stdin,omitempty"`
	// PTY runs the command on a terminal of that size; stdout and stderr are one stream then.
	PTY *WindowSize `json:"pty,omitempty"`
	// Main marks the program that the sandbox is for: the command line of process 1 in the
	// sandbox names the program then, as an init of docker's does. It changes nothing else.
	// A sandbox that an earlier version of cay started shows nothing.
	Main bool `json:"main,omitempty"`
	// IdempotencyKey makes repeating this call return the first call's command, for
	// as long as the sandbox's session lasts and keeps the command's record. Sent
	// as the Idempotency-Key header; at most 255 characters.
	IdempotencyKey string `json:"-"`
}

// WindowSize is a terminal's size in characters: 1 to 10000 each.
type WindowSize struct {
	Cols uint16 `json:"cols"`
	Rows uint16 `json:"rows"`
}

// Command is a program that was started in a sandbox.
type Command struct {
	ID        string    `json:"id"` // "cmd_" and 20 characters
	SandboxID string    `json:"sandbox_id"`
	Argv      []string  `json:"argv"`
	WorkDir   string    `json:"workdir"`
	User      string    `json:"user"`
	PTY       bool      `json:"pty,omitempty"`
	PID       int       `json:"pid"` // in the guest
	StartedAt time.Time `json:"started_at"`

	// Exit is nil while the command runs.
	Exit *Exit `json:"exit,omitempty"`

	OutputStart int64 `json:"output_start"` // cursor of the oldest byte still kept
	OutputEnd   int64 `json:"output_end"`   // cursor after the newest byte
}

// Exit is how a command ended.
type Exit struct {
	// Code is the exit status; 128 + n when killed by signal n; 124 when TimedOut,
	// unless CommandParams.TimeoutSignal was given.
	Code     int       `json:"code"`
	Signal   int       `json:"signal,omitempty"` // the signal that killed it
	TimedOut bool      `json:"timed_out,omitempty"`
	At       time.Time `json:"at"`
	Duration Duration  `json:"duration_ms"` // from StartedAt to At, also if the sandbox stood still in between
}

// Stream is the stream that output was written to.
type Stream string

const (
	Stdout Stream = "stdout" // also everything a terminal shows
	Stderr Stream = "stderr" // of commands without a terminal
)

// Event is an event of a command's output stream. Exactly one of Command, Data,
// Exit is set, unless the event is only a Truncated mark.
type Event struct {
	// Command is the first event of Exec.
	Command *Command
	// Data is output, and Cursor the position of its first byte. Cursors count
	// the bytes of both streams together in the order the guest read them, so
	// Cursor + len(Data) is where to resume.
	Stream Stream
	Data   []byte
	Cursor int64
	// Time is when the guest read Data from the command, exact to 10 ms. Zero unless
	// OutputParams.Times is set, and for output that an earlier version of cay kept.
	Time time.Time
	// Truncated says that the output before Cursor is lost: it was dropped, or
	// never kept.
	Truncated bool
	// Exit is the last event.
	Exit *Exit
}

// Output is a stream of events. Next returns io.EOF after the Exit event, or, when
// not following, after the existing output. Close releases the stream at any time,
// and so does the end of the context that it was made with.
type Output interface {
	Next() (Event, error)
	io.Closer
}

// OutputParams says from where to read a command's output.
type OutputParams struct {
	Cursor int64 // 0 is the beginning; what is no longer kept is skipped with a Truncated mark
	Follow bool  // wait for more until the command exits
	Times  bool  // set Event.Time
}

// Signal is a POSIX signal number, 1 to 64, sent to the command's process group.
type Signal int
