package config

import (
	"net"
	"strconv"

	"github.com/cayhq/cay"
)

// GatewayOff is the GatewayListen of a daemon without the gateway's own origin.
const GatewayOff = "off"

// GatewayAddress returns the address at which the AI gateway listens, "" if it
// is off. c must be valid.
func (c *Config) GatewayAddress() string {
	switch c.GatewayListen {
	case "":
	case GatewayOff:
		return ""
	default:
		return c.GatewayListen
	}
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return ""
	}
	n, err := net.LookupPort("tcp", port)
	if err != nil {
		return ""
	}
	if n > 0 {
		n++
	}
	return net.JoinHostPort(host, strconv.Itoa(n))
}

func (c *Config) validateGateway() error {
	if c.GatewayMaxBody > 100*MiB {
		return wrong("gateway_max_body", c.GatewayMaxBody.String(), "it must be at most 100MiB")
	}
	addr := c.GatewayAddress()
	if addr == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return wrong("gateway_listen", c.GatewayListen, "it must be host:port, as in 127.0.0.1:7071, or off")
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return wrong("gateway_listen", addr, "its port must be 0 to 65535")
	}
	if addr == c.Listen && port != "0" {
		return wrong("gateway_listen", addr, "the API listens there")
	}
	if c.TLSCert == "" && !c.Insecure && !IsLoopback(host) {
		return cay.Errorf(cay.Invalid, "gateway_listen is %q: other hosts could reach it, and keys would cross the network readable", addr).
			WithHint("set tls_cert and tls_key, or insecure if a proxy in front ends TLS")
	}
	return nil
}
