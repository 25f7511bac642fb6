package route

import (
	"math"
	"net/http"
	"time"

	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

func (h *routes) handleHibernate(w http.ResponseWriter, r *http.Request) error {
	return h.answer(w, r, func() (any, error) { return h.svc.Hibernate(r.Context(), r.PathValue("ref")) })
}

func (h *routes) handleFork(w http.ResponseWriter, r *http.Request) error {
	var p sandbox.ForkParams
	if err := api.NoQuery(r); err != nil {
		return err
	}
	if err := api.ReadJSON(w, r, &p); err != nil {
		return err
	}
	f, err := h.svc.Fork(r.Context(), r.PathValue("ref"), p)
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusCreated, f)
}

func (h *routes) handleSessions(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	p := sandbox.SessionParams{Ascending: q.Bool("ascending"), Limit: int(q.Int("limit", 1, 200, 0)), Cursor: q.String("cursor")}
	if err := q.Err(); err != nil {
		return err
	}
	page, err := h.svc.Sessions(r.Context(), r.PathValue("ref"), p)
	if err != nil {
		return err
	}
	return writePage(w, page)
}

func (h *routes) handleListSessions(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	p := sandbox.SessionListParams{
		ProjectID: q.String("project"),
		Ascending: q.Bool("ascending"),
		Limit:     int(q.Int("limit", 1, 200, 0)),
		Cursor:    q.String("cursor"),
	}
	if err := q.Err(); err != nil {
		return err
	}
	page, err := h.svc.ListSessions(r.Context(), p)
	if err != nil {
		return err
	}
	return writePage(w, page)
}

func (h *routes) handleGetSession(w http.ResponseWriter, r *http.Request) error {
	return h.answer(w, r, func() (any, error) { return h.svc.GetSession(r.Context(), r.PathValue("id")) })
}

func (h *routes) handleCreateSnapshot(w http.ResponseWriter, r *http.Request) error {
	var p sandbox.SnapshotParams
	if err := api.NoQuery(r); err != nil {
		return err
	}
	if r.ContentLength != 0 {
		if err := api.ReadJSON(w, r, &p); err != nil {
			return err
		}
	}
	snap, err := h.svc.CreateSnapshot(r.Context(), r.PathValue("ref"), p)
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusCreated, snap)
}

func (h *routes) handleListSnapshots(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	p := sandbox.SnapshotListParams{
		ProjectID: q.String("project"),
		Sandbox:   q.String("sandbox"),
		Name:      q.String("name"),
		Deleted:   q.Bool("deleted"),

		CreatedAfter:  q.Time("created_after"),
		CreatedBefore: q.Time("created_before"),

		Ascending: q.Bool("ascending"),
		Limit:     int(q.Int("limit", 1, 200, 0)),
		Cursor:    q.String("cursor"),
	}
	if err := q.Err(); err != nil {
		return err
	}
	page, err := h.svc.ListSnapshots(r.Context(), p)
	if err != nil {
		return err
	}
	return writePage(w, page)
}

func (h *routes) handleGetSnapshot(w http.ResponseWriter, r *http.Request) error {
	return h.answer(w, r, func() (any, error) { return h.svc.GetSnapshot(r.Context(), r.PathValue("ref")) })
}

func (h *routes) handleDeleteSnapshot(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	p := sandbox.DeleteSnapshotParams{Force: q.Bool("force")}
	if err := q.Err(); err != nil {
		return err
	}
	snap, err := h.svc.DeleteSnapshot(r.Context(), r.PathValue("ref"), p)
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, snap)
}

func (h *routes) handlePruneSnapshots(w http.ResponseWriter, r *http.Request) error {
	var p sandbox.PruneSnapshotsParams
	return h.answerJSON(w, r, &p, func() (any, error) { return h.svc.PruneSnapshots(r.Context(), p) })
}

func (h *routes) handleSnapshotTree(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	p := sandbox.SnapshotTreeParams{Descendants: q.Bool("descendants"), Limit: int(q.Int("limit", 1, 100, 0))}
	if err := q.Err(); err != nil {
		return err
	}
	tree, err := h.svc.SnapshotTree(r.Context(), r.PathValue("ref"), p)
	if err != nil {
		return err
	}
	out := *tree
	out.Anchor = withSiblings(tree.Anchor)
	out.Nodes = make([]sandbox.SnapshotNode, len(tree.Nodes))
	for i, n := range tree.Nodes {
		out.Nodes[i] = withSiblings(n)
	}
	return api.WriteJSON(w, http.StatusOK, out)
}

// withSiblings returns n with an array of siblings even if there are no siblings.
func withSiblings(n sandbox.SnapshotNode) sandbox.SnapshotNode {
	if n.Siblings == nil {
		n.Siblings = []sandbox.Snapshot{}
	}
	return n
}

func (h *routes) handleExportSnapshot(w http.ResponseWriter, r *http.Request) error {
	if err := api.NoQuery(r); err != nil {
		return err
	}
	src, err := h.svc.ExportSnapshot(r.Context(), r.PathValue("ref"))
	if err != nil {
		return err
	}
	defer src.Close() // it was only read
	setForeign(w.Header(), wire.TypeBytes)
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	buf, free := api.Buffer()
	defer free()
	return api.Copy(w, nil, src, buf)
}

func (h *routes) handleImportSnapshot(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	p := sandbox.ImportParams{ProjectID: q.String("project"), Name: q.String("name"), Memory: q.Bool("memory")}
	ms := q.Int("expiration_ms", 0, math.MaxInt64/int64(time.Millisecond), 0)
	if q.Has("expiration_ms") {
		d := sandbox.Duration(ms) * sandbox.Duration(time.Millisecond)
		p.Expiration = &d
	}
	if err := q.Err(); err != nil {
		return err
	}
	snap, err := h.svc.ImportSnapshot(r.Context(), api.Body(w, r), p)
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusCreated, snap)
}

func (h *routes) handlePools(w http.ResponseWriter, r *http.Request) error {
	if err := api.NoQuery(r); err != nil {
		return err
	}
	if err := api.RequireAdmin(r.Context()); err != nil {
		return err
	}
	pools, err := h.svc.Pools(r.Context())
	if err != nil {
		return err
	}
	return writePage(w, &sandbox.Page[sandbox.Pool]{Items: pools})
}
