package workflow

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"

	"github.com/cayhq/cay"
)

// EncryptionKey seals payloads, so that a reader of the database or an operator of the
// daemon sees names, ids, times, states, attributes and codes of errors, but no values.
// Payloads are encrypted with AES-256-GCM under a key of their run, which is derived from
// the EncryptionKey (HKDF-SHA256), so no derived key opens more than one run's payloads.
//
// A Client seals with its first key and opens with any: to rotate keys, put the new key
// in front and keep the old one for as long as its runs are kept.
type EncryptionKey [32]byte

// NewEncryptionKey returns a random key.
func NewEncryptionKey() EncryptionKey {
	var k EncryptionKey
	_, _ = rand.Read(k[:]) // never fails
	return k
}

// ParseEncryptionKey reads a key of 32 bytes in hexadecimal or base64.
func ParseEncryptionKey(s string) (EncryptionKey, error) {
	for _, decode := range []func(string) ([]byte, error){
		hex.DecodeString, base64.StdEncoding.DecodeString, base64.RawStdEncoding.DecodeString, base64.URLEncoding.DecodeString, base64.RawURLEncoding.DecodeString,
	} {
		if b, err := decode(s); err == nil && len(b) == len(EncryptionKey{}) {
			return EncryptionKey(b), nil
		}
	}
	return EncryptionKey{}, cay.Errorf(cay.Invalid, "key is not 32 bytes in hexadecimal or base64")
}

// Encode returns the key in base64, as ParseEncryptionKey reads it.
func (k EncryptionKey) Encode() string { return base64.StdEncoding.EncodeToString(k[:]) }

// String hides the key, so that logs do not contain it.
func (EncryptionKey) String() string { return "workflow.EncryptionKey(hidden)" }

// GoString is String.
func (k EncryptionKey) GoString() string { return k.String() }

// A sealed envelope names the scope of its key, nearly always the run, so that other runs
// can open it after it was passed on: the run that continues this one, a parent, a rerun.
//
//	"encr" | version 1 | length of scope, one byte | scope | nonce, 12 bytes | ciphertext and tag
//
// Everything before the nonce is authenticated.
const (
	sealVersion = 1
	nonceSize   = 12
	maxScope    = 255
)

// aead returns the cipher of a scope.
func (k EncryptionKey) aead(scope string) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, k[:], nil, "cay/workflow/run-key/v1|"+scope, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

func seal(k EncryptionKey, scope string, plain []byte) ([]byte, error) {
	scope = scope[:min(len(scope), maxScope)]
	c, err := k.aead(scope)
	if err != nil {
		return nil, cay.Errorf(cay.Internal, "seal a value: %w", err)
	}
	head := len(envelopeSealed) + 2 + len(scope)
	out := make([]byte, 0, head+nonceSize+len(plain)+c.Overhead())
	out = append(out, envelopeSealed...)
	out = append(out, sealVersion, byte(len(scope)))
	out = append(out, scope...)
	out = out[:head+nonceSize]
	_, _ = rand.Read(out[head:]) // never fails
	return c.Seal(out, out[head:], plain, out[:head]), nil
}

func unseal(keys []EncryptionKey, env []byte) ([]byte, error) {
	const fixed = len(envelopeSealed) + 2
	if len(env) < fixed {
		return nil, cay.Errorf(cay.Invalid, "sealed value is damaged")
	}
	if v := env[fixed-2]; v != sealVersion {
		return nil, cay.Errorf(cay.Invalid, "sealed value is of unknown version %d", v)
	}
	head := fixed + int(env[fixed-1])
	if len(env) < head+nonceSize {
		return nil, cay.Errorf(cay.Invalid, "sealed value is damaged")
	}
	for _, k := range keys {
		c, err := k.aead(string(env[fixed:head]))
		if err != nil {
			return nil, cay.Errorf(cay.Internal, "open a sealed value: %w", err)
		}
		if plain, err := c.Open(nil, env[head:head+nonceSize], env[head+nonceSize:], env[:head]); err == nil {
			return plain, nil
		}
	}
	return nil, cay.Errorf(cay.PermissionDenied, "value is sealed and none of the %d keys of this client opens it", len(keys))
}
