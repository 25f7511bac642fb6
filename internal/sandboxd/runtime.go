package sandboxd

import (
	"context"
	"net"

	"github.com/cayhq/cay/sandbox"
)

// Runtime starts isolated machines. gvisor is the real one, fake isolates
// nothing and serves the tests above it; runtimetest holds both to the same
// behaviour. It keeps what it needs to find machines again on disk, so a new
// Runtime over the same state adopts what an old one left.
//
// Tenant code runs only through a Runtime.
type Runtime interface {
	// Start boots a machine and returns when its guest accepts connections.
	// If it fails, nothing of the machine is left.
	Start(ctx context.Context, spec Spec) (Instance, error)
	// Adopt takes over a machine that was started by an earlier Runtime over
	// the same state. Connections into it were lost, and its network is
	// DenyAll until SetNetwork. Errors: not_found if it is not there or no
	// longer runs (Reap cleans up).
	Adopt(ctx context.Context, id string) (Instance, error)
	// List returns the id of every machine this Runtime, or an earlier one
	// over the same state, has left anything of.
	List(ctx context.Context) ([]string, error)
	// Reap ends and removes all that is left of a machine that is not adopted.
	// No error if there is nothing.
	Reap(ctx context.Context, id string) error
	// Close releases what the Runtime itself holds. Machines keep running.
	Close() error
}

// Spec is a machine to start. All fields are set and valid.
type Spec struct {
	ID       string // unique; [a-z0-9_]+
	Hostname string
	RootFS   string  // EROFS file of the image (a directory for fake)
	Mounts   []Mount // further EROFS files
	VCPUs    float64
	MemoryMB int64
	DiskMB   int64
	Network  sandbox.Network
	// Init is the argv of the guest's PID 1, a path in the guest (normally in
	// one of Mounts). fake has its own and ignores it.
	Init []string
	// GuestConfig is handed to Init in the environment variable
	// CAY_GUEST_CONFIG; it holds no secret that root in the guest may not know.
	GuestConfig []byte
}

// Mount is an EROFS file mounted read-only in the guest.
type Mount struct {
	Source string // host path of the EROFS file
	Target string // absolute guest path, created if missing
}

// Instance is one running machine. Methods may be called concurrently.
type Instance interface {
	ID() string
	// DialGuest connects to the guest's control port.
	DialGuest(ctx context.Context) (net.Conn, error)
	// Dial connects to a TCP port a guest program listens on. Its bytes count as
	// traffic. Errors: unavailable if nothing listens, quota_exceeded if no more
	// bytes may flow.
	Dial(ctx context.Context, port uint16) (net.Conn, error)
	// SetNetwork replaces the egress policy; live flows it forbids are cut
	// before it returns.
	SetNetwork(n sandbox.Network) error
	// SetTraffic says how many bytes the machine's network relayed before it was
	// adopted: they count in Stats and for NetworkLimits.TotalBytes.
	SetTraffic(ingress, egress int64)
	// OnFlow makes f hear of every flow to the outside from now on. f is called
	// from many goroutines and must not block. nil stops it.
	OnFlow(f func(sandbox.Flow))
	// Pause freezes all processes of a running machine, Resume lets those of a
	// paused one go on. Adopt leaves a paused machine paused.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	Stats(ctx context.Context) (InstanceStats, error)
	// Done is closed when the machine has ended by whatever cause; then Exit
	// says why.
	Done() <-chan struct{}
	Exit() Exit
	// Destroy ends the machine at once and frees all it held. Calling it again
	// does nothing.
	Destroy(ctx context.Context) error
	// Detach lets go of the machine without ending it, for Adopt by a later
	// Runtime.
	Detach() error
}

// InstanceStats is a reading of a machine's counters. Zero where the platform
// cannot tell.
type InstanceStats struct {
	CPU          sandbox.Duration // CPU time used, isolation layer included
	MemoryBytes  int64
	MemoryPeak   int64
	DiskBytes    int64
	IngressBytes int64
	EgressBytes  int64
	Processes    int
}

// Exit is how a machine ended.
type Exit struct {
	Reason  sandbox.Reason // ReasonOOM, ReasonCrashed, ReasonExited, or ReasonRequested after Destroy
	Message string
	Code    int // exit status of the guest's init, for ReasonExited
}
