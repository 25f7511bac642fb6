package provider_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/provider"
)

const (
	accessKey = "AKIDEXAMPLE"
	secretKey = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
)

func secretOf(t testing.TB, text string) provider.Secret {
	t.Helper()
	s, err := provider.NewSecret(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// signature computes the signature of a request as AWS describes it ("Create a signed AWS
// API request"), from the request that the server receives.
func signature(r *http.Request, body []byte, region string) (want, got string, err error) {
	rest, ok := strings.CutPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ")
	if !ok {
		return "", "", fmt.Errorf("authorization %q", r.Header.Get("Authorization"))
	}
	fields := map[string]string{}
	for f := range strings.SplitSeq(rest, ", ") {
		name, value, _ := strings.Cut(f, "=")
		fields[name] = value
	}
	stamp := r.Header.Get("X-Amz-Date")
	scope := stamp[:8] + "/" + region + "/bedrock/aws4_request"
	if fields["Credential"] != accessKey+"/"+scope {
		return "", "", fmt.Errorf("credential %q, want the scope %s", fields["Credential"], scope)
	}
	escape := func(s string) string { // escapes like RFC 3986, as AWS requires
		var b strings.Builder
		for i := range len(s) {
			if c := s[i]; c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_.~", c) >= 0 {
				b.WriteByte(c)
			} else {
				fmt.Fprintf(&b, "%%%02X", c)
			}
		}
		return b.String()
	}
	segments := strings.Split(r.URL.EscapedPath(), "/")
	for i := range segments {
		segments[i] = escape(segments[i]) // once more: Bedrock is not S3
	}
	var query []string
	for name, values := range r.URL.Query() {
		for _, v := range values {
			query = append(query, escape(name)+"="+escape(v))
		}
	}
	slices.Sort(query)
	var headers strings.Builder
	for name := range strings.SplitSeq(fields["SignedHeaders"], ";") {
		value := strings.Join(r.Header.Values(name), ",")
		switch name {
		case "host":
			value = r.Host
		case "content-length":
			value = fmt.Sprint(r.ContentLength)
		}
		fmt.Fprintf(&headers, "%s:%s\n", name, strings.Join(strings.Fields(value), " "))
	}
	sum := sha256.Sum256(body)
	path := strings.Join(segments, "/")
	if path == "" {
		path = "/"
	}
	canonical := strings.Join([]string{r.Method, path, strings.Join(query, "&"), headers.String(), fields["SignedHeaders"], hex.EncodeToString(sum[:])}, "\n")
	hashed := sha256.Sum256([]byte(canonical))
	toSign := "AWS4-HMAC-SHA256\n" + stamp + "\n" + scope + "\n" + hex.EncodeToString(hashed[:])
	key := []byte("AWS4" + secretKey)
	for _, part := range []string{stamp[:8], region, "bedrock", "aws4_request", toSign} {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(part))
		key = mac.Sum(nil)
	}
	return hex.EncodeToString(key), fields["Signature"], nil
}

func TestSigV4_ServerAgrees(t *testing.T) {
	t.Parallel()
	checked := make(chan error, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		want, got, err := signature(r, body, "eu-central-1")
		switch {
		case err != nil:
		case want != got:
			err = fmt.Errorf("signature %s, want %s", got, want)
		case r.Header.Get("X-Amz-Security-Token") != "session":
			err = fmt.Errorf("session token %q", r.Header.Get("X-Amz-Security-Token"))
		case !strings.Contains(r.Header.Get("Authorization"), "x-amz-security-token"):
			err = fmt.Errorf("the session token is not signed")
		}
		checked <- err
	}))
	defer server.Close()
	c, err := provider.SigV4(provider.Owner{ID: "a"}, provider.AWS{
		AccessKeyID: accessKey, SecretAccessKey: secretOf(t, secretKey), SessionToken: secretOf(t, "session"), Region: "eu-central-1",
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		"/model/anthropic.claude-haiku-4-5-20251001-v1%3A0/converse",
		"/model/arn%3Aaws%3Abedrock%3Aeu-central-1%3A1%3Ainference-profile%2Fx/converse-stream",
		"/model/a%20b/converse?b=2&a=1&a=%2F", "/",
	} {
		body := []byte(`{"messages":[]}`)
		r, err := http.NewRequest(http.MethodPost, server.URL+path, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		if err := c.Authorize(t.Context(), r, body); err != nil {
			t.Fatal(err)
		}
		resp, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if err := <-checked; err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestSigV4_Region(t *testing.T) {
	t.Parallel()
	at := func(base, region string) (string, string, error) {
		c, err := provider.SigV4(provider.Owner{}, provider.AWS{AccessKeyID: accessKey, SecretAccessKey: secretOf(t, secretKey), Region: region})
		if err != nil {
			t.Fatal(err)
		}
		u, err := url.Parse(base + "/model/x/converse")
		if err != nil {
			t.Fatal(err)
		}
		was := *u
		r := &http.Request{Method: http.MethodPost, URL: u, Header: http.Header{}}
		err = c.Authorize(t.Context(), r, nil)
		if *u != was {
			t.Error("the URL of others was changed")
		}
		return r.URL.Host, r.Header.Get("Authorization"), err
	}
	for _, c := range []struct{ base, region, host, scope string }{
		{"https://bedrock-runtime.us-east-1.amazonaws.com", "", "bedrock-runtime.us-east-1.amazonaws.com", "/us-east-1/bedrock/"},
		{"https://bedrock-runtime.us-east-1.amazonaws.com", "eu-west-3", "bedrock-runtime.eu-west-3.amazonaws.com", "/eu-west-3/bedrock/"},
		{"https://bedrock-runtime.cn-north-1.amazonaws.com.cn", "", "bedrock-runtime.cn-north-1.amazonaws.com.cn", "/cn-north-1/bedrock/"},
		{"https://vpce.example", "eu-west-3", "vpce.example", "/eu-west-3/bedrock/"},
	} {
		host, auth, err := at(c.base, c.region)
		if err != nil || host != c.host || !strings.Contains(auth, c.scope) {
			t.Errorf("%+v: %s %s %v", c, host, auth, err)
		}
	}
	if _, auth, err := at("https://vpce.example", ""); err == nil || auth != "" {
		t.Errorf("signed for no region: %v", err)
	}
	for _, region := range []string{"evil.example/", "us-east-1.evil", "a@b", "-a", strings.Repeat("a", 64)} {
		if _, err := provider.SigV4(provider.Owner{}, provider.AWS{AccessKeyID: accessKey, SecretAccessKey: secretOf(t, secretKey), Region: region}); err == nil {
			t.Errorf("region %q is taken", region)
		}
	}
}

func FuzzSigV4(f *testing.F) {
	f.Add("/model/a%3Ab/converse", "a=1&a=%20", "text/plain", []byte("body"), int64(1440938160))
	f.Add("/", "", " a  b ", []byte{}, int64(0))
	f.Add("//x/../%2F%25", "b=&a", "", []byte{0xff}, int64(4102444800))
	c, err := provider.SigV4(provider.Owner{}, provider.AWS{AccessKeyID: accessKey, SecretAccessKey: secretOf(f, secretKey), Region: "us-east-1"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, path, query, head string, body []byte, at int64) {
		u, err := url.Parse("https://bedrock-runtime.us-east-1.amazonaws.com/" + strings.TrimPrefix(path, "/"))
		if err != nil || strings.ContainsFunc(head, func(r rune) bool { return r < ' ' || r > '~' }) || at < 0 || at > 4102444800 {
			t.Skip("no request has such an address, header or time")
		}
		if q, err := url.ParseQuery(query); err != nil || len(q) > 1 || q.Encode() == "" && query != "" {
			t.Skip("more than one query") // Bedrock has no queries; the order of several signed queries is not tested
		}
		u.RawQuery, u.Fragment, u.RawFragment = query, "", ""
		provider.SetNow(c, func() time.Time { return time.Unix(at, 0) })
		r := &http.Request{Method: http.MethodPost, URL: u, Host: u.Host, Header: http.Header{"X-Test": {head}}, ContentLength: int64(len(body))}
		if err := c.Authorize(t.Context(), r, body); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(r.Header.Get("Authorization"), secretKey) {
			t.Fatal("the secret is in the header")
		}
		if strings.Contains(u.EscapedPath(), "//") || strings.Contains(u.EscapedPath(), "/.") || u.Opaque != "" {
			return // servers normalize such paths first
		}
		want, got, err := signature(r, body, "us-east-1")
		if err != nil || want != got {
			t.Fatalf("signature %s, want %s (%v)", got, want, err)
		}
	})
}
