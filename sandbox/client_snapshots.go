package sandbox

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cayhq/cay/internal/wire"
)

// Hibernate saves a running or paused sandbox with its processes, and frees its
// memory and CPU. Resume, or the next call that needs the sandbox, wakes it.
// Hibernating a hibernated sandbox does nothing. Errors: sandbox_stopped,
// conflict, no_space, quota_exceeded, not_supported.
func (c *Client) Hibernate(ctx context.Context, ref string) (*Sandbox, error) {
	return one[Sandbox](ctx, c, http.MethodPost, nil, ref, "hibernate")
}

// Fork copies a sandbox, or starts several from a snapshot's id ("snap_...").
// Either all copies are made, or none. Errors: those of Create, conflict,
// not_supported. When the answer is lost, so that the error is unavailable or
// the context's, the copies may exist: see List.
func (c *Client) Fork(ctx context.Context, ref string, p ForkParams) (*Fork, error) {
	return one[Fork](ctx, c, http.MethodPost, p, ref, "fork")
}

// Sessions lists the sessions of a sandbox, newest first unless p says otherwise.
// Errors: invalid.
func (c *Client) Sessions(ctx context.Context, ref string, p SessionParams) (*Page[Session], error) {
	pth, err := endpoint(ref, "sessions")
	if err != nil {
		return nil, err
	}
	q := url.Values{}
	setBool(q, "ascending", p.Ascending)
	setInt(q, "limit", int64(p.Limit))
	setString(q, "cursor", p.Cursor)
	return fetch[Page[Session]](ctx, c, wire.Request{Method: http.MethodGet, Path: pth, Query: q})
}

// ListSessions lists the sessions of all sandboxes, newest first unless p says
// otherwise. Errors: invalid.
func (c *Client) ListSessions(ctx context.Context, p SessionListParams) (*Page[Session], error) {
	q := url.Values{}
	setString(q, "project", p.ProjectID)
	setBool(q, "ascending", p.Ascending)
	setInt(q, "limit", int64(p.Limit))
	setString(q, "cursor", p.Cursor)
	return fetch[Page[Session]](ctx, c, wire.Request{Method: http.MethodGet, Path: "/v1/sessions", Query: q})
}

// GetSession returns a session by its id, ended or not. Errors: not_found, also
// once its sandbox was deleted, or has had 1000 sessions since.
func (c *Client) GetSession(ctx context.Context, id string) (*Session, error) {
	p, err := pathOf("/v1/sessions", "session", id)
	if err != nil {
		return nil, err
	}
	return fetch[Session](ctx, c, wire.Request{Method: http.MethodGet, Path: p})
}

// CreateSnapshot saves a sandbox that runs or is paused. The sandbox continues
// meanwhile, except for moments, and its next session then starts from the
// snapshot. A sandbox that has ended is not started for a snapshot. Errors:
// invalid, already_exists (name), sandbox_stopped, conflict, quota_exceeded,
// no_space, not_supported.
func (c *Client) CreateSnapshot(ctx context.Context, ref string, p SnapshotParams) (*Snapshot, error) {
	return one[Snapshot](ctx, c, http.MethodPost, p, ref, "snapshots")
}

// oneSnapshot calls an operation on a snapshot.
func oneSnapshot[T any](ctx context.Context, c *Client, method, ref string, q url.Values, elems ...string) (*T, error) {
	p, err := pathOf("/v1/snapshots", "snapshot", ref, elems...)
	if err != nil {
		return nil, err
	}
	return fetch[T](ctx, c, wire.Request{Method: method, Path: p, Query: q})
}

// GetSnapshot returns a snapshot by its id or its name. A deleted snapshot is
// found by its id for 30 days.
func (c *Client) GetSnapshot(ctx context.Context, ref string) (*Snapshot, error) {
	return oneSnapshot[Snapshot](ctx, c, http.MethodGet, ref, nil)
}

// ListSnapshots returns one page of snapshots, newest first. Errors: invalid,
// not_found (the sandbox).
func (c *Client) ListSnapshots(ctx context.Context, p SnapshotListParams) (*Page[Snapshot], error) {
	q := url.Values{}
	setString(q, "project", p.ProjectID)
	setString(q, "sandbox", p.Sandbox)
	setString(q, "name", p.Name)
	setBool(q, "deleted", p.Deleted)
	setTime(q, "created_after", p.CreatedAfter)
	setTime(q, "created_before", p.CreatedBefore)
	setBool(q, "ascending", p.Ascending)
	setInt(q, "limit", int64(p.Limit))
	setString(q, "cursor", p.Cursor)
	return fetch[Page[Snapshot]](ctx, c, wire.Request{Method: http.MethodGet, Path: "/v1/snapshots", Query: q})
}

// SnapshotTree walks from a snapshot to the root of its tree, or away from it.
// Errors: invalid, not_found.
func (c *Client) SnapshotTree(ctx context.Context, ref string, p SnapshotTreeParams) (*SnapshotTree, error) {
	q := url.Values{}
	setBool(q, "descendants", p.Descendants)
	setInt(q, "limit", int64(p.Limit))
	return oneSnapshot[SnapshotTree](ctx, c, http.MethodGet, ref, q, "tree")
}

// DeleteSnapshot removes the files of a snapshot. Sandboxes that are starting
// from the snapshot are not affected. Deleting a deleted snapshot does nothing.
// Errors: not_found, conflict (the next session of a persistent sandbox is to
// start from it, and not Force).
func (c *Client) DeleteSnapshot(ctx context.Context, ref string, p DeleteSnapshotParams) (*Snapshot, error) {
	q := url.Values{}
	setBool(q, "force", p.Force)
	return oneSnapshot[Snapshot](ctx, c, http.MethodDelete, ref, q)
}

// PruneSnapshots deletes the automatic snapshots that no sandbox starts from. Errors:
// invalid.
func (c *Client) PruneSnapshots(ctx context.Context, p PruneSnapshotsParams) (*SnapshotPrune, error) {
	return fetch[SnapshotPrune](ctx, c, wire.Request{Method: http.MethodPost, Path: "/v1/snapshots/prune", JSON: p})
}

// ExportSnapshot reads a snapshot as one file, for ImportSnapshot. Close the
// reader. Errors: not_found (also of a deleted snapshot), conflict (damaged).
func (c *Client) ExportSnapshot(ctx context.Context, ref string) (io.ReadCloser, error) {
	p, err := pathOf("/v1/snapshots", "snapshot", ref, "export")
	if err != nil {
		return nil, err
	}
	resp, conn, err := c.do(ctx, wire.Request{Method: http.MethodGet, Path: p})
	if err != nil {
		return nil, err
	}
	return &content{ctx, conn, resp.Body}, nil
}

// ImportSnapshot makes a snapshot of a file that ExportSnapshot made, read from
// r as it is sent. Errors: invalid, not_supported, already_exists (name),
// too_large, no_space, quota_exceeded, permission_denied (Memory, and the token
// is not an operator's).
func (c *Client) ImportSnapshot(ctx context.Context, r io.Reader, p ImportParams) (*Snapshot, error) {
	q := url.Values{}
	setString(q, "project", p.ProjectID)
	setString(q, "name", p.Name)
	setBool(q, "memory", p.Memory)
	if p.Expiration != nil {
		q.Set("expiration_ms", strconv.FormatInt(time.Duration(*p.Expiration).Milliseconds(), 10))
	}
	return fetch[Snapshot](ctx, c, wire.Request{
		Method: http.MethodPost, Path: "/v1/snapshots", Query: q, Body: r, Length: known(r),
	})
}

// Pools lists the daemon's stocks of booted, unused machines. Errors:
// permission_denied unless the token is an operator's.
func (c *Client) Pools(ctx context.Context) ([]Pool, error) {
	page, err := fetch[Page[Pool]](ctx, c, wire.Request{Method: http.MethodGet, Path: "/v1/pools"})
	if err != nil {
		return nil, err
	}
	return page.Items, nil
}
