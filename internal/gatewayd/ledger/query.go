package ledger

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
)

// defaultLimit is the default number of requests on a page.
const defaultLimit = 50

// records answers queries about requests. A query first makes the records of all settled
// calls visible.
type records struct {
	store  store
	writer *writer
	feeds  *feeds
	now    func() time.Time
}

// Requests returns a page of the requests of a team, or of one of its projects, newest
// first. The page includes all requests settled before the call. Errors: invalid (the
// cursor).
func (r *records) Requests(ctx context.Context, team, project string, f gateway.RequestFilter) (*gateway.Page[gateway.Request], error) {
	if f.Limit == 0 {
		f.Limit = defaultLimit
	}
	after, err := parseCursor("requests", f.Cursor)
	if err != nil {
		return nil, err
	}
	if err := r.writer.flush(ctx, true); err != nil {
		return nil, err
	}
	all, err := r.store.requests(ctx, team, project, f, after, f.Limit+1)
	if err != nil {
		return nil, err
	}
	page := &gateway.Page[gateway.Request]{Items: []gateway.Request{}}
	if len(all) > f.Limit {
		all = all[:f.Limit]
		last := &all[f.Limit-1]
		page.Next = position{last.CreatedAt.UnixMilli(), last.ID}.String()
	}
	page.Items = append(page.Items, all...)
	return page, nil
}

// Request returns a request of a team, or of one of its projects, as soon as the request
// is settled. Errors: not_found.
func (r *records) Request(ctx context.Context, team, project, id string) (*gateway.Request, error) {
	if err := r.writer.flush(ctx, true); err != nil {
		return nil, err
	}
	return r.store.request(ctx, team, project, id)
}

// Spend adds up the costs of the requests of a team, or of one of its projects. p must be
// valid. A request with several tags counts for each tag. Errors: invalid (too many
// rows).
func (r *records) Spend(ctx context.Context, team, project string, p gateway.SpendParams) ([]gateway.Spend, error) {
	if len(p.By) == 0 {
		p.By = []string{"day"}
	}
	if p.Since.IsZero() {
		p.Since = r.now().AddDate(0, 0, -30)
	}
	if err := r.writer.flush(ctx, true); err != nil {
		return nil, err
	}
	return r.store.spend(ctx, team, project, p)
}

// position is where a page of a list sorted by time begins: after this entry.
type position struct {
	At int64  `json:"t"` // Unix milliseconds
	ID string `json:"i"`
}

func (p position) String() string {
	b, _ := json.Marshal(p) // numbers and strings always encode
	return base64.RawURLEncoding.EncodeToString(b)
}

func parseCursor(what, s string) (p position, err error) {
	if s == "" {
		return p, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err != nil || p.ID == "" {
		return p, badCursor(what, s)
	}
	return p, nil
}

func badCursor(what, s string) error {
	return cay.Errorf(cay.Invalid, "cursor %.100q is not one of a list of %s", s, what).WithHint("pass the next field of the page before")
}

func budgetCursor(id gateway.BudgetID) string {
	b, _ := json.Marshal(id) // strings always encode
	return base64.RawURLEncoding.EncodeToString(b)
}

func parseBudgetCursor(s string) (*spender, error) {
	if s == "" {
		return nil, nil
	}
	var id gateway.BudgetID
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err == nil {
		err = json.Unmarshal(b, &id)
	}
	if err != nil || scopeIndex(id.Scope) < 0 {
		return nil, badCursor("budgets", s)
	}
	return &spender{scope: id.Scope, ref: id.Ref}, nil
}
