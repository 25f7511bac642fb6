package gvisor

import (
	"context"
	"errors"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

// Fork implements machine.Instance. The forks start while the checkpoint is being
// written, to unnamed files.
func (in *instance) Fork(ctx context.Context, p machine.ForkParams) (*machine.Forked, error) {
	if len(p.Specs) == 0 || p.MaxBytes < 0 {
		return nil, cay.Errorf(cay.Invalid, "%d forks of at most %d bytes were asked for", len(p.Specs), p.MaxBytes)
	}
	for _, spec := range p.Specs {
		if err := errors.Join(checkMounts(spec), sameDrives(spec, in.st.Drives)); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	files, err := unnamedFiles(in.r.cfg.StateDir, memoryFiles)
	if err != nil {
		return nil, hostError(err)
	}
	defer files.Close()
	if err := files.lock(); err != nil {
		return nil, err
	}
	read, err := files.readOnly()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	forked := &machine.Forked{Instances: make([]machine.Instance, len(p.Specs))}
	starting, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	var together chan struct{}
	if len(p.Specs) > 1 {
		together = make(chan struct{})
		defer close(together)
	}
	var g errgroup.Group
	written, failed := make(chan struct{}), error(nil)
	g.Go(func() error {
		defer close(written)
		forked.Paused, failed = in.save(starting, machine.MemoryState, nil, files, nil, p.MaxBytes)
		if failed = hostError(errors.Join(failed, files.unlock(failed == nil))); failed != nil {
			giveUp(failed)
		}
		return failed
	})
	// Each copy that starts lengthens the pause of the machine, so only as many copies as
	// there are CPUs start during the pause, and the others afterwards.
	early := runtime.NumCPU()
	for i, spec := range p.Specs {
		g.Go(func() error {
			if i >= early {
				if <-written; failed != nil {
					return failed
				}
			}
			fork, err := in.r.startFrom(starting, spec, &origin{kind: machine.MemoryState, files: read, full: in.st.Full, together: together})
			if err == nil {
				forked.Instances[i] = fork
				return nil
			}
			giveUp(err)
			if <-written; failed != nil && !errors.Is(failed, err) { // that is why
				return failed
			}
			return err
		})
	}
	if err = g.Wait(); err == nil {
		forked.Started = sandbox.Duration(time.Since(began))
		if forked.Bytes, err = files.bytes(); err == nil {
			return forked, nil
		}
	}
	errs := []error{err}
	for _, fork := range forked.Instances {
		if fork != nil {
			errs = append(errs, fork.Destroy(context.WithoutCancel(ctx)))
		}
	}
	return nil, errors.Join(errs...)
}
