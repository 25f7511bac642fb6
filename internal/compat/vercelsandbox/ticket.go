package vercelsandbox

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
)

const (
	// ticketLife is how long a ticket is valid.
	ticketLife = time.Minute
	// maxUsed bounds how many used tickets are remembered.
	maxUsed = 1 << 16
	// ticketPurpose is the purpose that tickets are signed for.
	ticketPurpose = "vercel terminal"
)

// ticket lets its holder open one terminal in a session, without any other
// credential.
type ticket struct {
	Session   string        `json:"session"`
	Principal api.Principal `json:"principal"` // who asked for it
	Until     time.Time     `json:"until"`
	Process   string        `json:"process"` // the process that issued it; another process does not know the used tickets
	ID        string        `json:"id"`
}

// tickets issues tickets and accepts each ticket once.
type tickets struct {
	mu      sync.Mutex // guards what follows
	process string
	used    map[string]time.Time // ids of used tickets, with the end of their life
}

func (t *tickets) processID() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.process == "" {
		t.process = rand.Text()
	}
	return t.process
}

// issue returns a ticket as text for a URL.
func (h *handler) issueTicket(session string, p api.Principal) (string, error) {
	b, err := json.Marshal(ticket{Session: session, Principal: p, Until: time.Now().Add(ticketLife),
		Process: h.tickets.processID(), ID: rand.Text()})
	if err != nil {
		return "", fmt.Errorf("encode ticket: %w", err)
	}
	return h.Sign(ticketPurpose, b), nil
}

// takeTicket takes a ticket for a terminal in a session. Errors: unauthenticated,
// unavailable.
func (h *handler) takeTicket(signed, session string) (*ticket, error) {
	b, err := h.Open(ticketPurpose, signed)
	if err != nil {
		return nil, badTicket("is not valid")
	}
	var t ticket
	if err := json.Unmarshal(b, &t); err != nil {
		return nil, fmt.Errorf("decode ticket: %w", err) // it is our own
	}
	switch {
	case t.Session != session:
		return nil, badTicket("is for another session")
	case t.Process != h.tickets.processID():
		return nil, badTicket("is from before the daemon was started")
	case !time.Now().Before(t.Until):
		return nil, badTicket("has expired")
	}
	return &t, h.tickets.use(t.ID, t.Until)
}

func badTicket(why string) error {
	return cay.Errorf(cay.Unauthenticated, "the terminal's token %s", why).WithHint("ask for another one; each is good for one terminal, for a minute")
}

func (t *tickets) use(id string, until time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.used[id]; ok {
		return badTicket("has been used")
	}
	if len(t.used) >= maxUsed {
		now := time.Now()
		maps.DeleteFunc(t.used, func(_ string, until time.Time) bool { return !now.Before(until) })
		if len(t.used) >= maxUsed {
			return cay.Errorf(cay.Unavailable, "more than %d terminals were opened within %v", maxUsed, ticketLife)
		}
	}
	if t.used == nil {
		t.used = make(map[string]time.Time)
	}
	t.used[id] = until
	return nil
}
