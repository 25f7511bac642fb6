package torture

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/handover"
	"github.com/cayhq/cay/internal/image"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/gvisor"
	"github.com/cayhq/cay/internal/sandboxd/network"
	"github.com/cayhq/cay/internal/sandboxd/programs"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/internal/sandboxd/snapshot"
	"github.com/cayhq/cay/internal/secret"
	"github.com/cayhq/cay/sandbox"
)

// installation is the directory and settings that outlive a daemon.
type installation struct {
	Dir    string `json:"dir"`
	Images string `json:"images"`
	build
}

// build is what distinguishes two builds of cay: the programs of sandboxes.
type build struct {
	Tool   sandboxd.Tool `json:"tool"`
	Sentry string        `json:"sentry"` // path of the program of sentries
}

// life is one run of the daemon of an installation, from its start to its end.
type life struct {
	Installation installation `json:"installation"`
	Seed         uint64       `json:"seed"`
	// Dies is the number of the event, counted from 1, at which the daemon is killed. 0:
	// the daemon ends by itself after its initial checks.
	Dies     int32    `json:"dies"`
	Hardship hardship `json:"hardship,omitempty"`
	Synced   string   `json:"synced,omitempty"` // directory for copies of the database, one at each sync
	// Upgrade makes another process take over at an event; nil: none does.
	Upgrade *upgrading `json:"upgrade,omitempty"`
	// Notes is the directory where a life that another takes over leaves what it knows.
	Notes string `json:"notes,omitempty"`
	Known
}

// Known is the state of the sandbox as earlier lives reported it.
type Known struct {
	ID      string `json:"id"`
	Written int    `json:"written"` // version of its file whose write was begun
	Kept    int    `json:"kept"`    // version whose write was acknowledged
	Saved   int    `json:"saved"`   // version that was saved: a stop, a snapshot or a hibernation was acknowledged
	// Cut says that there was a power cut since the sandbox was last checked.
	Cut     bool     `json:"cut,omitempty"`
	Deleted []string `json:"deleted,omitempty"` // ids of sandboxes whose deletion was acknowledged
}

// report is a line of output of a life.
type report struct {
	Known
	Event string `json:"event,omitempty"` // the event at which the daemon is killed
	Does  string `json:"does,omitempty"`  // the next action, for the log only
	Wrong string `json:"wrong,omitempty"` // a failed check
	// Upgraded says that the process of an upgrade has taken over.
	Upgraded bool `json:"upgraded,omitempty"`
}

// storeImages is an ImageSource with the images of the shared store.
type storeImages struct{ *image.Store }

func (s storeImages) Ensure(ctx context.Context, _, ref string) (*sandboxd.Lease, error) {
	return s.Lease(ctx, ref)
}

func (s storeImages) Digest(ctx context.Context, _, ref string) (string, error) {
	return s.Store.Digest(ctx, ref)
}

func (s storeImages) Lease(ctx context.Context, ref string) (*sandboxd.Lease, error) {
	l, err := s.Acquire(ctx, ref)
	if err != nil {
		return nil, err
	}
	return &sandboxd.Lease{Image: l.Image, Path: l.Path, Release: l.Release}, nil
}

// databaseFile is the name of the database in an installation's directory.
const databaseFile = "cay.db"

// opening holds options for opening an installation.
type opening struct {
	warnings io.Writer
	reached  func(event string)
	synced   func()       // called after each sync of the database; nil: none
	recovers func() error // called before the engine recovers; nil: none
}

// open opens the engine of an installation.
func (i installation) open(ctx context.Context, o opening) (_ *sandboxd.Engine, end func() error, err error) {
	var closers []func() error
	closeAll := func() error {
		var errs []error
		for n := len(closers) - 1; n >= 0; n-- {
			errs = append(errs, closers[n]())
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll())
		}
	}()
	d, err := db.Open(ctx, filepath.Join(i.Dir, databaseFile), db.Options{Synced: o.synced})
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, d.Close)
	secrets, err := secret.Open(filepath.Join(i.Dir, "secret.key"))
	if err != nil {
		return nil, nil, err
	}
	snapshots, err := blob.OpenDir(filepath.Join(i.Dir, "snapshots"), blob.DirOptions{})
	if err != nil {
		return nil, nil, err
	}
	images, err := image.Open(i.Images, image.Options{})
	if err != nil {
		return nil, nil, err
	}
	log := slog.New(slog.NewTextHandler(o.warnings, &slog.HandlerOptions{Level: slog.LevelWarn}))
	kept, err := blob.OpenDir(filepath.Join(i.Dir, "programs"), blob.DirOptions{})
	if err != nil {
		return nil, nil, err
	}
	store := programs.New(kept)
	rt, err := gvisor.New(gvisor.Config{StateDir: filepath.Join(i.Dir, "machines"), Logger: log, Programs: store})
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, rt.Close)
	e, err := sandboxd.NewEngine(ctx, sandboxd.Config{
		DB: d, Runtime: rt, Images: storeImages{images}, Accounts: sandboxtest.NewAccounts(), Secrets: secrets,
		Snapshots: snapshot.New(snapshots), Programs: store, Tool: i.Tool, Gateway: network.GatewayAddr, Nameserver: network.GatewayAddr,
		Pools:  []sandboxd.PoolConfig{{Size: 1}},
		Limits: sandboxd.Limits{SnapshotGrace: snapshotGrace}, Logger: log, Reached: o.reached,
	})
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, func() error { e.Close(); return nil })
	if o.recovers != nil {
		if err := o.recovers(); err != nil {
			return nil, nil, err
		}
	}
	return e, closeAll, e.Open(ctx)
}

// snapshotGrace is longer than the time from a snapshot's files to its row, also on a busy
// machine: with less the collection would remove the files of a snapshot whose row comes.
const snapshotGrace = 2 * time.Second

// lead runs a life, and prints its reports to out.
func lead(l life, out, log *os.File) error {
	from, err := handover.FromPredecessor(os.Getenv)
	if err != nil {
		return err
	}
	if err := gvisor.UseProgram(l.Installation.Sentry); err != nil {
		return err
	}
	p := &process{life: l, out: out, log: log, said: json.NewEncoder(out), from: from, upgrade: make(chan struct{})}
	p.dies.Store(l.Dies)
	if err = p.run(); err != nil && from != nil { // the test waits for the first process
		err = errors.Join(err, p.say(report{Wrong: err.Error()}))
	}
	return err
}

// process runs a life in this process.
type process struct {
	life
	out, log *os.File
	said     *json.Encoder
	from     *handover.Predecessor // nil: it is the first process of the life

	events, dies atomic.Int32
	upgrade      chan struct{} // closed when another process is to take over
	handed       sync.Once
}

func (p *process) say(r report) error { return p.said.Encode(r) }

// reached counts an event.
func (p *process) reached(event string) {
	n := p.events.Add(1)
	if p.Upgrade != nil && n >= p.Upgrade.At {
		p.handed.Do(func() { close(p.upgrade) })
	}
	if n != p.dies.Load() {
		return
	}
	_ = p.say(report{Known: p.Known, Event: event}) // for the log only
	// Not os.Exit: nothing may run after the kill.
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
		panic(err)
	}
	select {}
}

func (p *process) run() error {
	ctx := sandboxtest.As(context.Background(), sandboxtest.Default)
	r := rand.New(rand.NewPCG(p.Seed, 1))
	if p.from != nil {
		if err := p.takeOver(ctx); err != nil {
			return err
		}
	}
	for {
		e, end, err := p.open(ctx, r, opening{warnings: p.log, reached: p.reached})
		if err != nil {
			return err
		}
		if p.from != nil {
			if err := errors.Join(p.say(report{Known: p.Known, Upgraded: true}), p.from.Serving()); err != nil {
				return errors.Join(err, end())
			}
		}
		tenant := &tenant{
			Engine: e, ctx: ctx, known: p.Known, say: p.note,
			does:   func(thing string) error { return p.say(report{Known: p.Known, Does: thing}) },
			begins: func(begin func() error) error { return begin() },
		}
		if p.restartsHard() {
			tenant.begins = patiently
		}
		next := p.handOver(ctx, e.Close)
		err = tenant.live(r, p.Dies != 0)
		s, failed := next()
		if s != nil { // as in a daemon, the calls have ended before the database closes
			failed = end()
		}
		switch {
		case failed != nil:
			return failed
		case s == nil: // nobody takes over
			if err != nil {
				err = p.say(report{Known: tenant.known, Wrong: err.Error()})
			}
			return errors.Join(err, end())
		case !closed(err):
			s.Kill()
			return p.say(report{Known: tenant.known, Wrong: fmt.Sprintf("during the upgrade: %v", err)})
		default:
			if s.Begin(ctx) == nil {
				return s.Leave()
			}
			// The new process was killed before it served: this one goes on.
			p.Known, p.Upgrade, p.upgrade = tenant.known, nil, make(chan struct{})
			p.dies.Store(p.events.Load() + 1 + r.Int32N(lastEvent))
			s.Sockets().Close()
		}
	}
}

// restartsHard reports whether the life's hardship affects its start.
func (l life) restartsHard() bool { return l.Hardship == fullDisk || l.Hardship == fewFiles }

// open opens the engine under the life's hardship, which ends when the engine has
// recovered. A daemon that fails to start because of the hardship is started again
// without it.
func (l life) open(ctx context.Context, r *rand.Rand, o opening) (*sandboxd.Engine, func() error, error) {
	relieve := func() error { return nil }
	easy := o
	switch l.Hardship {
	case fullDisk:
		// A few free bytes make another step fail.
		if err := fillDisk(l.Installation.Dir, int64(r.IntN(10)*os.Getpagesize())); err != nil {
			return nil, nil, err
		}
		relieve = func() error { return resizeDisk(l.Installation.Dir, diskSize) }
	case fewFiles:
		o.recovers = func() (err error) {
			relieve, err = limitFiles(r.IntN(16))
			return err
		}
	case powerCut:
		copies := &syncedCopies{dir: l.Synced}
		path := filepath.Join(l.Installation.Dir, databaseFile)
		if _, err := os.Stat(path); err == nil { // left by earlier lives
			if err := copies.copy(path); err != nil {
				return nil, nil, err
			}
		}
		o.synced = func() {
			if err := copies.copy(path); err != nil {
				panic(err)
			}
		}
	}
	e, end, err := l.Installation.open(ctx, o)
	if err := relieve(); err != nil {
		return nil, nil, err
	}
	if err != nil && l.restartsHard() {
		fmt.Fprintf(o.warnings, "with %s it did not open: %v\n", l.Hardship, err)
		return l.Installation.open(ctx, easy)
	}
	return e, end, err
}

// tenant acts as a user of the installation.
type tenant struct {
	*sandboxd.Engine
	ctx   context.Context
	known Known
	say   func(Known) error
	does  func(thing string) error // reports the action that is about to begin
	// begins calls begin, which may find the sandbox unavailable after a hard restart.
	begins func(begin func() error) error
}

// live checks that the sandbox is as the last life left it, and then performs random
// actions, without end if on is set.
func (t *tenant) live(r *rand.Rand, on bool) error {
	if err := t.begins(t.begin); err != nil {
		return err
	}
	things := []struct {
		name string
		do   func() error
	}{
		{"stop", func() error {
			_, err := t.Stop(t.ctx, t.known.ID)
			return t.saved(err)
		}},
		{"snapshot", func() error {
			_, err := t.CreateSnapshot(t.ctx, t.known.ID, sandbox.SnapshotParams{})
			return t.saved(err)
		}},
		{"memory snapshot", func() error {
			_, err := t.CreateSnapshot(t.ctx, t.known.ID, sandbox.SnapshotParams{Kind: sandbox.MemorySnapshot})
			return t.saved(err)
		}},
		{"hibernate", t.hibernate},
		{"pause", func() error {
			if _, err := t.Pause(t.ctx, t.known.ID); err != nil {
				return err
			}
			_, err := t.Resume(t.ctx, t.known.ID, sandbox.ResumeParams{})
			return err
		}},
		{"fork", t.fork},
		{"another", t.another},
		{"delete snapshots", t.deleteSnapshots},
	}
	for on {
		thing := things[r.IntN(len(things))]
		if err := t.does(thing.name); err != nil {
			return err
		}
		if err := t.write(); err != nil {
			return fmt.Errorf("write before %s: %w", thing.name, err)
		}
		if err := thing.do(); err != nil {
			return fmt.Errorf("%s: %w", thing.name, err)
		}
		if _, err := t.check(t.known.ID); err != nil {
			return err
		}
	}
	return nil
}

// patiently repeats a call while it returns unavailable: the daemon retries recoveries
// that failed at a restart.
func patiently(do func() error) error {
	_, err := backoff.Retry(context.Background(), func() (struct{}, error) {
		err := do()
		if err != nil && cay.CodeOf(err) != cay.Unavailable {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(backoff.NewConstantBackOff(50*time.Millisecond)), backoff.WithMaxElapsedTime(2*time.Minute))
	return err
}

// begin creates the sandbox, or checks that the sandbox and the others are as the last
// life left them.
func (t *tenant) begin() error {
	if t.known.ID == "" {
		id, err := t.create()
		if err != nil {
			return fmt.Errorf("create: %w", err)
		}
		t.known.ID = id
		if err := t.say(t.known); err != nil {
			return err
		}
	}
	version, err := t.check(t.known.ID)
	if err != nil {
		return err
	}
	if s, err := t.Get(t.ctx, t.known.ID); err != nil || s.Message != "" {
		return fmt.Errorf("it has lost its processes: %q, %w", s.Message, cmp.Or(err, errors.New("it says so")))
	}
	for _, id := range t.known.Deleted {
		if _, err := t.Get(t.ctx, id); cay.CodeOf(err) != cay.NotFound {
			return fmt.Errorf("sandbox %s, which was deleted: %w", id, cmp.Or(err, errors.New("it is there")))
		}
	}
	t.known.Kept, t.known.Cut, t.known.Deleted = version, false, nil
	return t.say(t.known)
}

// create creates the sandbox that all lives share, unless an earlier life did.
func (t *tenant) create() (id string, err error) {
	p := sandbox.CreateParams{Name: "kept", Retention: &sandbox.Retention{Keep: 2}}
	s, err := t.Create(t.ctx, p)
	if cay.CodeOf(err) == cay.AlreadyExists { // created by a life that was killed before it could report the sandbox
		s, err = t.Get(t.ctx, "kept")
		if err == nil && s.Reason == sandbox.ReasonStartFailed { // or killed while the sandbox started
			if err = t.Delete(t.ctx, s.ID); err == nil {
				s, err = t.Create(t.ctx, p)
			}
		}
	}
	if err != nil {
		return "", err
	}
	return s.ID, nil
}

// saved records that a call has saved the current version of the file, if err, the call's
// error, is nil.
func (t *tenant) saved(err error) error {
	if err != nil {
		return err
	}
	t.known.Saved = t.known.Kept
	return t.say(t.known)
}

// delete deletes a sandbox. Later lives check that it does not come back.
func (t *tenant) delete(id string) error {
	if err := t.Delete(t.ctx, id); err != nil {
		return err
	}
	t.known.Deleted = append(t.known.Deleted, id)
	return t.say(t.known)
}

// check checks that a sandbox has the written version of its file, or after a power cut
// at least the saved version, and returns that version. A sandbox that was paused when
// the daemon died must still be paused; a sandbox that ran at a power cut must have
// ended.
func (t *tenant) check(ref string) (version int, err error) {
	s, err := t.Get(t.ctx, ref)
	if err != nil {
		return 0, err
	}
	if s.Status == sandbox.Failed && !(t.known.Cut && s.Reason == sandbox.ReasonLost) {
		return 0, fmt.Errorf("it has failed: %s, %s", s.Reason, s.Message)
	}
	if s.Status == sandbox.Paused {
		if _, err := t.Resume(t.ctx, ref, sandbox.ResumeParams{}); err != nil {
			return 0, fmt.Errorf("resume: %w", err)
		}
	}
	f, _, err := t.ReadFile(t.ctx, ref, "version", sandbox.ReadParams{})
	if err == nil {
		defer f.Close()
		data, err := io.ReadAll(f)
		if err != nil {
			return 0, fmt.Errorf("read: %w", err)
		}
		if _, err := fmt.Sscan(string(data), &version); err != nil {
			return 0, fmt.Errorf("its file is %q", data)
		}
	} else if cay.CodeOf(err) != cay.FileNotFound {
		return 0, fmt.Errorf("read: %w", err)
	}
	least := t.known.Kept
	if t.known.Cut {
		least = t.known.Saved
	}
	if version < least || version > t.known.Written {
		return 0, fmt.Errorf("its file is of version %d; at least %d was to be there, and %d may have been written", version, least, t.known.Written)
	}
	return version, nil
}

// write writes the next version of the file.
func (t *tenant) write() error {
	t.known.Written++
	if err := t.say(t.known); err != nil {
		return err
	}
	content := strings.NewReader(fmt.Sprint(t.known.Written))
	if _, err := t.WriteFile(t.ctx, t.known.ID, "version", content, sandbox.WriteParams{}); err != nil {
		return err
	}
	t.known.Kept = t.known.Written
	return t.say(t.known)
}

// hibernate hibernates the sandbox with a running program, and checks that the program
// goes on.
func (t *tenant) hibernate() error {
	c, err := t.Start(t.ctx, t.known.ID, sandbox.CommandParams{Argv: []string{"sleep", "1000000"}})
	if err != nil {
		return err
	}
	_, err = t.Hibernate(t.ctx, t.known.ID)
	if err := t.saved(err); err != nil {
		return err
	}
	c, err = t.GetCommand(t.ctx, t.known.ID, c.ID)
	if err != nil {
		return fmt.Errorf("look for the command: %w", err)
	}
	if c.Exit != nil {
		return fmt.Errorf("its command has exited: %+v", *c.Exit)
	}
	return t.Signal(t.ctx, t.known.ID, c.ID, sandbox.Signal(syscall.SIGKILL))
}

// fork makes copies, checks that they have the sandbox's file, and deletes them.
func (t *tenant) fork() error {
	f, err := t.Fork(t.ctx, t.known.ID, sandbox.ForkParams{Count: 2, Persistent: new(false)})
	if err != nil {
		return err
	}
	for _, s := range f.Sandboxes {
		if _, err := t.check(s.ID); err != nil {
			return fmt.Errorf("copy %s: %w", s.Name, err)
		}
		if err := t.delete(s.ID); err != nil {
			return fmt.Errorf("delete copy: %w", err)
		}
	}
	return nil
}

// another creates a sandbox, from the pool if one is ready, and deletes it.
func (t *tenant) another() error {
	s, err := t.Create(t.ctx, sandbox.CreateParams{})
	if err != nil {
		return err
	}
	if _, err := t.Stat(t.ctx, s.ID, "/", true); err != nil {
		return err
	}
	return t.delete(s.ID)
}

// deleteSnapshots deletes all snapshots except the one in use.
func (t *tenant) deleteSnapshots() error {
	page, err := t.ListSnapshots(t.ctx, sandbox.SnapshotListParams{Limit: 200})
	if err != nil {
		return err
	}
	for _, s := range page.Items {
		if _, err := t.DeleteSnapshot(t.ctx, s.ID, sandbox.DeleteSnapshotParams{}); err != nil && cay.CodeOf(err) != cay.Conflict {
			return err
		}
	}
	return nil
}
