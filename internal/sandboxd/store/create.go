package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/sandbox"
)

// keyLifetime is how long an idempotency key is remembered.
const keyLifetime = 24 * time.Hour

// Request is a creation that is to be inserted into the database.
type Request struct {
	Row   *Row
	Key   string // idempotency key; empty: none
	Hash  []byte // of the parameters, to tell a repeated request from a different one with the same key
	Quota account.Quota
	// Network is the whole policy before Row's is sealed.
	Network sandbox.Network
}

// Insert adds a pending sandbox if the team's quota allows it, or returns the id of the
// sandbox that an earlier request with the same key made. The check and the insertion are
// one transaction, so concurrent requests cannot exceed the quota together. The row
// survives a power cut only after Started. Errors: already_exists, conflict,
// quota_exceeded.
func (s *Store) Insert(ctx context.Context, q Request) (earlier string, err error) {
	now := q.Row.CreatedAt
	err = s.db.Unsynced().Write(ctx, func(tx *db.Tx) (err error) {
		if earlier, err = s.claimKey(ctx, tx, q, now); err != nil || earlier != "" {
			return err
		}
		if err := checkQuota(ctx, tx, q.Row, q.Quota, now); err != nil {
			return err
		}
		if q.Row.SnapshotID != "" {
			if err := needSnapshot(ctx, tx, q.Row.SnapshotID); err != nil {
				return err
			}
		}
		if err := attachDrives(ctx, tx, q.Row); err != nil {
			return err
		}
		return s.insertRow(ctx, tx, q.Row)
	})
	switch {
	case db.IsUnique(err, "sandboxes.project_id"):
		return "", cay.Errorf(cay.AlreadyExists, "a sandbox named %q exists", q.Row.Name).
			WithHint("choose another name, or delete that sandbox")
	case err != nil && cay.CodeOf(err) == cay.Internal:
		return "", fmt.Errorf("record sandbox: %w", err)
	}
	if err == nil && earlier == "" {
		s.notifyCreated(q.Row)
	}
	return earlier, err
}

// claimKey takes the request's key, or returns the id of the sandbox that holds the key.
// A sandbox that failed to start does not hold its key: the next request deletes that
// sandbox and takes the key.
func (s *Store) claimKey(ctx context.Context, tx *db.Tx, q Request, now time.Time) (earlier string, err error) {
	if q.Key == "" {
		return "", nil
	}
	if _, err := tx.Exec(ctx, `DELETE FROM sandbox_idempotency WHERE created_at <= ?`, now.Add(-keyLifetime).UnixMilli()); err != nil {
		return "", err
	}
	var (
		hash           []byte
		status, reason sql.NullString
	)
	err = tx.QueryRow(ctx, `SELECT k.request, k.sandbox_id, s.status, s.reason FROM sandbox_idempotency k
		LEFT JOIN sandboxes s ON s.id = k.sandbox_id WHERE k.project_id = ? AND k.key = ?`,
		q.Row.ProjectID, q.Key).Scan(&hash, &earlier, &status, &reason)
	switch {
	case errors.Is(err, sql.ErrNoRows):
	case err != nil:
		return "", err
	case string(hash) != string(q.Hash):
		return "", cay.Errorf(cay.Conflict, "idempotency key %q was used for a request with other parameters", q.Key).
			WithHint("use a new key for a new sandbox")
	case !status.Valid:
		return "", cay.Errorf(cay.Conflict, "the sandbox made with idempotency key %q was deleted", q.Key).
			WithHint("use a new key for a new sandbox")
	case sandbox.Status(status.String) == sandbox.Failed && sandbox.Reason(reason.String) == sandbox.ReasonStartFailed:
		if _, err := forget(ctx, tx, earlier, "", now); err != nil {
			return "", err
		}
	default:
		return earlier, nil
	}
	_, err = tx.Exec(ctx, `INSERT INTO sandbox_idempotency (project_id, key, request, sandbox_id, created_at) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT (project_id, key) DO UPDATE SET sandbox_id = excluded.sandbox_id, created_at = excluded.created_at`,
		q.Row.ProjectID, q.Key, q.Hash, q.Row.ID, now.UnixMilli())
	return "", err
}

// DeleteFailed removes a sandbox that failed to start, with its idempotency key.
func (s *Store) DeleteFailed(ctx context.Context, id string, now time.Time) error {
	defer s.opts.Removed(id)
	return s.db.Write(ctx, func(tx *db.Tx) error {
		if _, err := tx.Exec(ctx, `DELETE FROM sandbox_idempotency WHERE sandbox_id = ?`, id); err != nil {
			return err
		}
		_, err := forget(ctx, tx, id, "", now)
		return err
	})
}

// checkQuota checks the quota of the team for a sandbox that is to start, and takes a
// token of the team's creation rate.
func checkQuota(ctx context.Context, tx *db.Tx, r *Row, quota account.Quota, now time.Time) error {
	return checkQuotaOf(ctx, tx, 1, r, quota, now)
}

// checkQuotaOf is checkQuota for count sandboxes such as r.
func checkQuotaOf(ctx context.Context, tx *db.Tx, count int, r *Row, quota account.Quota, now time.Time) error {
	needs, times := "sandbox needs", float64(count)
	if count > 1 {
		needs = fmt.Sprintf("%d sandboxes need", count)
	}
	mounts, drives, err := mountsOf(ctx, tx, r.Scope(), r.Mounts)
	if err != nil {
		return err
	}
	team, err := countsOf(ctx, tx, Scope{Team: r.TeamID})
	if err != nil {
		return err
	}
	for _, c := range []struct {
		what              string
		used, more, quota float64
	}{
		{"running sandboxes", float64(team.live), times, float64(quota.Sandboxes)},
		{"vCPUs", float64(team.microcpus) / 1e6, times * r.VCPUs, quota.VCPUs},
		{"MiB of memory", float64(team.memoryMB), times * float64(r.MemoryMB), float64(quota.MemoryMB)},
		{"MiB of disk", float64(team.diskMB), times * float64(r.DiskMB+mountedMB(mounts, drives)), float64(quota.DiskMB)},
	} {
		// The slack is for sums of vCPU fractions.
		if c.quota == 0 || c.used+c.more <= c.quota+1e-6 {
			continue
		}
		if c.more > c.quota {
			return cay.Errorf(cay.QuotaExceeded, "the %s %g %s, the team's quota is %g", needs, c.more, c.what, c.quota).
				WithHint("ask for less, or have the quota raised")
		}
		wait, err := untilFree(ctx, tx, r.TeamID, now)
		if err != nil {
			return err
		}
		full := cay.Errorf(cay.QuotaExceeded, "the team's quota is %g %s, %g are in use and %g more were asked for",
			c.quota, c.what, c.used, c.more).WithHint("stop a sandbox, or have the quota raised")
		full.RetryAfter = wait
		return full
	}
	if err := checkKept(ctx, tx, team, r, mounts, drives, quota); err != nil {
		return err
	}
	return takeTokens(ctx, tx, count, r.TeamID, quota, now)
}

// checkKept reports whether a team may start a sandbox whose stop saves files or drives.
// The stop saves them whatever the quota: without this check a caller that stops and
// resumes a sandbox in a loop would fill the host's disk. The bytes of the snapshot and
// drives that the sandbox starts from, and saves over, do not count, so that a sandbox
// larger than the quota can be resumed. Errors: quota_exceeded.
func checkKept(ctx context.Context, tx *db.Tx, team counts, r *Row, mounts []sandbox.Mount, drives []*DriveRow, quota account.Quota) error {
	if quota.SnapshotMB == 0 || !r.Persistent && !WritesDrives(mounts) {
		return nil
	}
	used, own := team.kept(), int64(0)
	if r.Status == sandbox.Resuming {
		err := tx.QueryRow(ctx, `SELECT coalesce(sum(size_bytes), 0) FROM sandbox_snapshots WHERE id IN (?, ?) AND `+keptSnapshot,
			r.SnapshotID, r.Hibernation).Scan(&own)
		if err != nil {
			return err
		}
	}
	for i, d := range drives {
		if mounts[i].Mode == sandbox.MountReadWrite {
			own += d.SizeBytes
		}
	}
	if used-own < quota.SnapshotMB<<20 {
		return nil
	}
	return cay.Errorf(cay.QuotaExceeded, "the team's quota is %d MiB of snapshots and drives, and %d are in use: nothing is started whose files are to be kept",
		quota.SnapshotMB, roundMB(used)).WithHint("delete snapshots or drives, start a sandbox that is not persistent, or have the quota raised")
}

// untilFree estimates when a retry is worthwhile: when the first sandbox of the team
// reaches its timeout, within bounds, because any sandbox may be stopped earlier.
func untilFree(ctx context.Context, tx *db.Tx, team string, now time.Time) (time.Duration, error) {
	var soonest sql.NullInt64
	err := tx.QueryRow(ctx, `SELECT min(expires_at) FROM sandboxes WHERE team_id = ? AND expires_at IS NOT NULL`, team).Scan(&soonest)
	if err != nil || !soonest.Valid {
		return time.Second, err
	}
	return min(max(time.UnixMilli(soonest.Int64).Sub(now), time.Second), time.Minute), nil
}

// takeTokens takes n of the team's creations of this minute.
func takeTokens(ctx context.Context, tx *db.Tx, n int, team string, quota account.Quota, now time.Time) error {
	perMinute, need := float64(quota.CreatesPerMinute), float64(n)
	if perMinute == 0 {
		return nil
	}
	if need > perMinute {
		return cay.Errorf(cay.QuotaExceeded, "the team may create %d sandboxes a minute, not %d at once", quota.CreatesPerMinute, n).
			WithHint("ask for less, or have the quota raised")
	}
	tokens, at := perMinute, now.UnixMilli()
	err := tx.QueryRow(ctx, `SELECT tokens, at FROM sandbox_creates WHERE team_id = ?`, team).Scan(&tokens, &at)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	// A clock that was set back adds nothing; one set forward fills the bucket once.
	elapsed := max(0, now.UnixMilli()-at)
	tokens = math.Min(perMinute, tokens+perMinute*float64(elapsed)/60_000)
	if tokens < need {
		err := cay.Errorf(cay.QuotaExceeded, "the team may create %d sandboxes a minute", quota.CreatesPerMinute).
			WithHint("create them more slowly, or have the quota raised")
		err.RetryAfter = max(time.Second, time.Duration(math.Ceil((need-tokens)*60/perMinute))*time.Second)
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO sandbox_creates (team_id, tokens, at) VALUES (?, ?, ?)
		ON CONFLICT (team_id) DO UPDATE SET tokens = excluded.tokens, at = excluded.at`, team, tokens-need, now.UnixMilli())
	return err
}

func (s *Store) insertRow(ctx context.Context, tx *db.Tx, r *Row) error {
	env, err := toJSON(r.Env)
	if err != nil {
		return err
	}
	env = s.seal(env, envOf(r.ID))
	tags, err := toJSON(r.Tags)
	if err != nil {
		return err
	}
	annotations, err := annotationsJSON(r.Annotations)
	if err != nil {
		return err
	}
	network, err := toJSON(r.Network)
	if err != nil {
		return err
	}
	if err := insertPorts(ctx, tx, r); err != nil {
		return err
	}
	ports, err := portsJSON(r.Ports)
	if err != nil {
		return err
	}
	retention, err := retentionJSON(r.Retention)
	if err != nil {
		return err
	}
	mounts, err := toJSON(mountsOrNone(r.Mounts))
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `INSERT INTO sandboxes (id, team_id, project_id, name, status, image, runtime, vcpus, memory_mb, disk_mb,
		env, tags, user, workdir, network, timeout, idle_timeout, created_at, updated_at, guest_token, sealed_network, ports,
		persistent, session_id, session_timeout, snapshot_id, snapshot_expiration, retention, mounts, drives_mb, annotations, status_at, privileges, save_every)
		VALUES (?, ?, ?, ?, 'pending', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		r.ID, r.TeamID, r.ProjectID, r.Name, r.Image, r.Runtime, r.VCPUs, r.MemoryMB, r.DiskMB,
		env, tags, r.User, r.WorkDir, network, ms(r.Timeout), ms(r.IdleTimeout), r.CreatedAt.UnixMilli(), r.UpdatedAt.UnixMilli(),
		s.seal(r.GuestToken, tokenOf(r.ID)), r.Sealed, ports,
		r.Persistent, r.SessionID, ms(r.Timeout), r.SnapshotID, ms(r.SnapshotExpiration), retention, mounts, r.drivesMB,
		annotations, r.CreatedAt.UnixMilli(), r.Privileges, ms(r.SaveEvery)); err != nil {
		return err
	}
	if r.Source != nil {
		next, err := toJSON(NextSession{Unfilled: true})
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE sandboxes SET next = ? WHERE id = ?`, s.seal(next, nextOf(r.ID)), r.ID); err != nil {
			return err
		}
	}
	if err := insertSession(ctx, tx, r, r.CreatedAt); err != nil {
		return err
	}
	return insertTags(ctx, tx, r.ID, r.Tags)
}

// annotationsJSON encodes annotations for the database: a JSON object, or "" without
// annotations.
func annotationsJSON(a map[string]string) (string, error) {
	if len(a) == 0 {
		return "", nil
	}
	return toJSON(a)
}

// parseAnnotations decodes the output of annotationsJSON.
func parseAnnotations(text string) (a map[string]string, err error) {
	if text != "" {
		err = json.Unmarshal([]byte(text), &a)
	}
	return a, err
}
