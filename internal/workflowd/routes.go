package workflowd

import (
	"context"
	_ "embed"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/sync/semaphore"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd/protocol"
	"github.com/cayhq/cay/workflow"
)

//go:embed openapi_workflow.json
var openAPI []byte

const (
	// maxBody bounds a JSON body with a payload: 100 MiB in base64, and the other fields.
	maxBody = 140 << 20
	// smallBody is the largest body that is read without waiting for room.
	smallBody = 1 << 20
	// roomForBodies bounds the bytes of large bodies held concurrently.
	roomForBodies = 4 * maxBody
	// maxPage is the most items of one page.
	maxPage = 1000
)

// Backends returns the backend of each project. *Engine implements it.
type Backends interface {
	// For returns the backend for a project's programs; an embedded engine has only the
	// project "". It always succeeds; closing the backend does nothing.
	For(project string) workflow.Backend
}

// Routes are the handlers of an engine's HTTP API. Each decodes a request, calls the
// backend, and encodes the answer.
type Routes struct {
	backends Backends
	accounts api.Projects // nil: there is one project, which every caller may use
	room     *semaphore.Weighted

	// Readable, if set before serving, converts payloads of other languages to JSON: see
	// Runtime.
	Readable func(payload []byte) []byte
	workers  workers
}

// NewRoutes registers the workflow routes on mux, with their descriptions. accounts is
// nil for an embedded engine. Close the Routes before the engine, and after the server
// has stopped taking requests.
func NewRoutes(mux *api.Mux, backends Backends, accounts api.Projects) *Routes {
	h := &Routes{backends: backends, accounts: accounts, room: semaphore.NewWeighted(roomForBodies)}
	mux.Describe(openAPI)

	mux.Handle("POST /v1/workflows/runs", h.handleStart)
	mux.Handle("GET /v1/workflows/runs", h.handleList)
	mux.Handle("GET /v1/workflows/runs/changes", h.handleWatch)
	mux.Handle("GET /v1/workflows/runs/counts", h.handleCount)
	mux.Handle("POST /v1/workflows/runs/cancel", h.handleCancelMany)
	mux.Handle("GET /v1/workflows/runs/{id}", h.handleGet)
	mux.Handle("PATCH /v1/workflows/runs/{id}", h.handleUpdate)
	mux.Handle("DELETE /v1/workflows/runs/{id}", h.handleDelete)
	mux.Handle("GET /v1/workflows/runs/{id}/wait", h.handleWait)
	mux.Handle("GET /v1/workflows/runs/{id}/events", h.handleEvents)
	mux.Handle("GET /v1/workflows/runs/{id}/timeline", h.handleTimeline)
	mux.Handle("POST /v1/workflows/runs/{id}/cancel", h.handleCancel)
	mux.Handle("POST /v1/workflows/runs/{id}/wake", h.handleWake)
	mux.Handle("POST /v1/workflows/runs/{id}/rerun", h.handleRerun)
	mux.Handle("GET /v1/workflows/runs/{id}/streams", h.handleListStreams)
	mux.Handle("GET /v1/workflows/runs/{id}/stream", h.handleReadStream)
	mux.Handle("POST /v1/workflows/runs/{id}/stream", h.handleWriteStream)

	mux.Handle("GET /v1/workflows/hooks", h.handleListHooks)
	mux.Handle("POST /v1/workflows/hooks/resume", h.handleResume)

	mux.Handle("GET /v1/workflows/schedules", h.handleListSchedules)
	mux.Handle("PUT /v1/workflows/schedules/{id}", h.handlePutSchedule)
	mux.Handle("PATCH /v1/workflows/schedules/{id}", h.handleUpdateSchedule)
	mux.Handle("DELETE /v1/workflows/schedules/{id}", h.handleDeleteSchedule)

	mux.Handle("GET /v1/workflows/limits", h.handleListLimits)
	mux.Handle("PUT /v1/workflows/limits", h.handlePutLimit)
	mux.Handle("DELETE /v1/workflows/limits", h.handleDeleteLimit)

	mux.Handle("GET /v1/workflows/attach", h.handleAttach)

	mux.HandlePublic(workflow.WebhookPath+"{token}", h.handleWebhook)
	return h
}

// Close ends the sessions of workers, because the server does not track their hijacked
// connections.
func (h *Routes) Close() { h.workers.close() }

// Project returns the project of a request; see api.Principal.Project.
func (h *Routes) Project(ctx context.Context, requested string) (string, error) {
	if h.accounts == nil {
		if requested != "" {
			return "", cay.Errorf(cay.NotFound, "project %q not found", requested).WithHint("a database of a program's own has no projects")
		}
		return "", nil
	}
	p, err := api.RequirePrincipal(ctx)
	if err != nil {
		return "", err
	}
	return p.Project(ctx, h.accounts, requested)
}

// backend returns the backend of the request's project. It also checks q, so take all
// other parameters first.
func (h *Routes) backend(r *http.Request, q *api.Query) (workflow.Backend, error) {
	asked := q.String("project")
	if err := q.Err(); err != nil {
		return nil, err
	}
	project, err := h.Project(r.Context(), asked)
	if err != nil {
		return nil, err
	}
	b := h.backends.For(project)
	if h.Readable != nil {
		b = readable{b, h.Readable}
	}
	return b, nil
}

// answer serves a route without parameters other than its path.
func (h *Routes) answer(w http.ResponseWriter, r *http.Request, call func(ctx context.Context, b workflow.Backend) (any, error)) error {
	b, err := h.backend(r, api.ParseQuery(r))
	if err != nil {
		return err
	}
	v, err := call(r.Context(), b)
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, v)
}

// answerJSON serves a route with a JSON body, which is decoded into p before call.
func (h *Routes) answerJSON(w http.ResponseWriter, r *http.Request, p any, call func(ctx context.Context, b workflow.Backend) (any, error)) error {
	b, err := h.backend(r, api.ParseQuery(r))
	if err != nil {
		return err
	}
	if err := api.ReadJSON(w, r, p); err != nil {
		return err
	}
	v, err := call(r.Context(), b)
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, v)
}

// readPayload reads a JSON body that may be large. free returns the room that the body
// took.
func (h *Routes) readPayload(w http.ResponseWriter, r *http.Request, p any) (free func(), err error) {
	size := r.ContentLength
	switch {
	case size > maxBody:
		return nil, cay.Errorf(cay.TooLarge, "the request body has %d bytes, more than %d", size, maxBody)
	case size < 0:
		size = maxBody
	}
	free = func() {}
	if size > smallBody {
		if err := h.room.Acquire(r.Context(), size); err != nil {
			return nil, err
		}
		free = func() { h.room.Release(size) }
	}
	if err := api.ReadLargeJSON(w, r, p, max(size, 1)); err != nil {
		free()
		return nil, err
	}
	return free, nil
}

// page answers with items, as an array even if there are none.
func page[T any](w http.ResponseWriter, items []T, next string) error {
	if items == nil {
		items = []T{}
	}
	return api.WriteJSON(w, http.StatusOK, protocol.Page[T]{Items: items, Next: next})
}

// mapped returns the converted items.
func mapped[From, To any](items []From, convert func(*From) *To) []To {
	out := make([]To, len(items))
	for i := range items {
		out[i] = *convert(&items[i])
	}
	return out
}

func (h *Routes) handleStart(w http.ResponseWriter, r *http.Request) error {
	b, err := h.backend(r, api.ParseQuery(r))
	if err != nil {
		return err
	}
	var p protocol.Start
	free, err := h.readPayload(w, r, &p)
	if err != nil {
		return err
	}
	defer free()
	if p.Input == nil {
		p.Input = protocol.Exact("jsonnull") // distinguishes it from an input that is no longer kept
	}
	run, created, err := b.CreateRun(r.Context(), newRun(&p))
	if err != nil {
		return err
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	return api.WriteJSON(w, status, protocol.Started{Run: protocol.RunOf(run), Created: created})
}

// newRun converts p to a NewRun.
func newRun(p *protocol.Start) workflow.NewRun {
	return workflow.NewRun{
		ID: p.ID, Workflow: p.Workflow, Input: p.Input, Key: p.Key, Group: p.Group, Priority: p.Priority, Build: p.Build,
		Attributes: p.Attributes, StartAt: p.StartAt, Retention: protocol.Duration(p.RetentionMS),
	}
}

func (h *Routes) handleList(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	ascending, cursor, limit := q.Bool("ascending"), q.String("cursor"), int(q.Int("limit", 1, maxPage, 0))
	b, query, err := h.selection(r, q)
	if err != nil {
		return err
	}
	query.Ascending, query.Cursor, query.Limit = ascending, cursor, limit
	runs, err := b.ListRuns(r.Context(), query)
	if err != nil {
		return err
	}
	return page(w, mapped(runs.Items, protocol.RunOf), runs.Cursor)
}

func (h *Routes) handleGet(w http.ResponseWriter, r *http.Request) error {
	return h.answer(w, r, func(ctx context.Context, b workflow.Backend) (any, error) {
		return asRun(b.GetRun(ctx, r.PathValue("id")))
	})
}

// asRun converts a run to an answer.
func asRun(run *history.Run, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return protocol.RunOf(run), nil
}

func (h *Routes) handleUpdate(w http.ResponseWriter, r *http.Request) error {
	var p protocol.Update
	return h.answerJSON(w, r, &p, func(ctx context.Context, b workflow.Backend) (any, error) {
		return asRun(b.SetAttributes(ctx, r.PathValue("id"), p.Attributes))
	})
}

func (h *Routes) handleDelete(w http.ResponseWriter, r *http.Request) error {
	b, err := h.backend(r, api.ParseQuery(r))
	if err != nil {
		return err
	}
	if err := b.DeleteRun(r.Context(), r.PathValue("id")); err != nil {
		return err
	}
	return api.NoContent(w)
}

func (h *Routes) handleWait(w http.ResponseWriter, r *http.Request) error {
	b, err := h.backend(r, api.ParseQuery(r))
	if err != nil {
		return err
	}
	return api.ServeSlow(w, r, func(ctx context.Context) (any, error) {
		return asRun(b.WaitRun(ctx, r.PathValue("id")))
	})
}

func (h *Routes) handleCancel(w http.ResponseWriter, r *http.Request) error {
	var p protocol.Cancel
	return h.answerJSON(w, r, &p, func(ctx context.Context, b workflow.Backend) (any, error) {
		return asRun(b.CancelRun(ctx, r.PathValue("id"), workflow.CancelParams{Reason: p.Reason, Force: p.Force}))
	})
}

func (h *Routes) handleCancelMany(w http.ResponseWriter, r *http.Request) error {
	var p protocol.CancelMany
	return h.answerJSON(w, r, &p, func(ctx context.Context, b workflow.Backend) (any, error) {
		if p.Limit < 0 || p.Limit > maxCancel {
			return nil, cay.Errorf(cay.Invalid, "limit is %d, not 1 to %d", p.Limit, maxCancel)
		}
		if err := checkStatuses(p.Status); err != nil {
			return nil, err
		}
		results, err := b.CancelRuns(ctx, p.Query(), workflow.CancelParams{Reason: p.Reason, Force: p.Force})
		if err != nil {
			return nil, err
		}
		if results == nil {
			results = []workflow.CancelResult{}
		}
		return protocol.Page[workflow.CancelResult]{Items: results}, nil
	})
}

// maxCancel bounds the runs that one request cancels.
const maxCancel = 500

func (h *Routes) handleWake(w http.ResponseWriter, r *http.Request) error {
	var p protocol.Wake
	return h.answerJSON(w, r, &p, func(ctx context.Context, b workflow.Backend) (any, error) {
		n, err := b.WakeRun(ctx, r.PathValue("id"), p.Waits)
		return protocol.Woken{Count: n}, err
	})
}

func (h *Routes) handleRerun(w http.ResponseWriter, r *http.Request) error {
	var p protocol.Rerun
	return h.answerJSON(w, r, &p, func(ctx context.Context, b workflow.Backend) (any, error) {
		return asRun(b.RerunRun(ctx, r.PathValue("id"), workflow.RerunParams{Build: p.Build, Key: p.Key}))
	})
}

func (h *Routes) handleListHooks(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	byToken, token := q.Has("token"), q.String("token")
	run, cursor, limit := q.String("run"), q.String("cursor"), int(q.Int("limit", 1, maxPage, 0))
	b, err := h.backend(r, q)
	if err != nil {
		return err
	}
	if !byToken {
		hooks, err := b.ListHooks(r.Context(), run, cursor, limit)
		if err != nil {
			return err
		}
		return page(w, mapped(hooks.Items, protocol.HookOf), hooks.Cursor)
	}
	hook, err := b.GetHook(r.Context(), token)
	if cay.CodeOf(err) == cay.NotFound || err == nil && run != "" && hook.Run != run {
		return page[protocol.Hook](w, nil, "")
	}
	if err != nil {
		return err
	}
	return page(w, []protocol.Hook{*protocol.HookOf(hook)}, "")
}

func (h *Routes) handleResume(w http.ResponseWriter, r *http.Request) error {
	b, err := h.backend(r, api.ParseQuery(r))
	if err != nil {
		return err
	}
	var p protocol.Resume
	free, err := h.readPayload(w, r, &p)
	if err != nil {
		return err
	}
	defer free()
	hook, err := b.ResumeHook(r.Context(), workflow.ResumeParams{Token: p.Token, Payload: p.Payload, Key: p.Key, Webhook: p.Webhook})
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, protocol.HookOf(hook))
}

// handleWebhook serves the public URL of a webhook, with any method. Every caller that
// knows the token may call it; the URL is valid as long as the project exists.
func (h *Routes) handleWebhook(w http.ResponseWriter, r *http.Request) error {
	project := ""
	if h.accounts != nil {
		_, project, _ = strings.Cut(r.PathValue("token"), ".")
	}
	workflow.NewClient(h.backends.For(project), workflow.ClientOptions{}).WebhookHandler().ServeHTTP(&programAnswer{ResponseWriter: w, said: w.Header().Clone()}, r)
	return nil
}

// programAnswer is an answer written by a user's program, at the daemon's own origin,
// where people are logged in to the inspector. Headers that the daemon has set for
// browsers stay, whatever headers the program sets, and the program cannot set headers
// with lasting effects.
type programAnswer struct {
	http.ResponseWriter
	said  http.Header
	begun bool
}

// forbidden are headers that change the state that a browser keeps for the daemon's
// origin.
var forbidden = []string{"Set-Cookie", "Clear-Site-Data", "Strict-Transport-Security", "Service-Worker-Allowed"}

// WriteHeader implements http.ResponseWriter.
func (a *programAnswer) WriteHeader(status int) {
	a.begun = true
	h := a.Header()
	for name := range h {
		if canonical := http.CanonicalHeaderKey(name); a.said[canonical] != nil || slices.Contains(forbidden, canonical) {
			delete(h, name)
		}
	}
	maps.Copy(h, a.said)
	a.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (a *programAnswer) Write(p []byte) (int, error) {
	if !a.begun {
		a.WriteHeader(http.StatusOK)
	}
	return a.ResponseWriter.Write(p)
}

func (h *Routes) handleListSchedules(w http.ResponseWriter, r *http.Request) error {
	b, err := h.backend(r, api.ParseQuery(r))
	if err != nil {
		return err
	}
	schedules, err := b.ListSchedules(r.Context())
	if err != nil {
		return err
	}
	return page(w, mapped(schedules, protocol.ScheduleOf), "")
}

func (h *Routes) handlePutSchedule(w http.ResponseWriter, r *http.Request) error {
	b, err := h.backend(r, api.ParseQuery(r))
	if err != nil {
		return err
	}
	var p protocol.PutSchedule
	free, err := h.readPayload(w, r, &p)
	if err != nil {
		return err
	}
	defer free()
	s, err := b.PutSchedule(r.Context(), workflow.Schedule{
		ID: r.PathValue("id"), Workflow: p.Workflow, Cron: p.Cron, Zone: p.Zone, Input: p.Input, Overlap: p.Overlap, Paused: p.Paused,
	})
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, protocol.ScheduleOf(s))
}

func (h *Routes) handleUpdateSchedule(w http.ResponseWriter, r *http.Request) error {
	var p protocol.UpdateSchedule
	return h.answerJSON(w, r, &p, func(ctx context.Context, b workflow.Backend) (any, error) {
		s, err := b.UpdateSchedule(ctx, r.PathValue("id"), workflow.ScheduleUpdate{Cron: p.Cron, Zone: p.Zone, Overlap: p.Overlap, Paused: p.Paused})
		if err != nil {
			return nil, err
		}
		return protocol.ScheduleOf(s), nil
	})
}

func (h *Routes) handleDeleteSchedule(w http.ResponseWriter, r *http.Request) error {
	b, err := h.backend(r, api.ParseQuery(r))
	if err != nil {
		return err
	}
	if err := b.DeleteSchedule(r.Context(), r.PathValue("id")); err != nil {
		return err
	}
	return api.NoContent(w)
}

func (h *Routes) handleListLimits(w http.ResponseWriter, r *http.Request) error {
	b, err := h.backend(r, api.ParseQuery(r))
	if err != nil {
		return err
	}
	limits, err := b.ListLimits(r.Context())
	if err != nil {
		return err
	}
	return page(w, mapped(limits, protocol.LimitOf), "")
}

func (h *Routes) handlePutLimit(w http.ResponseWriter, r *http.Request) error {
	var p protocol.Limit
	return h.answerJSON(w, r, &p, func(ctx context.Context, b workflow.Backend) (any, error) {
		p.Project = ""
		l, err := b.PutLimit(ctx, *p.Limit())
		if err != nil {
			return nil, err
		}
		return protocol.LimitOf(l), nil
	})
}

func (h *Routes) handleDeleteLimit(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	name := q.String("workflow")
	b, err := h.backend(r, q)
	if err != nil {
		return err
	}
	if err := b.DeleteLimit(r.Context(), name); err != nil {
		return err
	}
	return api.NoContent(w)
}

// position reads the parameters of a position in a stream: from, and limit, the maximum
// number of items, 0 for all.
func position(q *api.Query, low int64, first int64) (from, limit int64) {
	return q.Int("from", low, math.MaxInt64, first), q.Int("limit", 1, math.MaxInt32, 0)
}
