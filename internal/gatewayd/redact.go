package gatewayd

import (
	"slices"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// minSecret is how long a value must be to be taken out of messages: shorter ones
// are parts of too many words.
const minSecret = 8

// redacted returns an error of a provider without the credential it was asked with,
// wherever the message has it: some providers say which key was wrong. What looks
// like a key of anybody's, the formats have taken out already. It changes e.
func (a *attempt) redacted(e *hub.Error) *hub.Error {
	for name, values := range a.sent {
		if !a.secret(name) {
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

// plainHeaders are those of every request to a provider. The signatures and times
// of signed requests are no secrets; that they are taken out does no harm.
var plainHeaders = append([]string{"Content-Type", "Accept", "User-Agent", "Traceparent", "Tracestate"}, passedHeaders...)

// secret reports whether a header that was sent is a credential: one that neither
// the format nor the client has set, and of those in the provider's settings one
// that is called so.
func (a *attempt) secret(name string) bool {
	if slices.Contains(plainHeaders, name) || a.head[name] != nil {
		return false
	}
	if a.o.provider.Header[name] == nil {
		return true
	}
	low := strings.ToLower(name)
	return slices.ContainsFunc([]string{"auth", "key", "token", "secret", "password"}, func(s string) bool { return strings.Contains(low, s) })
}
