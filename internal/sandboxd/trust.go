package sandboxd

import (
	"bytes"
	"context"
	"fmt"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/sandbox"
)

// Trust says which certificate authorities guests are to trust beside those of
// their images. Methods are called for every creation, must not block, and
// return PEM that nobody changes.
type Trust interface {
	// Certificates returns those for a guest with a policy, whose secrets may be
	// redacted: what the machine's operator added and, if the policy has the
	// daemon open TLS, the daemon's own. Nil if there are none.
	Certificates(n sandbox.Network) []byte
	// Public returns the public authorities, for an image that has no bundle.
	Public() []byte
	// Authority returns the certificate of the daemon's own authority.
	Authority() []byte
}

// trustEnv points programs that do not look at the system's bundle, or look at
// one of their own first, to the files a guest with certificates has.
var trustEnv = map[string]string{
	"SSL_CERT_FILE":      guest.BundleFile, // OpenSSL, Go, Ruby, PHP
	"CURL_CA_BUNDLE":     guest.BundleFile,
	"REQUESTS_CA_BUNDLE": guest.BundleFile, // Python's requests
	"PIP_CERT":           guest.BundleFile,
	"GIT_SSL_CAINFO":     guest.BundleFile,
	"AWS_CA_BUNDLE":      guest.BundleFile,
	"CARGO_HTTP_CAINFO":  guest.BundleFile,
	// These add to what the program brings along.
	"NODE_EXTRA_CA_CERTS": guest.ExtraFile,
	"DENO_CERT":           guest.ExtraFile,
}

// environ is the environment of every command of the machine: the image's and
// the runtime's, over it trustEnv if certificates were installed, and over all
// what the sandbox was given.
func (m *session) environ() map[string]string {
	if m.trusted.Load() == nil {
		return mergeEnv(m.imageEnv, m.env)
	}
	return mergeEnv(m.imageEnv, trustEnv, m.env)
}

// certificates returns what a guest with a policy is to trust.
func (e *Engine) certificates(n sandbox.Network) []byte {
	if e.cfg.Trust == nil {
		return nil
	}
	return e.cfg.Trust.Certificates(n)
}

// bootCertificates is what of certificates a guest installs as it starts. The
// rest of the start installs what is more than fits its configuration.
func bootCertificates(certificates []byte) string {
	if len(certificates) > guest.MaxConfigCertificates {
		return ""
	}
	return string(certificates)
}

// trust has the guest of a machine install what a policy takes it to trust. It
// asks nothing of the guest if that is there already: has is what the guest says
// of itself, zero if it was not asked. Whoever calls is the only one to change
// the machine. Nothing is ever taken away: a guest that has the daemon's own
// authority loses nothing by keeping it when its policy needs it no more.
//
// Errors: unavailable, deadline_exceeded.
func (e *Engine) trust(ctx context.Context, m *session, n sandbox.Network, has guest.Trust) error {
	want := e.certificates(n)
	known := m.trusted.Load()
	switch {
	case len(want) == 0 && has.ID != "":
		m.trusted.Store(new([]byte)) // some of an earlier daemon
		return nil
	case len(want) == 0, known != nil && bytes.Contains(*known, want):
		return nil
	}
	if id := guest.TrustID(want); has.ID != id {
		ctx, cancel := context.WithTimeout(ctx, guestPatience)
		defer cancel()
		req := guest.TrustRequest{Certificates: string(want)}
		var err error
		if !has.Bare {
			if has, err = m.guest.Trust(ctx, req); err != nil {
				return fmt.Errorf("install certificates: %w", err)
			}
		}
		if has.Bare {
			req.Public = string(e.cfg.Trust.Public())
			if has, err = m.guest.Trust(ctx, req); err != nil {
				return fmt.Errorf("install certificates: %w", err)
			}
		}
		if has.ID != id {
			return cay.Errorf(cay.Unavailable, "certificates could not be installed in the sandbox: %s", has.Problem)
		}
	}
	if has.Problem != "" {
		e.log.WarnContext(ctx, "certificates were installed in part", "sandbox", m.sandboxID, "problem", has.Problem)
	}
	m.trusted.Store(&want)
	return nil
}

// trustAtStart is trust for a guest that has just started or been adopted, or
// goes on. It does well enough without the certificates, so a failure is logged.
func (e *Engine) trustAtStart(ctx context.Context, m *session, n sandbox.Network, has guest.Trust) {
	var err error
	if has.ID == "" && has.Problem != "" {
		// It has tried, and would fail again.
		err = cay.Errorf(cay.Unavailable, "certificates could not be installed in the sandbox: %s", has.Problem)
	} else {
		err = e.trust(ctx, m, n, has)
	}
	if err != nil {
		e.log.WarnContext(ctx, "sandbox does not trust what it should", "sandbox", m.sandboxID, "error", err)
	}
}
