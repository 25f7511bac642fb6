package request

import (
	"context"
	"net/http"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
)

// Authenticate determines the caller of a request, and the caller's own token for a
// provider, "" if it sends none.
func Authenticate(ctx context.Context, l ledger.Ledger, h http.Header) (caller *ledger.Caller, token string, err *hub.Error) {
	secret, token, err := secrets(h)
	if err != nil {
		return nil, "", err
	}
	caller, bad := l.Authenticate(ctx, secret)
	if bad != nil {
		return nil, token, hub.AsError(bad)
	}
	return caller, token, nil
}

// maxSecret is the maximum length of a secret in bytes; a token can be a JSON Web Token.
const maxSecret = 8 << 10

// secrets returns the gateway secret of a request, from x-ai-gateway-api-key, else from
// authorization, else from x-api-key. If x-ai-gateway-api-key is set, authorization holds
// the caller's own token for a provider.
func secrets(h http.Header) (secret, own string, err *hub.Error) {
	bearer := func(v string) string {
		if len(v) > 7 && strings.EqualFold(v[:7], "bearer ") {
			return strings.TrimSpace(v[7:])
		}
		return ""
	}
	authorization := h["Authorization"]
	if len(authorization) > 1 {
		return "", "", &hub.Error{Kind: hub.Unauthenticated, Message: "the request has more than one authorization header"}
	}
	if v := h.Get("X-Ai-Gateway-Api-Key"); v != "" {
		if secret = bearer(v); secret == "" {
			secret = v
		}
		if len(authorization) == 1 {
			own = bearer(authorization[0])
		}
	} else if len(authorization) == 1 {
		if secret = bearer(authorization[0]); secret == "" {
			return "", "", &hub.Error{Kind: hub.Unauthenticated, Message: "the authorization header is not of the form Bearer <key>"}
		}
	} else {
		secret = h.Get("X-Api-Key")
	}
	switch {
	case secret == "":
		return "", "", &hub.Error{Kind: hub.Unauthenticated, Message: "the request has no key; send the header authorization: Bearer <key>"}
	case len(secret) > maxSecret:
		return "", "", &hub.Error{Kind: hub.Unauthenticated, Message: "the key is not valid"}
	}
	return secret, own, nil
}
