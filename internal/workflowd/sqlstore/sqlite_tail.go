package sqlstore

import (
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
)

// tail holds the records that are in the journal and not yet in the tables: the state of
// runs that changed since the last fold.
type tail struct {
	runs  map[string]*tailRun
	order []*tailRun // in the order in which the runs were first put
	// tokens and keys are claims that were granted; see SQLite.holder.
	tokens map[claimed]holder
	keys   map[claimed]holder
	seq    int64 // number of the last row of the journal that the tail contains
	size   int   // approximate bytes of those rows
}

// claimed is a name that at most one run has: a project and a token, or a project, a
// workflow and a key.
type claimed struct{ project, a, b string }

// holder is the run, and for tokens the hook, that has a claimed name.
type holder struct{ run, hook string }

type tailRun struct {
	id  string
	run history.Run // current state; without an ID if only streams or sleep changed

	first  int64 // slot of the first of the events
	events []byte
	sleep  int8 // 1: it fell asleep, -1: it woke up
	// timers to set; 0 deletes a timer.
	timers map[string]int64
	// hooks are the new hooks, nil for disposed ones; hookIDs are their ids in the order
	// of the log.
	hooks   map[string]*history.Hook
	hookIDs []string
	streams map[string]*tailStream
	// folded means that a fold that failed later has written this run.
	folded bool
}

type tailStream struct {
	chunks []history.Chunk
	closed bool
}

func newTail() *tail {
	return &tail{
		runs:   make(map[string]*tailRun),
		tokens: make(map[claimed]holder), keys: make(map[claimed]holder),
	}
}

func (t *tail) run(id string) *tailRun {
	tr := t.runs[id]
	if tr == nil {
		tr = &tailRun{id: id}
		t.runs[id] = tr
		t.order = append(t.order, tr)
	}
	return tr
}

// put adds the records of a group; g is their encoding for the journal.
func (t *tail) put(r *workflowd.Records, g *group) {
	for i := range r.Runs {
		t.putRun(&r.Runs[i])
	}
	for i := range r.Logs {
		l := &r.Logs[i]
		t.putEvents(t.putRun(l.Run), l.Events, g.data[g.logs[i].start:g.logs[i].end])
	}
	for i := range r.Chunks {
		t.putChunks(&r.Chunks[i])
	}
	for _, id := range r.Asleep {
		t.putAsleep(id, true)
	}
	for _, id := range r.Awake {
		t.putAsleep(id, false)
	}
}

func (t *tail) putRun(r *history.Run) *tailRun {
	tr := t.run(r.ID)
	if tr.run.ID == "" && r.Key != "" {
		t.keys[claimed{r.Project, r.Workflow, r.Key}] = holder{run: r.ID}
	}
	tr.run = *r
	switch {
	case r.NotBefore == 0:
	case r.Status == history.Pending:
		tr.setTimer("", r.NotBefore)
	default:
		tr.setTimer("", 0)
	}
	return tr
}

// putEvents adds events to a run; encoded is their stored form.
func (t *tail) putEvents(tr *tailRun, events []history.Event, encoded []byte) {
	if len(events) == 0 {
		return
	}
	if tr.events == nil {
		tr.first = events[0].Slot
	}
	tr.events = append(tr.events, encoded...)
	for i := range events {
		e := &events[i]
		switch e.Type {
		case history.WaitCreated:
			tr.setTimer(e.ID, e.Until)
		case history.StepRetrying:
			tr.setTimer(e.ID, max(e.Until, 1))
		case history.WaitCompleted:
			tr.setTimer(e.ID, 0)
		case history.StepStarted, history.StepCompleted, history.StepFailed:
			// Most steps have no timer; only steps with an earlier attempt may have one.
			if e.Attempt > 1 || e.Input == nil {
				tr.setTimer(e.ID, 0)
			}
		case history.HookCreated:
			h := &history.Hook{
				Run: tr.id, ID: e.ID, Project: tr.run.Project, Token: e.Token,
				Webhook: e.Webhook, Metadata: e.Payload, CreatedAt: e.At,
			}
			tr.setHook(e.ID, h)
			t.tokens[claimed{h.Project, h.Token, ""}] = holder{tr.id, e.ID}
		case history.HookDisposed:
			tr.setHook(e.ID, nil)
		}
	}
}

func (tr *tailRun) setTimer(id string, at int64) {
	if tr.run.Kind.External() {
		return // its runtime keeps its timers
	}
	if tr.timers == nil {
		tr.timers = make(map[string]int64)
	}
	tr.timers[id] = at
}

func (tr *tailRun) setHook(id string, h *history.Hook) {
	if tr.hooks == nil {
		tr.hooks = make(map[string]*history.Hook)
	}
	if _, ok := tr.hooks[id]; !ok {
		tr.hookIDs = append(tr.hookIDs, id)
	}
	tr.hooks[id] = h
}

func (t *tail) putChunks(c *workflowd.StreamChunks) {
	tr := t.run(c.Run)
	if tr.streams == nil {
		tr.streams = make(map[string]*tailStream)
	}
	s := tr.streams[c.Stream]
	if s == nil {
		s = new(tailStream)
		tr.streams[c.Stream] = s
	}
	s.chunks = append(s.chunks, c.Chunks...)
	s.closed = s.closed || c.Close
}

func (t *tail) putAsleep(id string, asleep bool) {
	tr := t.run(id)
	tr.sleep = -1
	if asleep {
		tr.sleep = 1
	}
}

// lost reports whether the tail shows that a holder has lost its name.
func (t *tail) lost(h holder) bool {
	if t == nil {
		return false
	}
	tr := t.runs[h.run]
	if tr == nil || h.hook == "" {
		return false
	}
	if tr.run.Status.Terminal() {
		return true
	}
	hook, ok := tr.hooks[h.hook]
	return ok && hook == nil
}
