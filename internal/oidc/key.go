package oidc

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/go-jose/go-jose/v4"
)

// keyBits is the size of new keys.
const keyBits = 2048

// Key is one that signs.
type Key struct {
	id      string
	private *rsa.PrivateKey
}

// NewKey makes a key, which takes some hundred milliseconds.
func NewKey() (*Key, error) {
	private, err := rsa.GenerateKey(rand.Reader, keyBits)
	if err != nil {
		return nil, fmt.Errorf("make signing key: %w", err)
	}
	return newKey(private)
}

// ParseKey reads the output of Marshal.
func ParseKey(der []byte) (*Key, error) {
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("read signing key: %w", err)
	}
	private, ok := parsed.(*rsa.PrivateKey)
	if !ok || private.N.BitLen() < keyBits {
		return nil, errors.New("read signing key: it is not an RSA key of 2048 bits")
	}
	return newKey(private)
}

// newKey names the key by the hash of its public part (RFC 7638), so that an id
// can never mean another key.
func newKey(private *rsa.PrivateKey) (*Key, error) {
	public := jose.JSONWebKey{Key: private.Public()}
	sum, err := public.Thumbprint(crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("name signing key: %w", err)
	}
	return &Key{base64.RawURLEncoding.EncodeToString(sum), private}, nil
}

// ID is the key's id in tokens and in the JWKS document.
func (k *Key) ID() string { return k.id }

// Marshal writes the key, its secret included, for ParseKey.
func (k *Key) Marshal() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(k.private)
	if err != nil {
		return nil, fmt.Errorf("write signing key: %w", err)
	}
	return der, nil
}

// public returns the key in the form of the JWKS document.
func (k *Key) public() jose.JSONWebKey {
	return jose.JSONWebKey{Key: k.private.Public(), KeyID: k.id, Algorithm: string(jose.RS256), Use: "sig"}
}
