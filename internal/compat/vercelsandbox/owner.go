package vercelsandbox

import (
	"net/http"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/sandbox"
)

// owner is the session that commands and files belong to. In the first version
// of the protocol, which knows no sessions, the owner is a sandbox, by the id in
// the request.
type owner struct {
	ref string
	v1  bool
}

// ownerOf returns the owner in a request's path: routes of sessions name it sid,
// routes of the first version id. Errors: not_found.
func ownerOf(r *http.Request) (owner, error) {
	if sid := r.PathValue("sid"); sid != "" {
		if !strings.HasPrefix(sid, sessionPrefix) { // a sandbox would be found, too
			return owner{}, cay.Errorf(cay.NotFound, "session %.100q not found", sid)
		}
		return owner{ref: sid}, nil
	}
	id := r.PathValue("id")
	if !strings.HasPrefix(id, sandboxPrefix) && !strings.HasPrefix(id, sessionPrefix) {
		return owner{}, cay.Errorf(cay.NotFound, "sandbox %.100q not found", id)
	}
	return owner{ref: id, v1: true}, nil
}

// command returns the JSON form of a command. The first version has no duration.
func (o owner) command(c *sandbox.Command) command {
	out := command{ID: c.ID, Args: []string{}, Cwd: c.WorkDir, StartedAt: c.StartedAt.UnixMilli()}
	argv := c.Argv
	if len(argv) > 3 && argv[2] == inShell {
		argv = argv[3:]
	}
	if len(argv) > 0 {
		out.Name = argv[0]
		out.Args = append(out.Args, argv[1:]...)
	}
	if c.Exit != nil {
		out.ExitCode = &c.Exit.Code
	}
	if o.v1 {
		out.SandboxID = o.ref
		return out
	}
	out.SessionID = o.ref
	if c.Exit != nil {
		out.DurationMs = new(time.Duration(c.Exit.Duration).Milliseconds())
	}
	return out
}

// ownedRoutes registers the routes of a session or a sandbox, below its path.
func (h *handler) ownedRoutes(on func(method, path string, serve api.Handler), owner string) {
	on("POST", owner+"/cmd", h.handleStart)
	on("GET", owner+"/cmd/{cmd}", h.handleGetCommand)
	on("GET", owner+"/cmd/{cmd}/logs", h.handleLogs)
	on("POST", owner+"/cmd/{cmd}/kill", h.handleKill)
	on("POST", owner+"/fs/write", h.handleWrite)
	on("POST", owner+"/fs/read", h.handleRead)
	on("POST", owner+"/fs/mkdir", h.handleMkdir)
}
