package config_test

import (
	"testing"

	"github.com/cayhq/cay/internal/config"
)

func TestListenURL(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		listen, cert string
		hosts        []string
		port         int
		want         string
	}{
		{"127.0.0.1:0", "", nil, 4711, "http://127.0.0.1:4711"},
		{"127.0.0.1:80", "", nil, 80, "http://127.0.0.1"},
		{"127.0.0.1:443", "cert.pem", nil, 443, "https://127.0.0.1"},
		{"[::1]:7070", "", nil, 7070, "http://[::1]:7070"},
		{"[::1]:80", "", nil, 80, "http://[::1]"},
		{"0.0.0.0:7070", "cert.pem", []string{"*.example.com", "cay.example.com"}, 7070, "https://cay.example.com:7070"},
		{"[::]:7070", "", nil, 7070, "http://localhost:7070"},
		{":7070", "", nil, 7070, "http://localhost:7070"},
		{"127.0.0.1:7070", "", nil, 0, "http://127.0.0.1"}, // on a socket
	} {
		c := config.Config{Listen: tc.listen, TLSCert: tc.cert, AllowedHosts: tc.hosts}
		if got := c.ListenURL(tc.port); got != tc.want {
			t.Errorf("listening on %s: %s, want %s", tc.listen, got, tc.want)
		}
	}
}
