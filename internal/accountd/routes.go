package accountd

import (
	_ "embed"
	"net/http"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/api"
)

var _ Service = (*account.Client)(nil)

//go:embed openapi.json
var openapi []byte

// Routes registers the slice's routes and their description on m.
func Routes(m *api.Mux, svc Service) {
	h := handler{svc}
	m.Handle("GET /v1/whoami", h.whoAmI)
	m.Handle("GET /v1/version", version)
	m.Handle("POST /v1/teams", h.createTeam)
	m.Handle("GET /v1/teams", h.listTeams)
	m.Handle("GET /v1/teams/{id}", h.getTeam)
	m.Handle("PUT /v1/teams/{id}/quota", h.setQuota)
	m.Handle("DELETE /v1/teams/{id}", h.deleteTeam)
	m.Handle("POST /v1/projects", h.createProject)
	m.Handle("GET /v1/projects", h.listProjects)
	m.Handle("GET /v1/projects/{id}", h.getProject)
	m.Handle("DELETE /v1/projects/{id}", h.deleteProject)
	m.Handle("POST /v1/tokens", h.createToken)
	m.Handle("GET /v1/tokens", h.listTokens)
	m.Handle("GET /v1/tokens/{id}", h.getToken)
	m.Handle("DELETE /v1/tokens/{id}", h.deleteToken)
	m.Handle("POST /v1/projects/{id}/jwt", h.createJWT)
	m.Handle("POST /v1/login-links", h.createLoginLink)
	m.Handle("POST /v1/device-logins/{code}/approve", h.approveDeviceLogin)
	m.Handle("POST /v1/device-logins/{code}/deny", h.denyDeviceLogin)
	m.Describe(openapi)
}

type handler struct{ svc Service }

func (h handler) whoAmI(w http.ResponseWriter, r *http.Request) error {
	if err := api.ParseQuery(r).Err(); err != nil {
		return err
	}
	id, err := h.svc.WhoAmI(r.Context())
	return answer(w, http.StatusOK, id, err)
}

func version(w http.ResponseWriter, r *http.Request) error {
	if err := api.ParseQuery(r).Err(); err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, account.Daemon{Version: cay.Version()})
}

func (h handler) createTeam(w http.ResponseWriter, r *http.Request) error {
	var p account.CreateTeamParams
	if err := read(w, r, &p); err != nil {
		return err
	}
	t, err := h.svc.CreateTeam(r.Context(), p)
	return answer(w, http.StatusCreated, t, err)
}

func (h handler) getTeam(w http.ResponseWriter, r *http.Request) error {
	if err := api.ParseQuery(r).Err(); err != nil {
		return err
	}
	t, err := h.svc.GetTeam(r.Context(), r.PathValue("id"))
	return answer(w, http.StatusOK, t, err)
}

func (h handler) listTeams(w http.ResponseWriter, r *http.Request) error {
	p, err := listParams(r)
	if err != nil {
		return err
	}
	page, err := h.svc.ListTeams(r.Context(), p)
	return answer(w, http.StatusOK, page, err)
}

func (h handler) setQuota(w http.ResponseWriter, r *http.Request) error {
	var q account.Quota
	if err := read(w, r, &q); err != nil {
		return err
	}
	t, err := h.svc.SetQuota(r.Context(), r.PathValue("id"), q)
	return answer(w, http.StatusOK, t, err)
}

func (h handler) deleteTeam(w http.ResponseWriter, r *http.Request) error {
	if err := api.ParseQuery(r).Err(); err != nil {
		return err
	}
	return done(w, h.svc.DeleteTeam(r.Context(), r.PathValue("id")))
}

func (h handler) createProject(w http.ResponseWriter, r *http.Request) error {
	var p account.CreateProjectParams
	if err := read(w, r, &p); err != nil {
		return err
	}
	pr, err := h.svc.CreateProject(r.Context(), p)
	return answer(w, http.StatusCreated, pr, err)
}

func (h handler) getProject(w http.ResponseWriter, r *http.Request) error {
	if err := api.ParseQuery(r).Err(); err != nil {
		return err
	}
	p, err := h.svc.GetProject(r.Context(), r.PathValue("id"))
	return answer(w, http.StatusOK, p, err)
}

func (h handler) listProjects(w http.ResponseWriter, r *http.Request) error {
	p, err := listParams(r)
	if err != nil {
		return err
	}
	page, err := h.svc.ListProjects(r.Context(), p)
	return answer(w, http.StatusOK, page, err)
}

func (h handler) deleteProject(w http.ResponseWriter, r *http.Request) error {
	if err := api.ParseQuery(r).Err(); err != nil {
		return err
	}
	return done(w, h.svc.DeleteProject(r.Context(), r.PathValue("id")))
}

func (h handler) createToken(w http.ResponseWriter, r *http.Request) error {
	var p account.CreateTokenParams
	if err := read(w, r, &p); err != nil {
		return err
	}
	t, err := h.svc.CreateToken(r.Context(), p)
	return answer(w, http.StatusCreated, t, err)
}

func (h handler) getToken(w http.ResponseWriter, r *http.Request) error {
	if err := api.ParseQuery(r).Err(); err != nil {
		return err
	}
	t, err := h.svc.GetToken(r.Context(), r.PathValue("id"))
	return answer(w, http.StatusOK, t, err)
}

func (h handler) listTokens(w http.ResponseWriter, r *http.Request) error {
	p, err := listParams(r)
	if err != nil {
		return err
	}
	page, err := h.svc.ListTokens(r.Context(), p)
	return answer(w, http.StatusOK, page, err)
}

func (h handler) deleteToken(w http.ResponseWriter, r *http.Request) error {
	if err := api.ParseQuery(r).Err(); err != nil {
		return err
	}
	return done(w, h.svc.DeleteToken(r.Context(), r.PathValue("id")))
}

func (h handler) createJWT(w http.ResponseWriter, r *http.Request) error {
	if err := api.ParseQuery(r).Err(); err != nil {
		return err
	}
	j, err := h.svc.CreateJWT(r.Context(), r.PathValue("id"))
	return answer(w, http.StatusCreated, j, err)
}

func (h handler) createLoginLink(w http.ResponseWriter, r *http.Request) error {
	if err := api.ParseQuery(r).Err(); err != nil {
		return err
	}
	l, err := h.svc.CreateLoginLink(r.Context())
	return answer(w, http.StatusCreated, l, err)
}

func (h handler) approveDeviceLogin(w http.ResponseWriter, r *http.Request) error {
	var p account.ApproveParams
	if err := read(w, r, &p); err != nil {
		return err
	}
	l, err := h.svc.ApproveDeviceLogin(r.Context(), r.PathValue("code"), p)
	return answer(w, http.StatusOK, l, err)
}

func (h handler) denyDeviceLogin(w http.ResponseWriter, r *http.Request) error {
	if err := api.ParseQuery(r).Err(); err != nil {
		return err
	}
	l, err := h.svc.DenyDeviceLogin(r.Context(), r.PathValue("code"))
	return answer(w, http.StatusOK, l, err)
}

func read(w http.ResponseWriter, r *http.Request, v any) error {
	if err := api.ParseQuery(r).Err(); err != nil {
		return err
	}
	return api.ReadJSON(w, r, v)
}

func listParams(r *http.Request) (account.ListParams, error) {
	q := api.ParseQuery(r)
	p := account.ListParams{Limit: int(q.Int("limit", 1, 200, 0)), Cursor: q.String("cursor")}
	return p, q.Err()
}

func answer(w http.ResponseWriter, status int, v any, err error) error {
	if err != nil {
		return err
	}
	return api.WriteJSON(w, status, v)
}

func done(w http.ResponseWriter, err error) error {
	if err != nil {
		return err
	}
	return api.NoContent(w)
}
