// Package trust knows which certificate authorities this machine trusts, and which of
// them a guest must be given: the authorities that the operator added to the public ones,
// such as the authority of a company, or of a proxy that opens TLS.
//
// It reads files of the host, once, and knows nothing of guests: package agent installs
// the certificates in a guest.
package trust

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"iter"
	"sync"
	"time"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// Bundle is the set of authorities this machine trusts. It does not change.
type Bundle struct {
	pool    *x509.CertPool
	extra   []byte
	warning string
}

// Load reads the bundle that this process uses by crypto/x509's rules: the file that
// SSL_CERT_FILE names, else the first existing file of distributions' usual places, and
// the files in the directories of SSL_CERT_DIR, else in distributions' usual directories.
// If all of these files are missing, the machine trusts Mozilla's set. The bundle is read
// once: a change takes effect when the daemon starts again.
//
// Errors: invalid if SSL_CERT_FILE cannot be read, or if there are more than 8 MiB or
// 4096 certificates. Damaged certificates are left out; see Warning.
func Load() (*Bundle, error) { return load(hostSources(), time.Now()) }

func load(src sources, now time.Time) (*Bundle, error) {
	r := reader{seen: make(map[fingerprint]bool)}
	if err := r.readBundle(src); err != nil {
		return nil, err
	}
	b := &Bundle{pool: x509.NewCertPool(), warning: r.warning()}
	if len(r.certs) == 0 {
		for root := range bundle.Roots() {
			c, err := x509.ParseCertificate(root.Certificate)
			if err != nil {
				return nil, fmt.Errorf("parse a public authority: %w", err)
			}
			if root.Constraint != nil {
				b.pool.AddCertWithConstraint(c, root.Constraint)
			} else {
				b.pool.AddCert(c)
			}
		}
		return b, nil
	}
	var shipped map[fingerprint]bool // read when needed
	for _, c := range r.certs {
		b.pool.AddCert(c.Certificate)
		sum := sha256.Sum256(c.Raw)
		if public()[sum] || now.After(c.NotAfter) || c.stray {
			continue
		}
		if shipped == nil {
			shipped = readShipped(src.shipped)
		}
		if !shipped[sum] {
			b.extra = append(b.extra, encode(c.Raw)...)
		}
	}
	return b, nil
}

// Pool returns all authorities of the bundle. It is shared, and must not be changed.
func (b *Bundle) Pool() *x509.CertPool { return b.pool }

// Extra returns, as PEM, the certificates that somebody added to this machine, and which
// images therefore lack. These are all certificates except expired ones, certificates in
// Mozilla's set, servers' certificates that merely lie in a directory, and certificates
// that the machine's distribution ships. The last exception matters because an older
// distribution has authorities that Mozilla has dropped since, some for cause: no guest
// is made to trust them. Nil if no certificate was added. The slice is shared, and must
// not be changed.
func (b *Bundle) Extra() []byte { return b.extra }

// Warning says which parts of the bundle were left out because they are damaged. Empty if
// nothing was left out.
func (b *Bundle) Warning() string { return b.warning }

// Public returns Mozilla's set as PEM, for a guest whose image has no bundle at all. It
// lacks authorities that are trusted only for certificates issued before some date,
// because a file cannot express that. The slice is shared, and must not be changed.
func Public() []byte { return publicPEM() }

var publicPEM = sync.OnceValue(func() []byte {
	var all []byte
	for root := range unconstrained() {
		all = append(all, encode(root)...)
	}
	return all
})

func unconstrained() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for root := range bundle.Roots() {
			if root.Constraint == nil && !yield(root.Certificate) {
				return
			}
		}
	}
}

// public holds Mozilla's set.
var public = sync.OnceValue(func() map[fingerprint]bool {
	all := make(map[fingerprint]bool)
	for root := range bundle.Roots() {
		all[sha256.Sum256(root.Certificate)] = true
	}
	return all
})

// fingerprint is the SHA-256 of a certificate's DER form.
type fingerprint = [sha256.Size]byte

func encode(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
