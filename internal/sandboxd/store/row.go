package store

import (
	"cmp"
	"fmt"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// Row is a sandbox as it is kept. Its Network is what may be shown. Of a Row nothing is
// encoded for anybody but the Sandbox; what is secret of the rest never is.
type Row struct {
	sandbox.Sandbox
	Run
	Deleting       bool
	SessionTimeout sandbox.Duration // as asked for; Timeout is this session's, which grows
	Hibernation    string           // id of the snapshot it is hibernated in
	coming         NextSession      // what Next shows of
	before         sandbox.Usage    // of the sessions before this one
	Only           string           // not kept: the session a call is about, if it is not about the sandbox
	drivesMB       int64            // not read: as attachDrives found it
}

// Run is what is of the newest session rather than of the sandbox: of what it was
// started, how it is talked to, and what it may reach.
type Run struct {
	RuntimeDigest string
	ImageEnv      map[string]string `json:"-"`
	StartedMono   time.Duration
	Boot          string // of the host
	GuestToken    string `json:"-"`
	Sealed        []byte `json:"-"` // all of the policy, if Network hides secrets of it
	Frozen        bool   // the engine may have paused the machine to save it

	// Not kept.
	Unreadable error           `json:"-"` // why its environment or its token is missing here; nil: it is not
	FilesOnly  bool            // start from the files of a memory snapshot
	Source     *sandbox.Source // to be fetched before it runs
}

// NextSession is what of a sandbox is to change when its next session starts.
// Nil fields stay as they are.
type NextSession struct {
	VCPUs    *float64          `json:"vcpus,omitempty"`
	MemoryMB *int64            `json:"memory_mb,omitempty"`
	Env      map[string]string `json:"env,omitzero"`
	Mounts   []sandbox.Mount   `json:"mounts,omitzero"`
	Runtime  *string           `json:"runtime,omitempty"`
	// Unfilled says that there can be none: the sandbox has not got its source yet,
	// which nobody keeps.
	Unfilled bool `json:"unfilled,omitempty"`
}

// Scope is whose it is.
func (r *Row) Scope() Scope { return Scope{r.TeamID, r.ProjectID} }

// MachineID is the id of the machine of the newest session.
func (r *Row) MachineID() string { return r.SessionID }

// SetTotal brings the total up to date with the newest session's usage.
func (r *Row) SetTotal() {
	r.Total = sandbox.Usage{
		ActiveCPU: r.before.ActiveCPU + r.Usage.ActiveCPU, WallTime: r.before.WallTime + r.Usage.WallTime,
		MemoryPeak:   max(r.before.MemoryPeak, r.Usage.MemoryPeak),
		IngressBytes: r.before.IngressBytes + r.Usage.IngressBytes, EgressBytes: r.before.EgressBytes + r.Usage.EgressBytes,
	}
}

// Over says that a call cannot be made: the session that it is about has ended.
// A call about a sandbox has no such error.
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

// Ref is what a call is about, as it was named or by the sandbox's id.
func (r *Row) Ref() string { return cmp.Or(r.Only, r.ID) }

// showNext says what the next session is to have instead.
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

// ApplyNext makes what was set for the next session this one's. Processes that
// go on keep the drives and the runtime they know until they have ended.
func (r *Row) ApplyNext() {
	defer r.showNext()
	if r.coming.VCPUs != nil {
		r.VCPUs = *r.coming.VCPUs
	}
	if r.coming.MemoryMB != nil {
		r.MemoryMB = *r.coming.MemoryMB
	}
	if r.coming.Env != nil {
		r.Env = r.coming.Env
	}
	if r.Hibernation != "" {
		r.coming = NextSession{Mounts: r.coming.Mounts, Runtime: r.coming.Runtime}
		return
	}
	if r.coming.Mounts != nil {
		r.Mounts = r.coming.Mounts
	}
	if r.coming.Runtime != nil && *r.coming.Runtime != r.Runtime {
		r.Runtime, r.RuntimeDigest = *r.coming.Runtime, ""
	}
	r.coming = NextSession{}
}

// Place is where a sandbox is in a list.
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

// Scope is whose sandboxes a caller reaches.
type Scope struct {
	Team    string
	Project string // empty: every project of the team
}

// Reaches reports whether what is of other is of sc, too. other has a project.
func (sc Scope) Reaches(other Scope) bool {
	return sc.Team == other.Team && (sc.Project == "" || sc.Project == other.Project)
}

// Policy is an egress policy as it is kept. The whole of it is only ever in the
// memory of the daemon.
type Policy struct {
	Shown  sandbox.Network // secrets redacted; all that API answers hold
	Sealed []byte          // JSON of the whole, sealed for its sandbox; nil if shown is the whole
}

// End is why a sandbox is stopped.
type End struct {
	Reason   sandbox.Reason
	Message  string
	Deleting bool // and forgotten
	// KeepSnapshots leaves the automatic snapshots of one that is forgotten.
	KeepSnapshots bool
}

// Failure is how a sandbox ended that nobody stopped.
type Failure struct {
	From    sandbox.Status // Pending, Resuming, or Running for running and paused
	Reason  sandbox.Reason
	Message string
}

// Change is what an update sets. Nil fields stay as they are.
type Change struct {
	Tags        map[string]string
	Annotations map[string]string
	Network     *Policy
	Idle        *sandbox.Duration
	// Ports without a label get the one their port has, or a new one; a label
	// that is given is declared again.
	Ports []sandbox.Port

	// The next session's, and of snapshots.
	Persistent *bool
	Timeout    *sandbox.Duration
	Snapshot   *string
	Expiration *sandbox.Duration
	Retention  *sandbox.Retention // the zero value is none
	Next       NextSession
	// Resting says that the sandbox is to be one without a machine.
	Resting bool
}

// any reports whether anything is set.
func (n NextSession) any() bool {
	return n.VCPUs != nil || n.MemoryMB != nil || n.Env != nil || n.Mounts != nil || n.Runtime != nil
}

// merge adds what of n is set to what is set already.
func (n NextSession) merge(more NextSession) NextSession {
	if more.VCPUs != nil {
		n.VCPUs = more.VCPUs
	}
	if more.MemoryMB != nil {
		n.MemoryMB = more.MemoryMB
	}
	if more.Env != nil {
		n.Env = more.Env
	}
	if more.Mounts != nil {
		n.Mounts = more.Mounts
	}
	if more.Runtime != nil {
		n.Runtime = more.Runtime
	}
	return n
}
