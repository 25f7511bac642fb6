package daemon

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// ballast is memory that is never touched, in bytes, and takes no RAM. The garbage collector
// runs when the heap has doubled, and the heap of an idle daemon is so small that a thousand
// calls of the gateway double it. With the ballast the collector runs a third as often.
const ballast = 16 << 20

// newBallast returns the ballast, to be kept for as long as the daemon runs; nil if there is
// a memory limit, which the ballast would count against.
func newBallast() []byte {
	if debug.SetMemoryLimit(-1) != math.MaxInt64 {
		return nil
	}
	return make([]byte, ballast)
}

// settle frees memory that only the start has needed: garbage, and the program's own pages
// that were read from its file, which are most of the daemon's memory in RAM. The pages stay
// in the page cache, from which later accesses map them again.
func settle(ctx context.Context, log *slog.Logger) {
	debug.FreeOSMemory()
	if err := forgetProgram(); err != nil {
		log.DebugContext(ctx, "pages of the program are kept", "error", err)
	}
}

// forgetProgram unmaps pages of the program's text and constants, which are all identical to
// the program's file.
func forgetProgram() error {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return fmt.Errorf("read this process's memory: %w", err)
	}
	defer maps.Close()
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasSuffix(line, " "+program) {
			continue
		}
		var from, to uintptr
		var mode string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); n != 3 || strings.Contains(mode, "w") {
			continue
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("forget pages of the program: %w", errno)
		}
	}
	return lines.Err()
}
