package gatewayd_test

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd"
)

// The gateway fetches files for providers that cannot, and only from the public internet.
func TestFetch(t *testing.T) {
	t.Parallel()
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/a.png":
			w.Header().Set("Content-Type", "image/png")
			w.Write([]byte("picture"))
		case "/away":
			http.Redirect(w, r, "http://169.254.169.254/latest/meta-data/", http.StatusFound)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(site.Close)
	body := func(model, url string) string {
		return `{"model":"` + model + `","messages":[{"role":"user","content":[{"type":"text","text":"What is it?"},{"type":"image_url","image_url":{"url":"` + url + `"}}]}]}`
	}
	loopback := netip.MustParsePrefix("127.0.0.0/8")
	open := newWorld(t, func(_ *world, cfg *gatewayd.Config) { cfg.Fetch = loopback.Contains })
	shut := newWorld(t)
	for _, test := range []struct {
		w      *world
		model  string
		url    string
		status int
		want   string
	}{
		{open, "converse/text", site.URL + "/a.png", 200, "Hello"},
		{open, "gemini/text", site.URL + "/a.png", 200, "Hello"},
		{open, "chatcompletions/text", site.URL + "/a.png", 200, "Hello"}, // the provider does
		{open, "converse/text", site.URL + "/none", 0, "the status is 404"},
		{open, "converse/text", site.URL + "/away", 0, "not on the public internet"},
		{shut, "converse/text", site.URL + "/a.png", 0, "not on the public internet"},
		{shut, "converse/text", "http://localhost:1/x.png", 0, "not on the public internet"},
		{shut, "gemini/text", "http://[::ffff:10.0.0.1]/x.png", 0, "not on the public internet"},
		{shut, "gemini/text", "http://[64:ff9b::a00:1]/x.png", 0, "not on the public internet"},
		{shut, "gemini/text", "http://2130706433/x.png", 0, "cannot be fetched"},
	} {
		status, answer, _ := test.w.post("/v1/chat/completions", body(test.model, test.url))
		if (status == 200) != (test.status == 200) || !strings.Contains(answer, test.want) {
			t.Errorf("%s, %s: %d %s", test.model, test.url, status, answer)
		}
	}
	picture := base64.StdEncoding.EncodeToString([]byte("picture"))
	for i, q := range open.up.Of("text") {
		if got := strings.Contains(string(q.Body), picture); got != (i < 2) {
			t.Errorf("%s was sent %s", q.Format, q.Body)
		}
	}
}
