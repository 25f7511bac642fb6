package workflow

import "fmt"

// Program returns a workflow made at random, and SomeChild what it starts: see
// TestExecution_SameOnReplay. They are for tests with a whole engine.
func Program(seed uint64) *Definition[int, int] {
	p := newProgram(seed)
	p.silent = true
	return Define(fmt.Sprint("program-", seed), p.run)
}

// SomeChild is what programs start.
func SomeChild() Workflow { return someChild }
