package workflow

import (
	"math"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

// Version lets code change under runs that have not ended. Where the code behaves
// differently than before, it asks which version of the change the run is on: max for a
// run that gets here for the first time, and the recorded version from then on; 0 for a
// run that got past this point before the change was made.
//
//	if workflow.Version(ctx, "charge-before-shipping", 1) == 0 {
//		... // as it was
//	} else {
//		... // as it is now
//	}
//
// Version returns when the version is recorded: the first call takes one commit. A run
// has one version of a change, however often it asks. When no run of an old version is
// left, its code may be removed; the call of Version stays until the last run that has
// recorded the change has ended. The rules for names are those of steps. Raise max for a
// further change in the same place.
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

// version is a run's version of a change.
type version struct {
	number int
	// marked is resolved when the log has the version. Ops that depend on the version
	// must not be in the log before it: see execution.version.
	marked promise
}

// version returns the recorded version of a change, or chooses it.
func (x *execution) version(change string, max int) *version {
	id := kindPrefix[kindVersion] + change
	v := &version{number: max}
	o := x.ops[id]
	if o == nil && x.unasked > 0 {
		// The log has ops that the code asked for after this point, so the run has been
		// here before; it recorded no version then, so it is on version 0.
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
		v.number = o.attempt // the mark is further on in the log
	default:
		o.event = &Event{Type: history.VersionMarked, Name: change, Attempt: max}
	}
	return v
}
