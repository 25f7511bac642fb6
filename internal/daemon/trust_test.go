package daemon

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/network/policy"
	"github.com/cayhq/cay/sandbox"
)

// Guests get our authority under exactly those policies that open TLS.
func TestAuthorities(t *testing.T) {
	t.Parallel()
	a := newAuthorities([]byte("extra"), []byte("ours"), slog.New(slog.DiscardHandler))
	plain := []sandbox.Domain{{Name: "example.com"}}
	ruled := []sandbox.Domain{{Name: "example.com"}, {Name: "example.org", Rules: []sandbox.Rule{{SetHeaders: map[string]string{"x-key": "secret"}}}}}
	for name, tt := range map[string]struct {
		n    sandbox.Network
		want string
	}{
		"nothing":          {sandbox.Network{}, "extra"},
		"allow all":        {sandbox.Network{Mode: sandbox.AllowAll}, "extra"},
		"deny all":         {sandbox.Network{Mode: sandbox.DenyAll}, "extra"},
		"names":            {sandbox.Network{Mode: sandbox.Custom, Allow: plain}, "extra"},
		"rules":            {sandbox.Network{Mode: sandbox.Custom, Allow: ruled}, "extraours"},
		"no mode":          {sandbox.Network{Allow: ruled}, "extraours"},
		"strict":           {sandbox.Network{Mode: sandbox.Custom, Allow: plain, Strict: true}, "extraours"},
		"strict, no names": {sandbox.Network{Mode: sandbox.Custom, AllowCIDRs: []string{"203.0.113.0/24"}, Strict: true}, "extra"},
	} {
		if got := a.Certificates(tt.n); string(got) != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
		if got := a.Certificates(tt.n.Redacted()); string(got) != tt.want {
			t.Errorf("%s, redacted: got %q, want %q", name, got, tt.want)
		}
		p, err := policy.Compile(tt.n.WithDefaults())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if opened := tt.want != "extra"; p.Intercepts() != opened {
			t.Errorf("%s: the policy opens TLS: %t", name, p.Intercepts())
		}
	}
}

func TestAuthorities_many(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	many := bytes.Repeat([]byte("x"), guest.MaxConfigCertificates+1)
	if got := newAuthorities(many, nil, slog.New(slog.NewTextHandler(&log, nil))).Certificates(sandbox.Network{}); !bytes.Equal(got, many) {
		t.Errorf("%d bytes, want all %d", len(got), len(many))
	}
	if !strings.Contains(log.String(), "guest_trust") {
		t.Errorf("the log says %q", log.String())
	}
}
