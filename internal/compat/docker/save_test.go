package docker

import (
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestSave(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	for path, want := range map[string]string{
		"/images/app:1/get": "app:1",
		"/v1.47/images/registry.example.com/team/app/get": "registry.example.com/team/app",
		"/images/get?names=app:1&names=b":                 "app:1 b",
		"/images/" + picture("x").Digest[7:19] + "/get":   picture("x").Digest[7:19], // the store of the test knows all names
	} {
		if a := b.do("GET", path, nil).want(200); string(a.body) != want || a.header.Get("Content-Type") != "application/x-tar" {
			t.Errorf("%s: %s %q, want %q", path, a.header.Get("Content-Type"), a.body, want)
		}
	}
	b.do("GET", "/images/get", nil).want(400)
	b.do("GET", "/images/missing/get", nil).want(404)
	b.do("GET", "/images/cloudflare/proxy-everything:1/get", nil).want(400)
	b.do("GET", "/images/broken:1/get", nil).want(507)
}

func TestPush(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	push := func(path, auth string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if auth != "" {
			r.Header.Set("X-Registry-Auth", auth)
		}
		resp, err := b.http.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	none, ok := `"aux":{"Digest":"{Username: Password: IdentityToken: RegistryToken:}","Size":7,"Tag":`, base64.URLEncoding.EncodeToString
	for _, tt := range []struct {
		path, auth string
		status     int
		want       string
	}{
		{"/images/alpine/push?tag=3.22", "", 200, none + `"3.22"`},
		{"/images/alpine:3.22/push", ok([]byte("{}")), 200, none + `"3.22"`},
		{"/images/alpine/push", "", 200, none + `"3.22"`}, // all tags of it
		{"/images/alpine/push?tag=1", ok([]byte(`{"username":"me","password":"a?>","serveraddress":"x"}`)), 200, "{Username:me Password:a?\\u003e "},
		{"/images/alpine/push?tag=1", base64.StdEncoding.EncodeToString([]byte(`{"username":"me","password":"a?>"}`)), 200, "{Username:me Password:a?\\u003e "},
		{"/images/alpine/push?tag=1", ok([]byte(`{"auth":"bWU6c2VjcmV0"}`)), 200, "{Username:me Password:secret "},
		{"/images/alpine/push?tag=1", ok([]byte(`{"username":"me","identitytoken":"t"}`)), 200, "{Username: Password: IdentityToken:t "},
		{"/images/alpine/push?tag=1", ok([]byte(`{"registrytoken":"t"}`)), 200, "RegistryToken:t}"},
		{"/images/alpine/push?tag=1", "%%", 400, "X-Registry-Auth"},
		{"/images/alpine/push?tag=1", ok([]byte("no JSON")), 400, "X-Registry-Auth"},
		{"/images/other/push?tag=1", "", 403, "does not take other:1"},
		{"/images/other/push", "", 404, "An image does not exist locally with the tag: other"},
		{"/images/missing/push?tag=1", "", 404, "No such image"},
	} {
		if status, body := push(tt.path, tt.auth); status != tt.status || !strings.Contains(body, tt.want) {
			t.Errorf("%s with %q: %d %s, want %d %s", tt.path, tt.auth, status, body, tt.status, tt.want)
		}
	}
}
