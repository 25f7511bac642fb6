package store

import (
	"github.com/cayhq/cay/internal/db"
)

// Times are Unix milliseconds, durations milliseconds unless named otherwise.
var migrations = []db.Migration{{Name: "sandboxes", SQL: `
	CREATE TABLE sandboxes (
		id            TEXT PRIMARY KEY,
		team_id       TEXT NOT NULL,
		project_id    TEXT NOT NULL,
		name          TEXT NOT NULL,
		status        TEXT NOT NULL,
		reason        TEXT NOT NULL DEFAULT '',
		message       TEXT NOT NULL DEFAULT '',
		deleting      INTEGER NOT NULL DEFAULT 0, -- 1: remove the row when it has ended
		image         TEXT NOT NULL,
		digest        TEXT NOT NULL DEFAULT '',
		runtime       TEXT NOT NULL,
		runtime_digest TEXT NOT NULL DEFAULT '',
		vcpus         REAL NOT NULL,
		memory_mb     INTEGER NOT NULL,
		disk_mb       INTEGER NOT NULL,
		env           TEXT NOT NULL,            -- JSON object, as asked for
		image_env     TEXT NOT NULL DEFAULT '{}', -- JSON object, of the image and the runtime
		tags          TEXT NOT NULL,            -- JSON object; sandbox_tags holds the same
		user          TEXT NOT NULL,
		workdir       TEXT NOT NULL,
		network       TEXT NOT NULL,            -- JSON of sandbox.Network
		timeout       INTEGER NOT NULL,
		idle_timeout  INTEGER NOT NULL,
		created_at    INTEGER NOT NULL,
		updated_at    INTEGER NOT NULL,
		started_at    INTEGER,
		expires_at    INTEGER,                  -- by the wall clock of the last write; what counts is started_mono
		stopped_at    INTEGER,
		started_mono  INTEGER NOT NULL DEFAULT 0, -- Clock.Mono at the start, in nanoseconds
		boot          TEXT NOT NULL DEFAULT '',   -- Clock.Boot at the start
		guest_token   TEXT NOT NULL,
		cpu           INTEGER NOT NULL DEFAULT 0,
		wall          INTEGER NOT NULL DEFAULT 0,
		memory_peak   INTEGER NOT NULL DEFAULT 0,
		ingress_bytes INTEGER NOT NULL DEFAULT 0,
		egress_bytes  INTEGER NOT NULL DEFAULT 0,
		UNIQUE (project_id, name)
	);
	CREATE INDEX sandboxes_by_team ON sandboxes (team_id, created_at DESC, id DESC);
	CREATE INDEX sandboxes_live ON sandboxes (team_id) WHERE status IN ('pending', 'running', 'paused', 'stopping');
	CREATE TABLE sandbox_tags (
		sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
		key        TEXT NOT NULL,
		value      TEXT NOT NULL,
		PRIMARY KEY (sandbox_id, key)
	);
	CREATE INDEX sandbox_tags_by_value ON sandbox_tags (key, value, sandbox_id);
	CREATE TABLE sandbox_idempotency (
		project_id TEXT NOT NULL,
		key        TEXT NOT NULL,
		request    BLOB NOT NULL, -- SHA-256 of the parameters
		sandbox_id TEXT NOT NULL,
		created_at INTEGER NOT NULL,
		PRIMARY KEY (project_id, key)
	);
	CREATE INDEX sandbox_idempotency_by_age ON sandbox_idempotency (created_at);
	CREATE TABLE sandbox_creates ( -- a token bucket for each team
		team_id TEXT PRIMARY KEY,
		tokens  REAL NOT NULL,
		at      INTEGER NOT NULL
	);`}, {Name: "ports, flow log, sealed policies", SQL: `
	ALTER TABLE sandboxes ADD COLUMN sealed_network BLOB; -- JSON of sandbox.Network, sealed; NULL if network hides nothing of it
	ALTER TABLE sandboxes ADD COLUMN ports TEXT NOT NULL DEFAULT '[]'; -- JSON of []sandbox.Port without URL; sandbox_ports holds the same
	CREATE TABLE sandbox_ports (
		label      TEXT PRIMARY KEY,
		sandbox_id TEXT NOT NULL, -- may be gone: a label outlives its sandbox
		port       INTEGER NOT NULL,
		access     TEXT NOT NULL,
		epoch      INTEGER NOT NULL DEFAULT 0, -- grows when access changes; a link is of one epoch
		created_at INTEGER NOT NULL,
		gone_at    INTEGER
	);
	CREATE UNIQUE INDEX sandbox_ports_declared ON sandbox_ports (sandbox_id, port) WHERE gone_at IS NULL;
	CREATE INDEX sandbox_ports_gone ON sandbox_ports (gone_at) WHERE gone_at IS NOT NULL;
	CREATE TABLE sandbox_flows (
		id         INTEGER PRIMARY KEY, -- in the order they began
		sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
		seq        INTEGER NOT NULL,
		time       INTEGER NOT NULL,
		verdict    TEXT NOT NULL,
		open       INTEGER NOT NULL,
		record     TEXT NOT NULL, -- JSON of sandbox.Flow
		UNIQUE (sandbox_id, seq)
	);`}, {Name: "sessions, snapshots, drives", SQL: `
	-- The machine of a session has its id. Until now, a sandbox had one session, and
	-- its machine the sandbox's id.
	ALTER TABLE sandboxes ADD COLUMN persistent INTEGER NOT NULL DEFAULT 0;
	ALTER TABLE sandboxes ADD COLUMN session_id TEXT NOT NULL DEFAULT '';
	ALTER TABLE sandboxes ADD COLUMN session_timeout INTEGER NOT NULL DEFAULT 0; -- as asked for; timeout is this session's, which grows
	ALTER TABLE sandboxes ADD COLUMN next TEXT NOT NULL DEFAULT '{}';           -- JSON of nextSession
	ALTER TABLE sandboxes ADD COLUMN snapshot_id TEXT NOT NULL DEFAULT '';      -- the next session starts from; '': the image
	ALTER TABLE sandboxes ADD COLUMN hibernation_id TEXT NOT NULL DEFAULT '';   -- the memory snapshot it is hibernated in
	ALTER TABLE sandboxes ADD COLUMN frozen INTEGER NOT NULL DEFAULT 0;         -- 1: the engine may have paused the machine to save it
	ALTER TABLE sandboxes ADD COLUMN snapshot_expiration INTEGER NOT NULL DEFAULT 0;
	ALTER TABLE sandboxes ADD COLUMN retention TEXT NOT NULL DEFAULT '';        -- JSON of sandbox.Retention; '': none
	ALTER TABLE sandboxes ADD COLUMN mounts TEXT NOT NULL DEFAULT '[]';         -- JSON of []sandbox.Mount, drives by id
	ALTER TABLE sandboxes ADD COLUMN drives_mb INTEGER NOT NULL DEFAULT 0;      -- what its drives take of the host's disk, at most
	ALTER TABLE sandboxes ADD COLUMN total_cpu INTEGER NOT NULL DEFAULT 0;      -- of the sessions before
	ALTER TABLE sandboxes ADD COLUMN total_wall INTEGER NOT NULL DEFAULT 0;
	ALTER TABLE sandboxes ADD COLUMN total_memory_peak INTEGER NOT NULL DEFAULT 0;
	ALTER TABLE sandboxes ADD COLUMN total_ingress_bytes INTEGER NOT NULL DEFAULT 0;
	ALTER TABLE sandboxes ADD COLUMN total_egress_bytes INTEGER NOT NULL DEFAULT 0;
	UPDATE sandboxes SET session_id = id, session_timeout = timeout;
	DROP INDEX sandboxes_live;
	CREATE INDEX sandboxes_live ON sandboxes (team_id) WHERE status IN ('pending', 'running', 'paused', 'stopping', 'resuming');
	CREATE INDEX sandboxes_by_snapshot ON sandboxes (snapshot_id) WHERE snapshot_id <> '';
	CREATE TABLE sandbox_sessions (
		id            TEXT PRIMARY KEY,
		sandbox_id    TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
		number        INTEGER NOT NULL,          -- from 1 on, in the sandbox
		status        TEXT NOT NULL,             -- '': it is the sandbox's newest, whose row says the rest too
		reason        TEXT NOT NULL DEFAULT '',
		message       TEXT NOT NULL DEFAULT '',
		source_id     TEXT NOT NULL DEFAULT '',
		snapshot_id   TEXT NOT NULL DEFAULT '',
		vcpus         REAL NOT NULL,
		memory_mb     INTEGER NOT NULL,
		timeout       INTEGER NOT NULL,
		created_at    INTEGER NOT NULL,
		started_at    INTEGER,
		stopped_at    INTEGER,
		cpu           INTEGER NOT NULL DEFAULT 0,
		wall          INTEGER NOT NULL DEFAULT 0,
		memory_peak   INTEGER NOT NULL DEFAULT 0,
		ingress_bytes INTEGER NOT NULL DEFAULT 0,
		egress_bytes  INTEGER NOT NULL DEFAULT 0,
		UNIQUE (sandbox_id, number)
	);
	INSERT INTO sandbox_sessions (id, sandbox_id, number, status, vcpus, memory_mb, timeout, created_at)
		SELECT id, id, 1, '', vcpus, memory_mb, timeout, created_at FROM sandboxes;
	CREATE TABLE sandbox_snapshots (
		id           TEXT PRIMARY KEY,
		team_id      TEXT NOT NULL,
		project_id   TEXT NOT NULL,
		name         TEXT,                       -- NULL: none, also once it is deleted
		kind         TEXT NOT NULL,
		status       TEXT NOT NULL,              -- created, deleted; hibernated: a sandbox's own, which nobody sees
		automatic    INTEGER NOT NULL DEFAULT 0,
		parent_id    TEXT NOT NULL DEFAULT '',
		sandbox_id   TEXT NOT NULL DEFAULT '',   -- may be gone
		sandbox_name TEXT NOT NULL DEFAULT '',
		session_id   TEXT NOT NULL DEFAULT '',
		image        TEXT NOT NULL,
		digest       TEXT NOT NULL,
		runtime      TEXT NOT NULL,
		runtime_digest TEXT NOT NULL,
		image_env    TEXT NOT NULL,              -- as sandboxes.image_env
		user         TEXT NOT NULL,
		workdir      TEXT NOT NULL,
		disk_mb      INTEGER NOT NULL,
		vcpus        REAL NOT NULL,
		memory_mb    INTEGER NOT NULL,
		build        TEXT NOT NULL,
		size_bytes   INTEGER NOT NULL,
		created_at   INTEGER NOT NULL,
		updated_at   INTEGER NOT NULL,
		last_used_at INTEGER,
		expires_at   INTEGER,
		took         INTEGER NOT NULL DEFAULT 0,
		paused       INTEGER NOT NULL DEFAULT 0,
		guest_token  TEXT NOT NULL DEFAULT '',   -- of the processes in a memory snapshot
		extra        TEXT NOT NULL DEFAULT '{}', -- JSON, of what of a memory snapshot is needed to go on
		stored       INTEGER NOT NULL DEFAULT 1  -- 0: its files were removed, or are missing
	);
	CREATE UNIQUE INDEX sandbox_snapshots_named ON sandbox_snapshots (project_id, name) WHERE name IS NOT NULL;
	CREATE INDEX sandbox_snapshots_by_project ON sandbox_snapshots (project_id, created_at DESC, id DESC);
	CREATE INDEX sandbox_snapshots_by_team ON sandbox_snapshots (team_id, created_at DESC, id DESC);
	CREATE INDEX sandbox_snapshots_by_parent ON sandbox_snapshots (parent_id, created_at) WHERE parent_id <> '';
	CREATE INDEX sandbox_snapshots_by_sandbox ON sandbox_snapshots (sandbox_id, created_at);
	CREATE INDEX sandbox_snapshots_gone ON sandbox_snapshots (status, updated_at) WHERE status IN ('deleted', 'discarded');
	CREATE INDEX sandbox_snapshots_expiring ON sandbox_snapshots (expires_at) WHERE expires_at IS NOT NULL AND status = 'created';
	CREATE TABLE sandbox_drives (
		id         TEXT PRIMARY KEY,
		team_id    TEXT NOT NULL,
		project_id TEXT NOT NULL,
		name       TEXT NOT NULL,
		max_mb     INTEGER NOT NULL,
		blob_id    TEXT NOT NULL DEFAULT '', -- what was last saved; '': it is empty
		size_bytes INTEGER NOT NULL DEFAULT 0,
		sandbox_id TEXT,                     -- that has it read-write, from before its machine starts until its end is recorded
		parent_id  TEXT NOT NULL DEFAULT '',
		created_at INTEGER NOT NULL,
		updated_at INTEGER NOT NULL,
		saved_at   INTEGER,
		UNIQUE (project_id, name)
	);
	CREATE INDEX sandbox_drives_by_team ON sandbox_drives (team_id, created_at DESC, id DESC);
	CREATE INDEX sandbox_drives_attached ON sandbox_drives (sandbox_id) WHERE sandbox_id IS NOT NULL;`}, {Name: "annotations, orders of lists", SQL: `
	ALTER TABLE sandboxes ADD COLUMN annotations TEXT NOT NULL DEFAULT '';   -- JSON object; '': none
	ALTER TABLE sandboxes ADD COLUMN status_at INTEGER NOT NULL DEFAULT 0;   -- when status was last changed
	UPDATE sandboxes SET status_at = coalesce(stopped_at, started_at, created_at);
	CREATE INDEX sandboxes_by_name ON sandboxes (team_id, name, id);
	CREATE INDEX sandboxes_by_status_at ON sandboxes (team_id, status_at, id);
	CREATE INDEX sandboxes_by_start ON sandboxes (team_id, snapshot_id, id);
	ALTER TABLE sandbox_snapshots ADD COLUMN annotations TEXT NOT NULL DEFAULT '';
	ALTER TABLE sandbox_drives ADD COLUMN annotations TEXT NOT NULL DEFAULT '';
	ALTER TABLE sandbox_sessions ADD COLUMN team_id TEXT NOT NULL DEFAULT ''; -- its sandbox's
	UPDATE sandbox_sessions SET team_id = (SELECT s.team_id FROM sandboxes s WHERE s.id = sandbox_id);
	CREATE INDEX sandbox_sessions_by_team ON sandbox_sessions (team_id, created_at, id);`}, commandsMigration, {Name: "automatic snapshots go with their sandbox", SQL: `
	ALTER TABLE sandboxes ADD COLUMN keep_snapshots INTEGER NOT NULL DEFAULT 0; -- 1: not with one that is deleting`},
	indexMigration, countsMigration, flowsMigration, programsMigration, {Name: "privileges", SQL: `
	ALTER TABLE sandboxes ADD COLUMN privileges TEXT NOT NULL DEFAULT '';    -- restricted; '': those that the daemon allows`},
	{Name: "saves while a sandbox runs", SQL: `
	ALTER TABLE sandboxes ADD COLUMN save_every INTEGER NOT NULL DEFAULT 0;          -- 0: never
	ALTER TABLE sandbox_snapshots ADD COLUMN periodic INTEGER NOT NULL DEFAULT 0;    -- 1: made while the sandbox ran; the next one replaces it`}}
