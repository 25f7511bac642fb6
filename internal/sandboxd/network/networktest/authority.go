package networktest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"sync"
	"time"
)

// authority issues the certificates of all servers of this process. All Internets share
// it, because a program reads its trusted authorities once.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

var theAuthority = sync.OnceValue(func() *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err) // no randomness: nothing works
	}
	a := &authority{key: key}
	a.cert = mustCreate(&x509.Certificate{
		Subject:               pkix.Name{CommonName: "Test Internet Root", Organization: []string{"networktest"}},
		NotAfter:              time.Now().Add(24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}, nil, key, key)
	return a
})

// mustCreate signs a certificate; without a parent it signs itself.
func mustCreate(template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		panic(err)
	}
	template.SerialNumber = serial
	if template.NotBefore.IsZero() {
		template.NotBefore = time.Now().Add(-time.Hour)
	}
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		panic(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	return cert
}

// fault is the defect of a certificate.
type fault int

const (
	sound fault = iota
	selfSigned
	expired
)

// issue makes a server's certificate for names.
func (a *authority) issue(f fault, names ...string) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: names[0]},
		DNSNames:    names,
		NotAfter:    time.Now().Add(12 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	parent, signer := a.cert, a.key
	switch f {
	case selfSigned:
		parent, signer = nil, key
	case expired:
		template.NotBefore = time.Now().Add(-48 * time.Hour)
		template.NotAfter = time.Now().Add(-24 * time.Hour)
	}
	cert := mustCreate(template, parent, key, signer)
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
}

// Roots returns the authority of the servers of all Internets of this process.
func Roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(theAuthority().cert)
	return pool
}

// RootPEM is Roots for guests and files.
func RootPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: theAuthority().cert.Raw})
}
