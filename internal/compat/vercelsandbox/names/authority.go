package names

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cayhq/cay"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	leafLife      = 30 * 24 * time.Hour
	// backdate allows for clients whose clocks are behind.
	backdate = time.Hour
)

// Files of an authority's directory.
const (
	keyFile    = "ca.key"
	certFile   = "ca.pem"
	bundleFile = "bundle.pem"
)

// permitted are the domains that an authority may certify, with all names below
// them.
var permitted = []string{apiDomain, PreviewDomain, Gateway, Workflow, QueueDomain}

// Authority is a certificate authority for these names only: its own certificate
// has name constraints, which clients enforce.
type Authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey

	mu   sync.Mutex       // guards leaf
	leaf *tls.Certificate // for all names; nil until it is asked for
}

// OpenAuthority opens the authority in a directory, and creates one if there is
// none. Errors: invalid if the files are not an authority, or others can read its
// key.
func OpenAuthority(dir string) (*Authority, error) {
	a := &Authority{dir: dir}
	_, err := os.Stat(a.path(keyFile))
	if errors.Is(err, fs.ErrNotExist) {
		err = a.create()
	}
	if err == nil {
		err = a.load()
	}
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "the certificate authority in %s cannot be used: %w", dir, err).
			WithHint("remove %s and %s there to have another one made, which clients must then trust", keyFile, certFile)
	}
	return a, nil
}

// File returns the path of the authority's certificate, for clients to trust.
func (a *Authority) File() string { return a.path(certFile) }

func (a *Authority) path(name string) string { return filepath.Join(a.dir, name) }

func (a *Authority) create() error {
	if err := os.MkdirAll(a.dir, 0o755); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	now := time.Now()
	template := &x509.Certificate{
		Subject:      pkix.Name{CommonName: "cay, in place of vercel.com and vercel.run"},
		SerialNumber: serial(), NotBefore: now.Add(-backdate), NotAfter: now.Add(authorityLife),
		BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		PermittedDNSDomainsCritical: true, PermittedDNSDomains: permitted,
		ExcludedIPRanges: []*net.IPNet{
			{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, {IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)},
		},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	// Write the key last: if it exists, all files exist.
	if err := a.write(certFile, 0o644, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})); err != nil {
		return err
	}
	return a.write(keyFile, 0o600, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// WriteBundle writes a PEM file of the authority and other certificates, for
// programs that read their trusted certificates from one file. It returns the
// file's path.
func (a *Authority) WriteBundle(others []byte) (string, error) {
	own := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
	return a.path(bundleFile), a.write(bundleFile, 0o644, append(own, others...))
}

// write writes a file atomically.
func (a *Authority) write(name string, mode fs.FileMode, text []byte) error {
	f, err := os.CreateTemp(a.dir, "."+name+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // does nothing after the rename
	_, err = f.Write(text)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), a.path(name))
}

func (a *Authority) load() error {
	info, err := os.Stat(a.path(keyFile))
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("the mode of %s is %v; others may read it", keyFile, info.Mode().Perm())
	}
	pair, err := tls.LoadX509KeyPair(a.path(certFile), a.path(keyFile))
	if err != nil {
		return err
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !pair.Leaf.IsCA {
		return errors.New("it is not one that cay has made")
	}
	if !pair.Leaf.NotAfter.After(time.Now()) {
		return fmt.Errorf("it has expired at %s", pair.Leaf.NotAfter.Format(time.DateTime))
	}
	for _, name := range permitted {
		if !slices.Contains(pair.Leaf.PermittedDNSDomains, name) {
			return fmt.Errorf("it is one of an older cay, and not for %s", name)
		}
	}
	a.cert, a.key = pair.Leaf, key
	return nil
}

// certificate returns the certificate for a handshake: the same for all names,
// reissued when half of its life is over.
func (a *Authority) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if !ours(hello.ServerName) {
		return nil, fmt.Errorf("there is no certificate for %q", hello.ServerName)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.leaf != nil && time.Until(a.leaf.Leaf.NotAfter) > leafLife/2 {
		return a.leaf, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: apiDomain}, DNSNames: append([]string{"*." + PreviewDomain, Gateway, "*." + QueueDomain}, Hosts...),
		SerialNumber: serial(), NotBefore: now.Add(-backdate), NotAfter: now.Add(leafLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	a.leaf = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
	return a.leaf, nil
}

// serial returns a random, unguessable number.
func serial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		panic("names: no random numbers: " + err.Error()) // crypto/rand never fails
	}
	return n.Add(n, big.NewInt(1))
}
