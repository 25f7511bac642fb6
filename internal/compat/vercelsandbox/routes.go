package vercelsandbox

import (
	"github.com/cayhq/cay/internal/api"
)

// v1Host is the host at whose root clients expect the older protocol. At other
// hosts the root has our own API.
const v1Host = "api.vercel.com"

// Routes registers the protocol on mux: below /api, where most clients expect it,
// and at the root.
func Routes(mux *api.Mux, cfg Config) {
	(&handler{Config: cfg}).register(mux)
}

func (h *handler) register(mux *api.Mux) {
	for _, base := range []string{"/api", ""} {
		h.routes(mux, base)
	}
	h.routesV1(mux, "/api/v1")
	h.routesV1(mux, v1Host+"/v1")
	mux.HandlePublic("GET /vercel/preload.mjs", h.handlePreload)
	mux.HandlePublic("/api/", handleElsewhere)
}

// routes registers the common routes of every root. Fixed words take precedence
// over names.
func (h *handler) routes(mux *api.Mux, base string) {
	on := func(method, path string, serve api.Handler) {
		mux.HandleIn(method+" "+base+path, h.handle(serve), writeError)
	}
	on("POST", "/v2/sandboxes", h.handleCreate)
	on("POST", "/v3/sandboxes", h.handleCreateImage)
	on("POST", "/v4/sandboxes", h.handleCreateImage)
	on("GET", "/v2/sandboxes", h.handleList)
	on("GET", "/v2/sandboxes/{name}", h.handleGet)
	on("PATCH", "/v2/sandboxes/{name}", h.handleUpdate)
	on("DELETE", "/v2/sandboxes/{name}", h.handleDelete)
	on("POST", "/v2/sandboxes/{name}/{action}", h.handleAction) // fork

	on("GET", "/v2/sandboxes/sessions", h.handleListSessions)
	const session = "/v2/sandboxes/sessions/{sid}"
	on("GET", session, h.handleGetSession)
	on("POST", session+"/stop", h.handleStop)
	on("POST", session+"/network-policy", h.handleNetworkPolicy)
	on("POST", session+"/extend-timeout", h.handleExtend)
	on("POST", session+"/snapshot", h.handleSnapshot)
	on("POST", "/v3/sandboxes/sessions/{sid}/snapshot", h.handleSnapshotWeek)
	on("GET", session+"/cmd", h.handleListCommands)
	h.ownedRoutes(on, session)
	on("POST", session+"/interactive", h.handleInteractive)
	mux.HandlePublic("GET "+base+session+"/interactive", h.handleTerminal) // its ticket is in the query

	on("GET", "/v2/sandboxes/snapshots", h.handleListSnapshots)
	on("GET", "/v2/sandboxes/snapshots/tree", h.handleSnapshotTree)
	on("GET", "/v2/sandboxes/snapshots/{snapshot}", h.handleGetSnapshot)
	on("DELETE", "/v2/sandboxes/snapshots/{snapshot}", h.handleDeleteSnapshot)

	on("GET", "/v2/sandboxes/drives", h.handleListDrives)
	on("POST", "/v2/sandboxes/drives/{drive}", h.handleCreateDrive)
	on("GET", "/v2/sandboxes/drives/{drive}", h.handleGetDrive)
	on("DELETE", "/v2/sandboxes/drives/{drive}", h.handleDeleteDrive)
	on("POST", "/v2/sandboxes/drives/{drive}/fork", h.handleForkDrive)

	on("GET", "/v2/user", h.handleUser)
	on("GET", "/v2/teams", h.handleTeams)
	on("GET", "/v2/teams/{team}", h.handleTeam)
	on("GET", "/v2/projects/{project}", h.handleProject)
	on("POST", "/v11/projects", h.handleCreateProject)
	on("POST", "/v1/projects/{project}/token", h.handleProjectToken)
	mux.HandlePublic("GET "+base+"/health", handleHealth)
}

// routesV1 registers the older protocol, which knows sandboxes by their ids only.
func (h *handler) routesV1(mux *api.Mux, base string) {
	on := func(method, path string, serve api.Handler) {
		mux.HandleIn(method+" "+base+"/sandboxes"+path, h.handle(serve), writeError)
	}
	on("POST", "", h.handleV1Create)
	on("GET", "", h.handleV1List)
	on("GET", "/{id}", h.handleV1Get)
	on("POST", "/{id}/stop", h.handleV1Stop)
	on("POST", "/{id}/network-policy", h.handleV1NetworkPolicy)
	on("POST", "/{id}/extend-timeout", h.handleV1Extend)
	on("POST", "/{id}/snapshot", h.handleV1Snapshot)
	h.ownedRoutes(on, "/{id}")
	on("POST", "/{id}/{cmd}/kill", h.handleKill) // the form that most clients use

	on("GET", "/snapshots", h.handleV1ListSnapshots)
	on("GET", "/snapshots/{snapshot}", h.handleV1GetSnapshot)
	on("DELETE", "/snapshots/{snapshot}", h.handleV1DeleteSnapshot)
}
