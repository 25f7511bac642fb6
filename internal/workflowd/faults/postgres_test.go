package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/db/pgtest"
	"github.com/cayhq/cay/internal/workflowd"
)

// outage is a Store whose server is killed at some of its commits, and restarted.
type outage struct {
	workflowd.Store
	server *pgtest.Server

	mu   sync.Mutex
	r    *rand.Rand // guarded by mu
	left int        // outages to come; guarded by mu
	seen int        // commits; guarded by mu
	errs []error    // guarded by mu
}

func (o *outage) write(w func() error) error {
	o.mu.Lock()
	// The first outage comes at the fifth commit at the latest, because a busy machine
	// makes few commits.
	o.seen++
	strike := o.left > 0 && (o.r.IntN(8) == 0 || o.seen == 5 && o.left == outages)
	when := o.r.IntN(3)
	delay := time.Duration(o.r.IntN(1000)) * time.Microsecond
	o.mu.Unlock()
	if !strike {
		return w()
	}
	switch when {
	case 0: // before
		o.strike()
		return w()
	case 1: // during
		var struck sync.WaitGroup
		over := make(chan struct{})
		struck.Go(func() {
			begun := time.NewTimer(delay)
			defer begun.Stop()
			select {
			case <-begun.C:
			case <-over: // then after the commit
			}
			o.strike()
		})
		defer struck.Wait()
		defer close(over)
		return w()
	default: // after
		err := w()
		o.strike()
		return err
	}
}

// strike kills the server with all its connections, and starts it again.
func (o *outage) strike() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.left == 0 {
		return
	}
	o.left--
	for _, step := range []func() error{o.server.Kill, o.server.Start} {
		if err := step(); err != nil {
			o.left = 0
			o.errs = append(o.errs, err)
			return
		}
	}
}

func (o *outage) Commit(ctx context.Context, g *workflowd.Group) error {
	return o.write(func() error { return o.Store.Commit(ctx, g) })
}

func (o *outage) Transact(ctx context.Context, g *workflowd.Group, do func(tx workflowd.Tx) error) error {
	return o.write(func() error { return o.Store.Transact(ctx, g, do) })
}

// outages is how often TestDatabaseKilled kills the server, at most.
const outages = 5

// TestDatabaseKilled kills PostgreSQL under programs, which go on in the same
// process when it is back.
func TestDatabaseKilled(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, pgtest.Options{})
	for seed := range uint64(rounds(t, 2, 60)) {
		seed += 2000
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		// The lease is longer than an outage: another test covers its loss.
		s := site{Database: "postgres", At: server.DSN(t), World: filepath.Join(t.TempDir(), "world"), Lease: 20 * time.Second}
		var out *outage
		programs := programsOf(seed, 5)
		err := s.anyway(ctx, opening{log: logTo(t), wrap: func(st workflowd.Store) workflowd.Store {
			out = &outage{Store: st, server: server, r: rand.New(rand.NewPCG(seed, 3)), left: outages}
			return out
		}}, programs)
		for _, e := range out.errs {
			t.Error(e)
		}
		// The number of outages depends on the number of groups, which is smaller when
		// each group takes longer.
		if t.Logf("seed %d: %d outages", seed, outages-out.left); out.left == outages {
			t.Errorf("seed %d: no outage happened", seed)
		}
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// TestDatabaseRestarted restarts PostgreSQL in good order while programs run.
func TestDatabaseRestarted(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, pgtest.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	s := site{Database: "postgres", At: server.DSN(t), World: filepath.Join(t.TempDir(), "world"), Lease: 20 * time.Second}
	programs := programsOf(3000, 40)
	commits := newTally()
	done, restarts := make(chan error, 1), 0
	go func() {
		// Programs that are done commit nothing. The slower a group is, the more events
		// the next group holds, so a slow machine makes fewer groups.
		for ; restarts < 3 && commits.made(ctx, 15) == nil; restarts++ {
			for _, step := range []func() error{server.Stop, server.Start} {
				if err := step(); err != nil {
					done <- err
					return
				}
			}
		}
		done <- nil
	}()
	err := s.anyway(ctx, opening{log: logTo(t), wrap: commits.wrap}, programs)
	cancel()
	if err := errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
	if t.Logf("%d restarts", restarts); restarts == 0 {
		t.Error("no restart happened")
	}
}

// anyway runs programs in one session while the database goes away and comes back. Runs
// go on by themselves; callers get errors during the outage, and try again.
func (s site) anyway(ctx context.Context, o opening, programs []program) error {
	n, err := s.work(ctx, o)
	if err != nil {
		return err
	}
	v, err := n.finishAnyway(ctx, programs, cay.Unavailable)
	if err := errors.Join(err, n.close()); err != nil {
		return err
	}
	return s.check(programs, v)
}

// TestOwners stops one of two processes that share a database for longer than its lease
// lasts, and kills the other: a process that continues finds that another process owns
// its runs, and no run is executed twice.
func TestOwners(t *testing.T) {
	t.Parallel()
	for seed := range uint64(rounds(t, 1, 30)) {
		seed += 4000
		r := rand.New(rand.NewPCG(seed, 4))
		a := newOrder(t, "postgres", seed, 30)
		a.Site.Lease = 500 * time.Millisecond
		b := a
		b.Out += "-b"
		where := fmt.Sprintf("seed %d", seed)
		for n := 0; ; n++ {
			first, second := child(t, a), child(t, b)
			if !first.endsWithin(time.Duration(r.IntN(300)) * time.Millisecond) {
				if err := pause(t.Context(), first.Process, 3*a.Site.Lease, func() {
					if r.IntN(2) == 0 && n < 5 {
						second.Process.Kill() // it may have ended already
					}
				}); err != nil {
					t.Fatal(err)
				}
			}
			one, two := ended(t, first, where), ended(t, second, where)
			if one && two {
				break
			}
		}
		judge(t, a, where)
		judge(t, b, where)
	}
}
