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
	// paceWindow is how long the host is looked at, at least, and paceMemory how
	// old what was seen may be.
	paceWindow = 100 * time.Millisecond
	paceMemory = time.Second
	// pacePressure is the share of the time in which something has to wait for a
	// CPU from which on the host has none to spare.
	pacePressure = 0.75
	// pacePatience is how long it is waited for: a start takes 0.1 s of CPU, so
	// a host that is never idle gives the pools a twentieth of one.
	pacePatience = 2 * time.Second
)

// pacer tells whether the host has CPU time to spare. It is for one goroutine.
type pacer struct {
	at      time.Time
	stalled uint64 // microseconds in which something had to wait, at that time
	noPSI   bool   // the kernel does not tell
}

// spare is Config.SpareCPU.
func (p *pacer) spare(ctx context.Context, anew bool) error {
	if anew {
		p.at = time.Time{}
	}
	until := time.Now().Add(pacePatience)
	for {
		pressed, err := p.look(ctx)
		if err != nil {
			return err
		}
		if !pressed || time.Now().After(until) {
			return nil
		}
	}
}

// look reports whether the host was short of CPU lately.
func (p *pacer) look(ctx context.Context) (bool, error) {
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
		return stat.ProcessesRunning > uint64(runtime.NumCPU()+1), nil // one is us
	}
	return float64(p.stalled-before.stalled) > pacePressure*float64(p.at.Sub(before.at).Microseconds()), nil
}

// read takes note of how long something had to wait for a CPU until now.
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

// pooledMB is what a machine that waits takes of the host's memory.
const pooledMB = 16

// checkRoom returns an error if another machine beside so many that wait would
// leave less than half of the memory to all but the pools. Errors: no_space.
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
		return nil // a kernel that does not tell
	}
	free := int64(*memory.MemAvailableBytes>>20) + waiting*pooledMB
	if (waiting+1)*pooledMB > free/2 {
		return cay.Errorf(cay.NoSpace, "%d machines wait already, and pools take no more than half of the %d MiB of free memory", waiting, free)
	}
	return nil
}
