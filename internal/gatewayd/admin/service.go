package admin

import (
	"context"
	"iter"

	"github.com/cayhq/cay/gateway"
)

// Service manages the gateway. Manager implements it on the ledger, *gateway.Client over
// HTTP; tests hold both to the same behaviour. Errors are *cay.Error; every method can
// return unauthenticated, not_found for an id that the caller's token cannot access, and
// unavailable or no_space if spending cannot be written.
type Service interface {
	// CreateKey creates a key; only its answer contains the secret. Errors: invalid,
	// not_found (the project), quota_exceeded (10,000 keys).
	CreateKey(ctx context.Context, p gateway.CreateKeyParams) (*gateway.Key, error)
	// GetKey, ListKeys, UpdateKey and DeleteKey access the keys of the caller's team; a
	// project's token accesses only the project's keys.
	GetKey(ctx context.Context, id string) (*gateway.Key, error)
	// ListKeys lists keys, newest first. Errors: invalid.
	ListKeys(ctx context.Context, p gateway.ListParams) (*gateway.Page[gateway.Key], error)
	// UpdateKey changes a key; calls that begin after UpdateKey has returned see the
	// change. Errors: invalid.
	UpdateKey(ctx context.Context, id string, p gateway.UpdateKeyParams) (*gateway.Key, error)
	// DeleteKey deletes a key and its budget.
	DeleteKey(ctx context.Context, id string) error

	// SetBudget creates a budget, or replaces one and keeps its spent amount. Budgets of
	// teams require an admin token. Errors: invalid, permission_denied (a token of a
	// project), quota_exceeded (10,000 budgets).
	SetBudget(ctx context.Context, id gateway.BudgetID, p gateway.BudgetParams) (*gateway.Budget, error)
	// GetBudget returns the budget that applies to a spender; an empty Ref selects the
	// default of a scope. A project's token sees only the budgets of the project and of
	// the project's keys. Errors: invalid.
	GetBudget(ctx context.Context, id gateway.BudgetID) (*gateway.Budget, error)
	// ListBudgets lists all budgets, sorted by scope and Ref. Errors: invalid,
	// permission_denied (a token of a project).
	ListBudgets(ctx context.Context, p gateway.ListParams) (*gateway.Page[gateway.Budget], error)
	// DeleteBudget deletes a budget. Errors: as for SetBudget.
	DeleteBudget(ctx context.Context, id gateway.BudgetID) error

	// ListRequests lists requests, newest first. Errors: invalid.
	ListRequests(ctx context.Context, f gateway.RequestFilter) (*gateway.Page[gateway.Request], error)
	// FollowRequests yields requests as they become durable, if f selects them (f's
	// times, limit and cursor are ignored), until ctx ends. It begins after the request
	// with the id after, or now if after is empty or the request does not exist. An error
	// comes last. Errors: invalid, unavailable (stopping, or too many followers).
	FollowRequests(ctx context.Context, f gateway.RequestFilter, after string) iter.Seq2[gateway.Request, error]
	// GetRequest returns a request as soon as it has ended.
	GetRequest(ctx context.Context, id string) (*gateway.Request, error)
	// GetRequestBody returns the stored bodies of a request, and DeleteRequestBody
	// deletes them. Errors: not_found, also if no bodies are stored.
	GetRequestBody(ctx context.Context, id string) (*gateway.RequestBody, error)
	DeleteRequestBody(ctx context.Context, id string) error
	// Spend adds up the costs of requests. Errors: invalid.
	Spend(ctx context.Context, p gateway.SpendParams) ([]gateway.Spend, error)

	// ListModels lists the catalogue, sorted by id.
	ListModels(ctx context.Context) ([]gateway.Model, error)
	// Check sends a small test request to a provider, or to all configured providers if
	// the name is empty. It requires an admin token. Errors: not_found,
	// permission_denied.
	Check(ctx context.Context, provider string) ([]gateway.Check, error)

	Configuring
}

// Models lists the models that can be called. *gatewayd.Engine implements it.
type Models interface {
	// Models returns the catalogue, sorted by id. The caller must not change it.
	Models() []gateway.Model
}

// Checker tests providers.
type Checker interface {
	// Check sends a small test request to a provider, or to all configured providers if
	// the name is empty. The failure of a provider is reported in its gateway.Check, not
	// as an error. Errors: not_found.
	Check(ctx context.Context, provider string) ([]gateway.Check, error)
}

// Projects knows the projects of teams.
type Projects interface {
	// CheckProject returns not_found unless the team has that project.
	CheckProject(ctx context.Context, teamID, projectID string) error
}
