package sandboxd

import (
	"bytes"
	"context"
	"fmt"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/sandbox"
)

// Trust names the certificate authorities that guests trust in addition to those of their
// images. Its methods are called for every creation, must not block, and return PEM that
// the caller must not modify.
type Trust interface {
	// Certificates returns the certificates for a guest with a policy, whose secrets may
	// be redacted: the operator's and, if the daemon opens TLS under this policy, the
	// daemon's own. Nil if there are none.
	Certificates(n sandbox.Network) []byte
	// Public returns the public authorities, for an image without a bundle.
	Public() []byte
	// Authority returns the certificate of the daemon's own authority.
	Authority() []byte
}

// trustEnv points programs that do not read the system's bundle, or prefer one of their
// own, to the files that a guest with certificates has.
var trustEnv = map[string]string{
	"SSL_CERT_FILE":      guest.BundleFile, // OpenSSL, Go, Ruby, PHP
	"CURL_CA_BUNDLE":     guest.BundleFile,
	"REQUESTS_CA_BUNDLE": guest.BundleFile, // Python's requests
	"PIP_CERT":           guest.BundleFile,
	"GIT_SSL_CAINFO":     guest.BundleFile,
	"AWS_CA_BUNDLE":      guest.BundleFile,
	"CARGO_HTTP_CAINFO":  guest.BundleFile,
	// These add to the authorities that the program contains.
	"NODE_EXTRA_CA_CERTS": guest.ExtraFile,
	"DENO_CERT":           guest.ExtraFile,
}

// environ returns the environment of every command of the machine. It is the environment
// of the image and the runtime, overridden by trustEnv if certificates were installed,
// and by the sandbox's own.
func (m *session) environ() map[string]string {
	if m.trusted.Load() == nil {
		return mergeEnv(m.imageEnv, m.env)
	}
	return mergeEnv(m.imageEnv, trustEnv, m.env)
}

// certificates returns the certificates for a guest with the policy n.
func (e *Engine) certificates(n sandbox.Network) []byte {
	if e.cfg.Trust == nil {
		return nil
	}
	return e.cfg.Trust.Certificates(n)
}

// bootCertificates returns the certificates that a guest installs from its configuration
// when it starts, or "" if they do not fit; then trustAtStart installs them.
func bootCertificates(certificates []byte) string {
	if len(certificates) > guest.MaxConfigCertificates {
		return ""
	}
	return string(certificates)
}

// trust makes the guest install the certificates that a policy requires. It does not call
// the guest if they are installed already: has is the guest's own report, zero if it was
// not asked. The caller is the only one that changes the machine. Certificates are never
// removed: a guest that keeps the daemon's own authority, which its policy no longer
// needs, comes to no harm.
//
// Errors: unavailable, deadline_exceeded.
func (e *Engine) trust(ctx context.Context, m *session, n sandbox.Network, has guest.Trust) error {
	want := e.certificates(n)
	known := m.trusted.Load()
	switch {
	case len(want) == 0 && has.ID != "":
		m.trusted.Store(new([]byte)) // an earlier daemon installed certificates
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

// trustAtStart is trust for a guest that has just started, or was adopted or resumed. A
// failure is only logged, as the guest works without the certificates.
func (e *Engine) trustAtStart(ctx context.Context, m *session, n sandbox.Network, has guest.Trust) {
	var err error
	if has.ID == "" && has.Problem != "" {
		// The guest has tried already, and would fail again.
		err = cay.Errorf(cay.Unavailable, "certificates could not be installed in the sandbox: %s", has.Problem)
	} else {
		err = e.trust(ctx, m, n, has)
	}
	if err != nil {
		e.log.WarnContext(ctx, "sandbox does not trust what it should", "sandbox", m.sandboxID, "error", err)
	}
}
