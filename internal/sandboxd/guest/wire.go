package guest

import (
	"time"

	"github.com/cayhq/cay/sandbox"
)

// Protocol is the version of the protocol that the guest supports, as Health reports it.
// A daemon that adopts a machine with another build's guest sends no request that the
// guest would ignore.
const Protocol = protocolMain

// The versions in which features appeared. Since protocolTimeoutSignal a guest refuses
// commands with unknown parameters; before, it ignored the parameters.
const (
	protocolTimeoutSignal = 1
	protocolContentOnly   = 1
	protocolMain          = 2
)

// Names of a header and of a trailer.
const (
	InfoHeader   = "Cay-Info"  // a FileEntry as JSON, of the file in the body
	ErrorTrailer = "Cay-Error" // an ErrorBody as JSON, if a body of unknown length ended early
)

// Bounds both sides keep.
const (
	MaxJSON       = 32 << 20 // bytes of a unary answer
	MaxPath       = 4096     // bytes of a path
	MaxStdinChunk = 64 << 10 // bytes of one stdin request
	MaxPageBytes  = 4 << 20  // names and targets of one directory page; a page ends early there
	MaxGlob       = 10000    // paths a Glob returns
	MaxGlobBytes  = 8 << 20  // bytes of paths a Glob returns
	// MaxArgvShown is how many bytes of argv a command's description keeps; the rest is
	// cut off. Start and Exec return all of argv.
	MaxArgvShown = 4096
)

// StartRequest starts a command. Repeating it with the same ID returns the same command.
type StartRequest struct {
	ID     string                `json:"id"`
	Params sandbox.CommandParams `json:"params"`
}

// ErrorBody is an error on the wire.
type ErrorBody struct {
	Code       string `json:"code"`
	Message    string `json:"message"`
	Hint       string `json:"hint,omitempty"`
	RetryAfter int64  `json:"retry_after_ms,omitempty"`
}

// FileEntry is a sandbox.FileInfo on the wire. Names are exact bytes.
type FileEntry struct {
	Path    []byte           `json:"path,omitempty"` // absolute; left out in a DirPage
	Name    []byte           `json:"name"`
	Type    sandbox.FileType `json:"type"`
	Size    int64            `json:"size"`
	Mode    uint32           `json:"mode"`
	UID     uint32           `json:"uid"`
	GID     uint32           `json:"gid"`
	ModTime time.Time        `json:"mtime"`
	Target  []byte           `json:"target,omitempty"`
}

// DirPage is a page of a directory.
type DirPage struct {
	Dir     []byte      `json:"dir"` // absolute
	Entries []FileEntry `json:"entries"`
	Next    string      `json:"next,omitempty"`
}

// GlobResult lists the paths a pattern matches.
type GlobResult struct {
	Paths [][]byte `json:"paths"`
}

// FileEvent is a sandbox.FileEvent on the wire.
type FileEvent struct {
	Op   sandbox.FileOp `json:"op"`
	Path []byte         `json:"path,omitempty"`
	From []byte         `json:"from,omitempty"`
}

// Health is the state of a guest, as the guest reports it.
type Health struct {
	Sandbox   string           `json:"sandbox,omitempty"` // as in Identity
	BootID    string           `json:"boot_id"`           // as in Identity
	Protocol  int              `json:"protocol"`          // see the constant
	Uptime    sandbox.Duration `json:"uptime_ms"`         // of the agent
	Processes int              `json:"processes"`         // in the guest
	Commands  int              `json:"commands"`          // running
	DiskBytes int64            `json:"disk_bytes"`
	Trust     Trust            `json:"trust,omitzero"`
	// Quiesced says that it starts no commands; see Client.Quiesce.
	Quiesced bool `json:"quiesced,omitempty"`
	// Problem says which parts of the set-up failed, for people: the machine starts all
	// the same.
	Problem string `json:"problem,omitempty"`
}
