package faults

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"
)

// pause stops a process for a while, as a machine under load or a suspended virtual
// machine does, and calls f meanwhile. The process continues earlier when ctx ends.
func pause(ctx context.Context, p *os.Process, d time.Duration, f func()) error {
	if err := p.Signal(syscall.SIGSTOP); errors.Is(err, os.ErrProcessDone) {
		f()
		return nil
	} else if err != nil {
		return err
	}
	f()
	long := time.NewTimer(d)
	defer long.Stop()
	select {
	case <-long.C:
	case <-ctx.Done():
	}
	return p.Signal(syscall.SIGCONT)
}
