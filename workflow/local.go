package workflow

// Local is a variable with one value for each run, which all code of the run shares:
// branches, inline children, the tools of an agent. Programs keep it in a package
// variable, made with NewLocal.
//
// The variable is the zero value whenever the code of a run begins, also on replay, so it
// holds only what the code has stored since, and the same on every replay. It is not
// persisted, and a run that continues another run with ContinueAsNew has a new value.
type Local[T any] struct {
	_ byte // gives each Local an address of its own
}

// NewLocal returns a new variable.
func NewLocal[T any]() *Local[T] { return new(Local[T]) }

// Of returns the variable of ctx's run. Only the run's code may use it, not steps;
// branches of the code run one at a time, so they need no lock.
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
