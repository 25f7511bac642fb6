package daemon

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/sandbox"
)

// metrics are the counters of one daemon for Prometheus.
type metrics struct {
	registry *prometheus.Registry

	phase  *prometheus.HistogramVec
	failed *prometheus.CounterVec
	ended  *prometheus.CounterVec
	live   prometheus.Gauge
	silent prometheus.Gauge

	snapshots, snapshotBytes prometheus.Gauge

	pools poolMetrics
}

var _ sandboxd.Metrics = (*metrics)(nil)

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		phase: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "cay_sandbox_create_seconds", Help: "Time of each phase of a sandbox's creation.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16), // 1 ms to 33 s
		}, []string{"phase"}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cay_sandbox_create_failed_total", Help: "Creations that failed, by error code.",
		}, []string{"code"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cay_sandbox_ended_total", Help: "Sandboxes that ran and ended, by reason.",
		}, []string{"reason"}),
		live: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cay_sandboxes", Help: "Sandboxes that hold a machine now.",
		}),
		silent: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cay_sandboxes_unresponsive", Help: "Sandboxes whose agent does not answer now.",
		}),
		snapshots: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cay_snapshots", Help: "Snapshots, with those sandboxes are hibernated in.",
		}),
		snapshotBytes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cay_snapshot_bytes", Help: "What snapshots take on disk.",
		}),
	}
	m.registry.MustRegister(m.phase, m.failed, m.ended, m.live, m.silent, m.snapshots, m.snapshotBytes, &m.pools,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) CreatePhase(phase string, d time.Duration) {
	m.phase.WithLabelValues(phase).Observe(d.Seconds())
}
func (m *metrics) CreateFailed(code cay.Code)  { m.failed.WithLabelValues(string(code)).Inc() }
func (m *metrics) Ended(reason sandbox.Reason) { m.ended.WithLabelValues(string(reason)).Inc() }
func (m *metrics) Live(n int)                  { m.live.Set(float64(n)) }
func (m *metrics) Unresponsive(n int)          { m.silent.Set(float64(n)) }

func (m *metrics) Pool(p sandbox.Pool) { m.pools.set(p) }

func (m *metrics) Snapshots(n int, bytes int64) {
	m.snapshots.Set(float64(n))
	m.snapshotBytes.Set(float64(bytes))
}
