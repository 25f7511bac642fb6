package bench

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// pooledRunner is cay with a pool of machines, in a daemon of its own, because
// the daemon of the other rows has no pool.
type pooledRunner struct {
	daemonRunner
	start func(ctx context.Context, size int) (*Daemon, error)
}

// fromPool measures the samples of open against a daemon whose pool of size
// machines is full before each sample. Opponents have no pools, and run open
// unchanged.
func fromPool(size int, open opener) opener {
	return func(ctx context.Context, r runner, n int) (*Session, error) {
		p, ours := r.(*pooledRunner)
		if !ours {
			return open(ctx, r, n)
		}
		d, err := p.start(ctx, size)
		if err != nil {
			return nil, err
		}
		s, err := open(ctx, &daemonRunner{d}, n)
		if err != nil {
			return nil, errors.Join(err, d.Stop())
		}
		return &Session{
			Sample: func(ctx context.Context) ([]float64, error) {
				if err := d.awaitPool(ctx, size); err != nil {
					return nil, err
				}
				before, err := d.pool(ctx)
				if err != nil {
					return nil, err
				}
				values, err := s.Sample(ctx)
				if err != nil {
					return nil, err
				}
				after, err := d.pool(ctx)
				if err == nil && after.misses > before.misses {
					err = fmt.Errorf("%g sandboxes did not come from the pool", after.misses-before.misses)
				}
				return values, err
			},
			Close: func(ctx context.Context) error {
				var err error
				if s.Close != nil {
					err = s.Close(ctx)
				}
				return errors.Join(err, d.Stop())
			},
		}, nil
	}
}

// poolPoll is the interval for checking whether a daemon's pool is full, and
// poolCalm how long the daemon is then left alone.
const (
	poolPoll = 50 * time.Millisecond
	poolCalm = 200 * time.Millisecond
)

// awaitPool waits until a daemon's pool is full, and the daemon is idle.
func (d *Daemon) awaitPool(ctx context.Context, size int) error {
	for wait := poolPoll; ; {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
		if wait == poolCalm {
			return nil
		}
		p, err := d.pool(ctx)
		if err != nil {
			return err
		}
		if p.ready == float64(size) && p.starting == 0 {
			wait = poolCalm
		}
	}
}

// poolState has a daemon's counters of its only pool.
type poolState struct{ ready, starting, misses float64 }

func (d *Daemon) pool(ctx context.Context) (poolState, error) {
	families, err := d.metrics(ctx)
	if err != nil {
		return poolState{}, err
	}
	var p poolState
	for name, into := range map[string]*float64{
		"cay_pool_ready": &p.ready, "cay_pool_starting": &p.starting, "cay_pool_misses_total": &p.misses,
	} {
		for _, m := range families[name].GetMetric() {
			*into += m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return p, nil
}
