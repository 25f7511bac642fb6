package daemon

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cayhq/cay/internal/gatewayd/capture"
)

// bodyMetrics reports the kept bodies of the AI gateway to Prometheus.
type bodyMetrics struct{ store *capture.Store }

var _ prometheus.Collector = bodyMetrics{}

var (
	bodyCalls = prometheus.NewDesc("cay_gateway_bodies_total", "Calls whose bodies were to be kept: kept, dropped for lack of room, or failed to be written.", []string{"outcome"}, nil)
	bodyBytes = prometheus.NewDesc("cay_gateway_body_bytes", "What bodies that are kept take in the database.", nil, nil)
)

// Describe implements prometheus.Collector.
func (bodyMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- bodyCalls
	to <- bodyBytes
}

// Collect implements prometheus.Collector.
func (m bodyMetrics) Collect(to chan<- prometheus.Metric) {
	s := m.store.Stats()
	for outcome, n := range map[string]int64{"kept": s.Kept, "dropped": s.Dropped, "failed": s.Failed} {
		to <- prometheus.MustNewConstMetric(bodyCalls, prometheus.CounterValue, float64(n), outcome)
	}
	to <- prometheus.MustNewConstMetric(bodyBytes, prometheus.GaugeValue, float64(s.Bytes))
}
