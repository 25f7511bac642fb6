// Package flowlog takes the records of flows of all machines, which are never kept
// waiting, has them written in batches, and tells those who watch. What a killed daemon
// loses of them is the last half second.
package flowlog

import (
	"context"
	"log/slog"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/cayhq/cay/sandbox"
)

const (
	// Kept is how many records are kept of a sandbox, the newest.
	Kept = 1000
	// lingerFor is how long a record may wait for others to be written with, so
	// what a killed daemon loses of flow logs.
	lingerFor = 500 * time.Millisecond
	// retry is when records that the database did not take are tried again.
	retry = 5 * time.Second
	// batchSize is how many records are written at a time, so that other writers
	// need not wait for long.
	batchSize = 2000
	// maxWatches bounds the watchers of one sandbox's flow log, watchAhead
	// how many records one may be behind.
	maxWatches = 32
	watchAhead = 2 * Kept
	// gap is left between the numbers of records from before an adoption,
	// which may not have been written, and those after it.
	gap = 1 << 20
	// writeTimeout bounds one attempt to write.
	writeTimeout = 30 * time.Second
)

// Records is where records are kept. *store.Store is one.
type Records interface {
	// AddFlows records flows by sandbox, in place of those of the same Seq, and drops
	// the oldest of a sandbox beyond keep. It returns how many were written.
	AddFlows(ctx context.Context, flows map[string][]sandbox.Flow, keep int) (written int, err error)
	// TrimFlows removes the oldest of all if there are more than limit, and returns how
	// many are left.
	TrimFlows(ctx context.Context, limit int) (left int, err error)
	// Flows returns up to limit records of a sandbox, oldest first.
	Flows(ctx context.Context, id string, p sandbox.FlowParams, limit int) ([]sandbox.Flow, error)
	// LastFlow returns the highest Seq of a sandbox, 0 if it has none, after marking
	// all its records as closed.
	LastFlow(ctx context.Context, id string) (int64, error)
}

// Log writes the records of all sandboxes in the background. Whoever makes
// one is never kept waiting: a guest makes as many as it likes.
type Log struct {
	records Records
	log     *slog.Logger
	limit   int // of records in the database
	at      func(point string)

	wake    chan struct{} // room for one; something is to be written
	stop    chan struct{}
	stopped chan struct{} // closed when run has ended

	writing sync.Mutex // held while records are written; guards rows
	rows    int        // in the database, or fewer; counted again when over limit

	mu      sync.Mutex // guards what follows; taken after a Buffer's
	started bool
	dirty   map[*Buffer]struct{}
}

// New returns a log that keeps up to limit records of all sandboxes. at is called when
// some are written.
func New(r Records, log *slog.Logger, limit int, at func(point string)) *Log {
	return &Log{
		records: r, log: log, limit: limit, at: at, dirty: make(map[*Buffer]struct{}),
		wake: make(chan struct{}, 1), stop: make(chan struct{}), stopped: make(chan struct{}),
	}
}

// Start begins to write.
func (l *Log) Start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.started {
		l.started = true
		go l.run()
	}
}

// run writes what comes until Close.
func (l *Log) run() {
	defer close(l.stopped)
	linger := time.NewTimer(0)
	if !linger.Stop() {
		<-linger.C
	}
	for {
		select {
		case <-l.wake:
		case <-l.stop:
			return
		}
		wait := lingerFor
		for wait > 0 {
			linger.Reset(wait)
			select {
			case <-linger.C:
			case <-l.stop:
				return
			}
			wait = 0
			ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
			if err := l.Write(ctx); err != nil {
				l.log.Warn("flow records were not written yet", "error", err)
				wait = retry
			}
			cancel()
		}
	}
}

// Close ends run and writes what is left.
func (l *Log) Close() error {
	l.mu.Lock()
	started := l.started
	l.mu.Unlock()
	if close(l.stop); started {
		<-l.stopped
	}
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	return l.Write(ctx)
}

// Write brings the database up to date with all that was added before.
func (l *Log) Write(ctx context.Context) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	dirty := l.dirty
	l.dirty = make(map[*Buffer]struct{})
	l.mu.Unlock()

	var err error
	batch, taken, size := make(map[string][]sandbox.Flow), []*Buffer(nil), 0
	flush := func() {
		if size == 0 {
			return
		}
		if err == nil {
			var n int
			n, err = l.records.AddFlows(ctx, batch, Kept)
			l.rows += n
		}
		if err == nil {
			l.at("flows-written")
		}
		if err != nil {
			for _, b := range taken {
				b.giveBack(batch[b.id])
			}
		}
		batch, taken, size = make(map[string][]sandbox.Flow), nil, 0
	}
	for b := range dirty {
		flows := b.take()
		batch[b.id] = flows
		taken = append(taken, b)
		if size += len(flows); size >= batchSize {
			flush()
		}
	}
	flush()
	if err != nil {
		return err
	}
	if l.rows > l.limit {
		l.rows, err = l.records.TrimFlows(ctx, l.limit)
	}
	return err
}

// changed has a buffer written soon.
func (l *Log) changed(b *Buffer) {
	l.mu.Lock()
	l.dirty[b] = struct{}{}
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Buffer holds the records of one sandbox on their way into the database
// and to those who watch. Of more than Kept it gives up the oldest, which
// the database would not keep either.
type Buffer struct {
	log *Log
	id  string

	mu      sync.Mutex             // guards what follows
	base    int64                  // added to the machine's own numbers
	pending map[int64]sandbox.Flow // by Seq
	order   []int64                // of pending, as they came
	watches map[*Watch]struct{}
	ended   error // what watchers are told at the end; nil before
}

// Buffer returns a buffer for the records of a sandbox.
func (l *Log) Buffer(id string) *Buffer {
	return &Buffer{log: l, id: id, pending: make(map[int64]sandbox.Flow), watches: make(map[*Watch]struct{})}
}

// GoOn has the machine's own numbers go on after the last record there is of the
// sandbox. It is called before Add, for a machine or a session that is not the first.
func (b *Buffer) GoOn(ctx context.Context) error {
	last, err := b.log.records.LastFlow(ctx, b.id)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.base = last + gap
	return nil
}

// Add takes a record from the machine.
func (b *Buffer) Add(f sandbox.Flow) {
	clipAll(&f)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended != nil {
		return
	}
	f.Seq += b.base
	b.putLocked(f)
	for w := range b.watches {
		w.offerLocked(f)
	}
	b.log.changed(b)
}

func (b *Buffer) putLocked(f sandbox.Flow) {
	if _, ok := b.pending[f.Seq]; !ok {
		b.order = append(b.order, f.Seq)
		if len(b.order) > Kept {
			delete(b.pending, b.order[0])
			b.order = b.order[1:]
		}
	}
	b.pending[f.Seq] = f
}

// take empties the buffer.
func (b *Buffer) take() []sandbox.Flow {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.takeLocked()
}

func (b *Buffer) takeLocked() []sandbox.Flow {
	flows := make([]sandbox.Flow, 0, len(b.order))
	for _, seq := range b.order {
		flows = append(flows, b.pending[seq])
	}
	clear(b.pending)
	b.order = nil
	return flows
}

// giveBack puts records back that were not written, before those that came since.
func (b *Buffer) giveBack(flows []sandbox.Flow) {
	b.mu.Lock()
	for _, f := range append(flows, b.takeLocked()...) {
		b.putLocked(f)
	}
	b.mu.Unlock()
	b.log.changed(b) // whoever tried may have been the last to
}

// End tells those who watch that no more comes, and why.
func (b *Buffer) End(why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended != nil {
		return
	}
	b.ended = why
	for w := range b.watches {
		w.endLocked(why)
	}
}

// clipAll bounds the texts of a record, most of which are the guest's.
func clipAll(f *sandbox.Flow) {
	clip(&f.Protocol, 16)
	clip(&f.Name, 255)
	clip(&f.Address, 64)
	clip(&f.Method, 32)
	clip(&f.Path, 512)
	clip(&f.Rule, 512)
	clip(&f.Reason, 1024)
}

func clip(s *string, n int) {
	if len(*s) <= n {
		return
	}
	for n > 0 && !utf8.RuneStart((*s)[n]) {
		n--
	}
	*s = (*s)[:n]
}
