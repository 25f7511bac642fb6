package sandboxd

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/host"
	"github.com/cayhq/cay/internal/sandboxd/clock"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/snapshot"
	"github.com/cayhq/cay/internal/secret"
	"github.com/cayhq/cay/sandbox"
)

// Config is what an Engine needs.
type Config struct {
	DB       *db.DB
	Runtime  machine.Runtime
	Images   ImageSource
	Accounts Accounts
	// Secrets seals what of a policy nobody may read, and signs links.
	Secrets *secret.Box
	// PreviewURL makes the URL of a port's label. Nil: ports have none.
	PreviewURL func(label string) string
	// Tool is where a machine finds its init. Zero for a Runtime that brings
	// its own.
	Tool Tool
	// Gateway is where connections into a guest come from, as the guest sees it,
	// and Nameserver answers its queries. Unset: any peer, and the image's own.
	Gateway, Nameserver netip.Addr
	// Trust says what guests trust beside their images' authorities. Nil: nothing.
	Trust Trust
	// Snapshots keeps the files of snapshots. No other engine may use it: what it
	// has no row of is removed. Nil: sandboxes cannot be saved.
	Snapshots *snapshot.Store
	// Drives keeps what drives hold. No other engine may use it, as Snapshots.
	// Nil: there are no drives.
	Drives blob.Store
	// Commands keeps the commands of sessions that have ended. No other engine may
	// use it, as Snapshots. Nil: they are gone with their session.
	Commands blob.Store
	// CheckSpace reports whether the host's disk has room for one more sandbox.
	// Errors: no_space. Nil: nobody looks.
	CheckSpace func() error
	Limits     Limits
	// Pools are the machines that wait, booted, to become sandboxes. Who changes
	// Images tells it by Engine.ImagesChanged.
	Pools []PoolConfig
	// SpareCPU waits, for machines of pools, until there is CPU time that nobody
	// else needs. anew says that only what is seen from now on counts, as a sandbox
	// has just been made. Nil: it looks at the host, and waits for 2 s at most.
	SpareCPU func(ctx context.Context, anew bool) error
	// CPUWait tells for how long, since some moment, something on the host has had to
	// wait for a CPU: guests are not expected to answer at once then. Nil: it looks at
	// the host's pressure stall information.
	CPUWait func() time.Duration
	// DestroyOnStop ends all sandboxes when the engine stops. Otherwise they
	// keep running and the next engine adopts them.
	DestroyOnStop bool
	Metrics       Metrics      // nil: none
	Logger        *slog.Logger // nil: none
	Clock         clock.Clock  // nil: the host's
	// Reached is called at named points of the lives of sandboxes, for tests that
	// kill the process there. Nil: nobody is told.
	Reached func(point string)
}

// Limits are the operator's bounds. Zero fields take the value given.
type Limits struct {
	MaxTimeout  time.Duration // of one sandbox, Extend included; 24 h
	MaxVCPUs    float64       // of one sandbox; 64
	MaxMemoryMB int64         // of one sandbox; 1 TiB
	MaxDiskMB   int64         // of one sandbox; 16 TiB
	// Boots is how many machines start at one time; 8. Further ones wait, in
	// turns by team.
	Boots int
	// BootQueue is how many may wait, more are refused with quota_exceeded; 2000.
	BootQueue int
	// StartTimeout bounds the start of a machine, image work excluded; 60 s.
	StartTimeout time.Duration
	// ImageTimeout bounds building or pulling what a sandbox needs; 30 min.
	ImageTimeout time.Duration
	// SourceTimeout bounds fetching what a sandbox begins with; 10 min.
	SourceTimeout time.Duration
	// CallsPerSandbox and Calls bound the guest calls under way, in one sandbox
	// and in all, of which one team's are at most half; 512 and 16384.
	CallsPerSandbox, Calls int
	// ConnsPerSandbox and Conns bound the connections to ports in guests, of
	// previews and DialPort, in one sandbox and in all, of which one team's are at most
	// half; 512 and 16384.
	ConnsPerSandbox, Conns int
	// Network is the most a sandbox may ask for. Zero fields stay zero: no bound.
	Network sandbox.NetworkLimits
	// Flows is how many records all flow logs together keep; 500000.
	Flows int
	// MaxSnapshotBytes is how large the files of one snapshot may be; 64 GiB.
	MaxSnapshotBytes int64
	// SnapshotExpiration is how long snapshots are kept of sandboxes that do not
	// say; 30 days.
	SnapshotExpiration time.Duration
	// SnapshotGrace is how long files are left alone that no snapshot has, as
	// they may be those of one that is about to be recorded; 2 h.
	SnapshotGrace time.Duration
	// KeptCommands is how many bytes of the commands of ended sessions a team
	// keeps, the newest, those of each session counted with 64 KiB at least; 1 GiB.
	KeptCommands int64
	// Silence is how long a machine may take to pause, or to break off a save,
	// until it is given up; 2 min.
	Silence time.Duration
	// Answer is how long a guest may say nothing at all while calls wait for it, until
	// they fail; 10 s. It grows to a minute with the pressure on the host's CPUs.
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

// ImageSource provides what machines start from.
type ImageSource interface {
	// Ensure returns what a reference stands for to a team, an image or a runtime,
	// building or pulling it if it is not there and whoever asks may have that done.
	// Team "" is the installation. Errors: not_found, permission_denied, invalid,
	// quota_exceeded, no_space, unavailable.
	Ensure(ctx context.Context, teamID, ref string) (*Lease, error)
	// Lease returns an image that something was started from, by its digest.
	// Errors: not_found.
	Lease(ctx context.Context, digest string) (*Lease, error)
	// Digest returns the digest of what a reference stands for now. Errors:
	// not_found if it is not there, or not yet; invalid.
	Digest(ctx context.Context, teamID, ref string) (string, error)
}

// Lease keeps an image's file in place until released.
type Lease struct {
	Image   sandbox.Image
	Path    string // of the EROFS file, or what else the Runtime takes as Spec.RootFS
	Release func() // called once
}

// Accounts tells what a team may use. *accountd.Engine is one.
type Accounts interface {
	Quota(ctx context.Context, teamID string) (account.Quota, error)
	// CheckProject returns not_found unless the team has that project.
	CheckProject(ctx context.Context, teamID, projectID string) error
}

// Tool is the guest's program: an EROFS file to mount and the argv of its init.
type Tool struct {
	Mount machine.Mount
	Init  []string
}

// Metrics hears of what an operator counts. Methods must not block.
type Metrics interface {
	// CreatePhase reports how long a part of a creation took: "image", "start",
	// "guest", or "claim" instead of all three; then "source", if it has one.
	CreatePhase(phase string, d time.Duration)
	// CreateFailed counts creations that failed after their parameters were found good.
	CreateFailed(code cay.Code)
	// Ended counts sandboxes that ran and ended.
	Ended(reason sandbox.Reason)
	// Live reports how many sandboxes hold a machine, or are about to.
	Live(n int)
	// Unresponsive reports how many of them do not answer.
	Unresponsive(n int)
	// Snapshots reports how many snapshots there are, those included that
	// sandboxes are hibernated in, and how many bytes they take on disk.
	Snapshots(n int, bytes int64)
	// Pool reports what has become of a pool.
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

// check fills in what may be left out and names what may not.
func (c *Config) check() error {
	for name, missing := range map[string]bool{
		"DB": c.DB == nil, "Runtime": c.Runtime == nil, "Images": c.Images == nil, "Accounts": c.Accounts == nil,
		"Secrets": c.Secrets == nil,
	} {
		if missing {
			return fmt.Errorf("sandboxd.Config: %s is not set", name)
		}
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
