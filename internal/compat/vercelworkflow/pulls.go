package vercelworkflow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/workflowd/queue"
)

// Pulls are the connections over which processes of apps take deliveries: each opens one
// to the daemon, so that nothing has to be able to reach the app. Processes of one
// deployment share its messages.
//
// A process whose connection breaks has grace to come back. It says then which deliveries
// it works on, and gets again those that have not reached it. Deliveries of a process
// that does not come back go to others.
type Pulls struct {
	queue  Queue
	logger *slog.Logger
	ending context.Context

	mu     sync.Mutex
	groups map[pullKey]*group
	closed bool
	tasks  sync.WaitGroup // timers that have fired
}

type pullKey struct{ project, deployment string }

// group is the processes of a deployment.
type group struct {
	key       pullKey
	processes map[string]*process // by instance
	register  sync.Mutex          // orders what the queue is told of the deployment
	settle    *time.Timer         // see Pulls.settled
}

// process is one process of an app.
type process struct {
	group    *group
	instance string
	conn     *connection      // nil: it has broken
	pulls    map[string]*pull // by receipt
	// adopted are the receipts of deliveries of a daemon before, on which it works.
	adopted map[string]bool
	gone    *time.Timer
}

// pull is a delivery to a process.
type pull struct {
	m    queue.Message
	done chan error // takes one
}

// connection is what a process has open.
type connection struct {
	process *process
	out     []*pull
	wake    chan struct{}
	cut     chan struct{} // closed when another of the same process has replaced it
}

// grace is how long a process has to come back when its connection broke.
const grace = 2 * time.Second

// pulledSecret stands for the secret of deployments that pull: processes come and go
// without making leases of others void.
const pulledSecret = "pulled"

// NewPulls returns Pulls for a queue. When ending ends so do connections, and nothing is
// taken from processes that have none. nil: it does not end. Close them.
func NewPulls(q Queue, ending context.Context, logger *slog.Logger) *Pulls {
	if ending == nil {
		ending = context.Background()
	}
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &Pulls{queue: q, ending: ending, logger: logger, groups: make(map[pullKey]*group)}
}

// Close forgets all processes, and waits for what is under way.
func (h *Pulls) Close() {
	h.mu.Lock()
	h.closed = true
	for _, g := range h.groups {
		g.settle.Stop()
		for _, p := range g.processes {
			if p.gone != nil {
				p.gone.Stop()
			}
		}
	}
	h.mu.Unlock()
	h.tasks.Wait()
}

// unconnectedError says that no process of a deployment has a connection.
type unconnectedError struct{ deployment string }

func (e *unconnectedError) Error() string {
	return fmt.Sprintf("no app is connected for deployment %s", e.deployment)
}
func (e *unconnectedError) Unwrap() error { return queue.ErrUnreachable }

// push hands a message to the process that has the fewest, and waits until it says how
// that went.
func (h *Pulls) push(ctx context.Context, to queue.Deployment, m queue.Message) error {
	pl := &pull{m: m, done: make(chan error, 1)}
	h.mu.Lock()
	p := h.leastLocked(pullKey{to.Project, to.ID})
	if p == nil {
		h.mu.Unlock()
		return &unconnectedError{to.ID}
	}
	p.pulls[m.Receipt] = pl
	p.conn.sendLocked(pl)
	h.mu.Unlock()
	select {
	case err := <-pl.done:
		return err
	case <-ctx.Done():
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if p.pulls[m.Receipt] == pl {
		delete(p.pulls, m.Receipt)
	}
	if p.conn != nil {
		p.conn.out = slices.DeleteFunc(p.conn.out, func(o *pull) bool { return o == pl })
	}
	return fmt.Errorf("%w: %w", queue.ErrBroken, context.Cause(ctx))
}

func (h *Pulls) leastLocked(key pullKey) *process {
	g := h.groups[key]
	if g == nil {
		return nil
	}
	var least *process
	for _, p := range g.processes {
		if p.conn != nil && (least == nil || len(p.pulls) < len(least.pulls)) {
			least = p
		}
	}
	return least
}

func (c *connection) sendLocked(pl *pull) {
	c.out = append(c.out, pl)
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// take returns what is to be sent over a connection.
func (h *Pulls) take(c *connection) []*pull {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := c.out
	c.out = nil
	return out
}

// connect notes that a process has opened a connection, and has the messages of its
// deployment come. working are the receipts of the deliveries it works on. Errors:
// unavailable.
func (h *Pulls) connect(ctx context.Context, key pullKey, instance string, working []string) (*connection, error) {
	h.mu.Lock()
	if h.closed || h.ending.Err() != nil {
		h.mu.Unlock()
		return nil, cay.Errorf(cay.Unavailable, "the daemon is stopping")
	}
	g := h.groups[key]
	if g == nil {
		g = &group{key: key, processes: make(map[string]*process)}
		g.settle = time.AfterFunc(grace, func() { h.task(func() { h.settled(g) }) })
		h.groups[key] = g
	}
	p := g.processes[instance]
	if p == nil {
		p = &process{group: g, instance: instance, pulls: make(map[string]*pull), adopted: make(map[string]bool)}
		g.processes[instance] = p
	}
	if p.gone != nil {
		p.gone.Stop()
		p.gone = nil
	}
	if p.conn != nil {
		close(p.conn.cut)
	}
	c := &connection{process: p, wake: make(chan struct{}, 1), cut: make(chan struct{})}
	p.conn = c
	for _, receipt := range working {
		if p.pulls[receipt] == nil {
			p.adopted[receipt] = true
		}
	}
	for receipt, pl := range p.pulls {
		if !slices.Contains(working, receipt) {
			c.sendLocked(pl) // it was lost with the connection before
		}
	}
	h.mu.Unlock()
	g.register.Lock()
	defer g.register.Unlock()
	_, err := h.queue.Register(ctx, queue.Deployment{Project: key.project, ID: key.deployment, URL: queue.Pulled, Secret: pulledSecret})
	if err != nil {
		h.disconnect(c)
		return nil, err
	}
	return c, nil
}

// disconnect notes that a connection has ended.
func (h *Pulls) disconnect(c *connection) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := c.process
	if p.conn != c {
		return
	}
	p.conn = nil
	p.gone = time.AfterFunc(grace, func() { h.task(func() { h.expire(p) }) })
}

// task runs what a timer asks for, unless all is over.
func (h *Pulls) task(do func()) {
	h.mu.Lock()
	if h.closed || h.ending.Err() != nil {
		h.mu.Unlock()
		return
	}
	h.tasks.Add(1)
	h.mu.Unlock()
	defer h.tasks.Done()
	do()
}

// expire gives up a process that has not come back: its deliveries go to others.
func (h *Pulls) expire(p *process) {
	g := p.group
	g.register.Lock()
	defer g.register.Unlock()
	h.mu.Lock()
	if p.conn != nil || g.processes[p.instance] != p {
		h.mu.Unlock()
		return
	}
	delete(g.processes, p.instance)
	last := len(g.processes) == 0
	for _, pl := range p.pulls {
		pl.done <- lostError(last)
	}
	working := g.adoptedLocked()
	lost := len(p.adopted) > 0
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(h.ending, time.Minute)
	defer cancel()
	var err error
	if lost {
		err = h.queue.Working(ctx, g.key.project, g.key.deployment, pulledSecret, working)
	}
	if last {
		// A process that has connected by now registers after this.
		err = errors.Join(err, h.queue.Deregister(ctx, g.key.project, g.key.deployment, pulledSecret))
	}
	if err != nil && ctx.Err() == nil {
		h.logger.Warn("the queue does not know that a process of an app is gone", "deployment", g.key.deployment, "error", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(g.processes) == 0 {
		g.settle.Stop()
		delete(h.groups, g.key)
	}
}

// lostError is how a delivery ends whose process is gone. A message that has others to go to waits
// a little: it may be what ended the process.
func lostError(last bool) error {
	if last {
		return fmt.Errorf("%w: the process that worked on it is gone", queue.ErrGone)
	}
	return fmt.Errorf("%w: the process that worked on it is gone", queue.ErrBroken)
}

// settled gives up what the daemon before has delivered to processes that have not come back.
func (h *Pulls) settled(g *group) {
	g.register.Lock()
	defer g.register.Unlock()
	h.mu.Lock()
	current := h.groups[g.key] == g
	working := g.adoptedLocked()
	h.mu.Unlock()
	if !current {
		return
	}
	ctx, cancel := context.WithTimeout(h.ending, time.Minute)
	defer cancel()
	if err := h.queue.Working(ctx, g.key.project, g.key.deployment, pulledSecret, working); err != nil && ctx.Err() == nil {
		h.logger.Warn("leases of processes that are gone stay until they end", "deployment", g.key.deployment, "error", err)
	}
}

func (g *group) adoptedLocked() []string {
	working := []string{}
	for _, p := range g.processes {
		for receipt := range p.adopted {
			working = append(working, receipt)
		}
	}
	return working
}

// finish ends a delivery. It returns false if this daemon has not delivered the message.
func (h *Pulls) finish(key pullKey, receipt string, err error) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.groups[key]
	if g == nil {
		return false
	}
	for _, p := range g.processes {
		delete(p.adopted, receipt)
		if pl := p.pulls[receipt]; pl != nil {
			delete(p.pulls, receipt)
			pl.done <- err
			return true
		}
	}
	return false
}
