package workflow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/history"
)

// engine is a minimal engine and worker: a log, pending effects, and an execution that is
// fed.
type engine struct {
	t    testing.TB
	def  *definition
	run  RunInfo
	log  []Event
	fed  int // number of events that the execution has seen
	x    *execution
	enc  payloads
	at   int64
	rand *rand.Rand
	// state is the state machine of the real engine, which decides which events are
	// allowed.
	state *history.Log

	steps     []*stepCall
	cancelled map[string]bool
	calls     map[string]int    // calls of step functions, by id
	hooks     map[string]string // live tokens by id
	waits     map[string]int64
	children  map[string]childCall
	next      *NewRun
	last      effects
	logger    *slog.Logger
	recovered bool
	stream    func(context.Context, string, [][]byte, bool) error // writeStream of steps
}

func newEngine(t testing.TB, w Workflow, input any) *engine {
	e := &engine{t: t, def: w.definition(), at: 1_700_000_000_000, rand: rand.New(rand.NewPCG(1, 2)),
		cancelled: map[string]bool{}, calls: map[string]int{}, hooks: map[string]string{}, waits: map[string]int64{}, children: map[string]childCall{}}
	e.run = RunInfo{ID: derivedRunID("test", t.Name(), time.UnixMilli(e.at)), Workflow: w.Name(), Status: history.Running}
	e.enc = new(envelopes).forRun(e.run.ID)
	e.state = history.NewLog(e.run)
	in, err := e.enc.encode(input)
	if err != nil {
		t.Fatal(err)
	}
	e.append(Event{Type: history.RunCreated, Name: w.Name(), Payload: in}, Event{Type: history.RunStarted})
	e.restart()
	t.Cleanup(func() { e.x.close() })
	return e
}

// append commits events.
func (e *engine) append(events ...Event) {
	e.t.Helper()
	for _, ev := range events {
		if ev.Type == history.HookCreated {
			for _, token := range e.hooks {
				if token == ev.Token {
					ev = Event{Type: history.HookConflict, ID: ev.ID, Token: ev.Token, Reason: e.run.ID}
				}
			}
		}
		e.at += e.rand.Int64N(3)
		ev.At = e.at
		stored, err := e.state.Apply(&ev)
		if err != nil {
			e.t.Fatalf("append %s %s: %v\n%s", ev.Type, ev.ID, err, e.dump())
		}
		if !stored {
			continue
		}
		switch ev.Type {
		case history.HookCreated:
			e.hooks[ev.ID] = ev.Token
		case history.HookDisposed:
			delete(e.hooks, ev.ID)
		case history.WaitCreated:
			e.waits[ev.ID] = ev.Until
		case history.WaitCompleted:
			delete(e.waits, ev.ID)
		}
		e.log = append(e.log, ev)
	}
}

func (e *engine) dump() string {
	s := ""
	for _, ev := range e.log {
		s += fmt.Sprintf("%d %s %s %s\n", ev.Slot, ev.Type, ev.ID, ev.Payload)
	}
	return s
}

func (e *engine) config() executionConfig {
	return executionConfig{definition: e.def, run: e.run, payloads: e.enc, logger: e.logger, recovered: e.recovered}
}

// restart discards everything but the log, as a crash does.
func (e *engine) restart() {
	if e.x != nil {
		e.x.close()
	}
	e.x = newExecution(e.config())
	e.fed, e.steps, e.children, e.next = 0, nil, map[string]childCall{}, nil
	clear(e.cancelled)
}

// turn feeds the execution with at most n events, and commits its effects.
func (e *engine) turn(n int) {
	e.t.Helper()
	n = min(n, len(e.log)-e.fed)
	var eff effects
	if e.fed == 0 {
		n = len(e.log) // an assignment has the whole log
		e.x.close()
		e.x, eff = replay(e.config(), e.log)
	} else {
		eff = e.x.feed(e.log[e.fed : e.fed+n])
	}
	e.fed += n
	e.take(eff)
}

func (e *engine) take(eff effects) {
	e.t.Helper()
	e.last = eff
	if eff.diverged != nil {
		e.t.Fatalf("diverged: %v\n%s", eff.diverged, e.dump())
	}
	if eff.done != nil && e.state.Received() > int64(eff.done.Attempt) {
		e.restart() // the engine refuses the end
		return
	}
	e.append(eff.appends...)
	for _, id := range eff.cancels {
		e.cancelled[id] = true
	}
	for _, c := range eff.children {
		e.append(c.started)
		e.children[c.id] = *c
	}
	e.steps = append(e.steps, eff.steps...)
	if eff.next != nil {
		e.next = eff.next
	}
	if eff.done != nil {
		e.append(*eff.done)
	}
}

// execute runs the step at an index of e.steps to its end.
func (e *engine) execute(i int) {
	e.t.Helper()
	s := e.steps[i]
	e.steps = append(e.steps[:i:i], e.steps[i+1:]...)
	ev := Event{ID: s.id, Attempt: s.attempt}
	if s.record {
		start := Event{Type: history.StepStarted, ID: s.id, Attempt: s.attempt}
		if !s.created {
			start.Name, start.Input = s.name, s.input
			s.created = true
		}
		e.append(start)
	}
	if !s.created {
		ev.Name, ev.Input = s.name, s.input
	}
	e.calls[s.id]++
	ctx := withStepEnv(context.Background(), &stepEnv{writeStream: e.stream, meta: StepMetadata{RunID: e.run.ID, StepID: s.id, Name: s.name, Attempt: s.attempt}})
	out, err := s.invoke(ctx, nil)
	switch fatal := (*FatalError)(nil); {
	case err == nil:
		ev.Type, ev.Payload = history.StepCompleted, out
	case errors.As(err, &fatal) || s.opts.maxRetries >= 0 && s.attempt > s.opts.maxRetries:
		ev.Type, ev.Payload = history.StepFailed, e.enc.encodeError(err)
	default:
		ev.Type, ev.Payload, ev.Until = history.StepRetrying, e.enc.encodeError(err), e.at+5
	}
	e.append(ev)
}

// fire ends the wait with the earliest time.
func (e *engine) fire() bool {
	id, at := "", int64(0)
	for w, until := range e.waits {
		if id == "" || until < at || until == at && w < id {
			id, at = w, until
		}
	}
	if id == "" {
		return false
	}
	e.at = max(e.at, at)
	e.append(Event{Type: history.WaitCompleted, ID: id})
	return true
}

func (e *engine) resume(id string, v any) {
	e.t.Helper()
	p, err := e.enc.encode(v)
	if err != nil {
		e.t.Fatal(err)
	}
	e.append(Event{Type: history.HookReceived, ID: id, Payload: p})
}

// settle continues until nothing happens by itself: steps end, timers do not fire.
func (e *engine) settle() {
	e.t.Helper()
	for {
		for e.fed < len(e.log) {
			e.turn(len(e.log))
		}
		if len(e.steps) == 0 || e.state.Run.Status.Terminal() {
			return
		}
		e.execute(0)
	}
}

// finish is settle with timers; it returns the terminal event of the run.
func (e *engine) finish() Event {
	e.t.Helper()
	for {
		e.settle()
		if e.state.Run.Status.Terminal() {
			return e.log[len(e.log)-1]
		}
		if !e.fire() {
			e.t.Fatalf("the run waits for ever\n%s", e.dump())
		}
	}
}

// result is finish for a run that completes.
func (e *engine) result(v any) {
	e.t.Helper()
	end := e.finish()
	if end.Type == history.RunFailed {
		e.t.Fatalf("run failed: %v", e.enc.decodeError(end.Payload))
	}
	if end.Type != history.RunCompleted {
		e.t.Fatalf("run ended with %s\n%s", end.Type, e.dump())
	}
	if err := e.enc.decode(end.Payload, v); err != nil {
		e.t.Fatal(err)
	}
	e.replay()
}

// failure is finish for a run that fails.
func (e *engine) failure() error {
	e.t.Helper()
	end := e.finish()
	if end.Type != history.RunFailed {
		e.t.Fatalf("run ended with %s\n%s", end.Type, e.dump())
	}
	e.replay()
	return e.enc.decodeError(end.Payload)
}

// replay feeds the whole log to a new execution: no effects may remain.
func (e *engine) replay() {
	e.t.Helper()
	x, eff := replay(e.config(), e.log)
	defer x.close()
	if eff.diverged != nil {
		e.t.Fatalf("replay: %v\n%s", eff.diverged, e.dump())
	}
	if len(eff.appends)+len(eff.steps)+len(eff.children) > 0 || eff.done != nil || eff.next != nil {
		e.t.Fatalf("replay of a run that has ended asks for %+v", eff)
	}
}

// types lists the types of the events in the log.
func (e *engine) types() []string {
	var s []string
	for _, ev := range e.log {
		n := ev.Type.String()
		if ev.ID != "" {
			n += " " + ev.ID
		}
		s = append(s, n)
	}
	return s
}

var addOne = Step("add", func(_ context.Context, n int) (int, error) { return n + 1, nil })

func TestExecution_Sequence(t *testing.T) {
	w := Define("sequence", func(ctx Context, n int) (int, error) {
		for range 3 {
			var err error
			if n, err = addOne.Run(ctx, n); err != nil {
				return 0, err
			}
		}
		return n, nil
	})
	e := newEngine(t, w, 39)
	var got int
	e.result(&got)
	if got != 42 {
		t.Errorf("result is %d", got)
	}
	want := "[run_created run_started step_completed step_add.1 step_completed step_add.2 step_completed step_add.3 run_completed]"
	if got := fmt.Sprint(e.types()); got != want {
		t.Errorf("log is %s", got)
	}
}

func BenchmarkExecution_Step(b *testing.B) {
	w := Define("bench", func(ctx Context, n int) (int, error) {
		for {
			if _, err := addOne.Run(ctx, n); err != nil {
				return 0, err
			}
		}
	})
	e := newEngine(b, w, 1)
	b.ReportAllocs()
	eff := e.x.feed(e.log)
	out := []byte("json2")
	slot := int64(2)
	for b.Loop() {
		slot++
		eff = e.x.feed([]Event{{Slot: slot, Type: history.StepCompleted, At: slot, ID: eff.steps[0].id, Payload: out, Attempt: 1}})
	}
}

// A replay does not accumulate finished ops, however long the log is.
func TestExecution_LongReplay(t *testing.T) {
	w := Define("long", func(ctx Context, n int) (int, error) {
		for range 5000 {
			var err error
			if n, err = addOne.Run(ctx, n); err != nil {
				return 0, err
			}
			if err := SetAttributes(ctx, map[string]string{"n": "x"}); err != nil {
				return 0, err
			}
		}
		return n, nil
	})
	e := newEngine(t, w, 0)
	var n int
	e.result(&n)
	x := newExecution(e.config())
	defer x.close()
	x.feed(e.log[:len(e.log)/2])
	if c := cap(x.fresh); n != 5000 || c > 2*minPrune || len(x.ops) > 2 {
		t.Errorf("replay of %d events holds %d ops and had %d to be given out", len(e.log)/2, len(x.ops), c)
	}
}

// An operation of this benchmark is the replay of a run of 1000 steps.
func BenchmarkExecution_Replay(b *testing.B) {
	w := Define("bench", func(ctx Context, n int) (int, error) {
		for range 1000 {
			var err error
			if n, err = addOne.Run(ctx, n); err != nil {
				return 0, err
			}
		}
		return n, nil
	})
	e := newEngine(b, w, 1)
	e.finish()
	b.ReportAllocs()
	for b.Loop() {
		x := newExecution(e.config())
		x.feed(e.log)
		x.close()
	}
}

// The memory of a sleeping run that its worker keeps.
func BenchmarkExecution_Sleeping(b *testing.B) {
	w := Define("bench", func(ctx Context, n int) (int, error) {
		return n, Sleep(ctx, time.Hour)
	})
	e := newEngine(b, w, 1)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var all []*execution
	for b.Loop() {
		x := newExecution(e.config())
		x.feed(e.log)
		all = append(all, x)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc+after.StackInuse-before.HeapAlloc-before.StackInuse)/float64(len(all)), "B/run")
	for _, x := range all {
		x.close()
	}
}
