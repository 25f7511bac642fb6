package workflow

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"time"
	"unicode/utf8"
)

// Definition is a workflow: a name and a function that survives crashes. Make it with
// Define, in a package variable; pass it to a Worker, which executes its runs, and start
// runs with Start.
type Definition[In, Out any] struct {
	def definition
	fn  func(Context, In) (Out, error)
}

// Workflow is a Definition with any type parameters.
type Workflow interface {
	// Name is the name that was passed to Define.
	Name() string

	definition() *definition
}

// definition is the part of a Definition that does not depend on type parameters.
type definition struct {
	info     DefinitionInfo
	position string // file and line of the function
	// run calls the function. in decodes the run's input into the variable that its
	// argument points to.
	run func(ctx Context, in func(v any) error) (out any, err error)
}

// Define makes a workflow. The name is part of every run's log: it must not change while
// runs are kept. fn must be deterministic: given the same results from its Context, it
// makes the same calls. Time, randomness, I/O, goroutines and the iteration over maps are
// not deterministic: use steps, or the Context's replacements; cay-vet finds common
// mistakes.
//
// Define panics if the name is empty, longer than 200 bytes, or has a slash or a
// control character.
func Define[In, Out any](name string, fn func(Context, In) (Out, error), opts ...DefineOption) *Definition[In, Out] {
	if fn == nil {
		panic("workflow: Define: no function")
	}
	mustName("Define", name)
	d := &Definition[In, Out]{fn: fn}
	d.def.info.Name = name
	d.def.position = positionOf(fn)
	for _, opt := range opts {
		opt.applyDefine(&d.def.info)
	}
	d.def.run = func(ctx Context, decode func(any) error) (any, error) {
		var in In
		if err := decode(&in); err != nil {
			return nil, err
		}
		out, err := d.fn(ctx, in)
		return out, err
	}
	return d
}

// Name is the name that was passed to Define.
func (d *Definition[In, Out]) Name() string { return d.def.info.Name }

func (d *Definition[In, Out]) definition() *definition { return &d.def }

// Definitions lists workflows for WorkerConfig. It panics if two have the same name.
func Definitions(workflows ...Workflow) []Workflow {
	seen := make(map[string]bool, len(workflows))
	for _, w := range workflows {
		if seen[w.Name()] {
			panic(fmt.Sprintf("workflow: Definitions: two workflows are named %q", w.Name()))
		}
		seen[w.Name()] = true
	}
	return workflows
}

// DefineOption changes a definition.
type DefineOption interface{ applyDefine(*DefinitionInfo) }

type defineOption func(*DefinitionInfo)

func (o defineOption) applyDefine(d *DefinitionInfo) { o(d) }

// Concurrency bounds how many runs of the workflow are executed at a time, over all
// workers. Other runs wait; runs of higher priority go first. The default is no limit.
func Concurrency(n int) DefineOption {
	return defineOption(func(d *DefinitionInfo) { d.MaxRunning = positive("Concurrency", n) })
}

// GroupConcurrency bounds how many runs of one group are executed at a time: see the
// option Group of Start. The default is no limit.
func GroupConcurrency(n int) DefineOption {
	return defineOption(func(d *DefinitionInfo) { d.MaxRunningPerGroup = positive("GroupConcurrency", n) })
}

// RateLimit bounds how many runs of the workflow begin within a period. The
// default is no limit.
func RateLimit(n int, per time.Duration) DefineOption {
	return defineOption(func(d *DefinitionInfo) { d.Rate = positive("RateLimit", n); ratePeriod(d, per) })
}

// GroupRateLimit is RateLimit for each group. If a workflow has both, their period
// is the same.
func GroupRateLimit(n int, per time.Duration) DefineOption {
	return defineOption(func(d *DefinitionInfo) { d.RatePerGroup = positive("GroupRateLimit", n); ratePeriod(d, per) })
}

func ratePeriod(d *DefinitionInfo, per time.Duration) {
	if per <= 0 {
		panic("workflow: the period of a rate limit must be positive")
	}
	if d.RatePeriod != 0 && d.RatePeriod != per {
		panic("workflow: RateLimit and GroupRateLimit of one workflow need the same period")
	}
	d.RatePeriod = per
}

// Retention is how long ended runs are kept; 0 deletes their payloads (inputs, outputs,
// results of steps) at the end, and keeps the rest. docs/workflow.md says what remains in
// the database files. The default keeps runs until they are deleted.
func Retention(keep time.Duration) DefineOption {
	return defineOption(func(d *DefinitionInfo) {
		if keep <= 0 {
			keep = -1
		}
		d.Retention = keep
	})
}

// Priority is the priority of the workflow's runs; the option StartPriority of a
// run overrides it. Higher goes first. The default is 0.
func Priority(n int) DefineOption {
	return defineOption(func(d *DefinitionInfo) { d.Priority = n })
}

// MaxEvents bounds the log of a run. The default is 25000. At 90 % of the bound every
// wait returns ErrMaxEvents, as it returns ErrCancelled when the run is cancelled: the
// code can return ContinueAsNew, or clean up and fail, with MAX_EVENTS_EXCEEDED. For the
// clean-up the log may grow to twice the bound; a run that exceeds that fails at once.
//
// The values of hooks may be 25 % of the events. Beyond that, and when the log has 80 %
// of its events, sending a value returns quota_exceeded.
func MaxEvents(n int) DefineOption {
	return defineOption(func(d *DefinitionInfo) { d.MaxEvents = positive("MaxEvents", n) })
}

func positive(what string, n int) int {
	if n <= 0 {
		panic(fmt.Sprintf("workflow: %s(%d): it must be positive", what, n))
	}
	return n
}

const maxName = 200

// badName returns why the name of a workflow, step, hook or change is invalid; "" if it
// is valid. Names become parts of ids, in which a slash separates scopes.
func badName(name string) string {
	switch {
	case name == "":
		return "is empty"
	case len(name) > maxName:
		return fmt.Sprintf("is longer than %d bytes", maxName)
	case !utf8.ValidString(name):
		return "is not UTF-8"
	case strings.Contains(name, "/"):
		return "has a slash"
	case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "has a control character"
	}
	return ""
}

func mustName(what, name string) {
	if bad := badName(name); bad != "" {
		panic(fmt.Sprintf("workflow: %s: the name %q %s", what, name, bad))
	}
}

// positionOf returns the file and line of a function.
func positionOf(fn any) string {
	f := runtime.FuncForPC(reflect.ValueOf(fn).Pointer())
	if f == nil {
		return ""
	}
	file, line := f.FileLine(f.Entry())
	return fmt.Sprintf("%s:%d", file, line)
}
