package sandbox

import (
	"context"
	"net"
	"strconv"
	"strings"

	"github.com/cayhq/cay"
)

// Ports returns the declared ports, in the order they were declared.
func (h *Handle) Ports(ctx context.Context) ([]Port, error) {
	s, err := h.Get(ctx)
	if err != nil {
		return nil, err
	}
	return s.Ports, nil
}

// SetPorts declares the ports whose previews are served, and replaces the former
// declarations; ports that stay keep their labels. Errors: invalid.
func (h *Handle) SetPorts(ctx context.Context, ports ...PortParams) ([]Port, error) {
	if ports == nil {
		ports = []PortParams{} // none, which is not the same as no change
	}
	s, err := h.c.Update(ctx, h.ref, UpdateParams{Ports: ports})
	if err != nil {
		return nil, err
	}
	return s.Ports, nil
}

// SetNetwork replaces the egress policy, on live connections too. Errors:
// invalid, sandbox_stopped.
func (h *Handle) SetNetwork(ctx context.Context, n Network) error {
	_, err := h.c.Update(ctx, h.ref, UpdateParams{Network: &n})
	return err
}

// CreateLink makes a link to the preview of a private port; see Client.CreateLink.
func (h *Handle) CreateLink(ctx context.Context, port int, p LinkParams) (*Link, error) {
	return h.c.CreateLink(ctx, h.ref, port, p)
}

// Flows returns one page of the flow log, oldest first; see Client.Flows.
func (h *Handle) Flows(ctx context.Context, p FlowParams) (*Page[Flow], error) {
	return h.c.Flows(ctx, h.ref, p)
}

// WatchFlows reports the records of the flow log as they are made; see Client.WatchFlows.
func (h *Handle) WatchFlows(ctx context.Context, p FlowParams) (FlowWatch, error) {
	return h.c.WatchFlows(ctx, h.ref, p)
}

// DialContext connects to a TCP port in the sandbox, as Client.DialPort does. network is
// "tcp" or "tcp4"; address is "localhost:3000", "127.0.0.1:3000" or ":3000". DialContext
// fits http.Transport.DialContext and other dialler fields.
func (h *Handle) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if network != "tcp" && network != "tcp4" {
		return nil, invalid("network %q is not tcp", network)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "address %q is not host:port: %w", address, err)
	}
	if host = strings.ToLower(host); host != "" && host != "localhost" && host != "127.0.0.1" {
		return nil, invalid("host %q is not the sandbox's own", host).WithHint(`use "localhost:%s"`, port)
	}
	n, err := strconv.Atoi(port)
	if err != nil || n < 1 || n > 65535 {
		return nil, invalid("port %q is not 1 to 65535", port)
	}
	return h.c.DialPort(ctx, h.ref, n)
}
