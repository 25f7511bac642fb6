package queue

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cayhq/cay"
)

// Pusher delivers messages; internal/compat/vercelworkflow implements it. It is called
// concurrently, and must return soon after its context ends.
type Pusher interface {
	// Push sends a message to an app and waits for its answer, however long that takes.
	// It returns nil if the app answered with a status below 500; an error that wraps
	// ErrUnreachable if no app answered: nothing listens at the address, or another
	// program does; an error that wraps ErrBroken if the connection broke before the
	// answer; an error that wraps ErrGone if certainly no process of the app is left;
	// another error if the app answered with a status of 500 or above; a *ParkedError if
	// the message was not sent, because it has to wait. People read the text of the error.
	Push(ctx context.Context, to Deployment, m Message) error
	// Check asks whether an app answers at the address of a deployment.
	Check(ctx context.Context, d Deployment) error
}

// Errors that a Pusher wraps.
var (
	ErrUnreachable = errors.New("no app answers")
	ErrBroken      = errors.New("the connection broke")
	ErrGone        = errors.New("the app is gone") // no other process has the message, so it is due at once
)

// ParkedError is a Pusher's reason not to send a message yet. The message waits until
// Queue.Hasten is called for its run, or for a day: then the Pusher is asked again.
type ParkedError struct{ Reason string }

func (e *ParkedError) Error() string { return e.Reason }

// parkedFor is how long a parked message waits if nobody hastens it.
const parkedFor = 24 * time.Hour

// Config has the parts and bounds of a queue.
type Config struct {
	Store  Store
	Pusher Pusher // nil: nothing is delivered before SetPusher
	Logger *slog.Logger
	// Now is the wall clock. nil means time.Now.
	Now     func() time.Time
	Metrics Metrics // nil: none
	// InFlight bounds the concurrent deliveries to one deployment, InFlightAll those of
	// the process. 0 means 32, and 256.
	InFlight, InFlightAll int
	// InFlightBytes bounds the bodies of concurrent deliveries: no delivery begins while
	// they have so many bytes or more. 0 means 64 MiB.
	InFlightBytes int64
	// Visibility is how long a lease lasts without an extension. 0 means 300 s.
	Visibility time.Duration
	// Loaded bounds the messages of one deployment that wait in memory. 0 means 1000.
	Loaded int
}

func (c *Config) setDefaults() {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Logger = c.Logger.With("component", "workflowd.queue")
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Metrics == nil {
		c.Metrics = noMetrics{}
	}
	for _, d := range []struct {
		v     *int
		usual int
	}{{&c.InFlight, 32}, {&c.InFlightAll, 256}, {&c.Loaded, 1000}} {
		if *d.v <= 0 {
			*d.v = d.usual
		}
	}
	if c.InFlightBytes <= 0 {
		c.InFlightBytes = 64 << 20
	}
	if c.Visibility <= 0 {
		c.Visibility = 300 * time.Second
	}
}

// Queue delivers messages. Its methods may be called concurrently. Errors of all methods
// that write: unavailable and no_space, as in Store; unavailable after Close.
type Queue struct {
	cfg   Config
	store Store
	log   *slog.Logger
	w     *writer

	ctx   context.Context // ends with Close
	stop  context.CancelFunc
	tasks sync.WaitGroup
	wake  chan struct{} // there may be something to deliver
	// loadable is signalled when lanes have to be loaded.
	loadable chan struct{}
	closed   sync.Once

	mu       sync.Mutex // guards the fields below, and all lanes
	pusher   Pusher
	lanes    map[laneKey]*lane
	clock    laneHeap // lanes by the time at which they need attention
	ring     []*lane  // lanes that have messages to deliver now, in turn
	flights  map[string]*flight
	inFlight int // deliveries that are being leased or pushed
	bytes    int64
	toLoad   []*lane
	changes  int // counts the changes of the deployments of all lanes
	// pauseUntil is the end of the pause in leasing after errors of the store; pauses
	// counts the errors.
	pauseUntil int64
	pauses     int
}

// Open returns a queue on the messages in its store.
func Open(ctx context.Context, c Config) (*Queue, error) {
	c.setDefaults()
	q := &Queue{
		cfg: c, store: c.Store, log: c.Logger, pusher: c.Pusher,
		wake: make(chan struct{}, 1), loadable: make(chan struct{}, 1),
		lanes: make(map[laneKey]*lane), flights: make(map[string]*flight),
	}
	all, err := c.Store.Deployments(ctx, "")
	if err != nil {
		return nil, err
	}
	now := q.now()
	if err := q.shorten(ctx, all, now); err != nil {
		return nil, err
	}
	q.ctx, q.stop = context.WithCancel(context.WithoutCancel(ctx))
	q.mu.Lock()
	for i := range all {
		l := q.laneLocked(all[i].Project, all[i].ID)
		l.meetLocked(all[i])
		l.anyLocked(now)
		q.tickLocked(l)
	}
	q.mu.Unlock()
	q.w = newWriter(q)
	q.tasks.Go(q.w.run)
	q.tasks.Go(q.dispatch)
	q.tasks.Go(q.load)
	q.tasks.Go(q.sweep)
	if changes := c.Store.Changes(); changes != nil {
		q.tasks.Go(func() { q.follow(changes) })
	}
	q.poke()
	return q, nil
}

// shorten shortens the leases of an earlier process's pushes that no app extends: their
// apps may have answered while no daemon was running. If several processes share the
// store it does nothing, because other processes may have made the pushes.
func (q *Queue) shorten(ctx context.Context, all []Deployment, now int64) error {
	if q.store.Changes() != nil || len(all) == 0 {
		return nil
	}
	b := &Batch{Now: now}
	until := now + min(orphanLease, q.cfg.Visibility).Milliseconds()
	for _, d := range all {
		b.Void = append(b.Void, &Void{Project: d.Project, Deployment: d.ID, Until: until})
	}
	return q.store.Write(ctx, b)
}

// SetPusher sets the Pusher and starts deliveries.
func (q *Queue) SetPusher(p Pusher) {
	q.mu.Lock()
	q.pusher = p
	q.mu.Unlock()
	q.poke()
}

// Close ends all pushes and waits for them. The leases stay: an app that still works on a
// message can acknowledge it later.
func (q *Queue) Close() error {
	q.closed.Do(func() {
		q.mu.Lock()
		q.stop()
		q.mu.Unlock()
		q.tasks.Wait()
	})
	return nil
}

func (q *Queue) now() int64 { return q.cfg.Now().UnixMilli() }

// until returns the duration from now to a time.
func (q *Queue) until(at int64) time.Duration {
	return time.Duration(at-q.now()) * time.Millisecond
}

// poke makes dispatch take a turn.
func (q *Queue) poke() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

var errClosed = cay.Errorf(cay.Unavailable, "the queue is closed")

// Prepare completes a message that is to be stored with a group of the engine
// (workflowd.Records.Messages): it sets the message's id and times. When the group is
// stored, the queue must be told with Added. Errors: invalid, too_large.
func (q *Queue) Prepare(m *Message) error {
	now := q.now()
	if err := m.check(now); err != nil {
		return err
	}
	m.ID, m.CreatedAt, m.Due = newID(now), now, max(m.Due, now)
	m.Attempt, m.Receipt, m.LeaseUntil, m.LastError = 0, "", 0, ""
	return nil
}

// Publish stores a message and returns its id; if an earlier message has its idempotency
// key, Publish returns the id of the earlier one. It waits while too much is queued.
// Errors: invalid, too_large, canceled, deadline_exceeded.
func (q *Queue) Publish(ctx context.Context, m Message) (id string, err error) {
	if err := q.Prepare(&m); err != nil {
		return "", err
	}
	p := &Publish{Message: m}
	f := q.flyAtOnce(&m)
	err = q.w.writeThen(ctx, len(m.Body), func(b *Batch) {
		b.Publish = append(b.Publish, p)
		if f != nil {
			b.Lease = append(b.Lease, f.lease)
		}
	}, func(err error) {
		switch {
		case f == nil:
		case err != nil:
			q.abandon(f)
		default:
			q.leased(f, nil)
		}
	})
	if err != nil {
		return "", err
	}
	switch {
	case p.First != m.ID:
	case f != nil:
		q.cfg.Metrics.MessagePublished(m.Project)
	default:
		q.Added([]Message{m})
	}
	return p.First, nil
}

// Added tells the queue about messages that were stored with a group of the engine.
func (q *Queue) Added(messages []Message) {
	q.mu.Lock()
	for i := range messages {
		m := &messages[i]
		q.laneLocked(m.Project, m.Deployment).addLocked(entryOf(m))
	}
	q.mu.Unlock()
	q.poke()
	for i := range messages {
		q.cfg.Metrics.MessagePublished(messages[i].Project)
	}
}

func entryOf(m *Message) Entry {
	return Entry{ID: m.ID, Project: m.Project, Deployment: m.Deployment, Run: m.Run, Due: m.Due, LeaseUntil: m.LeaseUntil, Size: len(m.Body), Priority: m.Priority}
}

// Acknowledge removes a message after its app has handled it. The receipt is valid until
// the message is leased again. Errors: not_found.
func (q *Queue) Acknowledge(ctx context.Context, project, receipt string) error {
	a := &Acknowledge{ID: leased(receipt), Project: project, Receipt: receipt}
	if a.ID == "" {
		return noLease(receipt)
	}
	err := q.w.write(ctx, 0, func(b *Batch) { b.Acknowledge = append(b.Acknowledge, a) })
	if err != nil {
		return err
	}
	if !a.Done {
		// The message may have been deleted with its run while its app worked on it.
		e, err := q.store.Entry(ctx, a.ID)
		if err != nil {
			return err
		}
		if e != nil {
			return noLease(receipt)
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.flights[a.ID]
	if f != nil && f.receipt == receipt && f.lane.key.project == project {
		f.acknowledged = true
		q.spokeLocked(f, true)
		return nil
	}
	if !a.Done {
		return noLease(receipt)
	}
	for _, l := range q.lanes {
		if it := l.items[a.ID]; it != nil && it.waiting() {
			l.dropLocked(it)
			break
		}
	}
	return nil
}

func noLease(receipt string) error {
	return cay.Errorf(cay.NotFound, "nobody holds the lease %q: it was acknowledged, or is another's now", receipt)
}

// Extend sets how long from now a message is not delivered to another process. If d is
// Config.Visibility, the lease goes on, because the app still works. Any other d returns
// the lease: the message is delivered again in d, but not before the running push has
// returned. Errors: not_found, invalid.
func (q *Queue) Extend(ctx context.Context, project, receipt string, d time.Duration) error {
	if d < 0 || d > MaxDelay {
		return cay.Errorf(cay.Invalid, "a message cannot be put off by %s: from nothing to a year and a day", d)
	}
	x := &Extend{ID: leased(receipt), Project: project, Receipt: receipt, Lease: d == q.cfg.Visibility}
	if x.ID == "" {
		return noLease(receipt)
	}
	q.mu.Lock()
	f := q.flights[x.ID]
	if f != nil && (f.receipt != receipt || f.lane.key.project != project) {
		f = nil
	}
	late := f != nil && f.scheduled && x.Lease
	q.mu.Unlock()
	if late {
		return nil // the call is older than one that has ended the lease
	}
	x.Due = q.now() + d.Milliseconds()
	if err := q.w.write(ctx, 0, func(b *Batch) { b.Extend = append(b.Extend, x) }); err != nil {
		return err
	}
	if !x.Done {
		return noLease(receipt)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if f != nil && q.flights[x.ID] == f {
		f.extendLocked(q, x)
		q.spokeLocked(f, true)
		return nil
	}
	for _, l := range q.lanes {
		if it := l.items[x.ID]; it != nil && it.waiting() {
			l.dropLocked(it)
			l.addLocked(it.entry(x.Due))
			q.poke()
			break
		}
	}
	return nil
}

// Forget removes the messages of a deleted run. Deleting the run from the workflow store
// removes them, too.
func (q *Queue) Forget(ctx context.Context, project, run string) error {
	f := &Forget{Project: project, Run: run}
	return q.w.write(ctx, 0, func(b *Batch) { b.Forget = append(b.Forget, f) })
}

// Hasten makes the messages of a run due now and sets their priority, if they are not being
// delivered. Deliveries of this process that are parked meanwhile are tried again at once.
// Results: the number of due messages, and the number of messages in delivery.
func (q *Queue) Hasten(ctx context.Context, project, run string, priority int) (due, leased int, err error) {
	q.mu.Lock()
	for _, f := range q.flights {
		if f.item.run == run && f.lane.key.project == project {
			f.hastened = true
		}
	}
	q.mu.Unlock()
	h := &Hasten{Project: project, Run: run, Priority: priority}
	if err := q.w.write(ctx, 0, func(b *Batch) { b.Hasten = append(b.Hasten, h) }); err != nil {
		return 0, 0, err
	}
	q.mu.Lock()
	for _, e := range h.Entries {
		q.laneLocked(e.Project, e.Deployment).addLocked(e)
	}
	q.mu.Unlock()
	q.poke()
	return len(h.Entries), h.Leased, nil
}

// Messages returns at most limit pending messages of a run, of the project if run is "",
// soonest first and without their bodies. LastError of a waiting message is the reason
// for the wait.
func (q *Queue) Messages(ctx context.Context, project, run string, limit int) ([]Message, error) {
	list, err := q.store.Messages(ctx, project, run, limit)
	if err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range list {
		m := &list[i]
		l := q.lanes[laneKey{m.Project, m.Deployment}]
		if l == nil || m.LeaseUntil != 0 {
			continue
		}
		if why := l.whyLocked(); why != "" {
			m.LastError = why
		}
	}
	return list, nil
}
