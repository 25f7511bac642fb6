package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
)

// Mux routes requests to Handlers by the patterns of http.ServeMux. It
// authenticates requests, answers unknown routes and methods in the API's own
// shape, and knows its routes by name. Register everything before serving.
type Mux struct {
	mux    http.ServeMux
	auth   Authenticator
	routes []string
	docs   []json.RawMessage
	rest   func(w http.ResponseWriter, r *http.Request) bool // see HandleRest

	// Elsewhere returns an error for a route that another server has, which names
	// that server; nil if it does not know the route. Set it before serving; nil
	// means that no other server has routes.
	Elsewhere func(r *http.Request) error
}

// NewMux returns a Mux whose routes accept the tokens of auth.
func NewMux(auth Authenticator) *Mux {
	if auth == nil {
		panic("api: a mux without an authenticator would be open to everyone")
	}
	return &Mux{auth: auth}
}

// Handle registers h for a pattern such as "GET /v1/sandboxes/{ref}".
func (m *Mux) Handle(pattern string, h Handler) {
	m.routes = append(m.routes, pattern)
	m.mux.Handle(pattern, authenticate(m.auth, h))
}

// HandleIn registers h as Handle does, for a route of another protocol: write writes
// the route's errors, errors of authentication included.
func (m *Mux) HandleIn(pattern string, h Handler, write ErrorWriter) {
	m.routes = append(m.routes, pattern)
	m.mux.Handle(pattern, authenticate(m.auth, h.in(write)).in(write))
}

// Prepare sees a request before its token is checked. It refuses the request with an
// error, or returns the request, possibly after moving a token from another place
// into the Authorization header.
type Prepare func(r *http.Request) (*http.Request, error)

// HandlePrepared is HandleIn with a Prepare, which may be nil.
func (m *Mux) HandlePrepared(pattern string, prepare Prepare, h Handler, write ErrorWriter) {
	if prepare == nil {
		m.HandleIn(pattern, h, write)
		return
	}
	m.routes = append(m.routes, pattern)
	known := authenticate(m.auth, h.in(write))
	m.mux.Handle(pattern, Handler(func(w http.ResponseWriter, r *http.Request) error {
		r, err := prepare(r)
		if err != nil {
			return err
		}
		return known(w, r)
	}).in(write))
}

// HandlePublic registers h for requests with or without a token.
func (m *Mux) HandlePublic(pattern string, h Handler) {
	m.routes = append(m.routes, pattern)
	m.mux.Handle(pattern, h)
}

// HandleRest registers a handler for requests that match no route, by path or by
// method. If serve returns false, the request is answered as unknown.
func (m *Mux) HandleRest(serve func(w http.ResponseWriter, r *http.Request) bool) { m.rest = serve }

// Routes lists the registered patterns, sorted by path.
func (m *Mux) Routes() []string {
	out := slices.Clone(m.routes)
	slices.SortFunc(out, compareRoutes)
	return out
}

// Describe adds a slice's part of the OpenAPI document: its paths and components.
func (m *Mux) Describe(fragment []byte) {
	m.docs = append(m.docs, fragment)
}

// ServeOpenAPI registers GET /v1/openapi.json, the merged fragments of all
// slices, for a daemon of the given version. It needs no token.
func (m *Mux) ServeOpenAPI(version string) {
	merged := sync.OnceValues(func() ([]byte, error) { return MergeOpenAPI(version, m.docs) })
	m.HandlePublic("GET /v1/openapi.json", func(w http.ResponseWriter, _ *http.Request) error {
		doc, err := merged()
		if err != nil {
			return fmt.Errorf("merge the OpenAPI document: %w", err)
		}
		w.Header().Set("Content-Type", wire.TypeJSON)
		_, _ = w.Write(doc) // fails only when the client left
		return nil
	})
}

// ServeHTTP implements http.Handler.
func (m *Mux) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h, pattern := m.mux.Handler(r)
	if pattern != "" {
		m.mux.ServeHTTP(w, r)
		return
	}
	if m.rest != nil && m.rest(w, r) {
		return
	}
	// h is the library's own handler, which answers 404 or 405 in plain text.
	var plain discard
	h.ServeHTTP(&plain, r)
	if plain.status == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", plain.Header().Get("Allow"))
		e := cay.Errorf(cay.Invalid, "%s cannot be used on %s", r.Method, r.URL.Path).WithHint("it takes %s", plain.Header().Get("Allow"))
		writeErrorStatus(w, http.StatusMethodNotAllowed, e)
		return
	}
	Handler(func(_ http.ResponseWriter, r *http.Request) error {
		if m.Elsewhere != nil {
			if err := m.Elsewhere(r); err != nil {
				return err
			}
		}
		return cay.Errorf(cay.NotFound, "there is no route %s %s", r.Method, r.URL.Path).WithHint("GET /v1/openapi.json lists the routes")
	}).ServeHTTP(w, r)
}

// discard keeps only the status and headers of an answer.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header {
	if d.header == nil {
		d.header = make(http.Header)
	}
	return d.header
}

func (d *discard) WriteHeader(status int) { d.status = status }

func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
