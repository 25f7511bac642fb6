package feed

import (
	"context"
	"io"
	"sync"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

const (
	// maxOfTeam bounds the watches of one team, changesAhead the sandboxes whose changes
	// one watch has not read.
	maxOfTeam    = 64
	changesAhead = 4096
)

var _ sandbox.Changes = (*Changes)(nil)

// Hub notifies watches of changed sandboxes. It holds only their ids: a watch reads the
// current sandbox when its caller asks, so a slow watch costs nothing, and intermediate
// states are skipped.
type Hub struct {
	mu      sync.Mutex // guards the fields below
	watches map[*Changes]struct{}
	closed  error // the error for new watches; nil: the hub is open
}

// NewHub returns a hub without watches.
func NewHub() *Hub { return &Hub{watches: make(map[*Changes]struct{})} }

// Any reports whether there are watches.
func (h *Hub) Any() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.watches) > 0
}

// Tell notifies the watches that reach the sandbox. The caller has committed the change.
func (h *Hub) Tell(team, project, id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watches {
		if w.team == team && (w.project == "" || w.project == project) {
			w.offerLocked(id)
		}
	}
}

// Miss notifies all watches of a change to an unknown sandbox.
func (h *Hub) Miss() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watches {
		w.missLocked()
	}
}

// Watch begins a watch of the sandboxes of a project, or of a whole team if project is
// "". read returns a sandbox's current state, with not_found if it is gone. Errors:
// quota_exceeded; the error that Close was given.
func (h *Hub) Watch(team, project string, read func(id string) (*sandbox.Sandbox, error)) (*Changes, error) {
	w := &Changes{hub: h, team: team, project: project, read: read, changed: make(chan struct{}, 1), queued: make(map[string]struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed != nil {
		return nil, h.closed
	}
	n := 0
	for other := range h.watches {
		if other.team == team {
			n++
		}
	}
	if n >= maxOfTeam {
		return nil, cay.Errorf(cay.QuotaExceeded, "%d of the team watch its sandboxes already", maxOfTeam).WithHint("close some")
	}
	h.watches[w] = struct{}{}
	return w, nil
}

// Close ends all watches, after their unread changes, and makes Watch return why.
func (h *Hub) Close(why error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = why
	for w := range h.watches {
		w.endLocked(io.EOF)
	}
}

// Changes is one watch of a Hub.
type Changes struct {
	hub           *Hub
	team, project string
	read          func(id string) (*sandbox.Sandbox, error)
	ready         bool // Next has returned the ready change; used by Next only
	unhook        []func() bool

	changed chan struct{} // capacity 1; closed when end is set

	// Guarded by the hub's mu.
	queue  []string // ids, oldest first
	queued map[string]struct{}
	missed bool
	end    error // the error that Next returns at the end; nil while the watch goes on
}

func (w *Changes) offerLocked(id string) {
	if _, ok := w.queued[id]; ok || w.missed || w.end != nil {
		return // its state is read later, when Next returns it
	}
	if len(w.queue) >= changesAhead {
		w.missLocked()
		return
	}
	w.queue = append(w.queue, id)
	w.queued[id] = struct{}{}
	w.wakeLocked()
}

func (w *Changes) missLocked() {
	if w.end != nil {
		return
	}
	w.queue, w.missed = nil, true
	clear(w.queued)
	w.wakeLocked()
}

func (w *Changes) wakeLocked() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func (w *Changes) endLocked(why error) {
	if w.end == nil {
		w.end = why
		delete(w.hub.watches, w)
		close(w.changed)
	}
}

// take returns the next notification, if any: missed is set if changes were missed,
// otherwise id is the id of a changed sandbox.
func (w *Changes) take() (id string, missed bool, err error) {
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
func (w *Changes) Next() (sandbox.Change, error) {
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
		s, err := w.read(id)
		if cay.CodeOf(err) == cay.NotFound {
			return sandbox.Change{Type: sandbox.Deleted, ID: id}, nil
		}
		if err != nil {
			return sandbox.Change{}, err
		}
		return sandbox.Change{Type: sandbox.Changed, ID: id, Sandbox: s}, nil
	}
}

// Close implements sandbox.Changes.
func (w *Changes) Close() error {
	for _, unhook := range w.unhook {
		unhook()
	}
	w.cancel(io.ErrClosedPipe)
	return nil
}

// EndWith makes the watch end with the error of why when ctx ends. It must not be called
// concurrently with Close.
func (w *Changes) EndWith(ctx context.Context, why func() error) {
	w.unhook = append(w.unhook, context.AfterFunc(ctx, func() { w.cancel(why()) }))
}

func (w *Changes) cancel(why error) {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	w.endLocked(why)
}
