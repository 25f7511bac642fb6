package vercelworkflow

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/workflow"
)

// handlePost appends one event.
func (h *handler) handlePost(w http.ResponseWriter, r *http.Request) error {
	runs, err := h.runs(r)
	if err != nil {
		return err
	}
	b, free, err := h.readBody(w, r, maxFrame+maxMeta)
	if err != nil {
		return err
	}
	defer free()
	var m meta
	body, rest, err := takeFrame(b, &m)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return cay.Errorf(cay.Invalid, "there are %d bytes behind the frame", len(rest))
	}
	if typ := r.PathValue("type"); typ != "" && m.EventType == "" {
		m.EventType = typ
	}
	rec, err := record(r.Context(), runs, r.PathValue("run"), &m, body)
	if err != nil {
		return err
	}
	ev := storedEvent(rec, &m)
	head := w.Header()
	head.Set("X-Wf-Event-Id", eventID(viewOf(&rec.Run), ev))
	head.Set("X-Wf-Run-Id", rec.Run.ID)
	head.Set("X-Wf-Created-At", at(ev.At).Format(time.RFC3339Nano))
	if !m.SkipPreload && ev.Type == history.RunStarted && strings.Contains(r.Header.Get("Accept"), frameType) {
		head.Set("X-Wf-Max-Events", strconv.Itoa(workflowd.MaxExternalEvents))
		return writeLog(w, viewOf(&rec.Run), rec)
	}
	o := answer(rec, 0, ev, &m)
	if m.SinceCursor != "" {
		if err := delta(o, rec, m.SinceCursor); err != nil {
			return err
		}
	}
	return writeCBOR(w, o)
}

// record has the engine append what a frame asks for.
func record(ctx context.Context, runs Runs, run string, m *meta, body []byte) (*workflowd.Recorded, error) {
	if m.EventType == "run_created" {
		rec, err := create(ctx, runs, run, m, body)
		if err != nil {
			return nil, refused(history.RunCreated, err)
		}
		return rec, nil
	}
	entry, err := entryOf(m, body)
	if err != nil {
		return nil, err
	}
	rec, err := runs.Record(ctx, run, entry)
	if cay.CodeOf(err) == cay.NotFound && m.EventType == "run_started" && m.WorkflowName != "" {
		// Its run_created was lost, or is on its way.
		if _, err := create(ctx, runs, run, m, body); err != nil && cay.CodeOf(err) != cay.Conflict {
			return nil, err
		}
		rec, err = runs.Record(ctx, run, entry)
	}
	if err == nil {
		err = rec.Results[0].Err
	}
	if err != nil {
		return nil, refused(entry[len(entry)-1].Type, err)
	}
	return rec, nil
}

// create creates the run that a frame describes. Errors: invalid; conflict.
func create(ctx context.Context, runs Runs, run string, m *meta, body []byte) (*workflowd.Recorded, error) {
	if m.DeploymentID == "" || m.WorkflowName == "" {
		return nil, cay.Errorf(cay.Invalid, "a run needs deploymentId and workflowName")
	}
	for name := range m.Attributes {
		if strings.HasPrefix(name, "$") && !m.AllowReserved {
			return nil, cay.Errorf(cay.Invalid, "attribute %.40q: names that begin with $ are reserved", name)
		}
	}
	kept, err := extraOf(m)
	if err != nil {
		return nil, err
	}
	p := workflowd.ExternalRun{
		NewRun: workflow.NewRun{
			ID: run, Workflow: m.WorkflowName, Build: m.DeploymentID, Input: body, Attributes: m.Attributes,
		},
		Extra: kept, EventExtra: kept, At: timeOf(m),
	}
	if m.Attributes[retentionAttribute] == "0" {
		p.Retention = -1
	}
	return runs.Create(ctx, p)
}

// storedEvent is the event that answers a frame: the last event that was appended for it.
// If nothing was appended, an earlier event of the log says the same.
func storedEvent(rec *workflowd.Recorded, m *meta) *history.Event {
	if new := rec.Results[0].Events; len(new) > 0 {
		return &new[len(new)-1]
	}
	typ := types[m.EventType]
	for i := len(rec.Log) - 1; i >= 0; i-- {
		ev := &rec.Log[i]
		if ev.Type == typ && (m.ResumeID == "" || ev.Key == m.ResumeID) {
			return ev
		}
	}
	return &rec.Log[len(rec.Log)-1]
}

// answer is what became of an event: it, and what it is about.
func answer(rec *workflowd.Recorded, result int, ev *history.Event, m *meta) object {
	whole := m.RemoteRefBehavior == "resolve"
	r := viewOf(&rec.Run)
	o := object{"event": eventObject(r, ev, whole)}
	switch ev.Type {
	case history.RunCreated, history.RunStarted, history.RunCompleted, history.RunFailed, history.RunCancelled, history.AttrSet:
		o["run"] = runObject(r, ends(rec.Log), whole)
		if ev.Type == history.RunStarted {
			o["maxEvents"] = workflowd.MaxExternalEvents
		}
	case history.StepCreated, history.StepStarted, history.StepCompleted, history.StepFailed, history.StepRetrying:
		if steps := stepObjects(r, sinceCreated(rec.Log, ev.ID), ev.ID, whole); len(steps) > 0 {
			o["step"] = steps[0]
		}
		if len(rec.Results[result].Events) == 2 && ev.Type == history.StepStarted {
			o["stepCreated"] = true
		}
	case history.HookCreated:
		o["hook"] = hookObject(r, &history.Hook{
			Run: r.ID, ID: ev.ID, Project: r.Project, Token: ev.Token, Webhook: ev.Webhook, Metadata: ev.Payload, CreatedAt: ev.At,
		}, whole)
	case history.WaitCreated, history.WaitCompleted:
		if waits := waitObjects(r, sinceCreated(rec.Log, ev.ID), ev.ID); len(waits) > 0 {
			o["wait"] = waits[0]
		}
	}
	return o
}

// ends are the events of a log that have a run's input and its output.
func ends(log []history.Event) []history.Event {
	var found []history.Event
	for i := range log {
		switch log[i].Type {
		case history.RunCreated, history.RunCompleted, history.RunFailed:
			found = append(found, log[i])
		}
	}
	return found
}

// delta adds to an answer what the log has behind a cursor. Errors: invalid.
func delta(o object, rec *workflowd.Recorded, cursor string) error {
	since, err := slotOf(cursor)
	if err != nil {
		return err
	}
	r, events := viewOf(&rec.Run), []cbor.RawMessage{}
	whole := func(ev *history.Event) ([]byte, error) { return encoding.Marshal(eventObject(r, ev, true)) }
	for i := range rec.Log[min(since, int64(len(rec.Log))):] {
		b, err := rec.Memo.Get(inList, &rec.Log[since+int64(i)], whole)
		if err != nil {
			return err
		}
		events = append(events, b)
	}
	o["events"], o["hasMore"] = events, false
	o["cursor"] = "eid:" + eventID(r, &rec.Log[len(rec.Log)-1])
	return nil
}

// maxBatch is how many events a batch may have.
const maxBatch = 32

// handleBatch appends several events in one commit, and answers for each.
func (h *handler) handleBatch(w http.ResponseWriter, r *http.Request) error {
	runs, err := h.runs(r)
	if err != nil {
		return err
	}
	b, free, err := h.readBody(w, r, maxFrame+maxMeta)
	if err != nil {
		return err
	}
	defer free()
	var frames []*meta
	var entries []workflowd.Entry
	var of []int // the entry that a frame is part of
	for len(b) > 0 {
		m := new(meta)
		body, rest, err := takeFrame(b, m)
		if err != nil {
			return err
		}
		b = rest
		if len(frames) == maxBatch {
			return cay.Errorf(cay.Invalid, "a batch has at most %d events", maxBatch)
		}
		entry, err := entryOf(m, body)
		if err != nil {
			return err
		}
		if typ := entry[0].Type; typ == history.RunStarted || typ == history.HookCreated || typ == history.HookReceived || typ == history.AttrSet {
			return cay.Errorf(cay.Invalid, "%s cannot be part of a batch", m.EventType)
		}
		frames = append(frames, m)
		// A step that is created and started belongs to who could create it.
		if n := len(entries); n > 0 && entry[0].Type == history.StepStarted && len(entries[n-1]) == 1 &&
			entries[n-1][0].Type == history.StepCreated && entries[n-1][0].ID == entry[0].ID {
			entries[n-1] = append(entries[n-1], entry...)
		} else {
			entries = append(entries, entry)
		}
		of = append(of, len(entries)-1)
	}
	if len(frames) == 0 {
		return cay.Errorf(cay.Invalid, "the batch has no events")
	}
	rec, err := runs.Record(r.Context(), r.PathValue("run"), entries...)
	if err != nil {
		return err
	}
	results := make([]object, len(frames))
	for i, m := range frames {
		res, typ := &rec.Results[of[i]], types[m.EventType]
		if res.Err != nil {
			err := refused(typ, res.Err)
			results[i] = object{"status": statusOf(err), "error": string(cay.CodeOf(err)), "message": err.Error()}
			continue
		}
		ev := &rec.Log[len(rec.Log)-1]
		if at := slices.IndexFunc(res.Events, func(e history.Event) bool { return e.Type == typ }); at >= 0 {
			ev = &res.Events[at]
		}
		results[i] = answer(rec, of[i], ev, m)
		results[i]["status"] = http.StatusOK
	}
	return writeCBOR(w, object{"results": results})
}

// isOld reports whether a request is of the 4.7 line, which knows by next that there are
// more events. The 5.0 line wants next at the end, too.
func isOld(r *http.Request) bool {
	return strings.HasPrefix(r.Header.Get("User-Agent"), "@workflow/world-vercel/4.")
}

// handleEvents answers with a run's log, or a page of it.
func (h *handler) handleEvents(w http.ResponseWriter, r *http.Request) error {
	runs, err := h.runs(r)
	if err != nil {
		return err
	}
	q := queryOf(r)
	limit, err := q.limit(maxPage)
	if err != nil {
		return err
	}
	id := r.PathValue("run")
	run, err := runs.GetRun(r.Context(), id)
	if err != nil {
		return err
	}
	page := logPage{run: viewOf(run), whole: q.whole(), old: isOld(r), all: q.Get("returnAll") == "true", limit: limit}
	if cursor := q.Get("cursor"); cursor != "" {
		if page.cursor, err = slotOf(cursor); err != nil {
			return err
		}
	}
	if q.Get("sortOrder") == "desc" {
		return page.writeBackwards(r.Context(), w, runs)
	}
	return page.write(r.Context(), w, runs)
}

// logPage is a part of a run's log to be answered with.
type logPage struct {
	run    view
	cursor int64 // slot of the event before it, 0 for none
	limit  int
	all    bool // the limit is of what is read at a time
	whole  bool
	old    bool
}

// write answers with the events behind the cursor.
func (p *logPage) write(ctx context.Context, w http.ResponseWriter, runs Runs) error {
	part, err := runs.ReadLog(ctx, p.run.ID, p.cursor+1, p.limit)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", frameType)
	last := p.cursor
	for {
		if err := writeFrames(w, p.run, part.Events, part.Memo, p.whole); err != nil {
			return err
		}
		if n := len(part.Events); n > 0 {
			last = part.Events[n-1].Slot
		}
		if !part.More || !p.all {
			break
		}
		if part, err = runs.ReadLog(ctx, p.run.ID, last+1, p.limit); err != nil {
			return err
		}
	}
	return p.end(w, last, part.More)
}

// writeBackwards answers with the events before the cursor, the last first.
func (p *logPage) writeBackwards(ctx context.Context, w http.ResponseWriter, runs Runs) error {
	before := p.run.Events + 1
	if p.cursor > 0 {
		before = min(p.cursor, before)
	}
	from := max(before-int64(p.limit), 1)
	var events []history.Event
	var memo *workflowd.Memo
	for at := from; at < before; {
		part, err := runs.ReadLog(ctx, p.run.ID, at, int(before-at))
		if err != nil {
			return err
		}
		n := len(part.Events)
		if n == 0 {
			break
		}
		events, memo = append(events, part.Events...), part.Memo
		at = part.Events[n-1].Slot + 1
	}
	slices.Reverse(events)
	w.Header().Set("Content-Type", frameType)
	if err := writeFrames(w, p.run, events, memo, p.whole); err != nil {
		return err
	}
	return p.end(w, from, from > 1)
}

// end writes the frame that ends a page whose last event has a slot.
func (p *logPage) end(w http.ResponseWriter, last int64, more bool) error {
	end := object{"_end": 1, "hasMore": more}
	if last > 0 && (more || !p.old) {
		end["next"] = "eid:" + eventID(p.run, &history.Event{Slot: last})
	}
	b, err := appendFrame(nil, end, nil)
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

// The forms in which an event is kept: its fields in a frame, and the event with its payload.
const (
	inFrame = iota
	inList
)

// writeFrames writes events, each as a frame. The fields of an event in its frame are the
// same each time, and memo keeps them.
func writeFrames(w http.ResponseWriter, r view, events []history.Event, memo *workflowd.Memo, whole bool) error {
	fields := func(ev *history.Event) ([]byte, error) { return encoding.Marshal(eventObject(r, ev, false)) }
	var b []byte
	for i := range events {
		var body []byte
		if whole {
			body = payloadOf(&events[i])
		}
		head, err := memo.Get(inFrame, &events[i], fields)
		if err != nil {
			return err
		}
		b = appendBytes(appendBytes(b, head), body)
		if len(b) > 1<<20 {
			if _, err := w.Write(b); err != nil {
				return err
			}
			b = b[:0]
		}
	}
	_, err := w.Write(b)
	return err
}

// writeLog answers with a whole log.
func writeLog(w http.ResponseWriter, r view, rec *workflowd.Recorded) error {
	w.Header().Set("Content-Type", frameType)
	if err := writeFrames(w, r, rec.Log, rec.Memo, true); err != nil {
		return err
	}
	p := logPage{run: r}
	return p.end(w, rec.Log[len(rec.Log)-1].Slot, false)
}

// handleEvent answers with one event.
func (h *handler) handleEvent(w http.ResponseWriter, r *http.Request) error {
	runs, err := h.runs(r)
	if err != nil {
		return err
	}
	slot, err := slotOf(r.PathValue("event"))
	if err != nil {
		return err
	}
	run, err := runs.GetRun(r.Context(), r.PathValue("run"))
	if err != nil {
		return err
	}
	part, err := runs.ReadLog(r.Context(), run.ID, slot, 1)
	if err != nil {
		return err
	}
	if len(part.Events) == 0 || part.Events[0].Slot != slot {
		return cay.Errorf(cay.NotFound, "run %s has no event %.60q", run.ID, r.PathValue("event"))
	}
	w.Header().Set("Content-Type", frameType)
	return writeFrames(w, viewOf(run), part.Events, part.Memo, queryOf(r).whole())
}

// handleCorrelated answers with the events of one step, hook or wait.
func (h *handler) handleCorrelated(w http.ResponseWriter, r *http.Request) error {
	runs, err := h.runs(r)
	if err != nil {
		return err
	}
	q := queryOf(r)
	id, correlation := q.Get("runId"), q.Get("correlationId")
	if id == "" || correlation == "" {
		return cay.Errorf(cay.Invalid, "runId and correlationId are needed: ids of steps, hooks and waits are of one run")
	}
	run, err := runs.GetRun(r.Context(), id)
	if err != nil {
		return err
	}
	log, err := wholeLog(r.Context(), runs, id)
	if err != nil {
		return err
	}
	var found []history.Event
	for i := range log {
		if log[i].ID == correlation && log[i].Type != history.RunCreated {
			found = append(found, log[i])
		}
	}
	if q.Get("sortOrder") == "desc" {
		slices.Reverse(found)
	}
	w.Header().Set("Content-Type", frameType)
	if err := writeFrames(w, viewOf(run), found, nil, q.whole()); err != nil {
		return err
	}
	p := logPage{run: viewOf(run), old: isOld(r)}
	last := int64(0)
	if len(found) > 0 {
		last = found[len(found)-1].Slot
	}
	return p.end(w, last, false)
}

// wholeLog reads the log of a run. It must not be written to.
func wholeLog(ctx context.Context, runs Runs, run string) ([]history.Event, error) {
	part, err := runs.ReadLog(ctx, run, 1, maxPage)
	if err != nil {
		return nil, err
	}
	log := slices.Clip(part.Events)
	for part.More {
		if part, err = runs.ReadLog(ctx, run, int64(len(log))+1, maxPage); err != nil {
			return nil, err
		}
		log = append(log, part.Events...)
	}
	return log, nil
}
