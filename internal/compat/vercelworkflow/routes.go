package vercelworkflow

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/sync/semaphore"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
)

// Where the preload of `cay vercel exec` leads what the SDK asks of other hosts.
const (
	serverBase = "/vercel/workflow/api"    // vercel-workflow.com/api
	queueBase  = "/vercel/queue/api/v3"    // <region>.vercel-queue.com/api/v3
	apiBase    = "/api/v1/workflow"        // api.vercel.com/v1/workflow, and tools in their proxy mode
	proxyBase  = apiBase + "/queues-proxy" // their queues
)

// handler has a method for each route. Each decodes, calls, and encodes.
type handler struct {
	Config
	room   *semaphore.Weighted // of large bodies
	checks checks
}

// roomForBodies bounds the bodies of requests under way that are larger than one of a
// usual event, in bytes. The largest fits.
const (
	roomForBodies = 2 * maxFrame
	usualBody     = 256 << 10
)

// Routes registers the protocol on mux.
func Routes(mux *api.Mux, cfg Config) {
	h := &handler{Config: cfg, room: semaphore.NewWeighted(roomForBodies)}
	for _, base := range []string{serverBase, apiBase} {
		h.routes(mux, base)
	}
	for _, base := range []string{queueBase, proxyBase + "/api/v3"} {
		h.queueRoutes(mux, base)
	}
	mux.HandleIn("GET "+apiBase+"/run-key/{deployment}", h.handleRunKey, writeError)
	mux.HandleIn("GET "+apiBase+"/resolve-latest-deployment/{deployment}", h.handleLatest, writeError)
	mux.Handle("PUT /v1/workflows/deployments/{deployment}", h.handleRegister)
	mux.Handle("DELETE /v1/workflows/deployments/{deployment}", h.handleDeregister)
	mux.Handle("GET /v1/workflows/deployments", h.handleListDeployments)
	mux.Handle("GET /v1/workflows/messages", h.handleMessages)
	mux.Handle("POST /v1/workflows/deployments/{deployment}/deliveries", h.handleDeliveries)
	mux.Handle("POST /v1/workflows/deployments/{deployment}/deliveries/{receipt}", h.handleSettle)
}

func (h *handler) routes(mux *api.Mux, base string) {
	on := func(pattern string, serve api.Handler) {
		method, path, _ := strings.Cut(pattern, " ")
		mux.HandleIn(method+" "+base+path, serve, writeError)
	}
	on("POST /v4/runs/{run}/events/{type}", h.handlePost)
	on("POST /v4/runs/{run}/events", h.handlePost)
	on("POST /v4/runs/{run}/events/batch", h.handleBatch)
	on("GET /v4/runs/{run}/events", h.handleEvents)
	on("GET /v4/runs/{run}/events/{event}", h.handleEvent)
	on("GET /v4/events", h.handleCorrelated)

	on("GET /v2/runs", h.handleRuns)
	on("GET /v2/runs/{run}", h.handleRun)
	on("GET /v2/runs/{run}/status", h.handleStatus)
	on("POST /v2/runs/{run}/attributes", h.handleAttributes)
	on("POST /v4/runs/cancel", h.handleCancel)
	on("GET /v2/runs/{run}/steps", h.handleSteps)
	on("GET /v2/runs/{run}/steps/{step}", h.handleStep)
	on("GET /v2/hooks", h.handleHooks)
	on("GET /v2/hooks/by-token", h.handleHookByToken)
	on("GET /v2/hooks/{hook}", h.handleHook)

	on("GET /v2/analytics/runs", h.handleRunRows)
	on("GET /v2/analytics/runs/{run}", h.handleRunRow)
	for kind, rows := range rowsOfLog {
		on("GET /v2/analytics/runs/{run}/"+kind, h.handleRows(rows))
		on("GET /v2/analytics/runs/{run}/"+kind+"/{id}", h.handleRow(rows))
	}
	on("POST /v2/analytics/runs/{run}/events/get-many", h.handleEventRows)
	on("GET /v2/analytics/attributes", h.handleAttributeRows)
	on("GET /v2/analytics/hooks", h.handleRows(hookRows))
	on("GET /v2/analytics/hooks/{id}", h.handleRow(hookRows))

	on("PUT /v2/runs/{run}/stream/{stream}", h.handleWriteStream)
	on("PUT /v2/stream/{stream}", h.handleWriteStream)
	for _, version := range []string{"v2", "v3"} {
		on("GET /"+version+"/runs/{run}/stream/{stream}", h.handleReadStream)
	}
	on("GET /v2/stream/{stream}", h.handleReadStream) // as the 4.7 line asks: it names no run
	on("GET /v2/runs/{run}/streams", h.handleStreams)
	on("GET /v2/runs/{run}/streams/{stream}/chunks", h.handleChunks)
	on("GET /v2/runs/{run}/streams/{stream}/info", h.handleStreamInfo)
}

func (h *handler) queueRoutes(mux *api.Mux, base string) {
	on := func(pattern string, serve api.Handler) {
		method, path, _ := strings.Cut(pattern, " ")
		mux.HandleIn(method+" "+base+path, serve, writeError)
	}
	on("POST /topic/{topic}", h.handlePublish)
	on("POST /topic/{topic}/batch", h.handlePublishMany)
	on("DELETE /topic/{topic}/consumer/{group}/lease/{receipt}", h.handleAcknowledge)
	on("PATCH /topic/{topic}/consumer/{group}/lease/{receipt}", h.handleExtend)
}

// runs returns the runs of the project that a request is about.
func (h *handler) runs(r *http.Request) (Runs, error) {
	project, err := h.Project(r.Context(), "")
	if err != nil {
		return nil, err
	}
	return h.Runs(project), nil
}

// writeCBOR answers with v.
func writeCBOR(w http.ResponseWriter, v any) error {
	b, err := encoding.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/cbor")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	_, err = w.Write(b)
	return err
}

// readCBOR reads a body that is CBOR, or JSON if it says so. Errors: invalid, too_large.
func readCBOR(w http.ResponseWriter, r *http.Request, v any) error {
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
		return api.ReadOpenJSON(w, r, v)
	}
	b, err := readAll(api.Body(w, r), 8<<20)
	if err != nil {
		return err
	}
	if err := decoding.Unmarshal(b, v); err != nil {
		return cay.Errorf(cay.Invalid, "the body is no CBOR that is understood: %v", err)
	}
	return nil
}

// readBody reads a body of at most limit bytes. A body that is large, or may be, waits until
// there is room for it; free gives that back. Errors: too_large, canceled.
func (h *handler) readBody(w http.ResponseWriter, r *http.Request, limit int64) (b []byte, free func(), err error) {
	free = func() {}
	if n := r.ContentLength; n < 0 || n > usualBody {
		if n < 0 || n > limit {
			n = limit
		}
		if err := h.room.Acquire(r.Context(), n); err != nil {
			return nil, nil, err
		}
		free = func() { h.room.Release(n) }
	}
	if b, err = readAll(api.Body(w, r), limit); err != nil {
		free()
		return nil, nil, err
	}
	return b, free, nil
}

// query reads the parameters of a request. Clients send some that mean nothing here.
type query struct{ url.Values }

func queryOf(r *http.Request) query { return query{r.URL.Query()} }

// number returns a parameter, def if it is not there. Errors: invalid.
func (q query) number(name string, def int64) (int64, error) {
	text := q.Get(name)
	if text == "" {
		return def, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, cay.Errorf(cay.Invalid, "query parameter %s is %.40q, and should be a number", name, text)
	}
	return n, nil
}

// whole reports whether payloads are wanted.
func (q query) whole() bool { return q.Get("remoteRefBehavior") != "lazy" }

// maxPage bounds the items of one page.
const maxPage = 1000

// limit returns the size of a page. Errors: invalid.
func (q query) limit(def int64) (int, error) {
	n, err := q.number("limit", def)
	if err != nil || n < 1 {
		n = def
	}
	return int(min(n, maxPage)), err
}
