package config

import (
	"strings"
	"testing"
)

func TestGatewayAddress(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ listen, gateway, want, wrong string }{
		{"127.0.0.1:7070", "", "127.0.0.1:7071", ""},
		{"127.0.0.1:0", "", "127.0.0.1:0", ""},
		{"[::1]:9000", "", "[::1]:9001", ""},
		{"127.0.0.1:7070", "127.0.0.1:8000", "127.0.0.1:8000", ""},
		{"127.0.0.1:7070", "off", "", ""},
		{"127.0.0.1:65535", "", "127.0.0.1:65536", "its port must be"},
		{"127.0.0.1:7070", "127.0.0.1:7070", "127.0.0.1:7070", "the API listens there"},
		{"127.0.0.1:7070", "0.0.0.0:7071", "0.0.0.0:7071", "keys would cross the network readable"},
		{"127.0.0.1:7070", "7071", "7071", "it must be host:port"},
	} {
		c := Default()
		c.Listen, c.GatewayListen = tc.listen, tc.gateway
		if got := c.GatewayAddress(); got != tc.want {
			t.Errorf("listen %s, gateway_listen %q: %s, want %s", tc.listen, tc.gateway, got, tc.want)
		}
		err := c.Validate()
		if tc.wrong == "" && err != nil || tc.wrong != "" && (err == nil || !strings.Contains(err.Error(), tc.wrong)) {
			t.Errorf("listen %s, gateway_listen %q: %v, want %q", tc.listen, tc.gateway, err, tc.wrong)
		}
	}
}
