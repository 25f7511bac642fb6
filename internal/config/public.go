package config

import (
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// ListenURL returns the URL of the daemon's own listener, whose port is port.
func (c *Config) ListenURL(port int) string {
	scheme, usual := "http", 80
	if c.TLSCert != "" {
		scheme, usual = "https", 443
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if ip, perr := netip.ParseAddr(host); err != nil || host == "" || perr == nil && ip.IsUnspecified() {
		host = c.ownName()
	}
	if port == usual || port == 0 {
		if strings.Contains(host, ":") {
			host = "[" + host + "]"
		}
		return scheme + "://" + host
	}
	return scheme + "://" + net.JoinHostPort(host, strconv.Itoa(port))
}

// ownName returns a name of a daemon that listens on all addresses.
func (c *Config) ownName() string {
	for _, h := range c.AllowedHosts {
		if !strings.HasPrefix(h, "*.") {
			return h
		}
	}
	return "localhost"
}

// maxPublicURL leaves room for the rest of a token.
const maxPublicURL = 256

func (c *Config) validatePublicURL() error {
	if c.PublicURL == "" {
		return nil
	}
	u, err := url.Parse(c.PublicURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Path != "" || u.RawQuery != "" || u.ForceQuery ||
		u.Fragment != "" || u.User != nil || len(c.PublicURL) > maxPublicURL || strings.HasSuffix(c.PublicURL, "#") {
		return wrong("public_url", c.PublicURL, "it must be a URL such as https://cay.example.com, without a path or a slash at its end")
	}
	if c.isPreview(u.Hostname()) {
		return wrong("public_url", c.PublicURL, "previews are served there: choose another preview_domain than "+strconv.Quote(c.PreviewDomain))
	}
	return nil
}
