package host

import (
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/procfs"
)

// CPUWait returns the total time in which some task on the machine had to wait for a CPU:
// the kernel's pressure stall information (PSI). On a kernel without PSI, CPUWait itself
// adds up the time between calls that both find more runnable tasks than CPUs.
func CPUWait() time.Duration { return stalls.read("/proc") }

var stalls stall

// stall adds up the time in which there are more runnable tasks than CPUs, on kernels
// without pressure stall information.
type stall struct {
	mu    sync.Mutex // guards what follows
	at    time.Time
	short bool // of CPUs, at that time
	total time.Duration
}

func (s *stall) read(proc string) time.Duration {
	fs, err := procfs.NewFS(proc)
	if err != nil {
		return 0
	}
	if psi, err := fs.PSIStatsForResource("cpu"); err == nil && psi.Some != nil {
		return time.Duration(psi.Some.Total) * time.Microsecond
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	stat, err := fs.Stat()
	short := err == nil && stat.ProcessesRunning > uint64(runtime.NumCPU()+1) // this process is running, too
	if short && s.short {
		s.total += now.Sub(s.at)
	}
	s.at, s.short = now, short
	return s.total
}
