package admin

import (
	_ "embed"
	"net/http"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/api"
)

var _ Service = (*gateway.Client)(nil)

//go:embed openapi.json
var openapi []byte

// Routes registers the native API's routes and their description on m. The Engine serves
// the gateway's own origin.
func Routes(m *api.Mux, svc Service) {
	h := managing{svc}
	m.Handle("POST /v1/gateway/keys", h.createKey)
	m.Handle("GET /v1/gateway/keys", h.listKeys)
	m.Handle("GET /v1/gateway/keys/{id}", h.getKey)
	m.Handle("PATCH /v1/gateway/keys/{id}", h.updateKey)
	m.Handle("DELETE /v1/gateway/keys/{id}", h.deleteKey)
	m.Handle("GET /v1/gateway/budgets", h.listBudgets)
	m.Handle("PUT /v1/gateway/budgets/{scope}", h.setBudget)
	m.Handle("GET /v1/gateway/budgets/{scope}", h.getBudget)
	m.Handle("DELETE /v1/gateway/budgets/{scope}", h.deleteBudget)
	m.Handle("GET /v1/gateway/requests", h.listRequests)
	m.Handle("GET /v1/gateway/requests/events", h.followRequests)
	m.Handle("GET /v1/gateway/requests/{id}", h.getRequest)
	m.Handle("GET /v1/gateway/requests/{id}/body", h.getRequestBody)
	m.Handle("DELETE /v1/gateway/requests/{id}/body", h.deleteRequestBody)
	m.Handle("GET /v1/gateway/spend", h.spend)
	m.Handle("GET /v1/gateway/models", h.listModels)
	m.Handle("POST /v1/gateway/check", h.check)
	m.Describe(openapi)
	h.providerRoutes(m)
}

// managing holds the handlers of a Service.
type managing struct{ svc Service }

func (h managing) createKey(w http.ResponseWriter, r *http.Request) error {
	var p gateway.CreateKeyParams
	if err := readParams(w, r, &p); err != nil {
		return err
	}
	k, err := h.svc.CreateKey(r.Context(), p)
	return reply(w, http.StatusCreated, k, err)
}

func (h managing) listKeys(w http.ResponseWriter, r *http.Request) error {
	p, err := listParams(r)
	if err != nil {
		return err
	}
	page, err := h.svc.ListKeys(r.Context(), p)
	return reply(w, http.StatusOK, page, err)
}

func (h managing) getKey(w http.ResponseWriter, r *http.Request) error {
	if err := api.ParseQuery(r).Err(); err != nil {
		return err
	}
	k, err := h.svc.GetKey(r.Context(), r.PathValue("id"))
	return reply(w, http.StatusOK, k, err)
}

func (h managing) updateKey(w http.ResponseWriter, r *http.Request) error {
	var p gateway.UpdateKeyParams
	if err := readParams(w, r, &p); err != nil {
		return err
	}
	k, err := h.svc.UpdateKey(r.Context(), r.PathValue("id"), p)
	return reply(w, http.StatusOK, k, err)
}

func (h managing) deleteKey(w http.ResponseWriter, r *http.Request) error {
	if err := api.ParseQuery(r).Err(); err != nil {
		return err
	}
	return replyDone(w, h.svc.DeleteKey(r.Context(), r.PathValue("id")))
}

// budgetID reads the budget id of a request.
func budgetID(r *http.Request) (gateway.BudgetID, error) {
	q := api.ParseQuery(r)
	id := gateway.BudgetID{Scope: gateway.Scope(r.PathValue("scope")), Ref: q.String("ref")}
	return id, q.Err()
}

func (h managing) setBudget(w http.ResponseWriter, r *http.Request) error {
	id, err := budgetID(r)
	if err != nil {
		return err
	}
	var p gateway.BudgetParams
	if err := api.ReadJSON(w, r, &p); err != nil {
		return err
	}
	b, err := h.svc.SetBudget(r.Context(), id, p)
	return reply(w, http.StatusOK, b, err)
}

func (h managing) getBudget(w http.ResponseWriter, r *http.Request) error {
	id, err := budgetID(r)
	if err != nil {
		return err
	}
	b, err := h.svc.GetBudget(r.Context(), id)
	return reply(w, http.StatusOK, b, err)
}

func (h managing) listBudgets(w http.ResponseWriter, r *http.Request) error {
	p, err := listParams(r)
	if err != nil {
		return err
	}
	page, err := h.svc.ListBudgets(r.Context(), p)
	return reply(w, http.StatusOK, page, err)
}

func (h managing) deleteBudget(w http.ResponseWriter, r *http.Request) error {
	id, err := budgetID(r)
	if err != nil {
		return err
	}
	return replyDone(w, h.svc.DeleteBudget(r.Context(), id))
}

func (h managing) listRequests(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	f := requestFilter(q)
	f.Since, f.Until = q.Time("since"), q.Time("until")
	f.Limit, f.Cursor = int(q.Int("limit", 1, maxRequests, 0)), q.String("cursor")
	if err := q.Err(); err != nil {
		return err
	}
	page, err := h.svc.ListRequests(r.Context(), f)
	return reply(w, http.StatusOK, page, err)
}

func (h managing) getRequest(w http.ResponseWriter, r *http.Request) error {
	if err := api.ParseQuery(r).Err(); err != nil {
		return err
	}
	req, err := h.svc.GetRequest(r.Context(), r.PathValue("id"))
	return reply(w, http.StatusOK, req, err)
}

func (h managing) getRequestBody(w http.ResponseWriter, r *http.Request) error {
	if err := api.ParseQuery(r).Err(); err != nil {
		return err
	}
	b, err := h.svc.GetRequestBody(r.Context(), r.PathValue("id"))
	return reply(w, http.StatusOK, b, err)
}

func (h managing) deleteRequestBody(w http.ResponseWriter, r *http.Request) error {
	if err := api.ParseQuery(r).Err(); err != nil {
		return err
	}
	return replyDone(w, h.svc.DeleteRequestBody(r.Context(), r.PathValue("id")))
}

func (h managing) spend(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	p := gateway.SpendParams{
		Since: q.Time("since"), Until: q.Time("until"), By: q.Strings("by", len(spendGroups)), ProjectID: q.String("project_id"), KeyID: q.String("key_id"),
		User: q.String("user"), Session: q.String("session"), Tags: q.Strings("tag", maxTags), Latency: q.Bool("latency"), Model: q.String("model"), Provider: q.String("provider"),
	}
	if err := q.Err(); err != nil {
		return err
	}
	rows, err := h.svc.Spend(r.Context(), p)
	return reply(w, http.StatusOK, gateway.Page[gateway.Spend]{Items: rows}, err)
}

func (h managing) listModels(w http.ResponseWriter, r *http.Request) error {
	if err := api.ParseQuery(r).Err(); err != nil {
		return err
	}
	models, err := h.svc.ListModels(r.Context())
	return reply(w, http.StatusOK, gateway.Page[gateway.Model]{Items: orNone(models)}, err)
}

func (h managing) check(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	provider := q.String("provider")
	if err := q.Err(); err != nil {
		return err
	}
	checks, err := h.svc.Check(r.Context(), provider)
	return reply(w, http.StatusOK, gateway.Page[gateway.Check]{Items: orNone(checks)}, err)
}

// orNone returns list, non-nil so that an empty list is [] in JSON.
func orNone[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func readParams(w http.ResponseWriter, r *http.Request, v any) error {
	if err := api.ParseQuery(r).Err(); err != nil {
		return err
	}
	return api.ReadJSON(w, r, v)
}

func listParams(r *http.Request) (gateway.ListParams, error) {
	q := api.ParseQuery(r)
	p := gateway.ListParams{Limit: int(q.Int("limit", 1, maxPage, 0)), Cursor: q.String("cursor")}
	return p, q.Err()
}

func reply(w http.ResponseWriter, status int, v any, err error) error {
	if err != nil {
		return err
	}
	return api.WriteJSON(w, status, v)
}

func replyDone(w http.ResponseWriter, err error) error {
	if err != nil {
		return err
	}
	return api.NoContent(w)
}
