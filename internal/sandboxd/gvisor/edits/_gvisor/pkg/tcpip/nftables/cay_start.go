package nftables

import (
	"gvisor.dev/gvisor/pkg/rand"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// NewNFTables returns empty tables. It does not read the clock: the network namespaces of a
// machine that is being restored get their tables before the machine's clock runs, and reading
// the clock would wait for the end of the restore.
func NewNFTables(stack *stack.Stack, clock tcpip.Clock, rng rand.RNG) *NFTables {
	nf := newNFTables(stack, tcpip.NewStdClock(), rng)
	nf.clock = clock
	return nf
}
