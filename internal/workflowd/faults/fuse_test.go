package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
)

// fuse is a Store that fails, for the engine, from one of its commits on. Earlier commits
// are in the database.
type fuse struct {
	workflowd.Store
	at    int64 // the commit at which the fuse blows, from 1; 0 for never
	after bool  // the commit is made, but its answer is lost

	commits atomic.Int64
	blown   atomic.Bool
	cut     chan struct{} // closed when the fuse blows
}

var _ workflowd.Store = (*fuse)(nil)

func newFuse(at int64, after bool) *fuse {
	return &fuse{at: at, after: after, cut: make(chan struct{})}
}

func (f *fuse) wrap(s workflowd.Store) workflowd.Store {
	f.Store = s
	return f
}

var errBlown = cay.Errorf(cay.Unavailable, "the fuse has blown")

// write calls a write of the store, unless the fuse blows at it.
func (f *fuse) write(w func() error) error {
	if f.blown.Load() {
		return errBlown
	}
	if n := f.commits.Add(1); f.at == 0 || n != f.at {
		if f.at != 0 && n > f.at {
			return errBlown // concurrent with the commit that blew the fuse
		}
		return w()
	}
	var err error
	if f.after {
		err = w()
	}
	f.blown.Store(true)
	close(f.cut)
	return errors.Join(errBlown, err)
}

func (f *fuse) Commit(ctx context.Context, g *workflowd.Group) error {
	return f.write(func() error { return f.Store.Commit(ctx, g) })
}

func (f *fuse) Transact(ctx context.Context, g *workflowd.Group, do func(tx workflowd.Tx) error) error {
	return f.write(func() error { return f.Store.Transact(ctx, g, do) })
}

func (f *fuse) Run(ctx context.Context, id string) (*history.Run, error) {
	if f.blown.Load() {
		return nil, errBlown
	}
	return f.Store.Run(ctx, id)
}

func (f *fuse) Events(ctx context.Context, id string, from int64, limit int) ([]history.Event, error) {
	if f.blown.Load() {
		return nil, errBlown
	}
	return f.Store.Events(ctx, id, from, limit)
}

// TestCutOff cuts programs off from their database at each commit in turn, before or
// after the commit is made, and lets them go on in a new engine and worker.
func TestCutOff(t *testing.T) {
	t.Parallel()
	for _, database := range databases {
		t.Run(database, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(rounds(t, 1, 40)) {
				if s := os.Getenv("CAY_FAULT_SEED"); s != "" && s != fmt.Sprint(seed) {
					continue
				}
				programs := programsOf(seed, 2)
				commits := cutOff(t, database, seed, programs, 0, false)
				for at := int64(1); at <= commits; at += stride(t, database) {
					cutOff(t, database, seed, programs, at, at%2 == 0)
				}
			}
		})
	}
}

// cutOff runs programs with a fuse, and again without if it has blown. It returns the
// number of commits of the first run.
func cutOff(t *testing.T, database string, seed uint64, programs []program, at int64, after bool) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), childLife)
	defer cancel()
	s := newSite(t, database)
	where := fmt.Sprintf("seed %d, cut off at commit %d, after %t", seed, at, after)

	f := newFuse(at, after)
	v, err := s.once(ctx, opening{wrap: f.wrap, log: logTo(t), patience: 5 * time.Second}, f.cut, programs)
	if f.blown.Load() {
		v, err = s.once(ctx, opening{log: logTo(t)}, nil, programs)
	}
	if err == nil {
		err = s.check(programs, v)
	}
	if err != nil {
		t.Fatalf("%s: %v", where, err)
	}
	return f.commits.Load()
}

// once runs programs in one session, until they are done or cut is closed.
func (s site) once(ctx context.Context, o opening, cut <-chan struct{}, programs []program) (verdict, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if cut != nil {
		go func() {
			select {
			case <-cut:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	n, err := s.work(context.WithoutCancel(ctx), o)
	if err != nil {
		return verdict{}, err
	}
	v, err := n.finish(ctx, programs, true)
	if cay.CodeOf(err) == cay.DeadlineExceeded {
		err = fmt.Errorf("%w\n%s", err, n.unfinished())
	}
	if e := n.close(); err == nil {
		err = e
	}
	return v, err
}
