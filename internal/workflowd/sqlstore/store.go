// Package sqlstore keeps the logs of workflow runs in SQLite, for one process, or
// in PostgreSQL, for several. Both are a workflowd.Store; storetest holds them to
// one behaviour. The package decides nothing about workflows: what may be appended
// to a log is the engine's business.
//
// Files called sqlite*.go are about the one, postgres*.go about the other; this
// one has what they share.
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

// AttributeSchedule is the attribute of a run that says which schedule started it:
// what history.Query.Schedule asks for.
const AttributeSchedule = "$schedule"

const (
	defaultLimit = 100
	maxLimit     = 1000
)

// pageLimit is the size of a page that was asked for.
func pageLimit(limit int) int {
	if limit <= 0 {
		return defaultLimit
	}
	return min(limit, maxLimit)
}

// cursor is a place in a list that is ordered by a number, and by another thing
// among equal ones.
type cursor struct {
	at  int64
	tie string
}

func (c cursor) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(c.at, 10) + " " + c.tie))
}

// parseCursor reads a cursor that a page has given. Errors: invalid.
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

// sql is the condition, true if it asks nothing.
func (c *condition) sql() string {
	if len(c.terms) == 0 {
		return "TRUE"
	}
	return strings.Join(c.terms, " AND ")
}

// runCondition is what q asks of a run, but for statuses, the cursor and
// attributes, which databases differ in.
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

// countMost is up to how many runs of a status are counted, and how many are looked at
// where no index says what is asked.
const countMost = 10_000

// noCounts are the counts of the states that q asks for, before anything is counted.
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

// counted is what is said of n runs, where more says that there may be others.
func counted(n int, more bool) history.Count {
	return history.Count{Count: min(n, countMost), More: more || n > countMost}
}

// attribute is what is asked of one: that a run has it, with a value or any.
type attribute struct {
	name  string
	value *string // nil: any
}

// condition is what is asked of a row of a table of names and values.
func (a attribute) condition() (text string, args []any) {
	if a.value == nil {
		return "name = ?", []any{a.name}
	}
	return "name = ? AND value = ?", []any{a.name, *a.value}
}

// askedAttributes is what q asks of attributes, in the same order each time: those
// with a value first.
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

// runAttributes is what q asks of a run's attributes.
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
