package vercelworkflow

import (
	"net/http"
	"net/url"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/workflowd/queue"
	"github.com/cayhq/cay/workflow"
)

// maxWorking is how many deliveries an app may say that it works on.
const maxWorking = 10_000

// handleRegister notes where the app of a deployment is.
func (h *handler) handleRegister(w http.ResponseWriter, r *http.Request) error {
	project, err := h.asked(r, api.ParseQuery(r))
	if err != nil {
		return err
	}
	var p struct {
		URL    string `json:"url"`
		Secret string `json:"secret"`
		// Working are the receipts of the deliveries that the app works on. An app that does
		// not say it works on all that it was sent.
		Working []string `json:"working"`
	}
	if err := api.ReadJSON(w, r, &p); err != nil {
		return err
	}
	u, err := url.Parse(p.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return cay.Errorf(cay.Invalid, "url is %.100q, and should be the address of an app, such as http://127.0.0.1:3000", p.URL)
	}
	if len(p.Working) > maxWorking {
		return cay.Errorf(cay.Invalid, "working has %d receipts: at most %d are allowed", len(p.Working), maxWorking)
	}
	if len(p.Secret) < 16 || len(p.Secret) > 256 {
		return cay.Errorf(cay.Invalid, "secret has %d bytes, and should have 16 to 256", len(p.Secret))
	}
	d := queue.Deployment{Project: project, ID: r.PathValue("deployment"), URL: p.URL, Secret: p.Secret}
	if err := h.Check(r.Context(), d); err != nil {
		return err
	}
	d, err = h.Queue.Register(r.Context(), d)
	if err != nil {
		return err
	}
	if p.Working != nil {
		if err := h.Queue.Working(r.Context(), project, d.ID, p.Secret, p.Working); err != nil {
			return err
		}
	}
	return api.WriteJSON(w, http.StatusOK, deploymentOf(&d))
}

// handleDeregister notes that the app of a deployment is gone: its messages wait.
func (h *handler) handleDeregister(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	at := q.String("url")
	project, err := h.asked(r, q)
	if err != nil {
		return err
	}
	d, err := h.Queue.Deployment(r.Context(), project, r.PathValue("deployment"))
	if err != nil {
		return err
	}
	if d.URL != at {
		return cay.Errorf(cay.Conflict, "the app of deployment %s is at %q, not at %.100q: it has registered since", d.ID, d.URL, at)
	}
	if err := h.Queue.Deregister(r.Context(), project, d.ID, d.Secret); err != nil {
		return err
	}
	return api.NoContent(w)
}

func (h *handler) handleListDeployments(w http.ResponseWriter, r *http.Request) error {
	project, err := h.asked(r, api.ParseQuery(r))
	if err != nil {
		return err
	}
	found, err := h.Queue.Deployments(r.Context(), project)
	if err != nil {
		return err
	}
	items := make([]workflow.Deployment, len(found))
	for i := range found {
		items[i] = deploymentOf(&found[i])
	}
	return api.WriteJSON(w, http.StatusOK, map[string]any{"items": items})
}

// handleRunKey says that runs have no key: the SDK does not encrypt then.
func (h *handler) handleRunKey(w http.ResponseWriter, _ *http.Request) error {
	return api.WriteJSON(w, http.StatusOK, map[string]any{"key": nil})
}

// handleLatest says which deployment has registered last.
func (h *handler) handleLatest(w http.ResponseWriter, r *http.Request) error {
	project, err := h.Project(r.Context(), "")
	if err != nil {
		return err
	}
	d, err := h.Queue.Latest(r.Context(), project)
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, map[string]string{"id": d.ID})
}
