package sandboxd

import (
	"fmt"
	"io"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

func newTestWatch(t *testing.T, h *changeHub, team string) *changeWatch {
	t.Helper()
	w := &changeWatch{hub: h, scope: scope{team: team}, changed: make(chan struct{}, 1), queued: make(map[string]struct{}), ready: true, unhook: func() bool { return true }}
	w.read = func(id string) (*row, error) { return &row{Sandbox: sandbox.Sandbox{ID: id}}, nil }
	if err := h.add(w); err != nil {
		t.Fatal(err)
	}
	return w
}

// A watcher that does not read costs a bounded amount, and is told what it missed.
func TestChanges_SlowWatcher(t *testing.T) {
	t.Parallel()
	h := newChangeHub()
	w := newTestWatch(t, h, "team")
	for n := range changesAhead {
		for range 3 { // many changes of one are one
			h.tell(scope{team: "team"}, fmt.Sprint(n))
		}
	}
	if len(w.queue) != changesAhead || w.missed {
		t.Fatalf("%d wait, missed: %t", len(w.queue), w.missed)
	}
	h.tell(scope{team: "other"}, "theirs")
	if w.missed {
		t.Fatal("another team's change counts")
	}
	h.tell(scope{team: "team"}, "one more")
	if c, err := w.Next(); err != nil || c.Type != sandbox.Missed || len(w.queue) != 0 {
		t.Fatalf("got %+v, %v, %d wait", c, err, len(w.queue))
	}
	h.tell(scope{team: "team"}, "later")
	if c, err := w.Next(); err != nil || c.Type != sandbox.Changed || c.ID != "later" {
		t.Fatalf("got %+v, %v", c, err)
	}
	h.close()
	if _, err := w.Next(); err != io.EOF {
		t.Errorf("after the end: %v", err)
	}
	if err := h.add(w); cay.CodeOf(err) != cay.Unavailable {
		t.Errorf("a watch of a daemon that stops: %v", err)
	}
}

func TestChanges_Bound(t *testing.T) {
	t.Parallel()
	h := newChangeHub()
	for range maxChangeWatches {
		newTestWatch(t, h, "team")
	}
	if err := h.add(&changeWatch{hub: h, scope: scope{team: "team"}}); cay.CodeOf(err) != cay.QuotaExceeded {
		t.Errorf("one more: %v", err)
	}
	newTestWatch(t, h, "other")
}
