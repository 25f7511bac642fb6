package gvisor_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/cayhq/cay/internal/sandboxd/gvisor"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/network"
	"github.com/cayhq/cay/internal/sandboxd/network/intercept"
	"github.com/cayhq/cay/internal/sandboxd/network/networktest"
	"github.com/cayhq/cay/internal/seedtest"
	"github.com/cayhq/cay/sandbox"
)

// busy is a guest's program that uses its network in all possible ways, and then keeps
// everything open.
const busy = `
import socket, ssl, sys, time
held = []
def say(host, port, tls, text):
    s = socket.create_connection((host, port), 60)
    if tls:
        c = ssl.create_default_context(); c.check_hostname = False; c.verify_mode = ssl.CERT_NONE
        s = c.wrap_socket(s, server_hostname=host)
    s.sendall(text.encode())
    first = s.recv(1)
    held.append(s)
    return first
get = "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n"
assert say("api.example.com", 443, True, get % ("/drip", "api.example.com")), "opened"
assert say("api.example.com", 80, False, get % ("/", "api.example.com")), "plain"
assert say("files.example.com", 443, True, get % ("/", "files.example.com")), "passed on"
for denied in ("10.0.0.1", "93.184.0.66"):
    try:
        s = socket.create_connection((denied, 80), 5); s.sendall((get % ("/", denied)).encode()); held.append(s)
    except OSError: pass
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.sendto(b"x", ("93.184.0.66", 9)); held.append(u)
l = socket.create_server(("0.0.0.0", 8000))
print("ready", flush=True)
held.append(l.accept())
time.sleep(1000)
`

// Row I9 with the network in use: neither the end of a machine nor a change of its policy
// leaves parts of its connections in the daemon, on either side.
func TestLeak_Network(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes")
	}
	cfg := config(t)
	internet := networktest.Start(t)
	ca, err := intercept.OpenCA(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	proxy := intercept.New(intercept.Config{CA: ca, Roots: networktest.Roots(), Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(proxy.Close)
	egress, err := network.NewEgress(network.EgressConfig{Nameservers: internet.Nameservers(), DialContext: internet.DialContext, Proxy: proxy})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(egress.Close)
	dir := t.TempDir()
	r, err := gvisor.New(gvisor.Config{StateDir: dir, Egress: egress, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	policy := sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{
		{Name: "api.example.com", Rules: []sandbox.Rule{{Match: sandbox.Match{Methods: []string{"POST"}}, Deny: true}}},
		{Name: "files.example.com"},
	}}
	live := func(i int) error {
		in, c, err := boot(t, cfg, r, func(s *machine.Spec) { s.Network = policy })
		if err != nil {
			return err
		}
		defer c.CloseIdleConnections()
		in.OnFlow(func(sandbox.Flow) {})
		o, err := c.Exec(t.Context(), sandbox.CommandParams{Argv: []string{"python3", "-c", busy}})
		if err != nil {
			return err
		}
		defer o.Close()
		said := ""
		for !strings.Contains(said, "ready") {
			ev, err := o.Next()
			if err != nil || ev.Exit != nil {
				return fmt.Errorf("the guest said %q, then: %w", said, err)
			}
			said += string(ev.Data)
		}
		conn, err := in.Dial(t.Context(), 8000)
		if err != nil {
			return err
		}
		defer conn.Close()
		if i%2 == 0 {
			if err := in.SetNetwork(sandbox.Network{Mode: sandbox.DenyAll}); err != nil {
				return err
			}
		}
		return in.Destroy(context.Background())
	}
	cycle := func(n int) {
		var all errgroup.Group
		all.SetLimit(4)
		for i := range n {
			all.Go(func() error { return live(i) })
		}
		if err := all.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	cycle(8) // things that are made once
	runtime.GC()
	before := hostState(t, dir)
	rounds := seedtest.Rounds(t, 24)
	cycle(rounds)
	awaitState(t, dir, before, fmt.Sprintf("%d machines", rounds))
}
