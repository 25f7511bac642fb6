package sandboxd

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/sandbox"
)

// sorting is how a list is sorted: by one column, and objects alike in that by id.
type sorting struct {
	by        sandbox.Order
	ascending bool
}

// newestFirst is how a list is sorted of which nothing was said.
var newestFirst = sorting{by: sandbox.ByCreation}

// sortedBy returns how a list is sorted.
func sortedBy(by sandbox.Order, ascending bool) sorting {
	if by == "" {
		by = sandbox.ByCreation
	}
	return sorting{by, ascending}
}

func (s sorting) String() string {
	switch {
	case s == newestFirst:
		return ""
	case s.ascending:
		return string(s.by) + " asc"
	}
	return string(s.by) + " desc"
}

// listing is a page of a list that is asked for: of what, how it is sorted, from
// where on, and how many. A row after these says that there is another page.
type listing struct {
	sorting
	scope scope
	after cursor
	limit int
}

// listing reads what was asked for of a list of what. Errors: invalid, not_found
// (the project).
func (e *Engine) listing(ctx context.Context, sc scope, what, project string, by sorting, from string, limit int) (l listing, err error) {
	if l, err = newListing(what, by, from, limit); err != nil {
		return l, err
	}
	l.scope, err = e.listed(ctx, sc, project)
	return l, err
}

// newListing is listing for what is not of projects.
func newListing(what string, by sorting, from string, limit int) (l listing, err error) {
	l.sorting = by
	if l.limit = limit; limit == 0 {
		l.limit = 50
	}
	l.after, err = parseCursor(what, by, from)
	return l, err
}

// page adds to a query, which ends in a condition, what selects the page. column
// and id are what the list is sorted by.
func (l listing) page(query string, args []any, column, id string) (string, []any) {
	than, way := "<", "DESC"
	if l.ascending {
		than, way = ">", "ASC"
	}
	if l.after.ID != "" {
		query += fmt.Sprintf(" AND (%s, %s) %s (?, ?)", column, id, than)
		args = append(args, l.after.Key, l.after.ID)
	}
	query += fmt.Sprintf(" ORDER BY %s %s, %s %s LIMIT ?", column, way, id, way)
	return query, append(args, l.limit+1)
}

// cut returns the rows of a page, of up to one more, and the cursor of the next.
// at returns what a row is sorted by, and its id.
func cut[R any](l listing, rows []R, at func(R) (key any, id string)) (_ []R, next string) {
	if len(rows) <= l.limit {
		return rows, ""
	}
	rows = rows[:l.limit]
	key, id := at(rows[l.limit-1])
	return rows, cursor{l.sorting.String(), key, id}.String()
}

// listed returns what a list is of: the project asked for, or all that the caller
// reaches for "*" and, in a team without a default project, for none.
func (e *Engine) listed(ctx context.Context, sc scope, asked string) (_ scope, err error) {
	whole := asked == "" && sc.project == "" && sc.team != account.DefaultTeam
	if asked != "*" && !whole {
		sc.project, err = e.project(ctx, sc, asked)
	}
	return sc, err
}

// cursor is where a page of a list begins: after the object it names.
type cursor struct {
	Sorting string `json:"o,omitempty"`
	Key     any    `json:"k"` // what the list is sorted by: a string or an int64
	ID      string `json:"i"`
}

func (c cursor) String() string {
	b, _ := json.Marshal(c) // numbers and strings always encode
	return base64.RawURLEncoding.EncodeToString(b)
}

// parseCursor reads a cursor of a list of what that is sorted by.
func parseCursor(what string, by sorting, s string) (c cursor, err error) {
	if s == "" {
		return c, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err == nil {
		dec := json.NewDecoder(bytes.NewReader(b))
		dec.UseNumber()
		err = dec.Decode(&c)
	}
	if n, ok := c.Key.(json.Number); ok && err == nil {
		c.Key, err = n.Int64()
	}
	_, text := c.Key.(string)
	_, number := c.Key.(int64)
	if wantsText := by.by == sandbox.ByName || by.by == sandbox.BySnapshot; err != nil || c.ID == "" || text != wantsText || number == wantsText {
		return c, cay.Errorf(cay.Invalid, "cursor %.100q is not one of a list of %s", s, what).
			WithHint("pass the next field of the page before")
	}
	if c.Sorting != by.String() {
		return c, cay.Errorf(cay.Invalid, "cursor %.100q is of a list of %s in another order", s, what).
			WithHint("ask for all pages of a list in one order")
	}
	return c, nil
}
