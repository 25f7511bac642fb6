package store

import (
	"cmp"
	"fmt"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/patch"
	"github.com/cayhq/cay/sandbox"
)

// Row is a sandbox as the database holds it. Its Network has the secrets redacted. API
// answers encode the embedded Sandbox only; secret fields of the rest are never encoded.
type Row struct {
	sandbox.Sandbox
	Run
	Deleting       bool
	SessionTimeout sandbox.Duration // as requested; Timeout is the current session's, which Extend increases
	Hibernation    string           // id of the snapshot in which the sandbox is hibernated
	coming         NextSession      // the pending changes that Next shows
	before         sandbox.Usage    // of all earlier sessions
	Only           string           // not in the database: the session that a call is restricted to; empty if the call is about the sandbox
	drivesMB       int64            // not read from the database: computed by attachDrives
}

// Run holds the properties of the newest session: its images, its guest's token and its
// network policy.
type Run struct {
	RuntimeDigest string
	ImageEnv      map[string]string `json:"-"`
	StartedMono   time.Duration
	Boot          string // boot id of the host
	GuestToken    string `json:"-"`
	Sealed        []byte `json:"-"` // the whole policy, sealed, if Network has secrets redacted
	Frozen        bool   // the engine may have paused the machine to save it

	// Not in the database.
	Unreadable error           `json:"-"` // why the environment or the token could not be unsealed; nil: both are here
	FilesOnly  bool            // start from the files of a memory snapshot
	Notice     string          // a sentence for the message of the running sandbox
	Source     *sandbox.Source // to be fetched before the sandbox is running
}

// NextSession holds the changes to a sandbox that take effect when its next session
// starts. Nil fields change nothing.
type NextSession struct {
	VCPUs    *float64          `json:"vcpus,omitempty"`
	MemoryMB *int64            `json:"memory_mb,omitempty"`
	Env      map[string]string `json:"env,omitzero"`
	Mounts   []sandbox.Mount   `json:"mounts,omitzero"`
	Runtime  *string           `json:"runtime,omitempty"`
	// Unfilled says that there can be no next session: the sandbox has not received its
	// source yet, and the source is not persisted.
	Unfilled bool `json:"unfilled,omitempty"`
}

// Scope returns the team and project of the sandbox.
func (r *Row) Scope() Scope { return Scope{r.TeamID, r.ProjectID} }

// MachineID returns the id of the newest session's machine.
func (r *Row) MachineID() string { return r.SessionID }

// SetTotal computes Total: the usage of the earlier sessions plus the newest session's.
func (r *Row) SetTotal() {
	r.Total = sandbox.Usage{
		ActiveCPU: r.before.ActiveCPU + r.Usage.ActiveCPU, WallTime: r.before.WallTime + r.Usage.WallTime,
		MemoryPeak:   max(r.before.MemoryPeak, r.Usage.MemoryPeak),
		IngressBytes: r.before.IngressBytes + r.Usage.IngressBytes, EgressBytes: r.before.EgressBytes + r.Usage.EgressBytes,
	}
}

// Over returns the error for a call restricted to a session that has ended. A call about
// a sandbox has no such error.
func (r *Row) Over() error {
	if r.Only == "" || r.Only == r.SessionID && !r.Status.Final() && r.Status != sandbox.Hibernated {
		return nil
	}
	text := fmt.Sprintf("session %q of sandbox %q has ended", r.Only, r.Name)
	switch {
	case r.Only != r.SessionID:
	case r.Reason != "":
		text += fmt.Sprintf(" (%s)", r.Reason)
		if r.Message != "" {
			text += ": " + r.Message
		}
	default:
		text += fmt.Sprintf(" (%s)", r.Status)
	}
	return cay.Errorf(cay.Stopped, "%s", text).WithHint("use the sandbox's name or id for what is not about this session alone")
}

// Ref returns the id of the session that the call is restricted to, or the sandbox's id.
func (r *Row) Ref() string { return cmp.Or(r.Only, r.ID) }

// showNext sets Next, the pending changes as the API shows them.
func (r *Row) showNext() {
	n := sandbox.NextSession{VCPUs: r.coming.VCPUs, MemoryMB: r.coming.MemoryMB, Env: r.coming.Env, Mounts: r.coming.Mounts, Runtime: r.coming.Runtime}
	if timeout := r.SessionTimeout; timeout != r.Timeout {
		n.Timeout = &timeout
	}
	r.Next = nil
	if r.coming.any() || n.Timeout != nil {
		r.Next = &n
	}
}

// ApplyNext applies the pending changes to the session that starts. A hibernated sandbox
// keeps its drives and its runtime, which its processes use, until its next start without
// saved memory.
func (r *Row) ApplyNext() {
	defer r.showNext()
	patch.Set(&r.VCPUs, r.coming.VCPUs)
	patch.Set(&r.MemoryMB, r.coming.MemoryMB)
	patch.SetMap(&r.Env, r.coming.Env)
	if r.Hibernation != "" {
		r.coming = NextSession{Mounts: r.coming.Mounts, Runtime: r.coming.Runtime}
		return
	}
	patch.SetSlice(&r.Mounts, r.coming.Mounts)
	if r.coming.Runtime != nil && *r.coming.Runtime != r.Runtime {
		r.Runtime, r.RuntimeDigest = *r.coming.Runtime, ""
	}
	r.coming = NextSession{}
}

// Place returns the value by which a list sorts the sandbox.
func (r *Row) Place(by sandbox.Order) any {
	switch by {
	case sandbox.ByName:
		return r.Name
	case sandbox.ByStatusAt:
		return r.StatusAt.UnixMilli()
	case sandbox.BySnapshot:
		return r.SnapshotID
	}
	return r.CreatedAt.UnixMilli()
}

// Scope is the set of sandboxes that a caller reaches.
type Scope struct {
	Team    string
	Project string // empty: every project of the team
}

// Reaches reports whether sc includes objects of other. other has a project.
func (sc Scope) Reaches(other Scope) bool {
	return sc.Team == other.Team && (sc.Project == "" || sc.Project == other.Project)
}

// Policy is an egress policy as the database holds it. Only the daemon's memory ever
// holds the whole policy in the open.
type Policy struct {
	Shown  sandbox.Network // secrets redacted; API answers use this
	Sealed []byte          // JSON of the whole policy, sealed for its sandbox; nil if Shown is the whole policy
}

// End says why and how a sandbox is stopped.
type End struct {
	Reason   sandbox.Reason
	Message  string
	Deleting bool // delete the sandbox after the stop
	// KeepSnapshots keeps the automatic snapshots of a sandbox that is deleted.
	KeepSnapshots bool
}

// Failure describes the end of a sandbox that no caller stopped.
type Failure struct {
	From    sandbox.Status // Pending, Resuming, or Running for running and paused
	Reason  sandbox.Reason
	Message string
}

// Change is the set of changes that an update makes. Nil fields change nothing.
type Change struct {
	Tags        map[string]string
	Annotations map[string]string
	Network     *Policy
	Idle        *sandbox.Duration
	SaveEvery   *sandbox.Duration
	// Ports without a label keep the label that the port has, or get a new one. A gone
	// label that a port names is declared again.
	Ports []sandbox.Port

	// These apply to the next session, and to snapshots.
	Persistent *bool
	Timeout    *sandbox.Duration
	Snapshot   *string
	Expiration *sandbox.Duration
	Retention  *sandbox.Retention // the zero value removes the retention
	Next       NextSession
	// Resting makes the update fail if the sandbox has a machine.
	Resting bool
}

// any reports whether anything is set.
func (n NextSession) any() bool {
	return n.VCPUs != nil || n.MemoryMB != nil || n.Env != nil || n.Mounts != nil || n.Runtime != nil
}

// merge returns n with the non-nil fields of more added.
func (n NextSession) merge(more NextSession) NextSession {
	n.VCPUs, n.MemoryMB, n.Runtime = cmp.Or(more.VCPUs, n.VCPUs), cmp.Or(more.MemoryMB, n.MemoryMB), cmp.Or(more.Runtime, n.Runtime)
	patch.SetMap(&n.Env, more.Env)
	patch.SetSlice(&n.Mounts, more.Mounts)
	return n
}
