package intercept

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// tape is a guest's connection that records the sizes of writes.
type tape struct {
	net.Conn
	mu     sync.Mutex // guards what follows
	writes []int
	broken error
}

func (t *tape) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.broken != nil {
		return 0, t.broken
	}
	t.writes = append(t.writes, len(p))
	return t.Conn.Write(p)
}

// rewind returns the sizes of the writes since the last call. Later writes fail with
// broken, unless it is nil.
func (t *tape) rewind(broken error) []int {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.writes
	t.writes, t.broken = nil, broken
	return w
}

// handshaken returns the server's HTTP/1.1 connection in TLS, the connection below it,
// and the guest's end.
func handshaken(t *testing.T, m Memory) (*http1Conn, *tape, *tls.Conn) {
	t.Helper()
	w := newWorld(t, allow(host))
	ours, guests := net.Pipe()
	below := &tape{Conn: ours}
	s := w.session(host, 443)
	s.Memory = m
	g := newGuest(below, s, true)
	client := tls.Client(guests, &tls.Config{RootCAs: w.guestTrust(), ServerName: host, NextProtos: []string{"http/1.1"}})
	t.Cleanup(func() {
		_ = guests.Close() // before its writers end
		_ = g.Close()
	})
	shaken := make(chan error, 1)
	go func() { shaken <- client.HandshakeContext(t.Context()) }()
	ended, err := w.proxy.handshake(context.Background(), g, w.proxy.tls1)
	if err := errors.Join(err, receive(t, shaken, "the handshake's end")); err != nil {
		t.Fatal(err)
	}
	below.rewind(nil)
	return newHTTP1Conn(g, ended), below, client
}

func TestBatch(t *testing.T) {
	t.Parallel()
	memory := &room{given: make(chan struct{}, 10)}
	memory.left.Store(batchSize)
	conn, below, client := handshaken(t, memory)
	for _, c := range []struct {
		name   string
		size   int
		writes int // to the guest's connection
		room   int64
	}{
		{"a record", recordSize, 1, batchSize},
		{"a record and a byte", recordSize + 1, 1, batchSize},
		{"three records", 3 * recordSize, 1, batchSize},
		{"eight records", 8 * recordSize, 3, batchSize},
		{"eight records without room", 8 * recordSize, 8, batchSize - 1},
	} {
		memory.left.Store(c.room)
		data := []byte(strings.Repeat(c.name, c.size/len(c.name)+1)[:c.size])
		got := make(chan []byte, 1)
		go func() {
			b := make([]byte, c.size)
			_, _ = io.ReadFull(client, b) // the length check finds missing bytes
			got <- b
		}()
		if n, err := conn.Write(data); n != c.size || err != nil {
			t.Fatalf("%s: wrote %d: %v", c.name, n, err)
		}
		if !bytes.Equal(receive(t, got, c.name), data) {
			t.Errorf("%s: the guest read something else", c.name)
		}
		writes := below.rewind(nil)
		if len(writes) != c.writes || slices.Max(writes) > batchSize {
			t.Errorf("%s: written as %v, want %d pieces of at most %d", c.name, writes, c.writes, batchSize)
		}
		if left := memory.left.Load(); left != c.room {
			t.Errorf("%s: %d bytes of memory are left, want %d", c.name, left, c.room)
		}
	}
}

// If the guest does not take a batch, the Write whose data is in the batch returns the
// error.
func TestBatch_Broken(t *testing.T) {
	t.Parallel()
	memory := &room{given: make(chan struct{}, 10)}
	memory.left.Store(batchSize)
	conn, below, client := handshaken(t, memory)
	go func() { _, _ = io.Copy(io.Discard, client.NetConn()) }() // until the test's end
	broken := errors.New("the guest has left")
	for _, failing := range []error{broken, nil} { // lost bytes stay lost
		below.rewind(failing)
		if _, err := conn.Write(make([]byte, 2*recordSize)); !errors.Is(err, broken) {
			t.Errorf("error %v, want %v", err, broken)
		}
		if left := memory.left.Load(); left != batchSize {
			t.Errorf("%d bytes of memory are left, want %d", left, int64(batchSize))
		}
	}
}

// An alert that TLS sends by itself, while a response is written, keeps its place in the
// order.
func TestBatch_Concurrent(t *testing.T) {
	t.Parallel()
	conn, _, client := handshaken(t, nil)
	const rounds = 50
	var writers sync.WaitGroup
	for range 2 {
		writers.Go(func() {
			for range rounds {
				if _, err := conn.Write(make([]byte, 5*recordSize)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Go(func() {
		for range rounds {
			if _, err := conn.Conn.Write([]byte{0}); err != nil { // as TLS does
				t.Error(err)
			}
		}
	})
	if err := client.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	// A record out of order would fail authentication.
	if _, err := io.CopyN(io.Discard, client, rounds*(2*5*recordSize+1)); err != nil {
		t.Error(err)
		_ = client.NetConn().Close() // no writer waits
	}
	writers.Wait()
}
