package sandbox

import "time"

// SnapshotKind says what a snapshot has.
type SnapshotKind string

// The kinds of snapshots.
const (
	// FilesystemSnapshot has the files. Later versions of cay start from it too.
	FilesystemSnapshot SnapshotKind = "filesystem"
	// MemorySnapshot has the processes with their memory as well, for the build of
	// cay that made it. Other builds start from its files.
	MemorySnapshot SnapshotKind = "memory"
)

// SnapshotStatus is where a snapshot is in its life.
type SnapshotStatus string

// The statuses of snapshots.
const (
	SnapshotCreated SnapshotStatus = "created"
	// SnapshotDeleted: the snapshot's files are deleted; its record can be read for
	// 30 days.
	SnapshotDeleted SnapshotStatus = "deleted"
)

// Snapshot is an immutable copy of what a sandbox had written, complete and on
// disk. Snapshots form trees: the parent of one is the snapshot its sandbox had
// started from, or had been saved in last.
type Snapshot struct {
	ID        string         `json:"id"`             // "snap_" and 20 characters; never reused
	Name      string         `json:"name,omitempty"` // unique among the project's snapshots that exist
	TeamID    string         `json:"team_id"`
	ProjectID string         `json:"project_id"`
	Kind      SnapshotKind   `json:"kind"`
	Status    SnapshotStatus `json:"status"`
	// Automatic says that stopping a persistent sandbox made it.
	Automatic bool `json:"automatic"`

	ParentID    string `json:"parent_id,omitempty"`
	SandboxID   string `json:"sandbox_id,omitempty"` // it is of; empty: imported
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
	// Annotations are those its sandbox had. An exported file does not have them.
	Annotations map[string]string `json:"annotations,omitempty"`
	Build       string            `json:"build"`      // version of cay that made it
	SizeBytes   int64             `json:"size_bytes"` // on the host's disk

	CreatedAt  time.Time  `json:"created_at"`
	UpdatedAt  time.Time  `json:"updated_at"`
	LastUsedAt *time.Time `json:"last_used_at,omitempty"` // when a sandbox last started from it
	ExpiresAt  *time.Time `json:"expires_at,omitempty"`   // deleted then; nil: never

	// Took is how long making it took, and Paused for how much of that the
	// sandbox stood still. 0 for imported ones.
	Took   Duration `json:"took_ms"`
	Paused Duration `json:"paused_ms"`
}

// Retention thins out the snapshots of a sandbox whenever one more was made. The
// one its next session starts from, and those with a name, are always kept. A sandbox
// without a retention keeps the newest 3 of its automatic snapshots, and all others
// until they expire.
type Retention struct {
	// Keep is how many of the newest are kept: 1 to 100.
	Keep int `json:"keep"`
	// All keeps all until they expire, or are older than MaxAge. Keep is 0 then, and
	// KeepEvicted false.
	All bool `json:"all,omitempty"`
	// EachStop makes an automatic snapshot at each stop. Otherwise a stop makes none if
	// the files are those of the snapshot that the next session would start from: then
	// that one stays.
	EachStop bool `json:"each_stop,omitempty"`
	// MaxAge deletes those that are older. 0: none. At least 1 minute.
	MaxAge Duration `json:"max_age_ms,omitempty"`
	// Expiration is when those expire that are made from then on, instead of the
	// sandbox's SnapshotExpiration. 0: never, otherwise at least 1 minute. Nil: as
	// the sandbox says.
	Expiration *Duration `json:"expiration_ms,omitempty"`
	// KeepEvicted leaves those beyond Keep to their expiration instead of deleting
	// them.
	KeepEvicted bool `json:"keep_evicted,omitempty"`
}

// SnapshotParams says which snapshot to make.
type SnapshotParams struct {
	// Kind defaults to FilesystemSnapshot.
	Kind SnapshotKind `json:"kind,omitempty"`
	// Name is 1 to 128 of A-Z a-z 0-9 _ -, not beginning with snap_. Empty: none.
	Name string `json:"name,omitempty"`
	// Expiration: 0 is never, otherwise at least 1 minute. Nil: the sandbox's.
	Expiration *Duration `json:"expiration_ms,omitempty"`
	// Replace takes Name from the snapshot that has it, which stays without a name.
	Replace bool `json:"replace,omitempty"`
	// Env is added to what every command has of the image, in the sandboxes that
	// start from the snapshot. Bounded as CreateParams.Env.
	Env map[string]string `json:"env,omitempty"`
	// Stop stops the sandbox too, once the snapshot is made.
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
	Deleted   bool // those that were deleted, too
	// As in ListParams.
	CreatedAfter, CreatedBefore time.Time
	Ascending                   bool // oldest first
	Limit                       int  // 1 to 200; 0 means 50
	Cursor                      string
}

// DeleteSnapshotParams say which snapshot may be deleted.
type DeleteSnapshotParams struct {
	// Force also deletes a snapshot that the next session of a sandbox is to start
	// from; that sandbox cannot be resumed until its SnapshotID is changed.
	Force bool
}

// PruneSnapshotsParams say which snapshots nobody needs any more.
type PruneSnapshotsParams struct {
	ProjectID string `json:"project_id,omitempty"` // as in ListParams
	// OlderThan spares those that were made since, at least 1 minute. 0: none.
	OlderThan Duration `json:"older_than_ms,omitempty"`
	// DryRun only tells which they are.
	DryRun bool `json:"dry_run,omitempty"`
}

// SnapshotPrune is the result of a prune: the snapshots that were deleted, or would
// be.
type SnapshotPrune struct {
	// Snapshots are the oldest of them, at most 200.
	Snapshots []Snapshot `json:"snapshots"`
	Count     int        `json:"count"`      // of all
	SizeBytes int64      `json:"size_bytes"` // of all, on the host's disk
}

// SnapshotTreeParams walks the tree of snapshots from one of them.
type SnapshotTreeParams struct {
	// Descendants walks away from the root, always to the newest child. Otherwise
	// to the root.
	Descendants bool
	Limit       int // nodes on the way: 1 to 100; 0 means 10
}

// SnapshotNode is a snapshot and the others of the same parent.
type SnapshotNode struct {
	Snapshot Snapshot `json:"snapshot"`
	// Siblings are the newest of them, at most 10; Count is how many there are,
	// Snapshot itself included.
	Siblings []Snapshot `json:"siblings"`
	Count    int        `json:"count"`
}

// SnapshotTree is a walk through the tree.
type SnapshotTree struct {
	Anchor SnapshotNode   `json:"anchor"`         // where it began
	Nodes  []SnapshotNode `json:"nodes"`          // on the way, the anchor not included
	Next   string         `json:"next,omitempty"` // id of the snapshot to go on from: the last node's; empty at the end
}

// ImportParams say what to make of the file of a snapshot.
type ImportParams struct {
	ProjectID string // as in CreateParams
	Name      string // as in SnapshotParams
	// Memory imports the processes of a memory snapshot, too, which then run with the
	// trust of this daemon's own processes: the operator has to decide that. Without
	// Memory the import is a filesystem snapshot.
	Memory     bool
	Expiration *Duration // as in SnapshotParams; nil: never
}
