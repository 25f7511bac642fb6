package sandboxd

import (
	"context"
	_ "embed"
	"io"
	"net/http"
	"sync"

	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/sandbox"
)

// Images is everything that can be done with the daemon's images. They belong
// to the installation, not to a team: every token sees them, and Import,
// FromSnapshot, Remove and GC take an admin token. *sandbox.Images implements it over HTTP. Errors
// are *cay.Error; every method can return unauthenticated and permission_denied.
//
// Progress functions are called one at a time and not after the method has
// returned; nil means nobody looks.
type Images interface {
	List(ctx context.Context) ([]sandbox.Image, error)
	// Get returns the image a reference or digest names. Errors: not_found.
	Get(ctx context.Context, ref string) (*sandbox.Image, error)
	// Pull fetches an image from a registry. Errors: invalid, not_found,
	// unavailable, no_space, too_large.
	Pull(ctx context.Context, ref string, progress func(sandbox.ImageProgress)) (*sandbox.Image, error)
	// Build makes one of the images cay knows how to make: "debian", or a
	// runtime such as "node24". Errors: not_found, unavailable, no_space,
	// not_supported (a tool is missing on the host).
	Build(ctx context.Context, name string, progress func(sandbox.ImageProgress)) (*sandbox.Image, error)
	// Import reads an OCI or Docker archive or a tarball of a root file system
	// and names it ref. Errors: invalid, no_space, too_large.
	Import(ctx context.Context, ref string, r io.Reader, progress func(sandbox.ImageProgress)) (*sandbox.Image, error)
	// FromSnapshot makes an image of the files of a snapshot and of what they lie
	// over. Errors: invalid, not_found (the snapshot, or the image it is of),
	// conflict (damaged), not_supported (a file that a layer cannot have),
	// no_space, too_large.
	FromSnapshot(ctx context.Context, p sandbox.ImageSnapshotParams, progress func(sandbox.ImageProgress)) (*sandbox.Image, error)
	// Remove forgets a reference; the content goes when no sandbox needs it.
	// Errors: not_found.
	Remove(ctx context.Context, ref string) error
	// GC removes content that no reference and no sandbox needs.
	GC(ctx context.Context) (*sandbox.ImageGC, error)
}

var _ Images = (*sandbox.Images)(nil)

type imageRoutes struct {
	images Images
}

//go:embed openapi_images.json
var imagesOpenAPI []byte

// ImageRoutes registers what can be done with images on mux, and describes it.
func ImageRoutes(mux *api.Mux, images Images) {
	h := &imageRoutes{images}
	mux.Describe(imagesOpenAPI)

	mux.Handle("GET /v1/images", h.handleList)
	mux.Handle("GET /v1/images/{image...}", h.handleGet)
	mux.Handle("DELETE /v1/images/{image...}", h.handleRemove)
	mux.Handle("POST /v1/images/pull", h.handlePull)
	mux.Handle("POST /v1/images/build", h.handleBuild)
	mux.Handle("POST /v1/images/import", h.handleImport)
	mux.Handle("POST /v1/images/snapshot", h.handleFromSnapshot)
	mux.Handle("POST /v1/images/gc", h.handleGC)
}

func (h *imageRoutes) handleList(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	list, err := h.images.List(r.Context())
	if err != nil {
		return err
	}
	return writePage(w, &sandbox.Page[sandbox.Image]{Items: list})
}

func (h *imageRoutes) handleGet(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	img, err := h.images.Get(r.Context(), r.PathValue("image"))
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, img)
}

func (h *imageRoutes) handleRemove(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	if err := api.RequireAdmin(r.Context()); err != nil {
		return err
	}
	if err := h.images.Remove(r.Context(), r.PathValue("image")); err != nil {
		return err
	}
	return api.NoContent(w)
}

func (h *imageRoutes) handlePull(w http.ResponseWriter, r *http.Request) error {
	var p struct {
		Ref string `json:"ref"`
	}
	if err := noQuery(r); err != nil {
		return err
	}
	if err := api.ReadJSON(w, r, &p); err != nil {
		return err
	}
	return serveProgress(w, r, func(ctx context.Context, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
		return h.images.Pull(ctx, p.Ref, progress)
	})
}

func (h *imageRoutes) handleBuild(w http.ResponseWriter, r *http.Request) error {
	var p struct {
		Name string `json:"name"`
	}
	if err := noQuery(r); err != nil {
		return err
	}
	if err := api.ReadJSON(w, r, &p); err != nil {
		return err
	}
	return serveProgress(w, r, func(ctx context.Context, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
		return h.images.Build(ctx, p.Name, progress)
	})
}

func (h *imageRoutes) handleImport(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	ref := q.Required("ref")
	if err := q.Err(); err != nil {
		return err
	}
	if err := api.RequireAdmin(r.Context()); err != nil {
		return err
	}
	body, err := api.DuplexBody(w, r) // progress is reported while it still comes
	if err != nil {
		return err
	}
	return serveProgress(w, r, func(ctx context.Context, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
		return h.images.Import(ctx, ref, body, progress)
	})
}

func (h *imageRoutes) handleFromSnapshot(w http.ResponseWriter, r *http.Request) error {
	var p sandbox.ImageSnapshotParams
	if err := noQuery(r); err != nil {
		return err
	}
	if err := api.RequireAdmin(r.Context()); err != nil {
		return err
	}
	if err := api.ReadJSON(w, r, &p); err != nil {
		return err
	}
	if err := p.Validate(); err != nil {
		return err
	}
	return serveProgress(w, r, func(ctx context.Context, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
		return h.images.FromSnapshot(ctx, p, progress)
	})
}

func (h *imageRoutes) handleGC(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	if err := api.RequireAdmin(r.Context()); err != nil {
		return err
	}
	report, err := h.images.GC(r.Context())
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, report)
}

// serveProgress streams the progress of work, whose last line has phase "done"
// and the image.
func serveProgress(w http.ResponseWriter, r *http.Request, work func(context.Context, func(sandbox.ImageProgress)) (*sandbox.Image, error)) error {
	ctx, cancel := context.WithCancel(r.Context())
	p := &progress{cancel: cancel, wake: make(chan struct{}, 1), finished: make(chan struct{})}
	go func() {
		img, err := work(ctx, p.report)
		p.finish(img, err)
	}()
	return api.ServeLines(w, r, p, jsonLines[sandbox.ImageProgress]{})
}

// progress turns calls into values to be read. A client that reads slowly
// misses steps, never the last.
type progress struct {
	cancel   context.CancelFunc
	wake     chan struct{} // one token: something changed
	finished chan struct{} // closed when the work has ended

	mu    sync.Mutex // guards what follows
	steps []sandbox.ImageProgress
	done  bool
	err   error // with done: how it ended, or io.EOF
}

// maxSteps is how many steps wait for a slow client.
const maxSteps = 64

func (p *progress) report(s sandbox.ImageProgress) {
	if s.Phase == phaseDone {
		return // finish says so, with the image
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.steps) == maxSteps {
		p.steps = append(p.steps[:0], p.steps[1:]...)
	}
	p.steps = append(p.steps, s)
	p.notify()
}

const phaseDone = "done"

func (p *progress) finish(img *sandbox.Image, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done, p.err = true, err
	if err == nil {
		p.steps = append(p.steps, sandbox.ImageProgress{Phase: phaseDone, Image: img})
		p.err = io.EOF
	}
	p.notify()
	close(p.finished)
}

func (p *progress) notify() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Next returns the next step, and how the work ended after the last one.
func (p *progress) Next() (sandbox.ImageProgress, error) {
	for {
		p.mu.Lock()
		if len(p.steps) > 0 {
			s := p.steps[0]
			p.steps = p.steps[1:]
			p.mu.Unlock()
			return s, nil
		}
		if p.done {
			defer p.mu.Unlock()
			return sandbox.ImageProgress{}, p.err
		}
		p.mu.Unlock()
		<-p.wake
	}
}

// Close cancels the work and waits for its end.
func (p *progress) Close() error {
	p.cancel()
	<-p.finished
	return nil
}
