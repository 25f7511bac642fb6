package accountd

import (
	_ "embed"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/wire"
)

// Grants of the token endpoint.
const (
	grantDevice  = "urn:ietf:params:oauth:grant-type:device_code"
	grantRefresh = "refresh_token"
)

//go:embed openapi_public.json
var openapiPublic []byte

// PublicRoutes registers the routes without a token: the documents for
// verifying this installation's JWTs, and logins of devices. Their errors have
// the shape of OAuth.
func PublicRoutes(m *api.Mux, e *Engine) {
	h := public{e}
	m.HandlePublic("GET /.well-known/openid-configuration", oauth(h.configuration))
	m.HandlePublic("GET /.well-known/jwks", oauth(h.jwks))
	m.HandlePublic("GET /.well-known/jwks.json", oauth(h.jwks))
	m.HandlePublic("POST /oauth/device_authorization", oauth(h.authorizeDevice))
	m.HandlePublic("POST /oauth/token", oauth(h.token))
	m.HandlePublic("POST /oauth/revoke", oauth(h.revoke))
	m.HandlePublic("POST /oauth/introspect", oauth(h.introspect))
	m.HandlePublic("GET /oauth/device", h.showPage)
	m.HandlePublic("POST /oauth/device", h.decidePage)
	m.HandlePublic("POST /ui/login", h.login)
	m.HandlePublic("POST /ui/logout", h.logout)
	m.Describe(openapiPublic)
}

type public struct{ e *Engine }

// oauth returns h with its errors in the shape of OAuth.
func oauth(h api.Handler) api.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		err := h(w, r)
		if err == nil {
			return nil
		}
		answer := struct {
			Error       string `json:"error"`
			Description string `json:"error_description,omitempty"`
		}{}
		status := http.StatusBadRequest
		var known *oauthError
		if errors.As(err, &known) {
			answer.Error, answer.Description = known.code, known.description
			return api.WriteJSON(w, status, answer)
		}
		seen := api.Public(r.Context(), err)
		answer.Description, status = seen.Message, api.Status(seen.Code)
		switch seen.Code {
		case cay.Invalid, cay.TooLarge, cay.DeadlineExceeded:
			answer.Error = "invalid_request"
		case cay.QuotaExceeded, cay.Unavailable:
			answer.Error = "temporarily_unavailable"
			w.Header().Set("Retry-After", strconv.Itoa(max(1, int(seen.RetryAfter/time.Second))))
		default:
			answer.Error = "server_error"
		}
		return api.WriteJSON(w, status, answer)
	}
}

func (h public) configuration(w http.ResponseWriter, r *http.Request) error {
	base := h.base(r)
	return api.WriteJSON(w, http.StatusOK, map[string]any{
		"issuer":                                base,
		"device_authorization_endpoint":         base + "/oauth/device_authorization",
		"token_endpoint":                        base + "/oauth/token",
		"revocation_endpoint":                   base + "/oauth/revoke",
		"introspection_endpoint":                base + "/oauth/introspect",
		"jwks_uri":                              base + "/.well-known/jwks",
		"grant_types_supported":                 []string{grantDevice, grantRefresh},
		"response_types_supported":              []string{},
		"subject_types_supported":               []string{"public"},
		"id_token_signing_alg_values_supported": []string{"RS256"},
		"token_endpoint_auth_methods_supported": []string{"none"},
		"scopes_supported":                      []string{"openid", "offline_access"},
		"claims_supported": []string{
			"iss", "sub", "aud", "iat", "exp", "jti", "owner_id", "owner", "project_id", "project",
			"team_id", "sandbox_id", "sandbox_name",
		},
	})
}

// base is the URL by which a client reaches the daemon: PublicURL if the
// operator has set it, else the URL of the request. The request's host is a
// name of the daemon: api.CheckHost has let it pass.
func (h public) base(r *http.Request) string {
	if h.e.cfg.PublicURL != "" {
		return h.e.cfg.PublicURL
	}
	base := "http://" + r.Host
	if r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" { // only its sender believes it
		base = "https://" + r.Host
	}
	// A Host header may have more in it than a host, behind the port.
	if u, err := url.Parse(base); err != nil || r.Host == "" || u.Host != r.Host {
		return h.e.Issuer()
	}
	return base
}

func (h public) jwks(w http.ResponseWriter, r *http.Request) error {
	ring, err := h.e.keys.get(r.Context(), h.e, true)
	if err != nil {
		return err
	}
	doc, err := ring.JWKS()
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", wire.TypeJSON)
	w.Header().Set("Cache-Control", "public, max-age=300")
	_, _ = w.Write(doc) // fails only when the client left
	return nil
}

func (h public) authorizeDevice(w http.ResponseWriter, r *http.Request) error {
	form, err := api.ReadForm(w, r)
	if err != nil {
		return err
	}
	begun, err := h.e.beginLogin(r.Context(), loginRequest{
		clientID: form.Get("client_id"), scope: form.Get("scope"), agent: r.UserAgent(), address: clientAddress(r),
	})
	if err != nil {
		return err
	}
	page := h.base(r) + "/oauth/device"
	return api.WriteJSON(w, http.StatusOK, map[string]any{
		"device_code":               begun.deviceCode,
		"user_code":                 begun.userCode,
		"verification_uri":          page,
		"verification_uri_complete": page + "?user_code=" + begun.userCode,
		"expires_in":                int(begun.expiresIn / time.Second),
		"interval":                  int(begun.interval / time.Second),
	})
}

func (h public) token(w http.ResponseWriter, r *http.Request) error {
	form, err := api.ReadForm(w, r)
	if err != nil {
		return err
	}
	client := form.Get("client_id")
	if client == "" {
		return &oauthError{"invalid_request", "client_id is missing"}
	}
	var g *grant
	switch kind := form.Get("grant_type"); kind {
	case grantDevice:
		g, err = h.e.pollLogin(r.Context(), client, form.Get("device_code"))
	case grantRefresh:
		g, err = h.e.renewLogin(r.Context(), client, form.Get("refresh_token"))
	case "":
		err = &oauthError{"invalid_request", "grant_type is missing"}
	default:
		err = &oauthError{"unsupported_grant_type", "grant_type must be " + grantDevice + " or " + grantRefresh}
	}
	if err != nil {
		return err
	}
	answer := map[string]any{
		"access_token": g.secret, "token_type": "Bearer", "expires_in": int(g.expiresIn / time.Second), "refresh_token": g.refresh,
	}
	if g.scope != "" {
		answer["scope"] = g.scope
	}
	return api.WriteJSON(w, http.StatusOK, answer)
}

func (h public) revoke(w http.ResponseWriter, r *http.Request) error {
	form, err := api.ReadForm(w, r)
	if err != nil {
		return err
	}
	client, token := form.Get("client_id"), form.Get("token")
	if client == "" || token == "" {
		return &oauthError{"invalid_request", "client_id or token is missing"}
	}
	if err := h.e.revokeLogin(r.Context(), client, token); err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, struct{}{})
}

func (h public) introspect(w http.ResponseWriter, r *http.Request) error {
	form, err := api.ReadForm(w, r)
	if err != nil {
		return err
	}
	token := form.Get("token")
	if token == "" {
		return &oauthError{"invalid_request", "token is missing"}
	}
	in, err := h.e.introspect(r.Context(), token)
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, in)
}

// clientAddress returns the address of a request: for IPv6 the network, all of
// whose addresses one client has. Behind a proxy it is the proxy's.
func clientAddress(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return "this machine" // a socket
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return strings.Clone(host)
	}
	if ip = ip.Unmap(); ip.Is6() {
		network, err := ip.WithZone("").Prefix(64)
		if err == nil {
			return network.String()
		}
	}
	return ip.String()
}
