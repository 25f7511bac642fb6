package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// memory is the memory of processes, in bytes. Shared memory counts for each
// process in proportion.
type memory struct {
	pss  float64 // all of it
	file float64 // the part that files on disk back: page cache
}

// idle makes n idle boxes and measures their memory. Each box is one sample: its
// processes with all descendants, and an equal share of the daemon's growth.
func idle(d *Daemon) opener {
	return func(ctx context.Context, r runner, n int) (_ *Session, err error) {
		_, ours := r.(*daemonRunner)
		// The first sandbox has costs that later ones do not repeat.
		first, err := r.create(ctx)
		if err != nil {
			return nil, err
		}
		boxes := []box{first}
		defer func() {
			if err != nil {
				err = errors.Join(err, removeAll(ctx, boxes))
			}
		}()
		var before, grown memory
		if ours {
			if before, err = pssOf(d.PID); err != nil {
				return nil, err
			}
		}
		freeBefore, err := memAvailable()
		if err != nil {
			return nil, err
		}
		more, err := createAll(ctx, r, n, 4)
		boxes = append(boxes, more...)
		if err != nil {
			return nil, err
		}
		freeAfter, err := memAvailable()
		if err != nil {
			return nil, err
		}
		if ours {
			after, err := pssOf(d.PID)
			if err != nil {
				return nil, err
			}
			grown = memory{after.pss - before.pss, after.file - before.file}
		}
		samples, err := weigh(ctx, more)
		if err != nil {
			return nil, err
		}
		share, next := float64(n)*1e6, 0
		return &Session{
			Sample: func(context.Context) ([]float64, error) {
				m := samples[next]
				next++
				return []float64{
					(m.pss-m.file)/1e6 + (grown.pss-grown.file)/share,
					m.pss/1e6 + grown.pss/share,
					(freeBefore - freeAfter) / share,
				}, nil
			},
			Close: func(ctx context.Context) error { return removeAll(ctx, boxes) },
		}, nil
	}
}

// weigh returns the memory of each box.
func weigh(ctx context.Context, boxes []box) ([]memory, error) {
	children, err := childProcesses()
	if err != nil {
		return nil, err
	}
	all := make([]memory, len(boxes))
	for i, b := range boxes {
		pids, err := b.processes(ctx)
		if err != nil {
			return nil, err
		}
		if len(pids) == 0 {
			return nil, errors.New("an idle box has no process")
		}
		seen, parent := map[int]bool{}, map[int]int{}
		for len(pids) > 0 {
			pid := pids[0]
			pids = pids[1:]
			if seen[pid] {
				continue
			}
			seen[pid] = true
			for _, child := range children[pid] {
				parent[child] = pid
			}
			pids = append(pids, children[pid]...)
			if p, ok := parent[pid]; ok {
				if counted, err := shareMemory(p, pid); err != nil {
					return nil, err
				} else if counted {
					continue
				}
			}
			m, err := pssOf(pid)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
				continue // a helper that has ended
			}
			if err != nil {
				return nil, err
			}
			all[i].pss += m.pss
			all[i].file += m.file
		}
	}
	return all, nil
}

// shareMemory reports whether two processes have one address space, as the
// processes in which gVisor runs a guest's program do. The kernel reports the
// whole memory for both.
func shareMemory(a, b int) (bool, error) {
	const addressSpaces = 1 // KCMP_VM
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), addressSpaces, 0, 0, 0)
	switch errno {
	case 0:
		return order == 0, nil
	case unix.ESRCH: // one has ended
		return false, nil
	}
	return false, fmt.Errorf("compare memory of processes %d and %d: %w", a, b, errno)
}

// childProcesses returns the processes below each process.
func childProcesses() (map[int][]int, error) {
	procs, err := procfs.AllProcs()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	children := map[int][]int{}
	for _, p := range procs {
		st, err := p.Stat()
		if err != nil {
			continue // it has ended
		}
		children[st.PPID] = append(children[st.PPID], p.PID)
	}
	return children, nil
}

// processesNaming returns the processes that have id as an argument.
func processesNaming(id string) ([]int, error) {
	procs, err := procfs.AllProcs()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, p := range procs {
		argv, err := p.CmdLine()
		if err == nil && slices.Contains(argv, id) {
			pids = append(pids, p.PID)
		}
	}
	return pids, nil
}

// pssOf reads the memory of one process.
func pssOf(pid int) (memory, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return memory{}, fmt.Errorf("read memory of process: %w", err)
	}
	defer f.Close()
	var m memory
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
		if err != nil {
			continue // the heading
		}
		switch name {
		case "Pss":
			m.pss = kib * 1024
		case "Pss_File":
			m.file = kib * 1024
		}
	}
	if err := lines.Err(); err != nil {
		return memory{}, fmt.Errorf("read memory of process %d: %w", pid, err)
	}
	return m, nil
}

// memAvailable returns how many bytes of the machine's memory are available to
// programs. To the kernel's number it adds the free pages that each processor
// keeps for itself: after much memory was freed they amount to hundreds of
// megabytes, which return over a minute.
func memAvailable() (float64, error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, fmt.Errorf("read free memory: %w", err)
	}
	m, err := fs.Meminfo()
	if err != nil {
		return 0, fmt.Errorf("read free memory: %w", err)
	}
	if m.MemAvailableBytes == nil {
		return 0, errors.New("this kernel does not tell how much memory is available")
	}
	zones, err := os.ReadFile("/proc/zoneinfo")
	if err != nil {
		return 0, fmt.Errorf("read free memory: %w", err)
	}
	return float64(*m.MemAvailableBytes + keptPages(string(zones))*uint64(os.Getpagesize())), nil
}

// keptPages returns the free pages of processors in the text of /proc/zoneinfo.
func keptPages(zones string) (pages uint64) {
	for line := range strings.Lines(zones) {
		name, count, _ := strings.Cut(strings.TrimSpace(line), ":")
		if n, err := strconv.ParseUint(strings.TrimSpace(count), 10, 64); err == nil && name == "count" {
			pages += n
		}
	}
	return pages
}
