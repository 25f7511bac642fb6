package vercelsandbox

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/api"
)

// scope returns the request's context, acting for the team and the project in its
// query, which are ids or names. Without a team it is the token's team. Errors:
// permission_denied (another team), not_found (project).
func (h *handler) scope(r *http.Request) (context.Context, error) {
	ctx := r.Context()
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "the query of the URL is malformed: %v", err)
	}
	p, err := api.RequirePrincipal(ctx)
	if err != nil {
		return nil, err
	}
	if team := cmp.Or(q.Get("teamId"), q.Get("slug")); team != "" && team != p.TeamID {
		id, err := h.team(ctx, p, team)
		if err != nil {
			return nil, err
		}
		if id != p.TeamID { // an operator's choice
			p.TeamID, p.ProjectID = id, ""
			ctx = api.WithPrincipal(ctx, p)
		}
	}
	// Lists call it project.
	return h.inProject(ctx, cmp.Or(q.Get("projectId"), q.Get("project")))
}

// team finds a team by its id or its name: the token's own, or for a token of an
// operator any. Errors: permission_denied.
func (h *handler) team(ctx context.Context, p api.Principal, team string) (string, error) {
	own, err := h.Accounts.GetTeam(ctx, p.TeamID)
	if err != nil {
		return "", err
	}
	if own.Name == team {
		return own.ID, nil
	}
	if p.Admin {
		all, err := find(ctx, h.Accounts.ListTeams, func(t account.Team) bool { return t.ID == team || t.Name == team })
		if err != nil {
			return "", err
		}
		if all != nil {
			return all.ID, nil
		}
	}
	return "", cay.Errorf(cay.PermissionDenied, "this token cannot speak for team %.100q", team)
}

// inProject returns a context that acts for one project of the team, given by its
// id or its name; ctx itself if project is empty. Errors: not_found.
func (h *handler) inProject(ctx context.Context, project string) (context.Context, error) {
	if project == "" {
		return ctx, nil
	}
	id, err := h.project(ctx, project)
	if err != nil {
		return nil, err
	}
	p, _ := api.PrincipalFrom(ctx)
	p.ProjectID = id
	return api.WithPrincipal(ctx, p), nil
}

// clientsProject is the name of the project that clients use, and create, if no
// project is configured.
const clientsProject = "vercel-sandbox-default-project"

// project finds a project of the team by its id or its name. A token of a project
// cannot create projects, so for such a token clientsProject means the token's
// own project. Errors: not_found.
func (h *handler) project(ctx context.Context, project string) (string, error) {
	p, _ := api.PrincipalFrom(ctx)
	if project == p.ProjectID || project == clientsProject && p.ProjectID != "" {
		return p.ProjectID, nil
	}
	if strings.HasPrefix(project, "prj_") {
		found, err := h.Accounts.GetProject(ctx, project)
		switch {
		case err == nil && found.TeamID == p.TeamID:
			return found.ID, nil
		case err != nil && cay.CodeOf(err) != cay.NotFound:
			return "", err
		}
	}
	found, err := find(ctx, h.Accounts.ListProjects, func(pr account.Project) bool { return pr.Name == project })
	if err != nil {
		return "", err
	}
	if found == nil {
		return "", cay.Errorf(cay.NotFound, "project %.100q not found", project).WithHint("cay project list shows the team's")
	}
	return found.ID, nil
}

// find returns the first wanted item of a list, nil if there is none.
func find[T any](ctx context.Context, list func(context.Context, account.ListParams) (*account.Page[T], error), wanted func(T) bool) (*T, error) {
	var p account.ListParams
	for p.Limit = 200; ; {
		page, err := list(ctx, p)
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			if wanted(page.Items[i]) {
				return &page.Items[i], nil
			}
		}
		if p.Cursor = page.Next; p.Cursor == "" {
			return nil, nil
		}
	}
}
