package admin

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/gatewayd/capture"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
)

var _ Service = (*Manager)(nil)

// Manager implements Service: it manages the gateway's keys, budgets and records, and
// checks permissions and validity. Book is required; the other fields may be nil, which
// makes the methods that need them return not_supported.
type Manager struct {
	Book    *ledger.Book
	Bodies  *capture.Store
	Models  Models
	Checker Checker
	// Providers reads and changes the configuration.
	Providers Configuration
	Projects  Projects // nil: any project exists
	// Now is the wall clock. Nil means time.Now.
	Now func() time.Time
}

func (m *Manager) CreateKey(ctx context.Context, p gateway.CreateKeyParams) (*gateway.Key, error) {
	who, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	if err := m.validateKey(p.Name, p.KeyScope, p.Tags, p.ExpiresAt); err != nil {
		return nil, err
	}
	if p.Budget != nil {
		if err := validateBudget(*p.Budget); err != nil {
			return nil, err
		}
	}
	if p.ProjectID, err = m.project(ctx, who, p.ProjectID); err != nil {
		return nil, err
	}
	p.ExpiresAt = toMillis(p.ExpiresAt)
	return m.Book.CreateKey(ctx, who.TeamID, p)
}

// project returns the project that a new key belongs to.
func (m *Manager) project(ctx context.Context, who api.Principal, asked string) (string, error) {
	switch {
	case asked == "" && who.ProjectID != "":
		return who.ProjectID, nil
	case asked == "" && who.TeamID == account.DefaultTeam:
		return account.DefaultProject, nil
	case asked == "":
		return "", cay.Errorf(cay.Invalid, "project_id is empty; a key spends for one project, and team %q has no default one", who.TeamID).
			WithHint("name the project; cay project list shows them")
	case who.ProjectID != "" && asked != who.ProjectID:
		return "", cay.Errorf(cay.NotFound, "project %q not found", asked)
	case m.Projects == nil:
		return asked, nil
	}
	return asked, m.Projects.CheckProject(ctx, who.TeamID, asked)
}

func (m *Manager) GetKey(ctx context.Context, id string) (*gateway.Key, error) {
	who, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	return m.Book.GetKey(ctx, who.TeamID, who.ProjectID, id)
}

func (m *Manager) ListKeys(ctx context.Context, p gateway.ListParams) (*gateway.Page[gateway.Key], error) {
	who, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	limit, err := pageLimit(p.Limit, maxPage)
	if err != nil {
		return nil, err
	}
	return m.Book.ListKeys(ctx, who.TeamID, who.ProjectID, limit, p.Cursor)
}

func (m *Manager) UpdateKey(ctx context.Context, id string, p gateway.UpdateKeyParams) (*gateway.Key, error) {
	who, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	var name string
	var scope gateway.KeyScope
	var tags []string
	if p.Name != nil {
		name = *p.Name
	}
	if p.Scope != nil {
		scope = *p.Scope
	}
	if p.Tags != nil {
		tags = *p.Tags
	}
	expires := p.ExpiresAt
	if expires != nil && expires.IsZero() {
		expires = nil
	}
	if err := m.validateKey(name, scope, tags, expires); err != nil {
		return nil, err
	}
	if expires != nil {
		p.ExpiresAt = toMillis(expires)
	}
	return m.Book.UpdateKey(ctx, who.TeamID, who.ProjectID, id, p)
}

func (m *Manager) DeleteKey(ctx context.Context, id string) error {
	who, err := principal(ctx)
	if err != nil {
		return err
	}
	return m.Book.DeleteKey(ctx, who.TeamID, who.ProjectID, id)
}

func (m *Manager) SetBudget(ctx context.Context, id gateway.BudgetID, p gateway.BudgetParams) (*gateway.Budget, error) {
	who, err := m.changesBudget(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := validateBudget(p); err != nil {
		return nil, err
	}
	switch {
	case id.Ref == "":
	case id.Scope == gateway.ScopeProject && m.Projects != nil:
		err = m.Projects.CheckProject(ctx, who.TeamID, id.Ref)
	case id.Scope == gateway.ScopeKey && strings.HasPrefix(id.Ref, "gk_"): // otherwise Ref is a daemon's token
		_, err = m.Book.GetKey(ctx, who.TeamID, "", id.Ref)
	}
	if err != nil {
		return nil, err
	}
	return m.Book.SetBudget(ctx, who.TeamID, id, p)
}

// changesBudget returns the principal, if it may change a budget.
func (m *Manager) changesBudget(ctx context.Context, id gateway.BudgetID) (api.Principal, error) {
	who, err := principal(ctx)
	switch {
	case err != nil:
		return who, err
	case who.ProjectID != "":
		return who, cay.Errorf(cay.PermissionDenied, "a token of a project may not change budgets").WithHint("use a token of the team")
	case id.Scope == gateway.ScopeTeam && !who.Admin:
		return who, cay.Errorf(cay.PermissionDenied, "only an admin token may change the budget of a team")
	}
	return who, validateBudgetID(who, id)
}

func (m *Manager) GetBudget(ctx context.Context, id gateway.BudgetID) (*gateway.Budget, error) {
	who, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	if err := validateBudgetID(who, id); err != nil {
		return nil, err
	}
	if who.ProjectID != "" {
		unseen := cay.Errorf(cay.NotFound, "the %s %q has no budget that a token of a project sees", id.Scope, id.Ref)
		switch id.Scope {
		case gateway.ScopeProject:
			if id.Ref != who.ProjectID {
				return nil, unseen
			}
		case gateway.ScopeKey:
			if _, err := m.Book.GetKey(ctx, who.TeamID, who.ProjectID, id.Ref); err != nil {
				return nil, err
			}
		default:
			return nil, unseen
		}
	}
	return m.Book.GetBudget(ctx, who.TeamID, id)
}

func (m *Manager) ListBudgets(ctx context.Context, p gateway.ListParams) (*gateway.Page[gateway.Budget], error) {
	who, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	if who.ProjectID != "" {
		return nil, cay.Errorf(cay.PermissionDenied, "a token of a project may not list budgets").WithHint("use a token of the team")
	}
	limit, err := pageLimit(p.Limit, maxPage)
	if err != nil {
		return nil, err
	}
	return m.Book.ListBudgets(ctx, who.TeamID, who.Admin, limit, p.Cursor)
}

func (m *Manager) DeleteBudget(ctx context.Context, id gateway.BudgetID) error {
	who, err := m.changesBudget(ctx, id)
	if err != nil {
		return err
	}
	return m.Book.DeleteBudget(ctx, who.TeamID, id)
}

func (m *Manager) ListRequests(ctx context.Context, f gateway.RequestFilter) (*gateway.Page[gateway.Request], error) {
	who, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	if f.Limit, err = pageLimit(f.Limit, maxRequests); err != nil {
		return nil, err
	}
	if err := validateStatus(f.Status); err != nil {
		return nil, err
	}
	if err := validateTimes(f.Since, f.Until); err != nil {
		return nil, err
	}
	page, err := m.Book.Requests(ctx, who.TeamID, who.ProjectID, f)
	if err != nil {
		return nil, err
	}
	return page, m.bodiesOf(ctx, page.Items)
}

func (m *Manager) GetRequest(ctx context.Context, id string) (*gateway.Request, error) {
	who, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	r, err := m.Book.Request(ctx, who.TeamID, who.ProjectID, id)
	if err != nil {
		return nil, err
	}
	told := []gateway.Request{*r}
	return &told[0], m.bodiesOf(ctx, told)
}

// bodiesOf corrects the capture state of records: the ledger says only that bodies were
// to be stored, so bodiesOf asks the Store whether they are.
func (m *Manager) bodiesOf(ctx context.Context, all []gateway.Request) error {
	var ids []string
	for i := range all {
		if all[i].Capture == gateway.CaptureKept {
			ids = append(ids, all[i].ID)
		}
	}
	var has map[string]bool
	if len(ids) > 0 && m.Bodies != nil {
		var err error
		if has, err = m.Bodies.Has(ctx, ids); err != nil {
			return err
		}
	}
	for i := range all {
		if r := &all[i]; r.Capture == gateway.CaptureKept && !has[r.ID] {
			r.Capture = gateway.CaptureGone
		}
	}
	return nil
}

func (m *Manager) GetRequestBody(ctx context.Context, id string) (*gateway.RequestBody, error) {
	who, err := m.ofRequest(ctx, id)
	if err != nil {
		return nil, err
	}
	return m.Bodies.Get(ctx, who.TeamID, who.ProjectID, id)
}

func (m *Manager) DeleteRequestBody(ctx context.Context, id string) error {
	who, err := m.ofRequest(ctx, id)
	if err != nil {
		return err
	}
	return m.Bodies.Delete(ctx, who.TeamID, who.ProjectID, id)
}

// ofRequest returns the principal, if it may see the bodies of a request.
func (m *Manager) ofRequest(ctx context.Context, id string) (api.Principal, error) {
	who, err := principal(ctx)
	if err == nil && m.Bodies == nil {
		err = cay.Errorf(cay.NotSupported, "this daemon keeps no bodies")
	}
	if err == nil {
		_, err = m.Book.Request(ctx, who.TeamID, who.ProjectID, id)
	}
	return who, err
}

func (m *Manager) Spend(ctx context.Context, p gateway.SpendParams) ([]gateway.Spend, error) {
	who, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	if err := validateTimes(p.Since, p.Until); err != nil {
		return nil, err
	}
	for i, by := range p.By {
		if !slices.Contains(spendGroups, by) {
			return nil, cay.Errorf(cay.Invalid, "by %q is not one of %s", by, strings.Join(spendGroups, ", "))
		}
		if slices.Contains(p.By[:i], by) {
			return nil, cay.Errorf(cay.Invalid, "by %q is there twice", by)
		}
	}
	return m.Book.Spend(ctx, who.TeamID, who.ProjectID, p)
}

func (m *Manager) ListModels(ctx context.Context) ([]gateway.Model, error) {
	if _, err := principal(ctx); err != nil {
		return nil, err
	}
	if m.Models == nil {
		return nil, cay.Errorf(cay.NotSupported, "this daemon has no catalogue of models")
	}
	return m.Models.Models(), nil
}

func (m *Manager) Check(ctx context.Context, provider string) ([]gateway.Check, error) {
	if err := api.RequireAdmin(ctx); err != nil {
		return nil, err
	}
	if m.Checker == nil {
		return nil, cay.Errorf(cay.NotSupported, "this daemon cannot check providers")
	}
	return m.Checker.Check(ctx, provider)
}

func principal(ctx context.Context) (api.Principal, error) {
	p, ok := api.PrincipalFrom(ctx)
	if !ok {
		return p, cay.Errorf(cay.Unauthenticated, "the request carries no token")
	}
	return p, nil
}

// toMillis returns a time with the stored precision, milliseconds.
func toMillis(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC().Truncate(time.Millisecond)
	return &u
}
