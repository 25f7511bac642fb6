package gatewayd

import (
	"context"
	"iter"

	"github.com/cayhq/cay/gateway"
)

// Service is everything that can be managed of the gateway. Manager implements it
// on the ledger, *gateway.Client over HTTP; tests hold both to the same behaviour.
// Errors are *cay.Error; every method can return unauthenticated, not_found for an
// id the caller's token does not reach, and unavailable or no_space if what was
// spent cannot be written.
type Service interface {
	// CreateKey makes a key; only this answer carries its secret. Errors: invalid,
	// not_found (the project), quota_exceeded (10,000 keys).
	CreateKey(ctx context.Context, p gateway.CreateKeyParams) (*gateway.Key, error)
	// GetKey, ListKeys, UpdateKey and DeleteKey reach the keys of the caller's team,
	// with a token of a project those of it.
	GetKey(ctx context.Context, id string) (*gateway.Key, error)
	// ListKeys lists keys, newest first. Errors: invalid.
	ListKeys(ctx context.Context, p gateway.ListParams) (*gateway.Page[gateway.Key], error)
	// UpdateKey changes a key; calls that begin after it returns see the change.
	// Errors: invalid.
	UpdateKey(ctx context.Context, id string, p gateway.UpdateKeyParams) (*gateway.Key, error)
	// DeleteKey deletes a key and its budget.
	DeleteKey(ctx context.Context, id string) error

	// SetBudget sets a budget, or replaces one and keeps what is spent. Those of
	// teams take an admin token. Errors: invalid, permission_denied (a token of a
	// project), quota_exceeded (10,000 budgets).
	SetBudget(ctx context.Context, id gateway.BudgetID, p gateway.BudgetParams) (*gateway.Budget, error)
	// GetBudget returns the budget that applies to one who spends, or with an empty
	// Ref the default of a scope. A token of a project sees its project's and those
	// of its keys. Errors: invalid.
	GetBudget(ctx context.Context, id gateway.BudgetID) (*gateway.Budget, error)
	// ListBudgets lists what was set, sorted by scope and Ref. Errors: invalid,
	// permission_denied (a token of a project).
	ListBudgets(ctx context.Context, p gateway.ListParams) (*gateway.Page[gateway.Budget], error)
	// DeleteBudget deletes a budget. Errors: as for SetBudget.
	DeleteBudget(ctx context.Context, id gateway.BudgetID) error

	// ListRequests lists requests, newest first. Errors: invalid.
	ListRequests(ctx context.Context, f gateway.RequestFilter) (*gateway.Page[gateway.Request], error)
	// FollowRequests yields requests as they become durable, those that f selects
	// (its times, limit and cursor do not), until ctx ends: after the one with the id
	// after, or from now on if that is empty or of no request there is. What it ends
	// with comes last. Errors: invalid, unavailable (it is stopping, or too many
	// follow).
	FollowRequests(ctx context.Context, f gateway.RequestFilter, after string) iter.Seq2[gateway.Request, error]
	// GetRequest returns a request as soon as it has ended.
	GetRequest(ctx context.Context, id string) (*gateway.Request, error)
	// GetRequestBody returns what was kept of the bodies of a request, and
	// DeleteRequestBody deletes it. Errors: not_found, also if nothing is kept.
	GetRequestBody(ctx context.Context, id string) (*gateway.RequestBody, error)
	DeleteRequestBody(ctx context.Context, id string) error
	// Spend adds up requests. Errors: invalid.
	Spend(ctx context.Context, p gateway.SpendParams) ([]gateway.Spend, error)

	// ListModels lists the catalogue, sorted by id.
	ListModels(ctx context.Context) ([]gateway.Model, error)
	// Check asks a provider for something small, or all that are configured if the
	// name is empty. Admin tokens only. Errors: not_found, permission_denied.
	Check(ctx context.Context, provider string) ([]gateway.Check, error)

	Configuring
}

// Models tells what there is to call. *Engine implements it.
type Models interface {
	// Models returns the catalogue, sorted by id. The caller does not change it.
	Models() []gateway.Model
}

// Checker tries providers out.
type Checker interface {
	// Check asks a provider for something small, or all that are configured if the
	// name is empty. That one does not answer is told in its Check. Errors: not_found.
	Check(ctx context.Context, provider string) ([]gateway.Check, error)
}

// Projects knows the projects of teams.
type Projects interface {
	// CheckProject returns not_found unless the team has that project.
	CheckProject(ctx context.Context, teamID, projectID string) error
}
