package gvisor_test

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cayhq/cay/internal/sandboxd/gvisor"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

// dirtySizes are the sizes, in MiB, of the memory that machines have written.
var dirtySizes = []int{0, 64, 256, 1024}

// withMemory starts a machine with a process that has written mb MiB of memory.
func withMemory(b *testing.B, mb int) *forkable {
	f := openForkable(b, nil)
	holding(b, f, mb)
	return f
}

// holding starts a process that writes mb MiB of memory, and then is almost idle.
func holding(t testing.TB, f *forkable, mb int) {
	t.Helper()
	cmd, err := f.Start(t.Context(), sandbox.CommandParams{Argv: []string{"python3", "-c", fmt.Sprintf(
		"import os,time\nx = [os.urandom(1<<20) for _ in range(%d)]\nfor n in range(1, 10**6): print(n, flush=True); time.sleep(.1)", mb)}})
	if err != nil {
		t.Fatal(err)
	}
	numbers(t, f.box, cmd.ID, 0, 1)
}

func sizes(b *testing.B, run func(b *testing.B, mb int)) {
	for _, mb := range dirtySizes {
		b.Run(fmt.Sprintf("%dMiB", mb), func(b *testing.B) { run(b, mb) })
	}
}

// end ends a machine early, once its memory is loaded.
func (x box) end(b *testing.B) {
	gvisor.AwaitLoaded(x.Instance)
	x.CloseIdleConnections()
	if err := x.Destroy(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkCheckpoint measures a save to disk; pause-ms is the part in which the machine
// is paused.
func BenchmarkCheckpoint(b *testing.B) {
	sizes(b, func(b *testing.B, mb int) {
		f := withMemory(b, mb)
		var paused time.Duration
		for b.Loop() {
			s, err := f.Instance.Checkpoint(b.Context(), f.params(b))
			if err != nil {
				b.Fatal(err)
			}
			paused += time.Duration(s.Paused)
		}
		b.ReportMetric(float64(paused.Milliseconds())/float64(b.N), "pause-ms")
	})
}

// Until the guest answers.
func BenchmarkRestore(b *testing.B) {
	sizes(b, func(b *testing.B, mb int) {
		f := withMemory(b, mb)
		dir := f.checkpoint(b)
		for b.Loop() {
			in, err := f.runtime.Restore(b.Context(), f.another(), dir)
			if err != nil {
				b.Fatal(err)
			}
			box := f.own(b, in)
			if _, err := box.Health(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			box.end(b)
			b.StartTimer()
		}
	})
}

// BenchmarkFork measures from a running machine until all forks answer, and the pause.
func BenchmarkFork(b *testing.B) {
	for _, n := range []int{1, 10} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			sizes(b, func(b *testing.B, mb int) {
				if n*mb > 4096 {
					b.Skip("too much memory")
				}
				f := withMemory(b, mb)
				var paused time.Duration
				for b.Loop() {
					boxes, p := f.forked(b, n)
					paused += p
					var g errgroup.Group
					for _, box := range boxes {
						g.Go(func() error { _, err := box.Health(b.Context()); return err })
					}
					if err := g.Wait(); err != nil {
						b.Fatal(err)
					}
					b.StopTimer()
					for _, box := range boxes {
						box.end(b)
					}
					b.StartTimer()
				}
				b.ReportMetric(float64(paused.Milliseconds())/float64(b.N), "pause-ms")
			})
		})
	}
}

// withDisk starts a machine that has written a file of mb MiB.
func withDisk(b *testing.B, mb int) *forkable {
	f := openForkable(b, func(s *machine.Spec) { s.DiskMB = 4096 })
	cmd, err := f.Start(b.Context(), sandbox.CommandParams{Argv: []string{"sh", "-c", fmt.Sprintf("head -c %d /dev/urandom > big", mb<<20)}})
	if err != nil {
		b.Fatal(err)
	}
	if done, err := f.Wait(b.Context(), cmd.ID); err != nil || done.Exit.Code != 0 {
		b.Fatal(done, err)
	}
	return f
}

func BenchmarkSaveDisk(b *testing.B) {
	sizes(b, func(b *testing.B, mb int) {
		f := withDisk(b, mb)
		for b.Loop() {
			f.saveDisk(b)
		}
	})
}

// Until the guest answers.
func BenchmarkStartFrom(b *testing.B) {
	sizes(b, func(b *testing.B, mb int) {
		f := withDisk(b, mb)
		dir := f.saveDisk(b)
		for b.Loop() {
			in, err := f.runtime.StartFrom(b.Context(), f.another(), dir)
			if err != nil {
				b.Fatal(err)
			}
			box := f.own(b, in)
			if _, err := box.Health(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			box.CloseIdleConnections()
			if err := in.Destroy(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
}
