// Package flowlog collects the flow records of all machines without ever blocking them,
// writes the records in batches, and sends them to watches. A killed daemon loses the
// records of the last half second.
package flowlog

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/cayhq/cay/sandbox"
)

const (
	// Kept is how many records of a sandbox are kept, the newest.
	Kept = 1000
	// lingerFor is how long a record may wait to be written together with others. A
	// killed daemon loses the records of this time.
	lingerFor = 500 * time.Millisecond
	// retry is the delay before a failed write is retried.
	retry = 5 * time.Second
	// batchSize is the maximal number of records per write, so that other writers wait
	// only briefly.
	batchSize = 2000
	// maxWatches bounds the watches of one sandbox's flow log, watchAhead the unread
	// records of one watch.
	maxWatches = 32
	watchAhead = 2 * Kept
	// gap separates the numbers of records after an adoption from those before it, some
	// of which may not have been written.
	gap = 1 << 20
	// writeTimeout bounds one attempt to write.
	writeTimeout = 30 * time.Second
	// maxRemoved bounds the deleted sandboxes whose records are to be removed one by one.
	// If more are deleted in between, Log looks at all sandboxes that have records.
	maxRemoved = 10000
)

// Records stores the records. *store.Flows implements it. Log calls AddFlows, RemoveFlows
// and SweepFlows one at a time.
type Records interface {
	// AddFlows records flows by sandbox, replacing records with the same Seq, and drops
	// the oldest of a sandbox beyond keep. It returns how many records were written.
	AddFlows(ctx context.Context, flows map[string][]sandbox.Flow, keep int) (written int, err error)
	// TrimFlows removes the oldest records of all sandboxes if there are more than limit,
	// and returns how many are left.
	TrimFlows(ctx context.Context, limit int) (left int, err error)
	// Flows returns up to limit records of a sandbox, oldest first.
	Flows(ctx context.Context, id string, p sandbox.FlowParams, limit int) ([]sandbox.Flow, error)
	// LastFlow returns the highest Seq of a sandbox, 0 if it has no records, after
	// marking all its records as closed.
	LastFlow(ctx context.Context, id string) (int64, error)
	// RemoveFlows removes the records of those of the sandboxes that do not exist any
	// more, SweepFlows the records of all sandboxes that do not exist.
	RemoveFlows(ctx context.Context, ids []string) error
	SweepFlows(ctx context.Context) error
	// MoveFlows moves records of an earlier version to where the others are, some in each
	// call. It returns false if no such records are left.
	MoveFlows(ctx context.Context) (more bool, err error)
}

// Log writes the records of all sandboxes in the background. It never blocks the code
// that adds records: a guest causes as many as it likes.
type Log struct {
	records Records
	log     *slog.Logger
	limit   int // number of records in the database
	at      func(point string)

	wake   chan struct{}   // capacity 1; something is to be written or removed
	ctx    context.Context // of the goroutines; ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // counts the goroutines

	writing sync.Mutex // held while records are written or removed; guards rows
	rows    int        // a lower bound of the records in the database; counted again when over limit

	mu      sync.Mutex // guards the fields below; lock order: a Buffer's mu before this
	started bool
	dirty   map[*Buffer]struct{}
	removed map[string]struct{} // sandboxes that may be gone, with their records still there
	sweep   bool                // any sandbox may be gone
}

// New returns a log that keeps up to limit records of all sandboxes. at is called after
// each write.
func New(r Records, log *slog.Logger, limit int, at func(point string)) *Log {
	l := &Log{
		records: r, log: log, limit: limit, at: at, dirty: make(map[*Buffer]struct{}), removed: make(map[string]struct{}),
		wake: make(chan struct{}, 1),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// Start starts the writing goroutine, and one that moves the records of an earlier version.
func (l *Log) Start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.started {
		l.started = true
		l.wg.Go(l.run)
		l.wg.Go(l.move)
	}
}

// move moves the records of an earlier version, and then lets run look at everything once:
// at records of sandboxes that were deleted meanwhile, or when this process could not
// record it, and at the number of records.
func (l *Log) move() {
	for {
		more, err := l.records.MoveFlows(l.ctx)
		switch {
		case l.ctx.Err() != nil:
			return
		case err != nil:
			l.log.Warn("flow records of an earlier version have not moved yet", "error", err)
			timer := time.NewTimer(retry)
			select {
			case <-timer.C:
			case <-l.ctx.Done():
				timer.Stop()
			}
		case !more:
			l.mu.Lock()
			l.sweep = true
			l.mu.Unlock()
			l.wakeUp()
			return
		}
	}
}

// Removed says that a sandbox may have been deleted. Its records are removed soon if so.
func (l *Log) Removed(id string) {
	l.mu.Lock()
	if len(l.removed) < maxRemoved {
		l.removed[id] = struct{}{}
	} else {
		l.sweep = true
	}
	l.mu.Unlock()
	l.wakeUp()
}

// removeGone removes the records of deleted sandboxes.
func (l *Log) removeGone(ctx context.Context) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	ids, sweep := slices.Collect(maps.Keys(l.removed)), l.sweep
	clear(l.removed)
	l.sweep = false
	l.mu.Unlock()
	err := l.records.RemoveFlows(ctx, ids)
	if sweep && err == nil {
		if err = l.records.SweepFlows(ctx); err == nil {
			l.rows, err = l.records.TrimFlows(ctx, l.limit)
		}
	}
	if err != nil {
		l.mu.Lock()
		l.sweep = true
		l.mu.Unlock()
	}
	return err
}

func (l *Log) wakeUp() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run writes records until Close.
func (l *Log) run() {
	linger := time.NewTimer(0)
	if !linger.Stop() {
		<-linger.C
	}
	for {
		select {
		case <-l.wake:
		case <-l.ctx.Done():
			return
		}
		wait := lingerFor
		for wait > 0 {
			linger.Reset(wait)
			select {
			case <-linger.C:
			case <-l.ctx.Done():
				return
			}
			wait = 0
			ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
			if err := l.Write(ctx); err != nil {
				l.log.Warn("flow records were not written yet", "error", err)
				wait = retry
			}
			if err := l.removeGone(ctx); err != nil {
				l.log.Warn("flow records of deleted sandboxes were not removed yet", "error", err)
				wait = retry
			}
			cancel()
		}
	}
}

// Close stops both goroutines and writes the remaining records.
func (l *Log) Close() error {
	l.cancel()
	l.wg.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	return errors.Join(l.Write(ctx), l.removeGone(ctx))
}

// Write writes all records added before the call to the database.
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

// changed schedules a buffer to be written soon.
func (l *Log) changed(b *Buffer) {
	l.mu.Lock()
	l.dirty[b] = struct{}{}
	l.mu.Unlock()
	l.wakeUp()
}

// Buffer holds the records of one sandbox until they are written to the database and sent
// to watches. Beyond Kept records it drops the oldest, which the database would not keep
// either.
type Buffer struct {
	log *Log
	id  string

	mu      sync.Mutex             // guards the fields below
	base    int64                  // added to the numbers that the machine assigns
	pending map[int64]sandbox.Flow // by Seq
	order   []int64                // keys of pending, oldest first
	watches map[*Watch]struct{}
	ended   error // the error that ends watches; nil before
}

// Buffer returns a buffer for the records of a sandbox.
func (l *Log) Buffer(id string) *Buffer {
	return &Buffer{log: l, id: id, pending: make(map[int64]sandbox.Flow), watches: make(map[*Watch]struct{})}
}

// GoOn makes the machine's numbers continue after the last record of the sandbox. For a
// machine or a session that is not the first, the caller calls GoOn before Add.
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

// Add adds a record from the machine.
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

// take removes and returns all pending records.
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

// giveBack puts back records that could not be written, before those that were added
// since.
func (b *Buffer) giveBack(flows []sandbox.Flow) {
	b.mu.Lock()
	for _, f := range append(flows, b.takeLocked()...) {
		b.putLocked(f)
	}
	b.mu.Unlock()
	b.log.changed(b) // the failed write may have been the last
}

// End ends the watches with the error why.
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

func (b *Buffer) isEnded() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended != nil
}

// clipAll bounds the texts of a record, most of which come from the guest.
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
