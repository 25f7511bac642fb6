package cloudflare

import (
	"context"
	"net/http"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/sandbox"
)

// maxCounted bounds how many sandboxes are counted for the pool's figures.
const maxCounted = 10_000

// poolStats are the figures of the pool from which the bridge's sandboxes come.
type poolStats struct {
	Warm         int        `json:"warm"`     // booted machines that wait
	Assigned     int        `json:"assigned"` // running sandboxes of the bridge that the token can see
	Total        int        `json:"total"`
	Config       poolConfig `json:"config"`
	MaxInstances *int       `json:"maxInstances"` // null: quotas are by team
}

// poolConfig is the configuration of the pool. cay fills a pool as soon as a machine is
// taken, so there is neither an interval nor a batch.
type poolConfig struct {
	WarmTarget      int  `json:"warmTarget"`
	RefreshInterval int  `json:"refreshInterval"`
	MaxInstances    *int `json:"maxInstances"`
	ScaleBatchSize  int  `json:"scaleBatchSize"`
}

// pool returns the daemon's pool for the bridge's sandboxes, nil if there is none. Errors:
// permission_denied unless the token is an operator's.
func (h *handler) pool(ctx context.Context) (*sandbox.Pool, error) {
	all, err := h.Sandboxes.Pools(ctx)
	if err != nil {
		return nil, err
	}
	const defaultImage, defaultRuntime = "debian", "node24"
	for i := range all {
		p := &all[i]
		if h.Image == "" && p.Image == defaultImage && p.Runtime == defaultRuntime || h.Image != "" && p.Image == h.Image {
			return p, nil
		}
	}
	return nil, nil
}

func (h *handler) handlePoolStats(w http.ResponseWriter, r *http.Request) error {
	p, err := h.pool(r.Context())
	if err != nil {
		return err
	}
	var out poolStats
	if p != nil {
		out.Warm, out.Config.WarmTarget = p.Ready, p.Target
	}
	if out.Assigned, err = h.countRunning(r.Context()); err != nil {
		return shaped(http.StatusBadGateway, codePool, err)
	}
	out.Total = out.Warm + out.Assigned
	return api.WriteJSON(w, http.StatusOK, out)
}

// countRunning counts the running sandboxes of the bridge, at most maxCounted.
func (h *handler) countRunning(ctx context.Context) (n int, err error) {
	p := sandbox.ListParams{Status: []sandbox.Status{sandbox.Running}, Tags: map[string]string{tagKey: tagValue}, Limit: 200}
	for n < maxCounted {
		page, err := h.Sandboxes.List(ctx, p)
		if err != nil {
			return 0, err
		}
		n += len(page.Items)
		if p.Cursor = page.Next; p.Cursor == "" {
			break
		}
	}
	return n, nil
}

// handlePoolPrime says yes where the daemon keeps a pool, which is always being filled.
func (h *handler) handlePoolPrime(w http.ResponseWriter, r *http.Request) error {
	p, err := h.pool(r.Context())
	if err != nil {
		return err
	}
	if p == nil || p.Target == 0 {
		return shaped(http.StatusNotImplemented, codePool, cay.Errorf(cay.NotSupported, "this daemon keeps no pool for the bridge").
			WithHint("start the daemon with --pool N; it fills the pool by itself"))
	}
	return api.WriteJSON(w, http.StatusOK, done)
}

// handlePoolShutdown refuses: the daemon would fill the pool again at once.
func (h *handler) handlePoolShutdown(_ http.ResponseWriter, r *http.Request) error {
	if err := api.RequireAdmin(r.Context()); err != nil {
		return err
	}
	return shaped(http.StatusNotImplemented, codePool, cay.Errorf(cay.NotSupported, "cay fills its pools again at once").
		WithHint("start the daemon with --pool 0"))
}
