package preview

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

func FuzzMatch(f *testing.F) {
	for _, host := range []string{"a.localhost", "a.localhost:1", "a.b.localhost.", "[::1]:1", ".localhost", "A.LOCALHOST.:x", "\x00.localhost"} {
		f.Add(host)
	}
	h := New(Config{Domain: "localhost"})
	f.Fuzz(func(t *testing.T, host string) {
		label, ok := h.Match(host)
		if !ok {
			return
		}
		if label == "" || strings.Contains(label, ".") || !strings.HasPrefix(strings.ToLower(host), label+".localhost") {
			t.Errorf("%q has the label %q", host, label)
		}
	})
}

// A cleaned Cookie header has no cookie with one of cay's names, as parsed by this
// package or by net/http.
func FuzzCleanCookies(f *testing.F) {
	for _, list := range []string{"a=b; cay_preview=x", "__Host-cay_preview=\"x;y\"", "=cay_preview=x", " cay_x", ";;=;cay_", "a=cay_preview; c"} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		left := cleanCookies(list)
		for _, c := range (&http.Request{Header: http.Header{"Cookie": {left}}}).Cookies() {
			if isOurCookie(c.Name + "=") {
				t.Errorf("%q becomes %q, with the cookie %q", list, left, c.Name)
			}
		}
		if cleanCookies(left) != left {
			t.Errorf("%q becomes %q, and that %q", list, left, cleanCookies(left))
		}
	})
}

// A query without its token has no token, by any parser, and is otherwise unchanged.
func FuzzWithoutToken(f *testing.F) {
	for _, q := range []string{"_cay_token=x", "a=1&_cay_token=x&b", "%5fcay_token", "_cay_token", "a=_cay_token=1&&", "%zz=1&%"} {
		f.Add(q)
	}
	f.Fuzz(func(t *testing.T, query string) {
		left := withoutToken(query)
		if values, _ := url.ParseQuery(left); values.Has(TokenParameter) {
			t.Errorf("%q becomes %q", query, left)
		}
		if len(tokens(query)) == 0 && left != query {
			t.Errorf("%q has no token and becomes %q", query, left)
		}
	})
}

func FuzzCleanResponse(f *testing.F) {
	for _, v := range []string{"a=b; Domain=x", "cay_preview=x", "a; domain;DOMAIN = y;", ";", "=cay_"} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, value string) {
		h := http.Header{"Set-Cookie": {value}}
		cleanResponse(h)
		for _, c := range (&http.Response{Header: h}).Cookies() {
			if c.Domain != "" || isOurCookie(c.Name+"=") {
				t.Errorf("%q becomes %q", value, h["Set-Cookie"])
			}
		}
	})
}
