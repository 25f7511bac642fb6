package sandboxd_test

import (
	"testing"

	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/sandbox"
)

// BenchmarkStat measures the engine's share of a call, without the guest's: resolving the
// sandbox, limits, contexts.
func BenchmarkStat(b *testing.B) {
	h, _ := startFake(b)
	ctx := defaultCaller(b)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{}))(b)
	for name, ref := range map[string]string{"ByID": s.ID, "ByName": s.Name} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := h.Stat(ctx, ref, ".", false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCreateDelete measures a sandbox's life without a real machine.
func BenchmarkCreateDelete(b *testing.B) {
	h, _ := startFake(b)
	ctx := defaultCaller(b)
	for b.Loop() {
		s, err := h.Create(ctx, sandbox.CreateParams{})
		if err != nil {
			b.Fatal(err)
		}
		if err := h.Delete(ctx, s.ID); err != nil {
			b.Fatal(err)
		}
	}
}
