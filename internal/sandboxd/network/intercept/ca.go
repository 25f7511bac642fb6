package intercept

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/cayhq/cay"
)

// Lifetimes of certificates.
const (
	caLife      = 10 * 365 * 24 * time.Hour
	caRenewal   = 365 * 24 * time.Hour // before its end
	leafLife    = 30 * 24 * time.Hour
	leafRenewal = 5 * 24 * time.Hour // before its end
	clockSkew   = time.Hour          // a guest's clock may be behind ours by as much
)

// maxLeaves bounds the number of cached leaves: about 2 KiB each.
const maxLeaves = 2048

// The files of an authority.
const (
	certFile = "ca.pem"
	keyFile  = "ca.key"
)

// CA is the authority of this installation. It signs the certificates that guests see in
// place of the servers' certificates, and caches them. Its methods may be called
// concurrently.
type CA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
	now  func() time.Time

	leafKey *ecdsa.PrivateKey // of all leaves of this process

	mu     sync.Mutex                    // guards what follows
	leaves *simplelru.LRU[string, *leaf] // by name
}

// leaf is a certificate that its first user makes.
type leaf struct {
	once sync.Once
	cert *tls.Certificate
	err  error
}

// OpenCA opens the authority in dir, whose files are ca.pem and ca.key, or creates it if
// the files are missing. A certificate in its last year is replaced by a certificate for
// the same key and name, so that guests that trust the old certificate trust certificates
// signed by the new one. Errors: invalid if the files are damaged.
func OpenCA(dir string) (*CA, error) { return openCA(dir, time.Now) }

func openCA(dir string, now func() time.Time) (*CA, error) {
	leaves, err := simplelru.NewLRU[string, *leaf](maxLeaves, nil)
	if err != nil {
		return nil, err
	}
	ca := &CA{now: now, leaves: leaves}
	if ca.leafKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, fmt.Errorf("make leaf key: %w", err)
	}
	keyPath, certPath := filepath.Join(dir, keyFile), filepath.Join(dir, certFile)
	ca.key, err = readKey(keyPath)
	haveKey := !errors.Is(err, fs.ErrNotExist)
	if haveKey && err != nil {
		return nil, err
	}
	ca.cert, err = readCert(certPath)
	haveCert := !errors.Is(err, fs.ErrNotExist)
	if haveCert && err != nil {
		return nil, err
	}
	switch {
	case !haveKey && haveCert:
		return nil, damaged(keyPath, errors.New("it is missing, but its certificate is there"))
	case !haveKey:
		if err := ca.makeKey(dir, keyPath); err != nil {
			return nil, err
		}
	case haveCert && !ca.key.PublicKey.Equal(ca.cert.PublicKey):
		return nil, damaged(certPath, errors.New("it is not the certificate of the key beside it"))
	}
	// A crash between the two files leaves a key without a certificate.
	if !haveCert || ca.cert.NotAfter.Sub(now()) < caRenewal {
		if err := ca.issue(certPath); err != nil {
			return nil, err
		}
	}
	ca.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
	return ca, nil
}

// PEM returns the authority's certificate, which guests must trust.
func (ca *CA) PEM() []byte { return append([]byte(nil), ca.pem...) }

func damaged(path string, cause error) error {
	return cay.Errorf(cay.Invalid, "%s: %w", path, cause).
		WithHint("put %s and %s back from a backup, or delete both: a new authority is made, and sandboxes must be started again to trust it", certFile, keyFile)
}

func readKey(path string) (*ecdsa.PrivateKey, error) {
	der, err := readPEM(path, "PRIVATE KEY")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil { // a copy from a backup may have lost it
		return nil, fmt.Errorf("protect key: %w", err)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, damaged(path, errors.New("it holds no private key")) // a parser's error may tell of the key
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, damaged(path, errors.New("it is not an ECDSA key on the curve P-256"))
	}
	return key, nil
}

func readCert(path string) (*x509.Certificate, error) {
	der, err := readPEM(path, "CERTIFICATE")
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, damaged(path, err)
	}
	if !cert.IsCA {
		return nil, damaged(path, errors.New("it is not the certificate of an authority"))
	}
	return cert, nil
}

func readPEM(path, kind string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != kind {
		return nil, damaged(path, fmt.Errorf("it has no PEM block %q", kind))
	}
	return block.Bytes, nil
}

func (ca *CA) makeKey(dir, path string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var err error
	if ca.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return fmt.Errorf("make authority key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(ca.key)
	if err != nil {
		return fmt.Errorf("encode authority key: %w", err)
	}
	return writeFile(path, 0o600, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// issue signs a new certificate for the authority's key.
func (ca *CA) issue(path string) error {
	subject := pkix.Name{Organization: []string{"cay"}, CommonName: "cay sandbox authority"}
	if ca.cert != nil {
		subject = ca.cert.Subject
	} else {
		var id [4]byte
		_, _ = rand.Read(id[:]) // never fails
		subject.CommonName += " " + hex.EncodeToString(id[:])
	}
	now := ca.now()
	template := &x509.Certificate{
		Subject:               subject,
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(caLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &ca.key.PublicKey, ca.key)
	if err != nil {
		return fmt.Errorf("sign authority certificate: %w", err)
	}
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		return fmt.Errorf("read authority certificate: %w", err)
	}
	return writeFile(path, 0o644, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// writeFile replaces a file atomically.
func writeFile(path string, mode fs.FileMode, text []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(text)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// leaf returns a certificate for name, which must be in the form of policy.CleanName.
func (ca *CA) leaf(name string) (*tls.Certificate, error) {
	for {
		l := ca.entry(name)
		l.once.Do(func() { l.cert, l.err = ca.sign(name) })
		if l.err == nil && l.cert.Leaf.NotAfter.Sub(ca.now()) > leafRenewal {
			return l.cert, nil
		}
		ca.forget(name, l)
		if l.err != nil {
			return nil, l.err
		}
	}
}

// entry returns the cached leaf for name, or a new leaf to be filled.
func (ca *CA) entry(name string) *leaf {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	l, ok := ca.leaves.Get(name)
	if !ok {
		l = new(leaf)
		ca.leaves.Add(name, l)
	}
	return l
}

// forget removes a leaf that is unusable, so that the next caller gets a new leaf.
func (ca *CA) forget(name string, l *leaf) {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	if kept, ok := ca.leaves.Peek(name); ok && kept == l {
		ca.leaves.Remove(name)
	}
}

func (ca *CA) sign(name string) (*tls.Certificate, error) {
	now := ca.now()
	template := &x509.Certificate{
		DNSNames:    []string{name},
		NotBefore:   now.Add(-clockSkew),
		NotAfter:    now.Add(leafLife),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if len(name) <= 64 { // as much as fits; clients go by DNSNames
		template.Subject.CommonName = name
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, &ca.leafKey.PublicKey, ca.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate for %s: %w", name, err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read certificate for %s: %w", name, err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: ca.leafKey, Leaf: parsed}, nil
}
