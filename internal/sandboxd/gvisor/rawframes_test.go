package gvisor_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/sandboxd/gvisor"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/network"
	"github.com/cayhq/cay/sandbox"
)

// rawFrames writes frames to 93.1.0.1 by raw sockets and packet sockets: connection attempts
// and datagrams with true and false sources, fragments, and garbage.
const rawFrames = `
import os, random, socket, struct
random.seed(1)
def xsum(b):
    b += bytes(len(b) % 2)
    s = sum(struct.unpack(">%dH" % (len(b) // 2), b))
    while s >> 16: s = (s & 0xffff) + (s >> 16)
    return ~s & 0xffff
def frame(src, dst, proto, port, frag=0):
    if proto == 6:
        body = struct.pack(">HHIIBBHHH", random.randrange(1024, 65536), port, random.getrandbits(32), 0, 0x50, 2, 65535, 0, 0)
        at = 16
    else:
        body = struct.pack(">HHHH", random.randrange(1024, 65536), port, 12, 0) + b"data"
        at = 6
    x = xsum(src + dst + struct.pack(">HH", proto, len(body)) + body)
    body = body[:at] + struct.pack(">H", x) + body[at+2:]
    head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(body), random.getrandbits(16), frag, 64, proto, 0, src, dst)
    return head[:10] + struct.pack(">H", xsum(head)) + head[12:] + body
a = socket.inet_aton
outside, own = a("93.1.0.1"), a("100.64.0.2")
packet = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
packet.bind(("eth0", 0x800))
cooked = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
cooked.bind(("eth0", 0x800))
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
sent = 0
def send(f):
    global sent
    for s, args in ((packet, ()), (cooked, (("eth0", 0x800),)), (raw, (("93.1.0.1", 0),))):
        try:
            s.sendto(f, *args) if args else s.send(f)
            sent += 1
        except OSError:
            pass
for i in range(200):
    for proto in (6, 17):
        for src in (own, a("100.64.0.1"), a("100.64.0.6"), a("172.17.0.2"), a("127.0.0.1"), a("93.1.0.1")):
            send(frame(src, outside, proto, 80))
    send(frame(own, outside, 6, 80, frag=0x2000))
    send(frame(own, outside, 17, 80, frag=1))
    send(os.urandom(random.randrange(1, 100)))
    send(b"\x45" + os.urandom(random.randrange(60)))
    for proto in (1, 41, 47, 132):
        f = bytearray(frame(own, outside, 17, 80))
        f[9] = proto
        send(bytes(f))
send(b"")
ping = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
for i in range(50):
    ping.sendto(bytes([8, 0, 0xf7, 0xff, 0, 0, 0, 0]), ("93.1.0.1", 0))
print(sent)
`

// outside is a Runtime whose machines reach a web server at 93.1.0.1, and nothing else.
type outside struct {
	*gvisor.Runtime
	mu     sync.Mutex
	dialed []string
}

func openOutside(t *testing.T) *outside {
	t.Helper()
	o := new(outside)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "outside\n") })}
	var served sync.WaitGroup
	served.Go(func() {
		if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		server.Close()
		served.Wait()
	})
	egress, err := network.NewEgress(network.EgressConfig{DialContext: func(ctx context.Context, kind, addr string) (net.Conn, error) {
		o.mu.Lock()
		o.dialed = append(o.dialed, kind+" "+addr)
		o.mu.Unlock()
		if !strings.HasPrefix(addr, "93.1.0.1:") || !strings.HasPrefix(kind, "tcp") {
			return nil, unix.ECONNREFUSED
		}
		return new(net.Dialer).DialContext(ctx, "tcp", ln.Addr().String())
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(egress.Close)
	if o.Runtime, err = gvisor.New(gvisor.Config{StateDir: t.TempDir(), Egress: egress, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
	return o
}

func (o *outside) take() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	dialed := o.dialed
	o.dialed = nil
	return dialed
}

// Rows N4 and N16: frames that root in a guest forges do not pass the policy, and the guest's
// network goes on afterwards.
func TestAttack_RawFrames(t *testing.T) {
	t.Parallel()
	config(t) // skips
	o := openOutside(t)
	in, client, err := start(t, o.Runtime, func(s *machine.Spec) { s.Network = sandbox.Network{Mode: sandbox.DenyAll} })
	if err != nil {
		t.Fatal(err)
	}
	b := box{in, client, o.Runtime}
	t.Cleanup(func() {
		client.CloseIdleConnections()
		if err := in.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
	})
	var flows struct {
		sync.Mutex
		all []sandbox.Flow
	}
	in.OnFlow(func(f sandbox.Flow) {
		flows.Lock()
		defer flows.Unlock()
		flows.all = append(flows.all, f)
	})
	out, code := b.root(t, "python3 - <<'END'"+rawFrames+"END\n")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, out)
	}
	t.Logf("frames sent: %s", out)
	if dialed := o.take(); len(dialed) > 0 {
		t.Errorf("deny-all: dialed %q", dialed)
	}
	flows.Lock()
	refused, passed := 0, 0
	for _, f := range flows.all {
		if f.Verdict == sandbox.Denied {
			refused++
		} else {
			passed++
		}
	}
	flows.Unlock()
	if refused == 0 || passed > 0 {
		t.Errorf("deny-all: %d flows are recorded as refused, %d as passed", refused, passed)
	}
	// The same frames with their true source are ordinary connections where the policy allows
	// them; those with false sources are none.
	if err := in.SetNetwork(sandbox.Network{Mode: sandbox.Custom, AllowCIDRs: []string{"93.1.0.1/32"}}); err != nil {
		t.Fatal(err)
	}
	b.want(t, "connects", `timeout 60 bash -c 'exec 3<>/dev/tcp/93.1.0.1/80 && printf "GET / HTTP/1.0\r\n\r\n" >&3 && tail -n 1 <&3'`, "outside")
	if dialed := o.take(); len(dialed) == 0 {
		t.Error("nothing was dialed when it was allowed")
	}
}
