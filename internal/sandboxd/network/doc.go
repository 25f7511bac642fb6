// Package network is a sandbox's only way out and in: a packet link between the sentry's
// network stack and a second stack in the daemon, in user space.
//
//	guest program -> sentry netstack -> socketpair -> Link's netstack -> dial by the daemon
//
// The link carries plain IPv4 packets. The host has nothing of it: no interface, no
// namespace, no firewall rule. A flow leaves only because Link accepted it, decided by
// policy, and dialled the destination itself; when the daemon is gone there is no
// network. A guest that forges packets gains nothing: its packets end in this stack, and
// its endpoint drops every packet that is not whole TCP or UDP from the guest's own
// address.
//
// A connection is first decided by its address (judge.go). If the address is enough, the
// daemon dials it. If the policy needs a name, the connection is accepted and read until
// the name is known (inspect.go), the daemon's own resolver resolves the name, each
// resolved address is judged, and one of them is dialled (dial.go). The address that the
// guest dialled does not matter then. Connections whose requests must be seen go to
// package intercept, which dials in the same way (servers.go). All known facts of a flow
// are stored with it, so that SetPolicy can judge it again and cut it. Every decision is
// recorded with its reason (record.go).
//
// The payload that connections hold is bounded, for each sandbox and for all together, in
// our stack, in the daemon and in the kernel (budget.go, hostconn.go).
//
// The other direction is the same stack: the daemon dials into the guest, for the control
// connection and for ports guests serve on.
//
// The package knows nothing of sandboxes' lifecycles or of gVisor's control protocol;
// sandboxd/gvisor hands it one end of the socketpair.
package network
