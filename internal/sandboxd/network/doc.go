// Package network is a sandbox's only way out and in: a packet link between the
// sentry's network stack and one of our own, in user space.
//
//	guest program -> sentry netstack -> socketpair -> Link's netstack -> dial by the daemon
//
// The link carries plain IPv4 packets. Nothing of it exists on the host: no
// interface, no namespace, no firewall rule. A flow leaves only because Link
// accepted it, decided by policy, and dialled the destination itself; when the
// daemon is gone there is no network. A guest that forges packets gets nothing:
// its packets end in this stack, and its endpoint drops every packet that is
// not whole TCP or UDP from the guest's own address.
//
// A connection is first decided by its address (judge.go). If that is enough, it
// is dialled as addressed; if it takes a name, the connection is accepted and
// read until the name is known (inspect.go), the name is resolved by the daemon's
// own resolver, each of its addresses is judged, and one of them is dialled
// (dial.go). What the guest takes the name's address for counts for nothing.
// Connections whose requests must be seen go to package intercept, which dials
// in the same way (servers.go). All that is known of a flow is kept with it, so
// that SetPolicy can judge it again and cut it. Every decision is recorded with
// what made it (record.go).
//
// What connections hold of payload under way is bounded, for a sandbox and for all,
// in our stack, in the daemon and in the kernel (budget.go, hostconn.go).
//
// The other direction is the same stack: the daemon dials into the guest, for
// the control connection and for ports guests serve on.
//
// The package knows nothing of sandboxes' lifecycles or of gVisor's control
// protocol; sandboxd/gvisor hands it one end of the socketpair.
package network
