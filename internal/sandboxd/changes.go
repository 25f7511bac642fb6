package sandboxd

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

const (
	// maxChangeWatches bounds the watchers of one team, changesAhead the sandboxes
	// that one may not have read the changes of.
	maxChangeWatches = 64
	changesAhead     = 4096
)

var _ sandbox.Changes = (*changeWatch)(nil)

// changeHub tells watchers which sandboxes are not what they were. It knows no
// more than their ids: what a sandbox is now is read when a watcher asks, so a
// watcher that is slow costs nothing, and what came before is not told.
type changeHub struct {
	mu      sync.Mutex // guards what follows
	watches map[*changeWatch]struct{}
	closed  bool
}

func newChangeHub() *changeHub { return &changeHub{watches: make(map[*changeWatch]struct{})} }

// any reports whether anybody watches.
func (h *changeHub) any() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.watches) > 0
}

// tell has those watchers told who reach the sandbox. It has committed what changed.
func (h *changeHub) tell(sc scope, id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watches {
		if w.scope.team == sc.team && (w.scope.project == "" || w.scope.project == sc.project) {
			w.offerLocked(id)
		}
	}
}

// miss has all told that something changed that is not known.
func (h *changeHub) miss() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watches {
		w.missLocked()
	}
}

func (h *changeHub) add(w *changeWatch) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return errClosing
	}
	n := 0
	for other := range h.watches {
		if other.scope.team == w.scope.team {
			n++
		}
	}
	if n >= maxChangeWatches {
		return cay.Errorf(cay.QuotaExceeded, "%d of the team watch its sandboxes already", maxChangeWatches).WithHint("close some")
	}
	h.watches[w] = struct{}{}
	return nil
}

// close ends all watches, and those that are to come.
func (h *changeHub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for w := range h.watches {
		w.endLocked(io.EOF)
	}
}

// changeWatch is the Changes of an Engine.
type changeWatch struct {
	hub    *changeHub
	scope  scope
	read   func(id string) (*row, error)
	ready  bool // has been told so; Next's alone
	unhook func() bool

	changed chan struct{} // has room for one; closed with end

	// The hub's mu guards what follows.
	queue  []string // ids, as they came
	queued map[string]struct{}
	missed bool
	end    error // what Next returns; nil before
}

func (w *changeWatch) offerLocked(id string) {
	if _, ok := w.queued[id]; ok || w.missed || w.end != nil {
		return // it is to be read yet, as it is then
	}
	if len(w.queue) >= changesAhead {
		w.missLocked()
		return
	}
	w.queue = append(w.queue, id)
	w.queued[id] = struct{}{}
	w.wakeLocked()
}

func (w *changeWatch) missLocked() {
	if w.end != nil {
		return
	}
	w.queue, w.missed = nil, true
	clear(w.queued)
	w.wakeLocked()
}

func (w *changeWatch) wakeLocked() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func (w *changeWatch) endLocked(why error) {
	if w.end == nil {
		w.end = why
		delete(w.hub.watches, w)
		close(w.changed)
	}
}

// take returns what is to be told next: that something was missed, a sandbox, or
// nothing yet.
func (w *changeWatch) take() (id string, missed bool, err error) {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	switch {
	case w.end != nil:
		return "", false, w.end
	case w.missed:
		w.missed = false
		return "", true, nil
	case len(w.queue) == 0:
		return "", false, nil
	}
	id, w.queue = w.queue[0], w.queue[1:]
	delete(w.queued, id)
	return id, false, nil
}

// Next implements sandbox.Changes.
func (w *changeWatch) Next() (sandbox.Change, error) {
	if !w.ready {
		w.ready = true
		return sandbox.Change{Type: sandbox.Ready}, nil
	}
	for {
		id, missed, err := w.take()
		switch {
		case err != nil:
			return sandbox.Change{}, err
		case missed:
			return sandbox.Change{Type: sandbox.Missed}, nil
		case id == "":
			<-w.changed
			continue
		}
		r, err := w.read(id)
		if cay.CodeOf(err) == cay.NotFound {
			return sandbox.Change{Type: sandbox.Deleted, ID: id}, nil
		}
		if err != nil {
			return sandbox.Change{}, err
		}
		return sandbox.Change{Type: sandbox.Changed, ID: id, Sandbox: &r.Sandbox}, nil
	}
}

// Close implements sandbox.Changes.
func (w *changeWatch) Close() error {
	w.unhook()
	w.cancel(io.ErrClosedPipe)
	return nil
}

func (w *changeWatch) cancel(why error) {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	w.endLocked(why)
}

// WatchSandboxes implements Service.
func (e *Engine) WatchSandboxes(ctx context.Context, p sandbox.ChangeParams) (sandbox.Changes, error) {
	sc, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	l, err := e.listing(ctx, sc, "sandboxes", p.ProjectID, sortedBy("", false), "", 1)
	if err != nil {
		return nil, err
	}
	w := &changeWatch{hub: e.store.changes, scope: l.scope, changed: make(chan struct{}, 1), queued: make(map[string]struct{})}
	w.read = func(id string) (*row, error) {
		r, err := e.store.find(ctx, l.scope, id)
		if err == nil {
			e.bringUpToDate(ctx, []*row{r}, time.Second)
		}
		return r, err
	}
	if err := w.hub.add(w); err != nil {
		return nil, err
	}
	w.unhook = context.AfterFunc(ctx, func() { w.cancel(contextError(ctx)) })
	return w, nil
}
