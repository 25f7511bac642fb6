package endpoint

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay/gateway"
)

// The limits of the circuit breaker: an endpoint whose circuit is open is avoided.
const (
	healthSlot  = 10 * time.Second // length of each of the healthSlots of the window
	healthSlots = 6
	// The circuit opens after openAfter failures in a row, or if at least half of
	// openSample or more calls in the window failed.
	openAfter  = 5
	openSample = 10
	// openFor is how long the circuit stays open the first time; the time doubles, up to
	// openMost, each time the probe call fails.
	openFor  = 10 * time.Second
	openMost = 5 * time.Minute
	// samples is the number of recent calls whose times are kept.
	samples = 64
)

// Health is the recent health of an endpoint, which is one model at one provider.
//
//	closed --(too many failures)--> open --(openFor)--> one call is let through
//	   ^----------(it succeeds)-----------------------------'   |
//	                          open, for twice as long <--(it fails)
//
// An open circuit does not make a request fail: endpoints with open circuits come last,
// and are tried if no other candidate is left.
type Health struct {
	mu        sync.Mutex // guards the following fields
	slots     [healthSlots]struct{ at, ok, failed int64 }
	row       int // failures in a row
	openUntil time.Time
	openFor   time.Duration
	probing   bool // the probe call is under way
	first     ring // milliseconds to the first token
	speed     ring // tokens a second

	warned atomic.Bool // WarnOnce was called
}

// ring holds the last samples of a number.
type ring struct {
	values [samples]float32
	n      int // ever added
}

func (r *ring) add(v float64) {
	r.values[r.n%samples] = float32(v)
	r.n++
}

// median returns 0 if there are no samples.
func (r *ring) median() float64 {
	n := min(r.n, samples)
	if n == 0 {
		return 0
	}
	sorted := slices.Clone(r.values[:n])
	slices.Sort(sorted)
	return float64(sorted[n/2])
}

// Outcome is the result of a call, as far as it concerns the endpoint's health.
type Outcome struct {
	Failed     bool
	FirstToken time.Duration // 0: unknown
	Speed      float64       // tokens a second; 0: unknown
}

// Ready reports whether the circuit is closed, or may let a probe call through.
func (h *Health) Ready(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.openFor == 0 || !now.Before(h.openUntil) && !h.probing
}

// Begin records the start of a call.
func (h *Health) Begin(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.openFor > 0 && !now.Before(h.openUntil) {
		h.probing = true
	}
}

// Drop records the end of a call that says nothing about the endpoint, for example
// because the client left.
func (h *Health) Drop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.probing = false
}

// WarnOnce reports whether it is called for the first time.
func (h *Health) WarnOnce() bool { return !h.warned.Swap(true) }

// Add records the outcome of a call, and reports whether the circuit opened.
func (h *Health) Add(now time.Time, o Outcome) (opened bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := now.UnixNano() / int64(healthSlot)
	s := &h.slots[at%healthSlots]
	if s.at != at {
		s.at, s.ok, s.failed = at, 0, 0
	}
	probed := h.probing
	h.probing = false
	if !o.Failed {
		s.ok++
		h.row, h.openFor = 0, 0
		if o.FirstToken > 0 {
			h.first.add(float64(o.FirstToken) / float64(time.Millisecond))
		}
		if o.Speed > 0 {
			h.speed.add(o.Speed)
		}
		return false
	}
	s.failed++
	h.row++
	ok, failed := h.windowLocked(at)
	switch {
	case h.openFor > 0 && (probed || !now.Before(h.openUntil)):
		h.openFor = min(2*h.openFor, openMost)
	case h.openFor == 0 && (h.row >= openAfter || ok+failed >= openSample && failed >= ok):
		h.openFor, opened = openFor, true
	default:
		return false
	}
	h.openUntil = now.Add(h.openFor)
	return opened
}

func (h *Health) windowLocked(at int64) (ok, failed int64) {
	for _, s := range h.slots {
		if at-s.at < healthSlots {
			ok += s.ok
			failed += s.failed
		}
	}
	return ok, failed
}

// State returns the health, for display and for ordering endpoints.
func (h *Health) State(now time.Time) gateway.Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	ok, failed := h.windowLocked(now.UnixNano() / int64(healthSlot))
	g := gateway.Health{State: "unknown", FirstToken: gateway.Millis(h.first.median()), Throughput: h.speed.median()}
	if ok+failed > 0 {
		g.Success = float64(ok) / float64(ok+failed)
		g.State = "ok"
		if failed*10 > ok+failed { // more than a tenth
			g.State = "degraded"
		}
	}
	if h.openFor > 0 {
		g.State = "open"
	}
	return g
}

// Board holds the health of all endpoints and the cool-downs of credentials.
type Board struct {
	endpoints sync.Map // Key to *Health
	known     atomic.Int64

	mu   sync.Mutex // guards cool
	cool map[credentialKey]time.Time
}

// maxEndpoints is the maximum number of endpoints whose health is kept.
const maxEndpoints = 10_000

// Key names an endpoint.
type Key struct{ Provider, Model string }

type credentialKey struct{ provider, id string }

// Of returns the health of an endpoint: a model, by the provider's own name.
func (b *Board) Of(provider, model string) *Health {
	key := Key{provider, model}
	if h, ok := b.endpoints.Load(key); ok {
		return h.(*Health)
	}
	if b.known.Load() >= maxEndpoints { // callers may name unknown models
		return new(Health)
	}
	h, was := b.endpoints.LoadOrStore(key, new(Health))
	if !was {
		b.known.Add(1)
	}
	return h.(*Health)
}

// CoolDown starts a credential's cool-down until a time.
func (b *Board) CoolDown(provider, id string, until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cool == nil {
		b.cool = make(map[credentialKey]time.Time)
	}
	key := credentialKey{provider, id}
	if until.After(b.cool[key]) {
		b.cool[key] = until
	}
	if len(b.cool) > 1000 { // requests bring credentials of their own
		for k, t := range b.cool {
			if len(b.cool) > 500 || t.Before(until) {
				delete(b.cool, k)
			}
		}
	}
}

// Cooling returns the end of a credential's cool-down, and false if it has none. A
// cool-down only moves the credential to the end of the order.
func (b *Board) Cooling(provider, id string, now time.Time) (time.Time, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.cool) == 0 {
		return time.Time{}, false
	}
	key := credentialKey{provider, id}
	until, ok := b.cool[key]
	if ok && !now.Before(until) {
		delete(b.cool, key)
		ok = false
	}
	return until, ok
}
