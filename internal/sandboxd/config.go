package sandboxd

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/host"
	"github.com/cayhq/cay/internal/sandboxd/clock"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/programs"
	"github.com/cayhq/cay/internal/sandboxd/snapshot"
	"github.com/cayhq/cay/internal/secret"
	"github.com/cayhq/cay/sandbox"
)

// Config holds the dependencies and settings of an Engine.
type Config struct {
	DB *db.DB
	// FlowDB stores the records of flows. Nil: DB does.
	FlowDB   *db.DB
	Runtime  machine.Runtime
	Images   ImageSource
	Accounts Accounts
	// Secrets seals the secrets of policies, and signs links.
	Secrets *secret.Box
	// PreviewURL returns the URL of a port's label. Nil: ports have no URL.
	PreviewURL func(label string) string
	// Tool is the init program that machines mount. Zero for a Runtime that has its own.
	Tool Tool
	// Gateway is the source address, as the guest sees it, of connections into a guest.
	// Nameserver answers the guest's DNS queries. Unset: the guest accepts any peer, and
	// uses its image's nameserver.
	Gateway, Nameserver netip.Addr
	// Trust holds the authorities that guests trust in addition to their images'. Nil:
	// none.
	Trust Trust
	// Snapshots stores the files of snapshots. No other engine may use it: files without
	// a row in this engine's database are removed. Nil: sandboxes cannot be saved.
	Snapshots *snapshot.Store
	// Programs stores the programs that saved memory needs; the Runtime adds them. As with
	// Snapshots, no other engine may use it. Nil: another build of cay restores no memory.
	Programs *programs.Store
	// Drives stores the content of drives. As with Snapshots, no other engine may use it.
	// Nil: there are no drives.
	Drives blob.Store
	// Commands stores the commands of ended sessions. As with Snapshots, no other engine
	// may use it. Nil: commands are lost when their session ends.
	Commands blob.Store
	// CheckSpace reports whether the host's disk has room for one more sandbox. Errors:
	// no_space. Nil: no check.
	CheckSpace func() error
	Limits     Limits
	// Restricted makes all sandboxes restricted; see sandbox.RestrictedPrivileges. Machines
	// that already run keep their privileges.
	Restricted bool
	// Pools configures the machines that wait, booted, to become sandboxes. A caller that
	// changes Images calls Engine.ImagesChanged.
	Pools []PoolConfig
	// SpareCPU waits, before a pool boots a machine, until there is CPU time that nothing
	// else needs. anew says that only measurements from now on count, because a sandbox
	// was just created. Nil: it looks at the host, and waits at most 2 s.
	SpareCPU func(ctx context.Context, anew bool) error
	// CPUWait returns for how long, since a fixed moment, something on the host has had
	// to wait for a CPU; guests may answer late then. Nil: it reads the host's pressure
	// stall information.
	CPUWait func() time.Duration
	// DestroyOnStop ends all sandboxes when the engine stops. Otherwise they
	// keep running and the next engine adopts them.
	DestroyOnStop bool
	Metrics       Metrics      // nil: none
	Logger        *slog.Logger // nil: none
	Clock         clock.Clock  // nil: the host's
	// Reached is called at named points of the lives of sandboxes; tests kill the process
	// there. Nil: no calls.
	Reached func(point string)
}

// Limits are the operator's limits. Zero fields take the default given.
type Limits struct {
	MaxTimeout  time.Duration // of one sandbox, Extend included; 24 h
	MaxVCPUs    float64       // of one sandbox; 64
	MaxMemoryMB int64         // of one sandbox; 1 TiB
	MaxDiskMB   int64         // of one sandbox; 16 TiB
	// Boots is how many machines start at one time; 8. Further ones wait in a queue that
	// alternates between teams.
	Boots int
	// BootQueue is how many creations may wait for a boot; 2000. More are refused with
	// quota_exceeded.
	BootQueue int
	// StartTimeout bounds the start of a machine, excluding image work; 60 s.
	StartTimeout time.Duration
	// ImageTimeout bounds the build or pull of a sandbox's image and runtime; 30 min.
	ImageTimeout time.Duration
	// SourceTimeout bounds the fetch of a sandbox's source; 10 min.
	SourceTimeout time.Duration
	// CallsPerSandbox and Calls bound the concurrent guest calls, in one sandbox and in
	// all; 512 and 16384. A single team may have at most half of Calls.
	CallsPerSandbox, Calls int
	// ConnsPerSandbox and Conns bound the connections to ports in guests, of previews and
	// DialPort, in one sandbox and in all; 512 and 16384. A single team may have at most
	// half of Conns.
	ConnsPerSandbox, Conns int
	// Network bounds the network policy of a sandbox. Zero fields stay zero: no bound.
	Network sandbox.NetworkLimits
	// Flows is how many records all flow logs together hold; 500000.
	Flows int
	// MaxSnapshotBytes is the maximal size of one snapshot's files; 64 GiB.
	MaxSnapshotBytes int64
	// SnapshotExpiration is the default lifetime of snapshots; 30 days.
	SnapshotExpiration time.Duration
	// SnapshotGrace is the minimal age of files without a row that the collection
	// removes, because their snapshot may be about to be recorded; 2 h.
	SnapshotGrace time.Duration
	// KeptCommands is how many bytes of the newest commands of ended sessions a team may
	// keep; 1 GiB. Each session counts as at least 64 KiB.
	KeptCommands int64
	// Silence is how long a machine may take to pause, or to abort a save, before the
	// engine gives it up; 2 min.
	Silence time.Duration
	// Answer is how long a guest may send nothing while calls wait for it, before they
	// fail; 10 s. It grows to 1 min with the pressure on the host's CPUs.
	Answer time.Duration
}

func (l *Limits) setDefaults() {
	def(&l.MaxTimeout, 24*time.Hour)
	def(&l.MaxVCPUs, 64)
	def(&l.MaxMemoryMB, 1<<20)
	def(&l.MaxDiskMB, 16<<20)
	def(&l.Boots, 8)
	def(&l.BootQueue, 2000)
	def(&l.StartTimeout, time.Minute)
	def(&l.ImageTimeout, 30*time.Minute)
	def(&l.SourceTimeout, 10*time.Minute)
	def(&l.CallsPerSandbox, 512)
	def(&l.Calls, 16384)
	def(&l.ConnsPerSandbox, 512)
	def(&l.Conns, 16384)
	def(&l.Flows, 500_000)
	def(&l.MaxSnapshotBytes, 64<<30)
	def(&l.SnapshotExpiration, 30*24*time.Hour)
	def(&l.SnapshotGrace, 2*time.Hour)
	def(&l.KeptCommands, 1<<30)
	def(&l.Silence, 2*time.Minute)
	def(&l.Answer, 10*time.Second)
}

func def[T comparable](field *T, value T) {
	if *field == *new(T) {
		*field = value
	}
}

// ImageSource provides images and runtimes.
type ImageSource interface {
	// Ensure returns the image or runtime that a reference names for a team. A missing
	// one is built or pulled if the caller may do that. Team "" is the installation.
	// Errors: not_found, permission_denied, invalid, quota_exceeded, no_space,
	// unavailable.
	Ensure(ctx context.Context, teamID, ref string) (*Lease, error)
	// Lease returns an image by its digest, for a sandbox or snapshot that was made from
	// it. Errors: not_found.
	Lease(ctx context.Context, digest string) (*Lease, error)
	// Digest returns the digest that a reference currently names. Errors: not_found if
	// the image does not exist yet or any more; invalid.
	Digest(ctx context.Context, teamID, ref string) (string, error)
}

// Lease keeps an image's file in place until Release is called.
type Lease struct {
	Image   sandbox.Image
	Path    string // of the EROFS file, or of another form that the Runtime accepts as Spec.RootFS
	Release func() // called exactly once
}

// Accounts returns the quotas of teams, and checks projects. *accountd.Engine implements it.
type Accounts interface {
	api.Projects
	Quota(ctx context.Context, teamID string) (account.Quota, error)
}

// Tool is the guest's program: an EROFS file to mount and the argv of its init.
type Tool struct {
	Mount machine.Mount
	Init  []string
}

// Metrics receives measurements for the operator. Its methods must not block.
type Metrics interface {
	// CreatePhase reports the duration of a part of a creation: "image", "start",
	// "guest", or "claim" instead of all three; then "source", if the sandbox has a
	// source.
	CreatePhase(phase string, d time.Duration)
	// CreateFailed counts creations that failed after validation of their parameters.
	CreateFailed(code cay.Code)
	// Ended counts ended sandboxes that had been running.
	Ended(reason sandbox.Reason)
	// Live reports how many sandboxes have a machine, or are about to.
	Live(n int)
	// Unresponsive reports how many sandboxes have a guest that does not answer.
	Unresponsive(n int)
	// Snapshots reports the number of snapshots, including those of hibernated sandboxes,
	// and their bytes on disk.
	Snapshots(n int, bytes int64)
	// Pool reports the state of a pool.
	Pool(p sandbox.Pool)
}

type noMetrics struct{}

func (noMetrics) CreatePhase(string, time.Duration) {}
func (noMetrics) CreateFailed(cay.Code)             {}
func (noMetrics) Ended(sandbox.Reason)              {}
func (noMetrics) Live(int)                          {}
func (noMetrics) Unresponsive(int)                  {}
func (noMetrics) Snapshots(int, int64)              {}
func (noMetrics) Pool(sandbox.Pool)                 {}

// check fills in defaults, and returns an error that names a missing required field.
func (c *Config) check() error {
	for name, missing := range map[string]bool{
		"DB": c.DB == nil, "Runtime": c.Runtime == nil, "Images": c.Images == nil, "Accounts": c.Accounts == nil,
		"Secrets": c.Secrets == nil,
	} {
		if missing {
			return fmt.Errorf("sandboxd.Config: %s is not set", name)
		}
	}
	if c.FlowDB == nil {
		c.FlowDB = c.DB
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = noMetrics{}
	}
	if c.Clock == nil {
		var err error
		if c.Clock, err = clock.System(); err != nil {
			return err
		}
	}
	if c.SpareCPU == nil {
		c.SpareCPU = new(pacer).spare
	}
	if c.CPUWait == nil {
		c.CPUWait = host.CPUWait
	}
	if c.CheckSpace == nil {
		c.CheckSpace = func() error { return nil }
	}
	c.Limits.setDefaults()
	return nil
}
