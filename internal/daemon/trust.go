package daemon

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/network/trust"
	"github.com/cayhq/cay/sandbox"
)

// loadTrust starts reading the authorities that this machine trusts, some ten
// milliseconds of work, and returns a function that waits for the result.
func loadTrust(log *slog.Logger) func() (*trust.Bundle, error) {
	load := sync.OnceValues(func() (*trust.Bundle, error) {
		bundle, err := trust.Load()
		if err != nil {
			return nil, fmt.Errorf("read the authorities this machine trusts: %w", err)
		}
		if w := bundle.Warning(); w != "" {
			log.Warn("some of the authorities this machine trusts are left out", "reason", w)
		}
		return bundle, nil
	})
	go load() // all callers share its result
	return load
}

// authorities are the certificates that guests are made to trust.
type authorities struct {
	extra       []byte // certificates added to this machine's
	ours        []byte
	intercepted []byte // both, for guests whose TLS we open
}

var _ sandboxd.Trust = (*authorities)(nil)

func newAuthorities(extra, ours []byte, log *slog.Logger) *authorities {
	a := &authorities{extra, ours, slices.Concat(extra, ours)}
	if n := len(a.intercepted); n > guest.MaxConfigCertificates {
		log.Warn("sandboxes start slower: so many authorities were added to this machine that they are installed one step later",
			"bytes", n, "limit", guest.MaxConfigCertificates, "setting", "guest_trust")
	}
	return a
}

// Certificates implements sandboxd.Trust.
func (a *authorities) Certificates(n sandbox.Network) []byte {
	if intercepts(n) {
		return a.intercepted
	}
	return a.extra
}

// Public implements sandboxd.Trust.
func (a *authorities) Public() []byte { return trust.Public() }

// Authority implements sandboxd.Trust.
func (a *authorities) Authority() []byte { return a.ours }

// intercepts reports whether the daemon opens TLS under a policy. It also
// accepts a policy whose secrets are redacted.
func intercepts(n sandbox.Network) bool {
	return len(n.Handled) > 0 || n.WithDefaults().Mode == sandbox.Custom && slices.ContainsFunc(n.Allow, func(d sandbox.Domain) bool {
		return n.Strict || len(d.Rules) > 0
	})
}
