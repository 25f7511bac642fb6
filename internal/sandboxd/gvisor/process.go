package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cayhq/cay/internal/sandboxd/gvisor/sentry"
)

// isSentry reports whether a process is the sentry of a machine, and not
// another one that has got its number.
func isSentry(pid int, id string) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return false // it has ended
	}
	args := strings.Split(strings.TrimRight(string(b), "\x00"), "\x00")
	return args[0] == sentry.Name && slices.Contains(args, "boot") && args[len(args)-1] == id
}

// sentries returns the processes that are the sentry of a machine: one, or none.
func sentries(id string) ([]int, error) {
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, dir := range all {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err == nil && isSentry(pid, id) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
