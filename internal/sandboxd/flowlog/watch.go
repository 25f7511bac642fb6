package flowlog

import (
	"context"
	"strconv"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

var _ sandbox.FlowWatch = (*Watch)(nil)

// Page returns up to p.Limit records of a sandbox, oldest first, and the cursor of the
// next page. For a sandbox that has not ended, the caller calls Write before, so that no
// record is missing.
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

// Watch begins a watch that returns the stored records that match p, and then the records
// added to b. Errors: quota_exceeded.
func (l *Log) Watch(ctx context.Context, b *Buffer, p sandbox.FlowParams) (*Watch, error) {
	w := &Watch{verdict: p.Verdict}
	// Begin the watch before reading the stored records, so that no record between the
	// two is missed.
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
	ended := b.isEnded()
	for i := range past {
		// Nothing recorded the end of connections that ended with the machine.
		past[i].Open = past[i].Open && !ended
		w.seen[past[i].Seq] = past[i].Open
	}
	return w, nil
}

// Watch is one watch of a sandbox's flow log.
type Watch struct {
	verdict sandbox.Verdict
	past    []sandbox.Flow // unread records from the database
	// seen are the records of past: by Seq, whether they are open. A record that was made
	// meanwhile is also live, as may be an earlier one of the same Seq.
	seen   map[int64]bool
	unhook []func() bool

	buffer  *Buffer        // its mu guards the fields below
	live    []sandbox.Flow // unread records added since
	end     error          // the error that Next returns after them; nil before
	changed chan struct{}  // capacity 1; signaled when live changes, closed when end is set
}

// watch makes w receive further records.
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

// offerLocked adds a record to a watch, or ends the watch if it is too slow.
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

// take returns the next record; ok is false if no record has arrived yet.
func (w *Watch) take() (f sandbox.Flow, ok bool, err error) {
	w.buffer.mu.Lock()
	defer w.buffer.mu.Unlock()
	if len(w.live) == 0 {
		return f, false, w.end
	}
	f = w.live[0]
	if w.live = w.live[1:]; len(w.live) == 0 {
		w.live = nil // frees the records that were read
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

// EndWith makes the watch end with the error of why when ctx ends. It must not be called
// concurrently with Close.
func (w *Watch) EndWith(ctx context.Context, why func() error) {
	w.unhook = append(w.unhook, context.AfterFunc(ctx, func() { w.cancel(why()) }))
}

// cancel ends the watch with why.
func (w *Watch) cancel(why error) {
	w.buffer.mu.Lock()
	defer w.buffer.mu.Unlock()
	w.live = nil
	w.endLocked(why)
}
