package sqlstore

// sqliteFormat is the version of the schema and of the journal's rows. A database with a
// later version is refused.
const sqliteFormat = 1

// Tables carry a prefix, since transactional steps keep their own tables in the
// same file.
//
// n numbers runs in the order in which they were folded. record is authoritative; the
// other columns of workflow_runs exist for queries and for people.
const sqliteSchema = `
CREATE TABLE workflow_meta (name TEXT PRIMARY KEY, value ANY) STRICT, WITHOUT ROWID;

-- One row per commit: what it stored, until that is folded into the tables below.
CREATE TABLE workflow_journal (seq INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT;

CREATE TABLE workflow_runs (
	n INTEGER PRIMARY KEY,
	id TEXT NOT NULL UNIQUE,
	project TEXT NOT NULL,
	workflow TEXT NOT NULL,
	status TEXT NOT NULL,
	key TEXT,
	parent TEXT,
	created_at INTEGER NOT NULL,
	updated_at INTEGER NOT NULL,
	expires_at INTEGER,
	asleep INTEGER NOT NULL, -- it waits for timers and hooks alone
	awake INTEGER NOT NULL,  -- it is to be given to a worker when the engine starts
	events INTEGER NOT NULL,
	record BLOB NOT NULL
) STRICT;
CREATE INDEX workflow_runs_created ON workflow_runs (project, created_at);
CREATE INDEX workflow_runs_status ON workflow_runs (project, status, created_at);
CREATE INDEX workflow_runs_parent ON workflow_runs (parent) WHERE parent IS NOT NULL;
CREATE INDEX workflow_runs_expires ON workflow_runs (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX workflow_runs_awake ON workflow_runs (awake) WHERE awake = 1;
CREATE UNIQUE INDEX workflow_runs_key ON workflow_runs (key, workflow, project) WHERE key IS NOT NULL;

CREATE TABLE workflow_attributes (
	run INTEGER NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (run, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX workflow_attributes_value ON workflow_attributes (name, value);

-- place is n << 24 | the slot of the first of the events.
CREATE TABLE workflow_segments (place INTEGER PRIMARY KEY, events BLOB NOT NULL) STRICT;

CREATE TABLE workflow_timers (
	run INTEGER NOT NULL, id TEXT NOT NULL, at INTEGER NOT NULL, PRIMARY KEY (run, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX workflow_timers_at ON workflow_timers (at);

CREATE TABLE workflow_hooks (
	n INTEGER PRIMARY KEY,
	run INTEGER NOT NULL,
	id TEXT NOT NULL,
	project TEXT NOT NULL,
	token TEXT NOT NULL,
	webhook INTEGER NOT NULL,
	metadata BLOB,
	created_at INTEGER NOT NULL,
	UNIQUE (project, token)
) STRICT;
CREATE INDEX workflow_hooks_run ON workflow_hooks (run);

CREATE TABLE workflow_streams (
	n INTEGER PRIMARY KEY,
	run INTEGER NOT NULL,
	name TEXT NOT NULL,
	chunks INTEGER NOT NULL,
	closed INTEGER NOT NULL,
	UNIQUE (run, name)
) STRICT;
-- place is n of the stream << 31 | the index of the first of the chunks.
CREATE TABLE workflow_chunks (place INTEGER PRIMARY KEY, chunks BLOB NOT NULL) STRICT;

CREATE TABLE workflow_blobs (run TEXT NOT NULL, name TEXT NOT NULL, data BLOB NOT NULL, UNIQUE (run, name)) STRICT;

CREATE TABLE workflow_schedules (
	project TEXT NOT NULL, id TEXT NOT NULL, data TEXT NOT NULL, PRIMARY KEY (project, id)
) STRICT, WITHOUT ROWID;
`

// sqliteFirst adds a column that earlier releases do not have, and that has an index. An
// earlier release leaves it NULL.
const sqliteFirst = `ALTER TABLE workflow_runs ADD COLUMN first TEXT; -- of the run's chain
`

// sqliteIndexes creates missing indexes and drops the ones that an earlier release had
// instead. The earlier release can still use the database.
const sqliteIndexes = `
DROP INDEX IF EXISTS workflow_runs_workflow;
CREATE INDEX IF NOT EXISTS workflow_runs_state ON workflow_runs (project, workflow, status, created_at);
CREATE INDEX IF NOT EXISTS workflow_runs_first ON workflow_runs (first) WHERE first IS NOT NULL;
CREATE INDEX IF NOT EXISTS workflow_streams_name ON workflow_streams (name);
`
