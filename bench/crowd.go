package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/procfs"
)

// crowdProbe measures creations beside live idle sandboxes.
func crowdProbe(d *Daemon, live int, all []contender) Probe {
	row := fmt.Sprintf("create_at_%d", live)
	return Probe{
		Rows: []Row{{row, "ms", 0}, {row + ".daemon_cpu", "ms", 0}, {row + ".daemon_threads", "threads", 0}},
		N:    20, Warmup: 2, Subjects: subjects(only(all, Cay), crowd(d, row, live)),
	}
}

// crowd makes live sandboxes, beside which each sample creates and removes another one. A
// sample is the time of the creation, its CPU time in the daemon, and the daemon's
// threads.
func crowd(d *Daemon, row string, live int) opener {
	return func(ctx context.Context, r runner, _ int) (*Session, error) {
		if err := (&fleet{row: row, n: live}).room(); err != nil {
			return nil, err
		}
		boxes, err := createAll(ctx, r, live, 8)
		if err != nil {
			return nil, errors.Join(err, removeAll(ctx, boxes))
		}
		return &Session{
			Sample: func(ctx context.Context) (_ []float64, err error) {
				before, err := threadsCPU(d.PID)
				if err != nil {
					return nil, err
				}
				begun := time.Now()
				b, err := r.create(ctx)
				took := time.Since(begun)
				if err != nil {
					return nil, err
				}
				defer removeBox(ctx, b, &err)
				after, err := threadsCPU(d.PID)
				if err != nil {
					return nil, err
				}
				threads, err := procfs.AllThreads(d.PID)
				return []float64{ms(took), 1e3 * (after - before), float64(len(threads))}, err
			},
			Close: func(ctx context.Context) error { return removeAll(ctx, boxes) },
		}, nil
	}
}
