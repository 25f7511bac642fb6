package daemon

import (
	_ "embed"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/accountd"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/compat/cloudflare"
	"github.com/cayhq/cay/internal/compat/vercelsandbox"
	"github.com/cayhq/cay/internal/compat/vercelworkflow"
	"github.com/cayhq/cay/internal/gatewayd/admin"
	"github.com/cayhq/cay/internal/imaged"
	"github.com/cayhq/cay/internal/sandboxd/route"
	"github.com/cayhq/cay/internal/ui"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/sdk/js"
)

//go:embed openapi.json
var openAPI []byte

func (d *Daemon) routes() *api.Mux {
	mux := api.NewMux(d.accounts)
	accountd.Routes(mux, d.accounts)
	accountd.PublicRoutes(mux, d.accounts)
	route.Mount(mux, d.sandboxes, d.ending)
	if d.workflows != nil {
		d.workflowRoutes = workflowd.NewRoutes(mux, d.workflows, d.accounts)
		d.workflowRoutes.Readable = vercelworkflow.Readable
		vercelworkflow.Routes(mux, d.vercelWorkflows())
	}
	if d.gateway != nil {
		admin.Routes(mux, d.manager())
		mux.Elsewhere = d.atGateway
		mux.HandlePublic("GET /v1/gateway", d.handleGateway)
	}
	imaged.Routes(mux, d.images)
	vercelsandbox.Routes(mux, d.vercel())
	cloudflare.Routes(mux, d.bridge())
	mux.Describe(openAPI)
	mux.ServeOpenAPI(cay.Version())

	js.Mount(mux)
	ui.Mount(mux)
	mux.HandlePublic("GET /healthz", func(w http.ResponseWriter, _ *http.Request) error {
		return api.WriteJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.Handle("GET /v1/host", d.handleHost)
	metrics := promhttp.HandlerFor(d.metrics.registry, promhttp.HandlerOpts{})
	mux.Handle("GET /metrics", func(w http.ResponseWriter, r *http.Request) error {
		if err := api.RequireAdmin(r.Context()); err != nil {
			return err
		}
		metrics.ServeHTTP(w, r)
		return nil
	})
	return mux
}
