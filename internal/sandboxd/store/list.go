package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cayhq/cay/sandbox"
)

// List returns the rows of a page, and one row more if there is another page.
func (s *Store) List(ctx context.Context, l Listing, p sandbox.ListParams) ([]*Row, error) {
	sc := l.Scope
	few, err := s.fewTagged(ctx, p.Tags)
	if err != nil {
		return nil, err
	}
	from, project, tagged := `sandboxes WHERE team_id = ?`, `project_id = ?`, `EXISTS (SELECT 1 FROM sandbox_tags WHERE sandbox_id = id AND key = ? AND value = ?)`
	byAge := l.By == sandbox.ByCreation
	switch { // the unary plus keeps SQLite from using another index
	case few:
		from, project, tagged = `sandboxes WHERE +team_id = ?`, `+project_id = ?`, `id IN (SELECT sandbox_id FROM sandbox_tags WHERE key = ? AND value = ?)`
	case only(p.Status, sandbox.Pending, sandbox.Resuming, sandbox.Running, sandbox.Paused, sandbox.Stopping):
		from, project = `sandboxes INDEXED BY sandboxes_live WHERE status IN `+live+` AND team_id = ?`, `+project_id = ?`
	case only(p.Status, sandbox.Hibernated, sandbox.Failed):
		from, project = `sandboxes INDEXED BY sandboxes_rare WHERE status IN ('hibernated', 'failed') AND team_id = ?`, `+project_id = ?`
	case byAge && (p.Resumable || len(p.Status) > 0 && !slices.Contains(p.Status, sandbox.Stopped) && !slices.Contains(p.Status, sandbox.Failed)):
		from, project = `sandboxes INDEXED BY sandboxes_resumable WHERE `+isResumable+` AND team_id = ?`, `+project_id = ?`
	case sc.Project != "" && (byAge || l.By == sandbox.ByName):
		from = `sandboxes WHERE +team_id = ?`
	}
	q, args := `SELECT `+columns+` FROM `+from, []any{sc.Team}
	and := func(cond string, a ...any) { q, args = q+" AND "+cond, append(args, a...) }
	if sc.Project != "" {
		and(project, sc.Project)
	}
	if len(p.Status) > 0 {
		and(`status IN (?`+strings.Repeat(`, ?`, len(p.Status)-1)+`)`, anys(p.Status)...)
	}
	if p.Resumable {
		and(isResumable)
	}
	created := `+created_at`
	if byAge {
		created = `created_at`
	}
	createdWithin(and, created, p.CreatedAfter, p.CreatedBefore)
	if p.NamePrefix != "" {
		and(`name >= ? AND name < ?`, p.NamePrefix, p.NamePrefix+afterNames)
	}
	for _, k := range sortedKeys(p.Tags) {
		and(tagged, k, p.Tags[k])
	}
	q, args = l.page(q, args, string(l.By), "id") // each order is named as its column
	return s.all(ctx, q, args...)
}

// maxSorted is the largest number of sandboxes that fewTagged calls few.
const maxSorted = 1000

// fewTagged reports whether one of the tags is on few sandboxes. In that case it is
// faster to select those sandboxes and sort them; SQLite would by itself scan all
// sandboxes of the team in the order asked for.
func (s *Store) fewTagged(ctx context.Context, tags map[string]string) (bool, error) {
	for _, k := range sortedKeys(tags) {
		var n int
		err := s.db.QueryRow(ctx, `SELECT count(*) FROM (SELECT 1 FROM sandbox_tags WHERE key = ? AND value = ? LIMIT ?)`, k, tags[k], maxSorted+1).Scan(&n)
		if err != nil {
			return false, fmt.Errorf("list sandboxes: %w", err)
		}
		if n <= maxSorted {
			return true, nil
		}
	}
	return false, nil
}

// only reports whether only some of the given statuses are asked for.
func only(asked []sandbox.Status, of ...sandbox.Status) bool {
	return len(asked) > 0 && !slices.ContainsFunc(asked, func(s sandbox.Status) bool { return !slices.Contains(of, s) })
}

// createdWithin restricts a list to objects created in a time range.
func createdWithin(and func(cond string, a ...any), column string, after, before time.Time) {
	if !after.IsZero() {
		and(column+` > ?`, after.UnixMilli())
	}
	if !before.IsZero() {
		and(column+` < ?`, before.UnixMilli())
	}
}

// afterNames sorts after every character that a name may contain.
const afterNames = "\x7f"

func anys[T any](s []T) []any {
	a := make([]any, len(s))
	for i := range s {
		a[i] = s[i]
	}
	return a
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
