package route

import (
	"net"
	"net/http"

	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/sandbox"
)

// handleOutbound makes the client the egress handler, and answers with the connections
// that are offered to the handler.
func (h *routes) handleOutbound(w http.ResponseWriter, r *http.Request) error {
	if err := api.NoQuery(r); err != nil {
		return err
	}
	watch, err := h.svc.HandleOutbound(r.Context(), r.PathValue("ref"))
	if err != nil {
		return err
	}
	return api.ServeLines(w, r, watch, api.JSONLines[sandbox.Outbound]{})
}

func (h *routes) handleTakeOutbound(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	as := sandbox.Handling(q.String("as"))
	if err := q.Err(); err != nil {
		return err
	}
	return join(w, r, func() (net.Conn, error) {
		return h.svc.TakeOutbound(r.Context(), r.PathValue("ref"), r.PathValue("outbound"), as)
	})
}

func (h *routes) handleDeclineOutbound(w http.ResponseWriter, r *http.Request) error {
	var p sandbox.DeclineParams
	if err := api.NoQuery(r); err != nil {
		return err
	}
	if err := api.ReadJSON(w, r, &p); err != nil {
		return err
	}
	if err := h.svc.DeclineOutbound(r.Context(), r.PathValue("ref"), r.PathValue("outbound"), p.As); err != nil {
		return err
	}
	return api.NoContent(w)
}

// handleAuthority answers with the certificate of the daemon's authority.
func (h *routes) handleAuthority(w http.ResponseWriter, r *http.Request) error {
	return h.answer(w, r, func() (any, error) {
		pem, err := h.svc.Authority(r.Context())
		return sandbox.AuthorityInfo{PEM: string(pem)}, err
	})
}
