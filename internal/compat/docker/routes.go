package docker

import (
	"net/http"
	"regexp"
	"strconv"
	"strings"
)

// Versions of the API: the newest and the oldest that the server accepts.
const (
	apiVersion = "1.47"
	apiMinor   = 47
	minVersion = "1.24"
)

type handlerFunc func(w http.ResponseWriter, r *http.Request) error

// onContainer is a handler of a request about a container that exists.
type onContainer func(w http.ResponseWriter, r *http.Request, c *container) error

// table lists every route.
func (s *Server) table() map[string]handlerFunc {
	return map[string]handlerFunc{
		"GET /_ping":   s.handlePing,
		"GET /version": s.handleVersion,
		"GET /info":    s.handleInfo,
		"GET /events":  s.handleEvents,

		"GET /containers/json":          s.handleList,
		"POST /containers/create":       s.handleCreate,
		"GET /containers/{id}/json":     s.found(s.handleInspect),
		"POST /containers/{id}/start":   s.found(s.handleStart),
		"POST /containers/{id}/stop":    s.found(s.handleStop),
		"POST /containers/{id}/restart": s.found(s.handleRestart),
		"POST /containers/{id}/kill":    s.found(s.handleKill),
		"POST /containers/{id}/wait":    s.found(s.handleWait),
		"POST /containers/{id}/rename":  s.found(s.handleRename),
		"DELETE /containers/{id}":       s.found(s.handleRemove),
		"GET /containers/{id}/logs":     s.foundSandbox(s.handleLogs),
		"POST /containers/{id}/attach":  s.foundSandbox(s.handleAttach),
		"POST /containers/{id}/resize":  s.foundSandbox(s.handleResize),
		"GET /containers/{id}/top":      s.foundSandbox(s.handleTop),
		"GET /containers/{id}/stats":    s.foundSandbox(s.handleStats),
		"POST /containers/{id}/pause":   s.foundSandbox(s.handlePause),
		"POST /containers/{id}/unpause": s.foundSandbox(s.handleUnpause),
		"GET /containers/{id}/archive":  s.foundSandbox(s.handleGetArchive), // and HEAD
		"PUT /containers/{id}/archive":  s.foundSandbox(s.handlePutArchive),
		"POST /containers/{id}/exec":    s.foundSandbox(s.handleExecCreate),
		"POST /exec/{id}/start":         s.handleExecStart,
		"POST /exec/{id}/resize":        s.handleExecResize,
		"GET /exec/{id}/json":           s.handleExecInspect,
		"GET /images/json":              s.handleImages,
		"POST /images/create":           s.handlePull,
		"POST /images/load":             s.handleLoad,
		"GET /images/get":               s.handleSaveAll,
		"GET /images/{name...}":         s.handleImage,
		"POST /images/{name...}":        s.handleImagePost,
		"DELETE /images/{name...}":      s.handleImageRemove,
		"GET /networks":                 s.handleNetworks,
		"GET /networks/{id}":            s.handleNetwork,
		"GET /volumes":                  s.handleVolumes,
		"GET /volumes/{name}":           s.handleVolume,
		"DELETE /volumes/{name}":        s.handleVolumeRemove,
		"POST /volumes/create":          s.handleVolumeCreate,
		"POST /networks/create":         notYet("networks other than bridge"),
		"POST /build":                   s.handleBuild,
		"POST /commit":                  s.handleCommit,
		"GET /containers/{id}/changes":  notYet("lists of changed files"),
		"GET /containers/{id}/export":   notYet("exports of containers"),
		"POST /containers/{id}/update":  notYet("changing the limits of containers"),
		"POST /auth":                    notYet("credentials of registries; the daemon has its own"),
	}
}

// notYet refuses what the API has and this package has not.
func notYet(what string) handlerFunc {
	return func(http.ResponseWriter, *http.Request) error {
		return failf(http.StatusNotImplemented, "cay has not (yet) on this socket: %s", what)
	}
}

var versionPrefix = regexp.MustCompile(`^/v1\.([0-9]{1,3})(/.*)$`)

// handler routes requests, with and without a version before their path.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	for pattern, serve := range s.table() {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := serve(w, r); err != nil {
				if status, _ := shape(err); status >= http.StatusInternalServerError && r.Context().Err() == nil {
					s.cfg.Logger.WarnContext(r.Context(), "request failed", "method", r.Method, "path", r.URL.Path, "error", err)
				}
				writeError(w, err)
			}
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, failf(http.StatusNotFound, "page not found: %s %s", r.Method, r.URL.Path))
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.begin() {
			writeError(w, failf(http.StatusServiceUnavailable, "the server ends"))
			return
		}
		defer s.tasks.Done()
		w.Header().Set("Api-Version", apiVersion)
		w.Header().Set("Ostype", "linux")
		w.Header().Set("Server", "cay ("+s.cfg.Version+")")
		if m := versionPrefix.FindStringSubmatch(r.URL.Path); m != nil {
			if n, err := strconv.Atoi(m[1]); err != nil || n > apiMinor {
				writeError(w, failf(http.StatusBadRequest, "client version 1.%s is too new. Maximum supported API version is %s", m[1], apiVersion))
				return
			}
			r = r.Clone(r.Context())
			r.URL.Path, r.URL.RawPath = m[2], versionPrefix.ReplaceAllString(r.URL.RawPath, "$2")
		}
		mux.ServeHTTP(w, r)
	})
}

// found finds the container that a path names.
func (s *Server) found(serve onContainer) handlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		c, err := s.find(r.Context(), r.PathValue("id"))
		if err != nil {
			return err
		}
		return serve(w, r, c)
	}
}

// foundSandbox is found for what takes a sandbox, which sidecars have not.
func (s *Server) foundSandbox(serve onContainer) handlerFunc {
	return s.found(func(w http.ResponseWriter, r *http.Request, c *container) error {
		if c.side != nil {
			return failf(http.StatusConflict, "container %s is a proxy within cay, without files and processes", c.Name)
		}
		return serve(w, r, c)
	})
}

// flag reads a boolean of the query, as clients write them.
func flag(r *http.Request, name string) bool {
	switch strings.ToLower(r.URL.Query().Get(name)) {
	case "", "0", "false", "no", "none":
		return false
	}
	return true
}
