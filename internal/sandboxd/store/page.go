package store

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// Sorting is the order of a list: by one column, then by id.
type Sorting struct {
	By        sandbox.Order
	ascending bool
}

// newestFirst is the default order of a list.
var newestFirst = Sorting{By: sandbox.ByCreation}

// ByNumber is the order of the sessions of one sandbox.
const ByNumber sandbox.Order = "number"

// SortedBy returns the Sorting by a column, or the default one if by is empty.
func SortedBy(by sandbox.Order, ascending bool) Sorting {
	if by == "" {
		by = sandbox.ByCreation
	}
	return Sorting{by, ascending}
}

func (s Sorting) String() string {
	switch {
	case s == newestFirst:
		return ""
	case s.ascending:
		return string(s.By) + " asc"
	}
	return string(s.By) + " desc"
}

// Listing is a request for a page of a list: scope, order, start and number of rows. The
// queries select one row more than the page has; the extra row says that there is another
// page.
type Listing struct {
	Sorting
	Scope Scope
	after cursor
	limit int
}

// NewListing parses the order, cursor and limit of a request for a list; what names the
// objects. Errors: invalid.
func NewListing(what string, by Sorting, from string, limit int) (l Listing, err error) {
	l.Sorting = by
	if l.limit = limit; limit == 0 {
		l.limit = 50
	}
	l.after, err = parseCursor(what, by, from)
	return l, err
}

// page appends to a query, which ends in a condition, the condition, order and limit that
// select the page. The list is sorted by column, then by id.
func (l Listing) page(query string, args []any, column, id string) (string, []any) {
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

// Cut takes the rows of a query, one more than a page at most, and returns the page and
// the cursor of the next page. at returns the sort key and the id of a row.
func Cut[R any](l Listing, rows []R, at func(R) (key any, id string)) (_ []R, next string) {
	if len(rows) <= l.limit {
		return rows, ""
	}
	rows = rows[:l.limit]
	key, id := at(rows[l.limit-1])
	return rows, cursor{l.Sorting.String(), key, id}.String()
}

// cursor marks the start of a page: after the object that it names.
type cursor struct {
	Sorting string `json:"o,omitempty"`
	Key     any    `json:"k"` // the sort key: a string or an int64
	ID      string `json:"i"`
}

func (c cursor) String() string {
	b, _ := json.Marshal(c) // encoding numbers and strings cannot fail
	return base64.RawURLEncoding.EncodeToString(b)
}

// parseCursor decodes a cursor of a list of what with the order by.
func parseCursor(what string, by Sorting, s string) (c cursor, err error) {
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
	if wantsText := by.By == sandbox.ByName || by.By == sandbox.BySnapshot; err != nil || c.ID == "" || text != wantsText || number == wantsText {
		return c, cay.Errorf(cay.Invalid, "cursor %.100q is not one of a list of %s", s, what).
			WithHint("pass the next field of the page before")
	}
	if c.Sorting != by.String() {
		return c, cay.Errorf(cay.Invalid, "cursor %.100q is of a list of %s in another order", s, what).
			WithHint("ask for all pages of a list in one order")
	}
	return c, nil
}
