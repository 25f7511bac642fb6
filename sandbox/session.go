package sandbox

import "time"

// Session is one run of a sandbox, from a start to a stop. A sandbox that is not
// persistent has only one session.
type Session struct {
	ID        string `json:"id"` // "ses_" and 20 characters; never reused
	SandboxID string `json:"sandbox_id"`
	// Status is the status of the sandbox while this is its current session, and
	// Stopped, Failed or Hibernated afterwards.
	Status  Status `json:"status"`
	Reason  Reason `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// SourceID is the snapshot that the session started from; empty if it started
	// from the image, or from the processes of the sandbox that it was forked
	// from.
	SourceID string `json:"source_id,omitempty"`
	// SnapshotID is the snapshot that was made of the sandbox when the session
	// ended.
	SnapshotID string     `json:"snapshot_id,omitempty"`
	VCPUs      float64    `json:"vcpus"`
	MemoryMB   int64      `json:"memory_mb"`
	Timeout    Duration   `json:"timeout_ms"`
	CreatedAt  time.Time  `json:"created_at"`
	StartedAt  *time.Time `json:"started_at,omitempty"`
	StoppedAt  *time.Time `json:"stopped_at,omitempty"`
	Usage      Usage      `json:"usage"`
}

// SessionParams selects sessions of a sandbox, newest first.
type SessionParams struct {
	Ascending bool
	Limit     int    // 1 to 200; 0 means 50
	Cursor    string // Next of the page before
}

// SessionListParams selects sessions of all sandboxes that were not deleted,
// newest first.
type SessionListParams struct {
	ProjectID string // as in ListParams
	Ascending bool
	Limit     int // 1 to 200; 0 means 50
	Cursor    string
}

// ResumeParams say how to resume a sandbox.
type ResumeParams struct {
	// FilesOnly starts a hibernated sandbox from its files alone, without its processes.
	// Otherwise that happens only if they cannot continue, and Sandbox.Message says so.
	FilesOnly bool `json:"files_only,omitempty"`
	// Fresh also starts a sandbox that has ended and is not persistent: from the
	// sandbox's snapshot if there is one, otherwise from the image.
	Fresh bool `json:"anew,omitempty"`
}
