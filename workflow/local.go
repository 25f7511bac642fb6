package workflow

// Local is a variable that every run has for itself, and that all the code of a run
// shares: branches, inline children, the tools of an agent. Programs keep it in a
// package variable, made with NewLocal.
//
// It begins as the zero value whenever the code of a run begins, also when that is
// replayed, so what it holds is what the code has put there since: the same each
// time. It is not stored, and the run that continues one with ContinueAsNew has its
// own.
type Local[T any] struct {
	_ byte // so that each has an address of its own
}

// NewLocal returns a new variable.
func NewLocal[T any]() *Local[T] { return new(Local[T]) }

// Of returns the variable of ctx's run. It is for the run's code alone, whose branches
// run one at a time, and so need no lock; not for steps.
func (l *Local[T]) Of(ctx Context) *T {
	x := ctx.flow().x
	x.use()
	v, ok := x.locals[l].(*T)
	if !ok {
		v = new(T)
		if x.locals == nil {
			x.locals = make(map[any]any)
		}
		x.locals[l] = v
	}
	return v
}
