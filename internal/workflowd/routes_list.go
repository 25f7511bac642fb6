package workflowd

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd/protocol"
	"github.com/cayhq/cay/workflow"
)

// selection returns the backend and the query of a request that selects runs. It also
// checks q, so take all other parameters first.
func (h *Routes) selection(r *http.Request, q *api.Query) (workflow.Backend, history.Query, error) {
	query := history.Query{
		Workflow: q.String("workflow"), Key: q.String("key"), Parent: q.String("parent"), Schedule: q.String("schedule"),
		Since: protocol.Millis(q.Time("since")), Until: protocol.Millis(q.Time("until")),
	}
	for _, s := range q.Strings("status", 16) {
		query.Statuses = append(query.Statuses, history.Status(s))
	}
	attributes := q.Strings("attribute", 16)
	b, err := h.backend(r, q)
	if err != nil {
		return nil, query, err
	}
	for _, a := range attributes {
		k, v, valued := strings.Cut(a, "=")
		k, err := url.PathUnescape(k) // a name may hold "=" itself, as %3D
		if err != nil || k == "" {
			return nil, query, cay.Errorf(cay.Invalid, "query parameter %q is %q, not name=value, or name", "attribute", a)
		}
		if !valued {
			query.HasAttributes = append(query.HasAttributes, k)
			continue
		}
		if query.Attributes == nil {
			query.Attributes = make(map[string]string)
		}
		query.Attributes[k] = v
	}
	return b, query, checkStatuses(query.Statuses)
}

func checkStatuses(asked []history.Status) error {
	for _, s := range asked {
		if !slices.Contains(history.Statuses, s) {
			return cay.Errorf(cay.Invalid, "status %q is not one of %v", s, history.Statuses)
		}
	}
	return nil
}

func (h *Routes) handleCount(w http.ResponseWriter, r *http.Request) error {
	b, query, err := h.selection(r, api.ParseQuery(r))
	if err != nil {
		return err
	}
	counts, err := b.CountRuns(r.Context(), query)
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, protocol.Counts{Counts: counts})
}

// handleWatch answers with a line for each change of the list, until the client
// disconnects.
func (h *Routes) handleWatch(w http.ResponseWriter, r *http.Request) error {
	b, query, err := h.selection(r, api.ParseQuery(r))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	watch, err := b.WatchRuns(ctx, query)
	if err != nil {
		return err
	}
	defer watch.Close() // only reads precede it
	src := &batches[history.Change]{cancel: cancel, next: func() ([]history.Change, error) { return watch.ReadChanges(ctx) }}
	return api.ServeLines(w, r, src, jsonLines[history.Change, protocol.RunChange]{protocol.RunChangeOf})
}
