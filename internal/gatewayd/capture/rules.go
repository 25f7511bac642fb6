package capture

import (
	"path"
	"slices"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/gatewayd/guard"
)

// Rules say what is kept. They do not change.
type Rules struct {
	Requests, Answers bool
	// Spans says that what is said goes to the collector of spans, too, which is none of
	// this package's business.
	Spans bool
	// Keys are ids of keys or tokens, and Models patterns as path.Match has them, of
	// what was asked for or answered; a star at the end stands for the rest of a name,
	// slashes and all. None: all.
	Keys, Models []string
	// Redact is applied before anything is written; nil: nothing is taken out.
	Redact *guard.Redactor
	// Max is how many bytes of a body are kept, Retention how long, and Quota how many
	// bytes of all together, after which the oldest go first.
	Max, Quota int64
	Retention  time.Duration
}

// Defaults and bounds of Rules.
const (
	DefaultMax       = 256 << 10
	DefaultQuota     = 1 << 30
	DefaultRetention = 7 * 24 * time.Hour

	maxMax       = 8 << 20
	maxRetention = 366 * 24 * time.Hour
)

// Check fills in what is zero. Errors: invalid, naming the member.
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

// Wants reports whether bodies of a call are kept: of a key, and of a model by any
// of its names.
func (r *Rules) Wants(key string, models ...string) bool {
	if len(r.Keys) > 0 && !slices.Contains(r.Keys, key) {
		return false
	}
	return len(r.Models) == 0 || slices.ContainsFunc(models, func(m string) bool {
		return m != "" && slices.ContainsFunc(r.Models, func(p string) bool {
			ok, _ := path.Match(p, m) // Check has tried it
			rest, star := strings.CutSuffix(p, "*")
			return ok || star && !strings.ContainsAny(rest, `*?[\`) && strings.HasPrefix(m, rest)
		})
	})
}
