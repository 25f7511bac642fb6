// Package machine defines machines for their users and for Runtimes: how a machine is
// started, called, saved and destroyed, the files of its saved state, and that every wait
// for a machine is bounded.
package machine

import (
	"context"
	"net"
	"net/netip"

	"github.com/cayhq/cay/sandbox"
)

// Runtime starts isolated machines. gvisor is the real implementation; fake isolates
// nothing and serves tests of the layers above; runtimetest holds both to the same
// behaviour. A Runtime records on disk how to find its machines, so a new Runtime over
// the same state adopts the machines of an old one.
//
// Tenant code runs only through a Runtime.
type Runtime interface {
	// Start boots a machine and returns when its guest accepts connections.
	// If it fails, nothing of the machine is left.
	Start(ctx context.Context, spec Spec) (Instance, error)
	// Adopt takes over a machine that an earlier Runtime over the same state started.
	// Connections into the machine are lost, and its network is DenyAll until SetNetwork.
	// Errors: not_found if the machine does not exist or no longer runs (Reap cleans up).
	Adopt(ctx context.Context, id string) (Instance, error)
	// SavesMemory reports whether this Runtime can save and restore a machine with its
	// processes. Otherwise Restore, Instance.Checkpoint and Instance.Fork fail with
	// not_supported and change nothing.
	SavesMemory() bool
	// Restore starts a machine that continues from the state that Instance.Checkpoint
	// saved in dir: same processes, open files and memory. It runs at once, even if the
	// saved machine was paused. ID, Hostname, limits and Network of spec are the new
	// machine's own, and Network is in force before the first instruction. The guest
	// keeps its host name and Init, and loses all connections except those within itself.
	// RootFS and Mounts must be as before: the caller compares State.Images.
	//
	// Restore returns when the guest runs. Memory that its processes need is loaded
	// first, the rest in the background from open files: dir may be removed. If memory
	// that is loaded later is damaged, the machine ends with ReasonCrashed. If Restore
	// fails, nothing of the machine is left. Errors: not_found if there is no complete
	// state in dir, conflict if the state is damaged or not a MemoryState, not_supported
	// if another build, architecture or processor wrote it, or if spec is Restricted and
	// the saved machine was not, invalid if the mounts differ; and those of Start.
	Restore(ctx context.Context, spec Spec, dir string) (Instance, error)
	// StartFrom is Start with the root that Instance.SaveDisk saved in dir. For dir,
	// RootFS, damage and errors it is like Restore; Mounts may differ.
	StartFrom(ctx context.Context, spec Spec, dir string) (Instance, error)
	// SameDisk reports whether two roots that Instance.SaveDisk saved in the directories
	// a and b have the same files: names, types, owners, modes, times, links, attributes
	// and contents. Differences that every start makes are ignored. SameDisk may return
	// false for equal roots, but never true for different ones. Errors: those of reading
	// either state.
	SameDisk(ctx context.Context, a, b string) (bool, error)
	// List returns the ids of all machines of which this Runtime, or an earlier one over
	// the same state, has left anything.
	List(ctx context.Context) ([]string, error)
	// Reap ends a machine that is not adopted and removes everything left of it. It
	// returns no error if there is nothing.
	Reap(ctx context.Context, id string) error
	// Close releases the Runtime's own resources. Machines keep running.
	Close() error
}

// Spec describes a machine to start. All fields are set and valid.
type Spec struct {
	ID       string // unique; [a-z0-9_]+
	Hostname string
	RootFS   string  // EROFS file of the image (a directory for fake)
	Mounts   []Mount // further EROFS files
	VCPUs    float64
	MemoryMB int64
	DiskMB   int64
	Network  sandbox.Network
	// Restricted takes raw sockets, packet sockets and nftables from root in the guest.
	// A machine that continues from memory always has the privileges that it was saved
	// with: it must not be Restricted if it was saved without, and is Restricted anyway if
	// it was saved Restricted.
	Restricted bool
	// Init is the argv of the guest's PID 1; its path is in the guest (normally in one of
	// Mounts). fake has its own init and ignores this.
	Init []string
	// GuestConfig is passed to Init in the environment variable CAY_GUEST_CONFIG; it
	// holds no secret that root in the guest may not know.
	GuestConfig []byte
}

// Mount is a file system of the guest in addition to its root: an EROFS file mounted
// read-only, or a drive.
type Mount struct {
	Source string // host path of the EROFS file; "" for a drive
	Target string // absolute guest path, created if missing
	// Drive makes the mount a drive. Nil means the EROFS file.
	Drive *DriveSpec
}

// DriveSpec is a file system with a size of its own. It is saved separately from the root
// (SaveParams.Mounts), and can be mounted elsewhere in another machine. A MemoryState
// includes the machine's drives, and Restore and Fork continue with them: their specs
// must have the same drives at the same paths, and From is ignored.
//
// A new drive is a directory owned by root with mode 0755. A machine that starts from a
// saved drive gets a copy of its own; if several machines write to copies of a drive, the
// caller must save only one of them as that drive.
type DriveSpec struct {
	// SizeMB is the maximal size of the drive's data. Further writes fail with ENOSPC in
	// the guest; Start fails with too_large if From has more data.
	SizeMB int64
	// From is the directory in which SaveDisk saved a drive, wherever that drive was
	// mounted. "" means that the drive is empty. For damage and errors it is like the dir
	// of Runtime.Restore.
	From string
	// ReadOnly makes writes in the guest fail.
	ReadOnly bool
}

// OutboundHandler decides about one connection of a guest; o has no ID. If it returns an
// error, the connection is refused.
type OutboundHandler func(ctx context.Context, o sandbox.Outbound) (OutboundAnswer, error)

// OutboundAnswer is the decision about a connection.
type OutboundAnswer struct {
	As sandbox.Handling
	// Take is called once for HandleRaw and HandlePlain, and owns conn. conn is nil if
	// the connection has ended or its TLS cannot be opened.
	Take func(conn net.Conn)
}

// Connection is a TCP connection of a guest.
type Connection struct{ Local, Remote netip.AddrPort }

// Instance is one running machine. Methods may be called concurrently.
type Instance interface {
	ID() string
	// DialGuest connects to the guest's control port.
	DialGuest(ctx context.Context) (net.Conn, error)
	// Dial connects to a TCP port that a program in the guest listens on. Its bytes count
	// as traffic. Errors: unavailable if nothing listens, quota_exceeded if no more bytes
	// may flow.
	Dial(ctx context.Context, port uint16) (net.Conn, error)
	// SetNetwork replaces the egress policy. Before it returns, it cuts live flows that
	// the new policy forbids.
	SetNetwork(n sandbox.Network) error
	// SetLimits changes the CPU and memory limits of the machine, to at most those of its
	// start. The sizes that its programs see, for example in /proc, do not change.
	SetLimits(vcpus float64, memoryMB int64) error
	// SetTraffic sets the number of bytes that the machine's network relayed before it
	// was adopted: they count in Stats and for NetworkLimits.TotalBytes.
	SetTraffic(ingress, egress int64)
	// Reset ends those of the guest's connections that began before the machine was
	// adopted, as if their peers had reset them. It ignores other connections.
	Reset(connections []Connection)
	// OnFlow makes the machine call f for every further flow to the outside. f is called
	// from many goroutines and must not block. nil ends the calls.
	OnFlow(f func(sandbox.Flow))
	// OnOutbound makes the machine call h for further connections that Network.Handled
	// covers. h is called from many goroutines and may block. With nil these connections
	// are refused.
	OnOutbound(h OutboundHandler)
	// Pause freezes all processes of a running machine; Resume unfreezes those of a
	// paused one. Calls do not nest. Adopt leaves a paused machine paused.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	// Paused reports whether this daemon or an earlier one has paused the machine. sure
	// is false if the earlier daemon died while it paused or resumed the machine, or was
	// of a version that did not record it.
	Paused() (paused, sure bool)
	// Checkpoint saves the whole machine, for Runtime.Restore. The machine is paused
	// while its memory is copied to files, but not until they are synced. Then it
	// continues as before, running or paused, even if the rest fails. Concurrent saves of
	// one Instance wait for each other.
	//
	// When Checkpoint returns, everything in p.Dir is complete and synced; the caller
	// renames p.Dir and syncs its parent. If it fails, or ctx ends, p.Dir is empty again.
	// Only the caller can change the files from then on. Errors: invalid, too_large,
	// no_space if the host's disk is full, not_supported, unavailable if the machine has
	// ended.
	Checkpoint(ctx context.Context, p SaveParams) (*State, error)
	// SaveDisk is Checkpoint for files only. It saves the root, for Runtime.StartFrom, or
	// a drive, for DriveSpec.From. Data that processes hold in memory or have not yet
	// written is not included, so the processes should have ended or be paused. Sockets,
	// memory file systems (/dev/shm), fractions of a second in file times, and user
	// attributes that are empty, have an = in their name or are not UTF-8 are not saved.
	// Files that were deleted but are open take space without being saved.
	SaveDisk(ctx context.Context, p SaveParams) (*State, error)
	// Fork starts a machine for each spec that continues from this machine's current
	// state. It is Checkpoint followed by a Restore for each spec, except that nothing
	// need be synced to disk. Either all of them start or none. Errors: those of
	// Checkpoint and Restore.
	Fork(ctx context.Context, p ForkParams) (*Forked, error)
	Stats(ctx context.Context) (Stats, error)
	// Done is closed when the machine has ended for whatever reason; then Exit returns
	// the reason.
	Done() <-chan struct{}
	Exit() Exit
	// Destroy ends the machine at once and frees all its resources. Calling it again does
	// nothing.
	Destroy(ctx context.Context) error
	// Detach releases the machine without ending it, for Adopt by a later Runtime.
	Detach() error
}

// SaveParams says where and what to save.
type SaveParams struct {
	// Dir is an existing, empty directory.
	Dir string
	// Base is the directory of an earlier DiskState, of the same disk if possible. SaveDisk
	// may make hard links of its files in Dir, in place of files with the same content. It
	// must stay until SaveDisk returns. "" shares nothing. Checkpoint ignores it.
	Base string
	// MaxBytes bounds the total size of the files. 0: no bound.
	MaxBytes int64
	// Images identifies the machine's images by mount point, "/" for Spec.RootFS: by
	// digests, or other texts that let a later caller compare images. The State contains
	// them, and the Runtime only checks that the mount points are those of Spec.Mounts
	// without drives. Empty if Mounts is set.
	Images map[string]string
	// Mounts is the path of the drive that SaveDisk is to save instead of the root: at
	// most one. Errors: invalid if no writable drive is mounted there.
	Mounts []string
}

// ForkParams says which machines Fork starts.
type ForkParams struct {
	Specs    []Spec // at least one; see Runtime.Restore
	MaxBytes int64  // as in SaveParams
}

// Forked is the result of a fork.
type Forked struct {
	Instances []Instance // in the order of ForkParams.Specs
	// Bytes is how much was copied from the machine, counted once for all copies.
	Bytes int64
	// Paused is how long the machine was paused, Started how long it took until all
	// copies ran.
	Paused, Started sandbox.Duration
}

// Stats is a reading of a machine's counters. Counters that the platform does not have
// are zero.
type Stats struct {
	CPU          sandbox.Duration // CPU time used, including the isolation layer's
	MemoryBytes  int64
	MemoryPeak   int64
	DiskBytes    int64
	IngressBytes int64
	EgressBytes  int64
	Processes    int
}

// Exit says how a machine ended.
type Exit struct {
	Reason  sandbox.Reason // ReasonOOM, ReasonCrashed, ReasonExited, or ReasonRequested after Destroy
	Message string
	Code    int // exit status of the guest's init, for ReasonExited
	// Damaged says that the state from which the machine started is damaged and could not
	// be loaded.
	Damaged bool
}
