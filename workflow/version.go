package workflow

import (
	"math"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

// Version lets code change under runs that have not ended. Where the code does
// something else than it did, it asks which version of the change the run is on:
// max for a run that comes here for the first time, and as recorded from then on; 0
// for one that was here before the change was made.
//
//	if workflow.Version(ctx, "charge-before-shipping", 1) == 0 {
//		... // as it was
//	} else {
//		... // as it is now
//	}
//
// It returns when the version is recorded: one commit, the first time. A run has one
// version of a change, however often it asks. When no run of an old
// version is left, its code may go; the call stays until the last run that has the
// change recorded has ended. Names are as those of steps. Raise max for a further
// change of the same place.
func Version(ctx Context, change string, max int) int {
	f := ctx.flow()
	x := f.x
	x.use()
	if bad := badName(change); bad != "" {
		panic(cay.Errorf(cay.Invalid, "the change's name %q %s", change, bad))
	}
	if max < 0 || max > math.MaxInt32 {
		panic(cay.Errorf(cay.Invalid, "version %d of the change %q is not between 0 and %d", max, change, math.MaxInt32))
	}
	v := x.versions[change]
	if v == nil {
		v = x.version(change, max)
		if x.versions == nil {
			x.versions = make(map[string]*version)
		}
		x.versions[change] = v
	}
	for !v.marked.done {
		x.park(nil, "waits for "+kindPrefix[kindVersion]+change, kindPrefix[kindVersion]+change, &v.marked.waiters)
	}
	return v.number
}

// version is which version of a change a run is on.
type version struct {
	number int
	// marked is resolved when the log has it. Nothing that the code asks for because of
	// it may be there before: see execution.version.
	marked promise
}

// version finds out or decides which version of a change the run is on.
func (x *execution) version(change string, max int) *version {
	id := kindPrefix[kindVersion] + change
	v := &version{number: max}
	o := x.ops[id]
	if o == nil && x.unasked > 0 {
		// The log has what the code asked for after this point, so it was here before; and
		// as it asked for no version then, it was on none.
		v.number = 0
		v.marked.resolve(nil)
		return v
	}
	if x.closing {
		return v
	}
	if o != nil && o.attempt > max {
		x.diverged = x.newerVersion(o, max)
		return v
	}
	o = x.askFor(kindVersion, id, change, nil, &v.marked)
	switch {
	case o.recorded:
		v.number = o.attempt
		x.settle(o, nil)
	case o.attempt > 0 || o.typ == history.VersionMarked:
		v.number = o.attempt // further on in the log
	default:
		o.event = &Event{Type: history.VersionMarked, Name: change, Attempt: max}
	}
	return v
}
