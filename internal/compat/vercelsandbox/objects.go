package vercelsandbox

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// Annotations of sandboxes, snapshots and drives: values that clients get back, and
// that nothing else reads.
const (
	noteRegion          = "vercel.region"
	noteFailover        = "vercel.failover_regions" // separated by commas
	noteNetworkID       = "vercel.network_id"
	noteImage           = "vercel.image"            // as asked for
	noteInteractivePort = "vercel.interactive_port" // one of the ports
	// noteExpiration is set if the client did not set an expiration of snapshots.
	noteExpiration = "vercel.snapshot_expiration"
	// noteRun and noteStep identify the step of a workflow that has created a
	// sandbox. The inspector shows them.
	noteRun  = "workflow.run"
	noteStep = "workflow.step"
)

// defaultRegion is the region of all objects that were created without a region.
const defaultRegion = "iad1"

// Optional fields are pointers or empty values, and are left out if empty, never
// null: clients refuse null except where the type says so.

// sessionObject is one run of a sandbox. In the older protocol it represents the
// sandbox itself, and has the sandbox's id.
type sessionObject struct {
	ID                  string           `json:"id"`
	Status              string           `json:"status"`
	Memory              int64            `json:"memory"` // MB
	VCPUs               float64          `json:"vcpus"`
	Timeout             int64            `json:"timeout"` // in all, as extended
	Region              string           `json:"region"`
	Runtime             string           `json:"runtime"` // or the image's name; older clients need one
	Cwd                 string           `json:"cwd"`
	RequestedAt         int64            `json:"requestedAt"`
	CreatedAt           int64            `json:"createdAt"`
	UpdatedAt           int64            `json:"updatedAt"`
	StartedAt           *int64           `json:"startedAt,omitempty"`
	StoppedAt           *int64           `json:"stoppedAt,omitempty"`
	Duration            *int64           `json:"duration,omitempty"`
	SourceSnapshotID    string           `json:"sourceSnapshotId,omitempty"`
	InteractivePort     int              `json:"interactivePort,omitempty"`
	NetworkPolicy       NetworkResponse  `json:"networkPolicy"`
	ActiveCPUDurationMS *int64           `json:"activeCpuDurationMs,omitempty"`
	NetworkTransfer     *networkTransfer `json:"networkTransfer,omitempty"`
	ProjectID           string           `json:"projectId"`
	SourceSandboxName   string           `json:"sourceSandboxName"`
}

type networkTransfer struct {
	Ingress int64 `json:"ingress"` // bytes
	Egress  int64 `json:"egress"`
}

// sandboxObject is a sandbox, which has a name and a sequence of sessions.
type sandboxObject struct {
	Name                     string                 `json:"name"`
	Persistent               bool                   `json:"persistent"`
	CurrentSessionID         string                 `json:"currentSessionId"`
	CurrentSnapshotID        string                 `json:"currentSnapshotId,omitempty"`
	Status                   string                 `json:"status"`
	CreatedAt                int64                  `json:"createdAt"`
	UpdatedAt                int64                  `json:"updatedAt"`
	StatusUpdatedAt          int64                  `json:"statusUpdatedAt"`
	ExpiresAt                *int64                 `json:"expiresAt,omitempty"` // only while it runs
	Region                   string                 `json:"region"`
	FailoverRegions          []string               `json:"failoverRegions,omitempty"`
	NetworkID                string                 `json:"networkId,omitempty"`
	VCPUs                    float64                `json:"vcpus"`
	Memory                   int64                  `json:"memory"`
	Runtime                  string                 `json:"runtime,omitempty"`
	Image                    string                 `json:"image,omitempty"` // with its digest
	Timeout                  int64                  `json:"timeout"`
	Cwd                      string                 `json:"cwd"`
	NetworkPolicy            NetworkResponse        `json:"networkPolicy"`
	TotalActiveCPUDurationMS int64                  `json:"totalActiveCpuDurationMs"`
	TotalDurationMS          int64                  `json:"totalDurationMs"`
	TotalIngressBytes        int64                  `json:"totalIngressBytes"`
	TotalEgressBytes         int64                  `json:"totalEgressBytes"`
	Tags                     map[string]string      `json:"tags,omitempty"`
	Mounts                   map[string]mountObject `json:"mounts,omitempty"` // by path
	SnapshotExpiration       int64                  `json:"snapshotExpiration"`
	KeepLastSnapshots        *keepLastObject        `json:"keepLastSnapshots,omitempty"`
}

type mountObject struct {
	Drive string `json:"drive"`
	Mode  string `json:"mode,omitempty"`
}

// keepLastObject is a sandbox's retention.
type keepLastObject struct {
	Count int `json:"count"`
	// Expiration of kept snapshots: 0 means never; left out for the sandbox's
	// expiration.
	Expiration    *int64 `json:"expiration,omitempty"`
	DeleteEvicted bool   `json:"deleteEvicted"`
}

type routeObject struct {
	URL       string `json:"url"`
	Subdomain string `json:"subdomain"`
	Port      int    `json:"port"`
	System    bool   `json:"system,omitempty"`
}

type snapshotObject struct {
	ID              string   `json:"id"`
	SourceSessionID string   `json:"sourceSessionId"`
	Region          string   `json:"region"`
	Regions         []string `json:"regions"`
	Status          string   `json:"status"`
	SizeBytes       int64    `json:"sizeBytes"`
	CreatedAt       int64    `json:"createdAt"`
	UpdatedAt       int64    `json:"updatedAt"`
	LastUsedAt      int64    `json:"lastUsedAt"`
	ExpiresAt       *int64   `json:"expiresAt,omitempty"` // left out: never
	CreationMethod  string   `json:"creationMethod"`
	ParentID        string   `json:"parentId,omitempty"`
}

type driveObject struct {
	ID                 string `json:"id"`
	ParentDriveID      string `json:"parentDriveId,omitempty"` // of a fork
	Name               string `json:"name"`
	ProjectID          string `json:"projectId"`
	Region             string `json:"region"`
	MaxSizeBytes       int64  `json:"maxSizeBytes"`
	CreatedAt          int64  `json:"createdAt"`
	UpdatedAt          int64  `json:"updatedAt"`
	CurrentSessionID   string `json:"currentSessionId,omitempty"`
	CurrentSandboxName string `json:"currentSandboxName,omitempty"`
}

// pagination of a list. Next is null on the last page.
type pagination struct {
	Count int     `json:"count"` // in this page
	Next  *string `json:"next"`
}

func paginate(count int, next string) pagination {
	p := pagination{Count: count}
	if next != "" {
		p.Next = &next
	}
	return p
}

// sessionObject returns the JSON form of a session of a sandbox.
func (h *handler) sessionObject(s *sandbox.Session, sb *sandbox.Sandbox) sessionObject {
	o := sessionObject{
		ID: s.ID, Status: sessionStatus(s.Status), Memory: s.MemoryMB, VCPUs: s.VCPUs, Timeout: inMS(s.Timeout),
		Region: regionOf(sb.Annotations), Runtime: cmp.Or(sb.Runtime, sb.Annotations[noteImage], sb.Image), Cwd: sb.WorkDir,
		RequestedAt: s.CreatedAt.UnixMilli(), CreatedAt: s.CreatedAt.UnixMilli(), UpdatedAt: s.CreatedAt.UnixMilli(),
		StartedAt: atMS(s.StartedAt), SourceSnapshotID: s.SourceID, InteractivePort: interactivePort(sb),
		NetworkPolicy: NetworkToResponse(sb.Network), ProjectID: sb.ProjectID, SourceSandboxName: sb.Name,
	}
	if o.Status == "stopping" && h.snapshotting.of(s.ID) > 0 {
		o.Status = "snapshotting"
	}
	switch {
	case s.StoppedAt != nil:
		o.UpdatedAt = s.StoppedAt.UnixMilli()
	case s.ID == sb.SessionID:
		o.UpdatedAt = max(o.UpdatedAt, sb.UpdatedAt.UnixMilli())
	case s.StartedAt != nil:
		o.UpdatedAt = s.StartedAt.UnixMilli()
	}
	if over(s.Status) {
		o.StoppedAt = atMS(s.StoppedAt)
		duration, cpu := inMS(s.Usage.WallTime), inMS(s.Usage.ActiveCPU)
		o.Duration, o.ActiveCPUDurationMS = &duration, &cpu
		o.NetworkTransfer = &networkTransfer{Ingress: s.Usage.IngressBytes, Egress: s.Usage.EgressBytes}
	}
	return o
}

// sandboxObject returns the JSON form of a sandbox, with the settings of its next
// session.
func (h *handler) sandboxObject(ctx context.Context, sb *sandbox.Sandbox) (sandboxObject, error) {
	o := newSandboxObject(sb)
	for at, m := range o.Mounts {
		d, err := h.Sandboxes.GetDrive(ctx, m.Drive)
		switch {
		case err == nil:
			m.Drive = d.Name // by which clients know it
			o.Mounts[at] = m
		case cay.CodeOf(err) != cay.NotFound: // deleted since
			return o, err
		}
	}
	return o, nil
}

// newSandboxObject is sandboxObject with the drives' ids instead of names.
func newSandboxObject(sb *sandbox.Sandbox) sandboxObject {
	o := sandboxObject{
		Name: sb.Name, Persistent: sb.Persistent, CurrentSessionID: sb.SessionID, CurrentSnapshotID: sb.SnapshotID,
		Status: sandboxStatus(sb.Status), CreatedAt: sb.CreatedAt.UnixMilli(), UpdatedAt: sb.UpdatedAt.UnixMilli(),
		StatusUpdatedAt: sb.StatusAt.UnixMilli(), Region: regionOf(sb.Annotations), NetworkID: sb.Annotations[noteNetworkID],
		VCPUs: sb.VCPUs, Memory: sb.MemoryMB, Runtime: sb.Runtime, Image: imageOf(sb), Timeout: inMS(sb.Timeout), Cwd: sb.WorkDir,
		NetworkPolicy:            NetworkToResponse(sb.Network),
		TotalActiveCPUDurationMS: inMS(sb.Total.ActiveCPU), TotalDurationMS: inMS(sb.Total.WallTime),
		TotalIngressBytes: sb.Total.IngressBytes, TotalEgressBytes: sb.Total.EgressBytes,
		Tags: sb.Tags, Mounts: mountObjects(sb.Mounts), SnapshotExpiration: inMS(sb.SnapshotExpiration),
	}
	if n := sb.Next; n != nil {
		set(&o.VCPUs, n.VCPUs)
		set(&o.Memory, n.MemoryMB)
		set(&o.Runtime, n.Runtime)
		if n.Timeout != nil {
			o.Timeout = inMS(*n.Timeout)
		}
		if n.Mounts != nil {
			o.Mounts = mountObjects(n.Mounts)
		}
	}
	if f := sb.Annotations[noteFailover]; f != "" {
		o.FailoverRegions = strings.Split(f, ",")
	}
	if sb.Status == sandbox.Running || sb.Status == sandbox.Paused {
		o.ExpiresAt = atMS(sb.ExpiresAt)
	}
	if r := sb.Retention; r != nil && !r.All {
		o.KeepLastSnapshots = &keepLastObject{Count: r.Keep, DeleteEvicted: !r.KeepEvicted}
		if r.Expiration != nil {
			ms := inMS(*r.Expiration)
			o.KeepLastSnapshots.Expiration = &ms
		}
	}
	return o
}

// routeObjects returns the JSON form of a sandbox's ports. The port for terminals is
// a system port.
func routeObjects(sb *sandbox.Sandbox, system bool) []routeObject {
	routes := []routeObject{}
	interactive := interactivePort(sb)
	for _, p := range sb.Ports {
		if p.Port != interactive || system {
			routes = append(routes, routeObject{URL: p.URL, Subdomain: p.Label, Port: p.Port, System: p.Port == interactive})
		}
	}
	return routes
}

func newSnapshotObject(s *sandbox.Snapshot) snapshotObject {
	o := snapshotObject{
		ID: s.ID, SourceSessionID: s.SessionID, Region: regionOf(s.Annotations), Status: string(s.Status), SizeBytes: s.SizeBytes,
		CreatedAt: s.CreatedAt.UnixMilli(), UpdatedAt: s.UpdatedAt.UnixMilli(), LastUsedAt: s.CreatedAt.UnixMilli(),
		ExpiresAt: atMS(s.ExpiresAt), CreationMethod: "manual", ParentID: s.ParentID,
	}
	o.Regions = []string{o.Region}
	if s.LastUsedAt != nil {
		o.LastUsedAt = s.LastUsedAt.UnixMilli()
	}
	if s.Automatic {
		o.CreationMethod = "automatic"
	}
	return o
}

// sessionStatus is a session's status in the protocol. A hibernated session is shown
// as stopped: clients resume both when they need the session.
func sessionStatus(s sandbox.Status) string {
	switch s {
	case sandbox.Pending, sandbox.Resuming:
		return "pending"
	case sandbox.Running, sandbox.Paused:
		return "running"
	case sandbox.Stopping:
		return "stopping"
	case sandbox.Failed:
		return "failed"
	}
	return "stopped"
}

// sandboxStatus returns one of the three statuses that every client knows.
func sandboxStatus(s sandbox.Status) string {
	switch s {
	case sandbox.Pending, sandbox.Resuming, sandbox.Running, sandbox.Paused:
		return "running"
	case sandbox.Stopping:
		return "stopping"
	}
	return "stopped"
}

// over reports whether a session with this status has ended for clients.
func over(s sandbox.Status) bool { return s.Final() || s == sandbox.Hibernated }

func regionOf(notes map[string]string) string { return cmp.Or(notes[noteRegion], defaultRegion) }

// imageOf returns the image that a sandbox was made from, pinned to its digest.
func imageOf(sb *sandbox.Sandbox) string {
	asked := sb.Annotations[noteImage]
	if asked == "" && sb.Runtime == "" {
		asked = sb.Image
	}
	if asked == "" || sb.Digest == "" {
		return asked
	}
	return repository(asked) + "@" + sb.Digest
}

// repository returns an image reference without its tag or digest.
func repository(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	if i := strings.LastIndexByte(ref, ':'); i > strings.LastIndexByte(ref, '/') {
		ref = ref[:i]
	}
	return ref
}

// interactivePort returns the port declared for terminals, 0 if there is none.
func interactivePort(sb *sandbox.Sandbox) int {
	n, err := strconv.Atoi(sb.Annotations[noteInteractivePort])
	if err != nil || !slices.ContainsFunc(sb.Ports, func(p sandbox.Port) bool { return p.Port == n }) {
		return 0
	}
	return n
}

// mountObjects returns the drives of a sandbox. Mounts that are not writable are
// shown as "snapshot": clients in JavaScript treat "read-only" the same, and the
// Python client knows only "snapshot".
func mountObjects(mounts []sandbox.Mount) map[string]mountObject {
	all := map[string]mountObject{}
	for _, m := range mounts {
		mode := "snapshot"
		if m.Mode == sandbox.MountReadWrite || m.Mode == "" {
			mode = "read-write"
		}
		all[m.Path] = mountObject{Drive: m.Drive, Mode: mode}
	}
	return all
}

func inMS(d sandbox.Duration) int64 { return time.Duration(d).Milliseconds() }

func atMS(t *time.Time) *int64 {
	if t == nil {
		return nil
	}
	ms := t.UnixMilli()
	return &ms
}
