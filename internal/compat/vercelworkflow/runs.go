package vercelworkflow

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/workflow"
)

// page is how lists answer. Cursor is null on the last page.
func page(data []object, cursor string) object {
	if data == nil {
		data = []object{}
	}
	o := object{"data": data, "cursor": nil, "hasMore": cursor != ""}
	if cursor != "" {
		o["cursor"] = cursor
	}
	return o
}

// handleRuns lists runs, the newest first unless asked otherwise.
func (h *handler) handleRuns(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	query, err := q.runs()
	if err != nil {
		return err
	}
	return h.writeRuns(w, r, query, q.whole())
}

// runs returns the query for runs that the parameters of a list describe. Errors: invalid.
func (q query) runs() (workflow.Query, error) {
	limit, err := q.limit(100)
	if err != nil {
		return workflow.Query{}, err
	}
	query := workflow.Query{
		Workflow: q.Get("workflowName"), Limit: limit, Cursor: q.Get("cursor"), Ascending: q.Get("sortOrder") == "asc",
	}
	for _, s := range q.Values["status"] {
		status := history.Status(s)
		if !slices.Contains(history.Statuses, status) {
			return query, cay.Errorf(cay.Invalid, "status is %.40q, and can be one of %v", s, history.Statuses)
		}
		query.Statuses = append(query.Statuses, status)
	}
	return query, nil
}

// writeRuns answers with a page of runs, with their inputs and outputs if whole.
func (h *handler) writeRuns(w http.ResponseWriter, r *http.Request, query workflow.Query, whole bool) error {
	runs, err := h.runs(r)
	if err != nil {
		return err
	}
	found, err := runs.ListRuns(r.Context(), query)
	if err != nil {
		return err
	}
	var data []object
	for i := range found.Items {
		if found.Items[i].Kind != history.JavaScript {
			continue // the SDK cannot read others
		}
		o, err := readRun(r.Context(), runs, &found.Items[i], whole)
		if err != nil {
			return err
		}
		data = append(data, o)
	}
	return writeCBOR(w, page(data, found.Cursor))
}

// readRun is a run, with its input and output read from its log if whole.
func readRun(ctx context.Context, runs Runs, run *history.Run, whole bool) (object, error) {
	var log []history.Event
	slots := []int64{1}
	if run.Status.Terminal() {
		// Results of steps may come behind the end, as many as ran.
		slots = append(slots, max(run.Events-tail, 2))
	}
	for _, slot := range slots {
		if !whole && (slot == 1 || run.Status != history.Failed) {
			continue // an error is no payload
		}
		limit := 1
		if slot > 1 {
			limit = tail + 1
		}
		part, err := runs.ReadLog(ctx, run.ID, slot, limit)
		if err != nil {
			return nil, err
		}
		log = append(log, ends(part.Events)...)
	}
	return runObject(viewOf(run), log, whole), nil
}

// tail is how many events at the end of a log are looked at for the one that ended
// the run.
const tail = 64

// run returns the run that a request names. Errors: not_found.
func (h *handler) run(r *http.Request) (Runs, *history.Run, error) {
	runs, err := h.runs(r)
	if err != nil {
		return nil, nil, err
	}
	run, err := runs.GetRun(r.Context(), r.PathValue("run"))
	if err == nil && run.Kind != history.JavaScript {
		err = cay.Errorf(cay.NotFound, "run %s is no run of the Workflow SDK", run.ID)
	}
	return runs, run, err
}

func (h *handler) handleRun(w http.ResponseWriter, r *http.Request) error {
	runs, run, err := h.run(r)
	if err != nil {
		return err
	}
	o, err := readRun(r.Context(), runs, run, queryOf(r).whole())
	if err != nil {
		return err
	}
	return writeCBOR(w, o)
}

// maxWait bounds how long one request waits for the end of a run.
const maxWait = time.Minute

// handleStatus answers with a run when it has ended, or with what it is when waitMs is over.
func (h *handler) handleStatus(w http.ResponseWriter, r *http.Request) error {
	runs, run, err := h.run(r)
	if err != nil {
		return err
	}
	q := queryOf(r)
	wait, err := q.number("waitMs", 0)
	if err != nil {
		return err
	}
	if wait > 0 && !run.Status.Terminal() {
		ctx, cancel := context.WithTimeout(r.Context(), min(time.Duration(min(wait, maxWait.Milliseconds()))*time.Millisecond, maxWait))
		ended, err := runs.WaitRun(ctx, run.ID)
		cancel()
		switch {
		case err == nil:
			run = ended
		case r.Context().Err() != nil || !errors.Is(err, context.DeadlineExceeded):
			return err
		default:
			if run, err = runs.GetRun(r.Context(), run.ID); err != nil {
				return err
			}
		}
	}
	o, err := readRun(r.Context(), runs, run, q.whole())
	if err != nil {
		return err
	}
	return writeCBOR(w, o)
}

func (h *handler) handleAttributes(w http.ResponseWriter, r *http.Request) error {
	runs, run, err := h.run(r)
	if err != nil {
		return err
	}
	var p struct {
		Changes  []attributeChange `cbor:"changes" json:"changes"`
		Reserved bool              `cbor:"allowReservedAttributes" json:"allowReservedAttributes"`
	}
	if err := readCBOR(w, r, &p); err != nil {
		return err
	}
	entry, err := entryOf(&meta{EventType: "attr_set", SpecVersion: viewOf(run).spec, runMeta: runMeta{Changes: p.Changes, AllowReserved: p.Reserved}}, nil)
	if err != nil {
		return err
	}
	rec, err := runs.Record(r.Context(), run.ID, entry)
	if err == nil {
		err = rec.Results[0].Err
	}
	if err != nil {
		return refused(history.AttrSet, err)
	}
	return writeCBOR(w, object{"attributes": runObject(viewOf(&rec.Run), nil, false)["attributes"]})
}

// maxCancel is how many runs one call cancels.
const maxCancel = 500

// handleCancel cancels many runs, and answers for each.
func (h *handler) handleCancel(w http.ResponseWriter, r *http.Request) error {
	runs, err := h.runs(r)
	if err != nil {
		return err
	}
	var p struct {
		Runs   []string `cbor:"runIds" json:"runIds"`
		Reason string   `cbor:"cancelReason" json:"cancelReason"`
	}
	if err := readCBOR(w, r, &p); err != nil {
		return err
	}
	if len(p.Runs) == 0 || len(p.Runs) > maxCancel {
		return cay.Errorf(cay.Invalid, "runIds has %d ids: 1 to %d are allowed", len(p.Runs), maxCancel)
	}
	counts := map[string]int{}
	results := make([]object, len(p.Runs))
	for i, id := range p.Runs {
		outcome, o := cancel(r.Context(), runs, id, p.Reason)
		counts[outcome]++
		results[i] = o
	}
	return writeCBOR(w, object{
		"summary": object{
			"requested": len(p.Runs), "cancelled": counts["cancelled"], "alreadyCancelled": counts["already_cancelled"],
			"notCancellable": counts["not_cancellable"], "notFound": counts["not_found"], "failed": counts["failed"],
		},
		"results": results,
	})
}

// cancel cancels one run of many.
func cancel(ctx context.Context, runs Runs, id, reason string) (outcome string, o object) {
	o = object{"runId": id}
	rec, err := runs.Record(ctx, id, workflowd.Entry{{Type: history.RunCancelled, Reason: reason}})
	if err == nil {
		err = rec.Results[0].Err
	}
	switch {
	case err == nil && len(rec.Results[0].Events) == 0:
		outcome = "already_cancelled"
	case err == nil:
		outcome = "cancelled"
	case errors.Is(err, workflowd.ErrRunEnded):
		outcome, o["status"] = "not_cancellable", string(rec.Run.Status)
	case cay.CodeOf(err) == cay.NotFound:
		outcome = "not_found"
	default:
		outcome, o["code"], o["retryable"] = "failed", string(cay.CodeOf(err)), cay.CodeOf(err) == cay.Unavailable
	}
	o["outcome"] = outcome
	return outcome, o
}

func (h *handler) handleSteps(w http.ResponseWriter, r *http.Request) error {
	runs, run, err := h.run(r)
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
	log, err := wholeLog(r.Context(), runs, run.ID)
	if err != nil {
		return err
	}
	steps := stepObjects(viewOf(run), log, "", q.whole())
	if q.Get("sortOrder") == "desc" {
		slices.Reverse(steps)
	}
	return writeCBOR(w, pageOf(steps, from, limit))
}

// pageOf is the page of a list that begins at an index, which is its cursor.
func pageOf(all []object, from int64, limit int) object {
	from = min(max(from, 0), int64(len(all)))
	rest := all[from:]
	if len(rest) <= limit {
		return page(rest, "")
	}
	return page(rest[:limit], itoa(from+int64(limit)))
}

func (h *handler) handleStep(w http.ResponseWriter, r *http.Request) error {
	runs, run, err := h.run(r)
	if err != nil {
		return err
	}
	log, err := wholeLog(r.Context(), runs, run.ID)
	if err != nil {
		return err
	}
	id := r.PathValue("step")
	steps := stepObjects(viewOf(run), log, id, queryOf(r).whole())
	if len(steps) == 0 {
		return cay.Errorf(cay.NotFound, "run %s has no step %.100q", run.ID, id)
	}
	return writeCBOR(w, steps[0])
}
