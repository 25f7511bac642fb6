package workflow

import "fmt"

// Program returns a random workflow, and SomeChild the workflow that its children run:
// see TestExecution_SameOnReplay. They are for tests with a whole engine.
func Program(seed uint64) *Definition[int, int] {
	p := newProgram(seed)
	p.silent = true
	return Define(fmt.Sprint("program-", seed), p.run)
}

// SomeChild is the workflow of the children of programs.
func SomeChild() Workflow { return someChild }
