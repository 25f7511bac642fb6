package workflow

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/history"
)

// program is a random workflow. Its code writes all its observations to trace, which is
// the same for every execution that was fed the same log.
type program struct {
	seed   uint64
	root   node
	trace  []string
	silent bool // it writes no trace
}

// node makes calls with a Context, and returns a number or an error.
type node func(ctx Context) (int, error)

func newProgram(seed uint64) *program {
	p := &program{seed: seed}
	r := rand.New(rand.NewPCG(seed, 7))
	p.root = p.sequence(r, 3, 5)
	return p
}

func (p *program) workflow() *Definition[int, int] {
	return Define("program", p.run)
}

func (p *program) run(ctx Context, n int) (int, error) {
	p.trace = nil
	v, err := p.root(ctx)
	p.note(ctx, "end", v, err)
	return v + n, err
}

func (p *program) note(ctx Context, what string, v any, err error) {
	if p.silent {
		return
	}
	p.trace = append(p.trace, fmt.Sprintf("%d %s%s = %v, %v", ctx.Now().UnixMilli(), ctx.flow().scope.path, what, v, err))
}

func (p *program) sequence(r *rand.Rand, depth, most int) node {
	nodes := make([]node, 1+r.IntN(most))
	for i := range nodes {
		nodes[i] = p.node(r, depth)
	}
	strict := r.IntN(4) == 0
	return func(ctx Context) (int, error) {
		sum := 0
		for _, n := range nodes {
			v, err := n(ctx)
			if err != nil && strict {
				return sum, err
			}
			sum += v
		}
		return sum, nil
	}
}

var errPlanned = errors.New("planned")

// outcome returns the outcome of an attempt of a step.
func outcome(seed uint64, id string, attempt int) (int, error) {
	h := fnv.New64a()
	fmt.Fprint(h, seed, id)
	v := h.Sum64()
	switch {
	case v%11 == 0:
		return 0, Fatal(errPlanned)
	case v%5 == 0 && attempt < 3, v%17 == 0:
		return 0, errPlanned
	}
	return int(v>>8) % 1000, nil
}

var quick = RetryPolicy{Initial: 2 * time.Millisecond}

func (p *program) step(r *rand.Rand) func(ctx Context) *Future[int] {
	name := fmt.Sprintf("s%d", r.IntN(3))
	s := Step(name, func(ctx context.Context, in int) (int, error) {
		i := StepInfo(ctx)
		v, err := outcome(p.seed, i.StepID, i.Attempt)
		return v + in, err
	}, quick)
	if r.IntN(3) == 0 {
		return func(ctx Context) *Future[int] {
			return DoAsync(ctx, name, func(ctx context.Context) (int, error) { return s.Call(ctx, 1) }, quick)
		}
	}
	return func(ctx Context) *Future[int] { return s.Go(ctx, 2) }
}

func (p *program) node(r *rand.Rand, depth int) node {
	kinds := 17
	if depth == 0 {
		kinds = 8
	}
	pause := time.Duration(1+r.IntN(40)) * time.Millisecond
	step := p.step(r)
	say := func(what string, n node) node {
		return func(ctx Context) (int, error) {
			v, err := n(ctx)
			p.note(ctx, what, v, err)
			return v, err
		}
	}
	switch r.IntN(kinds) {
	default:
		return say("step", func(ctx Context) (int, error) { return step(ctx).Get(ctx) })
	case 2:
		return say("sleep", func(ctx Context) (int, error) { return 1, Sleep(ctx, pause) })
	case 3:
		return say("random", func(ctx Context) (int, error) {
			p.note(ctx, "id", ctx.NewID(), nil)
			return ctx.Rand().IntN(100), nil
		})
	case 4:
		key := fmt.Sprint("k", r.IntN(3))
		return say("attributes", func(ctx Context) (int, error) {
			err := SetAttributes(ctx, map[string]string{key: fmt.Sprint(ctx.Now().UnixMilli())})
			return 0, err
		})
	case 5:
		change := fmt.Sprint("c", r.IntN(3))
		return say("version", func(ctx Context) (int, error) { return Version(ctx, change, 3), nil })
	case 6:
		token := ""
		if r.IntN(2) == 0 {
			token = fmt.Sprint("t", r.IntN(2))
		}
		dispose, bounded := r.IntN(2) == 0, r.IntN(3) > 0
		return say("hook", func(ctx Context) (int, error) {
			h, err := NewHook[int](ctx, token)
			if err != nil {
				return 0, err
			}
			p.note(ctx, "token", h.Token() != "", nil)
			if dispose {
				defer h.Dispose(ctx)
			}
			if bounded {
				return h.Receive(ctx, pause)
			}
			return h.Receive(ctx)
		})
	case 7:
		return say("child", func(ctx Context) (int, error) {
			c, err := someChild.StartChild(ctx, 5)
			if err != nil {
				return 0, err
			}
			p.note(ctx, "child", c.ID, nil)
			return c.Result(ctx)
		})
	case 8, 9:
		subs := p.several(r, depth)
		how := r.IntN(4)
		return say("branches", func(ctx Context) (int, error) {
			fs := make([]*Future[int], len(subs))
			for i, n := range subs {
				fs[i] = Go(ctx, n)
			}
			return p.gather(ctx, how, fs)
		})
	case 10:
		return say("timeout", func(ctx Context) (int, error) {
			fs := []*Future[int]{step(ctx), step(ctx)}
			v, i, err := Race(ctx, append(fs, Go(ctx, func(ctx Context) (int, error) { return -1, Sleep(ctx, pause) }))...)
			return v*10 + i, err
		})
	case 11:
		sub := p.sequence(r, depth-1, 3)
		return say("within", func(ctx Context) (int, error) {
			sub2, cancel := WithTimeout(ctx, pause)
			defer cancel()
			return sub(sub2)
		})
	case 12:
		sub := p.sequence(r, depth-1, 3)
		return say("cancelled", func(ctx Context) (int, error) {
			sub2, cancel := WithCancel(ctx)
			f := Go(sub2, sub)
			g := step(sub2)
			err := Sleep(ctx, pause)
			cancel()
			_, err2 := g.Get(ctx)
			v, err3 := f.Get(ctx)
			return v, errors.Join(err, err2, err3)
		})
	case 13:
		sub := p.sequence(r, depth-1, 3)
		return say("inline", func(ctx Context) (int, error) {
			d := Define("inline", func(ctx Context, in int) (int, error) { return sub(ctx) })
			f := d.Go(ctx, 1)
			v, err := d.Run(ctx, 1)
			w, err2 := f.Get(ctx)
			return v + w, errors.Join(err, err2)
		})
	case 14:
		sub := p.sequence(r, depth-1, 3)
		return say("saga", func(ctx Context) (v int, err error) {
			saga := NewSaga(ctx)
			defer saga.Guard(&err)
			for i := range 2 {
				if v, err = step(ctx).Get(ctx); err != nil {
					return 0, err
				}
				saga.Add("undo", func(ctx Context) error {
					v, err := step(ctx).Get(ctx)
					p.note(ctx, fmt.Sprint("undo", i), v, err)
					return err
				})
			}
			v, err = sub(ctx)
			if err == nil && v%2 == 0 {
				err = errPlanned
			}
			return v, err
		})
	case 15:
		return say("selector", func(ctx Context) (int, error) {
			h, err := NewHook[int](ctx, "")
			if err != nil {
				return 0, err
			}
			sum := 0
			s := NewSelector(ctx)
			Add(s, h, func(v int, err error) { p.note(ctx, "hook", v, err); sum += v })
			Add(s, step(ctx), func(v int, err error) { p.note(ctx, "step", v, err); sum += v })
			Add(s, After(ctx, pause), func(at time.Time, err error) {
				p.note(ctx, "timer", at.UnixMilli(), err)
				h.Dispose(ctx)
			})
			for s.Len() > 0 {
				if err := s.Select(ctx); err != nil {
					return sum, err
				}
			}
			return sum, nil
		})
	case 16:
		return say("cleanup", func(ctx Context) (int, error) {
			_, err := step(ctx).Get(ctx)
			v, err2 := step(WithoutCancel(ctx)).Get(WithoutCancel(ctx))
			return v, errors.Join(err, err2)
		})
	}
}

func (p *program) several(r *rand.Rand, depth int) []node {
	subs := make([]node, 1+r.IntN(4))
	for i := range subs {
		subs[i] = p.sequence(r, depth-1, 3)
	}
	return subs
}

func (p *program) gather(ctx Context, how int, fs []*Future[int]) (int, error) {
	sum := 0
	switch how {
	case 0:
		vs, err := All(ctx, fs...)
		for _, v := range vs {
			sum += v
		}
		return sum, err
	case 1:
		ss, err := AllSettled(ctx, fs...)
		for _, s := range ss {
			sum += s.Value
		}
		return sum, err
	case 2:
		v, i, err := Race(ctx, fs...)
		return v*10 + i, err
	}
	v, i, err := Any(ctx, fs...)
	return v*10 + i, err
}

var someChild = Define("some-child", func(Context, int) (int, error) { return 0, nil })

// drive runs a program to its end, with all possible events in a random order: events are
// fed in arbitrary batches, steps take arbitrary time, timers, hooks and children come in
// between, and the process dies now and then.
func drive(t *testing.T, p *program, r *rand.Rand) *engine {
	e := newEngine(t, p.workflow(), 1)
	e.rand = r
	crashes := 0
	for n := 0; !e.state.Run.Status.Terminal(); n++ {
		if n > 20000 {
			t.Fatalf("the run does not end\n%s", e.dump())
		}
		switch r.IntN(12) {
		case 0, 1, 2, 3:
			if e.fed < len(e.log) {
				e.turn(1 + r.IntN(len(e.log)-e.fed))
			}
		case 4, 5, 6, 7:
			if len(e.steps) > 0 {
				e.execute(r.IntN(len(e.steps)))
			}
		case 8:
			if r.IntN(3) == 0 || len(e.steps) == 0 {
				e.fire()
			}
		case 9:
			if ids := sortedKeys(e.hooks); len(ids) > 0 {
				e.resume(ids[r.IntN(len(ids))], r.IntN(50))
			}
		case 10:
			if ids := sortedKeys(e.children); len(ids) > 0 {
				e.endChild(ids[r.IntN(len(ids))], r.IntN(3))
			}
		case 11:
			switch {
			case r.IntN(8) == 0 && crashes < 20:
				crashes++
				children := e.children
				p.trace = nil
				e.restart()
				for id, c := range children {
					if _, open := e.state.Open(id); open {
						e.children[id] = c
					}
				}
			case r.IntN(60) == 0:
				e.append(Event{Type: history.CancelRequested, Reason: "test"})
			}
		}
	}
	return e
}

func sortedKeys[V any](m map[string]V) []string {
	ids := make([]string, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// endChild ends a started child.
func (e *engine) endChild(id string, how int) {
	delete(e.children, id)
	ev := Event{Type: history.ChildEnded, ID: id}
	switch how {
	case 0:
		ev.Code = string(history.Failed)
		ev.Payload = e.enc.encodeError(errPlanned)
	case 1:
		ev.Code = string(history.Cancelled)
	default:
		ev.Code = string(history.Completed)
		ev.Payload, _ = e.enc.encode(7)
	}
	e.append(ev)
}

// retrace feeds a log to a new execution, and returns the code's trace, and whether its
// function has returned.
func retrace(t *testing.T, p *program, e *engine, log []Event) (trace []string, returned bool) {
	t.Helper()
	p.trace = nil
	x, eff := replay(e.config(), log)
	defer x.close()
	if eff.diverged != nil {
		t.Fatalf("program %d: %v\n%s", p.seed, eff.diverged, e.dump())
	}
	return slices.Clone(p.trace), x.returned
}

func TestExecution_SameOnReplay(t *testing.T) {
	programs := 1500
	if testing.Short() {
		programs = 200
	}
	events, longest, kinds := 0, 0, map[history.Type]int{}
	for seed := range uint64(programs) {
		p := newProgram(seed)
		r := rand.New(rand.NewPCG(seed, 11))
		var e *engine
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			e = drive(t, p, r)
			lived := slices.Clone(p.trace)
			events += len(e.log)
			longest = max(longest, len(e.log))
			for _, ev := range e.log {
				kinds[ev.Type]++
			}
			whole, _ := retrace(t, p, e, e.log)
			if !slices.Equal(whole, lived) {
				t.Fatalf("replayed whole, the code saw\n%q\nand when it ran\n%q\n%s", whole, lived, e.dump())
			}
			e.replay()
			// A run that is replayed from the first part of its log has the same trace up
			// to there.
			for range 3 {
				n := 1 + r.IntN(len(e.log))
				part, returned := retrace(t, p, e, e.log[:n])
				if returned && n < len(e.log)-1 {
					continue // the engine refused that end: the code goes on with values that it had not seen
				}
				if len(part) > len(whole) || !slices.Equal(part, whole[:len(part)]) {
					t.Fatalf("the first %d events showed\n%q\nwhich is no beginning of\n%q\n%s", n, part, whole, e.dump())
				}
			}
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d programs, %d events, at most %d: %v", programs, events, longest, kinds)
}
