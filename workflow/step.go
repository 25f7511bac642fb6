package workflow

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/cayhq/cay"
)

// StepDef is a step: a function that does what a workflow's own code must not do, such as
// I/O. Its result is recorded: a replay reads the record and does not call the function
// again. Until the result is recorded the function may be called more than once, for
// example when the process dies during the call: StepInfo has a key by which other
// services can recognise that.
//
// Make it with Step or TxStep, in a package variable. Any number of runs may use it
// concurrently.
type StepDef[In, Out any] struct {
	name string
	opts stepOptions
	tx   bool
	fn   func(context.Context, Tx, In) (Out, error)
}

// stepOptions configure the execution of a step.
type stepOptions struct {
	maxRetries int // further attempts after the first
	retry      RetryPolicy
	timeout    time.Duration // bound of one attempt; 0 for none
	heartbeat  time.Duration // how long an attempt may go without a heartbeat; 0 for ever
}

// RetryPolicy configures the waits before a step is retried. Zero fields have the
// defaults.
type RetryPolicy struct {
	// Initial is the time before the second attempt. The default is 1 s.
	Initial time.Duration
	// Multiplier is the factor between a wait and the next. The default is 2; 1 keeps the
	// wait constant.
	Multiplier float64
	// Max bounds a wait. The default is 1 minute, or Initial if that is more.
	Max time.Duration
	// Jitter varies each wait at random by up to this fraction, so that many runs that
	// failed together do not retry together. The default is 0.1; negative is none.
	Jitter float64
}

// StepOption configures the execution of a step.
type StepOption interface{ applyStep(*stepOptions) }

type stepOption func(*stepOptions)

func (o stepOption) applyStep(s *stepOptions) { o(s) }

// MaxRetries is the number of further attempts after the first attempt failed. The
// default is 3; 0 is none, negative retries for ever.
func MaxRetries(n int) StepOption { return stepOption(func(s *stepOptions) { s.maxRetries = n }) }

// Retry sets the waits between attempts.
func Retry(p RetryPolicy) StepOption { return stepOption(func(s *stepOptions) { s.retry = p }) }

// applyStep makes a RetryPolicy usable as an option.
func (p RetryPolicy) applyStep(s *stepOptions) { s.retry = p }

// Timeout bounds one attempt: after d its context ends, and the attempt fails with
// deadline_exceeded, which errors.Is matches with context.DeadlineExceeded. The attempt
// ends even if its function goes on: a later result is not recorded, see
// Worker.LateResults. The default is no bound.
func Timeout(d time.Duration) StepOption {
	return stepOption(func(s *stepOptions) { s.timeout = max(d, 0) })
}

// Heartbeat makes an attempt fail, as Timeout does, when it has not called
// RecordHeartbeat for d. By default an attempt need not call RecordHeartbeat.
func Heartbeat(d time.Duration) StepOption {
	return stepOption(func(s *stepOptions) { s.heartbeat = max(d, 0) })
}

func newStepOptions(opts []StepOption) stepOptions {
	s := stepOptions{maxRetries: 3}
	for _, opt := range opts {
		opt.applyStep(&s)
	}
	s.retry = s.retry.withDefaults()
	return s
}

func (p RetryPolicy) withDefaults() RetryPolicy {
	if p.Initial <= 0 {
		p.Initial = time.Second
	}
	if p.Multiplier < 1 {
		p.Multiplier = 2
	}
	if p.Max <= 0 {
		p.Max = max(time.Minute, p.Initial)
	}
	if p.Jitter == 0 {
		p.Jitter = 0.1
	}
	p.Jitter = min(max(p.Jitter, 0), 1)
	return p
}

// Step makes a step. The name is part of the log of every run that uses the step: it must
// not change while such runs have not ended. In and Out are stored by the client's Codec,
// JSON by default.
//
// Step panics if the name is empty, longer than 200 bytes, or has a slash or a
// control character.
func Step[In, Out any](name string, fn func(context.Context, In) (Out, error), opts ...StepOption) *StepDef[In, Out] {
	mustName("Step", name)
	if fn == nil {
		panic("workflow: Step: no function")
	}
	return &StepDef[In, Out]{name: name, opts: newStepOptions(opts), fn: func(ctx context.Context, _ Tx, in In) (Out, error) {
		return fn(ctx, in)
	}}
}

// TxStep makes a step whose writes and whose record are one transaction on the database
// that keeps the runs: both happen, once, or neither. It is for programs that keep their
// own tables in that database. fn must not end the transaction, nor write elsewhere: it
// may be called again if the transaction fails. TxStep needs a backend in this process;
// with a daemon's backend it fails with not_supported.
func TxStep[In, Out any](name string, fn func(context.Context, Tx, In) (Out, error), opts ...StepOption) *StepDef[In, Out] {
	mustName("TxStep", name)
	if fn == nil {
		panic("workflow: TxStep: no function")
	}
	return &StepDef[In, Out]{name: name, opts: newStepOptions(opts), tx: true, fn: fn}
}

// Name is the name that the step was made with.
func (s *StepDef[In, Out]) Name() string { return s.name }

// StepMetadata describes the current attempt of a step.
type StepMetadata struct {
	RunID string
	// StepID is the step's id in the log of its run. All attempts have the same id.
	StepID  string
	Name    string
	Attempt int // from 1
	// IdempotencyKey is the same for all attempts of this step of this run, and different
	// for every other step: pass it to services that detect repeated requests.
	IdempotencyKey string
}

// stepEnv is what a worker puts into the context of a step.
type stepEnv struct {
	meta     StepMetadata
	payloads payloads
	beat     func()
	// setAttributes and writeStream return when the change is committed.
	setAttributes func(ctx context.Context, attributes map[string]string) error
	writeStream   func(ctx context.Context, stream string, chunks [][]byte, closeIt bool) error
	readStream    func(ctx context.Context, stream string, n int) ([]Chunk, error) // the newest n
	streams       *streamSinks                                                     // chunks that were sent and not yet stored
}

type stepEnvKey struct{}

func withStepEnv(ctx context.Context, e *stepEnv) context.Context {
	return context.WithValue(ctx, stepEnvKey{}, e)
}

// stepEnvOf returns nil for a context that is not a step's.
func stepEnvOf(ctx context.Context) *stepEnv {
	e, _ := ctx.Value(stepEnvKey{}).(*stepEnv)
	return e
}

// StepInfo returns the metadata of the attempt whose context is ctx. It is zero if ctx is
// not a step's context, for example when a test calls the step's function.
func StepInfo(ctx context.Context) StepMetadata {
	if e := stepEnvOf(ctx); e != nil {
		return e.meta
	}
	return StepMetadata{}
}

// RecordHeartbeat reports that a step with a Heartbeat is still working. Without a worker
// it does nothing.
func RecordHeartbeat(ctx context.Context) {
	if e := stepEnvOf(ctx); e != nil && e.beat != nil {
		e.beat()
	}
}

// isScalar reports whether values of a type can be passed on without encoding: they share
// no memory, and decoding their envelope gives an equal value.
func isScalar(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.String:
		return t.PkgPath() == "" // such a type has no methods that marshal it differently
	}
	return false
}

// Run executes the step and waits for its result. Errors: a *StepError when the step has
// failed for good, which wraps the error of the last attempt as recorded in the log;
// ErrCancelled or ErrTimeout if ctx ends before.
func (s *StepDef[In, Out]) Run(ctx Context, in In) (Out, error) { return s.Go(ctx, in).Get(ctx) }

// Go starts the step and does not wait for it.
func (s *StepDef[In, Out]) Go(ctx Context, in In) *Future[Out] {
	return goStep[Out](ctx.flow(), s.name, in, isScalar(reflect.TypeFor[In]()), &s.opts, s.tx, s.fn)
}

// Call calls the step's function directly. It is for steps that use other steps'
// functions, and for tests.
func (s *StepDef[In, Out]) Call(ctx context.Context, in In) (Out, error) {
	if s.tx {
		var zero Out
		return zero, cay.Errorf(cay.NotSupported, "step %s needs a transaction of the engine: it cannot be called", s.name)
	}
	return s.fn(ctx, nil, in)
}

// Do executes a step that is only used in one place of the program. Variables that fn
// captures must not change while it runs, and must not hold a Context. Errors: the errors
// of StepDef.Run; invalid for a name that Step would not accept.
func Do[T any](ctx Context, name string, fn func(context.Context) (T, error), opts ...StepOption) (T, error) {
	return DoAsync(ctx, name, fn, opts...).Get(ctx)
}

// DoAsync is Do, but does not wait for the step.
func DoAsync[T any](ctx Context, name string, fn func(context.Context) (T, error), opts ...StepOption) *Future[T] {
	f := ctx.flow()
	if bad := badName(name); bad != "" {
		return failed[T](f.x, cay.Errorf(cay.Invalid, "the step's name %q %s", name, bad))
	}
	o := defaultStepOptions
	if len(opts) > 0 {
		o = newStepOptions(opts)
	}
	return goStep[T](f, name, none{}, true, &o, false, func(ctx context.Context, _ Tx, _ none) (T, error) { return fn(ctx) })
}

var defaultStepOptions = newStepOptions(nil)

// none is the input type of steps without input.
type none struct{}

func failed[T any](x *execution, err error) *Future[T] {
	x.use()
	f := new(Future[T])
	f.resolve(err)
	return f
}

// goStep starts a step. asIs means that fn may get in itself instead of the decoded
// envelope; the decoded value shares no memory with the workflow's code and is the same
// after a crash.
func goStep[Out, In any](f *flow, name string, in In, asIs bool, opts *stepOptions, tx bool, fn func(context.Context, Tx, In) (Out, error)) *Future[Out] {
	x := f.x
	x.use()
	p := new(Future[Out])
	if err := f.cancel.cause(); err != nil {
		p.resolve(err)
		return p
	}
	if x.closing {
		return p
	}
	o := x.ask(f, kindStep, name, &p.promise)
	if o.ends { // and will not be executed
		x.await(o)
		return p
	}
	var input []byte
	if _, ok := any(in).(none); !ok {
		var err error
		if input, err = x.payloads.encode(in); err != nil {
			x.settle(o, fmt.Errorf("input of step %s: %w", name, err))
			return p
		}
	}
	enc := x.payloads
	o.step = &stepSpec{opts: opts, tx: tx, input: input, invoke: func(ctx context.Context, tx Tx) ([]byte, error) {
		arg := in
		if !asIs {
			arg = *new(In)
			if err := enc.decode(input, &arg); err != nil {
				return nil, Fatal(err)
			}
		}
		out, err := fn(ctx, tx, arg)
		if err != nil {
			return nil, err
		}
		env, err := enc.encode(out)
		if err != nil {
			return nil, Fatal(fmt.Errorf("result of step %s: %w", name, err))
		}
		return env, nil
	}}
	x.await(o)
	return p
}
