package machine

import (
	"context"
	"time"

	"github.com/cayhq/cay"
)

// What saves a machine has to ask the machine: its kernel writes its memory and
// its files. That may hang, or be in the hands of the guest, and never answer. So
// no answer is waited for for ever; a machine that gives none can only be ended,
// which takes no answer of it.

// ErrSilent is why a machine is given up.
var ErrSilent = cay.Errorf(cay.Unavailable, "the machine does not answer").WithHint("stop the sandbox: what was not saved of it is lost")

// Patient returns a Runtime whose machines are asked like that: for silence after the
// caller has given up, at most.
func Patient(rt Runtime, silence time.Duration) Runtime { return patientRuntime{rt, silence} }

type patientRuntime struct {
	Runtime
	silence time.Duration
}

func (r patientRuntime) asked(inst Instance, err error) (Instance, error) {
	if err != nil {
		return nil, err
	}
	return patientInstance{inst, r.silence}, nil
}

func (r patientRuntime) Start(ctx context.Context, spec Spec) (Instance, error) {
	return r.asked(r.Runtime.Start(ctx, spec))
}

func (r patientRuntime) StartFrom(ctx context.Context, spec Spec, dir string) (Instance, error) {
	return r.asked(r.Runtime.StartFrom(ctx, spec, dir))
}

func (r patientRuntime) Restore(ctx context.Context, spec Spec, dir string) (Instance, error) {
	return r.asked(r.Runtime.Restore(ctx, spec, dir))
}

func (r patientRuntime) Adopt(ctx context.Context, id string) (Instance, error) {
	return r.asked(r.Runtime.Adopt(ctx, id))
}

type patientInstance struct {
	Instance
	silence time.Duration
}

func (i patientInstance) Pause(ctx context.Context) error { return i.soon(ctx, i.Instance.Pause) }

func (i patientInstance) Resume(ctx context.Context) error { return i.soon(ctx, i.Instance.Resume) }

// soon asks for what takes a machine no time.
func (i patientInstance) soon(ctx context.Context, ask func(context.Context) error) error {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := answered(over, i.silence, func() (struct{}, error) { return struct{}{}, ask(ctx) }, nil)
	return err
}

func (i patientInstance) Checkpoint(ctx context.Context, p SaveParams) (*State, error) {
	return answered(ctx, i.silence, func() (*State, error) { return i.Instance.Checkpoint(ctx, p) }, nil)
}

func (i patientInstance) SaveDisk(ctx context.Context, p SaveParams) (*State, error) {
	return answered(ctx, i.silence, func() (*State, error) { return i.Instance.SaveDisk(ctx, p) }, nil)
}

func (i patientInstance) Fork(ctx context.Context, p ForkParams) (*Forked, error) {
	forked, err := answered(ctx, i.silence, func() (*Forked, error) { return i.Instance.Fork(ctx, p) }, func(f *Forked) {
		for _, inst := range f.Instances {
			_ = inst.Destroy(context.WithoutCancel(ctx)) // what is left of it the next engine reaps
		}
	})
	if err != nil {
		return nil, err
	}
	for n, inst := range forked.Instances {
		forked.Instances[n] = patientInstance{inst, i.silence}
	}
	return forked, nil
}

// answered returns what ask does, unless it has not for that long after ctx has
// ended. What comes later is given to late.
func answered[T any](ctx context.Context, silence time.Duration, ask func() (T, error), late func(T)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	answers, gone := make(chan answer), make(chan struct{})
	go func() {
		v, err := ask()
		select {
		case answers <- answer{v, err}:
		case <-gone:
			if err == nil && late != nil {
				late(v)
			}
		}
	}()
	select {
	case a := <-answers:
		return a.v, a.err
	case <-ctx.Done():
	}
	patience := time.NewTimer(silence)
	defer patience.Stop()
	select {
	case a := <-answers:
		return a.v, a.err
	case <-patience.C:
		close(gone)
		return *new(T), ErrSilent
	}
}
