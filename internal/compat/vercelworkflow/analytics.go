package vercelworkflow

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/workflow"
)

// The analytics API of the 5.0 line lists runs, and all that a run's log has, without
// payloads and without tokens of hooks. The SDK's own command line and its pages ask for
// it first. Shapes: AnalyticsRunSchema and its neighbours in @workflow/world 5.0. The
// vendor answers from a second database; here it is the log itself, so that nothing lags.

// rows returns the rows of one kind that a log has, in the order of the log, and the name
// of the field with their id.
type rows func(r view, log []history.Event) (all []object, id string)

var rowsOfLog = map[string]rows{"steps": stepRows, "events": eventRows, "waits": waitRows}

func stepRows(r view, log []history.Event) ([]object, string) {
	steps := stepObjects(r, log, "", false)
	for _, s := range steps {
		delete(s, "error") // a payload
	}
	return steps, "stepId"
}

func waitRows(r view, log []history.Event) ([]object, string) {
	return waitObjects(r, log, ""), "waitId"
}

// eventRow has the fields of an event's data that an event has as its own in analytics.
var eventRow = []string{"stepName", "resumeAt", "retryAfter", "errorCode", "isWebhook", "isSystem"}

func eventRows(r view, log []history.Event) ([]object, string) {
	all := make([]object, len(log))
	for i := range log {
		o := eventObject(r, &log[i], false)
		data, _ := o["eventData"].(object)
		delete(o, "eventData")
		delete(o, "resumeId")
		for _, name := range eventRow {
			if v, ok := data[name]; ok {
				o[name] = v
			}
		}
		o["workflowName"], o["deploymentId"], o["runCreatedAt"] = r.Workflow, r.Build, at(r.CreatedAt)
		all[i] = o
	}
	return all, "eventId"
}

func hookRows(r view, log []history.Event) ([]object, string) {
	var hooks []object
	byID := make(map[string]object)
	for i := range log {
		ev := &log[i]
		o := byID[ev.ID]
		switch {
		case ev.Type == history.HookCreated || ev.Type == history.HookConflict:
			o = object{"runId": r.ID, "hookId": ev.ID, "status": "created", "createdAt": at(ev.At), "isWebhook": ev.Webhook}
			if ev.Type == history.HookConflict {
				o["status"] = "conflict"
			}
			if readExtra(ev.Extra).System {
				o["isSystem"] = true
			}
			byID[ev.ID] = o
			hooks = append(hooks, o)
		case o == nil:
			continue
		case ev.Type == history.HookReceived:
			o["status"], o["receivedAt"] = "received", at(ev.At)
		case ev.Type == history.HookDisposed:
			o["status"], o["disposedAt"] = "disposed", at(ev.At)
		}
		o["updatedAt"] = at(ev.At)
	}
	return hooks, "hookId"
}

// handleRunRows lists runs, also by attributes and by the time of their creation.
func (h *handler) handleRunRows(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	query, err := q.window()
	if err != nil {
		return err
	}
	if text := q.Get("attributes"); text != "" {
		if err := json.Unmarshal([]byte(text), &query.Attributes); err != nil {
			return cay.Errorf(cay.Invalid, "query parameter attributes is %.100q, and should be a JSON object of strings: %v", text, err)
		}
	}
	return h.writeRuns(w, r, query, false)
}

// window is the method runs, also by the time of the creation of runs. Errors: invalid.
func (q query) window() (workflow.Query, error) {
	query, err := q.runs()
	if err != nil {
		return query, err
	}
	if query.Since, err = q.time("startTime"); err != nil {
		return query, err
	}
	query.Until, err = q.time("endTime")
	return query, err
}

// maxCounted is how many runs are read for a list of attributes: no index has the attributes
// of all runs.
const maxCounted = 10_000

// handleAttributeRows lists the attributes that runs have, by name: how many runs have each,
// and when the first and the last of them was created. It looks at the newest maxCounted
// runs that the window selects.
func (h *handler) handleAttributeRows(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	limit, err := q.limit(100)
	if err != nil {
		return err
	}
	from, err := q.number("cursor", 0)
	if err != nil {
		return err
	}
	query, err := q.window()
	if err != nil {
		return err
	}
	runs, err := h.runs(r)
	if err != nil {
		return err
	}
	type seen struct{ runs, first, last int64 }
	all := make(map[string]*seen)
	query.Limit, query.Cursor, query.Ascending = maxPage, "", false
	for n := 0; n < maxCounted; {
		found, err := runs.ListRuns(r.Context(), query)
		if err != nil {
			return err
		}
		for i := range found.Items {
			run := &found.Items[i]
			if run.Kind != history.JavaScript {
				continue // the SDK cannot read others
			}
			for name := range run.Attributes {
				s := all[name]
				if s == nil {
					s = &seen{first: run.CreatedAt, last: run.CreatedAt}
					all[name] = s
				}
				s.runs++
				s.first, s.last = min(s.first, run.CreatedAt), max(s.last, run.CreatedAt)
			}
		}
		n += len(found.Items)
		if query.Cursor = found.Cursor; query.Cursor == "" {
			break
		}
	}
	names := slices.Sorted(maps.Keys(all))
	if q.Get("sortOrder") == "desc" {
		slices.Reverse(names)
	}
	rows := make([]object, len(names))
	for i, name := range names {
		s := all[name]
		rows[i] = object{"key": name, "runCount": s.runs, "firstSeenAt": at(s.first), "lastSeenAt": at(s.last)}
	}
	return writeCBOR(w, pageOf(rows, from, limit))
}

// time returns a parameter in Unix milliseconds, 0 if it is not there. Errors: invalid.
func (q query) time(name string) (int64, error) {
	text := q.Get(name)
	if text == "" {
		return 0, nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return 0, cay.Errorf(cay.Invalid, "query parameter %s is %.40q, and should be a time such as 2026-07-13T17:09:11Z", name, text)
	}
	return t.UnixMilli(), nil
}

func (h *handler) handleRunRow(w http.ResponseWriter, r *http.Request) error {
	_, run, err := h.run(r)
	if err != nil {
		return err
	}
	return writeCBOR(w, runObject(viewOf(run), nil, false))
}

// logRows returns the rows of the run that a request names, in its path or as runId.
// Errors: invalid, not_found.
func (h *handler) logRows(r *http.Request, of rows) (all []object, id string, err error) {
	if r.PathValue("run") == "" {
		run := queryOf(r).Get("runId")
		if run == "" {
			return nil, "", cay.Errorf(cay.Invalid, "query parameter runId is needed: ids of hooks are unique in a run only")
		}
		r.SetPathValue("run", run)
	}
	runs, run, err := h.run(r)
	if err != nil {
		return nil, "", err
	}
	log, err := wholeLog(r.Context(), runs, run.ID)
	if err != nil {
		return nil, "", err
	}
	all, id = of(viewOf(run), log)
	return all, id, nil
}

// handleRows answers with a page of the rows of a run. Events can be filtered by
// eventType and correlationId, waits by status.
func (h *handler) handleRows(of rows) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		all, _, err := h.logRows(r, of)
		if err != nil {
			return err
		}
		q := queryOf(r)
		limit, err := q.limit(100)
		if err != nil {
			return err
		}
		from, err := q.number("cursor", 0)
		if err != nil {
			return err
		}
		for _, field := range []string{"eventType", "correlationId", "status"} {
			if want := q.Get(field); want != "" {
				all = slices.DeleteFunc(all, func(o object) bool { return o[field] != want })
			}
		}
		if q.Get("sortOrder") == "desc" {
			slices.Reverse(all)
		}
		return writeCBOR(w, pageOf(all, from, limit))
	}
}

// handleRow answers with the row that has an id.
func (h *handler) handleRow(of rows) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		all, name, err := h.logRows(r, of)
		if err != nil {
			return err
		}
		id := r.PathValue("id")
		i := slices.IndexFunc(all, func(o object) bool { return o[name] == id })
		if i < 0 {
			return cay.Errorf(cay.NotFound, "run %s has no %s %.100q", r.PathValue("run"), name, id)
		}
		return writeCBOR(w, all[i])
	}
}

// maxRows is how many events one call names. ANALYTICS_EVENTS_GET_MANY_LIMIT of @workflow/world.
const maxRows = 100

// handleEventRows answers with those of the named events that the run has.
func (h *handler) handleEventRows(w http.ResponseWriter, r *http.Request) error {
	var p struct {
		IDs []string `cbor:"eventIds" json:"eventIds"`
	}
	if err := readCBOR(w, r, &p); err != nil {
		return err
	}
	if len(p.IDs) == 0 || len(p.IDs) > maxRows {
		return cay.Errorf(cay.Invalid, "eventIds has %d ids: 1 to %d are allowed", len(p.IDs), maxRows)
	}
	all, name, err := h.logRows(r, eventRows)
	if err != nil {
		return err
	}
	return writeCBOR(w, slices.DeleteFunc(all, func(o object) bool {
		id, _ := o[name].(string)
		return !slices.Contains(p.IDs, id)
	}))
}
