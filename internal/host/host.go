// Package host reports the load of the machine that this process runs on: CPUs, memory,
// disk. It reads the kernel's numbers, within the limits of the cgroups of the process,
// and knows no slice.
package host

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/account"
)

const (
	// fresh is how long a reading is reused.
	fresh = time.Second
	// lately is the longest window over which the CPUs are measured.
	lately = time.Minute
	// glance is the shortest window: a shorter one would measure nothing useful.
	glance = 100 * time.Millisecond
)

// Reader reads the load of the machine. Its methods may be called concurrently.
type Reader struct {
	data string // a directory on the disk that is told about
	proc string // where procfs is mounted

	mu   sync.Mutex // held during a reading; guards what follows
	work work       // when the CPUs were looked at last
	last account.Host
}

// NewReader returns a reader that reports the disk of the directory data. The measurement
// of the CPUs begins now.
func NewReader(data string) *Reader { return newReader("/proc", data) }

func newReader(proc, data string) *Reader {
	r := &Reader{data: data, proc: proc}
	if fs, err := procfs.NewFS(proc); err == nil {
		if limits, err := r.limits(); err == nil {
			r.work, _ = limits.work(fs) // an error is reported by Read
		}
	}
	return r
}

// Read returns the load of the machine, without the daemon's version and times. If the
// last reading is more than a minute old, Read takes 100 ms. Errors: canceled if ctx
// ends.
func (r *Reader) Read(ctx context.Context) (account.Host, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if since := time.Since(r.last.ReadAt); since >= 0 && since < fresh {
		return r.last, nil
	}
	h, err := r.read(ctx)
	if err != nil {
		return account.Host{}, fmt.Errorf("look at the host: %w", err)
	}
	r.last = h
	return h, nil
}

func (r *Reader) read(ctx context.Context) (h account.Host, err error) {
	fs, err := procfs.NewFS(r.proc)
	if err != nil {
		return h, err
	}
	limits, err := r.limits()
	if err != nil {
		return h, err
	}
	if time.Since(r.work.at) > lately || r.work.of != limits.spender() {
		if r.work, err = limits.work(fs); err != nil {
			return h, err
		}
	}
	if err := pause(ctx, glance-time.Since(r.work.at)); err != nil {
		return h, err
	}
	now, err := limits.work(fs)
	if err != nil {
		return h, err
	}
	h.CPUs, h.CPUBusy, h.CPUWindowMS = limits.cpus, now.busySince(r.work), now.at.Sub(r.work.at).Milliseconds()
	r.work = now

	load, err := fs.LoadAvg()
	if err != nil {
		return h, err
	}
	h.Load = [3]float64{load.Load1, load.Load5, load.Load15}
	if h.MemoryTotalBytes, h.MemoryAvailableBytes, err = limits.memory(fs); err != nil {
		return h, err
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(r.data, &disk); err != nil {
		return h, fmt.Errorf("read the disk's size: %w", err)
	}
	h.DiskTotalBytes, h.DiskFreeBytes = int64(disk.Blocks)*disk.Bsize, int64(disk.Bavail)*disk.Bsize
	self, err := fs.Self()
	if err != nil {
		return h, err
	}
	stat, err := self.Stat()
	if err != nil {
		return h, err
	}
	h.DaemonMemoryBytes = int64(stat.ResidentMemory())
	h.ReadAt = now.at.UTC()
	return h, nil
}

// work is the available CPU time up to a moment, and the used part of it, in seconds.
type work struct {
	at        time.Time
	of        string // the measured group, "" for the machine
	used, had float64
}

// busySince returns the part of the CPU time that was used since an earlier moment, nil
// if the kernel counts no time.
func (w work) busySince(before work) *float64 {
	had := w.had - before.had
	if had <= 0 {
		return nil
	}
	busy := min(max((w.used-before.used)/had, 0), 1)
	return &busy
}

// machineWork returns the CPU time of all CPUs. Time that the hypervisor gave to other
// guests (steal) counts as used, because this machine could not use it.
func machineWork(fs procfs.FS) (work, error) {
	stat, err := fs.Stat()
	if err != nil {
		return work{}, err
	}
	c := stat.CPUTotal
	used := c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ + c.Steal
	return work{at: time.Now(), used: used, had: used + c.Idle + c.Iowait}, nil
}

// machineCPUs are the CPUs this process may use.
func machineCPUs() float64 { return float64(runtime.NumCPU()) }

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
