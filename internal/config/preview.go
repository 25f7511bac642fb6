package config

import (
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/cayhq/cay"
)

// labelMark is the placeholder of the label in preview_url.
const labelMark = "{label}"

// PreviewURL returns the URL of a preview. port is the listener's port, which
// is used unless preview_url is set.
func (c *Config) PreviewURL(label string, port int) string {
	if c.PreviewTemplate != "" {
		return strings.TrimSuffix(strings.ReplaceAll(c.PreviewTemplate, labelMark, label), "/")
	}
	scheme, usual := "http", 80
	if c.TLSCert != "" {
		scheme, usual = "https", 443
	}
	host := label + "." + strings.ToLower(c.PreviewDomain)
	if port != usual {
		host = net.JoinHostPort(host, strconv.Itoa(port))
	}
	return scheme + "://" + host
}

// PreviewSecure reports whether visitors of previews use https.
func (c *Config) PreviewSecure() bool {
	return strings.HasPrefix(c.PreviewURL("x", 0), "https:")
}

func (c *Config) validatePreview() error {
	if !validDomain(c.PreviewDomain) {
		return wrong("preview_domain", c.PreviewDomain, "it must be a domain name such as preview.example.com")
	}
	if c.PreviewTemplate != "" {
		u, err := url.Parse(strings.ReplaceAll(c.PreviewTemplate, labelMark, "label"))
		if err != nil || strings.Count(c.PreviewTemplate, labelMark) != 1 || u.Scheme != "http" && u.Scheme != "https" ||
			!strings.EqualFold(u.Hostname(), "label."+c.PreviewDomain) || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
			return wrong("preview_url", c.PreviewTemplate, "it must be a URL such as https://{label}."+c.PreviewDomain+
				", with the host {label}.<preview_domain>, and without a path")
		}
	}
	if (c.PreviewTLSCert == "") != (c.PreviewTLSKey == "") {
		return cay.Errorf(cay.Invalid, "preview_tls_cert is %q and preview_tls_key is %q; set both or neither", c.PreviewTLSCert, c.PreviewTLSKey)
	}
	if c.PreviewTLSCert != "" && c.TLSCert == "" {
		return wrong("preview_tls_cert", c.PreviewTLSCert, "it takes tls_cert and tls_key as well: both are served at the address in listen")
	}
	// Requests for a preview's name never reach the API.
	for _, h := range c.AllowedHosts {
		if c.isPreview(h) {
			return wrong("allowed_hosts", h, "previews are served there: choose another preview_domain than "+strconv.Quote(c.PreviewDomain))
		}
	}
	if host, _, err := net.SplitHostPort(c.Listen); err == nil && c.isPreview(host) {
		return wrong("listen", c.Listen, "previews are served there: choose another preview_domain than "+strconv.Quote(c.PreviewDomain))
	}
	return nil
}

// isPreview reports whether a host, or all below a pattern like *.example.com,
// is one label below the preview domain.
func (c *Config) isPreview(host string) bool {
	label, ok := strings.CutSuffix(strings.ToLower(host), "."+strings.ToLower(c.PreviewDomain))
	return ok && !strings.Contains(label, ".")
}

// validDomain reports whether a text can be the end of a host name: letters,
// digits and hyphens. The label before it has up to 63 characters.
func validDomain(domain string) bool {
	if _, err := netip.ParseAddr(domain); err == nil || len(domain) > 253-64 || !validHost(domain) {
		return false
	}
	for label := range strings.SplitSeq(domain, ".") {
		if strings.Contains(label, "_") || strings.HasPrefix(label, "-") || strings.HasSuffix(label, "-") {
			return false
		}
	}
	return true
}
