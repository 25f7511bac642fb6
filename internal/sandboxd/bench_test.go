package sandboxd_test

import (
	"testing"

	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/sandbox"
)

// BenchmarkStat is what a call costs above the guest's own answer: resolving
// the sandbox, the limits, the contexts.
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

// BenchmarkCreateDelete is a sandbox's life without a real machine in it.
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
