package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/procfs"

	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/sandboxd/store/copies"
	"github.com/cayhq/cay/sandbox"
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
			Sample: creation(d, r),
			Close:  func(ctx context.Context) error { return removeAll(ctx, boxes) },
		}, nil
	}
}

// creation returns a sample of crowd.
func creation(d *Daemon, r runner) func(ctx context.Context) ([]float64, error) {
	return func(ctx context.Context) (_ []float64, err error) {
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
	}
}

// rowsProbe measures creations beside stopped sandboxes, at a daemon that start starts.
func rowsProbe(start func(ctx context.Context, pool int) (*Daemon, error), stopped int, all []contender) Probe {
	row := fmt.Sprintf("create_at_%dk_rows", stopped/1000)
	return Probe{
		Rows: []Row{{row, "ms", 0}, {row + ".daemon_cpu", "ms", 0}, {row + ".daemon_threads", "threads", 0}},
		N:    20, Warmup: 2, Subjects: subjects(only(all, Cay), func(ctx context.Context, _ runner, _ int) (_ *Session, err error) {
			d, err := start(ctx, 0)
			if err != nil {
				return nil, err
			}
			if err := d.addStopped(ctx, stopped); err != nil {
				return nil, errors.Join(err, d.Stop())
			}
			return &Session{Sample: creation(d, &daemonRunner{d}), Close: func(context.Context) error { return d.Stop() }}, nil
		}),
	}
}

// addStopped stops a persistent sandbox, and adds n copies of it to the daemon's database.
func (d *Daemon) addStopped(ctx context.Context, n int) (err error) {
	persistent := true
	b, err := newSandbox(ctx, d.Client, sandbox.CreateParams{Persistent: &persistent})
	if err != nil {
		return err
	}
	if _, err := d.Client.Stop(ctx, b.id); err != nil {
		return err
	}
	file, err := d.databaseFile()
	if err != nil {
		return err
	}
	rows, err := db.Open(ctx, file, db.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	return copies.Ended(ctx, rows, b.id, 1, n)
}

// databaseFile returns the path of the daemon's main database.
func (d *Daemon) databaseFile() (string, error) {
	proc, err := procfs.NewProc(d.PID)
	if err != nil {
		return "", fmt.Errorf("find the daemon's database: %w", err)
	}
	files, err := proc.FileDescriptorTargets()
	if err != nil {
		return "", fmt.Errorf("find the daemon's database: %w", err)
	}
	name := filepath.Base(new(config.Config).DatabaseFile())
	i := slices.IndexFunc(files, func(f string) bool { return filepath.Base(f) == name })
	if i < 0 {
		return "", fmt.Errorf("find the daemon's database: process %d has no %s open", d.PID, name)
	}
	return files[i], nil
}
