package gvisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/sandboxd/gvisor/sentry"
)

// isSentry reports whether a process is the sentry of a machine, and not another process
// that has got the same pid. An error says nothing about the process.
func isSentry(pid int, id string) (bool, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return false, nil // it has ended
	}
	if err != nil {
		return false, fmt.Errorf("look at process %d: %w", pid, err)
	}
	args := strings.Split(strings.TrimRight(string(b), "\x00"), "\x00")
	return args[0] == sentry.Name && slices.Contains(args, "boot") && args[len(args)-1] == id, nil
}

// sentries returns the process ids of a machine's sentry: a single id, or no id.
func sentries(id string) ([]int, error) {
	// filepath.Glob would treat a directory that cannot be opened as empty.
	all, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, dir := range all {
		pid, err := strconv.Atoi(dir.Name())
		if err != nil {
			continue
		}
		is, err := isSentry(pid, id)
		if err != nil {
			return nil, err
		}
		if is {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
