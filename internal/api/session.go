package api

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/cayhq/cay"
)

const (
	// SessionCookie holds the id of a browser's session.
	SessionCookie = "cay_session"
	// HeaderSessionKey holds the session's key, on every request of the session.
	HeaderSessionKey = "Cay-Session-Key"
	// sessionProtocol carries the key of a browser's WebSocket, as bearerProtocol
	// carries a token.
	sessionProtocol = "cay.session."
)

// Session is a browser's login. A browser sends the id by itself, as a cookie: also with
// requests that other pages make, and to other servers on this host, since cookies are not
// bound to ports. So the id is accepted only together with the key, which our page stores
// where no other origin can read it, and which no other page can put into a header.
type Session struct{ ID, Key string }

// SessionAuthenticator is an Authenticator that also authenticates browsers' sessions.
type SessionAuthenticator interface {
	Authenticator
	// AuthenticateSession returns the Principal of a session. Errors: unauthenticated if
	// the session is unknown, or over.
	AuthenticateSession(ctx context.Context, s Session) (Principal, error)
}

// session returns the session of a request, and false if it has none. A request with a
// token or without a key has none: the cookie alone proves nothing. Errors:
// permission_denied if a page of another origin makes the request.
func session(r *http.Request) (Session, bool, error) {
	key := sessionKey(r)
	if key == "" || len(r.Header.Values("Authorization")) > 0 {
		return Session{}, false, nil
	}
	cookies := r.CookiesNamed(SessionCookie)
	if len(cookies) != 1 { // another server on this host may have set a second one
		return Session{}, false, cay.Errorf(cay.Unauthenticated, "the request has %d cookies %q, not one", len(cookies), SessionCookie).WithHint("log in again")
	}
	if err := ownPage(r); err != nil {
		return Session{}, false, err
	}
	id, err := checkSecret(cookies[0].Value)
	return Session{ID: id, Key: key}, err == nil, err
}

// SessionOf returns the session that a request carries, valid or not, so that it can be
// ended. Errors: as for requests of other pages.
func SessionOf(r *http.Request) (Session, bool, error) { return session(r) }

func sessionKey(r *http.Request) string {
	if isWebSocket(r) {
		for _, v := range r.Header.Values("Sec-WebSocket-Protocol") {
			for p := range strings.SplitSeq(v, ",") {
				if key, ok := strings.CutPrefix(strings.TrimSpace(p), sessionProtocol); ok && len(key) <= maxSecret {
					return key
				}
			}
		}
		return ""
	}
	key := r.Header.Get(HeaderSessionKey)
	if len(key) > maxSecret {
		return ""
	}
	return key
}

// ownPage refuses requests that a browser sends for a page of another origin, other ports
// of this host included. WebSocket requests always have an Origin; other requests are
// checked if the browser sends their origin.
func ownPage(r *http.Request) error {
	site, origin := r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Origin")
	if site != "" && site != "same-origin" {
		return foreignPage(site)
	}
	if origin == "" && !isWebSocket(r) {
		return nil
	}
	if u, err := url.Parse(origin); err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
		return foreignPage(origin)
	}
	return nil
}

func foreignPage(from string) error {
	return cay.Errorf(cay.PermissionDenied, "a login in a browser is for pages of this origin, and the request comes from %.100q", from).
		WithHint("use a token where there is no page of ours")
}
