package daemon

import (
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cayhq/cay/sandbox"
)

// poolMetrics reports the state of the pools to Prometheus.
type poolMetrics struct {
	mu    sync.Mutex
	pools map[poolLabels]sandbox.Pool // guarded by mu
}

var _ prometheus.Collector = (*poolMetrics)(nil)

// poolLabels identify a pool.
type poolLabels [5]string

var poolLabelNames = []string{"image", "runtime", "vcpus", "memory_mb", "disk_mb"}

// set records the counters of a pool.
func (m *poolMetrics) set(p sandbox.Pool) {
	labels := poolLabels{
		p.Image, p.Runtime, strconv.FormatFloat(p.VCPUs, 'g', -1, 64), strconv.FormatInt(p.MemoryMB, 10), strconv.FormatInt(p.DiskMB, 10),
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pools == nil {
		m.pools = make(map[poolLabels]sandbox.Pool)
	}
	m.pools[labels] = p
}

// poolMetric is one number of a pool.
type poolMetric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(sandbox.Pool) float64
}

func newPoolMetric(name, help string, kind prometheus.ValueType, of func(sandbox.Pool) float64) poolMetric {
	return poolMetric{prometheus.NewDesc("cay_pool_"+name, help, poolLabelNames, nil), kind, of}
}

var poolMetricList = []poolMetric{
	newPoolMetric("target", "Machines that should wait in a pool.", prometheus.GaugeValue,
		func(p sandbox.Pool) float64 { return float64(p.Target) }),
	newPoolMetric("ready", "Machines that wait in a pool.", prometheus.GaugeValue,
		func(p sandbox.Pool) float64 { return float64(p.Ready) }),
	newPoolMetric("starting", "Machines of a pool that boot.", prometheus.GaugeValue,
		func(p sandbox.Pool) float64 { return float64(p.Starting) }),
	newPoolMetric("claims_total", "Sandboxes that came from a pool.", prometheus.CounterValue,
		func(p sandbox.Pool) float64 { return float64(p.Claims) }),
	newPoolMetric("misses_total", "Sandboxes that would have come from a pool, had it not been empty.", prometheus.CounterValue,
		func(p sandbox.Pool) float64 { return float64(p.Misses) }),
}

// Describe implements prometheus.Collector.
func (m *poolMetrics) Describe(descs chan<- *prometheus.Desc) {
	for _, metric := range poolMetricList {
		descs <- metric.desc
	}
}

// Collect implements prometheus.Collector.
func (m *poolMetrics) Collect(metrics chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for labels, p := range m.pools {
		for _, metric := range poolMetricList {
			metrics <- prometheus.MustNewConstMetric(metric.desc, metric.kind, metric.of(p), labels[:]...)
		}
	}
}
