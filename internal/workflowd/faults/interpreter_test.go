package faults

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/workflow"
)

// interpreter runs programs as workflows.
type interpreter struct {
	world *world
	// client is the client with which steps resume hooks. It is set before a worker
	// starts.
	client *workflow.Client

	programs *workflow.Definition[program, []string]
	// prepare creates the table of rows, and rows reads it.
	prepare *workflow.Definition[int, int]
	rows    *workflow.Definition[int, []string]

	effect *workflow.StepDef[effectIn, int]
	fatal  *workflow.StepDef[effectIn, int]
	ring   *workflow.StepDef[ringIn, int]
	row    *workflow.StepDef[string, int]
}

type effectIn struct {
	Path string `json:"path"`
	Fail int    `json:"fail,omitempty"` // the number of first attempts that fail
}

type ringIn struct {
	Path  string `json:"path"`
	Token string `json:"token"`
	N     int    `json:"n"`
}

// forEver makes a step retry for ever: where processes constantly die, lost attempts say
// nothing about the step.
var forEver = []workflow.StepOption{
	workflow.MaxRetries(-1),
	workflow.RetryPolicy{Initial: time.Millisecond, Multiplier: 1, Max: time.Millisecond},
}

var errRefused = cay.Errorf(cay.Conflict, "refused")

func newInterpreter(w *world) *interpreter {
	in := &interpreter{world: w}
	in.effect = workflow.Step("effect", func(ctx context.Context, e effectIn) (int, error) {
		info := workflow.StepInfo(ctx)
		if err := in.world.do(info.IdempotencyKey, e.Path); err != nil {
			return 0, err
		}
		if info.Attempt <= e.Fail {
			return 0, fmt.Errorf("attempt %d of %s fails", info.Attempt, e.Path)
		}
		return value(e.Path), nil
	}, forEver...)
	in.fatal = workflow.Step("fatal", func(ctx context.Context, e effectIn) (int, error) {
		if err := in.world.do(workflow.StepInfo(ctx).IdempotencyKey, e.Path); err != nil {
			return 0, err
		}
		return 0, workflow.Fatal(errRefused)
	}, forEver...)
	in.ring = workflow.Step("ring", func(ctx context.Context, r ringIn) (int, error) {
		if err := in.world.do(workflow.StepInfo(ctx).IdempotencyKey, r.Path); err != nil {
			return 0, err
		}
		for i := range r.N {
			at := opPath(r.Path, i)
			err := workflow.ResumeHook(ctx, in.client, r.Token, value(at), workflow.ResumeKey(at))
			// An earlier attempt of this step may have sent all values, and the run may
			// have ended the hook then.
			if err != nil && (cay.CodeOf(err) != cay.NotFound || workflow.StepInfo(ctx).Attempt == 1 && in.world.calls(r.Path) == 1) {
				return 0, err
			}
		}
		return r.N, nil
	}, forEver...)
	in.row = workflow.TxStep("row", func(ctx context.Context, tx workflow.Tx, path string) (int, error) {
		// The table has no key and no unique index, so a repeated insert would show as a
		// second row.
		_, err := tx.ExecContext(ctx, "INSERT INTO fault_rows (path) VALUES ('"+path+"')")
		return value(path), err
	}, forEver...)
	in.programs = workflow.Define("program", in.run)
	create := workflow.TxStep("create", func(ctx context.Context, tx workflow.Tx, _ int) (int, error) {
		_, err := tx.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS fault_rows (path TEXT NOT NULL)")
		return 0, err
	}, forEver...)
	in.prepare = workflow.Define("prepare", func(ctx workflow.Context, _ int) (int, error) { return create.Run(ctx, 0) })
	read := workflow.TxStep("read", func(ctx context.Context, tx workflow.Tx, _ int) (paths []string, err error) {
		rows, err := tx.QueryContext(ctx, "SELECT path FROM fault_rows")
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		for rows.Next() {
			var path string
			if err := rows.Scan(&path); err != nil {
				return nil, err
			}
			paths = append(paths, path)
		}
		return paths, rows.Err()
	}, forEver...)
	in.rows = workflow.Define("rows", func(ctx workflow.Context, _ int) ([]string, error) { return read.Run(ctx, 0) })
	return in
}

func (in *interpreter) run(ctx workflow.Context, p program) ([]string, error) {
	said, err := in.ops(ctx, p.Ops, roundPath(p.Path, p.Round))
	if err != nil {
		return nil, err
	}
	p.Said = append(p.Said, said...)
	if p.Round < p.Loops {
		p.Round++
		return nil, in.programs.ContinueAsNew(ctx, p)
	}
	return p.Said, nil
}

func (in *interpreter) ops(ctx workflow.Context, ops []op, path string) ([]string, error) {
	var said []string
	for i, o := range ops {
		more, err := in.op(ctx, o, opPath(path, i))
		if err != nil {
			return nil, fmt.Errorf("%s at %s: %w", o.Kind, opPath(path, i), err)
		}
		said = append(said, more...)
	}
	return said, nil
}

func (in *interpreter) op(ctx workflow.Context, o op, path string) ([]string, error) {
	one := func(err error, format string, args ...any) ([]string, error) {
		if err != nil {
			return nil, err
		}
		return []string{string(o.Kind) + " " + fmt.Sprintf(format, args...)}, nil
	}
	switch o.Kind {
	case doStep:
		v, err := in.effect.Run(ctx, effectIn{path, o.Fail})
		return one(err, "%d", v)
	case doFatal:
		_, err := in.fatal.Run(ctx, effectIn{Path: path})
		if !errors.Is(err, errRefused) {
			return nil, fmt.Errorf("a step that fails for good returned %v", err)
		}
		return one(nil, "%s refused", path)
	case doTx:
		v, err := in.row.Run(ctx, path)
		return one(err, "%d", v)
	case doSleep:
		begun := ctx.Now()
		d := time.Duration(o.N) * time.Millisecond
		if err := workflow.Sleep(ctx, d); err != nil {
			return nil, err
		}
		if slept := ctx.Now().Sub(begun); slept < d {
			return nil, fmt.Errorf("a sleep of %v took %v", d, slept)
		}
		return one(nil, "ok")
	case doParallel:
		futures := make([]*workflow.Future[[]string], len(o.Subs))
		for i, sub := range o.Subs {
			futures[i] = workflow.Go(ctx, func(ctx workflow.Context) ([]string, error) {
				return in.ops(ctx, sub, opPath(path, i))
			})
		}
		all, err := workflow.All(ctx, futures...)
		said, err := one(err, "%d", len(o.Subs))
		for _, s := range all {
			said = append(said, s...)
		}
		return said, err
	case doMany:
		futures := make([]*workflow.Future[int], o.N)
		for i := range futures {
			futures[i] = in.effect.Go(ctx, effectIn{Path: opPath(path, i)})
		}
		all, err := workflow.All(ctx, futures...)
		return one(err, "%d", sum(all))
	case doRace:
		return in.race(ctx, path)
	case doHook:
		return in.hook(ctx, o, path)
	case doTimeout:
		h, err := workflow.NewHook[int](ctx, "")
		if err != nil {
			return nil, err
		}
		if _, err := h.Receive(ctx, 3*time.Millisecond); !errors.Is(err, workflow.ErrTimeout) {
			return nil, fmt.Errorf("a hook nobody resumes returned %v", err)
		}
		h.Dispose(ctx)
		return one(nil, "ok")
	case doInline:
		said, err := in.programs.Run(ctx, program{Ops: o.Subs[0], Path: opPath(path, 0)})
		first, err := one(err, "")
		return append(first, said...), err
	case doChild:
		child, err := in.programs.StartChild(ctx, program{Ops: o.Subs[0], Path: opPath(path, 0)})
		if err != nil {
			return nil, err
		}
		said, err := child.Result(ctx)
		first, err := one(err, "")
		return append(first, said...), err
	case doSaga:
		return in.saga(ctx, o, path)
	case doVersion:
		return one(nil, "%d", workflow.Version(ctx, "change-"+strings.ReplaceAll(path, "#", "-"), o.N))
	case doCancel:
		inner, cancel := workflow.WithCancel(ctx)
		asleep := workflow.Go(inner, func(ctx workflow.Context) (int, error) { return 0, workflow.Sleep(ctx, time.Hour) })
		cancel()
		if _, err := asleep.Get(ctx); !errors.Is(err, workflow.ErrCancelled) {
			return nil, fmt.Errorf("a cancelled sleep returned %v", err)
		}
		return one(nil, "ok")
	case doSelect:
		return in.selectAll(ctx, o, path)
	case doAttr:
		if err := workflow.SetAttributes(ctx, map[string]string{"at": path}); err != nil {
			return nil, err
		}
		// The attribute is visible after the next wait.
		if _, err := workflow.Do(ctx, "nothing", func(context.Context) (int, error) { return 0, nil }, forEver...); err != nil {
			return nil, err
		}
		if at := ctx.Info().Attributes["at"]; at == "" {
			return nil, errors.New("an attribute that was set is not there")
		}
		return one(nil, "ok")
	case doRandom:
		// The values are recorded by a step, and compared on replay.
		now := fmt.Sprint(ctx.Now().UnixMilli(), ctx.Rand().Uint64(), ctx.NewID())
		then, err := workflow.Do(ctx, "remember", func(context.Context) (string, error) { return now, nil }, forEver...)
		if err == nil && then != now {
			err = fmt.Errorf("time, numbers and ids were %s and are %s on replay", then, now)
		}
		return one(err, "ok")
	}
	return nil, fmt.Errorf("no such kind: %s", o.Kind)
}

func (in *interpreter) race(ctx workflow.Context, path string) ([]string, error) {
	inner, cancel := workflow.WithCancel(ctx)
	defer cancel()
	late := workflow.Go(inner, func(ctx workflow.Context) (int, error) { return 0, workflow.Sleep(ctx, time.Hour) })
	v, winner, err := workflow.Race(ctx, late, in.effect.Go(ctx, effectIn{Path: path}))
	if err == nil && winner != 1 {
		err = fmt.Errorf("an hour passed before a step was done")
	}
	return []string{fmt.Sprintf("%s %d", doRace, v)}, err
}

func (in *interpreter) hook(ctx workflow.Context, o op, path string) ([]string, error) {
	h, err := workflow.NewHook[int](ctx, "hook:"+ctx.Info().RunID+":"+path)
	if err != nil {
		return nil, err
	}
	rung := in.ring.Go(ctx, ringIn{path, h.Token(), o.N})
	var got []string
	for range o.N {
		v, err := h.Receive(ctx)
		if err != nil {
			return nil, err
		}
		got = append(got, fmt.Sprint(v))
	}
	h.Dispose(ctx)
	if _, err := rung.Get(ctx); err != nil {
		return nil, err
	}
	return []string{fmt.Sprintf("%s %s", doHook, strings.Join(got, ","))}, nil
}

func (in *interpreter) saga(ctx workflow.Context, o op, path string) ([]string, error) {
	s := workflow.NewSaga(ctx)
	var undone []string
	for i := range o.N {
		at := opPath(path, i)
		if _, err := in.effect.Run(ctx, effectIn{Path: at}); err != nil {
			return nil, err
		}
		s.Add("undo", func(ctx workflow.Context) error {
			undone = append(undone, at+"-undo")
			_, err := in.effect.Run(ctx, effectIn{Path: at + "-undo"})
			return err
		})
	}
	if err := s.Compensate(); err != nil {
		return nil, err
	}
	return []string{fmt.Sprintf("%s %s", doSaga, strings.Join(undone, ","))}, nil
}

func (in *interpreter) selectAll(ctx workflow.Context, o op, path string) ([]string, error) {
	s := workflow.NewSelector(ctx)
	total := 0
	var failed error
	for i := range o.N {
		f := in.effect.Go(ctx, effectIn{Path: opPath(path, i)})
		workflow.Add(s, f, func(v int, err error) {
			total += v
			failed = errors.Join(failed, err)
		})
	}
	for range o.N {
		if err := s.Select(ctx); err != nil {
			return nil, err
		}
	}
	return []string{fmt.Sprintf("%s %d", doSelect, total)}, failed
}

func sum(all []int) int {
	total := 0
	for _, v := range all {
		total += v
	}
	return total
}
