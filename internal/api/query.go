package api

import (
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cayhq/cay"
)

// Query reads the parameters in a request's URL. Each method reads one
// parameter, given at most once unless the method says otherwise; Err then
// reports the first wrong parameter, or a parameter that no method has read.
type Query struct {
	values url.Values
	taken  map[string]bool
	err    error
}

// ParseQuery returns the parameters of r.
func ParseQuery(r *http.Request) *Query {
	values, err := url.ParseQuery(r.URL.RawQuery)
	q := &Query{values: values, taken: make(map[string]bool)}
	if err != nil {
		q.err = cay.Errorf(cay.Invalid, "the query of the URL is malformed: %v", err)
	}
	return q
}

// Err returns the first error, invalid, and nil if all parameters were valid
// and known. Call it after all parameters were read.
func (q *Query) Err() error {
	if q.err != nil {
		return q.err
	}
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for k := range q.values {
			if !yield(k) {
				return
			}
		}
	}) {
		if !q.taken[name] {
			known := make([]string, 0, len(q.taken))
			for k := range q.taken {
				known = append(known, k)
			}
			slices.Sort(known)
			e := cay.Errorf(cay.Invalid, "unknown query parameter %q", name)
			if len(known) == 0 {
				return e.WithHint("this route takes none")
			}
			return e.WithHint("this route takes %s", strings.Join(known, ", "))
		}
	}
	return nil
}

func (q *Query) fail(format string, args ...any) {
	if q.err == nil {
		q.err = cay.Errorf(cay.Invalid, format, args...)
	}
}

// Has reports whether the parameter was given, even if empty.
func (q *Query) Has(name string) bool {
	return q.values.Has(name)
}

// String returns the parameter, empty if it is missing.
func (q *Query) String(name string) string {
	q.taken[name] = true
	v := q.values[name]
	if len(v) > 1 {
		q.fail("query parameter %q is there %d times", name, len(v))
	}
	if len(v) == 0 {
		return ""
	}
	return v[0]
}

// Required returns a parameter that must be present and not empty.
func (q *Query) Required(name string) string {
	v := q.String(name)
	if v == "" {
		q.fail("query parameter %q is missing", name)
	}
	return v
}

// Strings returns a parameter that may be given up to limit times.
func (q *Query) Strings(name string, limit int) []string {
	q.taken[name] = true
	v := q.values[name]
	if len(v) > limit {
		q.fail("query parameter %q is there %d times, at most %d are taken", name, len(v), limit)
	}
	return v
}

// Int returns a whole number from low to high; def if the parameter is missing.
func (q *Query) Int(name string, low, high, def int64) int64 {
	s := q.String(name)
	if s == "" && !q.Has(name) {
		return def
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < low || n > high {
		if high == math.MaxInt64 {
			q.fail("query parameter %q is %q, not a whole number of at least %d", name, s, low)
		} else {
			q.fail("query parameter %q is %q, not a whole number from %d to %d", name, s, low, high)
		}
		return def
	}
	return n
}

// Time returns a time in RFC 3339; the zero time for a missing parameter.
func (q *Query) Time(name string) time.Time {
	s := q.String(name)
	if s == "" && !q.Has(name) {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		q.fail("query parameter %q is %q, not a time such as 2026-11-20T12:00:00.5Z", name, s)
	}
	return t
}

// Octal returns permission bits such as 0644, at most 07777; 0 if missing.
func (q *Query) Octal(name string) uint32 {
	s := q.String(name)
	if s == "" && !q.Has(name) {
		return 0
	}
	n, err := strconv.ParseUint(s, 8, 32)
	if err != nil || n > 0o7777 {
		q.fail("query parameter %q is %q, not permission bits in octal such as 0644", name, s)
	}
	return uint32(n)
}

// Bool returns true for "true", "1" and a parameter without value; false for
// "false", "0" and a missing parameter.
func (q *Query) Bool(name string) bool {
	switch s := q.String(name); s {
	case "":
		return q.Has(name)
	case "true", "1":
		return true
	case "false", "0":
		return false
	default:
		q.fail("query parameter %q is %q, not true or false", name, s)
		return false
	}
}

// Enum returns one of the allowed values; def if the parameter is missing.
func (q *Query) Enum(name, def string, allowed ...string) string {
	s := q.String(name)
	if s == "" && !q.Has(name) {
		return def
	}
	if !slices.Contains(allowed, s) {
		q.fail("query parameter %q is %q, not one of %s", name, s, strings.Join(allowed, ", "))
		return def
	}
	return s
}

// NoQuery refuses query parameters on a route without any.
func NoQuery(r *http.Request) error {
	if r.URL.RawQuery == "" {
		return nil
	}
	return ParseQuery(r).Err()
}
