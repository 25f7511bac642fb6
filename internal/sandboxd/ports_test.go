package sandboxd

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
)

// loopbackOnly is a guest whose programs listen on loopback addresses only.
type loopbackOnly struct {
	machine.Instance
	t *testing.T
}

func (i loopbackOnly) DialGuest(context.Context) (net.Conn, error) {
	i.t.Error("the traffic of a port goes by a connection on which it does not count")
	return nil, cay.Errorf(cay.Unavailable, "not here")
}

func (i loopbackOnly) Dial(_ context.Context, port uint16) (net.Conn, error) {
	if port != guest.Port {
		return nil, cay.Errorf(cay.Unavailable, "nothing listens on port %d", port)
	}
	ours, agents := net.Pipe()
	go func() {
		defer agents.Close()
		if _, err := http.ReadRequest(bufio.NewReader(agents)); err != nil {
			return
		}
		io.WriteString(agents, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+guest.DialProtocol+"\r\n\r\nhello")
	}()
	return ours, nil
}

// Traffic of programs on loopback addresses is counted and bounded like the rest of a
// guest's traffic.
func TestDialProgram_loopbackCounts(t *testing.T) {
	t.Parallel()
	m := &session{inst: loopbackOnly{t: t}}
	e := &Engine{cfg: Config{Limits: Limits{Answer: time.Minute}}}
	e.reach(m, "token")
	conn, err := m.dialProgram(t.Context(), 3000)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if b, err := io.ReadAll(conn); string(b) != "hello" {
		t.Errorf("read %q, %v", b, err)
	}
}
