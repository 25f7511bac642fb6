package agent

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
)

// memory is the machine's memory. The agent asks it before it unpacks files, because a
// small archive may become any number of files. gVisor keeps the names of all files in
// memory, and the contents of files on a tmpfs. A machine that uses up its memory is
// ended as a whole.
type memory struct {
	look func() (memoryUse, error) // nil: the machine is not the agent's

	mu     sync.Mutex // guards what follows
	credit int64      // bytes that may be taken before the next look
}

// memoryUse says where a machine's memory is, in bytes.
type memoryUse struct {
	limit    int64
	programs int64 // and memory file systems
	// The memory of gVisor itself: the total from the system, its heap's share of the
	// total, and the part of the heap in use, garbage included. 0 for other kernels,
	// which do not say.
	sentry, heap, inUse int64
}

const (
	// freeMemory is how many bytes of names, and of content, an archive may take without
	// asking: other requests take as much.
	freeMemory = 2 << 20
	// memoryStep is how many bytes are taken between two looks.
	memoryStep = 8 << 20
	// minReserve, or 1/reservePart of all memory if that is more, is left free for
	// uncounted memory, and for memory taken between two looks.
	minReserve  = 32 << 20
	reservePart = 32
	// Memory of removed files is given back a moment later: take looks again up to
	// lookAgain times, every lookAfter.
	lookAgain = 20
	lookAfter = 50 * time.Millisecond
)

func (u memoryUse) reserve() int64 { return max(minReserve, u.limit/reservePart) }

// left returns how many bytes may be taken. gVisor does not report how much of its former
// heap it has returned. It returns memory slowly, so left counts none as returned.
func (u memoryUse) left() int64 {
	return u.limit - u.programs - u.sentry - u.reserve()
}

// leftForNames returns how many bytes of names may be taken. Names are on gVisor's heap,
// which grows to twice the size of its live objects before the garbage is collected.
// Names that fit into the heap at its present size may be taken in any case.
func (u memoryUse) leftForNames() int64 {
	return max((u.limit-u.programs-u.reserve())/2-u.inUse, u.heap-u.inUse)
}

func (u memoryUse) full() error {
	return cay.Errorf(cay.NoSpace, "the sandbox's %d MiB of memory have no room for it beside what runs", u.limit>>20).
		WithHint("unpack fewer files, none of them to a memory file system such as /dev/shm, or give the sandbox more memory")
}

// take takes n bytes. Errors: no_space.
func (m *memory) take(ctx context.Context, n int64) error {
	if m.look == nil {
		return nil
	}
	for try := 0; ; try++ {
		use, ok, err := m.tryTake(n)
		if err != nil || ok {
			return err
		}
		if try == lookAgain {
			return use.full()
		}
		select {
		case <-time.After(lookAfter):
		case <-ctx.Done():
			return &begunError{ctx.Err()}
		}
	}
}

func (m *memory) tryTake(n int64) (memoryUse, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.credit >= n {
		m.credit -= n
		return memoryUse{}, true, nil
	}
	use, err := m.look()
	if err != nil {
		return memoryUse{}, false, err
	}
	if m.credit = min(use.left()-n, memoryStep); m.credit >= 0 {
		return use, true, nil
	}
	m.credit = 0
	return use, false, nil
}

// taking is the memory that one archive takes.
type taking struct {
	memory         *memory
	names, content int64
	maxNames       int64 // 0: not known yet
}

// takeName takes the memory of a member's name and metadata. Errors: no_space.
func (t *taking) takeName(ctx context.Context, h *tar.Header) error {
	n := nameCost(h)
	if t.names += n; t.names <= freeMemory || t.memory.look == nil {
		return nil
	}
	if t.maxNames == 0 {
		use, err := t.memory.look()
		if err != nil {
			return err
		}
		t.maxNames = max(use.leftForNames(), freeMemory)
	}
	if t.names > t.maxNames {
		use, err := t.memory.look()
		if err != nil {
			return err
		}
		return use.full()
	}
	return t.memory.take(ctx, n)
}

// nameCost is about how many bytes of gVisor's memory a member takes in addition to its
// content.
func nameCost(h *tar.Header) int64 {
	n := 2400 + len(h.Name) + len(h.Linkname) // measured for empty files
	for record, value := range h.PAXRecords {
		n += len(record) + len(value)
	}
	return int64(n)
}

// takeContent takes the memory of n bytes of content on a tmpfs. Errors: no_space.
func (t *taking) takeContent(ctx context.Context, n int64) error {
	if t.content += n; t.content <= freeMemory {
		return nil
	}
	return t.memory.take(ctx, n)
}

// takingReader takes memory for the bytes that are read.
type takingReader struct {
	ctx    context.Context // of the request
	r      io.Reader
	taking *taking
}

func (t *takingReader) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	if takeErr := t.taking.takeContent(t.ctx, int64(n)); takeErr != nil {
		return 0, takeErr
	}
	return n, err
}

// memoryUse looks where the machine's memory is.
func (s *Server) memoryUse() (u memoryUse, err error) {
	guest, err := readMeminfo("/proc/meminfo", "MemTotal:", "MemFree:")
	if err != nil {
		return memoryUse{}, err
	}
	u.limit, u.programs = guest[0], guest[0]-guest[1]
	if set := s.self().request.MemoryBytes; set > 0 {
		u.limit = min(u.limit, set)
	}
	sentry, err := readMeminfo("/proc/sentry-meminfo", "Sys:", "HeapSys:", "HeapAlloc:")
	if errors.Is(err, fs.ErrNotExist) {
		return u, nil
	}
	if err != nil {
		return memoryUse{}, err
	}
	u.sentry, u.heap, u.inUse = sentry[0], sentry[1], sentry[2]
	return u, nil
}

// readMeminfo reads lines of a file like /proc/meminfo, in bytes.
func readMeminfo(name string, keys ...string) ([]int64, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	values := make([]int64, len(keys))
	for i, key := range keys {
		_, rest, ok := bytes.Cut(append([]byte{'\n'}, data...), []byte("\n"+key))
		fields := bytes.Fields(rest)
		if !ok || len(fields) == 0 {
			return nil, cay.Errorf(cay.Internal, "%s has no %q", name, key)
		}
		n, err := strconv.ParseInt(string(fields[0]), 10, 64)
		if err != nil {
			return nil, cay.Errorf(cay.Internal, "%s: %q: %w", name, key, err)
		}
		values[i] = n << 10
	}
	return values, nil
}

// inMemory reports whether the contents of a directory's files are in memory: true on a
// tmpfs, except on a drive, which gVisor shows as a tmpfs without a bound on the number
// of files.
func inMemory(dir int) (bool, error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(dir, &fs); err != nil {
		return false, err
	}
	return fs.Type == unix.TMPFS_MAGIC && fs.Files > 0, nil
}
