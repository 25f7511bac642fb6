package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cayhq/cay/sandbox"
)

// sentryMB is approximately the host memory of a sandbox without data, in MiB.
const sentryMB = 24

// fleet is many sandboxes that one sample starts together.
type fleet struct {
	row string
	n   int
	mib int // of data in the memory of each
	// start starts all sandboxes, until each has run a program. If start fails, the
	// caller removes the boxes that it returned.
	start func(ctx context.Context) ([]box, error)
	// verify checks that each sandbox has its data.
	verify func(ctx context.Context, b *sandboxBox) error
}

// room refuses a fleet that needs more than half of the available memory, including
// the source.
func (f *fleet) room() error {
	available, err := memAvailable()
	if err != nil {
		return err
	}
	need := (f.n + 1) * (f.mib + sentryMB)
	if have := int(available) >> 20; need > have/2 {
		return notMeasured(fmt.Sprintf("%s: needs about %d MiB of memory, more than half of the %d MiB that are available", f.row, need, have))
	}
	return nil
}

// fleetTimes are the measurements of a fleet. Memory is the host's memory for each
// sandbox, in MB, after each sandbox has read its data.
type fleetTimes struct {
	started, verified time.Duration
	memory            float64 // PSS of the sentry and all processes below, without page cache
	available         float64 // by how much MemAvailable fell
	pss               float64 // with page cache
}

// launch starts a fleet, measures its memory, and removes it.
func (f *fleet) launch(ctx context.Context) (t fleetTimes, err error) {
	before, err := memAvailable()
	if err != nil {
		return t, err
	}
	begun := time.Now()
	boxes, err := f.start(ctx)
	t.started = time.Since(begun)
	defer func() { err = errors.Join(err, removeAll(ctx, boxes)) }()
	if err != nil {
		return t, err
	}
	if err := each(ctx, boxes, f.verify); err != nil {
		return t, err
	}
	t.verified = time.Since(begun)
	after, err := memAvailable()
	if err != nil {
		return t, err
	}
	share := 1e6 * float64(len(boxes))
	t.available = (before - after) / share
	weights, err := weigh(ctx, boxes)
	for _, m := range weights {
		t.memory += (m.pss - m.file) / share
		t.pss += m.pss / share
	}
	return t, err
}

// each calls do for all boxes at once; all must be sandboxes.
func each(ctx context.Context, boxes []box, do func(ctx context.Context, b *sandboxBox) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, b := range boxes {
		g.Go(func() error { return do(ctx, b.(*sandboxBox)) })
	}
	return g.Wait()
}

func runsTrue(ctx context.Context, b *sandboxBox) error {
	_, err := b.run(ctx, "true")
	return err
}

// recruit makes one of a fleet.
type recruit func(ctx context.Context) (*sandboxBox, error)

func (r recruit) create(ctx context.Context) (box, error) {
	b, err := r(ctx)
	if b == nil {
		return nil, err
	}
	return b, err
}

// forks measures copying a running sandbox, processes and all.
func (st *stateBench) forks(mib, n int) Probe {
	row := fmt.Sprintf("fork_%d_%d", mib, n)
	open := func(ctx context.Context) (*Session, error) {
		f := &fleet{row: row, n: n, mib: mib}
		if err := f.room(); err != nil {
			return nil, err
		}
		source, h, err := st.holding(ctx, mib)
		if err != nil {
			return nil, err
		}
		var fork *sandbox.Fork
		var call time.Duration
		f.start = func(ctx context.Context) (boxes []box, err error) {
			begun := time.Now()
			fork, err = source.c.Fork(ctx, source.id, sandbox.ForkParams{Count: n, Kind: sandbox.MemorySnapshot})
			if err != nil {
				return nil, err
			}
			call = time.Since(begun)
			for _, s := range fork.Sandboxes {
				boxes = append(boxes, &sandboxBox{source.c, s.ID, s.SessionID})
			}
			return boxes, each(ctx, boxes, runsTrue)
		}
		f.verify = func(ctx context.Context, b *sandboxBox) error {
			copied := *h
			return copied.check(ctx, b.id)
		}
		return &Session{Close: source.forget, Sample: func(ctx context.Context) ([]float64, error) {
			t, err := f.launch(ctx)
			if err != nil {
				return nil, err
			}
			return []float64{
				ms(t.started), ms(t.verified), t.memory, t.available, t.pss,
				ms(call), ms(time.Duration(fork.Phases.Paused)),
			}, nil
		}}, nil
	}
	coldly := func(context.Context) (*Session, error) {
		f := &fleet{row: row, n: n, mib: mib}
		if err := f.room(); err != nil {
			return nil, err
		}
		f.start = func(ctx context.Context) ([]box, error) {
			return createAll(ctx, recruit(func(ctx context.Context) (*sandboxBox, error) {
				b, _, err := st.holding(ctx, mib)
				return b, err
			}), n, n)
		}
		f.verify = runsTrue // it has had its data all along
		return &Session{Sample: func(ctx context.Context) ([]float64, error) {
			t, err := f.launch(ctx)
			return []float64{ms(t.started), ms(t.verified), t.memory, t.available, t.pss}, err
		}}, nil
	}
	samples := 10
	switch {
	case n >= 50 || n*mib > 4096:
		samples = 3
	case n >= 10 || mib > 256:
		samples = 5
	}
	return Probe{
		Rows: rowsOf(row, "ms", "read ms", "memory MB", "available MB", "pss MB", "call ms", "paused ms"), N: samples, Warmup: 1,
		Subjects: st.beside(open, cold, coldly),
	}
}

// restores measures starting many sandboxes at once from one snapshot of files.
func (st *stateBench) restores(row string, n int) Probe {
	open := func(ctx context.Context) (*Session, error) {
		f := &fleet{row: row, n: n}
		if err := f.room(); err != nil {
			return nil, err
		}
		source, sum, err := st.filled(ctx, sandbox.CreateParams{}, st.o.Restored)
		if err != nil {
			return nil, err
		}
		snap, err := source.c.CreateSnapshot(ctx, source.id, sandbox.SnapshotParams{})
		if err != nil {
			return nil, errors.Join(err, source.forget(ctx))
		}
		f.start = func(ctx context.Context) ([]box, error) {
			return createAll(ctx, recruit(func(ctx context.Context) (*sandboxBox, error) {
				b, err := newSandbox(ctx, source.c, sandbox.CreateParams{Snapshot: snap.ID})
				if err != nil {
					return nil, err
				}
				return b, runsTrue(ctx, b)
			}), n, n)
		}
		f.verify = func(ctx context.Context, b *sandboxBox) error { return b.verify(ctx, sum) }
		return &Session{Close: source.forget, Sample: f.seconds}, nil
	}
	coldly := func(context.Context) (*Session, error) {
		f := &fleet{row: row, n: n, verify: runsTrue}
		f.start = func(ctx context.Context) ([]box, error) {
			return createAll(ctx, recruit(func(ctx context.Context) (*sandboxBox, error) {
				b, _, err := st.filled(ctx, sandbox.CreateParams{}, st.o.Restored)
				return b, err
			}), n, n)
		}
		return &Session{Sample: f.seconds}, nil
	}
	return Probe{
		Rows: rowsOf(row, "s", "read s", "memory MB", "available MB", "pss MB"), N: 3,
		Subjects: st.beside(open, cold, coldly),
	}
}

// seconds returns a sample with all measurements of a fleet.
func (f *fleet) seconds(ctx context.Context) ([]float64, error) {
	t, err := f.launch(ctx)
	return []float64{t.started.Seconds(), t.verified.Seconds(), t.memory, t.available, t.pss}, err
}
