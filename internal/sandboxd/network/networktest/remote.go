package networktest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
)

// remote is the description of an Internet that another process needs.
type remote struct {
	Nameservers []string          `json:"nameservers"`
	Routes      map[string]string `json:"routes"` // "tcp 93.184.0.10:80" to the address that listens for it
}

// Routes is n for Remote, as text.
func (n *Internet) Routes() string {
	r := remote{Nameservers: n.Nameservers(), Routes: map[string]string{}}
	n.mu.Lock()
	defer n.mu.Unlock()
	for from, to := range n.routes {
		r.Routes[from.network+" "+from.addr.String()] = to
	}
	b, err := json.Marshal(r)
	if err != nil {
		panic(err) // of strings
	}
	return string(b)
}

// Remote makes an Internet of another process reachable in this process. The Internet
// records lookups and requests, but not dials made through Remote.
func Remote(routes string) (dial func(ctx context.Context, network, address string) (net.Conn, error), nameservers []string, err error) {
	var r remote
	if err := json.Unmarshal([]byte(routes), &r); err != nil {
		return nil, nil, fmt.Errorf("read the routes: %w", err)
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		dst, err := netip.ParseAddrPort(address)
		if err != nil {
			return nil, err
		}
		to, ok := r.Routes[network[:min(3, len(network))]+" "+dst.String()]
		if !ok || !public(dst.Addr()) {
			return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
		}
		return new(net.Dialer).DialContext(ctx, network, to)
	}, r.Nameservers, nil
}
