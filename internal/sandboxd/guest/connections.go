package guest

import (
	"context"
	"encoding/hex"
	"io"
	"net/netip"
	"strconv"
	"strings"

	"github.com/cayhq/cay/sandbox"
)

const (
	// maxConnections is how many connections of a guest are returned, and
	// maxConnectionBytes how much is read of each of the guest's lists.
	maxConnections     = 8192
	maxConnectionBytes = 4 << 20
)

// Connection is a TCP connection of the guest.
type Connection struct{ Local, Remote netip.AddrPort }

// Connections returns the guest's TCP connections whose peers are outside the guest.
func (c *Client) Connections(ctx context.Context) ([]Connection, error) {
	var all []Connection
	for _, path := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		body, _, err := c.ReadFile(ctx, path, sandbox.ReadParams{})
		if err != nil {
			return nil, err
		}
		b, err := io.ReadAll(io.LimitReader(body, maxConnectionBytes))
		body.Close()
		if err != nil {
			return nil, unavailable(contextErr(ctx, err))
		}
		all = append(all, openConnections(string(b))...)
	}
	return all[:min(len(all), maxConnections)], nil
}

// openConnections returns the connections in the text of /proc/net/tcp or tcp6 that have a
// peer outside the guest. It leaves out lines that it cannot read: the text is the guest's.
func openConnections(text string) []Connection {
	const listening, timeWait = "0A", "06"
	var found []Connection
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 4 || f[3] == listening || f[3] == timeWait {
			continue
		}
		local, ok := procAddr(f[1])
		remote, ok2 := procAddr(f[2])
		if !ok || !ok2 || remote.Port() == 0 || remote.Addr().IsLoopback() || local.Addr() == remote.Addr() {
			continue
		}
		found = append(found, Connection{Local: local, Remote: remote})
	}
	return found
}

// procAddr reads an address of /proc/net/tcp, or an IPv4 address of tcp6: words of 32 bits
// in the order of the CPU's bytes, and the port.
func procAddr(text string) (netip.AddrPort, bool) {
	addr, port, _ := strings.Cut(text, ":")
	p, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}, false
	}
	b, err := hex.DecodeString(addr)
	if err != nil || len(b) != 4 && len(b) != 16 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(b); i += 4 { // guests are little-endian on all architectures that cay runs on
		b[i], b[i+1], b[i+2], b[i+3] = b[i+3], b[i+2], b[i+1], b[i]
	}
	a, ok := netip.AddrFromSlice(b)
	a = a.Unmap()
	return netip.AddrPortFrom(a, uint16(p)), ok && a.Is4()
}
