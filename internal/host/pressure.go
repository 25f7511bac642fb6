package host

import (
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/procfs"
)

// CPUWait returns for how long, since some moment, something on the machine has had to
// wait for a CPU: its pressure stall information. Of a kernel without, the time counts
// in which more is to run than there are CPUs whenever CPUWait is called.
func CPUWait() time.Duration { return stalls.read("/proc") }

var stalls stall

// stall adds up the time in which more was to run than there are CPUs, where the kernel
// does not.
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
	short := err == nil && stat.ProcessesRunning > uint64(runtime.NumCPU()+1) // one is this
	if short && s.short {
		s.total += now.Sub(s.at)
	}
	s.at, s.short = now, short
	return s.total
}
