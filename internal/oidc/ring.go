package oidc

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// MaxLength bounds a token that Verify accepts, in bytes.
const MaxLength = 2048

// Claims are the claims of every token. Embed Claims to add more.
type Claims struct {
	Issuer   string `json:"iss"`
	Subject  string `json:"sub"`
	Audience string `json:"aud"`
	IssuedAt int64  `json:"iat"` // Unix seconds
	Expiry   int64  `json:"exp"` // Unix seconds
	ID       string `json:"jti,omitempty"`
}

// ErrInvalid is Verify's only error for a token that it does not accept,
// whatever the reason.
var ErrInvalid = errors.New("the token is not valid")

// Ring has the keys of an installation. It is immutable, and safe for concurrent
// use.
type Ring struct {
	keys []*Key // at least one; the first signs
}

// NewRing returns a ring that signs with one key, and also accepts tokens signed
// by older keys.
func NewRing(signs *Key, old ...*Key) *Ring { return &Ring{append([]*Key{signs}, old...)} }

// Sign makes a token of claims, which are a struct that embeds Claims.
func (r *Ring) Sign(claims any) (string, error) {
	payload, err := json.Marshal(claims)
	if err != nil {
		return "", fmt.Errorf("encode claims: %w", err)
	}
	k := r.keys[0]
	signer, err := jose.NewSigner(
		jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: k.private, KeyID: k.id}},
		(&jose.SignerOptions{}).WithType("JWT"),
	)
	if err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	return token, nil
}

// Verify decodes a token into claims, a pointer to the type that Sign was given.
// The token must be signed by a key of the ring, for the audience, and not
// expired. The error is ErrInvalid.
func (r *Ring) Verify(token, audience string, now time.Time, claims any) error {
	if !canonical(token) {
		return ErrInvalid
	}
	signed, err := jose.ParseSignedCompact(token, []jose.SignatureAlgorithm{jose.RS256})
	if err != nil || len(signed.Signatures) != 1 {
		return ErrInvalid
	}
	k := r.find(signed.Signatures[0].Protected.KeyID)
	if k == nil {
		return ErrInvalid
	}
	payload, err := signed.Verify(k.private.Public())
	if err != nil {
		return ErrInvalid
	}
	var c Claims
	if json.Unmarshal(payload, &c) != nil || c.Audience != audience || audience == "" || c.Expiry <= now.Unix() {
		return ErrInvalid
	}
	if json.Unmarshal(payload, claims) != nil {
		return ErrInvalid
	}
	return nil
}

func (r *Ring) find(id string) *Key {
	for _, k := range r.keys {
		if k.id == id {
			return k
		}
	}
	return nil
}

// JWKS returns the document with which others verify the ring's tokens.
func (r *Ring) JWKS() ([]byte, error) {
	var set jose.JSONWebKeySet
	for _, k := range r.keys {
		set.Keys = append(set.Keys, k.public())
	}
	b, err := json.Marshal(set)
	if err != nil {
		return nil, fmt.Errorf("encode keys: %w", err)
	}
	return b, nil
}

// canonical reports whether s has exactly the form of a token that Sign writes.
// Decoders ignore line breaks and the last bits of a part, so without this check
// different texts would be the same token.
func canonical(s string) bool {
	if len(s) > MaxLength || strings.Count(s, ".") != 2 {
		return false
	}
	for part := range strings.SplitSeq(s, ".") {
		b, err := base64.RawURLEncoding.DecodeString(part)
		if err != nil || part == "" || base64.RawURLEncoding.EncodeToString(b) != part {
			return false
		}
	}
	return true
}

// Unverified decodes the claims of a token without verifying its signature, and
// reports whether s has the form of a token. Use it to read claims that are
// needed before the verification, or where trust does not matter.
func Unverified(s string, claims any) bool {
	if !canonical(s) {
		return false
	}
	_, rest, _ := strings.Cut(s, ".")
	part, _, _ := strings.Cut(rest, ".")
	payload, err := base64.RawURLEncoding.DecodeString(part)
	return err == nil && json.Unmarshal(payload, claims) == nil
}
