package gvisor_test

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/sandboxd/machine"
)

// A machine that runs holds no thread of the daemon: each goroutine that waits for it
// waits in Go's poller. The test is not parallel, because it looks at all goroutines.
func TestThreads(t *testing.T) {
	f := openForkable(t, nil)
	const more = 4 // half of them with a pager
	dir := f.checkpoint(t)
	for i := range more {
		start := f.runtime.Start
		if i%2 == 0 {
			start = func(ctx context.Context, spec machine.Spec) (machine.Instance, error) {
				return f.runtime.Restore(ctx, spec, dir)
			}
		}
		in, err := start(t.Context(), f.another())
		if err != nil {
			t.Fatal(err)
		}
		box := f.own(t, in)
		if _, err := box.Health(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var inCalls []string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); runtime.Gosched() {
		if inCalls = inSystemCalls(); len(inCalls) < more {
			return
		}
	}
	t.Errorf("%d goroutines stay in system calls, each with a thread:\n%s", len(inCalls), strings.Join(inCalls, "\n\n"))
}

// inSystemCalls returns the stacks of the goroutines that are in system calls.
func inSystemCalls() (stacks []string) {
	buf := make([]byte, 4<<20)
	for _, stack := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		header, _, _ := strings.Cut(stack, "\n")
		if strings.Contains(header, "[syscall") && !strings.Contains(stack, "os/signal") {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}
