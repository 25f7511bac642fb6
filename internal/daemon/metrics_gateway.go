package daemon

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cayhq/cay/internal/gatewayd"
)

// gatewayMetrics are the counters of the AI gateway for Prometheus. Metrics and
// labels have the names of OpenTelemetry's conventions for generative AI, if these
// define one, in Prometheus's spelling: gen_ai.server.request.duration, in
// seconds, is gen_ai_server_request_duration_seconds.
type gatewayMetrics struct {
	open       prometheus.Gauge
	took       *prometheus.HistogramVec
	firstToken *prometheus.HistogramVec
	perToken   *prometheus.HistogramVec
	tokens     *prometheus.HistogramVec
	cost       *prometheus.CounterVec
	unpriced   *prometheus.CounterVec
	attempts   *prometheus.CounterVec
	attempt    *prometheus.HistogramVec
	circuits   *prometheus.CounterVec

	mu     sync.Mutex // guards what follows
	models map[string]bool
}

var _ gatewayd.Metrics = (*gatewayMetrics)(nil)

func newGatewayMetrics(registry *prometheus.Registry) *gatewayMetrics {
	long := prometheus.ExponentialBuckets(0.01, 2, 16)    // 10 ms to 5 min
	short := prometheus.ExponentialBuckets(0.0005, 2, 14) // 0.5 ms to 4 s
	of := []string{"gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model"}
	more := func(labels ...string) []string { return append(append([]string(nil), of...), labels...) }
	m := &gatewayMetrics{
		models: make(map[string]bool),
		open:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "cay_gateway_open_requests", Help: "Calls of models under way."}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gen_ai_server_request_duration_seconds", Help: "Time of calls of models.", Buckets: long,
		}, more("status", "error_type")),
		firstToken: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gen_ai_server_time_to_first_token_seconds", Help: "Time to the first token.", Buckets: long,
		}, of),
		perToken: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gen_ai_server_time_per_output_token_seconds", Help: "Time for a token after the first.", Buckets: short,
		}, of),
		tokens: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gen_ai_client_token_usage", Help: "Tokens of a call; the sum is of all calls.", Buckets: prometheus.ExponentialBuckets(1, 4, 14), // to 67 million, as the conventions have them
		}, more("gen_ai_token_type")),
		cost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cay_gateway_cost_dollars_total", Help: "What was charged, of calls whose price is known.",
		}, of),
		unpriced: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cay_gateway_unpriced_total", Help: "Calls whose price is unknown.",
		}, of),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cay_gateway_attempts_total", Help: "Calls of providers, by HTTP status; 0 if there was none.",
		}, []string{"gen_ai_provider_name", "gen_ai_request_model", "http_status", "ok"}),
		attempt: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gen_ai_client_operation_duration_seconds", Help: "Time of calls of providers.", Buckets: long,
		}, []string{"gen_ai_provider_name"}),
		circuits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cay_gateway_circuits_opened_total", Help: "How often an endpoint failed so much that it was left alone for a while.",
		}, []string{"gen_ai_provider_name", "gen_ai_request_model"}),
	}
	registry.MustRegister(m.open, m.took, m.firstToken, m.perToken, m.tokens, m.cost, m.unpriced, m.attempts, m.attempt, m.circuits)
	return m
}

// maxModelNames is how many models get time series of their own: callers can name
// any model of some providers.
const maxModelNames = 500

func (m *gatewayMetrics) model(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.models[name] {
		return name
	}
	if len(m.models) >= maxModelNames {
		return "(other)"
	}
	m.models[name] = true
	return name
}

// operations maps kinds of calls to the operation names of OpenTelemetry's
// conventions.
var operations = map[string]string{"language": "chat", "embedding": "embeddings", "image": "generate_content"}

func (m *gatewayMetrics) Began() { m.open.Inc() }

func (m *gatewayMetrics) Ended(e gatewayd.Ended) {
	m.open.Dec()
	operation := operations[e.Kind]
	if operation == "" {
		operation = e.Kind
	}
	of := []string{operation, e.Provider, m.model(e.Model)}
	m.took.WithLabelValues(append(of[:3:3], e.Status, e.ErrorKind)...).Observe(e.Took.Seconds())
	if e.FirstToken > 0 {
		m.firstToken.WithLabelValues(of...).Observe(e.FirstToken.Seconds())
	}
	if e.PerOutputToken > 0 {
		m.perToken.WithLabelValues(of...).Observe(e.PerOutputToken.Seconds())
	}
	if e.Input > 0 {
		m.tokens.WithLabelValues(append(of[:3:3], "input")...).Observe(float64(e.Input))
	}
	if e.Output > 0 {
		m.tokens.WithLabelValues(append(of[:3:3], "output")...).Observe(float64(e.Output))
	}
	switch {
	case !e.Priced:
		m.unpriced.WithLabelValues(of...).Inc()
	case e.Cost > 0:
		m.cost.WithLabelValues(of...).Add(e.Cost)
	}
}

func (m *gatewayMetrics) Attempted(provider, model string, status int, ok bool, took time.Duration) {
	m.attempts.WithLabelValues(provider, m.model(model), strconv.Itoa(status), strconv.FormatBool(ok)).Inc()
	m.attempt.WithLabelValues(provider).Observe(took.Seconds())
}

func (m *gatewayMetrics) CircuitOpened(provider, model string) {
	m.circuits.WithLabelValues(provider, m.model(model)).Inc()
}
