package flowlog

import (
	"context"
	"strconv"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

var _ sandbox.FlowWatch = (*Watch)(nil)

// Page returns up to p.Limit records of a sandbox, oldest first, and the cursor of the
// next page. Unless it has ended, Write is to be called before, for all of them.
func (l *Log) Page(ctx context.Context, id string, p sandbox.FlowParams) (*sandbox.Page[sandbox.Flow], error) {
	flows, err := l.records.Flows(ctx, id, p, p.Limit+1)
	if err != nil {
		return nil, err
	}
	page := &sandbox.Page[sandbox.Flow]{Items: []sandbox.Flow{}}
	if len(flows) > p.Limit {
		flows = flows[:p.Limit]
		page.Next = strconv.FormatInt(flows[p.Limit-1].Seq, 10)
	}
	page.Items = append(page.Items, flows...)
	return page, nil
}

// Watch watches what b takes, after what is kept already of p. Errors: quota_exceeded.
func (l *Log) Watch(ctx context.Context, b *Buffer, p sandbox.FlowParams) (*Watch, error) {
	w := &Watch{verdict: p.Verdict}
	// Before the past is read, so that nothing is missed in between.
	if err := b.watch(w); err != nil {
		return nil, err
	}
	if err := l.Write(ctx); err != nil {
		w.cancel(err)
		return nil, err
	}
	past, err := l.records.Flows(ctx, b.id, p, Kept)
	if err != nil {
		w.cancel(err)
		return nil, err
	}
	w.past, w.seen = past, make(map[int64]bool, len(past))
	for _, f := range past {
		w.seen[f.Seq] = f.Open
	}
	return w, nil
}

// Watch is one watcher of a sandbox's flow log.
type Watch struct {
	verdict sandbox.Verdict
	past    []sandbox.Flow // from the database, not yet read
	// seen are the records of past, whether they are open by Seq: some come once
	// more, or an earlier one of the same Seq, because they were made meanwhile.
	seen   map[int64]bool
	unhook []func() bool

	buffer  *Buffer        // whose mu guards what follows
	live    []sandbox.Flow // that came since, not yet read
	end     error          // what Next returns after them; nil before
	changed chan struct{}  // has room for one; told of each change of live, closed with end
}

// watch has w hear of records from now on.
func (b *Buffer) watch(w *Watch) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.watches) >= maxWatches {
		return cay.Errorf(cay.QuotaExceeded, "%d watch the sandbox's flow log already", maxWatches).WithHint("close some")
	}
	w.buffer, w.changed = b, make(chan struct{}, 1)
	b.watches[w] = struct{}{}
	if b.ended != nil {
		w.endLocked(b.ended)
	}
	return nil
}

// offerLocked hands on a record, or gives up a watcher that is too slow.
func (w *Watch) offerLocked(f sandbox.Flow) {
	if w.verdict != "" && f.Verdict != w.verdict {
		return
	}
	if len(w.live) >= watchAhead {
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

func (w *Watch) endLocked(why error) {
	if w.end == nil {
		w.end = why
		delete(w.buffer.watches, w)
		close(w.changed)
	}
}

// Next implements sandbox.FlowWatch.
func (w *Watch) Next() (sandbox.Flow, error) {
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
func (w *Watch) take() (f sandbox.Flow, ok bool, err error) {
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

var errClosed = cay.Errorf(cay.Canceled, "the stream was closed")

// Close implements sandbox.FlowWatch.
func (w *Watch) Close() error {
	for _, unhook := range w.unhook {
		unhook()
	}
	w.cancel(errClosed)
	return nil
}

// EndWith ends the watch with why, when ctx has ended. It is not to be called beside
// Close.
func (w *Watch) EndWith(ctx context.Context, why func() error) {
	w.unhook = append(w.unhook, context.AfterFunc(ctx, func() { w.cancel(why()) }))
}

// cancel ends the watch at once.
func (w *Watch) cancel(why error) {
	w.buffer.mu.Lock()
	defer w.buffer.mu.Unlock()
	w.live = nil
	w.endLocked(why)
}
