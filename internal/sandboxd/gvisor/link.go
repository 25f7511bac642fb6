package gvisor

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"

	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/config"

	"github.com/cayhq/cay/internal/sandboxd/network"
	"github.com/cayhq/cay/sandbox"
)

// newLink makes a network link: our end is running, the guest's end is a file to pass on.
func (r *Runtime) newLink(id string, policy sandbox.Network) (*network.Link, *os.File, error) {
	ours, guests, err := network.Pair()
	if err != nil {
		return nil, nil, err
	}
	end := os.NewFile(uintptr(guests), "link")
	link, err := r.egress.NewLink(ours, id, policy, r.log.With("sandbox", id))
	if err != nil {
		end.Close()
		return nil, nil, err
	}
	return link, end, nil
}

// linkArgs returns the request that makes an interface of the link's end in a sentry.
func linkArgs(end *os.File, name string) *boot.CreateLinksAndRoutesArgs {
	ip := net.IP(network.GuestAddr.AsSlice())
	mask := net.CIDRMask(network.PrefixLen, 32)
	return &boot.CreateLinksAndRoutesArgs{
		FilePayload: urpc.FilePayload{Files: []*os.File{end}},
		FDBasedLinks: []boot.FDBasedLink{{
			Name: name, MTU: network.MTU,
			Addresses:   []boot.IPWithPrefix{{Address: ip, PrefixLen: network.PrefixLen}},
			Routes:      []boot.Route{{Destination: net.IPNet{IP: ip.Mask(mask), Mask: mask}}},
			NumChannels: 1, ProcessorsPerChannel: 1,
			IsPacket: []bool{false}, PreConfigured: true,
			// No link address: plain IP packets. Both ends are on the same host, so
			// checksums would detect nothing.
			TXChecksumOffload: true, RXChecksumOffload: true,
			QDisc: config.QDiscNone,
		}},
		Defaultv4Gateway: boot.DefaultRoute{Name: name, Route: boot.Route{
			Destination: net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)},
			Gateway:     net.IP(network.GatewayAddr.AsSlice()),
		}},
	}
}

// startRoot gives the waiting sentry its network and starts the guest's init.
func startRoot(ctx context.Context, st *state, end *os.File) error {
	conn, err := connect(st)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := setNetwork(ctx, conn, end); err != nil {
		return err
	}
	if err := callWithin(ctx, startTimeout, conn, boot.ContMgrRootContainerStart, &st.ID); err != nil {
		return fmt.Errorf("start the guest: %w", err)
	}
	return nil
}

// setNetwork tells a waiting sentry the network to start its guest with.
func setNetwork(ctx context.Context, conn *urpc.Client, end *os.File) error {
	args := linkArgs(end, linkName(0))
	args.LoopbackLinks = []boot.LoopbackLink{boot.DefaultLoopbackLink}
	if err := callWithin(ctx, startTimeout, conn, boot.ContMgrSetNetworkArgs, args); err != nil {
		return fmt.Errorf("set up the guest's network: %w", err)
	}
	return nil
}

// maxStaleLinks is how many unrecorded interfaces a machine may have.
const maxStaleLinks = 256

// relink gives a running sentry a new interface, and records in st that its name is
// taken. The other end of the old interface is gone with the process that had it.
func relink(ctx context.Context, st *state, end *os.File) error {
	conn, err := connect(st)
	if err != nil {
		return err
	}
	defer conn.Close()
	// The number or the name may be taken: by a process that was killed before it
	// recorded the link, or by the guest. Each try increases both.
	for range maxStaleLinks {
		name := linkName(st.Links)
		st.Links++
		err = callWithin(ctx, answerTimeout, conn, "Network.CreateLinksAndRoutes", linkArgs(end, name))
		if err == nil || !strings.Contains(err.Error(), "duplicate nic id") {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("renew the guest's network: %w", err)
	}
	return nil
}

func linkName(n int) string { return fmt.Sprintf("eth%d", n) }
