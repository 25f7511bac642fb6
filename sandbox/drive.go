package sandbox

import "time"

// Drive is a file system of its own, which outlives the sandboxes that mount it.
// Changes by the sandbox that has mounted it read-write are saved when that
// sandbox stops, and when the drive is saved or cloned.
type Drive struct {
	ID        string `json:"id"`   // "drv_" and 20 characters; never reused
	Name      string `json:"name"` // unique in the project
	TeamID    string `json:"team_id"`
	ProjectID string `json:"project_id"`
	MaxMB     int64  `json:"max_mb"`     // MiB it may hold
	SizeBytes int64  `json:"size_bytes"` // of the last saved content
	// SandboxID and SandboxName identify the sandbox that has mounted the drive
	// read-write; empty if no sandbox has.
	SandboxID   string            `json:"sandbox_id,omitempty"`
	SandboxName string            `json:"sandbox_name,omitempty"`
	ParentID    string            `json:"parent_id,omitempty"`   // the drive it was cloned from
	Annotations map[string]string `json:"annotations,omitempty"` // as a Sandbox's
	CreatedAt   time.Time         `json:"created_at"`
	UpdatedAt   time.Time         `json:"updated_at"`
	SavedAt     *time.Time        `json:"saved_at,omitempty"`
}

// MountMode is how a drive is mounted.
type MountMode string

// The modes of mounts.
const (
	// MountReadWrite: changes are kept. Only one sandbox at a time can mount a
	// drive read-write.
	MountReadWrite MountMode = "read-write"
	// MountReadOnly: the drive as last saved, for any number of sandboxes. Root
	// in a sandbox can remount it writable for itself; such changes are lost with
	// the session.
	MountReadOnly MountMode = "read-only"
	// MountCopy: a writable copy of the drive as last saved; changes are lost
	// with the session.
	MountCopy MountMode = "snapshot"
)

// Mount is a drive in a sandbox.
type Mount struct {
	Path  string    `json:"path"`  // absolute, in the sandbox; made if missing
	Drive string    `json:"drive"` // id or name
	Mode  MountMode `json:"mode"`  // empty: MountReadWrite
}

// CreateDriveParams describes a drive to create.
type CreateDriveParams struct {
	// Name is 1 to 64 of A-Z a-z 0-9 _ -, not beginning with drv_.
	Name string `json:"name"`
	// MaxMB is the capacity in MiB: at least 16, and at least the capacity of the
	// drive in From. 0 means 1024, or the capacity of the drive in From.
	MaxMB int64 `json:"max_mb,omitempty"`
	// From is the id or name of a drive to clone, with its current content, even
	// while a sandbox has mounted it.
	From      string `json:"from,omitempty"`
	ProjectID string `json:"project_id,omitempty"` // as in CreateParams
	// Annotations as in CreateParams.
	Annotations map[string]string `json:"annotations,omitempty"`
}

// DriveListParams selects drives, newest first unless Order and Ascending say
// otherwise.
type DriveListParams struct {
	ProjectID  string // as in ListParams
	NamePrefix string
	Order      Order // empty: ByCreation
	Ascending  bool
	Limit      int // 1 to 200; 0 means 50
	Cursor     string
}
