package gvisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/config"

	"github.com/cayhq/cay/internal/sandboxd/network"
	"github.com/cayhq/cay/sandbox"
)

// newLink is the link of a machine that is being started: it runs, and the sentry has yet
// to get the guest's end, and a copy of ours.
type newLink struct {
	*network.Link
	ours, guests *os.File
	inode        uint64 // of ours
}

// newLink makes a link. The caller calls closeEnds when the sentry has its files.
func (r *Runtime) newLink(id string, policy sandbox.Network) (*newLink, error) {
	ours, guests, err := network.Pair()
	if err != nil {
		return nil, err
	}
	l := &newLink{guests: os.NewFile(uintptr(guests), "link")}
	var stat unix.Stat_t
	if err = unix.Fstat(ours, &stat); err == nil {
		l.inode = stat.Ino
		var fd int
		if fd, err = unix.FcntlInt(uintptr(ours), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			l.ours = os.NewFile(uintptr(fd), "link")
		}
	}
	if err != nil {
		unix.Close(ours)
		l.closeEnds()
		return nil, fmt.Errorf("make link: %w", err)
	}
	if l.Link, err = r.egress.NewLink(ours, id, policy, r.log.With("sandbox", id)); err != nil {
		l.closeEnds()
		return nil, err
	}
	return l, nil
}

func (l *newLink) closeEnds() {
	l.guests.Close()
	if l.ours != nil {
		l.ours.Close()
	}
}

// duplicate returns a second descriptor of f.
func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate %s: %w", f.Name(), err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// adoptLink returns a link to a running machine. It uses the link's end of the daemon that
// started the machine, of which the sentry has kept a copy: so the guest keeps its
// interface, and packets that it has sent since are waiting. If that end cannot be had,
// because an earlier version of cay started the machine or the kernel forbids it, the
// guest gets another interface. Errors: errNoSocket.
func (r *Runtime) adoptLink(ctx context.Context, st *state) (*network.Link, error) {
	log := r.log.With("sandbox", st.ID)
	if st.Link != 0 {
		fd, err := keptLink(st)
		if err == nil {
			return r.egress.AdoptLink(fd, st.ID, log)
		}
		log.Warn("guest gets another interface: the link is not to be had from its sentry", "error", err)
	}
	ours, guests, err := network.Pair()
	if err != nil {
		return nil, err
	}
	end := os.NewFile(uintptr(guests), "link")
	defer end.Close()
	link, err := r.egress.NewLink(ours, st.ID, sandbox.Network{Mode: sandbox.DenyAll}, log)
	if err != nil {
		return nil, err
	}
	if err := relink(ctx, st, end); err != nil {
		return nil, errors.Join(err, link.Close())
	}
	// The link has another number, and nobody keeps a copy of its end.
	st.Link = 0
	if err := writeJSON(filepath.Join(r.dir(st.ID), "state.json"), st); err != nil {
		// The next adoption finds the name of this link taken, and tries the next name.
		r.log.Warn("link of an adopted machine is not noted", "id", st.ID, "error", err)
	}
	return link, nil
}

// keptLink returns a descriptor of the daemon's end of a link from the sentry, which keeps
// a copy so that it lives as long as the sentry, also when the daemon is killed. A hostile
// sentry can change or close its copy, and so cut itself off; it can put no other file in
// its place, because the inode's number is compared.
func keptLink(st *state) (int, error) {
	pid := st.Sandbox.Getpid()
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, fmt.Errorf("open the sentry: %w", err)
	}
	defer unix.Close(process)
	if runs, err := isSentry(pid, st.ID); err != nil || !runs { // now that its number cannot be another's
		return -1, fmt.Errorf("the sentry has ended (%w)", errors.Join(err, os.ErrProcessDone))
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	files, err := os.ReadDir(dir)
	if err != nil {
		return -1, fmt.Errorf("list the sentry's files: %w", err)
	}
	want := fmt.Sprintf("socket:[%d]", st.Link)
	for _, f := range files {
		number, err := strconv.Atoi(f.Name())
		if err != nil {
			continue
		}
		if target, err := os.Readlink(filepath.Join(dir, f.Name())); err != nil || target != want {
			continue
		}
		fd, err := unix.PidfdGetfd(process, number, 0)
		if err != nil {
			return -1, fmt.Errorf("take the link's end: %w", err)
		}
		if err := checkLink(fd, st.Link); err != nil {
			unix.Close(fd)
			return -1, err
		}
		return fd, nil
	}
	return -1, errors.New("the sentry has closed it")
}

// checkLink returns an error if fd is not a link's end with that inode.
func checkLink(fd int, inode uint64) error {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return fmt.Errorf("look at the link's end: %w", err)
	}
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return fmt.Errorf("look at the link's end: %w", err)
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return fmt.Errorf("look at the link's end: %w", err)
	}
	if stat.Ino != inode || domain != unix.AF_UNIX || kind != unix.SOCK_DGRAM {
		return errors.New("the sentry has put another file in its place")
	}
	return nil
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
