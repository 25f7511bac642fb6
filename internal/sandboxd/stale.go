package sandboxd

import (
	"context"
	"encoding/hex"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

const (
	// staleTimeout bounds the question for the connections of an adopted machine.
	staleTimeout = 10 * time.Second
	// maxConnections is how many connections of a guest are reset, and maxConnectionBytes
	// how much is read of the guest's list of them.
	maxConnections     = 8192
	maxConnectionBytes = 4 << 20
)

// resetStale ends, in the background, the connections that the guest of an adopted machine
// has from before: their other ends are gone with the earlier daemon. A connection on
// which the guest sends is reset by its next packet; this is for connections on which the
// guest only waits, which it would do forever. Only the guest knows them. resetStale does
// nothing for a machine whose connections have been reset.
func (e *Engine) resetStale(m *session) {
	if !m.stale.CompareAndSwap(true, false) {
		return
	}
	e.background(func() {
		ctx, cancel := context.WithTimeout(m.ctx, staleTimeout)
		defer cancel()
		for _, path := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
			list, err := readGuestFile(ctx, m, path)
			if err != nil {
				if ctx.Err() == nil {
					e.log.WarnContext(ctx, "connections from before the restart may hang in a sandbox", "sandbox", m.sandboxID, "error", err)
				}
				m.stale.Store(true) // try again when the guest answers again, or is resumed
				return
			}
			m.inst.Reset(openConnections(list))
		}
	})
}

func readGuestFile(ctx context.Context, m *session, path string) (string, error) {
	body, _, err := m.guest.ReadFile(ctx, path, sandbox.ReadParams{})
	if err != nil {
		return "", err
	}
	defer body.Close()
	b, err := io.ReadAll(io.LimitReader(body, maxConnectionBytes))
	return string(b), err
}

// openConnections returns the connections in the text of /proc/net/tcp or tcp6 that have a
// peer outside the guest. It leaves out lines that it cannot read: the text is the guest's.
func openConnections(text string) []machine.Connection {
	const listening, timeWait = "0A", "06"
	var found []machine.Connection
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
		if found = append(found, machine.Connection{Local: local, Remote: remote}); len(found) == maxConnections {
			break
		}
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
