package workflowd

import (
	"slices"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/workflow"
)

// need returns another run of the family that an op on r also involves, nil if there is
// none. If that run is not in memory, need returns errParked: the op waits until the run
// has been read, and the other ops of r wait with it.
func (l *lane) need(id string, r *liveRun, o *op) (*liveRun, error) {
	other := l.runs[id]
	if other == nil {
		if o.absent == id {
			return nil, nil
		}
		other = &liveRun{id: id, lane: l}
		l.runs[id] = other
		l.e.live.Store(id, other)
		l.read(other)
	}
	if other.loading {
		r.loading = true
		other.waiting = append(other.waiting, o)
		return nil, errParked
	}
	return other, nil
}

// unpark resumes an op that waited for another run to be read.
func (l *lane) unpark(o *op, other *liveRun, err error) {
	r := l.runs[o.run]
	if r == nil {
		o.finish(errClosed)
		return
	}
	if err != nil {
		o.absent = other.id
		l.forget(other)
	}
	r.loading = false
	waiting := append([]*op{o}, r.waiting...)
	r.waiting = nil
	l.readmit(r, waiting)
}

// readmit resumes ops that waited for a run. Ops on other runs that also involve this run
// were parked.
func (l *lane) readmit(r *liveRun, waiting []*op) {
	for _, o := range waiting {
		if o.run != r.id {
			l.unpark(o, r, nil)
		} else {
			l.admit(o)
		}
	}
}

// parentToTell returns the parent that must be told that an op ends r, nil if there is
// none.
func (l *lane) parentToTell(r *liveRun, o *op) (*liveRun, error) {
	if r.call == "" || r.log.Run.Parent == "" || r.ended() {
		return nil, nil
	}
	for i := range o.events {
		ev := &o.events[i]
		if !ends(ev) || ev.Type == history.RunCompleted && ev.Token != "" {
			continue
		}
		if l.e.owner != nil && l.runs[r.log.Run.Parent] == nil {
			return nil, nil // another process may own the parent: a message tells it
		}
		parent, err := l.need(r.log.Run.Parent, r, o)
		if parent != nil && parent.sealed {
			return nil, errNextGroup
		}
		return parent, err
	}
	return nil, nil
}

// endChildren asks the children of a run to end, before the run fails or is cancelled.
// Children end first, so that a crash in between leaves no child behind. endChildren
// reports whether the op has to wait. Children that no call waits for go on.
func (l *lane) endChildren(r *liveRun, o *op) bool {
	if o.childrenEnded || r.ended() {
		return false
	}
	reason, bad := "", false
	for i := range o.events {
		switch o.events[i].Type {
		case history.RunFailed:
			bad, reason = true, "its parent has failed"
		case history.RunCancelled:
			bad, reason = true, "its parent was cancelled"
		}
	}
	if !bad {
		return false
	}
	children := make(map[string]string) // child id -> the run that started it
	for open := range r.log.AllOpen() {
		if open.State == history.ChildRunning && open.Token != "" {
			children[open.Token] = r.id
		}
	}
	switch {
	case r.log.Run.First != "":
		l.findChildren(r, o, children, reason)
	case len(children) == 0:
		return false
	default:
		l.endAll(children, o, reason)
	}
	o.childrenEnded, r.ending = true, o
	return true
}

// waitsForEnd reports whether an op would end a run that another op is about to end: it
// waits for that one. Otherwise a parent whose code fails because its children were
// cancelled is failed before it is cancelled.
func (r *liveRun) waitsForEnd(o *op) bool {
	return r.ending != nil && r.ending != o && slices.ContainsFunc(o.events, func(ev history.Event) bool { return ends(&ev) })
}

// settle resumes the ops that wait for the end of a run, if o was to end it.
func (l *lane) settle(r *liveRun, o *op) {
	if r.ending != o {
		return
	}
	waiting := r.waiting
	r.ending, r.waiting = nil, nil
	l.readmit(r, waiting)
}

// endAll asks children to end, and then resumes the op that waits for that. children maps
// the id of each child to the run that started it.
func (l *lane) endAll(children map[string]string, o *op, reason string) {
	left := len(children)
	if left == 0 && !l.pushNow(o) {
		o.finish(errClosed)
	}
	for id, parent := range children {
		l.endChild(parent, id, reason, func(err error) {
			if err != nil && cay.CodeOf(err) != cay.NotFound && cay.CodeOf(err) != cay.Conflict {
				l.e.log.Error("a child could not be cancelled", "run", id, "error", err)
			}
			if left--; left == 0 && !l.pushNow(o) {
				o.finish(errClosed)
			}
		})
	}
}

// endChild asks one child to end. This lane calls done.
func (l *lane) endChild(parent, id, reason string, done func(error)) {
	elsewhere := func() {
		l.e.spawn(func() {
			err := l.e.endElsewhere(id, parent, reason)
			if !l.post(func() { done(err) }) {
				done(errClosed) // the lane has ended, so nobody else calls done
			}
		})
	}
	if l.e.owner != nil && l.runs[id] == nil {
		elsewhere()
		return
	}
	cancel := &op{run: id, decide: func(r *liveRun, o *op) error { return cancelChild(r, o, parent, reason) }}
	cancel.done = func(err error) {
		if err == errElsewhere { // the child has just left memory
			elsewhere()
			return
		}
		if err == errContinued {
			l.endLast(parent, id, reason, done)
			return
		}
		if passes(err) { // any other error would let the child outlive its parent
			l.endChild(parent, id, reason, done)
			return
		}
		done(err)
	}
	if !l.pushNow(cancel) {
		done(errClosed)
	}
}

// cancelChild decides which event the failure or cancellation of the parent appends to a
// child: none if the parent does not wait for the child. Errors: errContinued.
func cancelChild(r *liveRun, o *op, parent, reason string) error {
	switch {
	case r.call == "" || r.log.Run.Parent != parent:
		return nil
	case r.log.Run.Next != "":
		return errContinued
	case r.ended():
		return nil
	}
	return cancelOp(r, o, workflow.CancelParams{Reason: reason})
}

// ends reports whether an event ends its run.
func ends(ev *history.Event) bool {
	return ev.Type == history.RunCompleted || ev.Type == history.RunFailed || ev.Type == history.RunCancelled
}

// tellParent appends the end of a child to its parent, in the same group. A parent that
// has ended, or does not wait for the child, gets no event. If parent is nil, another
// process may own the parent, or no process does.
func (l *lane) tellParent(parent, child *liveRun, o *op) {
	if child.call == "" || child.log.Run.Parent == "" || parent == nil && l.e.owner == nil {
		return
	}
	for i := range child.fresh {
		ev := &child.fresh[i]
		if !ends(ev) || ev.Type == history.RunCompleted && ev.Token != "" {
			continue
		}
		if parent == nil {
			payload := ev.Payload
			for _, b := range o.blobs {
				if blobPrefix+b.Name == string(payload) {
					payload = b.Data
				}
			}
			l.group.records.Post = append(l.group.records.Post, Message{Run: child.log.Run.Parent, Event: history.Event{
				Type: history.ChildEnded, ID: child.call, Token: child.id, Code: string(child.log.Run.Status), Payload: payload,
			}})
			return
		}
		told := &op{events: []history.Event{{
			Type: history.ChildEnded, ID: child.call, Token: child.id,
			Code: string(child.log.Run.Status), Payload: ev.Payload,
		}}}
		for _, b := range o.blobs { // the child's blobs are deleted with the child
			if blobPrefix+b.Name == string(ev.Payload) {
				b.Run = parent.id
				told.blobs = append(told.blobs, b)
			}
		}
		if err := l.appendTo(parent, told); err != nil {
			l.e.log.Debug("a parent does not wait for its child", "parent", parent.id, "run", child.id, "error", err)
		}
		return
	}
}
