package gatewayd_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/provider"
)

// Every request with a valid key has a record, also if the request is invalid.
func TestRecord_NoSense(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i, body := range []string{`{"model":`, ``, `[]`, `{"model":"lab/m","n":"x"}`, `{"messages":[]}`} {
		if status, answer, _ := w.post("/v1/chat/completions", body); status != http.StatusBadRequest {
			t.Errorf("%q: %d %s", body, status, answer)
		}
		r := w.record(i + 1)
		if r.Status != gateway.Refused || r.ErrorKind != string(hub.BadRequest) || r.HTTPStatus != http.StatusBadRequest || r.Surface != "chatcompletions" ||
			r.KeyID != "gk_test" || r.BytesIn != int64(len(body)) || r.Cost == nil || *r.Cost != 0 {
			t.Errorf("%q: the record is %+v", body, r)
		}
	}
}

// OpenAI's clients read param as the name of the invalid member.
func TestError_Param(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.model("lab/m", gatewaytest.Chat)
	w.ledger.caller.Key = &gateway.Key{ID: "gk_test", KeyScope: gateway.KeyScope{Models: []string{"lab/*"}}}
	for _, path := range []string{"/v1/chat/completions", "/v1/responses"} {
		for model, code := range map[string]string{"nobody/x": "model_not_found", "chatcompletions/text": "model_not_allowed"} {
			_, body, _ := w.post(path, `{"model":"`+model+`","messages":[],"input":"x"}`)
			if e := gjson.Get(body, "error"); e.Get("param").Str != "model" || e.Get("code").Str != code || !strings.Contains(e.Get("message").Str, model) {
				t.Errorf("%s of %s: %s", path, model, body)
			}
		}
	}
}

// Errors never contain the provider credential, whatever its form and wherever the
// provider repeats it, and the log does not repeat the provider's errors.
func TestError_OwnCredential(t *testing.T) {
	t.Parallel()
	const key = "tr0ub4dor&3" // nothing that looks like a key
	for name, answer := range map[string]struct {
		status      int
		contentType string
		body        string
	}{
		"an error":           {401, "application/json", `{"error":{"message":"no account for ` + key + `, which asked for sesame"}}`},
		"a failure":          {500, "text/plain", `cannot find <` + key + `>, sesame`},
		"an error in a page": {200, "text/html", `<p>` + key},
		"an error in a 200":  {200, "application/json", `{"error":{"message":"` + key + ` is not known, sesame","code":500}}`},
	} {
		for _, d := range dialects {
			t.Run(name+" to "+d.name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				up := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
					if r.Header.Get("Authorization") != "Bearer "+key {
						t.Errorf("authorization is %q", r.Header.Get("Authorization"))
					}
					rw.Header().Set("Content-Type", answer.contentType)
					rw.WriteHeader(answer.status)
					fmt.Fprint(rw, answer.body)
				}))
				t.Cleanup(up.Close)
				s, err := provider.NewSecret(key)
				if err != nil {
					t.Fatal(err)
				}
				p := w.provider("odd", gatewaytest.Chat, up.URL)
				p.Credentials = []provider.Credential{provider.Bearer(provider.Owner{ID: "k"}, s)}
				w.add(p)
				w.model("lab/m", "odd")
				// After enough failures the circuit opens, which is logged.
				for i := range 6 {
					status, body, _ := w.ask(d, "lab/m", false)
					r := w.record(i + 1)
					if status < 400 || strings.Contains(body, key) || strings.Contains(fmt.Sprintf("%+v", r), key) {
						t.Fatalf("%d %s\n%+v", status, body, r)
					}
					if answer.contentType == "application/json" && len(r.Attempts) > 0 && !strings.Contains(r.Attempts[0].Error, "[redacted]") {
						t.Errorf("the error is %q", r.Attempts[0].Error)
					}
				}
				if l := w.log.String(); strings.Contains(l, key) || strings.Contains(l, "sesame") {
					t.Errorf("the log has it:\n%s", l)
				}
			})
		}
	}
}
