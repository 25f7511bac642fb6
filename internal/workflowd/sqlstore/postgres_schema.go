package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cayhq/cay"
)

// postgresMigrations create the schema; their number is the schema's version, and a
// database with a higher version is refused. "cay." in statements stands for the schema
// in use, see Postgres.sql; names below it carry no prefix.
//
// Ids are compared byte by byte (COLLATE "C"), as Go does.
var postgresMigrations = []string{`
-- Processes that share the database. Runs name their owner by its epoch, which is
-- never given twice. An ended one is kept for as long as there are runs of it.
CREATE TABLE cay.owners (
	epoch integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	name text NOT NULL,
	process text NOT NULL,
	lease_until timestamptz NOT NULL,
	ended boolean NOT NULL DEFAULT false
);

CREATE TABLE cay.runs (
	id text COLLATE "C" PRIMARY KEY,
	project text NOT NULL,
	workflow text NOT NULL,
	status text NOT NULL,
	build text NOT NULL,
	key text NOT NULL,
	run_group text NOT NULL,
	priority integer NOT NULL,
	parent text COLLATE "C" NOT NULL,
	root text COLLATE "C" NOT NULL,
	previous text COLLATE "C" NOT NULL,
	next text COLLATE "C" NOT NULL,
	attributes jsonb, -- NULL for none
	created_at bigint NOT NULL,
	not_before bigint NOT NULL,
	started_at bigint NOT NULL,
	completed_at bigint NOT NULL,
	updated_at bigint NOT NULL, -- as of when the row was written; the log may be ahead
	expires_at bigint NOT NULL,
	cancel_requested boolean NOT NULL,
	cancel_reason text NOT NULL,
	error_code text NOT NULL,
	recoveries integer NOT NULL,
	events bigint NOT NULL, -- as updated_at
	owner integer NOT NULL, -- 0: nobody
	asleep boolean NOT NULL DEFAULT false -- it waits for timers and hooks alone
) WITH (fillfactor = 80);
CREATE INDEX runs_created ON cay.runs (created_at, id);
CREATE INDEX runs_project ON cay.runs (project, created_at, id);
CREATE INDEX runs_workflow ON cay.runs (workflow, created_at, id);
CREATE INDEX runs_status ON cay.runs (status, created_at, id);
CREATE INDEX runs_key ON cay.runs (key) WHERE key <> '';
CREATE INDEX runs_parent ON cay.runs (parent) WHERE parent <> '';
-- What is claimed when its owner has died, in the order in which it is: see
-- pgClaimable. Those that wait for timers and hooks alone, and those that do not.
CREATE INDEX runs_awake ON cay.runs (owner, workflow, project, priority DESC, id)
	WHERE status IN ('pending', 'running') AND NOT asleep AND (status = 'running' OR not_before = 0);
CREATE INDEX runs_asleep ON cay.runs (owner, workflow, project, priority DESC, id)
	WHERE status IN ('pending', 'running') AND NOT (NOT asleep AND (status = 'running' OR not_before = 0));
CREATE INDEX runs_running ON cay.runs (workflow, project, run_group) WHERE status = 'running';
CREATE INDEX runs_expires ON cay.runs (expires_at) WHERE expires_at <> 0;
CREATE INDEX runs_attributes ON cay.runs USING gin (attributes jsonb_path_ops) WHERE attributes IS NOT NULL;

-- One row for the events of a run in one commit. slot and at are the last one's.
CREATE TABLE cay.events (
	run text COLLATE "C" NOT NULL,
	slot bigint NOT NULL,
	at bigint NOT NULL,
	data bytea NOT NULL,
	PRIMARY KEY (run, slot)
);
ALTER TABLE cay.events ALTER COLUMN data SET STORAGE EXTERNAL; -- large payloads are compressed already

CREATE TABLE cay.timers (
	run text COLLATE "C" NOT NULL,
	id text COLLATE "C" NOT NULL,
	at bigint NOT NULL,
	PRIMARY KEY (run, id)
);
CREATE INDEX timers_at ON cay.timers (at);

-- created_at is 0 while a token is claimed and its hook not yet made, which nobody
-- sees but the transaction that does both.
CREATE TABLE cay.hooks (
	project text NOT NULL,
	token text NOT NULL,
	run text COLLATE "C" NOT NULL,
	id text COLLATE "C" NOT NULL,
	webhook boolean NOT NULL DEFAULT false,
	metadata bytea,
	created_at bigint NOT NULL DEFAULT 0,
	PRIMARY KEY (project, token)
);
CREATE INDEX hooks_run ON cay.hooks (run);
CREATE INDEX hooks_created ON cay.hooks (created_at, run, id);

-- Idempotency keys of starts.
CREATE TABLE cay.starts (
	project text NOT NULL,
	workflow text NOT NULL,
	key text NOT NULL,
	run text COLLATE "C" NOT NULL,
	PRIMARY KEY (project, workflow, key)
);
CREATE INDEX starts_run ON cay.starts (run);

CREATE TABLE cay.streams (
	run text COLLATE "C" NOT NULL,
	name text COLLATE "C" NOT NULL,
	chunks bigint NOT NULL,
	closed boolean NOT NULL,
	PRIMARY KEY (run, name)
) WITH (fillfactor = 80);

CREATE TABLE cay.chunks (
	run text COLLATE "C" NOT NULL,
	stream text COLLATE "C" NOT NULL,
	index bigint NOT NULL,
	data bytea NOT NULL,
	PRIMARY KEY (run, stream, index)
);
ALTER TABLE cay.chunks ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE cay.blobs (
	run text COLLATE "C" NOT NULL,
	name text COLLATE "C" NOT NULL,
	data bytea NOT NULL,
	PRIMARY KEY (run, name)
);
ALTER TABLE cay.blobs ALTER COLUMN data SET STORAGE EXTERNAL;

-- What others ask the owner of a run to append.
CREATE TABLE cay.inbox (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	run text COLLATE "C" NOT NULL,
	event bytea NOT NULL
);
CREATE INDEX inbox_run ON cay.inbox (run);

CREATE TABLE cay.schedules (
	project text NOT NULL,
	id text COLLATE "C" NOT NULL,
	data jsonb NOT NULL,
	PRIMARY KEY (project, id)
);

-- fence fails unless e is the epoch of a process that may write. It is called first
-- in every transaction that writes. Who ends a registration takes the same lock
-- exclusively, so that it waits for transactions that have passed the fence, and
-- those that come later see that it is ended.
CREATE FUNCTION cay.fence(e integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_xact_lock_shared(fence_class, e);
	IF NOT EXISTS (SELECT FROM cay.owners WHERE epoch = e AND NOT ended) THEN
		RAISE EXCEPTION 'the registration of this process has been ended' USING ERRCODE = 'CY001';
	END IF;
END $$;
`, `
-- Lists by status and by workflow, and what counts runs by status.
CREATE INDEX runs_project_status ON cay.runs (project, status, created_at, id);
CREATE INDEX runs_state ON cay.runs (project, workflow, status, created_at, id);
DROP INDEX cay.runs_status;
DROP INDEX cay.runs_workflow;
-- It also finds runs that have an attribute, whatever its value.
DROP INDEX cay.runs_attributes;
CREATE INDEX runs_attributes ON cay.runs USING gin (attributes) WHERE attributes IS NOT NULL;
`, `
-- What the owner has decided about a message whose sender waits for that: '' or the
-- code of a refusal, and why. The sender deletes it. NULL: it is not decided.
ALTER TABLE cay.inbox ADD COLUMN verdict text, ADD COLUMN why text;
`, `
-- The run that the run's chain began with.
ALTER TABLE cay.runs ADD COLUMN first text COLLATE "C" NOT NULL DEFAULT '';
CREATE INDEX runs_first ON cay.runs (first) WHERE first <> '';
`, `
-- The runtime that replays the run's code, '' for Go's, and what is kept for it.
ALTER TABLE cay.runs ADD COLUMN kind text NOT NULL DEFAULT '', ADD COLUMN extra bytea;
CREATE INDEX streams_name ON cay.streams (name);
`, postgresMessages, `
CREATE TABLE cay.limits (
	project text NOT NULL,
	workflow text COLLATE "C" NOT NULL,
	data jsonb NOT NULL,
	state jsonb NOT NULL DEFAULT '{}', -- letInState
	PRIMARY KEY (project, workflow)
);
`, postgresPriority}

const fencedOff = "CY001" // SQLSTATE of fence's refusal

// lockClasses returns the classes of a schema's advisory locks: the locks that fence
// takes, and the lock that a process's session holds as long as it is connected.
func lockClasses(schema string) (fence, session int32) {
	h := fnv.New32a()
	h.Write([]byte("cay workflows " + schema))
	fence = int32(h.Sum32() &^ 1)
	return fence, fence | 1
}

// migrate upgrades the schema to the version of this release.
func (p *Postgres) migrate(ctx context.Context, conn *pgx.Conn) error {
	var server int
	if err := conn.QueryRow(ctx, "SELECT current_setting('server_version_num')::int").Scan(&server); err != nil {
		return err
	}
	if server < 130000 {
		return cay.Errorf(cay.NotSupported, "the server is PostgreSQL %d; 13 or later is needed", server/10000)
	}
	// Without this check, processes that only use the schema would need the right to
	// create it.
	if version, err := p.version(ctx, conn); err != nil || version == len(postgresMigrations) {
		return err
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1, 0)", p.fenceClass); err != nil {
			return err
		}
		version, err := p.version(ctx, conn) // another process may have migrated first
		if err != nil {
			return err
		}
		if version == 0 {
			// An administrator may have created the empty schema; then the right to
			// create one is not needed.
			var there bool
			if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", p.o.Schema).Scan(&there); err != nil {
				return err
			}
			if !there {
				if _, err := tx.Exec(ctx, "CREATE SCHEMA "+p.quoted); err != nil {
					return err
				}
			}
			for _, s := range []string{"CREATE TABLE cay.schema_version (version integer NOT NULL)", "INSERT INTO cay.schema_version VALUES (0)"} {
				if _, err := tx.Exec(ctx, p.sql(s)); err != nil {
					return err
				}
			}
		}
		for i, text := range postgresMigrations[version:] {
			text = strings.ReplaceAll(p.sql(text), "fence_class", fmt.Sprint(p.fenceClass))
			if _, err := tx.Exec(ctx, text); err != nil {
				return fmt.Errorf("migration %d: %w", version+i+1, err)
			}
		}
		_, err = tx.Exec(ctx, p.sql("UPDATE cay.schema_version SET version = $1"), len(postgresMigrations))
		return err
	})
}

// version returns the version of the schema, 0 if the schema does not exist.
func (p *Postgres) version(ctx context.Context, conn *pgx.Conn) (int, error) {
	var there bool
	// to_regclass would not see tables that were created while this process waited for
	// the lock.
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = 'schema_version')`, p.o.Schema).Scan(&there); err != nil || !there {
		return 0, err
	}
	var version int
	err := conn.QueryRow(ctx, p.sql("SELECT version FROM cay.schema_version")).Scan(&version)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, cay.Errorf(cay.Internal, "the schema %s is damaged: it does not say its version", p.quoted)
	case err == nil && version > len(postgresMigrations):
		return 0, cay.Errorf(cay.NotSupported, "the schema %s was made by a later release (version %d; this one knows %d)", p.quoted, version, len(postgresMigrations))
	}
	return version, err
}
