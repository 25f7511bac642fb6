package feed

import (
	"context"
	"io"
	"sync"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

const (
	// maxOfTeam bounds the watchers of one team, changesAhead the sandboxes
	// that one may not have read the changes of.
	maxOfTeam    = 64
	changesAhead = 4096
)

var _ sandbox.Changes = (*Changes)(nil)

// Hub tells watchers which sandboxes are not what they were. It knows no
// more than their ids: what a sandbox is now is read when a watcher asks, so a
// watcher that is slow costs nothing, and what came before is not told.
type Hub struct {
	mu      sync.Mutex // guards what follows
	watches map[*Changes]struct{}
	closed  error // why nobody can watch any more; nil: they can
}

// NewHub returns a hub that nobody watches.
func NewHub() *Hub { return &Hub{watches: make(map[*Changes]struct{})} }

// Any reports whether anybody watches.
func (h *Hub) Any() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.watches) > 0
}

// Tell has those watchers told who reach the sandbox. It has committed what changed.
func (h *Hub) Tell(team, project, id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watches {
		if w.team == team && (w.project == "" || w.project == project) {
			w.offerLocked(id)
		}
	}
}

// Miss has all told that something changed that is not known.
func (h *Hub) Miss() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watches {
		w.missLocked()
	}
}

// Watch begins to watch the sandboxes of a project, or, with "", of a team. What one
// is now read says, with not_found for one that is gone. Errors: quota_exceeded; what
// Close was given.
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

// Close ends all watches, in order, and refuses those that are to come with why.
func (h *Hub) Close(why error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = why
	for w := range h.watches {
		w.endLocked(io.EOF)
	}
}

// Changes is one watcher of a Hub.
type Changes struct {
	hub           *Hub
	team, project string
	read          func(id string) (*sandbox.Sandbox, error)
	ready         bool // has been told so; Next's alone
	unhook        []func() bool

	changed chan struct{} // has room for one; closed with end

	// The hub's mu guards what follows.
	queue  []string // ids, as they came
	queued map[string]struct{}
	missed bool
	end    error // what Next returns; nil before
}

func (w *Changes) offerLocked(id string) {
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

// take returns what is to be told next: that something was missed, a sandbox, or
// nothing yet.
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

// EndWith ends the watch with why, when ctx has ended. It is not to be called beside
// Close.
func (w *Changes) EndWith(ctx context.Context, why func() error) {
	w.unhook = append(w.unhook, context.AfterFunc(ctx, func() { w.cancel(why()) }))
}

func (w *Changes) cancel(why error) {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	w.endLocked(why)
}
