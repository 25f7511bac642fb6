package vercelsandbox

import (
	"context"
	"net/http"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/sandbox"
)

// handler has a method for each route. Each decodes, calls, and encodes. Its state
// concerns only requests in progress.
type handler struct {
	Config
	// snapshotting are the sessions that are ending because of a snapshot, and
	// terminals the sessions with open terminals.
	snapshotting, terminals counts
	tickets                 tickets
}

// handle makes a method an api.Handler: the context acts for the team and the project
// in the query, and errors of an ended session say whether the session is still
// ending.
func (h *handler) handle(serve api.Handler) api.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		ctx, err := h.scope(r)
		if err != nil {
			return err
		}
		r = r.WithContext(ctx)
		err = serve(w, r)
		if sid := r.PathValue("sid"); sid != "" && cay.CodeOf(err) == cay.Stopped {
			return h.ended(ctx, sid, err)
		}
		return err
	}
}

// ended shapes the error of a call whose session has ended: clients wait for a session
// that is stopping, and then resume the sandbox.
func (h *handler) ended(ctx context.Context, sid string, err error) error {
	s, e := h.Sandboxes.GetSession(ctx, sid)
	if e != nil || s.Status != sandbox.Stopping {
		return err
	}
	if h.snapshotting.of(sid) > 0 {
		return shaped(http.StatusUnprocessableEntity, codeSnapshotting, err)
	}
	return shaped(http.StatusUnprocessableEntity, codeStopping, err)
}

// session returns a session and its sandbox. Errors: not_found.
func (h *handler) session(ctx context.Context, id string) (*sandbox.Session, *sandbox.Sandbox, error) {
	if !strings.HasPrefix(id, sessionPrefix) {
		return nil, nil, cay.Errorf(cay.NotFound, "session %.100q not found", id)
	}
	s, err := h.Sandboxes.GetSession(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	sb, err := h.Sandboxes.Get(ctx, s.SandboxID)
	if err != nil {
		return nil, nil, err
	}
	return s, sb, nil
}

// Ids begin with these.
const (
	sandboxPrefix  = "sbx_"
	sessionPrefix  = "ses_"
	snapshotPrefix = "snap_"
	drivePrefix    = "drv_"
)

// readJSON decodes the request's body into v. Clients send fields that we do not know;
// they are ignored, and a missing body is accepted. Errors: invalid, too_large.
func readJSON(w http.ResponseWriter, r *http.Request, v any) error {
	return api.ReadOpenJSON(w, r, v)
}

// writeJSON answers with v.
func writeJSON(w http.ResponseWriter, status int, v any) error {
	return api.WriteJSON(w, status, v)
}
