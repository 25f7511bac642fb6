package gatewaytest

import (
	"bytes"
	"crypto"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// Behind serves the Upstream to requests that check accepts, like clouds with models of
// others: check examines addresses and signatures. Other requests get 403 with check's
// error. Behind returns the URL of a separate host.
func (u *Upstream) Behind(t testing.TB, check func(r *http.Request, body []byte) error) (address string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client left
		}
		if err := check(r, body); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		u.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// SigV4 verifies the signature of a request to Bedrock by computing it again: see "Create
// a signed AWS API request" in AWS's documentation of IAM. The request must be at most
// five minutes old, and must sign all the headers that AWS requires.
func SigV4(accessKey, secret, token, region string) func(*http.Request, []byte) error {
	return func(r *http.Request, body []byte) error {
		var credential, signed, signature string
		for part := range strings.SplitSeq(strings.TrimPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 "), ",") {
			name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
			switch name {
			case "Credential":
				credential = value
			case "SignedHeaders":
				signed = value
			case "Signature":
				signature = value
			}
		}
		stamp := r.Header.Get("X-Amz-Date")
		at, err := time.Parse("20060102T150405Z", stamp)
		if err != nil || time.Since(at).Abs() > 5*time.Minute {
			return fmt.Errorf("x-amz-date is %q", stamp)
		}
		scope := strings.Join([]string{stamp[:8], region, "bedrock", "aws4_request"}, "/")
		if credential != accessKey+"/"+scope {
			return fmt.Errorf("the credential is %q, not %s/%s", credential, accessKey, scope)
		}
		if got := r.Header.Get("X-Amz-Security-Token"); got != token {
			return fmt.Errorf("the session token is %q", got)
		}
		var heads strings.Builder
		names := strings.Split(signed, ";")
		for _, name := range []string{"host", "x-amz-date", "x-amz-security-token"} {
			if !slices.Contains(names, name) && (token != "" || name != "x-amz-security-token") {
				return fmt.Errorf("%s is not signed", name)
			}
		}
		for _, name := range names {
			value := strings.Join(r.Header.Values(name), ",")
			switch name {
			case "host":
				value = r.Host
			case "content-length":
				value = fmt.Sprint(r.ContentLength)
			}
			heads.WriteString(name + ":" + strings.Join(strings.Fields(value), " ") + "\n")
		}
		canonical := strings.Join([]string{r.Method, escapedTwice(r.URL), r.URL.Query().Encode(), heads.String(), signed, hexSum(body)}, "\n")
		key := []byte("AWS4" + secret)
		for part := range strings.SplitSeq(scope, "/") {
			key = mac(key, part)
		}
		want := hex.EncodeToString(mac(key, strings.Join([]string{"AWS4-HMAC-SHA256", stamp, scope, hexSum([]byte(canonical))}, "\n")))
		if !hmac.Equal([]byte(want), []byte(signature)) {
			return fmt.Errorf("the signature is %s, not %s", signature, want)
		}
		return nil
	}
}

func mac(key []byte, text string) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(text)) // never fails
	return m.Sum(nil)
}

func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// escapedTwice returns the path with each element of its wire form escaped once more.
func escapedTwice(u *url.URL) string {
	var b strings.Builder
	for _, c := range []byte(u.EscapedPath()) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_.~/", c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// GoogleAccount returns the key file of a new service account, and a function that
// returns how often its assertions were exchanged for an access token, which is Key. Its
// token URL verifies the assertion like Google: signature, issuer, audience, scope and
// times.
func GoogleAccount(t testing.TB) (keyFile []byte, exchanged func() int) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	const email = "gateway@project.iam.gserviceaccount.com"
	tokens := make(chan struct{}, 1000)
	var s *httptest.Server
	s = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := checkAssertion(r.FormValue("assertion"), r.FormValue("grant_type"), &key.PublicKey, email, s.URL+"/token"); err != nil || r.URL.Path != "/token" {
			w.WriteHeader(http.StatusBadRequest)
			w.Write(encode(object{"error": "invalid_grant", "error_description": fmt.Sprint(err)})) // the client may have left
			return
		}
		tokens <- struct{}{}
		w.Header().Set("Content-Type", "application/json")
		w.Write(encode(object{"access_token": Key, "expires_in": 3600, "token_type": "Bearer"})) // as above
	}))
	t.Cleanup(s.Close)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	file := encode(object{
		"type": "service_account", "project_id": "project", "private_key_id": "key-1", "client_email": email, "token_uri": s.URL + "/token",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
	})
	return file, func() int { return len(tokens) }
}

// checkAssertion verifies a JSON Web Token by RFC 7523 and Google's "Using OAuth 2.0 for
// server to server applications".
func checkAssertion(assertion, grant string, key *rsa.PublicKey, issuer, audience string) error {
	parts := strings.Split(assertion, ".")
	if grant != "urn:ietf:params:oauth:grant-type:jwt-bearer" || len(parts) != 3 {
		return fmt.Errorf("the grant type is %q, of %d parts", grant, len(parts))
	}
	var raw [3][]byte
	for i, p := range parts {
		var err error
		if raw[i], err = base64.RawURLEncoding.DecodeString(p); err != nil {
			return err
		}
	}
	var head struct{ Alg, Typ, Kid string }
	var claims struct {
		Iss, Aud, Scope string
		Iat, Exp        int64
	}
	if err := json.Unmarshal(raw[0], &head); err != nil {
		return err
	}
	if err := json.Unmarshal(raw[1], &claims); err != nil {
		return err
	}
	now := time.Now().Unix()
	switch {
	case head.Alg != "RS256" || head.Kid != "key-1":
		return fmt.Errorf("the head is %s", raw[0])
	case claims.Iss != issuer || claims.Aud != audience || claims.Scope != "https://www.googleapis.com/auth/cloud-platform":
		return fmt.Errorf("the claims are %s", raw[1])
	case claims.Iat > now || claims.Exp <= now || claims.Exp-claims.Iat > 3600:
		return fmt.Errorf("it is of %d to %d", claims.Iat, claims.Exp)
	}
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	return rsa.VerifyPKCS1v15(key, crypto.SHA256, sum[:], raw[2])
}
