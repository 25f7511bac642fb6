package initd_test

import (
	"io"
	"os/exec"
	"testing"

	"github.com/cayhq/cay/sandbox"
)

// The difference between the two benchmarks is the cost of the protocol and the agent.
func BenchmarkExec(b *testing.B) {
	b.Run("guest", func(b *testing.B) {
		m := boot(b, nil)
		for b.Loop() {
			o, err := m.Exec(b.Context(), sandbox.CommandParams{Argv: []string{"true"}})
			for err == nil {
				_, err = o.Next()
			}
			if err != io.EOF {
				b.Fatal(err)
			}
		}
	})
	b.Run("native", func(b *testing.B) {
		for b.Loop() {
			if err := exec.Command("true").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func BenchmarkFiles(b *testing.B) {
	const size = 100 << 20
	m := boot(b, nil)
	b.Run("write", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			if _, err := m.WriteFile(b.Context(), "/tmp/big", io.LimitReader(zeros{}, size), sandbox.WriteParams{Size: size}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("read", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			r, _, err := m.ReadFile(b.Context(), "/tmp/big", sandbox.ReadParams{})
			if err != nil {
				b.Fatal(err)
			}
			if n, err := io.Copy(io.Discard, r); err != nil || n != size {
				b.Fatal(n, err)
			}
			r.Close()
		}
	})
	b.Run("output", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			o, err := m.Exec(b.Context(), sandbox.CommandParams{Argv: []string{"head", "-c", "104857600", "/dev/zero"}})
			n := 0
			for err == nil {
				var ev sandbox.Event
				ev, err = o.Next()
				n += len(ev.Data)
			}
			if err != io.EOF || n != size {
				b.Fatal(n, err)
			}
		}
	})
}
