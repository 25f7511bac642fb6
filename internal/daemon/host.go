package daemon

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/config"
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
	if h.Databases, err = databaseSizes(d.cfg); err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, h)
}

// databaseSizes returns the databases, each with the size of its file and its log.
func databaseSizes(cfg config.Config) ([]account.Database, error) {
	all := []account.Database{}
	for _, database := range cfg.Databases() {
		a := account.Database{Name: database.Name, Elsewhere: database.File == ""}
		for _, suffix := range []string{"", "-wal"} {
			if a.Elsewhere {
				continue
			}
			info, err := os.Stat(database.File + suffix)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			a.SizeBytes += info.Size()
		}
		all = append(all, a)
	}
	return all, nil
}
