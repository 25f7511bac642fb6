package admin

import (
	_ "embed"
	"net/http"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/api"
)

//go:embed openapi_providers.json
var openapiProviders []byte

// providerRoutes registers the routes of providers and of projects' credentials.
func (h managing) providerRoutes(m *api.Mux) {
	m.Handle("GET /v1/gateway/providers", h.listProviders)
	m.Handle("GET /v1/gateway/providers/{name}", h.getProvider)
	m.Handle("PUT /v1/gateway/providers/{name}", h.setProvider)
	m.Handle("DELETE /v1/gateway/providers/{name}", h.deleteProvider)
	m.Handle("GET /v1/gateway/credentials", h.listCredentials)
	m.Handle("PUT /v1/gateway/credentials/{provider}/{name}", h.setCredential)
	m.Handle("DELETE /v1/gateway/credentials/{provider}/{name}", h.deleteCredential)
	m.Describe(openapiProviders)
}

func (h managing) listProviders(w http.ResponseWriter, r *http.Request) error {
	if err := api.ParseQuery(r).Err(); err != nil {
		return err
	}
	all, err := h.svc.ListProviders(r.Context())
	return reply(w, http.StatusOK, gateway.Page[gateway.Provider]{Items: orNone(all)}, err)
}

func (h managing) getProvider(w http.ResponseWriter, r *http.Request) error {
	if err := api.ParseQuery(r).Err(); err != nil {
		return err
	}
	p, err := h.svc.GetProvider(r.Context(), r.PathValue("name"))
	return reply(w, http.StatusOK, p, err)
}

func (h managing) setProvider(w http.ResponseWriter, r *http.Request) error {
	var p gateway.ProviderParams
	if err := readParams(w, r, &p); err != nil {
		return err
	}
	set, err := h.svc.SetProvider(r.Context(), r.PathValue("name"), p)
	return reply(w, http.StatusOK, set, err)
}

func (h managing) deleteProvider(w http.ResponseWriter, r *http.Request) error {
	if err := api.ParseQuery(r).Err(); err != nil {
		return err
	}
	return replyDone(w, h.svc.DeleteProvider(r.Context(), r.PathValue("name")))
}

func (h managing) listCredentials(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	f := gateway.CredentialFilter{ProjectID: q.String("project_id"), Provider: q.String("provider")}
	if err := q.Err(); err != nil {
		return err
	}
	all, err := h.svc.ListCredentials(r.Context(), f)
	return reply(w, http.StatusOK, gateway.Page[gateway.Credential]{Items: orNone(all)}, err)
}

// credentialID reads the credential id of a request.
func credentialID(r *http.Request) (gateway.CredentialID, error) {
	q := api.ParseQuery(r)
	id := gateway.CredentialID{ProjectID: q.String("project_id"), Provider: r.PathValue("provider"), Name: r.PathValue("name")}
	return id, q.Err()
}

func (h managing) setCredential(w http.ResponseWriter, r *http.Request) error {
	id, err := credentialID(r)
	if err != nil {
		return err
	}
	var p gateway.CredentialParams
	if err := api.ReadJSON(w, r, &p); err != nil {
		return err
	}
	c, err := h.svc.SetCredential(r.Context(), id, p)
	return reply(w, http.StatusOK, c, err)
}

func (h managing) deleteCredential(w http.ResponseWriter, r *http.Request) error {
	id, err := credentialID(r)
	if err != nil {
		return err
	}
	return replyDone(w, h.svc.DeleteCredential(r.Context(), id))
}
