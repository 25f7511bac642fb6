package network

import (
	"errors"
	"testing"

	"github.com/cayhq/cay/internal/sandboxd/network/intercept"
	"github.com/cayhq/cay/internal/sandboxd/network/networktest"
	"github.com/cayhq/cay/sandbox"
)

// A request that an older policy decided, and that dials under today's policy, gets no
// connection to a host or an address that today's policy denies.
func TestSetPolicy_lateDials(t *testing.T) {
	t.Parallel()
	w := openWorld(t, custom("api.example.com", "misc.example.com"))
	setPolicy(t, w.link, custom("misc.example.com"))
	for _, host := range []string{"api.example.com", networktest.API.String()} {
		conn, err := w.link.servers.dial(t.Context(), host, 443)
		if err == nil {
			conn.Close()
		}
		var refused *intercept.Refused
		if !errors.As(err, &refused) {
			t.Errorf("%s: %v, want it refused", host, err)
		}
	}
	conn, err := w.link.servers.dial(t.Context(), "misc.example.com", 8443)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

// A policy that allows datagrams only for DNS ends the datagram flows under way, also to
// an address that it allows for TCP.
func TestSetPolicy_datagrams(t *testing.T) {
	t.Parallel()
	w := openWorld(t, allowAll())
	conn := w.udp(t, at(networktest.Misc, 7))
	echo(t, conn, "hello")
	setPolicy(t, w.link, sandbox.Network{Mode: sandbox.Custom, AllowCIDRs: []string{networktest.Misc.String()}})
	w.awaitDenied(t, "udp")
	if n := w.link.live(); n != 0 {
		t.Errorf("%d flows are live", n)
	}
}
