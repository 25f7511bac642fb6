package gatewayd

import "net/http"

// Serves reports whether the path of a request belongs to the gateway's own origin. The
// daemon's API uses it to tell clients that they have called the wrong origin.
func (e *Engine) Serves(r *http.Request) bool {
	for _, method := range [...]string{r.Method, http.MethodPost, http.MethodGet} {
		asked := *r
		asked.Method = method
		if found := e.find(&asked); found.serve != nil && found.Name != "root" {
			return true
		}
	}
	return false
}
