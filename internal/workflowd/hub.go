package workflowd

import (
	"slices"
	"sync"

	"github.com/cayhq/cay/internal/history"
)

// Bounds of the events buffered for a slow follower; it reads the rest from the store.
const (
	maxBuffered      = 256
	maxBufferedBytes = 1 << 20
)

// hub passes the committed events of runs to the subscriptions of these runs.
type hub struct {
	mu     sync.Mutex
	topics map[string][]*subscription // by run
	closed bool
}

func (h *hub) init() { h.topics = make(map[string][]*subscription) }

// subscription is a caller's subscription to one run.
type subscription struct {
	run    string
	events bool // whether the caller wants events, or only to be woken
	// wake holds a token when a field below has changed.
	wake chan struct{}

	mu       sync.Mutex // guards the fields below
	buffered []history.Event
	size     int            // bytes of buffered
	missed   bool           // some events are only in the store
	ended    *history.Run   // set when the run has ended
	end      *history.Event // the event that ended the run; set with ended
	closed   bool
}

func (h *hub) subscribe(run string, events bool) *subscription {
	s := &subscription{run: run, events: events, wake: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		s.closed = true
		s.poke()
		return s
	}
	h.topics[run] = append(h.topics[run], s)
	return s
}

func (h *hub) unsubscribe(s *subscription) {
	h.mu.Lock()
	defer h.mu.Unlock()
	rest := slices.DeleteFunc(h.topics[s.run], func(other *subscription) bool { return other == s })
	if len(rest) == 0 {
		delete(h.topics, s.run)
	} else {
		h.topics[s.run] = rest
	}
}

// publish passes newly committed events of a run to its subscriptions; row is the run
// after the events.
func (h *hub) publish(row *history.Run, events []history.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.topics[row.ID] {
		s.mu.Lock()
		if s.events && len(events) > 0 {
			s.addLocked(events)
		}
		if row.Status.Terminal() && s.ended == nil {
			copied := *row
			s.ended, s.end = &copied, endOf(events)
		}
		s.mu.Unlock()
		s.poke()
	}
}

// endOf returns a copy of the event that ends a run, nil if there is none.
func endOf(events []history.Event) *history.Event {
	for i := range events {
		if ends(&events[i]) {
			end := events[i]
			return &end
		}
	}
	return nil
}

func (s *subscription) addLocked(events []history.Event) {
	for i := range events {
		s.size += eventSize(&events[i])
	}
	if s.missed || len(s.buffered)+len(events) > maxBuffered || s.size > maxBufferedBytes {
		s.missLocked()
		return
	}
	s.buffered = append(s.buffered, events...)
}

// missLocked makes the follower read the store.
func (s *subscription) missLocked() { s.buffered, s.size, s.missed = nil, 0, true }

// changed says that the store has news of a run, or of all runs ("").
func (h *hub) changed(run string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	tell := func(subs []*subscription) {
		for _, s := range subs {
			s.mu.Lock()
			s.missLocked()
			s.mu.Unlock()
			s.poke()
		}
	}
	if run != "" {
		tell(h.topics[run])
		return
	}
	for _, subs := range h.topics {
		tell(subs)
	}
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, subs := range h.topics {
		for _, s := range subs {
			s.mu.Lock()
			s.closed = true
			s.mu.Unlock()
			s.poke()
		}
	}
}

func (s *subscription) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// seen is the news of a subscription since the last look.
type seen struct {
	events []history.Event
	missed bool
	ended  *history.Run
	end    *history.Event
	closed bool
}

func (s *subscription) take() seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := seen{events: s.buffered, missed: s.missed, ended: s.ended, end: s.end, closed: s.closed}
	s.buffered, s.size, s.missed = nil, 0, false
	return out
}
