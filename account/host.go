package account

import (
	"context"
	"time"

	"github.com/cayhq/cay/internal/wire"
)

// Host is the load of the machine that a daemon runs on. If the daemon is in a cgroup with
// limits, the limits count as the machine's size.
type Host struct {
	Version   string    `json:"version"` // of cay
	StartedAt time.Time `json:"started_at"`
	UptimeMS  int64     `json:"uptime_ms"` // of the daemon
	ReadAt    time.Time `json:"read_at"`   // time of the values below; at most a second ago

	CPUs float64 `json:"cpus"`
	// Load is the average number of tasks that ran or were runnable in the last 1, 5 and 15
	// minutes, on the whole machine, as its kernel counts them.
	Load [3]float64 `json:"load"`
	// CPUBusy is the part of the CPUs' time that was used during the last CPUWindowMS, 0 to
	// 1. Nil if the kernel does not report it.
	CPUBusy     *float64 `json:"cpu_busy"`
	CPUWindowMS int64    `json:"cpu_window_ms"`

	MemoryTotalBytes     int64 `json:"memory_total_bytes"`
	MemoryAvailableBytes int64 `json:"memory_available_bytes"` // available to programs without taking memory from others
	// The space of the disk with the daemon's data; free is the space that the daemon can
	// use.
	DiskTotalBytes    int64 `json:"disk_total_bytes"`
	DiskFreeBytes     int64 `json:"disk_free_bytes"`
	DaemonMemoryBytes int64 `json:"daemon_memory_bytes"` // the daemon's own in RAM, without sandboxes

	Databases []Database `json:"databases"`
}

// Database is a database of a daemon.
type Database struct {
	Name      string `json:"name"`                 // such as "cay"
	SizeBytes int64  `json:"size_bytes,omitempty"` // of its files; 0 if Elsewhere
	Elsewhere bool   `json:"elsewhere,omitempty"`  // it is on a database server, not in the data directory
}

// Host returns the load of the daemon's machine. Admin tokens only, since it shows the
// combined load of all teams. Errors: permission_denied.
func (c *Client) Host(ctx context.Context) (*Host, error) {
	return call[Host](ctx, c, wire.Request{Method: "GET", Path: "/v1/host"})
}
