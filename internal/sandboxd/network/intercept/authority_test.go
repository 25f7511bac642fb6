package intercept

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/cayhq/cay/internal/sandboxd/network/policy"
)

func TestParseAuthority(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"api.example.com":        "api.example.com",
		"API.example.COM.":       "api.example.com",
		"api.example.com:8443":   "api.example.com:8443",
		"a_b.example.com":        "a_b.example.com",
		"192.0.2.1":              "192.0.2.1",
		"192.0.2.1:80":           "192.0.2.1:80",
		"[2001:db8::1]":          "[2001:db8::1]",
		"[2001:db8::1]:443":      "[2001:db8::1]:443",
		"":                       "",
		":80":                    "",
		"api.example.com:":       "",
		"api.example.com:0":      "",
		"api.example.com:65536":  "",
		"api.example.com:000080": "",
		"api.example.com:+80":    "",
		"api.example.com:80:80":  "",
		"u@api.example.com":      "",
		"api.example.com/x":      "",
		"api.example.com#":       "",
		"api.example.com%00":     "",
		"api.example.com\x00":    "",
		"api .example.com":       "",
		"2001:db8::1":            "",
		"[2001:db8::1":           "",
		"[2001:db8::1]x":         "",
		"[fe80::1%25eth0]":       "",
		"[192.0.2.1]":            "",
		"[]":                     "",
		"127.1":                  "",
		"0x7f000001":             "",
		"exämple.com":            "",
	} {
		a, err := parseAuthority(text)
		if (err != nil) != (want == "") || err == nil && a.String() != want {
			t.Errorf("%q: %v, %v, want %q", text, a, err, want)
		}
	}
}

// Every request has either one host, in a form that parses to itself, or an error.
func FuzzRequestAuthority(f *testing.F) {
	for _, s := range []string{"api.example.com", "API.example.com.:443", "[::1]:80", "127.1", "a@b", "[::ffff:1.2.3.4]", "[", "]:", "x:"} {
		f.Add(s, "", "")
		f.Add(s, s, s)
		f.Add(s, "evil.example.net", "")
		f.Add(s, "", "evil.example.net")
	}
	f.Fuzz(func(t *testing.T, pseudo, header, target string) {
		r := &http.Request{Host: pseudo, Header: http.Header{}, URL: &url.URL{Host: target}}
		if header != "" {
			r.Header["Host"] = []string{header}
		}
		a, err := requestAuthority(r)
		if err != nil {
			return
		}
		for _, text := range []string{a.String(), pseudo, header, target} {
			if b, err := parseAuthority(text); text != "" && (err != nil || a != b) {
				t.Fatalf("%q, %q and %q are %v, but %q is %v, %v", pseudo, header, target, a, text, b, err)
			}
		}
		if a.name != "" {
			if clean, err := policy.CleanName(a.name); err != nil || clean != a.name || a.ip.IsValid() {
				t.Fatalf("%q is the name %q, %v", pseudo, a.name, err)
			}
		} else if !a.ip.IsValid() || a.ip.Zone() != "" {
			t.Fatalf("%q is nothing", pseudo)
		}
	})
}
