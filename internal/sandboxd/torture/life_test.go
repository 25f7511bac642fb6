package torture

import (
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
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/image"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/gvisor"
	"github.com/cayhq/cay/internal/sandboxd/network"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/internal/sandboxd/snapshot"
	"github.com/cayhq/cay/internal/secret"
	"github.com/cayhq/cay/sandbox"
)

// installation is what outlives a daemon.
type installation struct {
	Dir    string        `json:"dir"`
	Images string        `json:"images"`
	Tool   sandboxd.Tool `json:"tool"`
}

// life is one life of the daemon of an installation.
type life struct {
	Installation installation `json:"installation"`
	Seed         uint64       `json:"seed"`
	// Dies is at which event, counted from 1, it is killed. 0: it ends by itself,
	// as it began.
	Dies int32 `json:"dies"`
	Known
}

// Known is what is known of the sandbox, from the lives before.
type Known struct {
	ID      string `json:"id"`
	Written int    `json:"written"` // version of its file that was about to be written
	Kept    int    `json:"kept"`    // and that was written
}

// report is what a life says.
type report struct {
	Known
	Event string `json:"event,omitempty"` // it dies at
	Wrong string `json:"wrong,omitempty"` // what is not as it should be
}

// storeImages hands out the images of the shared store.
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

// open opens the engine of an installation. reached hears of its events.
func (i installation) open(ctx context.Context, warnings io.Writer, reached func(string)) (_ *sandboxd.Engine, end func() error, err error) {
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
	d, err := db.Open(ctx, filepath.Join(i.Dir, "cay.db"), db.Options{})
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
	log := slog.New(slog.NewTextHandler(warnings, &slog.HandlerOptions{Level: slog.LevelWarn}))
	rt, err := gvisor.New(gvisor.Config{StateDir: filepath.Join(i.Dir, "machines"), Logger: log})
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, rt.Close)
	e, err := sandboxd.NewEngine(ctx, sandboxd.Config{
		DB: d, Runtime: rt, Images: storeImages{images}, Accounts: sandboxtest.NewAccounts(), Secrets: secrets,
		Snapshots: snapshot.New(snapshots), Tool: i.Tool, Gateway: network.GatewayAddr, Nameserver: network.GatewayAddr,
		Pools:  []sandboxd.PoolConfig{{Size: 1}},
		Limits: sandboxd.Limits{SnapshotGrace: time.Millisecond}, Logger: log, Reached: reached,
	})
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, func() error { e.Close(); return nil })
	return e, closeAll, e.Open(ctx)
}

// lead leads a life, and says on out what becomes of it.
func lead(l life, out, log io.Writer) error {
	said := json.NewEncoder(out)
	var events atomic.Int32
	reached := func(event string) {
		if events.Add(1) != l.Dies {
			return
		}
		_ = said.Encode(report{Known: l.Known, Event: event}) // only for people
		// Not os.Exit: nothing may run after this.
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			panic(err)
		}
		select {}
	}
	ctx := sandboxtest.As(context.Background(), sandboxtest.Default)
	e, end, err := l.Installation.open(ctx, log, reached)
	if err != nil {
		return err
	}
	tenant := &tenant{Engine: e, ctx: ctx, known: l.Known, say: func(k Known) error { return said.Encode(report{Known: k}) }}
	if err := tenant.live(rand.New(rand.NewPCG(l.Seed, 1)), l.Dies != 0); err != nil {
		if err := said.Encode(report{Known: tenant.known, Wrong: err.Error()}); err != nil {
			return err
		}
	}
	return end()
}

// tenant is who uses the installation.
type tenant struct {
	*sandboxd.Engine
	ctx   context.Context
	known Known
	say   func(Known) error
}

// live looks whether all is as it was left, and then does random things, on and
// on if it is to be killed.
func (t *tenant) live(r *rand.Rand, on bool) error {
	if t.known.ID == "" {
		p := sandbox.CreateParams{Name: "kept", Retention: &sandbox.Retention{Keep: 2}}
		s, err := t.Create(t.ctx, p)
		if cay.CodeOf(err) == cay.AlreadyExists { // made in a life that ended before it could say so
			s, err = t.Get(t.ctx, "kept")
			if err == nil && s.Reason == sandbox.ReasonStart { // or before it came up
				if err = t.Delete(t.ctx, s.ID); err == nil {
					s, err = t.Create(t.ctx, p)
				}
			}
		}
		if err != nil {
			return fmt.Errorf("create: %w", err)
		}
		t.known.ID = s.ID
		if err := t.say(t.known); err != nil {
			return err
		}
	}
	for first := true; first || on; first = false {
		if err := t.check(t.known.ID); err != nil {
			return err
		}
		things := []struct {
			name string
			do   func() error
		}{
			{"stop", func() error { _, err := t.Stop(t.ctx, t.known.ID); return err }},
			{"snapshot", func() error {
				_, err := t.CreateSnapshot(t.ctx, t.known.ID, sandbox.SnapshotParams{})
				return err
			}},
			{"memory snapshot", func() error {
				_, err := t.CreateSnapshot(t.ctx, t.known.ID, sandbox.SnapshotParams{Kind: sandbox.MemorySnapshot})
				return err
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
		thing := things[r.IntN(len(things))]
		if err := t.write(); err != nil {
			return fmt.Errorf("write before %s: %w", thing.name, err)
		}
		if err := thing.do(); err != nil {
			return fmt.Errorf("%s: %w", thing.name, err)
		}
	}
	return nil
}

// check looks whether a sandbox has what was written. One that was paused when
// the daemon died is paused still.
func (t *tenant) check(ref string) error {
	s, err := t.Get(t.ctx, ref)
	if err != nil {
		return err
	}
	if s.Status == sandbox.Failed {
		return fmt.Errorf("it has failed: %s, %s", s.Reason, s.Message)
	}
	if s.Status == sandbox.Paused {
		if _, err := t.Resume(t.ctx, ref, sandbox.ResumeParams{}); err != nil {
			return fmt.Errorf("resume: %w", err)
		}
	}
	version := 0
	f, _, err := t.ReadFile(t.ctx, ref, "version", sandbox.ReadParams{})
	if err == nil {
		defer f.Close()
		data, err := io.ReadAll(f)
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if _, err := fmt.Sscan(string(data), &version); err != nil {
			return fmt.Errorf("its file is %q", data)
		}
	} else if cay.CodeOf(err) != cay.FileNotFound {
		return fmt.Errorf("read: %w", err)
	}
	if version < t.known.Kept || version > t.known.Written {
		return fmt.Errorf("its file is of version %d; %d was written, and %d may have been", version, t.known.Kept, t.known.Written)
	}
	return nil
}

// write writes the next version.
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

// hibernate hibernates the sandbox with a program that goes on.
func (t *tenant) hibernate() error {
	c, err := t.Start(t.ctx, t.known.ID, sandbox.CommandParams{Argv: []string{"sleep", "1000000"}})
	if err != nil {
		return err
	}
	if _, err := t.Hibernate(t.ctx, t.known.ID); err != nil {
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

// fork makes copies, which have what the sandbox has, and removes them.
func (t *tenant) fork() error {
	f, err := t.Fork(t.ctx, t.known.ID, sandbox.ForkParams{Count: 2, Persistent: new(false)})
	if err != nil {
		return err
	}
	for _, s := range f.Sandboxes {
		if err := t.check(s.ID); err != nil {
			return fmt.Errorf("copy %s: %w", s.Name, err)
		}
		if err := t.Delete(t.ctx, s.ID); err != nil {
			return fmt.Errorf("delete copy: %w", err)
		}
	}
	return nil
}

// another makes a sandbox, of the pool if it has one, and removes it.
func (t *tenant) another() error {
	s, err := t.Create(t.ctx, sandbox.CreateParams{})
	if err != nil {
		return err
	}
	if _, err := t.Stat(t.ctx, s.ID, "/", true); err != nil {
		return err
	}
	return t.Delete(t.ctx, s.ID)
}

// deleteSnapshots deletes all but the one in use.
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
