package feed

import (
	"fmt"
	"io"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

func newTestWatch(t *testing.T, h *Hub, team string) *Changes {
	t.Helper()
	w, err := h.Watch(team, "", func(id string) (*sandbox.Sandbox, error) { return &sandbox.Sandbox{ID: id}, nil })
	if err != nil {
		t.Fatal(err)
	}
	if c, err := w.Next(); err != nil || c.Type != sandbox.Ready {
		t.Fatalf("it begins with %+v, %v", c, err)
	}
	return w
}

// A watch that is not read takes bounded memory, and reports that it has missed changes.
func TestChanges_SlowWatcher(t *testing.T) {
	t.Parallel()
	h := NewHub()
	w := newTestWatch(t, h, "team")
	for n := range changesAhead {
		for range 3 { // many changes of a sandbox count as one
			h.Tell("team", "project", fmt.Sprint(n))
		}
	}
	if len(w.queue) != changesAhead || w.missed {
		t.Fatalf("%d wait, missed: %t", len(w.queue), w.missed)
	}
	h.Tell("other", "project", "theirs")
	if w.missed {
		t.Fatal("another team's change counts")
	}
	h.Tell("team", "project", "one more")
	if c, err := w.Next(); err != nil || c.Type != sandbox.Missed || len(w.queue) != 0 {
		t.Fatalf("got %+v, %v, %d wait", c, err, len(w.queue))
	}
	h.Tell("team", "project", "later")
	if c, err := w.Next(); err != nil || c.Type != sandbox.Changed || c.ID != "later" {
		t.Fatalf("got %+v, %v", c, err)
	}
	h.Close(cay.Errorf(cay.Unavailable, "the end"))
	if _, err := w.Next(); err != io.EOF {
		t.Errorf("after the end: %v", err)
	}
	if _, err := h.Watch("team", "", nil); cay.CodeOf(err) != cay.Unavailable {
		t.Errorf("a watch of a daemon that stops: %v", err)
	}
}

func TestChanges_Bound(t *testing.T) {
	t.Parallel()
	h := NewHub()
	for range maxOfTeam {
		newTestWatch(t, h, "team")
	}
	if _, err := h.Watch("team", "", nil); cay.CodeOf(err) != cay.QuotaExceeded {
		t.Errorf("one more: %v", err)
	}
	newTestWatch(t, h, "other")
}
