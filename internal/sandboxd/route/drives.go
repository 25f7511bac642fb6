package route

import (
	"net/http"

	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/sandbox"
)

func (h *routes) handleCreateDrive(w http.ResponseWriter, r *http.Request) error {
	var p sandbox.CreateDriveParams
	if err := api.NoQuery(r); err != nil {
		return err
	}
	if err := api.ReadJSON(w, r, &p); err != nil {
		return err
	}
	d, err := h.svc.CreateDrive(r.Context(), p)
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusCreated, d)
}

func (h *routes) handleListDrives(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	p := sandbox.DriveListParams{
		ProjectID:  q.String("project"),
		NamePrefix: q.String("name_prefix"),
		Order:      sandbox.Order(q.String("order")),
		Ascending:  q.Bool("ascending"),
		Limit:      int(q.Int("limit", 1, 200, 0)),
		Cursor:     q.String("cursor"),
	}
	if err := q.Err(); err != nil {
		return err
	}
	page, err := h.svc.ListDrives(r.Context(), p)
	if err != nil {
		return err
	}
	return writePage(w, page)
}

func (h *routes) handleGetDrive(w http.ResponseWriter, r *http.Request) error {
	return h.answer(w, r, func() (any, error) { return h.svc.GetDrive(r.Context(), r.PathValue("ref")) })
}

func (h *routes) handleSaveDrive(w http.ResponseWriter, r *http.Request) error {
	return h.answer(w, r, func() (any, error) { return h.svc.SaveDrive(r.Context(), r.PathValue("ref")) })
}

func (h *routes) handleDeleteDrive(w http.ResponseWriter, r *http.Request) error {
	return h.done(w, r, func() error { return h.svc.DeleteDrive(r.Context(), r.PathValue("ref")) })
}
