package sandbox

import "time"

// SnapshotKind is the kind of content of a snapshot.
type SnapshotKind string

// The kinds of snapshots.
const (
	// FilesystemSnapshot has the files. Later versions of cay can start from it, too.
	FilesystemSnapshot SnapshotKind = "filesystem"
	// MemorySnapshot also has the processes with their memory, for builds of cay
	// with the programs that made it. Other builds can start from its files.
	MemorySnapshot SnapshotKind = "memory"
)

// SnapshotStatus is the state of a snapshot in its life cycle.
type SnapshotStatus string

// The statuses of snapshots.
const (
	SnapshotCreated SnapshotStatus = "created"
	// SnapshotDeleted: the snapshot's files are deleted; its record can be read for
	// 30 days.
	SnapshotDeleted SnapshotStatus = "deleted"
)

// Snapshot is an immutable copy of the files that a sandbox had written, complete and
// on disk. Snapshots form trees: the parent of a snapshot is the snapshot that its
// sandbox had started from, or had last been saved in.
type Snapshot struct {
	ID        string         `json:"id"`             // "snap_" and 20 characters; never reused
	Name      string         `json:"name,omitempty"` // unique among the project's snapshots that exist
	TeamID    string         `json:"team_id"`
	ProjectID string         `json:"project_id"`
	Kind      SnapshotKind   `json:"kind"`
	Status    SnapshotStatus `json:"status"`
	// Automatic says that cay made the snapshot when a persistent sandbox stopped.
	Automatic bool `json:"automatic"`

	ParentID    string `json:"parent_id,omitempty"`
	SandboxID   string `json:"sandbox_id,omitempty"` // its sandbox; empty: imported
	SandboxName string `json:"sandbox_name,omitempty"`
	SessionID   string `json:"session_id,omitempty"`

	Image    string  `json:"image"`
	Digest   string  `json:"digest"` // of the image
	Runtime  string  `json:"runtime,omitempty"`
	User     string  `json:"user"`
	WorkDir  string  `json:"workdir"`
	DiskMB   int64   `json:"disk_mb"`
	VCPUs    float64 `json:"vcpus"`
	MemoryMB int64   `json:"memory_mb"`
	// Annotations are the annotations that the sandbox had. An exported file does not
	// have them.
	Annotations map[string]string `json:"annotations,omitempty"`
	Build       string            `json:"build"`      // the version of cay that made it
	SizeBytes   int64             `json:"size_bytes"` // on the host's disk

	CreatedAt  time.Time  `json:"created_at"`
	UpdatedAt  time.Time  `json:"updated_at"`
	LastUsedAt *time.Time `json:"last_used_at,omitempty"` // when a sandbox last started from it
	ExpiresAt  *time.Time `json:"expires_at,omitempty"`   // deleted then; nil: never

	// Duration is how long making the snapshot took, and Paused how long the sandbox
	// stood still meanwhile. 0 for imported snapshots.
	Duration Duration `json:"took_ms"`
	Paused   Duration `json:"paused_ms"`
}

// Retention limits the snapshots of a sandbox whenever a new one is made. The
// snapshot that the next session starts from, and snapshots with a name, are always
// kept. A sandbox without a retention keeps the newest 3 of its automatic snapshots,
// and all other snapshots until they expire.
type Retention struct {
	// Keep is how many of the newest snapshots are kept: 1 to 100.
	Keep int `json:"keep"`
	// All keeps all snapshots until they expire, or are older than MaxAge. Keep must
	// be 0 then, and KeepEvicted false.
	All bool `json:"all,omitempty"`
	// EachStop makes an automatic snapshot at each stop. Without EachStop, a stop
	// makes no snapshot if the files have not changed since the snapshot that the
	// next session would start from.
	EachStop bool `json:"each_stop,omitempty"`
	// MaxAge deletes snapshots that are older. 0 means no limit. At least 1 minute.
	MaxAge Duration `json:"max_age_ms,omitempty"`
	// Expiration is when snapshots expire that are made from then on, instead of the
	// sandbox's SnapshotExpiration. 0 means never, otherwise at least 1 minute. Nil
	// means the sandbox's SnapshotExpiration.
	Expiration *Duration `json:"expiration_ms,omitempty"`
	// KeepEvicted leaves snapshots beyond Keep to their expiration instead of
	// deleting them.
	KeepEvicted bool `json:"keep_evicted,omitempty"`
}

// SnapshotParams describes a snapshot to make.
type SnapshotParams struct {
	// Kind defaults to FilesystemSnapshot.
	Kind SnapshotKind `json:"kind,omitempty"`
	// Name is 1 to 128 of A-Z a-z 0-9 _ -, not beginning with snap_. Empty: none.
	Name string `json:"name,omitempty"`
	// Expiration is how long the snapshot is kept: 0 means for ever, otherwise at
	// least 1 minute. Nil means the sandbox's SnapshotExpiration.
	Expiration *Duration `json:"expiration_ms,omitempty"`
	// Replace moves Name from the snapshot that has it; that snapshot stays, without
	// a name.
	Replace bool `json:"replace,omitempty"`
	// Env is added to the image's environment of every command, in the sandboxes that
	// start from the snapshot. Limits as for CreateParams.Env.
	Env map[string]string `json:"env,omitempty"`
	// Stop also stops the sandbox, once the snapshot is made.
	Stop bool `json:"stop,omitempty"`
	// WithoutNetwork leaves the sandbox's network policy out of the snapshot:
	// sandboxes that start from the snapshot have the mode AllowAll, unless
	// CreateParams has a policy.
	WithoutNetwork bool `json:"without_network,omitempty"`
}

// SnapshotListParams selects snapshots, newest first.
type SnapshotListParams struct {
	ProjectID string // as in ListParams
	Sandbox   string // id or name of the sandbox they are of
	Name      string
	Deleted   bool // include deleted snapshots
	// As in ListParams.
	CreatedAfter, CreatedBefore time.Time
	Ascending                   bool // oldest first
	Limit                       int  // 1 to 200; 0 means 50
	Cursor                      string
}

// DeleteSnapshotParams are the options for deleting a snapshot.
type DeleteSnapshotParams struct {
	// Force also deletes a snapshot that the next session of a sandbox is to start
	// from. Such a sandbox cannot be resumed until its SnapshotID is changed.
	Force bool
}

// PruneSnapshotsParams selects the snapshots to prune.
type PruneSnapshotsParams struct {
	ProjectID string `json:"project_id,omitempty"` // as in ListParams
	// OlderThan spares snapshots that are younger; at least 1 minute. 0 spares none.
	OlderThan Duration `json:"older_than_ms,omitempty"`
	// DryRun reports the snapshots without deleting them.
	DryRun bool `json:"dry_run,omitempty"`
}

// SnapshotPrune is the result of a prune: the snapshots that were deleted, or would
// be.
type SnapshotPrune struct {
	// Snapshots are the oldest of the pruned snapshots, at most 200.
	Snapshots []Snapshot `json:"snapshots"`
	Count     int        `json:"count"`      // of all
	SizeBytes int64      `json:"size_bytes"` // of all, on the host's disk
}

// SnapshotTreeParams says how to walk the tree of snapshots from one of them.
type SnapshotTreeParams struct {
	// Descendants walks away from the root, always to the newest child. Without it
	// the walk goes to the root.
	Descendants bool
	Limit       int // nodes on the way: 1 to 100; 0 means 10
}

// SnapshotNode is a snapshot with its siblings, the snapshots of the same parent.
type SnapshotNode struct {
	Snapshot Snapshot `json:"snapshot"`
	// Siblings are the newest siblings, at most 10; Count is the number of all,
	// Snapshot itself included.
	Siblings []Snapshot `json:"siblings"`
	Count    int        `json:"count"`
}

// SnapshotTree is a walk through the tree of snapshots.
type SnapshotTree struct {
	Anchor SnapshotNode   `json:"anchor"`         // where it began
	Nodes  []SnapshotNode `json:"nodes"`          // on the way, the anchor not included
	Next   string         `json:"next,omitempty"` // id of the snapshot to go on from: the last node's; empty at the end
}

// ImportParams describes the snapshot to make of an exported file.
type ImportParams struct {
	ProjectID string // as in CreateParams
	Name      string // as in SnapshotParams
	// Memory imports the processes of a memory snapshot, too, which then run with the
	// trust of this daemon's own processes: the operator has to decide that. Without
	// Memory the import is a filesystem snapshot.
	Memory     bool
	Expiration *Duration // as in SnapshotParams; nil: never
}
