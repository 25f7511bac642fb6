package snapshot

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/blob"
)

// Report is the result of Collect.
type Report struct {
	Removed []string // ids of snapshots that were not live
	Bytes   int64    // of the removed snapshots and leftovers
	Missing []string // ids of live snapshots that are not there
}

// idPrefix tells snapshots from other blobs.
const idPrefix = "snap_"

// Collect removes snapshots that are not live, and drafts of processes that died. Both
// stay for the time grace, because a snapshot is committed before its row is: the caller
// must read live before the call, and grace must be longer than the time from a Commit to
// its row.
func (s *Store) Collect(ctx context.Context, live map[string]bool, grace time.Duration) (Report, error) {
	var r Report
	all, err := s.blobs.List(ctx, blob.ListOptions{Prefix: idPrefix})
	if err != nil {
		return r, err
	}
	missing := maps.Clone(live)
	before := time.Now().Add(-grace)
	for _, info := range all {
		delete(missing, info.Name)
		if live[info.Name] || info.CreatedAt.After(before) {
			continue
		}
		err := s.blobs.Delete(ctx, info.Name)
		if cay.CodeOf(err) == cay.NotFound {
			continue
		}
		if err != nil {
			return r, err
		}
		r.Removed = append(r.Removed, info.Name)
		r.Bytes += info.Size
	}
	for id, is := range missing {
		if is {
			r.Missing = append(r.Missing, id)
		}
	}
	slices.Sort(r.Missing)
	freed, err := s.blobs.Clean(ctx, grace)
	r.Bytes += freed
	return r, err
}
