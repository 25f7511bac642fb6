package api

import "context"

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
