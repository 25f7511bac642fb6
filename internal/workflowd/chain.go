package workflowd

import (
	"context"
	"errors"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

// A chain is a run and the runs that continue it, one after the other (ContinueAsNew).
// Only the last run may be live. Callers, parents and schedules know the chain by its
// first run, which also has the key. The engine therefore redirects calls from a run that
// was continued to the last run of the chain, and keeps the first run for as long as any
// other run of the chain is kept. Runs in between may be deleted at any time.

// errContinued is returned for an op on a run that has been continued.
var errContinued = errors.New("the run has been continued by another one")

// firstOf returns the first run of the chain that a run is in.
func firstOf(r *history.Run) string {
	if r.First != "" {
		return r.First
	}
	return r.ID
}

// last returns the last run of the chain that a run is in. The run itself may have been
// deleted, if it is the first. Errors: not_found.
func (e *Engine) last(ctx context.Context, id string) (*history.Run, error) {
	r, err := e.store.Run(ctx, id)
	if cay.CodeOf(err) == cay.NotFound {
		r, err = e.store.Last(ctx, id)
	}
	for err == nil && r.Next != "" {
		last, lastErr := e.store.Last(ctx, firstOf(r))
		switch {
		case lastErr == nil && last.ID != r.ID:
			r = last
		case lastErr != nil && cay.CodeOf(lastErr) != cay.NotFound:
			return nil, lastErr
		default: // an earlier release did not store First
			r, err = e.store.Run(ctx, r.Next)
		}
	}
	return r, err
}

// onChain calls act for a run, and if that run has been continued, for the last run of
// its chain. If the last run is continued meanwhile, onChain tries again.
func (e *Engine) onChain(ctx context.Context, id string, act func(id string) (*history.Run, error)) (*history.Run, error) {
	for {
		run, err := act(id)
		if err != errContinued {
			return run, err
		}
		last, err := e.last(ctx, id)
		if err != nil {
			return nil, err
		}
		id = last.ID
	}
}

// actOnLast is act on the last run of a run's chain.
func (b *backend) actOnLast(ctx context.Context, id string, decide func(r *liveRun, o *op) error) (*history.Run, error) {
	return b.e.onChain(ctx, id, func(id string) (*history.Run, error) {
		return b.act(ctx, id, func(r *liveRun, o *op) error {
			if r.log.Run.Next != "" {
				return errContinued
			}
			return decide(r, o)
		})
	})
}

// relink replaces the Next of a run by the last run of the chain if the next run was
// deleted.
func (e *Engine) relink(ctx context.Context, r *history.Run) (*history.Run, error) {
	if r.Next == "" {
		return r, nil
	}
	if _, err := e.store.Run(ctx, r.Next); cay.CodeOf(err) != cay.NotFound {
		return r, err
	}
	last, err := e.store.Last(ctx, firstOf(r))
	if cay.CodeOf(err) == cay.NotFound || err == nil && last.ID == r.ID {
		return r, nil // the rest of the chain is not kept
	}
	if err != nil {
		return nil, err
	}
	linked := *r
	linked.Next = last.ID
	return &linked, nil
}

// goesOn reports whether a run, or a run that continues it, is live. A run that was
// deleted has ended.
func (e *Engine) goesOn(ctx context.Context, id string) (bool, error) {
	last, err := e.last(ctx, id)
	if cay.CodeOf(err) == cay.NotFound {
		return false, nil
	}
	return err == nil && !last.Status.Terminal(), err
}

// findChildren adds to the children of a run the live children of earlier runs in its
// chain, and then asks all of them to end: see endChildren.
func (l *lane) findChildren(r *liveRun, o *op, children map[string]string, reason string) {
	first := r.log.Run.First
	l.e.spawn(func() {
		more, err := l.e.store.LiveChildren(l.e.ctx, first)
		for wait := firstRetry; passes(err) && l.e.sleep(wait); wait = min(2*wait, lastRetry) {
			more, err = l.e.store.LiveChildren(l.e.ctx, first)
		}
		posted := l.post(func() {
			if err != nil {
				o.finish(err)
				l.settle(r, o)
				return
			}
			for i := range more {
				children[more[i].ID] = more[i].Parent
			}
			l.endAll(children, o, reason)
		})
		if !posted {
			o.finish(errClosed)
		}
	})
}

// passOn forwards a message that arrived after its run was continued to the next run.
func (l *lane) passOn(r *liveRun, o *op) {
	next := r.log.Run.Next
	if next == "" || l.e.owner == nil {
		return
	}
	for i := range o.events {
		switch ev := o.events[i]; ev.Type {
		case history.CancelRequested, history.RunCancelled, history.AttrSet:
			l.group.records.Post = append(l.group.records.Post, Message{Run: next, Event: ev})
		}
	}
}

// endLast asks the last run of a child's chain to end: see endChild.
func (l *lane) endLast(parent, id, reason string, done func(error)) {
	l.e.spawn(func() {
		last, err := l.e.last(l.e.ctx, id)
		for wait := firstRetry; passes(err) && l.e.sleep(wait); wait = min(2*wait, lastRetry) {
			last, err = l.e.last(l.e.ctx, id)
		}
		posted := l.post(func() {
			if err != nil {
				done(err)
				return
			}
			l.endChild(parent, last.ID, reason, done)
		})
		if !posted {
			done(errClosed) // the lane has ended, so nobody else calls done
		}
	})
}
