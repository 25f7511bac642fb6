package daemon

import (
	"net/http"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
)

// handleHost returns the machine's load. Operators only, as for metrics: it shows the
// combined load of all teams.
func (d *Daemon) handleHost(w http.ResponseWriter, r *http.Request) error {
	if err := api.RequireAdmin(r.Context()); err != nil {
		return err
	}
	if err := api.ParseQuery(r).Err(); err != nil {
		return err
	}
	h, err := d.host.Read(r.Context())
	if err != nil {
		return err
	}
	h.Version, h.StartedAt, h.UptimeMS = cay.Version(), d.began.UTC(), time.Since(d.began).Milliseconds()
	return api.WriteJSON(w, http.StatusOK, h)
}
