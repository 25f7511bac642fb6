package api

import (
	"context"
	"net/http"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
)

// Authenticator authenticates tokens.
type Authenticator interface {
	// Authenticate returns the Principal of a token's secret. Errors: unauthenticated
	// if the secret is unknown, expired or revoked.
	Authenticate(ctx context.Context, secret string) (Principal, error)
}

// Credential is the proof that authenticated a request: a token's secret, or a session.
type Credential struct {
	Secret  string
	Session *Session // nil: the secret
}

// Holder is an Authenticator that ends the requests of a credential when the credential
// ends, however long they would continue: streams, terminals.
type Holder interface {
	// Hold returns a context for the request of p, who was authenticated by c. The
	// context ends, with an unauthenticated error as its cause, as soon as c is not
	// valid any more: the session was logged out of, the token revoked, or either has
	// expired. release is called when the request has ended. Errors: unauthenticated if
	// c is not valid already.
	Hold(ctx context.Context, p Principal, c Credential) (held context.Context, release func(), err error)
}

// maxSecret bounds what is handed to an Authenticator, in bytes: secrets can be
// JSON Web Tokens.
const maxSecret = 2048

// bearerProtocol carries the token of a browser's WebSocket, which cannot set headers:
// the browser offers one of the protocols below, and bearerProtocol + token.
const bearerProtocol = "cay.bearer."

// The subprotocols that WebSockets of the API speak.
const (
	TerminalProtocol = "cay.terminal" // see Socket
	LinesProtocol    = "cay.lines"    // see ServeLines
)

// authenticate passes only requests with a valid token to next, with their Principal in
// the context. It ignores tokens in the URL, which would end up in logs.
func authenticate(a Authenticator, next http.Handler) Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		p, c, err := identify(a, r)
		if err != nil {
			return err
		}
		ctx := r.Context()
		if h, ok := a.(Holder); ok {
			held, release, err := h.Hold(ctx, p, c)
			if err != nil {
				return err
			}
			defer release()
			ctx = withHeld(held)
		}
		if team := r.Header.Get(wire.HeaderTeam); team != "" && team != p.TeamID {
			if !p.Admin {
				return cay.Errorf(cay.PermissionDenied, "this token cannot speak for team %q", team).
					WithHint("only admin tokens choose a team; leave the %s header out", wire.HeaderTeam)
			}
			p.TeamID, p.ProjectID = team, ""
		}
		next.ServeHTTP(w, r.WithContext(WithPrincipal(ctx, p)))
		return nil
	}
}

// identify returns the principal of a request: by its token, or else by its browser's
// session.
func identify(a Authenticator, r *http.Request) (Principal, Credential, error) {
	if sessions, ok := a.(SessionAuthenticator); ok {
		s, given, err := session(r)
		if err != nil {
			return Principal{}, Credential{}, err
		}
		if given {
			p, err := sessions.AuthenticateSession(r.Context(), s)
			return p, Credential{Session: &s}, err
		}
	}
	secret, err := bearer(r)
	if err != nil {
		return Principal{}, Credential{}, err
	}
	p, err := a.Authenticate(r.Context(), secret)
	return p, Credential{Secret: secret}, err
}

// bearer returns the token of a request.
func bearer(r *http.Request) (string, error) {
	values := r.Header.Values("Authorization")
	if len(values) == 0 && isWebSocket(r) {
		for _, v := range r.Header.Values("Sec-WebSocket-Protocol") {
			for p := range strings.SplitSeq(v, ",") {
				if secret, ok := strings.CutPrefix(strings.TrimSpace(p), bearerProtocol); ok {
					return checkSecret(secret)
				}
			}
		}
	}
	switch len(values) {
	case 0:
		return "", cay.Errorf(cay.Unauthenticated, "the request carries no token").
			WithHint("send the header Authorization: Bearer <token>; the CLI and the SDK read CAY_TOKEN")
	case 1:
	default:
		return "", cay.Errorf(cay.Unauthenticated, "the request has more than one Authorization header")
	}
	scheme, secret, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", cay.Errorf(cay.Unauthenticated, "the Authorization header is not of the Bearer scheme")
	}
	return checkSecret(strings.TrimSpace(secret))
}

func checkSecret(s string) (string, error) {
	if s == "" || len(s) > maxSecret {
		return "", cay.Errorf(cay.Unauthenticated, "the token is not valid")
	}
	return s, nil
}

func isWebSocket(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// RequireAdmin returns permission_denied unless the request's token is an admin's.
func RequireAdmin(ctx context.Context) error {
	if p, ok := PrincipalFrom(ctx); !ok || !p.Admin {
		return cay.Errorf(cay.PermissionDenied, "this takes an admin token").
			WithHint("the daemon writes one to admin.token in its data directory")
	}
	return nil
}
