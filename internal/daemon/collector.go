package daemon

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
)

// minGrowth is how many bytes the heap grows at least between two collections. Go's own floor
// is a heap of 4 MiB: a collection for each 350 calls of the gateway, which took a tenth of the
// gateway's CPU.
const minGrowth = 32 << 20

// The limits of GOGC that the collector sets, in percent of the live heap. The lower limit is
// Go's default, so that a large heap has the size that it has in other programs.
const (
	minGCPercent = 100
	maxGCPercent = 700
)

// A collector keeps the garbage collector of this process from running before the heap has
// grown by minGrowth: it adapts GOGC to the live heap after each collection.
type collector struct {
	percent int // in force
}

// startCollector sets GOGC for as long as the process runs. It changes nothing where the
// operator has set GOGC, or a memory limit (GOMEMLIMIT), against which the floor would count.
func startCollector() {
	if os.Getenv("GOGC") != "" || debug.SetMemoryLimit(-1) != math.MaxInt64 {
		return
	}
	c := &collector{percent: minGCPercent}
	c.adapt()
	c.await()
}

// await calls adapt after the next collection, and again after each later one: the collection
// frees an object that nothing refers to, and runs its cleanup.
func (c *collector) await() {
	type sentinel struct{ _ [64]byte } // tiny objects share their memory, and may never be freed
	runtime.AddCleanup(new(sentinel), func(c *collector) {
		c.adapt()
		c.await()
	}, c)
}

// adapt sets GOGC for the heap that the last collection left. A change of GOGC stops all
// goroutines for some microseconds, so small ones are left out.
func (c *collector) adapt() {
	live := []runtimemetrics.Sample{{Name: "/gc/heap/live:bytes"}}
	runtimemetrics.Read(live)
	if p := gcPercent(live[0].Value.Uint64()); p > c.percent+c.percent/8 || p < c.percent-c.percent/8 {
		debug.SetGCPercent(p)
		c.percent = p
	}
}

// gcPercent returns the GOGC with which a heap of that many live bytes grows by minGrowth, or
// to the double, whichever is more.
func gcPercent(live uint64) int {
	return int(min(max(minGrowth*100/max(live, 1), minGCPercent), maxGCPercent))
}
