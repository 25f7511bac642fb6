package vercelsandbox

import (
	"strconv"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// v1Snapshot is a snapshot without sessions.
type v1Snapshot struct {
	ID              string `json:"id"`
	SourceSandboxID string `json:"sourceSandboxId"`
	Region          string `json:"region"`
	Status          string `json:"status"`
	SizeBytes       int64  `json:"sizeBytes"`
	CreatedAt       int64  `json:"createdAt"`
	UpdatedAt       int64  `json:"updatedAt"`
	ExpiresAt       *int64 `json:"expiresAt,omitempty"`
}

func newV1Snapshot(s *sandbox.Snapshot) v1Snapshot {
	o := newSnapshotObject(s)
	return v1Snapshot{
		ID: o.ID, SourceSandboxID: s.SandboxID, Region: o.Region, Status: o.Status, SizeBytes: o.SizeBytes,
		CreatedAt: o.CreatedAt, UpdatedAt: o.UpdatedAt, ExpiresAt: o.ExpiresAt,
	}
}

// v1Object returns the JSON form of a sandbox: its session, under the sandbox's
// id.
func (h *handler) v1Object(s *sandbox.Session, sb *sandbox.Sandbox) sessionObject {
	o := h.sessionObject(s, sb)
	o.ID = sb.ID
	return o
}

// v1Pagination goes by time: the next page has the items older than Next, the
// previous page the items newer than Prev.
type v1Pagination struct {
	Count int    `json:"count"`
	Next  *int64 `json:"next"`
	Prev  *int64 `json:"prev"`
}

// v1Time reads a time in a query: milliseconds since 1970, or a date.
func v1Time(name, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ms, err := strconv.ParseInt(text, 10, 64); err == nil && ms >= 0 && ms < 1<<50 {
		return time.UnixMilli(ms), nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	return time.Time{}, cay.Errorf(cay.Invalid, "%s %.50q is neither milliseconds nor a date", name, text)
}
