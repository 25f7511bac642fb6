package workflowd

import (
	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

// creation is a run to be created.
type creation struct {
	run     history.Run
	created history.Event   // run_created
	carried []history.Event // hooks inherited from the continued run
	blobs   []Blob
	// mayExist means that a run with this id may exist already.
	mayExist bool
	// existing is the id of a run that has the same id or the same key, "" if there is
	// none.
	existing string
}

// applyCreation creates a run in the group.
func (l *lane) applyCreation(r *liveRun, o *op) error {
	c := o.create
	if r.log != nil {
		c.existing = r.id
		l.admitted(r, o)
		return nil
	}
	l.touch(r)
	r.isNew, r.whole = true, true
	r.log = history.NewLog(c.run)
	r.mark = r.log.Mark()
	r.readOrigin(&c.created)
	o.events, o.blobs = []history.Event{c.created}, c.blobs
	if err := l.appendTo(r, o); err != nil {
		return err
	}
	if c.run.Key != "" {
		l.claimKeyOf(r, o)
	}
	l.starts(r)
	l.admitted(r, o)
	return nil
}

// claimKeyOf adds the claim of a creation's idempotency key.
func (l *lane) claimKeyOf(r *liveRun, o *op) {
	g := &l.group
	c := &Claim{Project: r.project(), Workflow: o.create.run.Workflow, Key: o.create.run.Key, Run: r.id}
	g.claims = append(g.claims, c)
	g.asking = append(g.asking, asking{claim: c, op: o, run: r, index: -1})
	r.sealed = true
}

// starts starts a run in the commit that creates it, if a worker has room for it and no
// other run is before it in line.
func (l *lane) starts(r *liveRun) {
	row := &r.log.Run
	if row.NotBefore > l.e.now() {
		r.slumber = true
		return
	}
	r.want = true
	t := ticketOf(row)
	if s := l.e.dispatch.reserve(t); s != nil {
		l.start(r, s, t)
	}
}

// start appends run_started to a pending run and gives the run to a worker that has room.
func (l *lane) start(r *liveRun, s *session, t *ticket) {
	ev := history.Event{Type: history.RunStarted, At: l.e.now()}
	if stored, err := r.log.Apply(&ev); err != nil || !stored {
		panic("workflowd: a pending run cannot start")
	}
	if r.log.Run.Build == "" {
		r.log.Run.Build = s.info.Build
	}
	r.fresh = append(r.fresh, ev)
	r.row = true
	r.assign = &assignment{session: s, ticket: t}
}

// lostKey undoes a creation whose idempotency key belongs to another run.
func (l *lane) lostKey(a *asking) {
	o, r := a.op, a.run
	o.create.existing = a.claim.Owner
	if r.assign != nil {
		l.e.dispatch.giveBack(r.assign.session, r.assign.ticket)
	}
	r.resetGroup()
	r.log, r.known, r.whole = nil, nil, false
	if o.run == r.id {
		return
	}
	parent := l.runs[o.run]
	if o.create.created.ID != "" {
		// The existing run's end is reported to another parent, or to none.
		parent.log.Revert(o.mark)
		clear(parent.fresh[o.had:])
		parent.fresh = parent.fresh[:o.had]
		o.err = taken(o.create)
		return
	}
	l.redo(parent, o, func(_ int, ev *history.Event) {
		if ev.Token == r.id {
			ev.Token = a.claim.Owner
		}
	})
}

// applyChild appends the start of another run to a run, and creates that run: a child, or
// the run that continues it.
func (l *lane) applyChild(r *liveRun, o *op) error {
	c := o.create
	if err := checkStarts(o); err != nil {
		return err
	}
	if err := l.tooLong(r, o); err != nil {
		return err
	}
	if err := checkCarried(r, c, o.events[len(o.events)-1].Type == history.RunCompleted); err != nil {
		return err
	}
	child, err := l.need(c.run.ID, r, o)
	if err != nil {
		return err
	}
	if child != nil {
		if child.sealed {
			return errNextGroup
		}
		if call := c.created.ID; call != "" && (child.call != call || child.log.Run.Parent != r.id) {
			c.existing = child.id
			return taken(c)
		}
	}
	continues := o.events[len(o.events)-1].Type == history.RunCompleted
	if continues {
		continueAs(c, r)
		giveKeys(r, c.carried)
	} else {
		c.run.Parent, c.run.Root = r.id, rootOf(&r.log.Run)
	}
	parent, err := l.parentToTell(r, o)
	if err != nil {
		return err
	}
	if err := l.appendTo(r, o); err != nil {
		return err
	}
	l.tellParent(parent, r, o)
	if child != nil {
		c.existing = child.id
		l.admitted(r, o)
		return nil
	}
	child = &liveRun{id: c.run.ID, lane: l}
	l.runs[child.id] = child
	l.e.live.Store(child.id, child)
	l.touch(child)
	child.isNew, child.whole = true, true
	child.log = history.NewLog(c.run)
	child.mark = child.log.Mark()
	child.readOrigin(&c.created)
	ev := c.created
	ev.At = l.e.now()
	if _, err := child.log.Apply(&ev); err != nil {
		panic("workflowd: a new run cannot be created: " + err.Error())
	}
	child.fresh = append(child.fresh, ev)
	l.group.bytes += eventSize(&ev)
	l.carryTo(child, c.carried)
	if continues && r.log.Run.CancelRequested {
		l.cancelToo(child, &r.log.Run)
	}
	l.shelved(child, c.blobs)
	if c.run.Key != "" {
		l.claimKeyOf(child, o)
		r.sealed = true
	}
	l.starts(child)
	l.admitted(r, o)
	return nil
}

// taken returns the error for a run that wants to wait for a child that another caller
// started.
func taken(c *creation) error {
	return cay.Errorf(cay.Conflict, "run %s of %s was started before, by others: it can be started as a run of its own, and then is left alone", c.existing, c.run.Workflow)
}

// checkStarts returns an error for events that may not start a run.
func checkStarts(o *op) error {
	for i := range o.events {
		ev := &o.events[i]
		if (ev.Type == history.ChildStarted || ev.Type == history.RunCompleted) && ev.Token == o.create.run.ID {
			return nil
		}
	}
	return cay.Errorf(cay.Invalid, "an event that names run %s must start it", o.create.run.ID)
}

// rootOf returns the first run of a family.
func rootOf(r *history.Run) string {
	if r.Root != "" {
		return r.Root
	}
	return r.ID
}

// continueAs copies to a new run the fields it inherits from the run it continues.
func continueAs(c *creation, from *liveRun) {
	row := &from.log.Run
	c.run.Previous, c.run.First, c.run.Parent, c.run.Root = row.ID, firstOf(row), row.Parent, rootOf(row)
	c.created.ID = from.call
	if c.created.Until == 0 {
		c.created.Until = from.retention
	}
}

// cancelToo asks a new run to end if the continued run was asked to end and its code
// could no longer see the request.
func (l *lane) cancelToo(r *liveRun, from *history.Run) {
	ev := history.Event{Type: history.CancelRequested, Reason: from.CancelReason, At: l.e.now()}
	if _, err := r.log.Apply(&ev); err != nil {
		panic("workflowd: a new run cannot be cancelled: " + err.Error())
	}
	r.fresh = append(r.fresh, ev)
	l.group.bytes += eventSize(&ev)
}
