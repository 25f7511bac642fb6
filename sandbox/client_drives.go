package sandbox

import (
	"context"
	"net/http"
	"net/url"

	"github.com/cayhq/cay/internal/wire"
)

// CreateDrive makes a drive. Errors: invalid, not_found (From), already_exists
// (name), quota_exceeded, no_space; conflict (From is changing hands).
func (c *Client) CreateDrive(ctx context.Context, p CreateDriveParams) (*Drive, error) {
	return fetch[Drive](ctx, c, wire.Request{Method: http.MethodPost, Path: "/v1/drives", JSON: p})
}

// oneDrive calls an operation on a drive whose answer is the drive.
func (c *Client) oneDrive(ctx context.Context, method, ref string, elems ...string) (*Drive, error) {
	p, err := pathOf("/v1/drives", "drive", ref, elems...)
	if err != nil {
		return nil, err
	}
	return fetch[Drive](ctx, c, wire.Request{Method: method, Path: p})
}

// GetDrive returns a drive by its id or its name.
func (c *Client) GetDrive(ctx context.Context, ref string) (*Drive, error) {
	return c.oneDrive(ctx, http.MethodGet, ref)
}

// ListDrives returns one page of drives, newest first unless p says otherwise. Errors: invalid.
func (c *Client) ListDrives(ctx context.Context, p DriveListParams) (*Page[Drive], error) {
	q := url.Values{}
	setString(q, "project", p.ProjectID)
	setString(q, "name_prefix", p.NamePrefix)
	setString(q, "order", string(p.Order))
	setBool(q, "ascending", p.Ascending)
	setInt(q, "limit", int64(p.Limit))
	setString(q, "cursor", p.Cursor)
	return fetch[Page[Drive]](ctx, c, wire.Request{Method: http.MethodGet, Path: "/v1/drives", Query: q})
}

// SaveDrive saves the current content of a drive, without waiting for the sandbox that has
// mounted it to stop. A drive that no sandbox has mounted is saved already. Errors: no_space,
// quota_exceeded, conflict.
func (c *Client) SaveDrive(ctx context.Context, ref string) (*Drive, error) {
	return c.oneDrive(ctx, http.MethodPost, ref, "save")
}

// DeleteDrive removes a drive and its content. Errors: conflict (a sandbox has mounted it).
func (c *Client) DeleteDrive(ctx context.Context, ref string) error {
	p, err := pathOf("/v1/drives", "drive", ref)
	if err != nil {
		return err
	}
	return c.call(ctx, wire.Request{Method: http.MethodDelete, Path: p}, nil)
}
