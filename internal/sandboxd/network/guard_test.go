package network

import (
	"net/netip"
	"testing"

	"github.com/cayhq/cay"
)

func TestGuard(t *testing.T) {
	guard := Guard([]netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")})
	for address, want := range map[string]cay.Code{
		"8.8.8.8:443":                "",
		"[2606:4700:4700::1111]:443": "",
		"10.1.2.3:5000":              "",
		"10.2.0.1:5000":              cay.PermissionDenied,
		"127.0.0.1:5432":             cay.PermissionDenied,
		"[::ffff:127.0.0.1]:80":      cay.PermissionDenied,
		"169.254.169.254:80":         cay.PermissionDenied,
		"[::1]:80":                   cay.PermissionDenied,
		"/run/docker.sock":           cay.PermissionDenied,
	} {
		if err := guard("tcp", address, nil); cay.CodeOf(err) != want {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
	}
}
