package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/cayhq/cay/internal/sandboxd/network/networktest"
	"github.com/cayhq/cay/sandbox"
)

// sockets are the sockets that the daemon has opened, in order.
type sockets struct {
	mu  sync.Mutex
	all []syscall.RawConn
}

// watch keeps the sockets that cfg dials.
func watch(t *testing.T, cfg *EgressConfig) *sockets {
	s := &sockets{}
	dial := cfg.DialContext
	cfg.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		raw, err := conn.(syscall.Conn).SyscallConn()
		if err != nil {
			t.Error(err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all = append(s.all, raw)
		return conn, nil
	}
	return s
}

// glance is the interval at which a test looks whether sockets have reached a state.
const glance = 20 * time.Millisecond

// look calls f with each socket that is open.
func (s *sockets) look(f func(fd int)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, raw := range s.all {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}

// memory returns the bytes that the kernel holds for all sockets, and how many sockets
// accept no further bytes.
func (s *sockets) memory() (bytes int64, full int) {
	s.look(func(fd int) {
		in, out := socketMemory(fd)
		bytes += in + out
		if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 0); n == 0 && err == nil {
			full++
		}
	})
	return bytes, full
}

// held returns the bytes that all links of an Egress have counted.
func (e *Egress) held() int64 {
	e.budget.mu.Lock()
	defer e.budget.mu.Unlock()
	return e.budget.used
}

// littleBuffers has a guest hold little by itself.
func (g guestStack) littleBuffers(t *testing.T) {
	t.Helper()
	snd := tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: 64 << 10, Max: 64 << 10}
	rcv := tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: 64 << 10, Max: 64 << 10}
	for _, opt := range []tcpip.SettableTransportProtocolOption{&snd, &rcv} {
		if err := g.SetTransportProtocolOption(tcp.ProtocolNumber, opt); err != nil {
			t.Fatal(err)
		}
	}
}

// deaf serves an address with connections that nobody reads, until the test ends.
func deaf(t *testing.T, n *networktest.Internet) (addr string) {
	t.Helper()
	done := make(chan struct{})
	t.Cleanup(func() { close(done) })
	dst := netip.AddrPortFrom(networktest.Misc, 9001)
	n.ServeTCP(dst, func(net.Conn) { <-done })
	return dst.String()
}

// stall opens a connection and writes to it until a write fails.
func (g guestStack) stall(ctx context.Context, addr string) error {
	conn, err := gonet.DialContextTCP(ctx, g.Stack, full(addr), ipv4.ProtocolNumber)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	for chunk := make([]byte, 64<<10); err == nil; {
		_, err = conn.Write(chunk)
	}
	return nil
}

// Bytes that a guest sends to servers that do not read are bounded, in the kernel and in
// total. Other connections go on, and the counted bytes are given back.
func TestBudget_stalled(t *testing.T) {
	const n = 1200
	var opened *sockets
	w := openWorld(t, allowAll(), func(_ *world, cfg *EgressConfig) {
		cfg.Limits.ConnectionsPerSecond = 2 * n
		opened = watch(t, cfg)
	})
	w.littleBuffers(t)
	addr := deaf(t, w.net)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	begun := 0
	for deadline := time.Now().Add(2 * patience); ; time.Sleep(glance) {
		held, full := opened.memory()
		if full == begun && begun < n { // a few at a time, because a link drops packets beyond its buffer
			for range 50 {
				wg.Go(func() {
					if err := w.stall(ctx, addr); err != nil {
						t.Error(err)
					}
				})
			}
			begun += 50
			continue
		}
		if held > sandboxBudget {
			t.Fatalf("%d connections that take nothing hold %d MiB in the kernel", full, held>>20)
		}
		if counted := w.egress.held(); counted > sandboxBudget || counted < held {
			t.Fatalf("%d MiB are counted, of which the kernel holds %d", counted>>20, held>>20)
		}
		if full == n {
			t.Logf("%d connections hold %d MiB in the kernel, %d are counted", n, held>>20, w.egress.held()>>20)
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d connections are full, they hold %d MiB", full, n, held>>20)
		}
	}
	conn, err := w.dial(t, at(networktest.API, 80))
	if err != nil {
		t.Fatal(err)
	}
	const size = 1 << 20
	fmt.Fprintf(conn, "GET /bytes/%d HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", size)
	if got, err := io.Copy(io.Discard, conn); err != nil || got < size {
		t.Errorf("another connection got %d bytes, %v", got, err)
	}
	conn.Close()
	setPolicy(t, w.link, denyAll())
	cancel()
	wg.Wait()
	awaitNothing(t, w.egress)
}

// awaitNothing waits until connections count nothing.
func awaitNothing(t *testing.T, e *Egress) {
	t.Helper()
	for deadline := time.Now().Add(patience); e.held() != 0; time.Sleep(glance) {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes are counted when all has ended", e.held())
		}
	}
}

// Many guests together stay within the daemon's bound, are told why they get no more, and
// take no bytes from the sure budget of another guest.
func TestBudget_guests(t *testing.T) {
	const guests, each, size, sure = 12, 60, 32 << 20, 4 * connectionFloor
	var opened *sockets
	w := openWorld(t, allowAll(), func(_ *world, cfg *EgressConfig) { opened = watch(t, cfg) })
	w.egress.budget.size, w.egress.budget.sure = size, sure
	addr := deaf(t, w.net)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	log := newFlowLog()
	var opening sync.WaitGroup
	for range guests {
		l, g := join(t, w.egress, allowAll())
		g.littleBuffers(t)
		l.OnFlow(log.add)
		for range each {
			opening.Add(1)
			wg.Go(func() {
				conn, err := gonet.DialContextTCP(ctx, g.Stack, full(addr), ipv4.ProtocolNumber)
				opening.Done()
				if err != nil {
					return // refused
				}
				defer conn.Close()
				defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
				for chunk := make([]byte, 64<<10); err == nil; {
					_, err = conn.Write(chunk)
				}
			})
		}
	}
	opening.Wait()
	for deadline := time.Now().Add(patience); ; time.Sleep(glance) {
		held, full := opened.memory()
		if counted := w.egress.held(); counted > size+guests*sure || held > counted {
			t.Fatalf("%d KiB are counted, of which the kernel holds %d", counted>>10, held>>10)
		}
		opened.mu.Lock()
		all := len(opened.all)
		opened.mu.Unlock()
		if all == 0 || all >= guests*each {
			t.Fatalf("%d of %d connections opened", all, guests*each)
		}
		if full == all {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d connections are full", full, all)
		}
	}
	if f := log.awaitDenied(t, "limit memory"); !strings.Contains(f.Reason, fmt.Sprint(size>>20)+" MiB") {
		t.Errorf("reason %q", f.Reason)
	}
	conn, err := w.dial(t, at(networktest.Misc, 7))
	if err != nil {
		t.Fatalf("another guest: %v", err)
	}
	echo(t, conn, "x")
	conn.Close()
}

// A used connection grows to the size that a fast connection needs; an unused connection
// stays small.
func TestWindow_growth(t *testing.T) {
	t.Parallel()
	var opened *sockets
	w := openWorld(t, allowAll(), func(_ *world, cfg *EgressConfig) { opened = watch(t, cfg) })
	sizes := func() (rcv, snd int) {
		opened.look(func(fd int) {
			var err1, err2 error
			rcv, err1 = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
			snd, err2 = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
			if err := errors.Join(err1, err2); err != nil {
				t.Error(err)
			}
		})
		return rcv, snd
	}
	conn, err := w.dial(t, at(networktest.Misc, 7))
	if err != nil {
		t.Fatal(err)
	}
	echo(t, conn, "x")
	if rcv, snd := sizes(); rcv > leastFromHost || snd > leastToHost {
		t.Errorf("an idle connection has buffers of %d and %d", rcv, snd)
	}
	if n := w.egress.held(); n != connectionFloor {
		t.Errorf("an idle connection counts %d", n)
	}
	const size = 32 << 20
	sent := make(chan error, 1)
	go func() {
		_, err := io.CopyN(conn, zeros{}, size)
		sent <- err
	}()
	conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.CopyN(io.Discard, conn, size); err != nil {
		t.Fatal(err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if rcv, snd := sizes(); rcv != mostFromHost || snd != mostToHost {
		t.Errorf("a fast connection has buffers of %d and %d", rcv, snd)
	}
	conn.Close()
	awaitNothing(t, w.egress)
}

// The kernel's buffer of a used UDP flow grows, too.
func TestWindow_datagrams(t *testing.T) {
	t.Parallel()
	var opened *sockets
	w := openWorld(t, allowAll(), func(_ *world, cfg *EgressConfig) { opened = watch(t, cfg) })
	size := func() (n int) {
		opened.look(func(fd int) {
			var err error
			if n, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err != nil {
				t.Error(err)
			}
		})
		return n
	}
	conn := w.udp(t, at(networktest.Misc, 7))
	echo(t, conn, "x")
	if n := size(); n != leastPackets {
		t.Errorf("a new flow has a buffer of %d", n)
	}
	if n := w.egress.held(); n != packetFloor {
		t.Errorf("a new flow counts %d", n)
	}
	message := strings.Repeat("x", 1<<10)
	for range mostPackets / len(message) {
		echo(t, conn, message)
	}
	if n := size(); n != mostPackets {
		t.Errorf("a flow that is used has a buffer of %d", n)
	}
}

// An unused window gives bytes back when another window finds none, as soon as the
// window's socket holds no more.
func TestWindow_reclaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testReclaim)
}

func testReclaim(t *testing.T) {
	b := &budget{size: 32 << 20, each: 2 << 20, growth: 2 << 20, shares: map[*share]struct{}{}}
	s, other := b.newShare(), b.newShare()
	held := map[*window]int64{}
	open := func(s *share) *window {
		w := &window{share: s, least: 16 << 10, most: 1 << 20, parts: 1, resize: func(int64) error { return nil }}
		w.held = func() int64 { return held[w] }
		if err := w.open(); err != nil {
			t.Fatal(err)
		}
		return w
	}
	fill := func(w *window) int64 {
		for range 100 {
			w.use(1 << 20)
		}
		return w.now()
	}
	stuck, elsewhere := open(s), open(other)
	held[stuck] = fill(stuck)
	if held[stuck] < 64<<10 || fill(elsewhere) < 64<<10 {
		t.Fatal("windows do not grow")
	}
	var idle []*window
	for range 20 {
		w := open(s)
		fill(w)
		idle = append(idle, w)
	}
	late := open(s)
	before := fill(late)
	size := elsewhere.now()
	for range 10 {
		time.Sleep(reclaimEvery)
		fill(late)
	}
	if after := late.now(); after <= before || after != held[stuck] {
		t.Errorf("the window of a busy connection is %d, and was %d", after, before)
	}
	for _, w := range idle {
		if w.now() != w.least || w.taken != 0 {
			t.Errorf("an idle window is %d and has taken %d", w.now(), w.taken)
		}
	}
	if stuck.now() != stuck.least || stuck.taken != held[stuck]-stuck.least {
		t.Errorf("a window that is idle and full is %d and has taken %d", stuck.now(), stuck.taken)
	}
	if elsewhere.now() != size {
		t.Error("the window of another sandbox shrank")
	}
	for _, w := range append(idle, stuck, late) {
		w.close()
	}
	if s.used != 0 || len(s.grown) != 0 || b.used != elsewhere.taken {
		t.Errorf("%d and %d are used when the windows are closed", s.used, b.used)
	}
	other.close()
	if elsewhere.close(); b.used != 0 {
		t.Errorf("%d are used when the shares are closed", b.used)
	}
}

// After a server has closed its sending side, it still receives the remaining bytes, at
// its own pace; until then the connection counts against the limit.
func TestHostConn_untaken(t *testing.T) {
	t.Parallel()
	w := openWorld(t, withLimits(sandbox.NetworkLimits{Connections: 1}))
	addr, accepted := lone(t, w)
	conn, err := w.dial(t, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	server := <-accepted
	server.SetDeadline(time.Now().Add(2 * patience))
	if err := server.SetReadBuffer(16 << 10); err != nil {
		t.Fatal(err)
	}
	if err := server.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	var sent int64
	message := bytes.Repeat([]byte("x"), 320<<10)
	wrote := make(chan error, 1)
	go func() {
		_, err := conn.Write(message)
		wrote <- errors.Join(err, conn.(*gonet.TCPConn).CloseWrite())
	}()
	for sent < 256<<10 { // the rest fits into the kernel's buffers

		n, err := server.Read(make([]byte, 4<<10))
		if err != nil {
			t.Fatal(err)
		}
		sent += int64(n)
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	rest := len(message) - int(sent)
	w.await(t, "its end", func(f sandbox.Flow) bool { return f.EgressBytes == int64(len(message)) && !f.Open })
	if c, err := w.dial(t, at(networktest.Misc, 7)); err == nil {
		c.Close()
		t.Error("a connection opened in the place of one that the server has not taken")
	}
	if got, err := io.ReadAll(server); err != nil || len(got) != rest {
		t.Fatalf("the server got %d of the last %d bytes, %v", len(got), rest, err)
	}
	awaitNothing(t, w.egress)
}

// A server that takes no bytes for too long loses its connection, and the flow log says
// so.
func TestHostConn_silence(t *testing.T) {
	t.Parallel()
	w := openWorld(t, allowAll())
	w.egress.silence = time.Second
	addr := deaf(t, w.net)
	ended := make(chan error, 1)
	go func() { ended <- w.stall(t.Context(), addr) }()
	select {
	case err := <-ended:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
	w.await(t, "the end", func(f sandbox.Flow) bool {
		return f.Verdict == sandbox.Broken && !f.Open && strings.Contains(f.Reason, "took nothing")
	})
	awaitNothing(t, w.egress)
}

// stallEnv makes the test binary a daemon with a connection to the address in its value,
// for TestHostConn_killed.
const stallEnv = "CAY_TEST_STALL"

// When the daemon is killed, its unsent bytes do not remain in the kernel.
func TestHostConn_killed(t *testing.T) {
	if addr := os.Getenv(stallEnv); addr != "" {
		beStalled(t, addr)
		return
	}
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHostConn_killed$")
	cmd.Env = append(os.Environ(), stallEnv+"="+ln.Addr().String())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	conn, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	word := make([]byte, len(isStalled))
	if _, err := io.ReadFull(out, word); err != nil || string(word) != isStalled {
		t.Fatalf("the daemon says %q, %v", word, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	conn.SetDeadline(time.Now().Add(patience))
	if n, err := io.Copy(io.Discard, conn); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after %d bytes: %v, want a reset", n, err)
	}
}

const isStalled = "stalled"

// beStalled prints a line when its connection takes no more bytes, and waits to be
// killed.
func beStalled(t *testing.T, addr string) {
	cfg := EgressConfig{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	opened := watch(t, &cfg)
	_, g := setup(t, allowAll(), cfg)
	go g.stall(t.Context(), "8.8.8.8:9000")
	for _, full := opened.memory(); full == 0; _, full = opened.memory() {
		time.Sleep(glance)
	}
	fmt.Print(isStalled)
	select {}
}

// Optional buffers leave half of the available bytes to connections that open, however
// many bytes other sandboxes hold.
func TestShare_takeSpare(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	b := &budget{size: 32 * mib, each: 16 * mib, shares: map[*share]struct{}{}}
	s, other := b.newShare(), b.newShare()
	takes := func(s *share) (n int) {
		for s.takeSpare(mib) {
			n++
		}
		return n
	}
	if n := takes(s); n != 8 {
		t.Errorf("took %d MiB of 16, want 8", n)
	}
	for range 8 {
		if !s.take(mib) {
			t.Fatal("no room is left for connections")
		}
	}
	// 16 MiB are left. The share can grow to the size that is then left for all others:
	// with 5 MiB taken, 5 is less than half of 11; 6 would not be less than half of 10.
	if n := takes(other); n != 5 {
		t.Errorf("beside a sandbox that is full, took %d MiB, want 5", n)
	}
	third := b.newShare()
	if n := takes(third); n != 4 { // of 7
		t.Errorf("took %d MiB of the last 11, want 4", n)
	}
	third.close()
	if third.takeSpare(1) {
		t.Error("took of a share that is closed")
	}
}

// Windows of HTTP/2, to servers and to the guest, count against the sandbox's share.
func TestShare_windows(t *testing.T) {
	t.Parallel()
	for proto, windows := range map[string]int64{"http/1.1": 4<<20 - 1, "h2": 4<<20 - 1 + 1<<20} {
		w := openWorld(t, sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{{
			Name: "api.example.com", Rules: []sandbox.Rule{{SetHeaders: map[string]string{"X-Key": "value-of-key"}}},
		}}})
		transport := &http.Transport{
			ForceAttemptHTTP2: true,
			DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
				return w.tls(t, at(networktest.API, 443), "api.example.com", proto)
			},
		}
		defer transport.CloseIdleConnections()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://api.example.com/", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
		w.link.share.of.mu.Lock()
		used := w.link.share.used
		w.link.share.of.mu.Unlock()
		if connections := used - windows; connections < 0 || connections > 1<<20 {
			t.Errorf("a request by %s holds %d bytes, want %d for windows, and what connections need", resp.Proto, used, windows)
		}
	}
}
