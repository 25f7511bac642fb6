package api_test

import (
	"context"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/api"
)

// projectsOf has the projects of teams.
type projectsOf map[string]string

func (p projectsOf) CheckProject(_ context.Context, team, project string) error {
	if p[project] != team {
		return cay.Errorf(cay.NotFound, "project %q not found", project)
	}
	return nil
}

func TestPrincipal_Project(t *testing.T) {
	t.Parallel()
	all := projectsOf{"prj_a": "team_a", "prj_a2": "team_a", "prj_b": "team_b"}
	teamA := api.Principal{TeamID: "team_a"}
	projectA := api.Principal{TeamID: "team_a", ProjectID: "prj_a"}
	operator := api.Principal{TeamID: "team_b", Admin: true}
	for name, tt := range map[string]struct {
		who       api.Principal
		projects  api.Projects
		requested string
		want      string
		code      cay.Code
	}{
		"the token's own":               {projectA, all, "", "prj_a", ""},
		"the token's own, by its id":    {projectA, all, "prj_a", "prj_a", ""},
		"another of the team":           {projectA, all, "prj_a2", "", cay.NotFound},
		"another, with nobody to check": {projectA, nil, "prj_a2", "", cay.NotFound},
		"the default":                   {api.Principal{TeamID: account.DefaultTeam}, all, "", account.DefaultProject, ""},
		"no default":                    {teamA, all, "", "", cay.Invalid},
		"of the team":                   {teamA, all, "prj_a2", "prj_a2", ""},
		"of another team":               {teamA, all, "prj_b", "", cay.NotFound},
		"of no team":                    {teamA, all, "prj_x", "", cay.NotFound},
		"unchecked":                     {teamA, nil, "prj_x", "prj_x", ""},
		"an operator's choice of team":  {operator, all, "prj_b", "prj_b", ""},
		"an operator, beside the team":  {operator, all, "prj_a", "", cay.NotFound},
		"an operator, without a choice": {operator, all, "", "", cay.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := tt.who.Project(t.Context(), tt.projects, tt.requested)
			if got != tt.want || cay.CodeOf(err) != tt.code {
				t.Errorf("the project is %q, the error %v; want %q, %q", got, err, tt.want, tt.code)
			}
		})
	}
}

func TestRequirePrincipal(t *testing.T) {
	t.Parallel()
	for name, ctx := range map[string]context.Context{
		"no principal": t.Context(),
		"no team":      api.WithPrincipal(t.Context(), api.Principal{TokenID: "tok", Admin: true}),
	} {
		if p, err := api.RequirePrincipal(ctx); cay.CodeOf(err) != cay.Unauthenticated || p != (api.Principal{}) {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
	want := api.Principal{TokenID: "tok", TeamID: "team"}
	if p, err := api.RequirePrincipal(api.WithPrincipal(t.Context(), want)); err != nil || p != want {
		t.Errorf("%+v, %v", p, err)
	}
}
