package sandbox

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// Status is the state of a sandbox in its life cycle. internal/sandboxd/doc.go draws the
// transitions.
type Status string

const (
	Pending  Status = "pending"  // being created
	Running  Status = "running"  // answers commands
	Paused   Status = "paused"   // processes frozen, memory kept
	Stopping Status = "stopping" // being saved, if it is persistent, and torn down
	Stopped  Status = "stopped"  // ended on request, by timeout or when idle
	Failed   Status = "failed"   // never came up, or ended by a fault; see Sandbox.Reason
	// Hibernated: the sandbox's processes and memory are on disk, and it uses no memory
	// and no CPU. Resume, or the next call that needs the sandbox, wakes it.
	Hibernated Status = "hibernated"
	// Resuming: the sandbox is starting again from its saved state.
	Resuming Status = "resuming"
)

// Final reports whether a sandbox in this status has ended. A persistent sandbox in a
// final status can still be resumed.
func (s Status) Final() bool { return s == Stopped || s == Failed }

// Reason says why a sandbox left the running state.
type Reason string

const (
	ReasonRequested   Reason = "requested"       // somebody called Stop or Delete
	ReasonTimeout     Reason = "timeout"         // its timeout passed
	ReasonIdle        Reason = "idle"            // its idle timeout passed without activity
	ReasonOOM         Reason = "oom_killed"      // it used more memory than its limit
	ReasonCrashed     Reason = "runtime_crashed" // the isolation layer died
	ReasonExited      Reason = "guest_exited"    // the guest's init ended by itself
	ReasonStartFailed Reason = "start_failed"    // it never came up
	ReasonLost        Reason = "lost"            // found dead after a restart of the daemon
)

// Privileges are the privileges of root in a sandbox, in the sandbox's own kernel. None of
// them reaches the host, and none lets a packet pass the network policy.
type Privileges string

const (
	// FullPrivileges allow raw sockets, packet sockets and nftables, which dockerd needs.
	FullPrivileges Privileges = "full"
	// RestrictedPrivileges exclude these.
	RestrictedPrivileges Privileges = "restricted"
)

// Sandbox is one isolated machine.
type Sandbox struct {
	ID        string `json:"id"`   // "sbx_" and 20 characters; never reused
	Name      string `json:"name"` // unique among the project's sandboxes that were not deleted
	TeamID    string `json:"team_id"`
	ProjectID string `json:"project_id"`
	Status    Status `json:"status"`
	Reason    Reason `json:"reason,omitempty"`  // why it ended; empty before
	Message   string `json:"message,omitempty"` // a sentence for people: on Reason; while running, on how it started

	Image    string            `json:"image"`             // reference as given, or the default's name
	Digest   string            `json:"digest"`            // "sha256:..." of the image that was used
	Runtime  string            `json:"runtime,omitempty"` // "node24", "python3.13", ...
	VCPUs    float64           `json:"vcpus"`
	MemoryMB int64             `json:"memory_mb"` // MiB
	DiskMB   int64             `json:"disk_mb"`   // MiB the sandbox may write
	Env      map[string]string `json:"env,omitempty"`
	Tags     map[string]string `json:"tags,omitempty"`
	// Annotations are data that programs store with the sandbox; lists cannot be filtered
	// by them.
	Annotations map[string]string `json:"annotations,omitempty"`
	User        string            `json:"user"`    // default user of commands and files
	WorkDir     string            `json:"workdir"` // default working directory, absolute
	Network     Network           `json:"network"`
	Ports       []Port            `json:"ports,omitempty"`  // in the order they were declared
	Mounts      []Mount           `json:"mounts,omitempty"` // drives, sorted by path

	// Privileges is RestrictedPrivileges if the sandbox was created with it, else empty:
	// the sandbox has the privileges that the daemon allows.
	Privileges Privileges `json:"privileges,omitempty"`

	// Persistent says that stopping the sandbox saves its files, and that the next call
	// that needs the sandbox starts it again from the saved files.
	Persistent bool `json:"persistent"`
	// SessionID is the sandbox's newest session; a session is one run, from a start to a
	// stop.
	SessionID string `json:"session_id"`
	// SnapshotID is the snapshot that the next session starts from; empty if the next
	// session starts from the image.
	SnapshotID string `json:"snapshot_id,omitempty"`
	// SnapshotExpiration is how long the sandbox's snapshots are kept. 0 means for ever.
	SnapshotExpiration Duration   `json:"snapshot_expiration_ms"`
	Retention          *Retention `json:"retention,omitempty"` // nil: the default, see Retention

	// SaveEvery is how often the sandbox is saved while it runs. 0: only when it stops.
	SaveEvery Duration `json:"save_every_ms,omitempty"`

	Timeout     Duration   `json:"timeout_ms"`                // total allowed run time of the session, grows with Extend
	IdleTimeout Duration   `json:"idle_timeout_ms,omitempty"` // 0: never stopped for being idle
	CreatedAt   time.Time  `json:"created_at"`
	UpdatedAt   time.Time  `json:"updated_at"`
	StatusAt    time.Time  `json:"status_at"` // when Status was last changed
	StartedAt   *time.Time `json:"started_at,omitempty"`
	ExpiresAt   *time.Time `json:"expires_at,omitempty"` // only while it runs
	StoppedAt   *time.Time `json:"stopped_at,omitempty"`
	// UnresponsiveSince is set while the sandbox's agent does not answer: the sandbox is
	// overloaded, or a program in it has stopped the agent. Calls into the sandbox fail
	// with unavailable.
	UnresponsiveSince *time.Time `json:"unresponsive_since,omitempty"`

	// Next has the settings of the next session; nil means the same settings.
	Next *NextSession `json:"next,omitempty"`

	Usage Usage `json:"usage"` // of its newest session; brought up to date when read while running, final afterwards
	Total Usage `json:"total"` // of all its sessions
}

// NextSession has the changes of an update for a sandbox's next session. Nil fields are
// unchanged.
type NextSession struct {
	VCPUs    *float64          `json:"vcpus,omitempty"`
	MemoryMB *int64            `json:"memory_mb,omitempty"`
	Timeout  *Duration         `json:"timeout_ms,omitempty"` // also if this session was extended
	Env      map[string]string `json:"env,omitzero"`
	Mounts   []Mount           `json:"mounts,omitzero"`
	Runtime  *string           `json:"runtime,omitempty"`
}

// Usage is a sandbox's consumption in a session, or in all of its sessions.
type Usage struct {
	ActiveCPU    Duration `json:"active_cpu_ms"`
	WallTime     Duration `json:"wall_time_ms"`
	MemoryPeak   int64    `json:"memory_peak_bytes"`
	IngressBytes int64    `json:"ingress_bytes"` // into the sandbox, through its network
	EgressBytes  int64    `json:"egress_bytes"`  // out of the sandbox
}

// Stats is a reading of a running sandbox.
type Stats struct {
	Usage       Usage `json:"usage"`
	MemoryBytes int64 `json:"memory_bytes"` // in use now, isolation layer included
	MemoryLimit int64 `json:"memory_limit_bytes"`
	DiskBytes   int64 `json:"disk_bytes"` // written over the image
	DiskLimit   int64 `json:"disk_limit_bytes"`
	Processes   int   `json:"processes"` // in the guest
	Commands    int   `json:"commands"`  // still running
}

// CreateParams describes the sandbox to create. The zero value makes a sandbox of the
// default image with the default runtime, 2 vCPUs, 4096 MiB of memory, 8192 MiB of disk,
// a 5-minute timeout and access to all of the internet.
type CreateParams struct {
	// Name is 1 to 128 of A-Z a-z 0-9 _ -, not beginning with sbx_, ses_ or
	// snap_ as ids do, and none of sessions, snapshots, drives; generated if empty.
	Name string `json:"name,omitempty"`
	// Image is a reference in the image store, or one that the daemon can pull. Empty
	// means the default image. Not together with Runtime.
	Image string `json:"image,omitempty"`
	// Runtime is a language runtime on the default image: node22, node24,
	// node26 or python3.13. Empty means node24 when Image is empty too.
	Runtime string `json:"runtime,omitempty"`
	// VCPUs is the CPU limit: 0.1 to 64. 0 means 2.
	VCPUs float64 `json:"vcpus,omitempty"`
	// MemoryMB is the memory limit in MiB, isolation layer included: at least
	// 128. 0 means 2048 for each vCPU (at least 512).
	MemoryMB int64 `json:"memory_mb,omitempty"`
	// DiskMB is how many MiB may be written in addition to the image: at least 16. 0
	// means 8192.
	DiskMB int64 `json:"disk_mb,omitempty"`
	// Timeout ends the sandbox that long after its start: at least 1 s. 0 means 5 minutes.
	Timeout Duration `json:"timeout_ms,omitempty"`
	// IdleTimeout stops the sandbox after this time without command, file or terminal
	// activity: at least 1 s. 0 means never.
	IdleTimeout Duration `json:"idle_timeout_ms,omitempty"`
	// Env is the environment of every command; a command's own wins. At most
	// 1024 variables, 256 KiB together, in UTF-8.
	Env map[string]string `json:"env,omitempty"`
	// Tags are at most 16 labels: keys of 1 to 64, values of at most 256 characters.
	Tags map[string]string `json:"tags,omitempty"`
	// Annotations are at most 32: keys as of Tags, values of at most 1024 bytes.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Source fills the working directory before Create returns. Not together with
	// Snapshot.
	Source *Source `json:"source,omitempty"`
	// User runs commands and owns files, by default. Empty means the image's user.
	User string `json:"user,omitempty"`
	// WorkDir is absolute. Empty means the image's working directory.
	WorkDir string `json:"workdir,omitempty"`
	// Network defaults to AllowAll, or with Snapshot to the policy that the snapshot's sandbox
	// had when the snapshot was made, less the SetHeaders of its rules. Limits alone replace the
	// limits of that policy. An imported snapshot has no policy.
	Network Network `json:"network,omitzero"`
	// Ports are the ports whose previews are served: at most 64.
	Ports []PortParams `json:"ports,omitempty"`
	// Persistent saves the files of the sandbox when it stops, so that it can be resumed.
	// Nil means true if Name is set.
	Persistent *bool `json:"persistent,omitempty"`
	// Privileges are those of root in the sandbox. Empty means as much as the daemon
	// allows. A snapshot does not pass them on.
	Privileges Privileges `json:"privileges,omitempty"`
	// Snapshot is the id or the name of a snapshot to start from instead of an image. The
	// sandbox has the snapshot's image, runtime, user and working directory, and its
	// network policy, unless Network is given. Not together with Image or Runtime. The
	// processes of a memory snapshot continue, unless FilesOnly.
	Snapshot string `json:"snapshot,omitempty"`
	// FilesOnly takes the files alone from a memory snapshot.
	FilesOnly bool `json:"files_only,omitempty"`
	// Mounts are the drives to mount: at most 8, each at a path of its own.
	Mounts []Mount `json:"mounts,omitempty"`
	// SnapshotExpiration is how long snapshots of the sandbox are kept: 0 means for ever,
	// otherwise at least 1 minute. Nil means the daemon's default.
	SnapshotExpiration *Duration `json:"snapshot_expiration_ms,omitempty"`
	// Retention limits the number and the age of the sandbox's snapshots. Nil means the
	// default, see Retention.
	Retention *Retention `json:"retention,omitempty"`
	// SaveEvery saves the files of a persistent sandbox while it runs, at most this often
	// and only if they have changed: at least 10 s. Each of these snapshots replaces the
	// one before. 0 means never.
	SaveEvery Duration `json:"save_every_ms,omitempty"`
	// ProjectID is the project of the sandbox. Empty means the token's project, or the
	// team's default project.
	ProjectID string `json:"project_id,omitempty"`
	// IdempotencyKey makes repeating this call return the first call's sandbox
	// for 24 hours. Sent as the Idempotency-Key header; at most 255 characters.
	IdempotencyKey string `json:"-"`
}

// UpdateParams changes a sandbox. Nil fields are unchanged.
type UpdateParams struct {
	Tags        map[string]string `json:"tags,omitzero"`        // replaces all; an empty map clears
	Annotations map[string]string `json:"annotations,omitzero"` // likewise
	Network     *Network          `json:"network,omitempty"`    // takes effect at once, on live connections too
	Ports       []PortParams      `json:"ports,omitzero"`       // replaces all; ports that stay keep their labels
	IdleTimeout *Duration         `json:"idle_timeout_ms,omitempty"`

	// The other fields concern the next session, and future snapshots.

	Persistent *bool             `json:"persistent,omitempty"`
	Env        map[string]string `json:"env,omitzero"` // replaces all; an empty map clears
	Timeout    *Duration         `json:"timeout_ms,omitempty"`
	VCPUs      *float64          `json:"vcpus,omitempty"`
	MemoryMB   *int64            `json:"memory_mb,omitempty"`
	Mounts     []Mount           `json:"mounts,omitzero"` // replaces all
	// Runtime replaces the runtime, if the sandbox has one.
	Runtime *string `json:"runtime,omitempty"`
	// SnapshotID makes the next session start from that snapshot, or from the
	// image if it is empty.
	SnapshotID         *string   `json:"snapshot_id,omitempty"`
	SnapshotExpiration *Duration `json:"snapshot_expiration_ms,omitempty"`
	// Retention replaces the current retention; its zero value is the default.
	Retention *Retention `json:"retention,omitempty"`
	// SaveEvery applies at once. 0 means never.
	SaveEvery *Duration `json:"save_every_ms,omitempty"`
}

// DeleteParams are the options for deleting a sandbox.
type DeleteParams struct {
	// KeepSnapshots keeps the sandbox's automatic snapshots until they expire.
	KeepSnapshots bool
}

// Order is the order of a list; equal objects are sorted by id.
type Order string

// The orders of lists.
const (
	ByCreation Order = "created_at"
	ByUpdate   Order = "updated_at"  // of drives
	ByName     Order = "name"        // of sandboxes and drives
	ByStatusAt Order = "status_at"   // of sandboxes
	BySnapshot Order = "snapshot_id" // of sandboxes
)

// ListParams selects sandboxes, newest first unless Order and Ascending say
// otherwise.
type ListParams struct {
	ProjectID  string            // empty: the token's own; "*": all projects of the team
	Status     []Status          // empty: every status
	Resumable  bool              // leave out sandboxes that have ended and cannot be resumed
	NamePrefix string            //
	Tags       map[string]string // all must match
	// CreatedAfter and CreatedBefore are exclusive bounds, in whole milliseconds. Zero
	// means no bound.
	CreatedAfter, CreatedBefore time.Time
	Order                       Order // empty: ByCreation
	Ascending                   bool
	Limit                       int    // 1 to 200; 0 means 50
	Cursor                      string // Next of the page before
}

// Page is one page of a list.
type Page[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"` // cursor of the next page; empty on the last
}

// Duration is a time.Duration that is encoded as whole milliseconds.
type Duration time.Duration

func (d Duration) String() string { return time.Duration(d).String() }

// MarshalJSON writes whole milliseconds.
func (d Duration) MarshalJSON() ([]byte, error) {
	return strconv.AppendInt(nil, time.Duration(d).Milliseconds(), 10), nil
}

// UnmarshalJSON reads a whole number of milliseconds.
func (d *Duration) UnmarshalJSON(b []byte) error {
	ms, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil || ms > math.MaxInt64/int64(time.Millisecond) || ms < math.MinInt64/int64(time.Millisecond) {
		return fmt.Errorf("%s is not a whole number of milliseconds", b)
	}
	*d = Duration(ms) * Duration(time.Millisecond)
	return nil
}
