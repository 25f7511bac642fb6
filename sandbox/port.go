package sandbox

import (
	"fmt"
	"time"
)

// PortAccess says who may open a port's preview.
type PortAccess string

const (
	Public  PortAccess = "public"  // whoever has its URL
	Private PortAccess = "private" // needs a link made by CreateLink, or a cookie from a link
)

// PortParams declares a port that the guest serves HTTP on.
type PortParams struct {
	Port   int        `json:"port"`             // 1 to 65535, but not the guest agent's
	Access PortAccess `json:"access,omitempty"` // empty means Public
}

// Port is a declared port with its URL.
type Port struct {
	Port   int        `json:"port"`
	Access PortAccess `json:"access"`
	Label  string     `json:"label"` // a DNS label nobody can guess, never used again
	URL    string     `json:"url"`   // http://<label>.<preview domain>
}

// LinkParams describes a link to a private port.
type LinkParams struct {
	// TTL is how long the link opens the preview: 1 s to 30 days. 0 means 1 hour.
	// A browser that has used the link is admitted for the same time.
	TTL Duration `json:"ttl_ms,omitempty"`
}

// Link opens a private port's preview to everyone who has the link.
type Link struct {
	URL       string    `json:"url"`   // the port's, with the token in its query
	Token     string    `json:"token"` // or sent as the header Cay-Preview-Token
	ExpiresAt time.Time `json:"expires_at"`
}

// Bounds of ports and of links to them.
const (
	maxPorts   = 64
	maxLinkTTL = Duration(30 * 24 * time.Hour)
)

// Validate returns an invalid error that names the first field with a bad value.
// The daemon alone knows the port of the guest agent, and refuses it.
func (p PortParams) Validate() error { return p.check("") }

// check is Validate with a prefix for the fields' names, such as "ports[2].".
func (p PortParams) check(where string) error {
	if p.Port < 1 || p.Port > 65535 {
		return invalid("%sport %d is not 1 to 65535", where, p.Port)
	}
	switch p.Access {
	case "", Public, Private:
		return nil
	}
	return invalid("%saccess %q is not one of %s, %s", where, p.Access, Public, Private)
}

// WithDefaults returns p with an empty access filled in.
func (p PortParams) WithDefaults() PortParams {
	if p.Access == "" {
		p.Access = Public
	}
	return p
}

func checkPorts(ports []PortParams) error {
	if len(ports) > maxPorts {
		return invalid("there are %d ports, more than %d", len(ports), maxPorts)
	}
	seen := map[int]int{}
	for i, p := range ports {
		if err := p.check(fmt.Sprintf("ports[%d].", i)); err != nil {
			return err
		}
		if first, ok := seen[p.Port]; ok {
			return invalid("ports[%d].port %d is that of ports[%d], too", i, p.Port, first)
		}
		seen[p.Port] = i
	}
	return nil
}

// Validate returns an invalid error that names the first field with a bad value.
func (p LinkParams) Validate() error {
	if p.TTL != 0 && (p.TTL < Duration(time.Second) || p.TTL > maxLinkTTL) {
		return invalid("ttl %v is not 1s to %v", p.TTL, maxLinkTTL).WithHint("0 means 1 hour")
	}
	return nil
}

// WithDefaults returns p with a zero TTL filled in.
func (p LinkParams) WithDefaults() LinkParams {
	if p.TTL == 0 {
		p.TTL = Duration(time.Hour)
	}
	return p
}
