// Package machine says what a machine is, to who has some and to who makes them: how one
// is started, talked to, saved and ended, what is saved of it, and that nobody waits for
// one for ever.
package machine

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
	// SavesMemory reports whether this Runtime can save and restore a machine
	// with its processes. If not, Restore, Instance.Checkpoint and Instance.Fork
	// fail with not_supported and change nothing.
	SavesMemory() bool
	// Restore starts a machine that goes on where Instance.Checkpoint saved it in
	// dir: same processes, open files and memory. It runs at once, also if the
	// saved one was paused. spec's ID, Hostname, limits and Network are the new
	// machine's own, and Network is in force before the first instruction; the
	// guest keeps its host name and Init, and loses all connections but those
	// within itself. RootFS and Mounts must be what they were: the caller
	// compares State.Images.
	//
	// It returns when the guest runs. What its processes need of their memory is
	// loaded first, the rest meanwhile, from files that are open: dir may be
	// removed. If what is loaded later is damaged the machine ends with
	// ReasonCrashed. If Restore fails, nothing of the machine is left. Errors:
	// not_found if there is no complete state in dir, conflict if it is damaged
	// or is not one of memory, not_supported if another build, architecture or
	// processor wrote it, invalid if the mounts differ; and those of Start.
	Restore(ctx context.Context, spec Spec, dir string) (Instance, error)
	// StartFrom is Start with what Instance.SaveDisk saved of a root in dir. It is
	// as Restore concerning dir, RootFS, damage and errors; Mounts may be others.
	StartFrom(ctx context.Context, spec Spec, dir string) (Instance, error)
	// SameDisk reports whether what Instance.SaveDisk saved of two roots, in the
	// directories a and b, are the same files: names, types, owners, modes, times,
	// links, attributes and contents. Differences that every start makes do not count.
	// It may report false for roots that are the same, never true for others. Errors:
	// those of reading either.
	SameDisk(ctx context.Context, a, b string) (bool, error)
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

// Mount is a file system of the guest beside its root: an EROFS file mounted
// read-only, or a drive.
type Mount struct {
	Source string // host path of the EROFS file; "" for a drive
	Target string // absolute guest path, created if missing
	// Drive makes it a drive. Nil means the EROFS file.
	Drive *DriveSpec
}

// DriveSpec is a file system of a size of its own that is saved by itself
// (SaveParams.Mounts), not with the root, and that can be mounted elsewhere in
// another machine. What is saved of a machine's memory has its drives too, and
// Restore and Fork go on with those: they want the same drives at the same
// places, and do not look at From.
//
// A new drive is a directory of root's with mode 0755. A machine that starts with
// what was saved of a drive has a copy of its own; it is for the caller to see to
// it that of several that write only one is saved as that drive.
type DriveSpec struct {
	// SizeMB is how much data fits. Writing more fails with ENOSPC in the guest;
	// so does Start with too_large if what From has is more.
	SizeMB int64
	// From is the directory of what SaveDisk saved of a drive, wherever that was
	// mounted then. "" means it begins empty. It is as the dir of Runtime.Restore
	// concerning damage and errors.
	From string
	// ReadOnly lets nobody in the guest write to it.
	ReadOnly bool
}

// OutboundHandler decides about one connection of a guest; o has no ID. An error has
// the connection refused.
type OutboundHandler func(ctx context.Context, o sandbox.Outbound) (OutboundAnswer, error)

// OutboundAnswer is what becomes of a connection.
type OutboundAnswer struct {
	As sandbox.Handling
	// Take is called once for HandleRaw and HandlePlain, and owns conn, which is nil
	// if the connection has ended or its TLS cannot be opened.
	Take func(conn net.Conn)
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
	// SetLimits changes how much CPU and memory the machine may use, at most what
	// it was started with. What its programs are told of both, as in /proc, stays
	// as it was at its start.
	SetLimits(vcpus float64, memoryMB int64) error
	// SetTraffic says how many bytes the machine's network relayed before it was
	// adopted: they count in Stats and for NetworkLimits.TotalBytes.
	SetTraffic(ingress, egress int64)
	// OnFlow makes f hear of every flow to the outside from now on. f is called
	// from many goroutines and must not block. nil stops it.
	OnFlow(f func(sandbox.Flow))
	// OnOutbound has h asked about connections that Network.Handled covers, from now
	// on. h is called from many goroutines and may block. Nil has them refused.
	OnOutbound(h OutboundHandler)
	// Pause freezes all processes of a running machine, Resume lets those of a
	// paused one go on. They do not nest. Adopt leaves a paused machine paused.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	// Paused tells whether the machine was paused, by this daemon or the one before.
	// It is not sure if that one ended while it paused it or let it go on, or was of a
	// version that did not note it.
	Paused() (paused, sure bool)
	// Checkpoint saves all of the machine, for Runtime.Restore. The machine
	// stands still while its memory is copied to files, which is before they are
	// on disk, and then goes on as it was, running or paused, whatever else
	// fails. Saves of one Instance wait for each other.
	//
	// When it returns, everything in p.Dir is complete and on disk; renaming p.Dir
	// and syncing its parent is for the caller. If it fails, or ctx ends, p.Dir
	// is empty again. Nobody but the caller can change the files any more. Errors:
	// invalid, too_large, no_space if the host's disk is full, not_supported,
	// unavailable if the machine has ended.
	Checkpoint(ctx context.Context, p SaveParams) (*State, error)
	// SaveDisk is Checkpoint of what was written to disk alone: to the root, for
	// Runtime.StartFrom, or to a drive, for DriveSpec.From. What processes have not written yet, or hold in memory,
	// is not in it, so they should have ended or be paused. Not kept are sockets,
	// memory file systems (/dev/shm), fractions of a second in the times of
	// files, and user attributes that are empty, have an = in their name or are
	// not UTF-8. Files that were deleted but are open take room in vain.
	SaveDisk(ctx context.Context, p SaveParams) (*State, error)
	// Fork starts a machine for each spec that goes on where this one stands; it
	// is Checkpoint and then Restore for each, except that nothing need reach the
	// disk. All of them start or none. Errors: those of Checkpoint and Restore.
	Fork(ctx context.Context, p ForkParams) (*Forked, error)
	Stats(ctx context.Context) (Stats, error)
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

// SaveParams says where and what to save.
type SaveParams struct {
	// Dir is an existing, empty directory.
	Dir string
	// MaxBytes bounds the files together. 0 is no bound.
	MaxBytes int64
	// Images says what the machine's images are, by mount point, "/" for
	// Spec.RootFS: digests, or whatever lets a later caller tell images that are
	// the same. They are kept in the State and not looked at, except that the
	// mount points must be those of Spec.Mounts, without drives. Empty if Mounts
	// is not.
	Images map[string]string
	// Mounts is where the drive is mounted that SaveDisk is to save instead of
	// the root: one, or none. Errors: invalid if no writable drive is there.
	Mounts []string
}

// ForkParams says what to fork.
type ForkParams struct {
	Specs    []Spec // at least one; see Runtime.Restore
	MaxBytes int64  // as in SaveParams
}

// Forked is what came of a fork.
type Forked struct {
	Instances []Instance // in the order of ForkParams.Specs
	// Bytes is how much was copied from the machine, once for all.
	Bytes int64
	// Paused is how long the machine stood still, Started how long it took until
	// all ran.
	Paused, Started sandbox.Duration
}

// Stats is a reading of a machine's counters. Zero where the platform
// cannot tell.
type Stats struct {
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
	// Damaged says that what the machine started from could not be loaded, as it is
	// damaged.
	Damaged bool
}
