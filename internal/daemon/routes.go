package daemon

import (
	_ "embed"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/accountd"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/sandboxd"
)

//go:embed openapi.json
var openAPI []byte

func (d *Daemon) routes() *api.Mux {
	mux := api.NewMux(d.accounts)
	accountd.Routes(mux, d.accounts)
	sandboxd.Routes(mux, d.sandboxes)
	sandboxd.ImageRoutes(mux, imageService{d.images})
	mux.Describe(openAPI)
	mux.ServeOpenAPI(cay.Version())

	mux.HandlePublic("GET /healthz", func(w http.ResponseWriter, _ *http.Request) error {
		return api.WriteJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
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
