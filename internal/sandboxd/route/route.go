// Package route serves a sandboxd.Service over HTTP. Each handler decodes, calls and
// encodes; it knows no engine, no row and no rule.
package route

import (
	"context"
	_ "embed"
	"net/http"
	"net/url"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

var (
	//go:embed openapi.json
	openAPI []byte
	//go:embed openapi_network.json
	networkAPI []byte
	//go:embed openapi_state.json
	stateAPI []byte
)

// routes holds the handlers of a Service. Each decodes, calls, and encodes.
type routes struct {
	svc    sandboxd.Service
	ending context.Context
}

// Mount registers the routes of sandboxes on mux, with their description. When the
// context ending ends, requests that only follow events end too, with its cause, which
// clients are told: they would never end otherwise, and a stopping server need not wait
// for them.
func Mount(mux *api.Mux, svc sandboxd.Service, ending context.Context) {
	h := &routes{svc, ending}
	mux.Describe(openAPI)
	mux.Describe(networkAPI)
	mux.Describe(stateAPI)

	mux.Handle("POST /v1/sandboxes", h.handleCreate)
	mux.Handle("GET /v1/sandboxes", h.follows(h.handleList))
	mux.Handle("GET /v1/sandboxes/{ref}", h.handleGet)
	mux.Handle("PATCH /v1/sandboxes/{ref}", h.handleUpdate)
	mux.Handle("DELETE /v1/sandboxes/{ref}", h.handleDelete)
	mux.Handle("POST /v1/sandboxes/{ref}/extend", h.handleExtend)
	mux.Handle("POST /v1/sandboxes/{ref}/stop", h.handleStop)
	mux.Handle("POST /v1/sandboxes/{ref}/pause", h.handlePause)
	mux.Handle("POST /v1/sandboxes/{ref}/resume", h.handleResume)
	mux.Handle("POST /v1/sandboxes/{ref}/hibernate", h.handleHibernate)
	mux.Handle("POST /v1/sandboxes/{ref}/fork", h.handleFork)
	mux.Handle("GET /v1/sandboxes/{ref}/sessions", h.handleSessions)
	mux.Handle("POST /v1/sandboxes/{ref}/snapshots", h.handleCreateSnapshot)
	mux.Handle("GET /v1/sandboxes/{ref}/stats", h.follows(h.handleStats))

	mux.Handle("GET /v1/sandboxes/{ref}/flows", h.follows(h.handleFlows))
	mux.Handle("POST /v1/sandboxes/{ref}/ports/{port}/links", h.handleCreateLink)
	mux.Handle("GET /v1/sandboxes/{ref}/ports/{port}/connect", h.handleConnect)

	mux.Handle("GET /v1/sandboxes/{ref}/outbound", h.follows(h.handleOutbound))
	mux.Handle("GET /v1/sandboxes/{ref}/outbound/{outbound}/connect", h.handleTakeOutbound)
	mux.Handle("POST /v1/sandboxes/{ref}/outbound/{outbound}/decline", h.handleDeclineOutbound)
	mux.Handle("GET /v1/network/authority", h.handleAuthority)

	mux.Handle("POST /v1/sandboxes/{ref}/commands", h.handleStart)
	mux.Handle("GET /v1/sandboxes/{ref}/commands", h.follows(h.handleListCommands))
	mux.Handle("GET /v1/sandboxes/{ref}/commands/{id}", h.handleGetCommand)
	mux.Handle("GET /v1/sandboxes/{ref}/commands/{id}/wait", h.follows(h.handleWait))
	mux.Handle("POST /v1/sandboxes/{ref}/commands/{id}/signal", h.handleSignal)
	mux.Handle("GET /v1/sandboxes/{ref}/commands/{id}/output", h.follows(h.handleOutput))
	mux.Handle("POST /v1/sandboxes/{ref}/commands/{id}/stdin", h.handleStdin)
	mux.Handle("POST /v1/sandboxes/{ref}/commands/{id}/resize", h.handleResize)
	mux.Handle("GET /v1/sandboxes/{ref}/commands/{id}/terminal", h.follows(h.handleTerminal))

	mux.Handle("GET /v1/sandboxes/{ref}/files/content", h.handleReadFile)
	mux.Handle("PUT /v1/sandboxes/{ref}/files/content", h.handleWriteFile)
	mux.Handle("GET /v1/sandboxes/{ref}/files/stat", h.handleStat)
	mux.Handle("GET /v1/sandboxes/{ref}/files/list", h.handleReadDir)
	mux.Handle("GET /v1/sandboxes/{ref}/files/glob", h.handleGlob)
	mux.Handle("POST /v1/sandboxes/{ref}/files/mkdir", h.handleMkdir)
	mux.Handle("POST /v1/sandboxes/{ref}/files/rename", h.handleRename)
	mux.Handle("POST /v1/sandboxes/{ref}/files/copy", h.handleCopy)
	mux.Handle("POST /v1/sandboxes/{ref}/files/remove", h.handleRemove)
	mux.Handle("POST /v1/sandboxes/{ref}/files/symlink", h.handleSymlink)
	mux.Handle("POST /v1/sandboxes/{ref}/files/chmod", h.handleChmod)
	mux.Handle("PUT /v1/sandboxes/{ref}/files/archive", h.handleExtract)
	mux.Handle("GET /v1/sandboxes/{ref}/files/archive", h.handleArchive)
	mux.Handle("GET /v1/sandboxes/{ref}/files/watch", h.follows(h.handleWatch))

	mux.Handle("GET /v1/sessions", h.handleListSessions)
	mux.Handle("GET /v1/sessions/{id}", h.handleGetSession)

	mux.Handle("GET /v1/snapshots", h.handleListSnapshots)
	mux.Handle("POST /v1/snapshots", h.handleImportSnapshot)
	mux.Handle("POST /v1/snapshots/prune", h.handlePruneSnapshots)
	mux.Handle("GET /v1/snapshots/{ref}", h.handleGetSnapshot)
	mux.Handle("DELETE /v1/snapshots/{ref}", h.handleDeleteSnapshot)
	mux.Handle("GET /v1/snapshots/{ref}/tree", h.handleSnapshotTree)
	mux.Handle("GET /v1/snapshots/{ref}/export", h.handleExportSnapshot)

	mux.Handle("GET /v1/drives", h.handleListDrives)
	mux.Handle("POST /v1/drives", h.handleCreateDrive)
	mux.Handle("GET /v1/drives/{ref}", h.handleGetDrive)
	mux.Handle("DELETE /v1/drives/{ref}", h.handleDeleteDrive)
	mux.Handle("POST /v1/drives/{ref}/save", h.handleSaveDrive)

	mux.Handle("GET /v1/pools", h.handlePools)
}

// follows ends a handler's request when the server is about to stop.
func (h *routes) follows(handle api.Handler) api.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		r, end := api.EndWith(r, h.ending)
		defer end()
		return handle(w, r)
	}
}

func (h *routes) handleCreate(w http.ResponseWriter, r *http.Request) error {
	var p sandbox.CreateParams
	if err := api.NoQuery(r); err != nil {
		return err
	}
	if err := api.ReadJSON(w, r, &p); err != nil {
		return err
	}
	key, err := idempotencyKey(r)
	if err != nil {
		return err
	}
	p.IdempotencyKey = key
	sb, err := h.svc.Create(r.Context(), p)
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusCreated, sb)
}

// idempotencyKey returns the request's key: 1 to 255 visible ASCII characters, or "" if
// it has none.
func idempotencyKey(r *http.Request) (string, error) {
	values := r.Header.Values(wire.HeaderIdempotency)
	if len(values) == 0 {
		return "", nil
	}
	key := values[0]
	visible := func(c rune) bool { return c > ' ' && c < 0x7f }
	if len(values) > 1 || key == "" || len(key) > 255 || strings.ContainsFunc(key, func(c rune) bool { return !visible(c) }) {
		return "", cay.Errorf(cay.Invalid, "the %s header is not one key of 1 to 255 visible ASCII characters", wire.HeaderIdempotency)
	}
	return key, nil
}

func (h *routes) handleList(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	if q.Bool("follow") {
		return h.followList(w, r, q)
	}
	p := sandbox.ListParams{
		ProjectID: q.String("project"),
		Resumable: q.Bool("kept"),

		CreatedAfter:  q.Time("created_after"),
		CreatedBefore: q.Time("created_before"),

		NamePrefix: q.String("name_prefix"),
		Order:      sandbox.Order(q.String("order")),
		Ascending:  q.Bool("ascending"),
		Limit:      int(q.Int("limit", 1, 200, 0)),
		Cursor:     q.String("cursor"),
	}
	for _, s := range q.Strings("status", 16) {
		p.Status = append(p.Status, sandbox.Status(s))
	}
	tags := q.Strings("tag", 16)
	if err := q.Err(); err != nil {
		return err
	}
	for _, t := range tags {
		k, v, ok := strings.Cut(t, "=")
		k, err := url.PathUnescape(k) // a key may hold "=" itself, as %3D
		if !ok || err != nil || k == "" {
			return cay.Errorf(cay.Invalid, "query parameter %q is %q, not key=value", "tag", t)
		}
		if p.Tags == nil {
			p.Tags = make(map[string]string)
		}
		p.Tags[k] = v
	}
	page, err := h.svc.List(r.Context(), p)
	if err != nil {
		return err
	}
	return writePage(w, page)
}

// followList answers with the changes of the list, instead of the list.
func (h *routes) followList(w http.ResponseWriter, r *http.Request, q *api.Query) error {
	p := sandbox.ChangeParams{ProjectID: q.String("project")}
	if err := q.Err(); err != nil {
		return err
	}
	watch, err := h.svc.WatchSandboxes(r.Context(), p)
	if err != nil {
		return err
	}
	return api.ServeLines(w, r, watch, api.JSONLines[sandbox.Change]{})
}

// writePage writes a page whose items are an array even if there are no items.
func writePage[T any](w http.ResponseWriter, page *sandbox.Page[T]) error {
	out := *page
	if out.Items == nil {
		out.Items = []T{}
	}
	return api.WriteJSON(w, http.StatusOK, out)
}

func (h *routes) handleGet(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	resume := q.Bool("resume")
	if err := q.Err(); err != nil {
		return err
	}
	ref := r.PathValue("ref")
	if resume {
		if _, err := h.svc.Resume(r.Context(), ref, sandbox.ResumeParams{}); err != nil {
			return err
		}
	}
	sb, err := h.svc.Get(r.Context(), ref)
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, sb)
}

func (h *routes) handleUpdate(w http.ResponseWriter, r *http.Request) error {
	var p sandbox.UpdateParams
	return h.answerJSON(w, r, &p, func() (any, error) { return h.svc.Update(r.Context(), r.PathValue("ref"), p) })
}

func (h *routes) handleDelete(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	p := sandbox.DeleteParams{KeepSnapshots: q.Bool("keep_snapshots")}
	if err := q.Err(); err != nil {
		return err
	}
	if err := h.svc.DeleteWith(r.Context(), r.PathValue("ref"), p); err != nil {
		return err
	}
	return api.NoContent(w)
}

func (h *routes) handleExtend(w http.ResponseWriter, r *http.Request) error {
	var p struct {
		Duration sandbox.Duration `json:"duration_ms"`
	}
	return h.answerJSON(w, r, &p, func() (any, error) { return h.svc.Extend(r.Context(), r.PathValue("ref"), p.Duration) })
}

func (h *routes) handleStop(w http.ResponseWriter, r *http.Request) error {
	return h.answer(w, r, func() (any, error) { return h.svc.Stop(r.Context(), r.PathValue("ref")) })
}

func (h *routes) handlePause(w http.ResponseWriter, r *http.Request) error {
	return h.answer(w, r, func() (any, error) { return h.svc.Pause(r.Context(), r.PathValue("ref")) })
}

func (h *routes) handleResume(w http.ResponseWriter, r *http.Request) error {
	if err := api.NoQuery(r); err != nil {
		return err
	}
	var p sandbox.ResumeParams
	if r.ContentLength != 0 {
		if err := api.ReadJSON(w, r, &p); err != nil {
			return err
		}
	}
	sb, err := h.svc.Resume(r.Context(), r.PathValue("ref"), p)
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, sb)
}

func (h *routes) handleStats(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	follow := q.Bool("follow")
	if err := q.Err(); err != nil {
		return err
	}
	if follow {
		watch, err := h.svc.WatchStats(r.Context(), r.PathValue("ref"))
		if err != nil {
			return err
		}
		return api.ServeLines(w, r, watch, api.JSONLines[sandbox.Stats]{})
	}
	st, err := h.svc.Stats(r.Context(), r.PathValue("ref"))
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, st)
}

// answer serves a route that takes nothing but its path.
func (h *routes) answer(w http.ResponseWriter, r *http.Request, call func() (any, error)) error {
	if err := api.NoQuery(r); err != nil {
		return err
	}
	v, err := call()
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, v)
}

// answerJSON serves a route that takes a JSON body, read into p before call.
func (h *routes) answerJSON(w http.ResponseWriter, r *http.Request, p any, call func() (any, error)) error {
	if err := api.NoQuery(r); err != nil {
		return err
	}
	if err := api.ReadJSON(w, r, p); err != nil {
		return err
	}
	return h.answer(w, r, call)
}

// done serves a route without a request body and without a response body.
func (h *routes) done(w http.ResponseWriter, r *http.Request, call func() error) error {
	if err := api.NoQuery(r); err != nil {
		return err
	}
	if err := call(); err != nil {
		return err
	}
	return api.NoContent(w)
}

// doneJSON serves a route with a JSON body and without a response body.
func (h *routes) doneJSON(w http.ResponseWriter, r *http.Request, p any, call func() error) error {
	if err := api.NoQuery(r); err != nil {
		return err
	}
	if err := api.ReadJSON(w, r, p); err != nil {
		return err
	}
	if err := call(); err != nil {
		return err
	}
	return api.NoContent(w)
}
