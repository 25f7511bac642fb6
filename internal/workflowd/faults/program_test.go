package faults

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// program is the work of one run: its ops in order, repeated Loops times by continuing as
// new.
type program struct {
	Ops   []op     `json:"ops"`
	Loops int      `json:"loops,omitempty"`
	Round int      `json:"round,omitempty"` // how often the run has been continued
	Said  []string `json:"said,omitempty"`  // output of earlier rounds
	// Path identifies this program within the outer program.
	Path string `json:"path"`
}

// op is one operation of a program.
type op struct {
	Kind kind   `json:"kind"`
	N    int    `json:"n,omitempty"` // a value, or a number of items
	Fail int    `json:"fail,omitempty"`
	Subs [][]op `json:"subs,omitempty"`
}

// kind is the kind of an operation.
type kind string

const (
	doStep     kind = "step"     // an external effect, which fails Fail times first
	doFatal    kind = "fatal"    // an external effect whose step fails for good
	doTx       kind = "tx"       // a row in the engine's database
	doSleep    kind = "sleep"    // N milliseconds
	doParallel kind = "parallel" // each of Subs as a branch
	doMany     kind = "many"     // N steps at once
	doRace     kind = "race"     // a step against a sleep of an hour
	doHook     kind = "hook"     // N payloads, sent by a step
	doTimeout  kind = "timeout"  // a hook that is never resumed
	doInline   kind = "inline"   // Subs[0] as an inline child
	doChild    kind = "child"    // Subs[0] as a run of its own
	doSaga     kind = "saga"     // N steps, a failure, and compensations
	doVersion  kind = "version"  // a change of version N
	doCancel   kind = "cancel"   // a branch that is cancelled while it sleeps
	doSelect   kind = "select"   // a selector over steps, until all are done
	doAttr     kind = "attr"     // an attribute
	doRandom   kind = "random"   // time, ids and numbers, which must be the same on replay
)

// weights are the relative frequencies of the kinds in random programs.
var weights = []struct {
	kind kind
	w    int
}{
	{doStep, 10}, {doFatal, 2}, {doTx, 3}, {doSleep, 3}, {doParallel, 4}, {doMany, 2}, {doRace, 2}, {doHook, 4},
	{doTimeout, 1}, {doInline, 2}, {doChild, 2}, {doSaga, 2}, {doVersion, 1}, {doCancel, 1}, {doSelect, 2}, {doAttr, 1}, {doRandom, 2},
}

// generator makes random programs.
type generator struct {
	r *rand.Rand
	// without are kinds that the backend in use does not support.
	without []kind
}

func newGenerator(seed uint64, without ...kind) *generator {
	return &generator{rand.New(rand.NewPCG(seed, 1)), without}
}

func (g *generator) program(path string) program {
	p := program{Path: path, Ops: g.ops(3)}
	if g.r.IntN(5) == 0 {
		p.Loops = 1 + g.r.IntN(2)
	}
	return p
}

func (g *generator) ops(depth int) []op {
	all := make([]op, 1+g.r.IntN(4))
	for i := range all {
		all[i] = g.op(depth)
	}
	return all
}

func (g *generator) op(depth int) op {
	o := op{Kind: g.kind()}
	for depth == 0 && slices.Contains([]kind{doParallel, doInline, doChild}, o.Kind) || slices.Contains(g.without, o.Kind) {
		o.Kind = g.kind()
	}
	switch o.Kind {
	case doStep:
		if g.r.IntN(4) == 0 {
			o.Fail = 1 + g.r.IntN(2)
		}
	case doSleep:
		o.N = 1 + g.r.IntN(20)
	case doParallel:
		for range 2 + g.r.IntN(3) {
			o.Subs = append(o.Subs, g.ops(depth-1))
		}
	case doInline, doChild:
		o.Subs = [][]op{g.ops(depth - 1)}
	case doMany:
		o.N = 2 + g.r.IntN(20)
	case doHook, doSaga, doSelect, doVersion:
		o.N = 1 + g.r.IntN(3)
	}
	return o
}

func (g *generator) kind() kind {
	sum := 0
	for _, w := range weights {
		sum += w.w
	}
	n := g.r.IntN(sum)
	for _, w := range weights {
		if n -= w.w; n < 0 {
			return w.kind
		}
	}
	panic("unreachable")
}

// model is the expected result of a program.
type model struct {
	said    []string // output
	effects []string // paths of its external effects
	rows    []string // paths of its rows in the engine's database
}

// modelOf computes the expected result of a program, without workflows.
func modelOf(p program) model {
	var m model
	for round := range p.Loops + 1 {
		m.said = append(m.said, m.ops(p.Ops, roundPath(p.Path, round))...)
	}
	return m
}

// roundPath returns the path of the ops of a round.
func roundPath(path string, round int) string { return fmt.Sprintf("%s#%d", path, round) }

// opPath returns the path of the i-th op below path.
func opPath(path string, i int) string { return fmt.Sprintf("%s.%d", path, i) }

// value returns the result of the step at a path.
func value(path string) int {
	h := uint32(2166136261)
	for i := range len(path) {
		h = (h ^ uint32(path[i])) * 16777619
	}
	return int(h % 100_000)
}

func (m *model) effect(path string) int {
	m.effects = append(m.effects, path)
	return value(path)
}

func (m *model) ops(ops []op, path string) []string {
	var said []string
	for i, o := range ops {
		said = append(said, m.op(o, opPath(path, i))...)
	}
	return said
}

func (m *model) op(o op, path string) []string {
	one := func(format string, args ...any) []string {
		return []string{string(o.Kind) + " " + fmt.Sprintf(format, args...)}
	}
	switch o.Kind {
	case doStep, doRace:
		return one("%d", m.effect(path))
	case doFatal:
		m.effect(path)
		return one("%s refused", path)
	case doTx:
		m.rows = append(m.rows, path)
		return one("%d", value(path))
	case doSleep, doTimeout, doCancel, doAttr, doRandom:
		return one("ok")
	case doParallel:
		var said []string
		for i, sub := range o.Subs {
			said = append(said, m.ops(sub, opPath(path, i))...)
		}
		return append(one("%d", len(o.Subs)), said...)
	case doMany, doSelect:
		sum := 0
		for i := range o.N {
			sum += m.effect(opPath(path, i))
		}
		return one("%d", sum)
	case doHook:
		var got []string
		for i := range o.N {
			got = append(got, fmt.Sprint(value(opPath(path, i))))
		}
		m.effect(path)
		return one("%s", strings.Join(got, ","))
	case doInline, doChild:
		return append(one(""), m.ops(o.Subs[0], roundPath(opPath(path, 0), 0))...)
	case doSaga:
		for i := range o.N {
			m.effect(opPath(path, i))
		}
		var undone []string
		for i := range o.N {
			at := opPath(path, o.N-1-i) + "-undo"
			m.effect(at)
			undone = append(undone, at)
		}
		return one("%s", strings.Join(undone, ","))
	case doVersion:
		return one("%d", o.N)
	}
	panic("no such kind: " + string(o.Kind))
}
