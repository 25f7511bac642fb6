package vercelsandbox

import (
	"context"
	"net/http"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

type driveOnly struct {
	Drive driveObject `json:"drive"`
}

// driveObject returns the JSON form of a drive. The session that has mounted the
// drive is looked up by its sandbox.
func (h *handler) driveObject(ctx context.Context, d *sandbox.Drive) (driveObject, error) {
	o := driveObject{
		ID: d.ID, ParentDriveID: d.ParentID, Name: d.Name, ProjectID: d.ProjectID, Region: regionOf(d.Annotations), MaxSizeBytes: d.MaxMB << 20,
		CreatedAt: d.CreatedAt.UnixMilli(), UpdatedAt: d.UpdatedAt.UnixMilli(), CurrentSandboxName: d.SandboxName,
	}
	if d.SandboxID == "" {
		return o, nil
	}
	sb, err := h.Sandboxes.Get(ctx, d.SandboxID)
	switch {
	case err == nil:
		o.CurrentSessionID = sb.SessionID
	case cay.CodeOf(err) == cay.NotFound: // deleted since
		o.CurrentSandboxName = ""
	default:
		return o, err
	}
	return o, nil
}

func (h *handler) writeDrive(ctx context.Context, w http.ResponseWriter, status int, d *sandbox.Drive) error {
	o, err := h.driveObject(ctx, d)
	if err != nil {
		return err
	}
	return writeJSON(w, status, driveOnly{o})
}

// driveOrders maps the clients' names of orders to the orders of drives.
var driveOrders = map[string]sandbox.Order{
	"": sandbox.ByCreation, "createdAt": sandbox.ByCreation, "updatedAt": sandbox.ByUpdate, "name": sandbox.ByName,
}

func (h *handler) handleListDrives(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	order, ok := driveOrders[q.Get("sortBy")]
	if !ok {
		return cay.Errorf(cay.Invalid, "sortBy %.50q is not one of createdAt, updatedAt, name", q.Get("sortBy"))
	}
	l, err := readList(q)
	if err != nil {
		return err
	}
	page, err := h.Sandboxes.ListDrives(r.Context(), sandbox.DriveListParams{
		NamePrefix: q.Get("namePrefix"), Order: order, Ascending: l.ascending, Limit: l.limit, Cursor: l.cursor,
	})
	if err != nil {
		return err
	}
	drives := make([]driveObject, 0, len(page.Items))
	for i := range page.Items {
		o, err := h.driveObject(r.Context(), &page.Items[i])
		if err != nil {
			return err
		}
		drives = append(drives, o)
	}
	return writeJSON(w, http.StatusOK, struct {
		Drives     []driveObject `json:"drives"`
		Pagination pagination    `json:"pagination"`
	}{drives, paginate(len(drives), page.Next)})
}

// handleCreateDrive returns the drive with a name, and creates it if it does not
// exist.
func (h *handler) handleCreateDrive(w http.ResponseWriter, r *http.Request) error {
	var q struct {
		ProjectID    string `json:"projectId"`
		Region       string `json:"region"`
		MaxSizeBytes *int64 `json:"maxSizeBytes"`
	}
	if err := readJSON(w, r, &q); err != nil {
		return err
	}
	ctx, err := h.inProject(r.Context(), q.ProjectID)
	if err != nil {
		return err
	}
	notes := map[string]string{}
	if err := (&settings{Region: q.Region}).annotate(notes); err != nil {
		return err
	}
	p := sandbox.CreateDriveParams{Name: r.PathValue("drive"), Annotations: notes}
	if q.MaxSizeBytes != nil {
		if *q.MaxSizeBytes <= 0 {
			return cay.Errorf(cay.Invalid, "maxSizeBytes %d is not a number of bytes", *q.MaxSizeBytes)
		}
		p.MaxMB = (*q.MaxSizeBytes-1)>>20 + 1
	}
	d, err := h.Sandboxes.CreateDrive(ctx, p)
	status := http.StatusCreated
	if cay.CodeOf(err) == cay.AlreadyExists {
		d, err = h.Sandboxes.GetDrive(ctx, p.Name)
		status = http.StatusOK
	}
	if err != nil {
		return err
	}
	return h.writeDrive(ctx, w, status, d)
}

func (h *handler) handleGetDrive(w http.ResponseWriter, r *http.Request) error {
	d, err := h.Sandboxes.GetDrive(r.Context(), r.PathValue("drive"))
	if err != nil {
		return err
	}
	return h.writeDrive(r.Context(), w, http.StatusOK, d)
}

func (h *handler) handleDeleteDrive(w http.ResponseWriter, r *http.Request) error {
	d, err := h.Sandboxes.GetDrive(r.Context(), r.PathValue("drive"))
	if err != nil {
		return err
	}
	o, err := h.driveObject(r.Context(), d)
	if err != nil {
		return err
	}
	if err := h.Sandboxes.DeleteDrive(r.Context(), d.ID); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, driveOnly{o})
}

func (h *handler) handleForkDrive(w http.ResponseWriter, r *http.Request) error {
	var q struct {
		Name string `json:"name"`
	}
	if err := readJSON(w, r, &q); err != nil {
		return err
	}
	source, err := h.Sandboxes.GetDrive(r.Context(), r.PathValue("drive"))
	if err != nil {
		return err
	}
	return h.paddedAs(w, r, http.StatusCreated, func(ctx context.Context) (int, any, error) {
		d, err := h.Sandboxes.CreateDrive(ctx, sandbox.CreateDriveParams{
			Name: q.Name, From: source.ID, ProjectID: source.ProjectID, Annotations: source.Annotations,
		})
		if err != nil {
			return 0, nil, err
		}
		o, err := h.driveObject(ctx, d)
		return http.StatusCreated, driveOnly{o}, err
	})
}
