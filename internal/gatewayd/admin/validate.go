package admin

import (
	"slices"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/api"
)

// Limits of the management API.
const (
	maxPage     = 200  // items of a page
	maxRequests = 1000 // requests of a page
	maxName     = 128  // characters
	maxText     = 256  // characters of names of others: models, users, tags
	maxTags     = 32
	maxPatterns = 256
	maxRate     = 1_000_000_000
	maxCache    = 30 * 24 * time.Hour
	maxAlerts   = 10
	maxBudget   = 1_000_000 * gateway.Dollar
)

// spendGroups are the valid group-by values of reports.
var spendGroups = []string{"day", "hour", "model", "provider", "key", "project", "user", "session", "tag", "surface", "credential", "status"}

func pageLimit(n, most int) (int, error) {
	switch {
	case n == 0:
		return 50, nil
	case n < 0 || n > most:
		return 0, cay.Errorf(cay.Invalid, "limit is %d; it must be 1 to %d", n, most)
	}
	return n, nil
}

func validateTimes(since, until time.Time) error {
	if !since.IsZero() && !until.IsZero() && !since.Before(until) {
		return cay.Errorf(cay.Invalid, "since %s is not before until %s", since.UTC().Format(time.RFC3339), until.UTC().Format(time.RFC3339))
	}
	return nil
}

func (m *Manager) validateKey(name string, s gateway.KeyScope, tags []string, expires *time.Time) error {
	if err := validateText("name", name, maxName); err != nil {
		return err
	}
	if err := validateTexts("tags", tags, maxTags, maxName); err != nil {
		return err
	}
	if err := validateTexts("models", s.Models, maxPatterns, maxText); err != nil {
		return err
	}
	if err := validateTexts("providers", s.Providers, maxPatterns, maxText); err != nil {
		return err
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"requests_per_minute", s.RequestsPerMinute}, {"tokens_per_minute", s.TokensPerMinute},
		{"concurrency", int64(s.Concurrency)}, {"max_output_tokens", s.MaxOutputTokens},
	} {
		if f.value < 0 || f.value > maxRate {
			return cay.Errorf(cay.Invalid, "%s is %d; it must be 0 (no bound) to %d", f.name, f.value, maxRate)
		}
	}
	if d := time.Duration(s.Cache); d < 0 || d > maxCache {
		return cay.Errorf(cay.Invalid, "cache is %v; it must be 0 (never) to %v", d, maxCache)
	}
	now := time.Now
	if m.Now != nil {
		now = m.Now
	}
	if expires != nil && !expires.After(now()) {
		return cay.Errorf(cay.Invalid, "expires_at %s is not in the future", expires.UTC().Format(time.RFC3339))
	}
	return nil
}

func validateTexts(field string, list []string, most, length int) error {
	if len(list) > most {
		return cay.Errorf(cay.Invalid, "%s has %d values; at most %d are allowed", field, len(list), most)
	}
	for i, s := range list {
		if s == "" {
			return cay.Errorf(cay.Invalid, "%s has an empty value", field)
		}
		if slices.Contains(list[:i], s) {
			return cay.Errorf(cay.Invalid, "%s has %q twice", field, s)
		}
		if err := validateText(field, s, length); err != nil {
			return err
		}
	}
	return nil
}

func validateText(field, s string, most int) error {
	if n := utf8.RuneCountInString(s); n > most {
		return cay.Errorf(cay.Invalid, "%s has %d characters; at most %d are allowed", field, n, most)
	}
	for _, r := range s {
		if unicode.IsControl(r) || r == unicode.ReplacementChar {
			return cay.Errorf(cay.Invalid, "%s %q contains %q", field, s, r).WithHint("use printable characters")
		}
	}
	return nil
}

func validateBudget(p gateway.BudgetParams) error {
	if p.Limit < 0 || p.Limit > maxBudget {
		return cay.Errorf(cay.Invalid, "limit is %s; it must be 0 to %s dollars", p.Limit, maxBudget)
	}
	switch p.Period {
	case gateway.Daily, gateway.Weekly, gateway.Monthly, gateway.Never:
	default:
		return cay.Errorf(cay.Invalid, "period %q is not one of daily, weekly, monthly, none", p.Period)
	}
	if len(p.AlertAt) > maxAlerts {
		return cay.Errorf(cay.Invalid, "alert_at has %d values; at most %d are allowed", len(p.AlertAt), maxAlerts)
	}
	for _, percent := range p.AlertAt {
		if percent < 1 || percent > 100 {
			return cay.Errorf(cay.Invalid, "alert_at has %d; percentages are 1 to 100", percent)
		}
	}
	return nil
}

// validateBudgetID also checks that a team's budget belongs to the caller's team.
func validateBudgetID(who api.Principal, id gateway.BudgetID) error {
	switch id.Scope {
	case gateway.ScopeTeam:
		if id.Ref != "" && id.Ref != who.TeamID {
			return cay.Errorf(cay.NotFound, "team %q not found", id.Ref).WithHint("an admin token speaks for another team with the header Cay-Team; the CLI has --team")
		}
	case gateway.ScopeProject, gateway.ScopeKey, gateway.ScopeUser, gateway.ScopeTag:
	default:
		return cay.Errorf(cay.Invalid, "scope %q is not one of team, project, key, user, tag", id.Scope)
	}
	return validateText("ref", id.Ref, maxText)
}
