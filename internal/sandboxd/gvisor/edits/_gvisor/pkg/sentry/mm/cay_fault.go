package mm

import (
	"errors"

	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
)

// HandleUserFault handles a page fault of the application. If the task was interrupted while
// it waited for the page, there is no error: the task does what it was interrupted for, and
// faults again.
func (mm *MemoryManager) HandleUserFault(ctx context.Context, addr hostarch.Addr, at hostarch.AccessType, sp hostarch.Addr) error {
	err := mm.handleFault(ctx, addr, at, sp)
	var bus *memmap.BusError
	if errors.As(err, &bus) && linuxerr.Equals(linuxerr.ErrInterrupted, bus.Err) {
		return nil
	}
	return err
}
