package cloudflare

import (
	"net/http"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
)

// Prefix is the path below which the bridge is served: the path of the URL that clients
// are configured with.
const Prefix = "/cloudflare"

// Routes registers the bridge on mux, below Prefix.
func Routes(mux *api.Mux, cfg Config) {
	(&handler{Config: cfg}).register(mux)
}

func (h *handler) register(mux *api.Mux) {
	const v1 = Prefix + "/v1"
	on := func(method, path string, prepare api.Prepare, serve api.Handler) {
		mux.HandlePrepared(method+" "+v1+path, prepare, serve, writeError)
	}
	on("POST", "/sandbox", nil, h.handleCreate)
	for _, r := range []struct {
		method, path string
		serve        api.Handler
	}{
		{"DELETE", "", h.handleDelete},
		{"GET", "/running", h.handleRunning},
		{"POST", "/exec", h.handleExec},
		{"GET", "/file/{path...}", h.handleReadFile},
		{"PUT", "/file/{path...}", h.handleWriteFile},
		{"POST", "/persist", h.handlePersist},
		{"GET", "/persist", h.handlePersist}, // Mastra's client asks so; the vendor's bridge has POST alone
		{"POST", "/hydrate", h.handleHydrate},
		{"POST", "/session", h.handleCreateSession},
		{"DELETE", "/session/{sid}", h.handleDeleteSession},
		{"POST", "/mount", h.handleMount},
		{"POST", "/unmount", h.handleUnmount},
		{"POST", "/tunnel/{port}", h.handleTunnel},
		{"DELETE", "/tunnel/{port}", h.handleTunnel},
	} {
		on(r.method, "/sandbox/{id}"+r.path, checkID, r.serve)
	}
	on("GET", "/sandbox/{id}/pty", tokenInQuery("authorization", checkID), h.handleTerminal)

	on("GET", "/pool/stats", nil, h.handlePoolStats)
	on("POST", "/pool/prime", nil, h.handlePoolPrime)
	on("POST", "/pool/shutdown-prewarmed", nil, h.handlePoolShutdown)

	inQuery := tokenInQuery("token", nil)
	on("GET", "/openapi.json", inQuery, handleOpenAPI)
	on("GET", "/openapi.html", inQuery, handleOpenAPIPage)
	on("GET", "/openapi", inQuery, handleOpenAPIPage)

	mux.HandlePublic("GET "+Prefix+"/health", handleHealth)
	mux.HandlePublic(Prefix+"/", handleElsewhere)
}

func handleHealth(w http.ResponseWriter, _ *http.Request) error {
	return api.WriteJSON(w, http.StatusOK, done)
}

// handleElsewhere answers for paths and methods below Prefix that the bridge does not have.
func handleElsewhere(w http.ResponseWriter, r *http.Request) error {
	e := cay.Errorf(cay.NotFound, "the bridge has no %s %.200q", r.Method, r.URL.Path).
		WithHint("GET %s/v1/openapi.json lists what it has", Prefix)
	writeError(w, e, e)
	return nil
}
