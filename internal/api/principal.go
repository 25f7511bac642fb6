package api

import (
	"context"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
)

// Principal is the authenticated sender of a request: a token of a team, possibly
// bound to one project.
type Principal struct {
	TokenID   string
	TeamID    string
	ProjectID string // empty: any project of the team
	// Admin tokens are the operator's: they reach every team. TeamID is then the
	// team that the request acts for.
	Admin bool
	// Images says that a token of a project has the right to add images.
	Images bool
}

// WritesImages reports whether the principal may add images, and remove its
// team's: an admin, a token of a whole team, or a token with the right.
func (p Principal) WritesImages() bool { return p.Admin || p.ProjectID == "" || p.Images }

type principalKey struct{}

// WithPrincipal returns a context that carries p.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// PrincipalFrom returns the Principal of a request, and false if it carries none.
func PrincipalFrom(ctx context.Context) (Principal, bool) {
	p, ok := ctx.Value(principalKey{}).(Principal)
	return p, ok
}

// RequirePrincipal returns the Principal of a request. Errors: unauthenticated.
func RequirePrincipal(ctx context.Context) (Principal, error) {
	p, ok := PrincipalFrom(ctx)
	if !ok || p.TeamID == "" {
		return Principal{}, cay.Errorf(cay.Unauthenticated, "the request carries no token").
			WithHint("set CAY_TOKEN, or send the header Authorization: Bearer <token>")
	}
	return p, nil
}

// Projects checks projects. *accountd.Engine implements it.
type Projects interface {
	// CheckProject returns not_found unless the team has the project.
	CheckProject(ctx context.Context, teamID, projectID string) error
}

// Project returns the project that a request of the principal acts for: the requested
// project if the principal reaches it, else the token's own, else the team's default. It is
// the only place with that rule. If projects is nil, every project of the team exists.
// Errors: not_found (also for a project out of the principal's reach), invalid (no project
// is requested, and the team has no default).
func (p Principal) Project(ctx context.Context, projects Projects, requested string) (string, error) {
	switch {
	case requested == "" && p.ProjectID != "":
		return p.ProjectID, nil
	case requested == "" && p.TeamID == account.DefaultTeam:
		return account.DefaultProject, nil
	case requested == "":
		return "", cay.Errorf(cay.Invalid, "no project is given, and team %q has no default project", p.TeamID).
			WithHint("name a project, or use a token of one; cay project list shows the team's projects")
	case p.ProjectID != "" && requested != p.ProjectID:
		return "", cay.Errorf(cay.NotFound, "project %q not found", requested)
	case projects == nil:
		return requested, nil
	}
	if err := projects.CheckProject(ctx, p.TeamID, requested); err != nil {
		return "", err
	}
	return requested, nil
}
