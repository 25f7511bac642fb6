package agent_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/cayhq/cay/internal/sandboxd/guest/agent"
	"github.com/cayhq/cay/sandbox"
)

// Files of all sizes are read whole and in part, small files with one write for the whole
// answer.
func TestReadFile_Sizes(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s, err := agent.New(agent.Config{Root: root, TokenSHA256: sha256.Sum256([]byte("token"))})
	if err != nil {
		t.Fatal(err)
	}
	var writes atomic.Int32
	c, _ := serveOn(t, s, func(l net.Listener) net.Listener { return countingListener{l, &writes} })

	all := make([]byte, 300<<10)
	rand.NewChaCha8([32]byte{7}).Read(all) // never fails
	for _, size := range []int{0, 1, 1 << 10, 3 << 10, 16<<10 - 1, 16 << 10, 16<<10 + 1, 100 << 10, len(all)} {
		name := fmt.Sprintf("/f%d", size)
		if err := os.WriteFile(filepath.Join(root, name), all[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		for _, p := range []sandbox.ReadParams{{}, {Length: 1}, {Offset: 1}, {Offset: int64(size) / 2, Length: 512}, {Offset: int64(size)}, {Offset: 1 << 40}} {
			want := all[min(p.Offset, int64(size)):size]
			if p.Length > 0 {
				want = want[:min(p.Length, int64(len(want)))]
			}
			writes.Store(0)
			r, info, err := c.ReadFile(t.Context(), name, p)
			if err != nil {
				t.Fatalf("%d bytes, %+v: %v", size, p, err)
			}
			got, err := io.ReadAll(r)
			if err != nil || !bytes.Equal(got, want) || info.Size != int64(size) {
				t.Errorf("%d bytes, %+v: got %d of %d bytes, size %d, %v", size, p, len(got), len(want), info.Size, err)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			if n := writes.Load(); len(want) <= 3<<10 && n != 1 {
				t.Errorf("%d bytes, %+v: %d writes", size, p, n)
			}
		}
	}
}

// countingListener counts the writes to its connections, by any system call.
type countingListener struct {
	net.Listener
	writes *atomic.Int32
}

func (l countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return countingConn{c.(*net.TCPConn), l.writes}, nil
}

type countingConn struct {
	*net.TCPConn
	writes *atomic.Int32
}

func (c countingConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.TCPConn.Write(p)
}

func (c countingConn) ReadFrom(r io.Reader) (int64, error) {
	c.writes.Add(1)
	return c.TCPConn.ReadFrom(r)
}
