package sandboxd

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

const (
	// flowLinger is how long a record may wait for others to be written with, so
	// what a killed daemon loses of flow logs.
	flowLinger = 500 * time.Millisecond
	// flowRetry is when records that the database did not take are tried again.
	flowRetry = 5 * time.Second
	// flowBatch is how many records are written at a time, so that other writers
	// need not wait for long.
	flowBatch = 2000
	// maxFlowWatches bounds the watchers of one sandbox's flow log, flowsAhead
	// how many records one may be behind.
	maxFlowWatches = 32
	flowsAhead     = 2 * keptFlows
	// flowGap is left between the numbers of records from before an adoption,
	// which may not have been written, and those after it.
	flowGap = 1 << 20
)

// flowLog writes the records of all sandboxes in the background. Whoever makes
// one is never kept waiting: a guest makes as many as it likes.
type flowLog struct {
	store store
	log   *slog.Logger
	limit int // of records in the database
	at    func(point string)

	wake    chan struct{} // room for one; something is to be written
	stop    chan struct{}
	stopped chan struct{} // closed when run has ended

	writing sync.Mutex // held while records are written; guards rows
	rows    int        // in the database, or fewer; counted again when over limit

	mu      sync.Mutex // guards what follows; taken after a flowBuffer's
	started bool
	dirty   map[*flowBuffer]struct{}
}

func newFlowLog(s store, log *slog.Logger, limit int, at func(point string)) *flowLog {
	return &flowLog{
		store: s, log: log, limit: limit, at: at, dirty: make(map[*flowBuffer]struct{}),
		wake: make(chan struct{}, 1), stop: make(chan struct{}), stopped: make(chan struct{}),
	}
}

// start begins to write.
func (l *flowLog) start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.started {
		l.started = true
		go l.run()
	}
}

// run writes what comes until close.
func (l *flowLog) run() {
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
		wait := flowLinger
		for wait > 0 {
			linger.Reset(wait)
			select {
			case <-linger.C:
			case <-l.stop:
				return
			}
			wait = 0
			ctx, cancel := context.WithTimeout(context.Background(), teardownTimeout)
			if err := l.write(ctx); err != nil {
				l.log.Warn("flow records were not written yet", "error", err)
				wait = flowRetry
			}
			cancel()
		}
	}
}

// close ends run and writes what is left.
func (l *flowLog) close() error {
	l.mu.Lock()
	started := l.started
	l.mu.Unlock()
	if close(l.stop); started {
		<-l.stopped
	}
	ctx, cancel := context.WithTimeout(context.Background(), teardownTimeout)
	defer cancel()
	return l.write(ctx)
}

// write brings the database up to date with all that was added before.
func (l *flowLog) write(ctx context.Context) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	dirty := l.dirty
	l.dirty = make(map[*flowBuffer]struct{})
	l.mu.Unlock()

	var err error
	batch, taken, size := make(map[string][]sandbox.Flow), []*flowBuffer(nil), 0
	flush := func() {
		if size == 0 {
			return
		}
		if err == nil {
			var n int
			n, err = l.store.addFlows(ctx, batch)
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
		if size += len(flows); size >= flowBatch {
			flush()
		}
	}
	flush()
	if err != nil {
		return err
	}
	if l.rows > l.limit {
		l.rows, err = l.store.trimFlows(ctx, l.limit)
	}
	return err
}

// changed has a buffer written soon.
func (l *flowLog) changed(b *flowBuffer) {
	l.mu.Lock()
	l.dirty[b] = struct{}{}
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// flowBuffer holds the records of one sandbox on their way into the database
// and to those who watch. Of more than keptFlows it gives up the oldest, which
// the database would not keep either.
type flowBuffer struct {
	log *flowLog
	id  string

	mu      sync.Mutex             // guards what follows
	base    int64                  // added to the machine's own numbers
	pending map[int64]sandbox.Flow // by Seq
	order   []int64                // of pending, as they came
	watches map[*flowWatch]struct{}
	ended   error // what watchers are told at the end; nil before
}

func newFlowBuffer(l *flowLog, id string) *flowBuffer {
	return &flowBuffer{log: l, id: id, pending: make(map[int64]sandbox.Flow), watches: make(map[*flowWatch]struct{})}
}

// add takes a record from the machine.
func (b *flowBuffer) add(f sandbox.Flow) {
	clipFlow(&f)
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

func (b *flowBuffer) putLocked(f sandbox.Flow) {
	if _, ok := b.pending[f.Seq]; !ok {
		b.order = append(b.order, f.Seq)
		if len(b.order) > keptFlows {
			delete(b.pending, b.order[0])
			b.order = b.order[1:]
		}
	}
	b.pending[f.Seq] = f
}

// take empties the buffer.
func (b *flowBuffer) take() []sandbox.Flow {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.takeLocked()
}

func (b *flowBuffer) takeLocked() []sandbox.Flow {
	flows := make([]sandbox.Flow, 0, len(b.order))
	for _, seq := range b.order {
		flows = append(flows, b.pending[seq])
	}
	clear(b.pending)
	b.order = nil
	return flows
}

// giveBack puts records back that were not written, before those that came since.
func (b *flowBuffer) giveBack(flows []sandbox.Flow) {
	b.mu.Lock()
	for _, f := range append(flows, b.takeLocked()...) {
		b.putLocked(f)
	}
	b.mu.Unlock()
	b.log.changed(b) // whoever tried may have been the last to
}

// end tells those who watch that no more comes, and why.
func (b *flowBuffer) end(why error) {
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

// watch has w hear of records from now on.
func (b *flowBuffer) watch(w *flowWatch) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.watches) >= maxFlowWatches {
		return cay.Errorf(cay.QuotaExceeded, "%d watch the sandbox's flow log already", maxFlowWatches).WithHint("close some")
	}
	w.buffer, w.changed = b, make(chan struct{}, 1)
	b.watches[w] = struct{}{}
	if b.ended != nil {
		w.endLocked(b.ended)
	}
	return nil
}

// flowWatch is the FlowWatch of an Engine.
type flowWatch struct {
	verdict sandbox.Verdict
	past    []sandbox.Flow // from the database, not yet read
	// seen are the records of past, whether they are open by Seq: some come once
	// more, or an earlier one of the same Seq, because they were made meanwhile.
	seen   map[int64]bool
	unhook func() bool

	buffer  *flowBuffer    // whose mu guards what follows
	live    []sandbox.Flow // that came since, not yet read
	end     error          // what Next returns after them; nil before
	changed chan struct{}  // has room for one; told of each change of live, closed with end
}

// offerLocked hands on a record, or gives up a watcher that is too slow.
func (w *flowWatch) offerLocked(f sandbox.Flow) {
	if w.verdict != "" && f.Verdict != w.verdict {
		return
	}
	if len(w.live) >= flowsAhead {
		w.endLocked(cay.Errorf(cay.QuotaExceeded, "more flows came than were read: some were not reported").
			WithHint("watch again after the last one that was"))
		return
	}
	w.live = append(w.live, f)
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func (w *flowWatch) endLocked(why error) {
	if w.end == nil {
		w.end = why
		delete(w.buffer.watches, w)
		close(w.changed)
	}
}

// Next implements sandbox.FlowWatch.
func (w *flowWatch) Next() (sandbox.Flow, error) {
	if len(w.past) > 0 {
		f := w.past[0]
		w.past = w.past[1:]
		return f, nil
	}
	for {
		f, ok, err := w.take()
		switch {
		case err != nil:
			return f, err
		case !ok:
			<-w.changed
			continue
		}
		if open, ok := w.seen[f.Seq]; ok && (f.Open || !open) {
			continue
		}
		return f, nil
	}
}

// take returns the next record that is there, not ok if there is none.
func (w *flowWatch) take() (f sandbox.Flow, ok bool, err error) {
	w.buffer.mu.Lock()
	defer w.buffer.mu.Unlock()
	if len(w.live) == 0 {
		return f, false, w.end
	}
	f = w.live[0]
	if w.live = w.live[1:]; len(w.live) == 0 {
		w.live = nil // and with it what was read
	}
	return f, true, nil
}

var errFlowsClosed = cay.Errorf(cay.Canceled, "the stream was closed")

// Close implements sandbox.FlowWatch.
func (w *flowWatch) Close() error {
	if w.unhook != nil {
		w.unhook()
	}
	w.cancel(errFlowsClosed)
	return nil
}

// cancel ends the watch at once.
func (w *flowWatch) cancel(why error) {
	w.buffer.mu.Lock()
	defer w.buffer.mu.Unlock()
	w.live = nil
	w.endLocked(why)
}

// clipFlow bounds the texts of a record, most of which are the guest's.
func clipFlow(f *sandbox.Flow) {
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

// follow has the machine's flows recorded.
func (m *machine) follow() { m.inst.OnFlow(m.flows.add) }

// endFlows ends a machine's flow log with all of it written, or else logged why
// not: it keeps no machine from ending.
func (e *Engine) endFlows(ctx context.Context, m *machine, why error) {
	m.flows.end(why)
	if err := e.flows.write(ctx); err != nil && !errors.Is(err, context.Canceled) {
		e.log.WarnContext(ctx, "flow records were not written yet", "sandbox", m.id, "error", err)
	}
}
