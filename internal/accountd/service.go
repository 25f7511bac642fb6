package accountd

import (
	"context"

	"github.com/cayhq/cay/account"
)

// Service has all operations on accounts. The engine implements it on the
// database, *account.Client over HTTP; accounttest holds both to the same
// behaviour. Errors are *cay.Error; every method can return unauthenticated, and
// not_found for an id the caller's token does not reach.
type Service interface {
	// WhoAmI returns the team and project that the caller's token acts for.
	WhoAmI(ctx context.Context) (*account.Identity, error)

	// CreateTeam makes a team without projects. Admin tokens only. Errors:
	// invalid, already_exists (name), permission_denied.
	CreateTeam(ctx context.Context, p account.CreateTeamParams) (*account.Team, error)
	GetTeam(ctx context.Context, id string) (*account.Team, error)
	// ListTeams lists all teams for an admin token, otherwise only the caller's
	// own. Errors: invalid.
	ListTeams(ctx context.Context, p account.ListParams) (*account.Page[account.Team], error)
	// SetQuota replaces a team's quota, for objects created from then on. Admin
	// tokens only. Errors: invalid, permission_denied.
	SetQuota(ctx context.Context, teamID string, q account.Quota) (*account.Team, error)
	// DeleteTeam deletes a team with its projects and tokens. Admin tokens only.
	// Errors: conflict (the default team, or a team still in use),
	// permission_denied.
	DeleteTeam(ctx context.Context, id string) error

	// CreateProject makes a project in the caller's team. Errors: invalid,
	// already_exists (name), permission_denied (token of a project),
	// quota_exceeded (1000 projects).
	CreateProject(ctx context.Context, p account.CreateProjectParams) (*account.Project, error)
	GetProject(ctx context.Context, id string) (*account.Project, error)
	// ListProjects lists the projects of the caller's team; for a token of a
	// project, only that project. Errors: invalid.
	ListProjects(ctx context.Context, p account.ListParams) (*account.Page[account.Project], error)
	// DeleteProject deletes a project and the tokens bound to it. Errors: conflict
	// (the default project, or a project still in use), permission_denied (token
	// of a project).
	DeleteProject(ctx context.Context, id string) error

	// CreateToken makes a token in the caller's team; only this answer carries its
	// secret. Errors: invalid, not_found (project), permission_denied (token of a
	// project; Admin with a token that is no admin token), quota_exceeded (1000
	// tokens).
	CreateToken(ctx context.Context, p account.CreateTokenParams) (*account.Token, error)
	// CreateJWT returns the caller's own token in the form of a JWT for one
	// project, which is valid for 12 hours. Errors: permission_denied (admin
	// token).
	CreateJWT(ctx context.Context, projectID string) (*account.JWT, error)
	// GetToken, ListTokens and DeleteToken reach the tokens of the caller's team.
	// Only admin tokens can see admin tokens, and a token of a project can see
	// only itself.
	GetToken(ctx context.Context, id string) (*account.Token, error)
	// ListTokens lists tokens, expired ones included. Errors: invalid.
	ListTokens(ctx context.Context, p account.ListParams) (*account.Page[account.Token], error)
	// DeleteToken revokes a token: no request that starts after DeleteToken
	// returns is admitted. Errors: permission_denied (token of a project).
	DeleteToken(ctx context.Context, id string) error

	// CreateLoginLink makes a link that logs a browser in as the caller's token,
	// once, within 10 minutes. Errors: quota_exceeded (the token has 32 unused
	// links).
	CreateLoginLink(ctx context.Context) (*account.LoginLink, error)

	// ApproveDeviceLogin gives a token of the caller's team to the program that
	// shows the code. Errors: invalid, not_found (the code, or the project),
	// permission_denied (token of a project), quota_exceeded (too many wrong
	// codes).
	ApproveDeviceLogin(ctx context.Context, userCode string, p account.ApproveParams) (*account.DeviceLogin, error)
	// DenyDeviceLogin denies the program a token, also after the caller's team has
	// approved the login. Errors: as for ApproveDeviceLogin.
	DenyDeviceLogin(ctx context.Context, userCode string) (*account.DeviceLogin, error)
}
