// Package policy decides what a sandbox's network policy allows. It compiles a
// sandbox.Network once and answers from memory ever after: it reads no packet, resolves
// no name and dials nothing.
//
// It knows the user's policy alone. Package network blocks, in addition to any policy,
// private ranges, the daemon's own addresses and the ports of mail.
package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cayhq/cay/sandbox"
)

// Verdict is the policy's decision about a flow. The zero value is Deny.
type Verdict int

const (
	Deny    Verdict = iota
	Allow           // the policy has nothing against it
	Inspect         // it depends on the name, which is not known yet
)

func (v Verdict) String() string {
	switch v {
	case Deny:
		return "deny"
	case Allow:
		return "allow"
	case Inspect:
		return "inspect"
	}
	return "Verdict(" + strconv.Itoa(int(v)) + ")"
}

// Decision is a verdict and its reason.
type Decision struct {
	Verdict Verdict
	Rule    string // the deciding rule, in short: `allow "*.example.com"`, `not in allow`
	Reason  string // for Deny, a sentence for people
	// PortListed reports that Domain.Ports has the port. Without it, Allow and Inspect do
	// not apply to the ports of mail.
	PortListed bool
}

// Rules of decisions that no entry of the policy made.
const (
	ruleAllowAll = "mode allow-all"
	ruleDenyAll  = "mode deny-all"
	ruleNotIn    = "not in allow"
)

// Policy is a compiled sandbox.Network. It is immutable, and its methods may be called
// concurrently.
type Policy struct {
	mode        sandbox.NetworkMode
	limits      sandbox.NetworkLimits
	names       table
	allow, deny ranges
	ports       map[uint16]bool // the ports that some Domain lists
	everyPort   bool            // some Domain lists no ports
	above       map[string]bool // parents of allowed names
	intercepts  bool
	handled     globs
}

// Compile returns the policy that n describes; an empty mode means the mode that
// Network.WithDefaults sets. Errors: invalid, as of Network.Validate.
func Compile(n sandbox.Network) (*Policy, error) {
	if err := n.Validate(); err != nil {
		return nil, err
	}
	n = n.WithDefaults()
	p := &Policy{mode: n.Mode, limits: n.Limits, ports: map[uint16]bool{}, above: map[string]bool{}, handled: newGlobs(n.Handled)}
	var err error
	if p.allow, err = newRanges(n.AllowCIDRs); err != nil {
		return nil, err
	}
	if p.deny, err = newRanges(n.DenyCIDRs); err != nil {
		return nil, err
	}
	for _, dom := range n.Allow {
		d, err := newDomain(dom, n.Strict)
		if err != nil {
			return nil, err
		}
		p.names.add(d)
		for parent := strings.ToLower(dom.Name); ; p.above[parent] = true {
			var below bool
			if _, parent, below = strings.Cut(parent, "."); !below {
				break
			}
		}
		p.intercepts = p.intercepts || d.Intercept
		p.everyPort = p.everyPort || len(d.Ports) == 0
		for _, port := range d.Ports {
			p.ports[port] = true
		}
	}
	p.names.sort()
	return p, nil
}

// Mode returns the policy's mode, which is never empty.
func (p *Policy) Mode() sandbox.NetworkMode { return p.mode }

// Limits returns the limits in the policy; the operator's limits replace zeros.
func (p *Policy) Limits() sandbox.NetworkLimits { return p.limits }

// Intercepts reports whether the TLS of some name may be opened, so that the
// guest must trust our authority.
func (p *Policy) Intercepts() bool { return p.intercepts || p.Handles() }

// Handles reports whether connections are offered to an egress handler.
func (p *Policy) Handles() bool { return len(p.handled) > 0 }

// HandlesAll reports whether every TCP connection is offered.
func (p *Policy) HandlesAll() bool { return slices.Contains(p.handled, "*") }

// HandlesName reports whether connections to a name are offered to the egress handler.
// The name must have come from CleanName.
func (p *Policy) HandlesName(name string) bool { return p.handled.match(name) }

// Address decides about a TCP flow to dst before any byte was read from it. For Inspect,
// Name decides when the name is known.
func (p *Policy) Address(dst netip.AddrPort) Decision {
	if d, ok := p.byMode(); ok {
		return d
	}
	ip := dst.Addr().Unmap()
	if text := p.deny.find(ip); text != "" {
		return denied(ip, text)
	}
	if text := p.allow.find(ip); text != "" {
		return Decision{Verdict: Allow, Rule: "allow_cidrs " + text}
	}
	port := dst.Port()
	switch {
	case p.names.empty():
		return Decision{Rule: ruleNotIn, Reason: fmt.Sprintf("the network policy allows no names, and %v is in none of its allow_cidrs", ip)}
	// Web clients are told the reason, which is better with the name in it.
	case !p.everyPort && !p.ports[port] && port != 80 && port != 443:
		return Decision{Rule: ruleNotIn, Reason: fmt.Sprintf("the network policy allows no name at port %d, and %v is in none of its allow_cidrs", port, ip)}
	}
	return Decision{Verdict: Inspect, Rule: "allow", PortListed: p.ports[port]}
}

// Name decides about a flow to a name, which must have come from CleanName. The
// Domain is nil if and only if the name is not allowed.
func (p *Policy) Name(name string, port uint16) (Decision, *Domain) {
	if d, ok := p.byMode(); ok {
		if d.Verdict == Allow {
			return d, anyDomain
		}
		return d, nil
	}
	d := p.names.find(name)
	switch {
	case d == nil:
		return Decision{Rule: ruleNotIn, Reason: strconv.Quote(name) + " is not in allow of the network policy"}, nil
	case len(d.Ports) == 0:
		return Decision{Verdict: Allow, Rule: d.text}, d
	case slices.Contains(d.Ports, port):
		return Decision{Verdict: Allow, Rule: d.text, PortListed: true}, d
	}
	return Decision{Rule: d.text, Reason: fmt.Sprintf("the network policy allows %q at port %s, not at %d", name, d.portList(), port)}, nil
}

// Resolved decides about an address that an allowed name resolved to: Allow,
// unless it is in DenyCIDRs or the mode is DenyAll.
func (p *Policy) Resolved(ip netip.Addr) Decision {
	if d, ok := p.byMode(); ok {
		return d
	}
	if text := p.deny.find(ip.Unmap()); text != "" {
		return denied(ip, text)
	}
	return Decision{Verdict: Allow, Rule: "not in deny_cidrs"}
}

// Query decides whether a name may be resolved for the guest: in the mode Custom only if
// it may be reached at some port, or any name if AllowCIDRs has a range, because a guest
// that dials addresses must find them. The name must have come from CleanName.
func (p *Policy) Query(name string) Decision {
	if d, ok := p.byMode(); ok {
		return d
	}
	if d := p.names.find(name); d != nil {
		return Decision{Verdict: Allow, Rule: d.text}
	}
	if !p.allow.empty() {
		return Decision{Verdict: Allow, Rule: "allow_cidrs"}
	}
	return Decision{Rule: ruleNotIn, Reason: strconv.Quote(name) + " is not resolved: it is not in allow of the network policy"}
}

// Above reports whether a name that may not be resolved has allowed names below it. Such
// a name must not get NXDOMAIN, because that would deny all names below it (RFC 8020).
func (p *Policy) Above(name string) bool { return p.mode == sandbox.Custom && p.above[name] }

// byMode decides for the modes that need not look.
func (p *Policy) byMode() (Decision, bool) {
	switch p.mode {
	case sandbox.AllowAll:
		return Decision{Verdict: Allow, Rule: ruleAllowAll}, true
	case sandbox.Custom:
		return Decision{}, false
	}
	return Decision{Rule: ruleDenyAll, Reason: "the network policy denies everything"}, true
}

func denied(ip netip.Addr, text string) Decision {
	return Decision{Rule: "deny_cidrs " + text, Reason: fmt.Sprintf("the network policy denies %v, which is in deny_cidrs", ip)}
}

func (d *Domain) portList() string {
	var b strings.Builder
	for i, port := range d.Ports {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(strconv.Itoa(int(port)))
	}
	return b.String()
}
