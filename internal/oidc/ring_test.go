package oidc_test

import (
	"crypto"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/oidc"
)

type claims struct {
	oidc.Claims
	Team string `json:"team"`
}

const audience = "cay:test"

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func good() claims {
	return claims{oidc.Claims{
		Issuer: "https://cay.example", Subject: "s", Audience: audience, IssuedAt: now.Unix(), Expiry: now.Add(time.Hour).Unix(), ID: "tok_1",
	}, "red"}
}

// made are keys, made once because making keys takes time.
var made = sync.OnceValue(func() [2]*oidc.Key {
	var keys [2]*oidc.Key
	for i := range keys {
		var err error
		if keys[i], err = oidc.NewKey(); err != nil {
			panic(err)
		}
	}
	return keys
})

// private returns the private key, for tokens that an attacker with the key
// could sign.
func private(t testing.TB, k *oidc.Key) *rsa.PrivateKey {
	t.Helper()
	der, err := k.Marshal()
	checktest.OK(t, err)
	key, err := x509.ParsePKCS8PrivateKey(der)
	checktest.OK(t, err)
	return key.(*rsa.PrivateKey)
}

func sign(t testing.TB, r *oidc.Ring, c any) string {
	t.Helper()
	token, err := r.Sign(c)
	checktest.OK(t, err)
	return token
}

func TestRing(t *testing.T) {
	t.Parallel()
	ring := oidc.NewRing(made()[0])
	token := sign(t, ring, good())
	var c claims
	checktest.OK(t, ring.Verify(token, audience, now, &c))
	if c != good() {
		t.Fatalf("got %+v, want %+v", c, good())
	}
	checktest.OK(t, ring.Verify(token, audience, now.Add(time.Hour-time.Second), &c))
	for name, err := range map[string]error{
		"Expired":          ring.Verify(token, audience, now.Add(time.Hour), &c),
		"OtherAudience":    ring.Verify(token, "https://cay:test", now, &c),
		"NoAudience":       ring.Verify(token, "", now, &c),
		"NoAudienceAtAll":  ring.Verify(sign(t, ring, claims{Claims: oidc.Claims{Expiry: 1 << 40}}), "", now, &c),
		"NoExpiry":         ring.Verify(sign(t, ring, claims{Claims: oidc.Claims{Audience: audience}}), audience, now, &c),
		"AnotherRing":      oidc.NewRing(made()[1]).Verify(token, audience, now, &c),
		"ListOfAudiences":  ring.Verify(sign(t, ring, map[string]any{"aud": []string{audience}, "exp": 1 << 40}), audience, now, &c),
		"ClaimOfOtherKind": ring.Verify(sign(t, ring, map[string]any{"aud": audience, "exp": 1 << 40, "team": 1}), audience, now, &c),
	} {
		if !errors.Is(err, oidc.ErrInvalid) {
			t.Errorf("%s: %v, want %v", name, err, oidc.ErrInvalid)
		}
	}
}

func TestRing_Rotation(t *testing.T) {
	t.Parallel()
	before := oidc.NewRing(made()[0])
	after := oidc.NewRing(made()[1], made()[0])
	var c claims
	checktest.OK(t, after.Verify(sign(t, before, good()), audience, now, &c))
	token := sign(t, after, good())
	checktest.OK(t, after.Verify(token, audience, now, &c))
	if before.Verify(token, audience, now, &c) == nil {
		t.Fatal("the new key signs nothing")
	}
	jwks, err := after.JWKS()
	checktest.OK(t, err)
	var doc struct{ Keys []map[string]string }
	checktest.OK(t, json.Unmarshal(jwks, &doc))
	if len(doc.Keys) != 2 || doc.Keys[0]["kid"] != made()[1].ID() || doc.Keys[1]["kid"] != made()[0].ID() {
		t.Fatalf("the document is %s", jwks)
	}
	for _, k := range doc.Keys {
		if len(k) != 6 || k["kty"] != "RSA" || k["use"] != "sig" || k["alg"] != "RS256" || k["n"] == "" || k["e"] != "AQAB" {
			t.Errorf("a key is %v: it must have its public part, and no more", k)
		}
	}
}

func TestKey_Parse(t *testing.T) {
	t.Parallel()
	der, err := made()[0].Marshal()
	checktest.OK(t, err)
	again, err := oidc.ParseKey(der)
	checktest.OK(t, err)
	if again.ID() != made()[0].ID() {
		t.Fatalf("the id is %s, then %s", made()[0].ID(), again.ID())
	}
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	checktest.OK(t, err)
	weak, err := x509.MarshalPKCS8PrivateKey(small)
	checktest.OK(t, err)
	for _, bad := range [][]byte{nil, der[:100], weak} {
		if _, err := oidc.ParseKey(bad); err == nil {
			t.Errorf("%d bytes are a key", len(bad))
		}
	}
}

func part(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// Whatever algorithm or key a token's header names, it is verified by RS256
// with a key of the ring.
func TestRing_Forged(t *testing.T) {
	t.Parallel()
	ours, theirs := made()[0], made()[1]
	ring := oidc.NewRing(ours)
	valid := sign(t, ring, good())
	segments := strings.Split(valid, ".")
	header, payload, signature := segments[0], segments[1], segments[2]
	admin := good()
	admin.Team = "admin"
	public := private(t, ours).Public()
	der, err := x509.MarshalPKIXPublicKey(public)
	checktest.OK(t, err)
	jwks, err := ring.JWKS()
	checktest.OK(t, err)

	rs := func(h any, c any, key *rsa.PrivateKey) string {
		input := part(h) + "." + part(c)
		sum := sha256.Sum256([]byte(input))
		sig, err := rsa.SignPKCS1v15(nil, key, crypto.SHA256, sum[:])
		checktest.OK(t, err)
		return input + "." + base64.RawURLEncoding.EncodeToString(sig)
	}
	hs := func(alg string, key []byte) string {
		input := part(map[string]string{"alg": alg, "typ": "JWT", "kid": ours.ID()}) + "." + part(admin)
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(input))
		return input + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	}
	var foreign struct{ Keys []json.RawMessage }
	foreignSet, err := oidc.NewRing(theirs).JWKS()
	checktest.OK(t, err)
	checktest.OK(t, json.Unmarshal(foreignSet, &foreign))
	h := func(more ...any) map[string]any {
		m := map[string]any{"alg": "RS256", "typ": "JWT", "kid": ours.ID()}
		for i := 0; i < len(more); i += 2 {
			m[more[i].(string)] = more[i+1]
		}
		return m
	}
	sum512 := sha512.Sum512([]byte(part(h("alg", "RS512")) + "." + payload))
	rs512, err := rsa.SignPKCS1v15(nil, private(t, ours), crypto.SHA512, sum512[:])
	checktest.OK(t, err)
	sumPSS := sha256.Sum256([]byte(part(h("alg", "PS256")) + "." + payload))
	ps256, err := rsa.SignPSS(rand.Reader, private(t, ours), crypto.SHA256, sumPSS[:], nil)
	checktest.OK(t, err)

	var c claims
	if err := ring.Verify(rs(h(), good(), private(t, ours)), audience, now, &c); err != nil {
		t.Fatalf("what these forgeries are made like is refused: %v", err)
	}
	for name, token := range map[string]string{
		"Empty":            "",
		"Dots":             "..",
		"NoSignature":      header + "." + payload + ".",
		"NoSignaturePart":  header + "." + payload,
		"FourParts":        valid + "." + signature,
		"None":             part(h("alg", "none")) + "." + part(admin) + ".",
		"NoneSigned":       part(h("alg", "none")) + "." + payload + "." + signature,
		"NonE":             part(h("alg", "nOnE")) + "." + part(admin) + ".",
		"NoAlgorithm":      part(map[string]string{"kid": ours.ID()}) + "." + payload + "." + signature,
		"HS256PEM":         hs("HS256", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})),
		"HS256DER":         hs("HS256", der),
		"HS256Modulus":     hs("HS256", public.(*rsa.PublicKey).N.Bytes()),
		"HS256JWKS":        hs("HS256", jwks),
		"HS256Empty":       hs("HS256", nil),
		"HMACAsRS256":      hs("RS256", der),
		"RS512OfOurs":      part(h("alg", "RS512")) + "." + payload + "." + base64.RawURLEncoding.EncodeToString(rs512),
		"PS256OfOurs":      part(h("alg", "PS256")) + "." + payload + "." + base64.RawURLEncoding.EncodeToString(ps256),
		"OtherPayload":     header + "." + part(admin) + "." + signature,
		"OtherHeader":      part(h("x", 1)) + "." + payload + "." + signature,
		"ForeignKeyOurID":  rs(h(), admin, private(t, theirs)),
		"ForeignKey":       rs(h("kid", theirs.ID()), admin, private(t, theirs)),
		"EmbeddedKey":      rs(h("jwk", foreign.Keys[0]), admin, private(t, theirs)),
		"EmbeddedKeyAlone": rs(map[string]any{"alg": "RS256", "jwk": foreign.Keys[0]}, admin, private(t, theirs)),
		"KeyURL":           rs(h("jku", "https://evil.example/jwks"), admin, private(t, theirs)),
		"NoKeyID":          rs(map[string]any{"alg": "RS256"}, good(), private(t, ours)),
		"EmptyKeyID":       rs(h("kid", ""), good(), private(t, ours)),
		"KeyIDPath":        rs(h("kid", "../../"+ours.ID()), good(), private(t, ours)),
		"KeyIDNumber":      rs(h("kid", 0), good(), private(t, ours)),
		"KeyIDList":        rs(h("kid", []string{ours.ID()}), good(), private(t, ours)),
		"KeyIDSQL":         rs(h("kid", "' OR 1=1 --"), admin, private(t, theirs)),
		"Critical":         rs(h("crit", []string{"x"}, "x", 1), good(), private(t, ours)),
		"JSON":             fmt.Sprintf(`{"protected":%q,"payload":%q,"signature":%q}`, header, payload, signature),
		"Padded":           valid + "==",
		"Space":            " " + valid,
		"LineBreakInside":  header + "." + payload[:8] + "\n" + payload[8:] + "." + signature,
		"LineBreakBehind":  valid + "\n",
		"StandardAlphabet": strings.NewReplacer("-", "+", "_", "/").Replace(valid),
		"Huge":             header + "." + strings.Repeat("A", 1<<20) + "." + signature,
		"NullSignature":    header + "." + payload + "." + base64.RawURLEncoding.EncodeToString(make([]byte, 256)),
		"NotJSON":          rs(h(), json.RawMessage(`"x"`), private(t, ours)),
	} {
		if token == valid {
			continue // nothing of the standard alphabet is in it
		}
		if err := ring.Verify(token, audience, now, &c); !errors.Is(err, oidc.ErrInvalid) {
			t.Errorf("%s: %v, want %v", name, err, oidc.ErrInvalid)
		}
	}
	// No other text is the same token, not even a text that decodes to the same
	// content.
	for i := range valid {
		for _, r := range "ABCDEFGHabcdefgh0123456789-_.=\n" {
			if variant := valid[:i] + string(r) + valid[i+1:]; variant != valid && ring.Verify(variant, audience, now, &c) == nil {
				t.Fatalf("%q in place of %q at %d is accepted", r, valid[i], i)
			}
		}
	}
}

func FuzzRing_Verify(f *testing.F) {
	ring := oidc.NewRing(made()[0])
	valid := sign(f, ring, good())
	f.Add(valid)
	f.Add(valid + "=")
	f.Add("a.b.c")
	f.Add(part(map[string]string{"alg": "none"}) + "." + part(good()) + ".")
	f.Fuzz(func(t *testing.T, token string) {
		var c claims
		if ring.Verify(token, audience, now, &c) == nil && token != valid {
			t.Fatalf("%q is accepted", token)
		}
		oidc.Unverified(token, &c)
	})
}

func TestUnverified(t *testing.T) {
	t.Parallel()
	token := sign(t, oidc.NewRing(made()[0]), good())
	var c claims
	if !oidc.Unverified(token, &c) || c.Team != "red" {
		t.Fatalf("got %+v", c)
	}
	for _, bad := range []string{"", "a.b.c", "..", token + "x\n", strings.Repeat("A", 5000), "cay_" + strings.Repeat("A", 43)} {
		if oidc.Unverified(bad, &c) {
			t.Errorf("%.40q has the form of a token", bad)
		}
	}
}
