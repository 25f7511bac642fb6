package vercelsandbox

import (
	"context"
	"net/http"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// sessionOnly is a session without its sandbox.
type sessionOnly struct {
	Session sessionObject `json:"session"`
}

func (h *handler) handleListSessions(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	l, err := readList(q)
	if err != nil {
		return err
	}
	var page *sandbox.Page[sandbox.Session]
	if name := q.Get("name"); name != "" {
		page, err = h.Sandboxes.Sessions(r.Context(), name, sandbox.SessionParams{Ascending: l.ascending, Limit: l.limit, Cursor: l.cursor})
	} else {
		page, err = h.Sandboxes.ListSessions(r.Context(), sandbox.SessionListParams{Ascending: l.ascending, Limit: l.limit, Cursor: l.cursor})
	}
	if err != nil {
		return err
	}
	answer := struct {
		Sessions   []sessionObject `json:"sessions"`
		Pagination pagination      `json:"pagination"`
	}{[]sessionObject{}, pagination{}}
	known := map[string]*sandbox.Sandbox{}
	for i := range page.Items {
		s := &page.Items[i]
		sb := known[s.SandboxID]
		if sb == nil {
			sb, err = h.Sandboxes.Get(r.Context(), s.SandboxID)
			if cay.CodeOf(err) == cay.NotFound {
				continue // deleted since
			}
			if err != nil {
				return err
			}
			known[s.SandboxID] = sb
		}
		answer.Sessions = append(answer.Sessions, h.sessionObject(s, sb))
	}
	answer.Pagination = paginate(len(answer.Sessions), page.Next)
	return writeJSON(w, http.StatusOK, answer)
}

func (h *handler) handleGetSession(w http.ResponseWriter, r *http.Request) error {
	s, sb, err := h.session(r.Context(), r.PathValue("sid"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, struct {
		sessionOnly
		Routes []routeObject `json:"routes"`
	}{sessionOnly{h.sessionObject(s, sb)}, routeObjects(sb, r.URL.Query().Get("__includeSystemRoutes") == "true")})
}

func (h *handler) handleStop(w http.ResponseWriter, r *http.Request) error {
	s, _, err := h.session(r.Context(), r.PathValue("sid"))
	if err != nil {
		return err
	}
	return h.padded(w, r, func(ctx context.Context) (int, any, error) {
		s, sb, err := h.stop(ctx, s)
		if err != nil {
			return 0, nil, err
		}
		o, err := h.sandboxObject(ctx, sb)
		if err != nil {
			return 0, nil, err
		}
		answer := struct {
			sessionOnly
			Sandbox  sandboxObject   `json:"sandbox"`
			Snapshot *snapshotObject `json:"snapshot,omitempty"`
		}{sessionOnly: sessionOnly{h.sessionObject(s, sb)}, Sandbox: o}
		if s.SnapshotID != "" {
			snap, err := h.Sandboxes.GetSnapshot(ctx, s.SnapshotID)
			if err != nil && cay.CodeOf(err) != cay.NotFound { // forgotten
				return 0, nil, err
			}
			if err == nil {
				o := newSnapshotObject(snap)
				answer.Snapshot = &o
			}
		}
		return http.StatusOK, answer, nil
	})
}

// stop ends a session that may have ended already, and returns its final state and
// its sandbox's.
func (h *handler) stop(ctx context.Context, s *sandbox.Session) (*sandbox.Session, *sandbox.Sandbox, error) {
	if !over(s.Status) {
		if _, err := h.Sandboxes.Stop(ctx, s.ID); err != nil && cay.CodeOf(err) != cay.Stopped {
			return nil, nil, err
		}
	}
	return h.session(ctx, s.ID)
}

func (h *handler) handleNetworkPolicy(w http.ResponseWriter, r *http.Request) error {
	o, err := h.setNetwork(w, r, r.PathValue("sid"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, sessionOnly{*o})
}

// setNetwork applies the policy in the request's body to a running session.
func (h *handler) setNetwork(w http.ResponseWriter, r *http.Request, session string) (*sessionObject, error) {
	n, err := readPolicy(w, r)
	if err != nil {
		return nil, err
	}
	if _, _, err := h.session(r.Context(), session); err != nil {
		return nil, err
	}
	if _, err := h.Sandboxes.Update(r.Context(), session, sandbox.UpdateParams{Network: &n}); err != nil {
		return nil, err
	}
	return h.reread(r.Context(), session)
}

// reread returns the current state of a session.
func (h *handler) reread(ctx context.Context, session string) (*sessionObject, error) {
	s, sb, err := h.session(ctx, session)
	if err != nil {
		return nil, err
	}
	o := h.sessionObject(s, sb)
	return &o, nil
}

func (h *handler) handleExtend(w http.ResponseWriter, r *http.Request) error {
	o, err := h.extend(w, r, r.PathValue("sid"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, sessionOnly{*o})
}

// terminalExtension is the extension that a client with a terminal requests, again
// and again. The client fails on any error, and after a success that extends
// nothing it sends the next request at once.
const terminalExtension = 5 * time.Minute

// extend lets a session run for longer.
func (h *handler) extend(w http.ResponseWriter, r *http.Request, session string) (*sessionObject, error) {
	var q struct {
		Duration sandbox.Duration `json:"duration"`
	}
	if err := readJSON(w, r, &q); err != nil {
		return nil, err
	}
	if q.Duration < sandbox.Duration(time.Second) {
		return nil, cay.Errorf(cay.Invalid, "duration %d is less than 1000 ms", inMS(q.Duration))
	}
	ctx := r.Context()
	s, _, err := h.session(ctx, session)
	if err != nil {
		return nil, err
	}
	_, err = h.Sandboxes.Extend(ctx, session, q.Duration)
	if cay.CodeOf(err) == cay.Invalid && q.Duration == sandbox.Duration(terminalExtension) && h.terminals.of(session) > 0 {
		err = h.extendTerminal(ctx, s)
	}
	if cay.CodeOf(err) == cay.Invalid {
		return nil, shaped(http.StatusBadRequest, codeTimeoutInvalid, err)
	}
	if err != nil {
		return nil, err
	}
	return h.reread(ctx, session)
}

// extendTerminal extends a session to the maximum, or, if the session has the
// maximum already, waits until all its terminals are closed.
func (h *handler) extendTerminal(ctx context.Context, s *sandbox.Session) error {
	if left := sandbox.Duration(h.MaxTimeout) - s.Timeout; left > 0 {
		if _, err := h.Sandboxes.Extend(ctx, s.ID, left); cay.CodeOf(err) != cay.Invalid {
			return err
		}
	}
	select {
	case <-h.terminals.none(s.ID):
	case <-ctx.Done():
	}
	return cay.Errorf(cay.Stopped, "session %q has come to the longest time it may last", s.ID)
}
