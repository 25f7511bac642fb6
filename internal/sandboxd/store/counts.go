package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/cayhq/cay/internal/db"
)

// countColumns are the counters of a project, which the triggers of countsMigration
// change in the transaction that changes the rows. Quotas and counts read them, because
// counting rows takes time in proportion to the sandboxes that ever ran.
const countColumns = `sandboxes, live, microcpus, memory_mb, disk_mb, snapshots, hibernations, snapshot_bytes, drives, drive_bytes, command_bytes`

// recount counts the rows that the counters stand for. A change of it needs a migration.
const recount = `SELECT team_id, project_id, sum(sandboxes), sum(live), sum(live * microcpus), sum(live * memory_mb), sum(live * disk_mb),
		sum(snapshots), sum(hibernations), sum(snapshot_bytes), sum(drives), sum(drive_bytes), sum(command_bytes) FROM (
	SELECT team_id, project_id, 1 AS sandboxes, status IN ` + live + ` AS live, CAST(round(vcpus * 1000000) AS INTEGER) AS microcpus,
		memory_mb, disk_mb + drives_mb AS disk_mb, 0 AS snapshots, 0 AS hibernations, 0 AS snapshot_bytes, 0 AS drives, 0 AS drive_bytes, 0 AS command_bytes FROM sandboxes
	UNION ALL SELECT team_id, project_id, 0, 0, 0, 0, 0, status = 'created', status = 'hibernated', size_bytes, 0, 0, 0
		FROM sandbox_snapshots WHERE status IN ('created', 'hibernated')
	UNION ALL SELECT team_id, project_id, 0, 0, 0, 0, 0, 0, 0, 0, 1, size_bytes, 0 FROM sandbox_drives
	UNION ALL SELECT team_id, '', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, commands_bytes FROM sandbox_sessions WHERE commands_bytes > 0
	) GROUP BY team_id, project_id`

// countsMigration adds the counters. The kept commands of a team are counted under the
// empty project, because sessions have no project.
var countsMigration = db.Migration{Name: "counters for quotas", SQL: `
	CREATE TABLE sandbox_counts (
		team_id        TEXT NOT NULL,
		project_id     TEXT NOT NULL,
		sandboxes      INTEGER NOT NULL DEFAULT 0,
		live           INTEGER NOT NULL DEFAULT 0, -- sandboxes that have, or may have, a machine
		microcpus      INTEGER NOT NULL DEFAULT 0, -- of those, as the next two
		memory_mb      INTEGER NOT NULL DEFAULT 0,
		disk_mb        INTEGER NOT NULL DEFAULT 0, -- with their drives
		snapshots      INTEGER NOT NULL DEFAULT 0,
		hibernations   INTEGER NOT NULL DEFAULT 0, -- snapshots in which a sandbox is hibernated
		snapshot_bytes INTEGER NOT NULL DEFAULT 0, -- of both
		drives         INTEGER NOT NULL DEFAULT 0,
		drive_bytes    INTEGER NOT NULL DEFAULT 0,
		command_bytes  INTEGER NOT NULL DEFAULT 0,
		PRIMARY KEY (team_id, project_id)
	) WITHOUT ROWID;
	INSERT INTO sandbox_counts (team_id, project_id, ` + countColumns + `) ` + recount + `;` +
	countTrigger("sandboxes", "sandboxes_inserted", "INSERT", "", "new", "project_id", sandboxCounts("new", "+")) +
	countTrigger("sandboxes", "sandboxes_deleted", "DELETE", "", "old", "project_id", sandboxCounts("old", "-")) +
	countTrigger("sandboxes", "sandboxes_before", "UPDATE OF status, vcpus, memory_mb, disk_mb, drives_mb", sandboxMoved, "old", "project_id", sandboxCounts("old", "-")) +
	countTrigger("sandboxes", "sandboxes_after", "UPDATE OF status, vcpus, memory_mb, disk_mb, drives_mb", sandboxMoved, "new", "project_id", sandboxCounts("new", "+")) +
	countTrigger("sandbox_snapshots", "snapshots_inserted", "INSERT", "", "new", "project_id", snapshotCounts("new", "+")) +
	countTrigger("sandbox_snapshots", "snapshots_deleted", "DELETE", "", "old", "project_id", snapshotCounts("old", "-")) +
	countTrigger("sandbox_snapshots", "snapshots_before", "UPDATE OF status, size_bytes", "", "old", "project_id", snapshotCounts("old", "-")) +
	countTrigger("sandbox_snapshots", "snapshots_after", "UPDATE OF status, size_bytes", "", "new", "project_id", snapshotCounts("new", "+")) +
	countTrigger("sandbox_drives", "drives_inserted", "INSERT", "", "new", "project_id", driveCounts("new", "+")) +
	countTrigger("sandbox_drives", "drives_deleted", "DELETE", "", "old", "project_id", driveCounts("old", "-")) +
	countTrigger("sandbox_drives", "drives_before", "UPDATE OF size_bytes", "", "old", "project_id", driveCounts("old", "-")) +
	countTrigger("sandbox_drives", "drives_after", "UPDATE OF size_bytes", "", "new", "project_id", driveCounts("new", "+")) +
	countTrigger("sandbox_sessions", "commands_inserted", "INSERT", "new.commands_bytes > 0", "new", "", commandCounts("new", "+")) +
	countTrigger("sandbox_sessions", "commands_deleted", "DELETE", "old.commands_bytes > 0", "old", "", commandCounts("old", "-")) +
	countTrigger("sandbox_sessions", "commands_before", "UPDATE OF commands_bytes", "old.commands_bytes > 0", "old", "", commandCounts("old", "-")) +
	countTrigger("sandbox_sessions", "commands_after", "UPDATE OF commands_bytes", "new.commands_bytes > 0", "new", "", commandCounts("new", "+"))}

// sandboxMoved is the condition that an update of a sandbox changes the counters.
const sandboxMoved = `(old.status IN ` + live + `) <> (new.status IN ` + live + `) OR new.status IN ` + live + `
	AND (old.vcpus, old.memory_mb, old.disk_mb + old.drives_mb) <> (new.vcpus, new.memory_mb, new.disk_mb + new.drives_mb)`

// count is a counter and the expression that a trigger adds to it, with its sign.
type count struct{ column, add string }

func sandboxCounts(row, sign string) []count {
	times := sign + `(` + row + `.status IN ` + live + `) * `
	return []count{
		{"sandboxes", sign + "1"},
		{"live", times + "1"},
		{"microcpus", times + `CAST(round(` + row + `.vcpus * 1000000) AS INTEGER)`},
		{"memory_mb", times + row + `.memory_mb`},
		{"disk_mb", times + `(` + row + `.disk_mb + ` + row + `.drives_mb)`},
	}
}

func snapshotCounts(row, sign string) []count {
	return []count{
		{"snapshots", sign + `(` + row + `.status = 'created')`},
		{"hibernations", sign + `(` + row + `.status = 'hibernated')`},
		{"snapshot_bytes", sign + `(` + row + `.status IN ('created', 'hibernated')) * ` + row + `.size_bytes`},
	}
}

func driveCounts(row, sign string) []count {
	return []count{{"drives", sign + "1"}, {"drive_bytes", sign + row + ".size_bytes"}}
}

func commandCounts(row, sign string) []count {
	return []count{{"command_bytes", sign + row + ".commands_bytes"}}
}

// countTrigger returns the statement that makes a trigger, which adds counts of a row,
// "new" or "old", to the counters of the row's project.
func countTrigger(table, name, event, when, row, project string, counts []count) string {
	columns, values, sets := "", "", ""
	for i, c := range counts {
		if i > 0 {
			sets += ", "
		}
		columns += ", " + c.column
		values += ", " + c.add
		sets += c.column + " = " + c.column + " + excluded." + c.column
	}
	if when != "" {
		when = " WHEN " + when
	}
	if project = row + "." + project; project == row+"." {
		project = "''"
	}
	return `
	CREATE TRIGGER sandbox_counts_` + name + ` AFTER ` + event + ` ON ` + table + when + ` BEGIN
		INSERT INTO sandbox_counts (team_id, project_id` + columns + `) VALUES (` + row + `.team_id, ` + project + values + `)
			ON CONFLICT (team_id, project_id) DO UPDATE SET ` + sets + `;
	END;`
}

// counts are the counters of a team or a project.
type counts struct {
	sandboxes, live, microcpus, memoryMB, diskMB               int64
	snapshots, hibernations, snapshotBytes, drives, driveBytes int64
	commandBytes                                               int64
}

func (c *counts) columns() []any {
	return []any{&c.sandboxes, &c.live, &c.microcpus, &c.memoryMB, &c.diskMB,
		&c.snapshots, &c.hibernations, &c.snapshotBytes, &c.drives, &c.driveBytes, &c.commandBytes}
}

// countsOfTeam sums up the counters of a team's projects, of which there are at most a
// thousand.
const countsOfTeam = `SELECT coalesce(sum(sandboxes), 0), coalesce(sum(live), 0), coalesce(sum(microcpus), 0), coalesce(sum(memory_mb), 0), coalesce(sum(disk_mb), 0),
	coalesce(sum(snapshots), 0), coalesce(sum(hibernations), 0), coalesce(sum(snapshot_bytes), 0), coalesce(sum(drives), 0), coalesce(sum(drive_bytes), 0),
	coalesce(sum(command_bytes), 0) FROM sandbox_counts WHERE team_id = ?`

const countsOfProject = `SELECT ` + countColumns + ` FROM sandbox_counts WHERE team_id = ? AND project_id = ?`

// countsOf returns the counters of a scope.
func countsOf(ctx context.Context, q rowQuerier, sc Scope) (c counts, err error) {
	if sc.Project == "" {
		err = q.QueryRow(ctx, countsOfTeam, sc.Team).Scan(c.columns()...)
	} else {
		err = q.QueryRow(ctx, countsOfProject, sc.Team, sc.Project).Scan(c.columns()...)
	}
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return counts{}, fmt.Errorf("read counters: %w", err)
	}
	return c, nil
}

// Count returns how many sandboxes, snapshots and drives a team has, or one of its
// projects.
func (s *Store) Count(ctx context.Context, sc Scope) (sandboxes, snapshots, drives int, err error) {
	c, err := countsOf(ctx, s.db, sc)
	return int(c.sandboxes), int(c.snapshots), int(c.drives), err
}

// CheckCounts compares the counters with a count of the rows, and mends counters that
// differ. It returns a description of each difference. Writers wait only while counters
// are mended.
func (s *Store) CheckCounts(ctx context.Context) (mended []string, err error) {
	if err := s.db.Read(ctx, func(tx *db.Tx) error {
		mended, err = wrongCounts(ctx, tx)
		return err
	}); err != nil || len(mended) == 0 {
		return nil, err
	}
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		if mended, err = wrongCounts(ctx, tx); err != nil || len(mended) == 0 {
			return err
		}
		if _, err := tx.Exec(ctx, `DELETE FROM sandbox_counts`); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO sandbox_counts (team_id, project_id, `+countColumns+`) `+recount)
		return err
	})
	return mended, err
}

// wrongCounts describes the counters that differ from a count of the rows.
func wrongCounts(ctx context.Context, q db.Querier) ([]string, error) {
	kept, err := countsByProject(ctx, q, `SELECT team_id, project_id, `+countColumns+` FROM sandbox_counts`)
	if err != nil {
		return nil, err
	}
	counted, err := countsByProject(ctx, q, recount)
	if err != nil {
		return nil, err
	}
	var wrong []string
	for sc, want := range counted {
		if have := kept[sc]; have != want {
			wrong = append(wrong, fmt.Sprintf("project %q of team %q has %+v, counted as %+v", sc.Project, sc.Team, want, have))
		}
	}
	for sc, have := range kept {
		if _, ok := counted[sc]; !ok && have != (counts{}) {
			wrong = append(wrong, fmt.Sprintf("project %q of team %q has nothing, counted as %+v", sc.Project, sc.Team, have))
		}
	}
	return wrong, nil
}

func countsByProject(ctx context.Context, q db.Querier, query string) (map[Scope]counts, error) {
	all := make(map[Scope]counts)
	_, err := db.Collect(ctx, q, func(row db.Scanner) (none struct{}, err error) {
		var sc Scope
		var c counts
		err = row.Scan(append([]any{&sc.Team, &sc.Project}, c.columns()...)...)
		all[sc] = c
		return none, err
	}, query)
	if err != nil {
		return nil, fmt.Errorf("read counters: %w", err)
	}
	return all, nil
}
