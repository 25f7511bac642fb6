package store

import "github.com/cayhq/cay/internal/db"

// needsImage is the condition that a sandbox runs or can be resumed, and thus needs its
// image and its runtime.
const needsImage = `deleting = 0 AND (persistent = 1 OR status = 'hibernated' OR status IN ` + live + `)`

// keptSnapshot is the condition that a snapshot has, or should have, files.
const keptSnapshot = `status IN ('created', 'hibernated')`

// leftSnapshot is the condition that the files of a deleted snapshot may still exist.
const leftSnapshot = `status IN ('deleted', 'discarded') AND stored = 1`

// isAutomatic is the condition that a stop made the snapshot, and nobody gave it a name.
const isAutomatic = `status = 'created' AND automatic = 1 AND name IS NULL`

// isResumable is the condition of lists of sandboxes that can be used without Fresh.
const isResumable = `(status NOT IN ('stopped', 'failed') OR persistent = 1)`

// isUnsealed returns the condition that a column's text is to be sealed.
func isUnsealed(column string) string {
	return column + ` NOT IN ('', '{}', 'null') AND substr(` + column + `, 1, 7) <> '` + sealedPrefix + `'`
}

// indexMigration makes all frequent statements independent of the number of sandboxes
// that have ended. A partial index is used only by a statement that repeats its condition
// word for word; TestPlans checks the statements.
var indexMigration = db.Migration{Name: "indexes for many rows", SQL: `
	DROP INDEX sandboxes_live;
	CREATE INDEX sandboxes_live ON sandboxes (team_id, created_at, id) WHERE status IN ` + live + `;
	CREATE INDEX sandboxes_expiring ON sandboxes (team_id, expires_at) WHERE expires_at IS NOT NULL;
	CREATE INDEX sandboxes_deleting ON sandboxes (id) WHERE deleting = 1;
	CREATE INDEX sandboxes_resumable ON sandboxes (team_id, created_at, id) WHERE ` + isResumable + `;
	CREATE INDEX sandboxes_rare ON sandboxes (team_id, status, created_at, id) WHERE status IN ('hibernated', 'failed');
	CREATE INDEX sandboxes_by_project ON sandboxes (project_id, created_at, id);
	CREATE INDEX sandboxes_hibernated ON sandboxes (project_id) WHERE hibernation_id <> '';
	CREATE INDEX sandboxes_by_image ON sandboxes (digest) WHERE ` + needsImage + `;
	CREATE INDEX sandboxes_by_runtime ON sandboxes (runtime_digest) WHERE ` + needsImage + `;
	DROP INDEX sandboxes_by_snapshot;
	CREATE INDEX sandboxes_by_snapshot ON sandboxes (snapshot_id, created_at, id) WHERE snapshot_id <> '' AND persistent = 1 AND deleting = 0;
	CREATE INDEX sandboxes_unsealed_env ON sandboxes (id) WHERE ` + isUnsealed("env") + `;
	CREATE INDEX sandboxes_unsealed_next ON sandboxes (id) WHERE ` + isUnsealed("next") + `;
	CREATE INDEX sandboxes_unsealed_token ON sandboxes (id) WHERE ` + isUnsealed("guest_token") + `;
	CREATE INDEX sandbox_snapshots_unsealed_token ON sandbox_snapshots (id) WHERE ` + isUnsealed("guest_token") + `;
	CREATE INDEX sandbox_idempotency_by_sandbox ON sandbox_idempotency (sandbox_id);
	CREATE INDEX sandbox_snapshots_by_name ON sandbox_snapshots (team_id, name) WHERE name IS NOT NULL;
	CREATE INDEX sandbox_snapshots_by_sandbox_name ON sandbox_snapshots (team_id, sandbox_name, created_at, id);
	DROP INDEX sandbox_snapshots_by_sandbox;
	CREATE INDEX sandbox_snapshots_by_sandbox ON sandbox_snapshots (sandbox_id, created_at, id);
	CREATE INDEX sandbox_snapshots_by_image ON sandbox_snapshots (digest) WHERE ` + keptSnapshot + `;
	CREATE INDEX sandbox_snapshots_by_runtime ON sandbox_snapshots (runtime_digest) WHERE ` + keptSnapshot + `;
	DROP INDEX sandbox_snapshots_gone;
	CREATE INDEX sandbox_snapshots_left ON sandbox_snapshots (id) WHERE ` + leftSnapshot + `;
	CREATE INDEX sandbox_snapshots_gone ON sandbox_snapshots (updated_at) WHERE status = 'deleted' AND stored = 0;
	CREATE INDEX sandbox_snapshots_memory_left ON sandbox_snapshots (id) WHERE ` + memoryLeft + `;
	CREATE INDEX sandbox_snapshots_automatic ON sandbox_snapshots (team_id, created_at, id) WHERE ` + isAutomatic + `;
	CREATE INDEX sandbox_drives_by_name ON sandbox_drives (team_id, name, id);
	CREATE INDEX sandbox_drives_by_blob ON sandbox_drives (blob_id) WHERE blob_id <> '';`}
