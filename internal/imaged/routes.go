package imaged

import (
	"context"
	_ "embed"
	"net/http"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/image"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

// routes holds the handlers of a Service. Each decodes, calls, and encodes.
type routes struct {
	svc Service
}

//go:embed openapi.json
var openAPI []byte

// Routes registers the routes of images on mux, with their description.
func Routes(mux *api.Mux, svc Service) {
	h := &routes{svc}
	mux.Describe(openAPI)

	mux.Handle("GET /v1/images", h.handleList)
	mux.Handle("GET /v1/images/{image...}", h.handleGet)
	mux.Handle("DELETE /v1/images/{image...}", h.handleRemove)
	mux.Handle("POST /v1/images/pull", h.handlePull)
	mux.Handle("POST /v1/images/build", h.handleBuild)
	mux.Handle("POST /v1/images/import", h.handleImport)
	mux.Handle("POST /v1/images/snapshot", h.handleFromSnapshot)
	mux.Handle("POST /v1/images/export", h.handleExport)
	mux.Handle("POST /v1/images/push", h.handlePush)
	mux.Handle("POST /v1/images/tag", h.handleTag)
	mux.Handle("POST /v1/images/gc", h.handleGC)
}

func (h *routes) handleList(w http.ResponseWriter, r *http.Request) error {
	if err := api.NoQuery(r); err != nil {
		return err
	}
	list, err := h.svc.List(r.Context())
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, sandbox.Page[sandbox.Image]{Items: append([]sandbox.Image{}, list...)})
}

func (h *routes) handleGet(w http.ResponseWriter, r *http.Request) error {
	if err := api.NoQuery(r); err != nil {
		return err
	}
	img, err := h.svc.Get(r.Context(), r.PathValue("image"))
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, img)
}

func (h *routes) handleRemove(w http.ResponseWriter, r *http.Request) error {
	if err := mayWrite(r.Context()); err != nil {
		return err
	}
	if err := api.NoQuery(r); err != nil {
		return err
	}
	if err := h.svc.Remove(r.Context(), r.PathValue("image")); err != nil {
		return err
	}
	return api.NoContent(w)
}

func (h *routes) handlePull(w http.ResponseWriter, r *http.Request) error {
	if err := mayWrite(r.Context()); err != nil {
		return err
	}
	var p struct {
		Ref string `json:"ref"`
	}
	if err := api.NoQuery(r); err != nil {
		return err
	}
	if err := api.ReadJSON(w, r, &p); err != nil {
		return err
	}
	return serveProgress(w, r, func(ctx context.Context, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
		return h.svc.Pull(ctx, p.Ref, progress)
	})
}

func (h *routes) handleBuild(w http.ResponseWriter, r *http.Request) error {
	var p struct {
		Name     string   `json:"name"`
		Packages []string `json:"packages"`
	}
	if err := api.NoQuery(r); err != nil {
		return err
	}
	if err := api.ReadJSON(w, r, &p); err != nil {
		return err
	}
	if len(p.Packages) > 0 && p.Name != image.DefaultRef {
		return cay.Errorf(cay.Invalid, "packages can be added to the image %q only, not to %q", image.DefaultRef, p.Name)
	}
	return serveProgress(w, r, func(ctx context.Context, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
		if len(p.Packages) > 0 {
			return h.svc.BuildDefault(ctx, p.Packages, progress)
		}
		return h.svc.Build(ctx, p.Name, progress)
	})
}

func (h *routes) handleImport(w http.ResponseWriter, r *http.Request) error {
	if err := mayWrite(r.Context()); err != nil {
		return err
	}
	q := api.ParseQuery(r)
	ref := q.String("ref")
	if err := q.Err(); err != nil {
		return err
	}
	body, err := api.DuplexBody(w, r) // progress is reported while it still comes
	if err != nil {
		return err
	}
	return serveProgress(w, r, func(ctx context.Context, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
		return h.svc.Import(ctx, ref, body, progress)
	})
}

// readParams reads the body of a request of a caller who may write. Errors: those of
// mayWrite; invalid.
func readParams(w http.ResponseWriter, r *http.Request, p interface{ Validate() error }) error {
	if err := mayWrite(r.Context()); err != nil {
		return err
	}
	if err := api.NoQuery(r); err != nil {
		return err
	}
	if err := api.ReadJSON(w, r, p); err != nil {
		return err
	}
	return p.Validate()
}

func (h *routes) handleFromSnapshot(w http.ResponseWriter, r *http.Request) error {
	var p sandbox.ImageSnapshotParams
	if err := readParams(w, r, &p); err != nil {
		return err
	}
	return serveProgress(w, r, func(ctx context.Context, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
		return h.svc.FromSnapshot(ctx, p, progress)
	})
}

func (h *routes) handleExport(w http.ResponseWriter, r *http.Request) error {
	var p struct {
		Refs []string `json:"refs"`
	}
	if err := api.NoQuery(r); err != nil {
		return err
	}
	if err := api.ReadJSON(w, r, &p); err != nil {
		return err
	}
	src, err := h.svc.Export(r.Context(), p.Refs)
	if err != nil {
		return err
	}
	defer src.Close() // it was only read
	w.Header().Set("Content-Type", wire.TypeBytes)
	w.Header().Set("Content-Disposition", "attachment")
	w.WriteHeader(http.StatusOK)
	buf, free := api.Buffer()
	defer free()
	return api.Copy(w, nil, src, buf)
}

func (h *routes) handlePush(w http.ResponseWriter, r *http.Request) error {
	var p sandbox.ImagePushParams
	if err := readParams(w, r, &p); err != nil {
		return err
	}
	return serveProgress(w, r, func(ctx context.Context, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
		return h.svc.Push(ctx, p, progress)
	})
}

func (h *routes) handleTag(w http.ResponseWriter, r *http.Request) error {
	if err := mayWrite(r.Context()); err != nil {
		return err
	}
	var p struct {
		Ref  string `json:"ref"`
		Name string `json:"name"`
	}
	if err := api.NoQuery(r); err != nil {
		return err
	}
	if err := api.ReadJSON(w, r, &p); err != nil {
		return err
	}
	if p.Ref == "" || p.Name == "" {
		return cay.Errorf(cay.Invalid, "ref and name are required: an image, and its new name")
	}
	img, err := h.svc.Tag(r.Context(), p.Ref, p.Name)
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, img)
}

func (h *routes) handleGC(w http.ResponseWriter, r *http.Request) error {
	if err := api.RequireAdmin(r.Context()); err != nil {
		return err
	}
	q := api.ParseQuery(r)
	p := sandbox.ImageGCParams{DryRun: q.Bool("dry_run")}
	if err := q.Err(); err != nil {
		return err
	}
	report, err := h.svc.GC(r.Context(), p)
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, report)
}
