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
// The other direction is the same stack: the daemon dials into the guest, for
// the control connection and for ports guests serve on.
//
// The package knows nothing of sandboxes' lifecycles or of gVisor's control
// protocol; sandboxd/gvisor hands it one end of the socketpair.
package network
