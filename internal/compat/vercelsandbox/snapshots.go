package vercelsandbox

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

type snapshotOnly struct {
	Snapshot snapshotObject `json:"snapshot"`
}

func (h *handler) handleSnapshot(w http.ResponseWriter, r *http.Request) error {
	return h.snapshot(w, r, nil)
}

// handleSnapshotWeek keeps snapshots without a requested expiration for a week.
func (h *handler) handleSnapshotWeek(w http.ResponseWriter, r *http.Request) error {
	return h.snapshot(w, r, new(sandbox.Duration(7*24*time.Hour)))
}

// snapshot saves a session and ends it. byDefault is how long the snapshot is kept
// if neither the request nor the sandbox says; nil means the daemon's default.
func (h *handler) snapshot(w http.ResponseWriter, r *http.Request, byDefault *sandbox.Duration) error {
	expiration, err := readExpiration(w, r)
	if err != nil {
		return err
	}
	s, sb, err := h.session(r.Context(), r.PathValue("sid"))
	if err != nil {
		return err
	}
	if expiration == nil && sb.Annotations[noteExpiration] != "" {
		expiration = byDefault
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
		return http.StatusCreated, struct {
			snapshotOnly
			sessionOnly
		}{snapshotOnly{newSnapshotObject(snap)}, sessionOnly{*o}}, nil
	})
}

// readExpiration returns the expiration in a request for a snapshot.
func readExpiration(w http.ResponseWriter, r *http.Request) (*sandbox.Duration, error) {
	var q struct {
		Expiration *sandbox.Duration `json:"expiration"`
	}
	err := readJSON(w, r, &q)
	return q.Expiration, err
}

// save makes a snapshot of a session, which ends with it.
func (h *handler) save(ctx context.Context, session string, expiration *sandbox.Duration) (*sandbox.Snapshot, error) {
	defer h.snapshotting.add(session)()
	return h.Sandboxes.CreateSnapshot(ctx, session, sandbox.SnapshotParams{Stop: true, Expiration: expiration})
}

func (h *handler) handleListSnapshots(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	l, err := readList(q)
	if err != nil {
		return err
	}
	page, err := h.Sandboxes.ListSnapshots(r.Context(), sandbox.SnapshotListParams{
		Sandbox: q.Get("name"), Deleted: true, Ascending: l.ascending, Limit: l.limit, Cursor: l.cursor,
	})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, struct {
		Snapshots  []snapshotObject `json:"snapshots"`
		Pagination pagination       `json:"pagination"`
	}{snapshotObjects(page.Items), paginate(len(page.Items), page.Next)})
}

func snapshotObjects(all []sandbox.Snapshot) []snapshotObject {
	objects := make([]snapshotObject, 0, len(all))
	for i := range all {
		objects = append(objects, newSnapshotObject(&all[i]))
	}
	return objects
}

func (h *handler) handleGetSnapshot(w http.ResponseWriter, r *http.Request) error {
	snap, err := h.Sandboxes.GetSnapshot(r.Context(), r.PathValue("snapshot"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, snapshotOnly{newSnapshotObject(snap)})
}

func (h *handler) handleDeleteSnapshot(w http.ResponseWriter, r *http.Request) error {
	snap, err := h.deleteSnapshot(r)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, snapshotOnly{newSnapshotObject(snap)})
}

// deleteSnapshot deletes a snapshot even if a sandbox needs it for its next
// resume, which then fails with an error that says so.
func (h *handler) deleteSnapshot(r *http.Request) (*sandbox.Snapshot, error) {
	return h.Sandboxes.DeleteSnapshot(r.Context(), r.PathValue("snapshot"), sandbox.DeleteSnapshotParams{Force: true})
}

// treeNode is a snapshot with the newest other snapshots of the same parent.
type treeNode struct {
	Snapshot snapshotObject   `json:"snapshot"`
	Siblings []snapshotObject `json:"siblings"`
	Count    string           `json:"count"` // with the snapshot; "10+" if there are more
}

func newTreeNode(n *sandbox.SnapshotNode) treeNode {
	count := strconv.Itoa(n.Count)
	if n.Count > 10 {
		count = "10+"
	}
	return treeNode{Snapshot: newSnapshotObject(&n.Snapshot), Siblings: snapshotObjects(n.Siblings), Count: count}
}

func (h *handler) handleSnapshotTree(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	l, err := readList(q)
	switch {
	case err != nil:
		return err
	case q.Get("snapshotId") == "":
		return cay.Errorf(cay.Invalid, "snapshotId is missing")
	case l.limit > 10:
		return cay.Errorf(cay.Invalid, "limit %d is not 1 to 10", l.limit)
	}
	tree, err := h.Sandboxes.SnapshotTree(r.Context(), q.Get("snapshotId"), sandbox.SnapshotTreeParams{Descendants: l.ascending, Limit: l.limit})
	if err != nil {
		return err
	}
	nodes := make([]treeNode, 0, len(tree.Nodes))
	for i := range tree.Nodes {
		nodes = append(nodes, newTreeNode(&tree.Nodes[i]))
	}
	return writeJSON(w, http.StatusOK, struct {
		Snapshots  []treeNode `json:"snapshots"`
		Anchor     treeNode   `json:"anchor"`
		Pagination pagination `json:"pagination"`
	}{nodes, newTreeNode(&tree.Anchor), paginate(len(nodes), tree.Next)})
}
