package conformance

import (
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/testenv"
)

// Another site, or another name of this machine, makes requests through the browser of a
// logged-in person: none succeeds, by any method, on any route that the API describes.
func TestInspector_OtherSites(t *testing.T) {
	env := testenv.Start(t)
	login, err := http.Post(env.URL+"/ui/login", "application/json", strings.NewReader(`{"token":"`+env.Token+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer login.Body.Close()
	var session struct{ Key string }
	if err := json.NewDecoder(login.Body).Decode(&session); err != nil || login.StatusCode != 200 || len(login.Cookies()) != 1 {
		t.Fatalf("%s: %v", login.Status, err)
	}
	cookie := login.Cookies()[0]
	ask := func(method, path string, headers ...string) (*http.Response, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, env.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.AddCookie(cookie)
		for _, h := range headers {
			name, value, _ := strings.Cut(h, ": ")
			if req.Header.Set(name, value); name == "Host" {
				req.Host = value
			}
		}
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, string(text)
	}
	key := "Cay-Session-Key: " + session.Key
	if resp, text := ask("GET", "/v1/whoami", key); resp.StatusCode != 200 {
		t.Fatalf("the login itself: %s %s", resp.Status, text)
	}

	_, text := ask("GET", "/v1/openapi.json")
	var api struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal([]byte(text), &api); err != nil {
		t.Fatal(err)
	}
	parameter := regexp.MustCompile(`\{[^}]*\}`)
	asked := 0
	for path, item := range api.Paths {
		for method, raw := range item {
			var operation struct {
				Security *[]any `json:"security"`
			}
			method = strings.ToUpper(method)
			switch method {
			case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE":
			default:
				continue
			}
			if err := json.Unmarshal(raw, &operation); err != nil {
				t.Fatal(err)
			}
			public := operation.Security != nil && len(*operation.Security) == 0
			at := parameter.ReplaceAllString(path, "x1")
			for _, tc := range []struct {
				name    string
				headers []string
				status  int
				reads   bool // also of what anybody may read
			}{
				{"the cookie alone", nil, 401, false},
				{"the cookie alone, by a form of another site", []string{"Sec-Fetch-Site: cross-site", "Origin: https://evil.example", "Content-Type: text/plain"}, 0, false},
				{"another site", []string{key, "Sec-Fetch-Site: cross-site"}, 403, false},
				{"another port of this machine", []string{key, "Sec-Fetch-Site: same-site", "Origin: http://127.0.0.1:1"}, 403, false},
				{"another origin, of an old browser", []string{key, "Origin: https://evil.example"}, 403, false},
				{"no origin", []string{key, "Origin: null"}, 403, false},
				{"another name", []string{key, "Host: evil.example"}, 403, true},
				{"a name that begins as ours", []string{key, "Host: localhost.evil.example"}, 403, true},
			} {
				if public && !tc.reads {
					continue
				}
				asked++
				resp, text := ask(method, at, tc.headers...)
				refused := resp.StatusCode == tc.status || tc.status == 0 && (resp.StatusCode == 401 || resp.StatusCode == 403)
				if !refused {
					t.Errorf("%s %s, %s: %s %.200s", method, path, tc.name, resp.Status, text)
				}
				if h := resp.Header; h.Get("X-Content-Type-Options") != "nosniff" || !strings.Contains(h.Get("Content-Security-Policy"), "sandbox") || h.Get("Access-Control-Allow-Origin") != "" {
					t.Errorf("%s %s, %s: its headers are %v", method, path, tc.name, h)
				}
			}
		}
	}
	if asked < 500 {
		t.Errorf("%d requests: the API does not describe its routes", asked)
	}
	if resp, text := ask("GET", "/v1/whoami", key); resp.StatusCode != 200 {
		t.Errorf("the login after all of it: %s %s", resp.Status, text)
	}
}
