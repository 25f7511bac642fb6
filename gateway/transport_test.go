package gateway_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cayhq/cay/gateway"
)

// seen is a request that a gateway received.
type seen struct {
	method, host, uri, body string
	head                    http.Header
}

// serve answers like a gateway, and records the request.
func serve(t *testing.T) (url string, got *seen) {
	got = new(seen)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		*got = seen{r.Method, r.Host, r.RequestURI, string(b), r.Header}
		if strings.HasSuffix(r.URL.Path, "/redirect") {
			http.Redirect(w, r, "http://elsewhere.example/v1/models", http.StatusFound)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL, got
}

func TestTransport(t *testing.T) {
	t.Parallel()
	url, got := serve(t)
	c := &http.Client{Transport: &gateway.Transport{URL: url + "/base/", Key: "cgk_key", User: "a b,c", Tags: []string{"x,y", "z"}}}
	req, err := http.NewRequest("POST", "https://user:secret@api.openai.example/v1/chat%2Fx/completions?a=1&key=secret&b=%20", strings.NewReader(`{"model":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	secrets := []string{"Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "X-Ai-Gateway-Api-Key", "Cookie"}
	for _, name := range secrets {
		req.Header.Set(name, "secret")
	}
	req.Header.Set("Anthropic-Version", "2023-06-01")
	before := req.Header.Clone()
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got.method != "POST" || got.uri != "/base/v1/chat%2Fx/completions?a=1&b=+" || got.body != `{"model":"x"}` || "http://"+got.host != url {
		t.Errorf("the gateway got %+v", got)
	}
	for name, want := range map[string]string{
		"Authorization": "Bearer cgk_key", "X-Api-Key": "", "Api-Key": "", "X-Goog-Api-Key": "", "X-Ai-Gateway-Api-Key": "", "Cookie": "",
		"Anthropic-Version": "2023-06-01", "X-Cay-User": "a+b%2Cc", "X-Cay-Tags": "x%2Cy,z",
	} {
		if v := got.head.Get(name); v != want {
			t.Errorf("header %s is %q, want %q", name, v, want)
		}
	}
	// A RoundTripper does not change the request.
	for name := range before {
		if req.Header.Get(name) != before.Get(name) {
			t.Errorf("the header %s was changed", name)
		}
	}
	if req.URL.Host != "api.openai.example" {
		t.Errorf("the address was changed to %s", req.URL)
	}
}

// Neither the key nor a request follows a redirect.
func TestTransport_Redirect(t *testing.T) {
	t.Parallel()
	url, got := serve(t)
	c := &http.Client{Transport: &gateway.Transport{URL: url, Key: "cgk_key"}}
	resp, err := c.Get("https://api.example/redirect")
	if err == nil {
		resp.Body.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "redirect to elsewhere.example") {
		t.Errorf("error is %v", err)
	}
	if got.uri != "/redirect" {
		t.Errorf("the gateway was asked for %s", got.uri)
	}
	// The Transport still works.
	if resp, err = c.Get("https://api.example/v1/models"); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}

func TestTransport_Environment(t *testing.T) {
	url, got := serve(t)
	dir := t.TempDir()
	t.Setenv("CAY_DATA", dir)
	t.Setenv("CAY_TOKEN", "")
	t.Setenv("CAY_GATEWAY_KEY", "")
	t.Setenv("CAY_GATEWAY_URL", url)
	sent := func() (string, error) {
		resp, err := (&http.Client{Transport: new(gateway.Transport)}).Get("https://api.example/v1/models")
		if err != nil {
			return "", err
		}
		resp.Body.Close()
		return got.head.Get("Authorization"), nil
	}
	if _, err := sent(); err == nil || !strings.Contains(err.Error(), "CAY_GATEWAY_KEY") {
		t.Errorf("without a key the error is %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "admin.token"), []byte("cay_admin\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ name, value, want string }{
		{"", "", "Bearer cay_admin"}, {"CAY_TOKEN", "cay_token", "Bearer cay_token"}, {"CAY_GATEWAY_KEY", "cgk_key", "Bearer cgk_key"},
	} {
		if step.name != "" {
			t.Setenv(step.name, step.value)
		}
		if v, err := sent(); err != nil || v != step.want {
			t.Errorf("it sends %q, %v; want %q", v, err, step.want)
		}
	}
	// The admin token is for a gateway on this machine.
	t.Setenv("CAY_TOKEN", "")
	t.Setenv("CAY_GATEWAY_KEY", "")
	t.Setenv("CAY_GATEWAY_URL", "http://gateway.example")
	if _, err := sent(); err == nil || !strings.Contains(err.Error(), "CAY_GATEWAY_KEY") {
		t.Errorf("for another machine the error is %v", err)
	}
	t.Setenv("CAY_GATEWAY_URL", "gateway.example")
	if _, err := sent(); err == nil || !strings.Contains(err.Error(), `"gateway.example"`) {
		t.Errorf("for no address the error is %v", err)
	}
}
