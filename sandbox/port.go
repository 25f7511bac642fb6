package sandbox

import "time"

// PortAccess says who may open a port's preview.
type PortAccess string

const (
	Public  PortAccess = "public"  // whoever has its URL
	Private PortAccess = "private" // who has a link made by CreateLink, or a cookie from one
)

// PortParams declares a port that the guest serves HTTP on.
type PortParams struct {
	Port   int        `json:"port"`             // 1 to 65535, but not the guest agent's
	Access PortAccess `json:"access,omitempty"` // empty means Public
}

// Port is a declared port and where it can be seen.
type Port struct {
	Port   int        `json:"port"`
	Access PortAccess `json:"access"`
	Label  string     `json:"label"` // a DNS label nobody can guess, never used again
	URL    string     `json:"url"`   // http://<label>.<preview domain>
}

// LinkParams describes a link to a private port.
type LinkParams struct {
	// TTL is how long the link opens the preview: 1 s to 30 days. 0 means 1 hour.
	// A browser that has used it stays admitted as long.
	TTL Duration `json:"ttl_ms,omitempty"`
}

// Link opens a private port's preview for whoever has it.
type Link struct {
	URL       string    `json:"url"`   // the port's, with the token in its query
	Token     string    `json:"token"` // or sent as the header Cay-Preview-Token
	ExpiresAt time.Time `json:"expires_at"`
}
