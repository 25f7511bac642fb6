package daemon

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cayhq/cay/internal/accountd"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/compat/vercelworkflow"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/queue"
	"github.com/cayhq/cay/internal/workflowd/sqlstore"
)

// The engines implement the interfaces of the routes.
var (
	_ workflowd.Backends = (*workflowd.Engine)(nil)
	_ api.Projects       = (*accountd.Engine)(nil)
)

// openWorkflows opens the database of workflows, and continues its runs, and its messages
// for apps that replay runs themselves.
func (d *Daemon) openWorkflows(ctx context.Context) error {
	var store interface {
		workflowd.Store
		Queue() queue.Store
	}
	var err error
	if d.cfg.WorkflowDatabase != "" {
		store, err = sqlstore.OpenPostgres(ctx, d.cfg.WorkflowDatabase, sqlstore.PostgresOptions{Logger: d.log})
	} else {
		store, err = sqlstore.OpenSQLite(ctx, d.cfg.WorkflowFile(), sqlstore.SQLiteOptions{Full: d.cfg.WorkflowSync})
	}
	if err != nil {
		return err
	}
	if d.messages, err = d.openMessages(ctx, store.Queue()); err != nil {
		return errors.Join(err, store.Close())
	}
	e, err := workflowd.Open(ctx, workflowd.Config{
		Store: store, Logger: d.log, RemoteWorkers: true, Metrics: newWorkflowMetrics(d.metrics.registry),
		Retention: d.cfg.WorkflowRetention, Messages: d.messages.queue, Runtimes: map[history.Kind]workflowd.Runtime{history.JavaScript: vercelworkflow.Runtime{}},
	})
	if err != nil {
		err = errors.Join(err, d.messages.close(), store.Close())
		d.messages = nil
		return err
	}
	d.workflows = e
	return nil
}

// inUse describes the objects of a team, or of one of its projects; "" if there are none.
func (d *Daemon) inUse(ctx context.Context, teamID, projectID string) (string, error) {
	has, err := d.sandboxes.InUse(ctx, teamID, projectID)
	if err == nil && projectID == "" {
		var images string
		images, err = d.images.InUse(ctx, teamID)
		has = strings.Trim(has+", "+images, ", ")
	}
	if err != nil || projectID == "" || d.workflows == nil {
		return has, err
	}
	page, err := d.workflows.For(projectID).ListRuns(ctx, history.Query{Statuses: []history.Status{history.Pending, history.Running}, Limit: 1})
	if err != nil {
		return "", err
	}
	if len(page.Items) == 0 {
		return has, nil
	}
	return strings.TrimPrefix(has+", runs of workflows", ", "), nil
}

// workflowMetrics are the counters of workflows for Prometheus.
type workflowMetrics struct {
	commit            prometheus.Histogram
	events, failed    prometheus.Counter
	created           *prometheus.CounterVec
	ended             *prometheus.CounterVec
	took              *prometheus.HistogramVec
	assigned          *prometheus.CounterVec
	recovered         prometheus.Counter
	waited, timerLate prometheus.Histogram

	mu    sync.Mutex // guards what follows
	names map[string]bool
}

var _ workflowd.Metrics = (*workflowMetrics)(nil)

func newWorkflowMetrics(registry *prometheus.Registry) *workflowMetrics {
	short := prometheus.ExponentialBuckets(0.0001, 2, 16) // 100 µs to 3 s
	long := prometheus.ExponentialBuckets(0.001, 4, 16)   // 1 ms to 12 days
	m := &workflowMetrics{
		names: make(map[string]bool),
		commit: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "cay_workflow_commit_seconds", Help: "Time to store a group of events.", Buckets: short,
		}),
		events: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cay_workflow_events_total", Help: "Events stored.",
		}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cay_workflow_commit_failed_total", Help: "Groups of events that could not be stored.",
		}),
		created: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cay_workflow_runs_created_total", Help: "Runs created, by workflow.",
		}, []string{"workflow"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cay_workflow_runs_ended_total", Help: "Runs that ended, by workflow and status.",
		}, []string{"workflow", "status"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "cay_workflow_run_seconds", Help: "Time from a run's start to its end.", Buckets: long,
		}, []string{"workflow"}),
		assigned: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cay_workflow_runs_assigned_total", Help: "Runs given to workers, by workflow.",
		}, []string{"workflow"}),
		recovered: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cay_workflow_runs_recovered_total", Help: "Runs given to a worker because the one before was lost.",
		}),
		waited: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "cay_workflow_assign_wait_seconds", Help: "Time runs waited for a worker.", Buckets: long,
		}),
		timerLate: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "cay_workflow_timer_late_seconds", Help: "How late timers were.", Buckets: short,
		}),
	}
	registry.MustRegister(m.commit, m.events, m.failed, m.created, m.ended, m.took, m.assigned, m.recovered, m.waited, m.timerLate)
	return m
}

func (m *workflowMetrics) Committed(events int, took time.Duration, err error) {
	if err != nil {
		m.failed.Inc()
		return
	}
	m.commit.Observe(took.Seconds())
	m.events.Add(float64(events))
}

// maxWorkflowNames is how many workflows get time series of their own. Users choose the
// names, so their number is unbounded. Projects would multiply the series, and are left
// out.
const maxWorkflowNames = 500

// label returns the label under which a workflow is counted.
func (m *workflowMetrics) label(workflow string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names[workflow] {
		return workflow
	}
	if len(m.names) >= maxWorkflowNames {
		return "(other)"
	}
	m.names[workflow] = true
	return workflow
}

func (m *workflowMetrics) RunCreated(_, workflow string) {
	m.created.WithLabelValues(m.label(workflow)).Inc()
}

func (m *workflowMetrics) RunEnded(_, workflow string, status history.Status, took time.Duration) {
	workflow = m.label(workflow)
	m.ended.WithLabelValues(workflow, string(status)).Inc()
	m.took.WithLabelValues(workflow).Observe(took.Seconds())
}

func (m *workflowMetrics) RunAssigned(_, workflow string, recovered bool, waited time.Duration) {
	m.assigned.WithLabelValues(m.label(workflow)).Inc()
	if recovered {
		m.recovered.Inc()
	}
	m.waited.Observe(waited.Seconds())
}

func (m *workflowMetrics) TimerFired(late time.Duration) { m.timerLate.Observe(late.Seconds()) }
