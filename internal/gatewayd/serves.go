package gatewayd

import "net/http"

// Serves reports whether a request would be for the gateway's own origin, by its
// path alone. The daemon's API says so to who has taken the one for the other.
func (e *Engine) Serves(r *http.Request) bool {
	for _, method := range [...]string{r.Method, http.MethodPost, http.MethodGet} {
		asked := *r
		asked.Method = method
		if found := e.find(&asked); found.serve != nil && found.name != "root" {
			return true
		}
	}
	return false
}
