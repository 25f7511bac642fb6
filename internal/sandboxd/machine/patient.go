package machine

import (
	"context"
	"time"

	"github.com/cayhq/cay"
)

// A save needs the machine's cooperation: its kernel writes its memory and its files. The
// kernel may hang, or be under the guest's control, and never answer. So every wait for
// an answer is bounded. A machine that does not answer can only be destroyed, which needs
// no cooperation.

// ErrSilent is the error of a machine that does not answer.
var ErrSilent = cay.Errorf(cay.Unavailable, "the machine does not answer").WithHint("stop the sandbox: what was not saved of it is lost")

// Patient returns a Runtime that bounds the waits for its machines' answers: at most
// silence after the caller's context has ended.
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

// soon makes a call that takes a healthy machine no time.
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
			_ = inst.Destroy(context.WithoutCancel(ctx)) // the next engine reaps what is left
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

// answered returns the result of ask, unless ask takes longer than silence after ctx has
// ended. A late result is passed to late.
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
