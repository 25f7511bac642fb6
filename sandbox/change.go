package sandbox

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
)

// ChangeType is the kind of a Change.
type ChangeType string

const (
	// Ready is the first change: later changes are reported. A client that reads a
	// list of sandboxes after Ready, and then applies the changes, knows the state
	// of every sandbox.
	Ready   ChangeType = "ready"
	Changed ChangeType = "changed" // Sandbox is the current state
	Deleted ChangeType = "deleted" // there is no sandbox ID any more
	// Missed: changes came faster than the caller read them, and some are not
	// reported. Read the list again.
	Missed ChangeType = "missed"
)

// Change reports that a sandbox was created, has changed or was deleted. If
// several changes of a sandbox have not been read yet, only the last is reported.
// Growing usage of a sandbox is not a change.
type Change struct {
	Type    ChangeType `json:"type"`
	ID      string     `json:"id,omitempty"`
	Sandbox *Sandbox   `json:"sandbox,omitempty"` // with Changed
}

// ChangeParams selects the sandboxes whose changes are reported.
type ChangeParams struct {
	ProjectID string // as in ListParams
}

// Changes reports changes as they happen; the first is Ready.
type Changes interface {
	// Next waits for the next change. It returns io.EOF when the daemon stops.
	Next() (Change, error)
	io.Closer
}

// WatchSandboxes reports the changes of sandboxes until it is closed or ctx ends.
// Errors: invalid, not_found (project), quota_exceeded (the team has 64 watches).
func (c *Client) WatchSandboxes(ctx context.Context, p ChangeParams) (Changes, error) {
	q := url.Values{"follow": {"true"}}
	setString(q, "project", p.ProjectID)
	s, err := c.stream(ctx, wire.Request{Method: http.MethodGet, Path: "/v1/sandboxes", Query: q})
	if err != nil {
		return nil, err
	}
	return &changes{watch{ctx: ctx, s: s}}, nil
}

// changes is the Changes of a Client.
type changes struct{ watch }

// Next implements Changes.
func (w *changes) Next() (Change, error) {
	line, err := w.s.next()
	if err != nil {
		return Change{}, w.why(err)
	}
	var msg struct {
		Change
		Error *wire.Error `json:"error"`
	}
	if err := json.Unmarshal(line, &msg); err != nil {
		return Change{}, cay.Errorf(cay.Internal, "the daemon sent a change that cannot be read: %w", err)
	}
	if msg.Error != nil {
		return Change{}, msg.Error.Err()
	}
	return msg.Change, nil
}
