package network

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cayhq/cay/internal/sandboxd/network/policy"
	"github.com/cayhq/cay/sandbox"
)

// dotPort is the port of DNS over TLS and over QUIC. It is blocked, because the daemon
// must see the names that guests look up.
const dotPort = 853

var dotDenied = policy.Decision{Rule: "blocked port 853", Reason: "DNS over TLS is closed: names are resolved by the sandbox's own name server"}

// inFavour is a decision that no rule made.
var inFavour = policy.Decision{Verdict: policy.Allow}

// judge returns the decision of today's policy on all known facts of a flow. It is called
// at each step of a flow, and again when the policy changes.
func (l *Link) judge(dst netip.AddrPort, k facts) policy.Decision {
	p := l.policy.Load()
	if k.stage == waiting {
		return inFavour
	}
	if k.stage == handed {
		if !p.HandlesAll() && !(k.name != "" && p.HandlesName(k.name)) {
			return policy.Decision{Rule: ruleHandled, Reason: "the network policy has no egress handler for it any more"}
		}
		return inFavour
	}
	if k.protocol == "udp" {
		return l.byDatagram(p, dst)
	}
	a := l.byAddress(p, dst)
	if a.Verdict == policy.Deny {
		return a
	}
	// A connection to an address that an address range allows needs no name.
	byRange := a.Verdict == policy.Allow && k.dialled == dst
	switch k.stage {
	case addressed:
		if a.Verdict == policy.Inspect {
			return policy.Decision{Rule: a.Rule, Reason: fmt.Sprintf("it went to %v without a name, and that is in none of the allow_cidrs", dst.Addr())}
		}
		return a
	case opened:
		if k.name == "" {
			return inFavour
		}
	}
	d, domain := p.Name(k.name, dst.Port())
	switch {
	case d.Verdict != policy.Allow:
		if byRange {
			return a
		}
		return d
	case k.stage == named && domain.Intercept && !byRange:
		return policy.Decision{Rule: d.Rule, Reason: fmt.Sprintf("%q has rules, so that its TLS has to be opened", k.name)}
	}
	if k.dialled.IsValid() {
		if r := l.byResolved(p, k.dialled, d.PortListed); r.Verdict != policy.Allow {
			return r
		}
	}
	return d
}

// byAddress decides about a flow by the destination of the guest's packets. For Inspect,
// the name decides, once it is known.
func (l *Link) byAddress(p *policy.Policy, dst netip.AddrPort) policy.Decision {
	if p.Mode() == sandbox.DenyAll {
		return p.Address(dst)
	}
	if dst.Addr() == Placeholder {
		if d := closedPort(dst, true); d.Verdict != policy.Allow {
			return d
		}
		return policy.Decision{Verdict: policy.Inspect, Rule: "address of a name only", PortListed: true}
	}
	if d := l.egress.blockedAddr(dst); d.Verdict != policy.Allow {
		return d
	}
	d := p.Address(dst)
	if d.Verdict == policy.Deny {
		return d
	}
	if closed := closedPort(dst, d.Verdict == policy.Inspect && d.PortListed); closed.Verdict != policy.Allow {
		return closed
	}
	return d
}

// byResolved decides about an address of an allowed name. listed says that the policy
// lists the port.
func (l *Link) byResolved(p *policy.Policy, dst netip.AddrPort, listed bool) policy.Decision {
	if d := l.egress.blockedAddr(dst); d.Verdict != policy.Allow {
		return d
	}
	if d := closedPort(dst, listed); d.Verdict != policy.Allow {
		return d
	}
	return p.Resolved(dst.Addr())
}

// blockedAddr decides by the addresses that are blocked for every sandbox.
func (e *Egress) blockedAddr(dst netip.AddrPort) policy.Decision {
	ip := dst.Addr().Unmap()
	rule := host.why(ip, e.cfg.AllowRanges)
	switch {
	case linkRange.Contains(ip): // whatever ranges the operator allows
		rule = "blocked range " + linkRange.String()
	case e.isDaemon(ip, dst.Port()):
		return policy.Decision{Rule: "blocked address of the daemon", Reason: fmt.Sprintf("%v is where this daemon serves, which is not for sandboxes", dst)}
	case e.upstream.at(dst):
		return policy.Decision{Rule: "blocked address of the host's proxy", Reason: fmt.Sprintf("%v is the proxy of the host, which is not for sandboxes", dst)}
	}
	if rule != "" {
		return policy.Decision{Rule: rule, Reason: fmt.Sprintf("%v is not on the public internet, and the operator has not allowed its range", ip)}
	}
	return inFavour
}

// isDaemon reports whether this process serves there.
func (e *Egress) isDaemon(ip netip.Addr, port uint16) bool {
	if e.cfg.OwnPorts == nil || port == 0 || !slices.Contains(e.cfg.OwnPorts(), port) {
		return false
	}
	own, err := host.has(ip)
	return own || err != nil || ip.IsLoopback() || ip.IsUnspecified()
}

// closedPort decides by the ports that are closed to every sandbox. listed says that the
// policy lists the port with a name, which opens the ports of mail.
func closedPort(dst netip.AddrPort, listed bool) policy.Decision {
	port := dst.Port()
	switch {
	case port == dotPort:
		return dotDenied
	case slices.Contains(mailPorts, port) && Public(dst.Addr()) && !listed:
		return policy.Decision{
			Rule:   fmt.Sprintf("blocked port %d", port),
			Reason: fmt.Sprintf("port %d is for sending mail, which sandboxes may not unless their network policy lists the port with a name", port),
		}
	}
	return inFavour
}
