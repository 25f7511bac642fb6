package vercelsandbox

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/compat/vercelsandbox/preload"
)

// Clients without a configured team or project ask for them here.

// Page sizes of teams.
const (
	defaultTeams = 20
	maxTeams     = 100
)

type userObject struct {
	ID string `json:"id"`
	// Username is the team's name: clients use it as the name of a team if no
	// other team lets them create sandboxes.
	Username      string `json:"username"`
	Name          string `json:"name"`
	DefaultTeamID string `json:"defaultTeamId"`
}

type teamObject struct {
	ID         string     `json:"id"`
	Slug       string     `json:"slug"`
	Name       string     `json:"name"`
	CreatedAt  int64      `json:"createdAt"`
	UpdatedAt  int64      `json:"updatedAt"`
	Membership membership `json:"membership"`
	Billing    billing    `json:"billing"`
}

type membership struct {
	Role      string `json:"role"`
	Confirmed bool   `json:"confirmed"`
}

type billing struct {
	Plan string `json:"plan"`
}

type projectObject struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	AccountID string `json:"accountId"`
	CreatedAt int64  `json:"createdAt"`
	UpdatedAt int64  `json:"updatedAt"`
}

// newTeamObject describes a team. cay has no paid plans: the team is on the plan
// without limits, which also keeps clients from looking for another team.
func newTeamObject(t *account.Team, admin bool) teamObject {
	role := "MEMBER"
	if admin {
		role = "OWNER"
	}
	return teamObject{
		ID: t.ID, Slug: t.Name, Name: t.Name, CreatedAt: t.CreatedAt.UnixMilli(), UpdatedAt: t.CreatedAt.UnixMilli(),
		Membership: membership{Role: role, Confirmed: true}, Billing: billing{Plan: "enterprise"},
	}
}

func newProjectObject(p *account.Project) projectObject {
	return projectObject{
		ID: p.ID, Name: p.Name, AccountID: p.TeamID, CreatedAt: p.CreatedAt.UnixMilli(), UpdatedAt: p.CreatedAt.UnixMilli(),
	}
}

// handleUser returns the team that the token acts for.
func (h *handler) handleUser(w http.ResponseWriter, r *http.Request) error {
	who, err := h.Accounts.WhoAmI(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, struct {
		User userObject `json:"user"`
	}{userObject{ID: who.Token.ID, Username: who.Team.Name, Name: who.Token.Name, DefaultTeamID: who.Team.ID}})
}

// handleTeams lists teams, newest first. The next page begins at the time at
// which a page ends, so teams of the same millisecond are on the same page.
func (h *handler) handleTeams(w http.ResponseWriter, r *http.Request) error {
	limit, until, err := teamPage(r)
	if err != nil {
		return err
	}
	p, _ := api.PrincipalFrom(r.Context())
	out := struct {
		Teams      []teamObject `json:"teams"`
		Pagination struct {
			Count int    `json:"count"`
			Next  *int64 `json:"next"`
			Prev  *int64 `json:"prev"`
		} `json:"pagination"`
	}{Teams: []teamObject{}}
	more, err := find(r.Context(), h.Accounts.ListTeams, func(t account.Team) bool {
		if at := t.CreatedAt.UnixMilli(); until != 0 && at >= until {
			return false
		} else if n := len(out.Teams); n >= limit && out.Teams[n-1].CreatedAt != at {
			return true
		}
		out.Teams = append(out.Teams, newTeamObject(&t, p.Admin))
		return false
	})
	if err != nil {
		return err
	}
	if out.Pagination.Count = len(out.Teams); more != nil {
		out.Pagination.Next = &out.Teams[len(out.Teams)-1].CreatedAt
	}
	return writeJSON(w, http.StatusOK, out)
}

// teamPage returns the page of teams that a request asks for; until is 0 for the
// first page.
func teamPage(r *http.Request) (limit int, until int64, err error) {
	q := r.URL.Query()
	limit = defaultTeams
	if s := q.Get("limit"); s != "" {
		if limit, err = strconv.Atoi(s); err != nil || limit < 1 || limit > maxTeams {
			return 0, 0, cay.Errorf(cay.Invalid, "limit is %.100q; it is a number from 1 to %d", s, maxTeams)
		}
	}
	if s := q.Get("until"); s != "" {
		if until, err = strconv.ParseInt(s, 10, 64); err != nil || until < 1 {
			return 0, 0, cay.Errorf(cay.Invalid, "until is %.100q; it is a time in milliseconds", s)
		}
	}
	return limit, until, nil
}

// handleTeam returns a team by its id or its name.
func (h *handler) handleTeam(w http.ResponseWriter, r *http.Request) error {
	ctx := r.Context()
	p, _ := api.PrincipalFrom(ctx)
	id := r.PathValue("team")
	if id != p.TeamID {
		found, err := h.team(ctx, p, id)
		if cay.CodeOf(err) == cay.PermissionDenied { // whether it exists is not theirs to know
			return cay.Errorf(cay.NotFound, "team %.100q not found", id)
		}
		if err != nil {
			return err
		}
		id = found
	}
	t, err := h.Accounts.GetTeam(ctx, id)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, newTeamObject(t, p.Admin))
}

// handleProject returns a project of the team by its id or its name.
func (h *handler) handleProject(w http.ResponseWriter, r *http.Request) error {
	id, err := h.project(r.Context(), r.PathValue("project"))
	if err != nil {
		return err
	}
	p, err := h.Accounts.GetProject(r.Context(), id)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, newProjectObject(p))
}

func (h *handler) handleCreateProject(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		Name string `json:"name"`
	}
	if err := readJSON(w, r, &in); err != nil {
		return err
	}
	p, err := h.Accounts.CreateProject(r.Context(), account.CreateProjectParams{Name: in.Name})
	if cay.CodeOf(err) == cay.AlreadyExists {
		return shaped(http.StatusConflict, "conflict", err)
	}
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, newProjectObject(p))
}

// handleProjectToken gives a client whose token is about to expire a new token.
func (h *handler) handleProjectToken(w http.ResponseWriter, r *http.Request) error {
	id, err := h.project(r.Context(), r.PathValue("project"))
	if err != nil {
		return err
	}
	t, err := h.Accounts.CreateJWT(r.Context(), id)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, struct {
		Token string `json:"token"`
	}{t.Secret})
}

// handleHealth answers clients that check, before they open a terminal, whether
// the terminal's host is up.
func handleHealth(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, struct {
		Status string `json:"status"`
	}{"ok"})
}

// handlePreload serves the module that directs programs to this daemon.
func (h *handler) handlePreload(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Content-Type", "text/javascript; charset=utf-8")
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(preload.Module(h.address(r), h.gateway(r))))
	return nil
}

// gateway returns the address of the AI gateway for the module, "" if unknown.
func (h *handler) gateway(r *http.Request) string {
	if h.Gateway == nil {
		return ""
	}
	at, err := h.Gateway(r)
	switch {
	case cay.CodeOf(err) == cay.NotFound:
		return preload.Off
	case err != nil:
		return ""
	}
	return at
}

// address is the URL of the daemon for the client of a request: the operator's
// PublicURL, else the URL that the request used. A proxy that ends TLS in front
// of the daemon sets X-Forwarded-Proto; a client that forges the header deceives
// only itself.
func (h *handler) address(r *http.Request) string {
	switch {
	case h.PublicURL != "":
		return h.PublicURL
	case r.TLS != nil, r.Header.Get("X-Forwarded-Proto") == "https":
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

// handleElsewhere answers for paths of the hosted service that cay does not
// have, at the prefixes that are directed to this daemon.
func handleElsewhere(_ http.ResponseWriter, r *http.Request) error {
	return cay.Errorf(cay.NotFound, "cay has no %s %.200q: of Vercel's API it serves Vercel Sandbox", r.Method, r.URL.Path)
}
