package gatewayd_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
)

// Gemini providers count for Anthropic clients; an invalid answer is replaced by an
// estimate.
func TestCount_Gemini(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	asked := make(chan string, 2)
	answers := make(chan string, 2)
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		asked <- r.URL.Path + " " + gjson.GetBytes(body, "generateContentRequest.contents.0.parts.0.text").Str
		rw.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(rw, <-answers) // fails only when the client left
	}))
	t.Cleanup(srv.Close)
	w.add(w.provider("counter", gatewaytest.Gemini, srv.URL))
	w.model("google/g", "counter:gemini-x")
	answers <- `{"totalTokens":1234}`
	answers <- `{"totalTokens":"many"}`
	for _, want := range []string{"1234", ""} {
		status, body, _ := w.post("/v1/messages/count_tokens", `{"model":"google/g","messages":[{"role":"user","content":"count this"}]}`)
		got := gjson.Get(body, "input_tokens")
		if status != http.StatusOK || got.Int() == 0 || want != "" && got.Raw != want {
			t.Errorf("%d %s, want %s", status, body, want)
		}
		if got := <-asked; got != "/v1beta/models/gemini-x:countTokens count this" {
			t.Errorf("asked %s", got)
		}
	}
}
