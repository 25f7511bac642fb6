package accountd

import (
	"net/http"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
)

// The login of the web inspector. api.SameOrigin refuses requests from pages of
// other origins before they come here, so no other site can log a browser in.

// login begins a session: its id as a cookie that scripts cannot read, its key
// in the answer, for the page to keep.
func (h public) login(w http.ResponseWriter, r *http.Request) error {
	var p struct {
		Token string `json:"token"`
		Code  string `json:"code"`
	}
	if err := read(w, r, &p); err != nil {
		return err
	}
	if (p.Token == "") == (p.Code == "") {
		return cay.Errorf(cay.Invalid, "give either %q, a token, or %q, the code of a login link", "token", "code")
	}
	s, expires, err := h.e.LogIn(r.Context(), p.Code, p.Token, clientAddress(r))
	if err != nil {
		return err
	}
	setSessionCookie(w, r, s.ID, expires)
	return api.WriteJSON(w, http.StatusOK, struct {
		Key       string    `json:"key"`
		ExpiresAt time.Time `json:"expires_at"`
	}{s.Key, expires})
}

// logout ends the session of a request, and removes its cookie.
func (h public) logout(w http.ResponseWriter, r *http.Request) error {
	if err := api.ParseQuery(r).Err(); err != nil {
		return err
	}
	s, given, err := api.SessionOf(r)
	if err != nil && cay.CodeOf(err) != cay.Unauthenticated {
		return err
	}
	if given && err == nil {
		if err := h.e.LogOut(r.Context(), s); err != nil {
			return err
		}
	}
	setSessionCookie(w, r, "", time.Unix(1, 0))
	return api.NoContent(w)
}

// setSessionCookie sets no domain: the cookie is never sent to names below ours,
// which previews have.
func setSessionCookie(w http.ResponseWriter, r *http.Request, id string, expires time.Time) {
	http.SetCookie(w, &http.Cookie{
		Name: api.SessionCookie, Value: id, Path: "/", Expires: expires, HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https", // only its sender believes it
	})
}
