package agent_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/guest/agent"
)

// program listens at addr and answers each connection.
func program(t *testing.T, addr string, answer func(net.Conn)) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Skipf("no program can listen at %s here: %v", addr, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			answer(conn)
			conn.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

// echo reads until the end, and then answers with all bytes read.
func echo(conn net.Conn) {
	data, err := io.ReadAll(conn)
	if err == nil {
		_, err = conn.Write(append([]byte("you said "), data...))
	}
	_ = err // the test notices missing bytes
}

func TestDial(t *testing.T) {
	t.Parallel()
	c, _ := serve(t, nil)
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(addr, func(t *testing.T) {
			port := program(t, addr, echo)
			conn, err := c.Dial(t.Context(), port)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			long := strings.Repeat("hello", 100_000)
			if _, err := io.WriteString(conn, long); err != nil {
				t.Fatal(err)
			}
			if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(conn); err != nil || string(got) != "you said "+long {
				t.Errorf("got %d bytes, %v", len(got), err)
			}
		})
	}
}

// A program that speaks first is heard.
func TestDial_greeting(t *testing.T) {
	t.Parallel()
	c, _ := serve(t, nil)
	port := program(t, "127.0.0.1:0", func(conn net.Conn) { io.WriteString(conn, "220 ready\r\n") })
	conn, err := c.Dial(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got, err := io.ReadAll(conn); err != nil || string(got) != "220 ready\r\n" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestDial_refused(t *testing.T) {
	t.Parallel()
	c, _ := serve(t, func(c *agent.Config) { c.Limits.Relays = 1 })
	const free = 1 // a closed port could be another test's by now
	if _, err := c.Dial(t.Context(), free); cay.CodeOf(err) != cay.Unavailable {
		t.Errorf("nothing listens: %v", err)
	}
	if _, err := c.Dial(t.Context(), 0); cay.CodeOf(err) != cay.Invalid {
		t.Errorf("port 0: %v", err)
	}
	held := make(chan struct{})
	port := program(t, "127.0.0.1:0", func(net.Conn) { <-held })
	defer close(held)
	conn, err := c.Dial(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := c.Dial(t.Context(), port); cay.CodeOf(err) != cay.QuotaExceeded {
		t.Errorf("one relay more than may be: %v", err)
	}
}

// Close ends relayed connections, and waits for their end.
func TestDial_close(t *testing.T) {
	t.Parallel()
	var conn net.Conn
	t.Cleanup(func() { // when the agent is closed
		defer conn.Close()
		if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if n, err := conn.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read %d bytes, %v", n, err)
		}
	})
	port := program(t, "127.0.0.1:0", func(conn net.Conn) { _, _ = conn.Read(make([]byte, 1)) }) // until the relay ends
	c, _ := serve(t, nil)
	var err error
	if conn, err = c.Dial(t.Context(), port); err != nil {
		t.Fatal(err)
	}
}

// A dial that gets no answer ends with its context.
func TestDial_canceled(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the caller had enough")
	c := guest.NewClient(func(ctx context.Context) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		time.AfterFunc(time.Millisecond, func() { cancel(why) })
		return conn, err
	}, "token")
	if _, err := c.Dial(ctx, 80); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
}
