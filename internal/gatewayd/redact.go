package gatewayd

import (
	"slices"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// minSecret is the minimum length of a value that is redacted from messages; shorter
// values occur inside ordinary words.
const minSecret = 8

// redacted removes from a provider's error the credential that was sent, wherever it
// occurs in the message, because some providers repeat the key. The formats have already
// removed texts that look like keys. redacted changes e.
func (x *exchange) redacted(e *hub.Error) *hub.Error {
	for name, values := range x.sent.all {
		if !x.secret(name) {
			continue
		}
		for _, v := range values {
			if _, rest, ok := strings.Cut(v, " "); ok { // Bearer, Basic
				v = rest
			}
			if len(v) >= minSecret {
				e.Message = strings.ReplaceAll(e.Message, v, "[redacted]")
				e.Param = strings.ReplaceAll(e.Param, v, "[redacted]")
			}
		}
	}
	return e
}

// plainHeaders are in every request to a provider, and are no secrets. Signatures and
// times of signed requests are no secrets either; redacting them does no harm.
var plainHeaders = append([]string{"Content-Type", "Accept", "User-Agent", "Traceparent", "Tracestate"}, forwardedHeaders...)

// secret reports whether a header that was sent is a credential: a header that neither
// the format nor the client has set; a header from the provider's settings counts only if
// its name suggests a secret.
func (x *exchange) secret(name string) bool {
	if slices.Contains(plainHeaders, name) || x.sent.head[name] != nil {
		return false
	}
	if x.o.Provider.Header[name] == nil {
		return true
	}
	low := strings.ToLower(name)
	return slices.ContainsFunc([]string{"auth", "key", "token", "secret", "password"}, func(s string) bool { return strings.Contains(low, s) })
}
