package vercelsandbox

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// sandboxAnswer is a sandbox with its newest session.
type sandboxAnswer struct {
	Sandbox sandboxObject `json:"sandbox"`
	Session sessionObject `json:"session"`
	Routes  []routeObject `json:"routes"`
	Resumed *bool         `json:"resumed,omitempty"`
}

// answer reads the newest session of a sandbox and returns both. system says
// whether our own routes are included.
func (h *handler) answer(ctx context.Context, sb *sandbox.Sandbox, system bool) (*sandboxAnswer, error) {
	s, err := h.Sandboxes.GetSession(ctx, sb.SessionID)
	if err != nil {
		return nil, err
	}
	o, err := h.sandboxObject(ctx, sb)
	if err != nil {
		return nil, err
	}
	return &sandboxAnswer{Sandbox: o, Session: h.sessionObject(s, sb), Routes: routeObjects(sb, system)}, nil
}

// named returns the sandbox of the request's name. Errors: not_found.
func (h *handler) named(r *http.Request) (*sandbox.Sandbox, error) {
	name := r.PathValue("name")
	if strings.HasPrefix(name, sessionPrefix) { // a ref of another kind
		return nil, cay.Errorf(cay.NotFound, "sandbox %.100q not found", name)
	}
	return h.Sandboxes.Get(r.Context(), name)
}

func (h *handler) handleCreate(w http.ResponseWriter, r *http.Request) error {
	return h.create(w, r, false)
}

func (h *handler) handleCreateImage(w http.ResponseWriter, r *http.Request) error {
	return h.create(w, r, true)
}

func (h *handler) create(w http.ResponseWriter, r *http.Request, byImage bool) error {
	var q createRequest
	if err := readJSON(w, r, &q); err != nil {
		return err
	}
	q.readStep(r.Header)
	return h.padded(w, r, func(ctx context.Context) (int, any, error) {
		sb, err := h.createSandbox(ctx, &q, byImage)
		if err != nil {
			return 0, nil, err
		}
		a, err := h.answer(ctx, sb, true)
		return http.StatusOK, a, err
	})
}

// createSandbox creates a sandbox in the request's project.
func (h *handler) createSandbox(ctx context.Context, q *createRequest, byImage bool) (*sandbox.Sandbox, error) {
	ctx, err := h.inProject(ctx, q.ProjectID)
	if err != nil {
		return nil, err
	}
	p, err := h.params(ctx, q, byImage)
	if err != nil {
		return nil, err
	}
	sb, err := h.Sandboxes.Create(ctx, p)
	if err != nil {
		return nil, h.notMade(ctx, q, p.Snapshot, err)
	}
	return sb, nil
}

// notMade shapes the error of a create or a fork.
func (h *handler) notMade(ctx context.Context, q *createRequest, snapshot string, err error) error {
	switch cay.CodeOf(err) {
	case cay.AlreadyExists:
		return cay.Errorf(cay.AlreadyExists, "A sandbox with the name '%s' already exists for this project.", q.Name)
	case cay.NotFound:
		return h.snapshotGone(ctx, snapshot, err)
	case cay.Invalid:
		return h.timeoutRefused(q.Timeout, err)
	case cay.SourceUnavailable:
		// Clients retry every 5xx for half a minute.
		return shaped(http.StatusBadRequest, codeBadRequest, err)
	}
	return err
}

// snapshotGone shapes the error of a call that needs a snapshot, if the
// snapshot existed once.
func (h *handler) snapshotGone(ctx context.Context, id string, err error) error {
	if id == "" || cay.CodeOf(err) != cay.NotFound {
		return err
	}
	if s, e := h.Sandboxes.GetSnapshot(ctx, id); e == nil && s.Status == sandbox.SnapshotDeleted {
		return shaped(http.StatusGone, codeSnapshotNotFound, err)
	}
	return err
}

// timeoutRefused shapes the error of a call whose timeout exceeds the
// operator's maximum.
func (h *handler) timeoutRefused(d *sandbox.Duration, err error) error {
	if d != nil && cay.CodeOf(err) == cay.Invalid && h.MaxTimeout > 0 && *d > sandbox.Duration(h.MaxTimeout) {
		return shaped(http.StatusBadRequest, codeTimeoutInvalid, err)
	}
	return err
}

// The clients' names of the orders and statuses of lists.
var (
	sandboxOrders = map[string]sandbox.Order{
		"": sandbox.ByCreation, "createdAt": sandbox.ByCreation, "name": sandbox.ByName,
		"statusUpdatedAt": sandbox.ByStatusAt, "currentSnapshotId": sandbox.BySnapshot,
	}
	sandboxStatuses = map[string][]sandbox.Status{
		"":         nil,
		"running":  {sandbox.Pending, sandbox.Running, sandbox.Paused, sandbox.Resuming},
		"stopping": {sandbox.Stopping},
		"stopped":  {sandbox.Stopped, sandbox.Failed, sandbox.Hibernated},
	}
)

func (h *handler) handleList(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	order, ok := sandboxOrders[q.Get("sortBy")]
	if !ok {
		return cay.Errorf(cay.Invalid, "sortBy %.50q is not one of createdAt, name, statusUpdatedAt, currentSnapshotId", q.Get("sortBy"))
	}
	status, ok := sandboxStatuses[q.Get("status")]
	if !ok {
		return cay.Errorf(cay.Invalid, "status %.50q is not one of running, stopping, stopped", q.Get("status"))
	}
	l, err := readList(q)
	if err != nil {
		return err
	}
	p := sandbox.ListParams{
		Status: status, NamePrefix: q.Get("namePrefix"), Tags: map[string]string{}, Order: order, Ascending: l.ascending, Limit: l.limit, Cursor: l.cursor,
	}
	for _, t := range q["tags"] {
		key, value, ok := strings.Cut(t, ":")
		if !ok {
			return cay.Errorf(cay.Invalid, "tags %.100q is not key:value", t)
		}
		if had, twice := p.Tags[key]; twice && had != value { // all must match
			return writeJSON(w, http.StatusOK, sandboxList{Sandboxes: []sandboxObject{}})
		}
		p.Tags[key] = value
	}
	page, err := h.Sandboxes.List(r.Context(), p)
	if err != nil {
		return err
	}
	answer := sandboxList{Sandboxes: make([]sandboxObject, 0, len(page.Items)), Pagination: paginate(len(page.Items), page.Next)}
	for i := range page.Items {
		o, err := h.sandboxObject(r.Context(), &page.Items[i])
		if err != nil {
			return err
		}
		answer.Sandboxes = append(answer.Sandboxes, o)
	}
	return writeJSON(w, http.StatusOK, answer)
}

type sandboxList struct {
	Sandboxes  []sandboxObject `json:"sandboxes"`
	Pagination pagination      `json:"pagination"`
}

// list is the common part of list queries.
type list struct {
	limit     int
	cursor    string
	ascending bool
}

// maxLimit is the longest page; clients that ask for more get maxLimit items,
// and continue.
const maxLimit = 200

func readList(q url.Values) (list, error) {
	l := list{cursor: q.Get("cursor")}
	switch order := q.Get("sortOrder"); order {
	case "", "desc":
	case "asc":
		l.ascending = true
	default:
		return l, cay.Errorf(cay.Invalid, "sortOrder %.50q is not one of asc, desc", order)
	}
	if q.Get("limit") == "" {
		return l, nil
	}
	n, err := strconv.Atoi(q.Get("limit"))
	if err != nil || n < 1 {
		return l, cay.Errorf(cay.Invalid, "limit %.50q is not a number of at least 1", q.Get("limit"))
	}
	l.limit = min(n, maxLimit)
	return l, nil
}

// handleGet returns a sandbox with its newest session: unchanged, or after
// resuming it.
func (h *handler) handleGet(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	system := q.Get("__includeSystemRoutes") == "true"
	sb, err := h.named(r)
	if err != nil {
		return err
	}
	if q.Get("resume") != "true" || sb.Status == sandbox.Running {
		a, err := h.answer(r.Context(), sb, system)
		if err != nil {
			return err
		}
		a.Resumed = new(false)
		return writeJSON(w, http.StatusOK, a)
	}
	return h.padded(w, r, func(ctx context.Context) (int, any, error) {
		resumed, err := h.resume(ctx, sb)
		if err != nil {
			return 0, nil, err
		}
		a, err := h.answer(ctx, resumed, system)
		if err != nil {
			return 0, nil, err
		}
		a.Resumed = new(resumed.SessionID != sb.SessionID || sb.Status == sandbox.Hibernated)
		return http.StatusOK, a, nil
	})
}

// resume makes a sandbox run, whatever its status.
func (h *handler) resume(ctx context.Context, sb *sandbox.Sandbox) (*sandbox.Sandbox, error) {
	resumed, err := h.Sandboxes.Resume(ctx, sb.ID, sandbox.ResumeParams{Fresh: true})
	if cay.CodeOf(err) != cay.NotFound {
		return resumed, err
	}
	// The sandbox, or the snapshot that it should start from, is gone.
	if _, e := h.Sandboxes.Get(ctx, sb.ID); e != nil {
		return nil, e
	}
	return nil, shaped(http.StatusGone, codeSnapshotNotFound, err)
}

// updateRequest patches a sandbox.
type updateRequest struct {
	settings
	Runtime           *string `json:"runtime"`
	CurrentSnapshotID *string `json:"currentSnapshotId"`
}

func (h *handler) handleUpdate(w http.ResponseWriter, r *http.Request) error {
	var q updateRequest
	if err := readJSON(w, r, &q); err != nil {
		return err
	}
	sb, err := h.named(r)
	if err != nil {
		return err
	}
	p, err := q.params(sb)
	if err != nil {
		return err
	}
	if sb, err = h.Sandboxes.Update(r.Context(), sb.ID, p); err != nil {
		return h.timeoutRefused(p.Timeout, err)
	}
	o, err := h.sandboxObject(r.Context(), sb)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, sandboxOnly{o, routeObjects(sb, false)})
}

// sandboxOnly is a sandbox without its session.
type sandboxOnly struct {
	Sandbox sandboxObject `json:"sandbox"`
	Routes  []routeObject `json:"routes"`
}

// params converts a patch of sb.
func (q *updateRequest) params(sb *sandbox.Sandbox) (p sandbox.UpdateParams, err error) {
	p = sandbox.UpdateParams{
		Tags: q.Tags, Env: q.Env, Ports: q.ports(), Timeout: q.Timeout, Persistent: q.Persistent,
		Mounts: q.mounts(), Runtime: q.Runtime, SnapshotID: q.CurrentSnapshotID, SnapshotExpiration: q.SnapshotExpiration,
	}
	if err := q.checkTimeout(); err != nil {
		return p, err
	}
	if p.VCPUs, p.MemoryMB, err = q.machine(); err != nil {
		return p, err
	}
	if p.Network, err = q.network(); err != nil {
		return p, err
	}
	if p.Retention, err = q.retention(); err != nil {
		return p, err
	}
	notes := maps.Clone(sb.Annotations)
	if notes == nil {
		notes = map[string]string{}
	}
	if err := q.annotate(notes); err != nil {
		return p, err
	}
	if port := interactivePort(sb); port != 0 && p.Ports != nil {
		p.Ports = withInteractive(p.Ports, port, notes)
	}
	if !maps.Equal(notes, sb.Annotations) {
		p.Annotations = notes
	}
	return p, nil
}

func (h *handler) handleDelete(w http.ResponseWriter, r *http.Request) error {
	sb, err := h.named(r)
	if err != nil {
		return err
	}
	orphans := r.URL.Query().Get("deleteOrphanSnapshots") == "true"
	return h.padded(w, r, func(ctx context.Context) (int, any, error) {
		if err := h.Sandboxes.DeleteWith(ctx, sb.ID, sandbox.DeleteParams{KeepSnapshots: true}); err != nil {
			return 0, nil, err
		}
		if orphans {
			if err := h.deleteSnapshots(ctx, sb); err != nil {
				return 0, nil, err
			}
		}
		sb.Status, sb.Ports = sandbox.Stopped, nil
		o, err := h.sandboxObject(ctx, sb)
		return http.StatusOK, sandboxOnly{o, []routeObject{}}, err
	})
}

// deleteSnapshots deletes the snapshots of a deleted sandbox, except those that
// other sandboxes are to start from.
func (h *handler) deleteSnapshots(ctx context.Context, sb *sandbox.Sandbox) error {
	p := sandbox.SnapshotListParams{Sandbox: sb.ID, ProjectID: sb.ProjectID, Limit: maxLimit}
	for {
		page, err := h.Sandboxes.ListSnapshots(ctx, p)
		if err != nil {
			return err
		}
		for _, s := range page.Items {
			_, err := h.Sandboxes.DeleteSnapshot(ctx, s.ID, sandbox.DeleteSnapshotParams{})
			if c := cay.CodeOf(err); err != nil && c != cay.Conflict && c != cay.NotFound {
				return err
			}
		}
		if p.Cursor = page.Next; p.Cursor == "" {
			return nil
		}
	}
}

// handleAction handles the actions on a sandbox by its name.
func (h *handler) handleAction(w http.ResponseWriter, r *http.Request) error {
	if r.PathValue("action") != "fork" {
		return cay.Errorf(cay.NotFound, "there is no route %s %.200s", r.Method, r.URL.Path)
	}
	var q createRequest
	if err := readJSON(w, r, &q); err != nil {
		return err
	}
	q.readStep(r.Header)
	source, err := h.named(r)
	if err != nil {
		return err
	}
	p, err := q.forkParams(source)
	if err != nil {
		return err
	}
	return h.padded(w, r, func(ctx context.Context) (int, any, error) {
		fork, err := h.Sandboxes.Fork(ctx, source.ID, p)
		if err != nil {
			return 0, nil, h.notMade(ctx, &q, source.SnapshotID, err)
		}
		a, err := h.answer(ctx, &fork.Sandboxes[0], true)
		return http.StatusOK, a, err
	})
}

// forkParams converts a fork request: a copy of the last saved state of source,
// with the requested changes.
func (q *createRequest) forkParams(source *sandbox.Sandbox) (p sandbox.ForkParams, err error) {
	if q.Source != nil || q.Runtime != "" || q.Image != "" || q.OldImage != "" {
		return p, cay.Errorf(cay.Invalid, "a fork has the image, the runtime and the files of its source").
			WithHint("leave out source, runtime and image")
	}
	p = sandbox.ForkParams{
		Kind: sandbox.FilesystemSnapshot, Env: q.Env, Tags: q.Tags, Ports: q.ports(), Mounts: q.mounts(), Timeout: q.Timeout,
		Persistent: q.Persistent, SnapshotExpiration: q.SnapshotExpiration, Annotations: map[string]string{},
	}
	if q.Name != "" {
		p.Names = []string{q.Name}
	}
	if err := q.checkTimeout(); err != nil {
		return p, err
	}
	if p.VCPUs, p.MemoryMB, err = q.machine(); err != nil {
		return p, err
	}
	if p.Network, err = q.network(); err != nil {
		return p, err
	}
	if p.Retention, err = q.retention(); err != nil {
		return p, err
	}
	maps.Copy(p.Annotations, source.Annotations)
	delete(p.Annotations, noteInteractivePort)
	q.annotateStep(p.Annotations)
	if err := q.annotate(p.Annotations); err != nil {
		return p, err
	}
	if p.Ports == nil { // the source's, but for its terminals'
		p.Ports = []sandbox.PortParams{}
		own := interactivePort(source)
		for _, port := range source.Ports {
			if port.Port != own {
				p.Ports = append(p.Ports, sandbox.PortParams{Port: port.Port, Access: port.Access})
			}
		}
	}
	if q.Interactive {
		p.Ports = withInteractive(p.Ports, 0, p.Annotations)
	}
	return p, nil
}
