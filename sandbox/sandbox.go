package sandbox

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// Status is where a sandbox is in its life. internal/sandboxd/doc.go draws the transitions.
type Status string

const (
	Pending  Status = "pending"  // being created
	Running  Status = "running"  // answers commands
	Paused   Status = "paused"   // processes frozen, memory kept
	Stopping Status = "stopping" // being torn down
	Stopped  Status = "stopped"  // ended on request, by timeout or when idle
	Failed   Status = "failed"   // never came up, or ended by a fault; see Sandbox.Reason
)

// Final reports whether a sandbox in this status has ended.
func (s Status) Final() bool { return s == Stopped || s == Failed }

// Reason says why a sandbox left the running state.
type Reason string

const (
	ReasonRequested Reason = "requested"       // somebody called Stop or Delete
	ReasonTimeout   Reason = "timeout"         // its timeout passed
	ReasonIdle      Reason = "idle"            // its idle timeout passed without activity
	ReasonOOM       Reason = "oom_killed"      // it used more memory than its limit
	ReasonCrashed   Reason = "runtime_crashed" // the isolation layer died
	ReasonExited    Reason = "guest_exited"    // the guest's init ended by itself
	ReasonStart     Reason = "start_failed"    // it never came up
	ReasonLost      Reason = "lost"            // found dead after a restart of the daemon
)

// Sandbox is one isolated machine.
type Sandbox struct {
	ID        string `json:"id"`   // "sbx_" and 20 characters; never reused
	Name      string `json:"name"` // unique among the project's sandboxes that were not deleted
	TeamID    string `json:"team_id"`
	ProjectID string `json:"project_id"`
	Status    Status `json:"status"`
	Reason    Reason `json:"reason,omitempty"`  // why it ended; empty before
	Message   string `json:"message,omitempty"` // a sentence on Reason, for people

	Image    string            `json:"image"`             // reference as given, or the default's name
	Digest   string            `json:"digest"`            // "sha256:..." of the image that was used
	Runtime  string            `json:"runtime,omitempty"` // "node24", "python3.13", ...
	VCPUs    float64           `json:"vcpus"`
	MemoryMB int64             `json:"memory_mb"` // MiB
	DiskMB   int64             `json:"disk_mb"`   // MiB the sandbox may write
	Env      map[string]string `json:"env,omitempty"`
	Tags     map[string]string `json:"tags,omitempty"`
	User     string            `json:"user"`    // default user of commands and files
	WorkDir  string            `json:"workdir"` // default working directory, absolute
	Network  Network           `json:"network"`
	Ports    []Port            `json:"ports,omitempty"` // in the order they were declared

	Timeout     Duration   `json:"timeout_ms"`                // total allowed run time, grows with Extend
	IdleTimeout Duration   `json:"idle_timeout_ms,omitempty"` // 0: never stopped for being idle
	CreatedAt   time.Time  `json:"created_at"`
	UpdatedAt   time.Time  `json:"updated_at"`
	StartedAt   *time.Time `json:"started_at,omitempty"`
	ExpiresAt   *time.Time `json:"expires_at,omitempty"` // only while it runs
	StoppedAt   *time.Time `json:"stopped_at,omitempty"`

	Usage Usage `json:"usage"` // brought up to date when read while running, final afterwards
}

// Usage counts what a sandbox has consumed since it started.
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

// CreateParams describes the sandbox to create. The zero value makes a sandbox
// of the default image with the default runtime, 2 vCPUs, 4096 MiB of memory,
// 8192 MiB of disk, a 5-minute timeout and all of the internet.
type CreateParams struct {
	// Name is 1 to 128 of A-Z a-z 0-9 _ -, not beginning with sbx_ as ids do;
	// generated if empty.
	Name string `json:"name,omitempty"`
	// Image is a reference known to the image store, or one it can pull.
	// Empty means the default image. Not together with Runtime.
	Image string `json:"image,omitempty"`
	// Runtime is a language runtime on the default image: node22, node24,
	// node26 or python3.13. Empty means node24 when Image is empty too.
	Runtime string `json:"runtime,omitempty"`
	// VCPUs is the CPU limit: 0.1 to 64. 0 means 2.
	VCPUs float64 `json:"vcpus,omitempty"`
	// MemoryMB is the memory limit in MiB, isolation layer included: at least
	// 128. 0 means 2048 for each vCPU (at least 512).
	MemoryMB int64 `json:"memory_mb,omitempty"`
	// DiskMB is how many MiB may be written over the image: at least 16. 0 means 8192.
	DiskMB int64 `json:"disk_mb,omitempty"`
	// Timeout ends the sandbox that long after its start: at least 1 s. 0 means 5 minutes.
	Timeout Duration `json:"timeout_ms,omitempty"`
	// IdleTimeout stops the sandbox when it has had no command, file or
	// terminal activity for that long: at least 1 s. 0 means never.
	IdleTimeout Duration `json:"idle_timeout_ms,omitempty"`
	// Env is the environment of every command; a command's own wins. At most
	// 1024 variables, 256 KiB together, in UTF-8.
	Env map[string]string `json:"env,omitempty"`
	// Tags are at most 16 labels: keys of 1 to 64, values of at most 256 characters.
	Tags map[string]string `json:"tags,omitempty"`
	// User runs commands and owns files unless they say otherwise. Empty means the image's.
	User string `json:"user,omitempty"`
	// WorkDir is absolute. Empty means the image's.
	WorkDir string `json:"workdir,omitempty"`
	// Network defaults to AllowAll.
	Network Network `json:"network,omitzero"`
	// Ports to serve previews of: at most 15.
	Ports []PortParams `json:"ports,omitempty"`
	// Project to create it in, by id. Empty means the token's own, or the team's default.
	ProjectID string `json:"project_id,omitempty"`
	// IdempotencyKey makes repeating this call return the first call's sandbox
	// for 24 hours. Sent as the Idempotency-Key header; at most 255 characters.
	IdempotencyKey string `json:"-"`
}

// UpdateParams changes a sandbox. Nil fields stay as they are.
type UpdateParams struct {
	Tags        map[string]string `json:"tags,omitzero"`     // replaces all; an empty map clears
	Network     *Network          `json:"network,omitempty"` // takes effect at once, on live connections too
	Ports       []PortParams      `json:"ports,omitzero"`    // replaces all; ports that stay keep their labels
	IdleTimeout *Duration         `json:"idle_timeout_ms,omitempty"`
}

// ListParams selects sandboxes, newest first.
type ListParams struct {
	ProjectID  string            // empty: the token's own; "*": all projects of the team
	Status     []Status          // empty: every status
	NamePrefix string            //
	Tags       map[string]string // all must match
	Limit      int               // 1 to 200; 0 means 50
	Cursor     string            // Next of the page before
}

// Page is one page of a list.
type Page[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"` // cursor of the next page; empty on the last
}

// Duration is a time.Duration that travels as whole milliseconds.
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
