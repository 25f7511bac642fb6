package vercelsandbox

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// The older protocol has one object, the sandbox, which is our sandbox under its id,
// or one of its sessions. The older protocol resumes nothing, so all its calls act
// on a session.

type v1Sandbox struct {
	Sandbox sessionObject `json:"sandbox"`
}

// v1Session returns the session for an id: the newest session of a sandbox, or a
// session.
func (h *handler) v1Session(ctx context.Context, id string) (*sandbox.Session, *sandbox.Sandbox, error) {
	if !strings.HasPrefix(id, sandboxPrefix) {
		if strings.HasPrefix(id, sessionPrefix) {
			return h.session(ctx, id)
		}
		return nil, nil, cay.Errorf(cay.NotFound, "sandbox %.100q not found", id)
	}
	sb, err := h.Sandboxes.Get(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	s, err := h.Sandboxes.GetSession(ctx, sb.SessionID)
	if err != nil {
		return nil, nil, err
	}
	return s, sb, nil
}

func (h *handler) handleV1Create(w http.ResponseWriter, r *http.Request) error {
	var q createRequest
	if err := readJSON(w, r, &q); err != nil {
		return err
	}
	q.readStep(r.Header)
	// The older protocol has no names, nor the settings that came with names.
	q.Name, q.Persistent, q.KeepLastSnapshots, q.Mounts = "", new(false), nil, nil
	return h.padded(w, r, func(ctx context.Context) (int, any, error) {
		sb, err := h.createSandbox(ctx, &q, false)
		if err != nil {
			return 0, nil, err
		}
		s, err := h.Sandboxes.GetSession(ctx, sb.SessionID)
		if err != nil {
			return 0, nil, err
		}
		return http.StatusOK, h.v1Answer(s, sb, true), nil
	})
}

// v1WithRoutes is a sandbox with the URLs of its ports.
type v1WithRoutes struct {
	v1Sandbox
	Routes []routeObject `json:"routes"`
}

func (h *handler) v1Answer(s *sandbox.Session, sb *sandbox.Sandbox, system bool) v1WithRoutes {
	return v1WithRoutes{v1Sandbox{h.v1Object(s, sb)}, routeObjects(sb, system)}
}

func (h *handler) handleV1Get(w http.ResponseWriter, r *http.Request) error {
	s, sb, err := h.v1Session(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, h.v1Answer(s, sb, r.URL.Query().Get("__includeSystemRoutes") == "true"))
}

// v1List reads a page of a list that goes by time. fetch returns a page of at most
// limit items that are older than until and newer than since. Items of the same
// millisecond stay on one page, so a page may be a little longer than limit.
func v1List[T any](q url.Values, created func(*T) time.Time, fetch func(since, until time.Time, limit int, cursor string) (*sandbox.Page[T], error)) ([]T, v1Pagination, error) {
	var none v1Pagination
	since, err := v1Time("since", q.Get("since"))
	if err != nil {
		return nil, none, err
	}
	until, err := v1Time("until", q.Get("until"))
	if err != nil {
		return nil, none, err
	}
	l, err := readList(q)
	if err != nil {
		return nil, none, err
	}
	page, err := fetch(since, until, l.limit, "")
	if err != nil {
		return nil, none, err
	}
	items, next := page.Items, page.Next
	for next != "" {
		if page, err = fetch(since, until, 1, next); err != nil {
			return nil, none, err
		}
		if len(page.Items) == 0 || created(&page.Items[0]).UnixMilli() != created(&items[len(items)-1]).UnixMilli() {
			break
		}
		items, next = append(items, page.Items...), page.Next
	}
	p := v1Pagination{Count: len(items)}
	if len(items) > 0 {
		prev := created(&items[0]).UnixMilli()
		p.Prev = &prev
		if next != "" {
			oldest := created(&items[len(items)-1]).UnixMilli()
			p.Next = &oldest
		}
	}
	return items, p, nil
}

func (h *handler) handleV1List(w http.ResponseWriter, r *http.Request) error {
	items, p, err := v1List(r.URL.Query(), func(sb *sandbox.Sandbox) time.Time { return sb.CreatedAt },
		func(since, until time.Time, limit int, cursor string) (*sandbox.Page[sandbox.Sandbox], error) {
			return h.Sandboxes.List(r.Context(), sandbox.ListParams{CreatedAfter: since, CreatedBefore: until, Limit: limit, Cursor: cursor})
		})
	if err != nil {
		return err
	}
	sandboxes := make([]sessionObject, 0, len(items))
	for i := range items {
		s, err := h.Sandboxes.GetSession(r.Context(), items[i].SessionID)
		if cay.CodeOf(err) == cay.NotFound { // deleted since
			continue
		}
		if err != nil {
			return err
		}
		sandboxes = append(sandboxes, h.v1Object(s, &items[i]))
	}
	p.Count = len(sandboxes)
	return writeJSON(w, http.StatusOK, struct {
		Sandboxes  []sessionObject `json:"sandboxes"`
		Pagination v1Pagination    `json:"pagination"`
	}{sandboxes, p})
}

func (h *handler) handleV1Stop(w http.ResponseWriter, r *http.Request) error {
	s, _, err := h.v1Session(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	return h.padded(w, r, func(ctx context.Context) (int, any, error) {
		s, sb, err := h.stop(ctx, s)
		if err != nil {
			return 0, nil, err
		}
		return http.StatusOK, v1Sandbox{h.v1Object(s, sb)}, nil
	})
}

func (h *handler) handleV1NetworkPolicy(w http.ResponseWriter, r *http.Request) error {
	s, sb, err := h.v1Session(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	o, err := h.setNetwork(w, r, s.ID)
	if err != nil {
		return err
	}
	o.ID = sb.ID
	return writeJSON(w, http.StatusOK, v1Sandbox{*o})
}

func (h *handler) handleV1Extend(w http.ResponseWriter, r *http.Request) error {
	s, sb, err := h.v1Session(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	o, err := h.extend(w, r, s.ID)
	if err != nil {
		return err
	}
	o.ID = sb.ID
	return writeJSON(w, http.StatusOK, v1Sandbox{*o})
}

func (h *handler) handleV1Snapshot(w http.ResponseWriter, r *http.Request) error {
	expiration, err := readExpiration(w, r)
	if err != nil {
		return err
	}
	s, sb, err := h.v1Session(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	return h.paddedAs(w, r, http.StatusCreated, func(ctx context.Context) (int, any, error) {
		snap, err := h.save(ctx, s.ID, expiration)
		if err != nil {
			return 0, nil, err
		}
		o, err := h.reread(ctx, s.ID)
		if err != nil {
			return 0, nil, err
		}
		o.ID = sb.ID
		return http.StatusCreated, struct {
			Snapshot v1Snapshot `json:"snapshot"`
			v1Sandbox
		}{newV1Snapshot(snap), v1Sandbox{*o}}, nil
	})
}

func (h *handler) handleV1ListSnapshots(w http.ResponseWriter, r *http.Request) error {
	items, p, err := v1List(r.URL.Query(), func(s *sandbox.Snapshot) time.Time { return s.CreatedAt },
		func(since, until time.Time, limit int, cursor string) (*sandbox.Page[sandbox.Snapshot], error) {
			return h.Sandboxes.ListSnapshots(r.Context(), sandbox.SnapshotListParams{Deleted: true, CreatedAfter: since, CreatedBefore: until, Limit: limit, Cursor: cursor})
		})
	if err != nil {
		return err
	}
	snapshots := make([]v1Snapshot, 0, len(items))
	for i := range items {
		snapshots = append(snapshots, newV1Snapshot(&items[i]))
	}
	return writeJSON(w, http.StatusOK, struct {
		Snapshots  []v1Snapshot `json:"snapshots"`
		Pagination v1Pagination `json:"pagination"`
	}{snapshots, p})
}

type v1SnapshotOnly struct {
	Snapshot v1Snapshot `json:"snapshot"`
}

func (h *handler) handleV1GetSnapshot(w http.ResponseWriter, r *http.Request) error {
	snap, err := h.Sandboxes.GetSnapshot(r.Context(), r.PathValue("snapshot"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, v1SnapshotOnly{newV1Snapshot(snap)})
}

func (h *handler) handleV1DeleteSnapshot(w http.ResponseWriter, r *http.Request) error {
	snap, err := h.deleteSnapshot(r)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, v1SnapshotOnly{newV1Snapshot(snap)})
}
