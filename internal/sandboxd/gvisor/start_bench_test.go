package gvisor_test

import (
	"slices"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/sandboxd/machine"
)

// BenchmarkStart measures the time until the guest answers, and the CPU time of that,
// which depends less on the load of the host.
func BenchmarkStart(b *testing.B) {
	f := openForkable(b, nil)
	var took, cpu []time.Duration
	for b.Loop() {
		began := time.Now()
		in, err := f.runtime.Start(b.Context(), f.another())
		if err != nil {
			b.Fatal(err)
		}
		box := f.own(b, in)
		if _, err := box.Health(b.Context()); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
		b.StopTimer()
		stats, err := in.Stats(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		cpu = append(cpu, time.Duration(stats.CPU))
		end(b, box, in)
		b.StartTimer()
	}
	slices.Sort(took)
	slices.Sort(cpu)
	b.ReportMetric(float64(took[0].Microseconds()), "µs-min")
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs-median")
	b.ReportMetric(float64(cpu[len(cpu)/2].Microseconds()), "cpu-µs-median")
}

func end(b *testing.B, box box, in machine.Instance) {
	box.CloseIdleConnections()
	if err := in.Destroy(b.Context()); err != nil {
		b.Fatal(err)
	}
}
