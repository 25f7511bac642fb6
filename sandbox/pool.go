package sandbox

// Pool is a stock of booted, unused machines, from which sandboxes of one kind
// are made in milliseconds. When the pool is empty, new sandboxes boot as they
// do without a pool.
type Pool struct {
	Image    string  `json:"image"`
	Runtime  string  `json:"runtime,omitempty"`
	VCPUs    float64 `json:"vcpus"`
	MemoryMB int64   `json:"memory_mb"`
	DiskMB   int64   `json:"disk_mb"`
	Target   int     `json:"target"`   // how many there should be
	Ready    int     `json:"ready"`    // how many wait
	Starting int     `json:"starting"` // how many are on their way
	Claims   int64   `json:"claims"`   // sandboxes that came from it, since the daemon started
	Misses   int64   `json:"misses"`   // sandboxes that found the pool empty
	// Problem is why the last machine did not start; empty if the start
	// succeeded.
	Problem string `json:"problem,omitempty"`
}
