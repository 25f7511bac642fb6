package capture

import (
	"path"
	"slices"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/gatewayd/guard"
)

// Rules selects the bodies to store. Rules are immutable.
type Rules struct {
	Requests, Answers bool
	// Spans says that texts also go into spans; this package ignores it.
	Spans bool
	// Keys are ids of keys or tokens; Models are path.Match patterns of the requested or
	// answering model; a star at the end matches the rest of a name, including slashes.
	// Empty lists match everything.
	Keys, Models []string
	// Redact is applied before a body is written; nil: no redaction.
	Redact *guard.Redactor
	// Max is the maximum stored size of a body in bytes, Retention how long a body is
	// stored, and Quota the maximum size in bytes of all bodies, beyond which the oldest
	// are deleted first.
	Max, Quota int64
	Retention  time.Duration
}

// Defaults and limits of Rules.
const (
	DefaultMax       = 256 << 10
	DefaultQuota     = 1 << 30
	DefaultRetention = 7 * 24 * time.Hour

	maxMax       = 8 << 20
	maxRetention = 366 * 24 * time.Hour
)

// Check sets the defaults and validates. Errors: invalid, naming the member.
func (r *Rules) Check() error {
	if r.Max == 0 {
		r.Max = DefaultMax
	}
	if r.Quota == 0 {
		r.Quota = DefaultQuota
	}
	if r.Retention == 0 {
		r.Retention = DefaultRetention
	}
	switch {
	case r.Max < 1<<10 || r.Max > maxMax:
		return cay.Errorf(cay.Invalid, "max is %d bytes; it must be from 1 KiB to 8 MiB", r.Max)
	case r.Quota < 2*r.Max:
		return cay.Errorf(cay.Invalid, "quota is %d bytes; it must be at least twice max", r.Quota)
	case r.Retention < time.Minute || r.Retention > maxRetention:
		return cay.Errorf(cay.Invalid, "retention is %v; it must be from a minute to 366 days", r.Retention)
	}
	for _, m := range r.Models {
		if _, err := path.Match(m, ""); err != nil || m == "" {
			return cay.Errorf(cay.Invalid, "models: %q is no pattern, such as openai/*", m)
		}
	}
	return nil
}

// Wants reports whether a call's bodies are to be stored, given its key and all names of
// its model.
func (r *Rules) Wants(key string, models ...string) bool {
	if len(r.Keys) > 0 && !slices.Contains(r.Keys, key) {
		return false
	}
	return len(r.Models) == 0 || slices.ContainsFunc(models, func(m string) bool {
		return m != "" && slices.ContainsFunc(r.Models, func(p string) bool {
			ok, _ := path.Match(p, m) // Check has validated the pattern
			rest, star := strings.CutSuffix(p, "*")
			return ok || star && !strings.ContainsAny(rest, `*?[\`) && strings.HasPrefix(m, rest)
		})
	})
}
