package preview

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

const (
	// TokenParameter carries a link's token in the query of its URL.
	TokenParameter = "_cay_token"
	// TokenHeader carries it in requests of programs.
	TokenHeader = "Cay-Preview-Token"

	cookiePrefix = "cay_" // of the names of all of cay's cookies
	cookieName   = cookiePrefix + "preview"
	hostPrefix   = "__Host-" // browsers accept this prefix only from https, and for one host

	maxToken   = 1024 // bytes
	maxCookies = 4    // of our name that are looked at
)

// admit returns true if the visitor may pass, or answers and returns false.
//
// A token in the query becomes a cookie, and the browser is redirected to the same URL
// without it, so that the token gets into no history, no log and no Referer. Requests
// that cannot be redirected, such as requests for a WebSocket, pass with their token.
func (h *Handler) admit(w *recorder, r *http.Request, v *visit) bool {
	inQuery := tokens(r.URL.RawQuery)
	movable := (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.Header.Get("Upgrade") == ""
	if v.target.Access == sandbox.Public {
		if len(inQuery) > 0 && movable {
			h.redirect(w, r)
			return false
		}
		return true
	}
	check := func(token string) bool {
		expires, err := h.check(r.Context(), v.label, token)
		if err != nil {
			h.fail(w, r, v, err)
		}
		v.admitted = expires
		return err == nil && !expires.IsZero()
	}
	for _, token := range inQuery {
		if check(token) {
			if !movable {
				return true
			}
			h.setCookie(w, r, token, v.admitted)
			h.redirect(w, r)
			return false
		}
		if w.status != 0 {
			return false
		}
	}
	if token := r.Header.Get(TokenHeader); token != "" {
		if check(token) {
			return true
		}
		if w.status != 0 {
			return false
		}
	}
	for _, cookie := range h.cookies(r) {
		if check(cookie.Value) {
			if h.sameOrigin(r) {
				return true
			}
			writePage(w, r, pageForeign)
			return false
		}
		if w.status != 0 {
			return false
		}
	}
	writePage(w, r, pagePrivate)
	return false
}

// check returns when a token expires, or the zero time for an invalid token. An error
// means that the check itself failed.
func (h *Handler) check(ctx context.Context, label, token string) (time.Time, error) {
	if token == "" || len(token) > maxToken {
		return time.Time{}, nil
	}
	expires, err := h.cfg.Targets.CheckLink(ctx, label, token)
	switch {
	case err == nil:
		if !expires.After(time.Now()) {
			return time.Time{}, nil
		}
		return expires, nil
	case cay.CodeOf(err) == cay.Internal || ctx.Err() != nil:
		return time.Time{}, err
	}
	return time.Time{}, nil
}

// secure reports whether the visitor came by https.
func (h *Handler) secure(r *http.Request) bool {
	_, alias, _ := h.match(r.Host)
	return h.cfg.Secure || r.TLS != nil || alias
}

func (h *Handler) scheme(r *http.Request) string {
	if h.secure(r) {
		return "https"
	}
	return "http"
}

func (h *Handler) setCookie(w http.ResponseWriter, r *http.Request, token string, expires time.Time) {
	c := &http.Cookie{
		Name: cookieName, Value: token, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode,
		MaxAge: max(1, int(time.Until(expires)/time.Second)),
	}
	if h.secure(r) {
		c.Name, c.Secure = hostPrefix+cookieName, true
	}
	http.SetCookie(w, c)
}

// cookies returns the visitor's cookies that cay has set. By https only cookies count
// that no page of another host can have set.
func (h *Handler) cookies(r *http.Request) []*http.Cookie {
	name := cookieName
	if h.secure(r) {
		name = hostPrefix + cookieName
	}
	found := r.CookiesNamed(name)
	return found[:min(len(found), maxCookies)]
}

// redirect sends the visitor to the same URL without a token. The Location header names
// the host, because a path such as //other.example alone would name another host.
func (h *Handler) redirect(w http.ResponseWriter, r *http.Request) {
	to := url.URL{Scheme: h.scheme(r), Host: r.Host, Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: withoutToken(r.URL.RawQuery)}
	header := w.Header()
	header.Set("Location", to.String())
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusFound)
}

// sameOrigin reports whether a request that only its cookie admits was made by the
// preview's own page, or by a person who followed a link. Browsers also send cookies with
// requests from pages of other origins: a WebSocket has no other protection, and other
// previews belong to the same site.
func (h *Handler) sameOrigin(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
	default:
		read := r.Method == http.MethodGet || r.Method == http.MethodHead
		if !read || r.Header.Get("Sec-Fetch-Mode") != "navigate" {
			return false
		}
	}
	switch origins := r.Header["Origin"]; len(origins) {
	case 0:
		return true
	case 1:
		return h.isOrigin(r, origins[0])
	}
	return false
}

func (h *Handler) isOrigin(r *http.Request, origin string) bool {
	scheme, host, ok := strings.Cut(origin, "://")
	if !ok || scheme != "https" && (scheme != "http" || h.secure(r)) {
		return false
	}
	port := map[string]string{"http": ":80", "https": ":443"}[scheme]
	return strings.EqualFold(strings.TrimSuffix(host, port), strings.TrimSuffix(r.Host, port))
}
