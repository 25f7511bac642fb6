package sandboxd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
)

const (
	// paceWindow is the minimal period over which the host is measured, and paceMemory
	// the maximal age of the measurement at its start.
	paceWindow = 100 * time.Millisecond
	paceMemory = time.Second
	// pacePressure is the share of time with a task waiting for a CPU above which the
	// host has no CPU to spare.
	pacePressure = 0.75
	// pacePatience bounds the wait for spare CPU: a start takes 0.1 s of CPU, so on a
	// host that is never idle the pools take a twentieth of a CPU.
	pacePatience = 2 * time.Second
)

// pacer tells whether the host has CPU time to spare. It is used by one goroutine.
type pacer struct {
	at      time.Time
	stalled uint64 // microseconds with a task waiting for a CPU, up to at
	noPSI   bool   // the kernel has no pressure stall information
}

// spare implements Config.SpareCPU.
func (p *pacer) spare(ctx context.Context, anew bool) error {
	if anew {
		p.at = time.Time{}
	}
	until := time.Now().Add(pacePatience)
	for {
		pressed, err := p.shortOfCPU(ctx)
		if err != nil {
			return err
		}
		if !pressed || time.Now().After(until) {
			return nil
		}
	}
}

// shortOfCPU reports whether the host was short of CPU during the last paceWindow.
func (p *pacer) shortOfCPU(ctx context.Context) (bool, error) {
	host, err := procfs.NewDefaultFS()
	if err != nil {
		return false, fmt.Errorf("look at the host: %w", err)
	}
	if p.noPSI || time.Since(p.at) > paceMemory {
		if err := p.read(host); err != nil {
			return false, err
		}
	}
	if rest := paceWindow - time.Since(p.at); rest > 0 {
		timer := time.NewTimer(rest)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
	before := *p
	if err := p.read(host); err != nil {
		return false, err
	}
	if p.noPSI {
		stat, err := host.Stat()
		if err != nil {
			return false, fmt.Errorf("read what runs: %w", err)
		}
		return stat.ProcessesRunning > uint64(runtime.NumCPU()+1), nil // this process is one
	}
	return float64(p.stalled-before.stalled) > pacePressure*float64(p.at.Sub(before.at).Microseconds()), nil
}

// read records the time and the stall counter.
func (p *pacer) read(host procfs.FS) error {
	p.at = time.Now()
	if p.noPSI {
		return nil
	}
	psi, err := host.PSIStatsForResource("cpu")
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.EOPNOTSUPP): // not built in, or switched off
		p.noPSI = true
		return nil
	case err != nil:
		return fmt.Errorf("read pressure on the CPU: %w", err)
	case psi.Some == nil:
		p.noPSI = true
		return nil
	}
	p.stalled = psi.Some.Total
	return nil
}

// pooledMB is the memory of the host that a waiting machine takes, in MiB.
const pooledMB = 16

// checkRoom returns an error if one more waiting machine, in addition to those already
// waiting, would leave less than half of the free memory to everything but the pools.
// Errors: no_space.
func checkRoom(waiting int64) error {
	host, err := procfs.NewDefaultFS()
	if err != nil {
		return fmt.Errorf("look at the host: %w", err)
	}
	memory, err := host.Meminfo()
	if err != nil {
		return fmt.Errorf("read free memory: %w", err)
	}
	if memory.MemAvailableBytes == nil {
		return nil // the kernel does not report it
	}
	free := int64(*memory.MemAvailableBytes>>20) + waiting*pooledMB
	if (waiting+1)*pooledMB > free/2 {
		return cay.Errorf(cay.NoSpace, "%d machines wait already, and pools take no more than half of the %d MiB of free memory", waiting, free)
	}
	return nil
}
