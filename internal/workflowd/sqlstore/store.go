// Package sqlstore keeps the logs of workflow runs in SQLite, for one process, or in
// PostgreSQL, for several. Both are a workflowd.Store; storetest holds them to one
// behaviour. The package decides nothing about workflows: the engine decides which events
// may be appended to a log.
//
// Files called sqlite*.go implement the SQLite store, postgres*.go the PostgreSQL store;
// store.go has the shared code.
package sqlstore

import (
	"encoding/base64"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

// AttributeSchedule is the attribute of a run that names the schedule that started it;
// history.Query.Schedule selects by it.
const AttributeSchedule = "$schedule"

const (
	defaultLimit = 100
	maxLimit     = 1000
)

// pageLimit returns the size of a page for the requested limit.
func pageLimit(limit int) int {
	if limit <= 0 {
		return defaultLimit
	}
	return min(limit, maxLimit)
}

// cursor is a position in a list that is ordered by a number, and by a second key among
// equal numbers.
type cursor struct {
	at  int64
	tie string
}

func (c cursor) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(c.at, 10) + " " + c.tie))
}

// parseCursor parses the cursor of a page. Errors: invalid.
func parseCursor(s string) (cursor, error) {
	if b, err := base64.RawURLEncoding.DecodeString(s); err == nil {
		if at, tie, ok := strings.Cut(string(b), " "); ok {
			if n, err := strconv.ParseInt(at, 10, 64); err == nil {
				return cursor{n, tie}, nil
			}
		}
	}
	return cursor{}, cay.Errorf(cay.Invalid, "the cursor is not one that a list has given")
}

// condition is the part of a statement behind WHERE, with ? for each argument.
type condition struct {
	terms []string
	args  []any
}

func (c *condition) and(term string, args ...any) {
	c.terms = append(c.terms, term)
	c.args = append(c.args, args...)
}

// sql returns the condition, "true" if it has no terms.
func (c *condition) sql() string {
	if len(c.terms) == 0 {
		return "TRUE"
	}
	return strings.Join(c.terms, " AND ")
}

// runCondition returns the condition that q sets on runs, without statuses, cursor and
// attributes, which the databases implement differently.
func runCondition(q history.Query) *condition {
	c := new(condition)
	if q.Project != "" {
		c.and("project = ?", q.Project)
	}
	if q.Workflow != "" {
		c.and("workflow = ?", q.Workflow)
	}
	if q.Key != "" {
		c.and("key = ?", q.Key)
	}
	if q.Parent != "" {
		c.and("parent = ?", q.Parent)
	}
	if q.Since != 0 {
		c.and("created_at >= ?", q.Since)
	}
	if q.Until != 0 {
		c.and("created_at < ?", q.Until)
	}
	return c
}

// countMost bounds the count of runs of a status, and the number of runs that are
// examined when no index covers the query.
const countMost = 10_000

// noCounts returns zero counts for the states that q asks for.
func noCounts(q history.Query) history.Counts {
	statuses := q.Statuses
	if len(statuses) == 0 {
		statuses = history.Statuses
	}
	counts := make(history.Counts, len(statuses))
	for _, s := range statuses {
		counts[s] = history.Count{}
	}
	return counts
}

// counted returns the Count for n runs; more means that there may be further runs.
func counted(n int, more bool) history.Count {
	return history.Count{Count: min(n, countMost), More: more || n > countMost}
}

// attribute is a condition on one attribute: a run has the attribute, with a given value
// or with any.
type attribute struct {
	name  string
	value *string // nil: any
}

// condition returns the condition on a row of a table of names and values.
func (a attribute) condition() (text string, args []any) {
	if a.value == nil {
		return "name = ?", []any{a.name}
	}
	return "name = ? AND value = ?", []any{a.name, *a.value}
}

// askedAttributes returns the conditions that q sets on attributes, in a fixed order:
// conditions with a value come first.
func askedAttributes(q history.Query) []attribute {
	m := runAttributes(q)
	var asked []attribute
	for _, name := range slices.Sorted(maps.Keys(m)) {
		value := m[name]
		asked = append(asked, attribute{name, &value})
	}
	for _, name := range q.HasAttributes {
		if _, valued := m[name]; !valued {
			asked = append(asked, attribute{name: name})
		}
	}
	return asked
}

// runAttributes returns the attribute values that q asks for.
func runAttributes(q history.Query) map[string]string {
	if q.Schedule == "" {
		return q.Attributes
	}
	m := map[string]string{AttributeSchedule: q.Schedule}
	for k, v := range q.Attributes {
		m[k] = v
	}
	return m
}
