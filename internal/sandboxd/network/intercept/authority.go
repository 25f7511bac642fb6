package intercept

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/cayhq/cay/internal/sandboxd/network/policy"
)

// authority is the host and port that a request is for.
type authority struct {
	name string     // as policy.CleanName makes it; empty for an address
	ip   netip.Addr // valid for an address
	port uint16     // 0 if the request does not say
}

// host returns the name or the address.
func (a authority) host() string {
	switch {
	case a.name != "":
		return a.name
	case a.ip.Is6():
		return "[" + a.ip.String() + "]"
	}
	return a.ip.String()
}

// String returns the authority in the form of requests.
func (a authority) String() string {
	if a.port == 0 {
		return a.host()
	}
	return a.host() + ":" + strconv.Itoa(int(a.port))
}

// parseAuthority reads a name or an address, and perhaps a port.
func parseAuthority(text string) (authority, error) {
	if text == "" {
		return authority{}, errors.New("it does not say for which host it is")
	}
	host, portText, hasPort := text, "", false
	if end := strings.IndexByte(text, ']'); text[0] == '[' && end > 0 {
		host = text[:end+1]
		portText, hasPort = strings.CutPrefix(text[end+1:], ":")
		if !hasPort && portText != "" {
			return authority{}, fmt.Errorf("%.253q is not a host", text)
		}
	} else {
		host, portText, hasPort = strings.Cut(text, ":")
	}
	var a authority
	if hasPort {
		port, err := strconv.ParseUint(portText, 10, 16)
		if err != nil || port == 0 || len(portText) > 5 {
			return authority{}, fmt.Errorf("%.253q has no valid port", text)
		}
		a.port = uint16(port)
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		ip, err := netip.ParseAddr(strings.TrimSuffix(inner, "]"))
		if err != nil || !ip.Is6() || ip.Zone() != "" {
			return authority{}, fmt.Errorf("%.253q is not an IPv6 address", host)
		}
		a.ip = ip
		return a, nil
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		a.ip = ip
		return a, nil
	}
	var err error
	a.name, err = policy.CleanName(host)
	return a, err
}

// requestAuthority returns the host that r is for. All fields of r that name a host must
// agree.
func requestAuthority(r *http.Request) (authority, error) {
	a, err := parseAuthority(r.Host)
	if err != nil {
		return authority{}, err
	}
	// Only HTTP/2 leaves the header, if there was a pseudo-header too.
	for _, host := range r.Header["Host"] {
		if b, err := parseAuthority(host); err != nil || a != b {
			return authority{}, fmt.Errorf("it is for %.253q by its :authority, and for %.253q by its Host header", r.Host, host)
		}
	}
	if r.URL.Host != "" {
		if b, err := parseAuthority(r.URL.Host); err != nil || a != b {
			return authority{}, fmt.Errorf("it is for %.253q by its target, and for %.253q by its Host header", r.URL.Host, r.Host)
		}
	}
	return a, nil
}
