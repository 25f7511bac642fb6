package sandbox

import (
	"io"
	"time"
)

// NetworkMode says which connections to the outside a policy allows.
type NetworkMode string

const (
	AllowAll NetworkMode = "allow-all" // everything but the always-blocked ranges
	DenyAll  NetworkMode = "deny-all"  // nothing, not even names
	Custom   NetworkMode = "custom"    // only what Network lists
)

// Network is a sandbox's egress policy. Whatever the mode, cloud metadata
// services, link-local and loopback addresses, private ranges and the daemon
// itself are never reachable, unless the operator allows their range.
//
// In the mode Custom a connection leaves if its name is in Allow or its address
// in AllowCIDRs, and its address is not in DenyCIDRs. The name is the TLS server
// name or the HTTP host that the guest asks for. The daemon resolves the name
// itself, so the name alone decides the destination of a connection. Without a
// name only an address range can allow a connection. Names that are not allowed
// are not resolved either, unless AllowCIDRs is not empty.
type Network struct {
	// Mode is Custom if empty while a list is not.
	Mode NetworkMode `json:"mode"`
	// Allow lists the names that a guest may reach: at most 256. If several
	// entries match a name, the most specific one decides: an exact one, then
	// the longest.
	Allow []Domain `json:"allow,omitempty"`
	// AllowCIDRs and DenyCIDRs are address ranges such as 203.0.113.0/24, or
	// single addresses; at most 256 each. DenyCIDRs win over Allow and
	// AllowCIDRs. A range is written with its first address.
	AllowCIDRs []string `json:"allow_cidrs,omitempty"`
	DenyCIDRs  []string `json:"deny_cidrs,omitempty"`
	// Strict opens the TLS of every allowed name, as rules do, so that a request
	// for another host behind the same server (domain fronting) is refused.
	Strict bool `json:"strict,omitempty"`
	// Handled lists names whose connections are offered to the sandbox's egress
	// handler before the policy decides, in every mode; see Client.ServeOutbound.
	// Without a handler these connections are refused. A name is
	// "api.example.com", with "*" for any characters, dots too; "*" alone covers
	// every TCP connection, also those without a name. Case does not matter. At
	// most 256. A handled name that has no address, or that Mode keeps from being
	// resolved, resolves to a placeholder.
	Handled []string `json:"handled,omitempty"`
	// Limits bound the traffic, in every mode.
	Limits NetworkLimits `json:"limits,omitzero"`
}

// Domain is a name, or a set of names, that a guest may reach.
type Domain struct {
	// Name is "api.example.com"; "*.example.com" for all names below
	// example.com, but not itself; "www.*.com" for any one label in the middle;
	// "*" for every name. Case does not matter. Names outside ASCII are given in
	// the form that begins with "xn--"; addresses are not names.
	Name string `json:"name"`
	// Ports are the ports at which the name may be reached: at most 64. Empty
	// means all ports but those of mail, which have to be listed.
	Ports []uint16 `json:"ports,omitempty"`
	// Rules are tried in order for each HTTP request, and the first that matches
	// decides; without a match the request passes unchanged. The daemon opens
	// the TLS of names with rules; see Rule. At most 64.
	Rules []Rule `json:"rules,omitempty"`
}

// Rule is an action for HTTP requests to a domain. At most one of SetHeaders,
// ForwardURL, Respond and Deny is set; with none the request passes.
//
// For a name with rules the daemon ends TLS with a certificate of its own
// authority, which the guest trusts, and opens another connection to the real
// server, whose certificate it verifies.
type Rule struct {
	Match Match `json:"match,omitzero"` // the zero value matches every request
	// SetHeaders are request headers to set, replacing the guest's. With
	// SetHeaders a guest can use a credential that it does not have. Values are
	// write-only: the API shows Redacted in their place, and refuses Redacted as
	// a value. At most 64, of 8 KiB each; not Host, nor the headers of the
	// connection.
	SetHeaders map[string]string `json:"set_headers,omitempty"`
	// Scrub puts Redacted in place of the values of SetHeaders wherever they
	// occur in the response, against servers that echo request headers. The
	// daemon requests the response uncompressed. The values must have at least 8
	// bytes.
	Scrub bool `json:"scrub,omitempty"`
	// ForwardURL is an http or https URL that receives the request instead. The
	// original path is appended, and the headers
	// vercel-forwarded-{host,scheme,port,path} are added. The URL has no user,
	// query or fragment.
	ForwardURL string `json:"forward_url,omitempty"`
	// Respond answers the request without sending it anywhere.
	Respond *Response `json:"respond,omitempty"`
	// Deny refuses the request with 403.
	Deny bool `json:"deny,omitempty"`
}

// Redacted replaces the value of a header in the API.
const Redacted = "[redacted]"

// Match selects requests. All given conditions must match; at most 32 of each
// kind.
//
// Servers differ in how they read //, /../, %2F and the like. A request is
// refused if such readings decide whether a rule matches it; see Path.
type Match struct {
	Methods []string `json:"methods,omitempty"` // any of these, in capitals
	// Path of the URL as sent, without the query. Exact and Prefix begin with a
	// slash, are in normal form, and escape only what must be, in capitals. For
	// the prefix /admin/ a request for //admin/x or /admin%2Fx is refused, but one
	// for /public//x passes, as no server finds /admin/ in it.
	Path    *TextMatch   `json:"path,omitempty"`
	Query   []FieldMatch `json:"query,omitempty"`   // each by some parameter
	Headers []FieldMatch `json:"headers,omitempty"` // each by some header
}

// FieldMatch matches a query parameter or a header by name, value or both. The
// case of a header's name does not matter.
type FieldMatch struct {
	Key   *TextMatch `json:"key,omitempty"`
	Value *TextMatch `json:"value,omitempty"`
}

// TextMatch compares a text. Exactly one field is set.
type TextMatch struct {
	Exact  *string `json:"exact,omitempty"`
	Prefix *string `json:"prefix,omitempty"`
	// Regex is in the syntax of RE2 and is found anywhere in the text. At most
	// 1024 characters, and 2000 instructions when compiled, like .{1000}; all
	// regular expressions of a policy together have at most 20000.
	Regex *string `json:"regex,omitempty"`
}

// Response is an answer given by the daemon.
type Response struct {
	Status  int               `json:"status"`            // 200 to 599
	Headers map[string]string `json:"headers,omitempty"` // not connection, content-length, transfer-encoding
	Body    string            `json:"body,omitempty"`    // at most 64 KiB; none for 204, 205, 304
}

// NetworkLimits bound a sandbox's traffic with the outside. 0 means the
// operator's limit, which is also the maximum.
type NetworkLimits struct {
	Connections          int   `json:"connections,omitempty"`            // open at one time
	ConnectionsPerSecond int   `json:"connections_per_second,omitempty"` // opened, after a burst of as many
	BytesPerSecond       int64 `json:"bytes_per_second,omitempty"`       // in each direction
	// TotalBytes bounds the bytes in both directions together during the
	// sandbox's life. Beyond it all connections are cut, and no new ones are
	// opened.
	TotalBytes int64 `json:"total_bytes,omitempty"`
}

// Verdict is the decision about a flow.
type Verdict string

const (
	Allowed Verdict = "allowed" // it opened
	Denied  Verdict = "denied"  // by the policy, a limit, or because it is always blocked
	Broken  Verdict = "failed"  // allowed, but the destination did not answer, or not as it must
)

// Flow is a record of a sandbox's flow log: a connection to the outside, an HTTP
// request on one that the daemon reads, or a DNS query that was refused. An
// allowed connection has two records of the same Seq: the first is made when the
// connection opens, and the second replaces it when the connection has closed.
type Flow struct {
	Seq  int64     `json:"seq"`  // grows with each flow of the sandbox
	Time time.Time `json:"time"` // when it began
	// Protocol is tcp, udp, dns, tls (passed through unread), http, or https
	// (opened by the daemon).
	Protocol string `json:"protocol"`
	Name     string `json:"name,omitempty"`    // the name asked for
	Address  string `json:"address,omitempty"` // ip:port that was dialled, else the one the guest dialled
	Port     uint16 `json:"port,omitempty"`
	Method   string `json:"method,omitempty"` // of an HTTP request
	Path     string `json:"path,omitempty"`   // of an HTTP request, without its query; at most 512 bytes
	Status   int    `json:"status,omitempty"` // of the HTTP response the guest got

	Verdict Verdict `json:"verdict"`
	Rule    string  `json:"rule"`             // the rule that decided, as `allow "*.example.com"`
	Reason  string  `json:"reason,omitempty"` // a sentence, for what is not allowed

	Open         bool     `json:"open,omitempty"`
	Duration     Duration `json:"duration_ms"`   // so far
	IngressBytes int64    `json:"ingress_bytes"` // to the guest
	EgressBytes  int64    `json:"egress_bytes"`
}

// FlowParams selects records of a flow log, oldest first.
type FlowParams struct {
	Verdict Verdict // empty: all
	After   int64   // Seq of the last record seen
	Limit   int     // 1 to 1000; 0 means 200. Not for WatchFlows.
}

// FlowWatch reports records of a sandbox's flow log as they are made: first the
// existing records after FlowParams.After, oldest first, then each record that
// is new or that replaces an earlier one.
type FlowWatch interface {
	// Next blocks for the next record. io.EOF when the sandbox has ended and all
	// records were read; quota_exceeded if records came faster than they were
	// read: go on with WatchFlows after the last one.
	Next() (Flow, error)
	io.Closer
}
