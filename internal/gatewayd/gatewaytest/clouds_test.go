package gatewaytest_test

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
)

// SigV4 accepts signatures of AWS's own signer, and no others.
func TestSigV4(t *testing.T) {
	t.Parallel()
	const path = "http://127.0.0.1:1/model/arn%3Aaws%3Abedrock%3Aeu-west-1%3A1%3Ainference-profile%2Fx/converse"
	for name, change := range map[string]func(r *http.Request, body []byte){
		"":             func(*http.Request, []byte) {},
		"signature is": func(_ *http.Request, body []byte) { body[0] = '[' },
		"not signed": func(r *http.Request, _ []byte) {
			v := r.Header.Get("Authorization")
			r.Header.Set("Authorization", strings.Replace(v, ";x-amz-security-token", "", 1))
		},
		"session token": func(r *http.Request, _ []byte) { r.Header.Del("X-Amz-Security-Token") },
		"x-amz-date":    func(r *http.Request, _ []byte) { r.Header.Set("X-Amz-Date", "20200101T000000Z") },
		"credential is": func(r *http.Request, _ []byte) { r.Header.Set("Authorization", "Bearer x") },
	} {
		body := []byte(`{"messages":[]}`)
		r, err := http.NewRequest(http.MethodPost, path, strings.NewReader(string(body)))
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(body)
		keys := aws.Credentials{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: "secret", SessionToken: "token"}
		if err := v4.NewSigner().SignHTTP(t.Context(), keys, r, hex.EncodeToString(sum[:]), "bedrock", "eu-west-1", time.Now()); err != nil {
			t.Fatal(err)
		}
		change(r, body)
		err = gatewaytest.SigV4("AKIDEXAMPLE", "secret", "token", "eu-west-1")(r, body)
		if name == "" && err != nil || name != "" && (err == nil || !strings.Contains(err.Error(), name)) {
			t.Errorf("%q: %v", name, err)
		}
		if name == "" && gatewaytest.SigV4("AKIDEXAMPLE", "another", "token", "eu-west-1")(r, body) == nil {
			t.Error("another secret is taken")
		}
	}
}
