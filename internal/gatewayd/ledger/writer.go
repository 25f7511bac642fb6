package ledger

import (
	"context"
	"time"

	"github.com/cayhq/cay"
)

const (
	// linger is how long a record may wait for others to join its group. A commit takes
	// most of a millisecond however small the group is; with a linger of 10 ms, commits
	// took a sixth of the CPU time of a gateway with few calls.
	linger = 100 * time.Millisecond
	// firstRetry is half the pause after a failed write. The pause doubles with each
	// failure.
	firstRetry = 10 * time.Millisecond
	// writeTimeout is the timeout of a commit.
	writeTimeout = 30 * time.Second
)

// writer writes the changes of memory to the database, in groups. It takes no lock of its
// own: only its goroutine commits, and others ask the goroutine to.
type writer struct {
	memory  *memory
	store   store
	now     func() time.Time
	flushes chan chan error
	stop    chan struct{} // closed to end the goroutine
	done    chan struct{} // closed when the goroutine has ended

	// The following fields are the goroutine's own.
	commits int64              // number of the last group
	at      func(point string) // for tests that die there; they set it with memory.mu held
}

// run is the writer goroutine. A group is written at once if a caller waits for it,
// otherwise when its first record has waited for linger.
func (w *writer) run() {
	defer close(w.done)
	var late <-chan time.Time // when records must go
	retry := firstRetry
	for {
		var answer chan error
		select {
		case <-w.memory.lazy:
			if late == nil {
				late = time.After(linger)
			}
			continue
		case <-w.memory.urgent:
		case <-late:
		case answer = <-w.flushes:
		case <-w.stop:
			w.last()
			return
		}
		late = nil
		var err error
		if answer != nil {
			err = w.commitAll()
			answer <- err
		} else {
			err = w.commit()
		}
		switch {
		case err != nil:
			retry = min(2*retry, 2*time.Second)
			late = time.After(retry)
		case w.memory.pending():
			retry, late = firstRetry, time.After(linger)
		default:
			retry = firstRetry
		}
	}
}

// last writes the remaining records when the book is closed.
func (w *writer) last() {
	w.memory.release()
	err := w.commitAll()
	for tries := 0; err != nil && tries < 2; tries++ {
		err = w.commitAll()
	}
	w.memory.end()
}

// flush writes the queue; with table it also moves all records to the table of requests,
// so that queries see them.
func (w *writer) flush(ctx context.Context, table bool) error {
	if err := w.flushQueue(ctx); err != nil || !table {
		return err
	}
	return w.fold(ctx, 0)
}

func (w *writer) flushQueue(ctx context.Context) error {
	if w.memory.clean() {
		return nil
	}
	answer := make(chan error, 1)
	select {
	case w.flushes <- answer:
	case <-w.done:
		return cay.Errorf(cay.Unavailable, "the gateway's books are closed")
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// fold moves records from the journal to the table of requests until at most left remain.
func (w *writer) fold(ctx context.Context, left int) error {
	for {
		n, err := w.store.fold(ctx)
		if err != nil {
			return err
		}
		if rest := w.memory.folded(n); n == 0 || rest <= left {
			return nil
		}
	}
}

// commitAll writes everything queued at the time of the call, but nothing that is queued
// later.
func (w *writer) commitAll() error {
	s := w.memory.Stats()
	end := s.Recorded + int64(s.Queued)
	for {
		if err := w.commit(); err != nil {
			return err
		}
		if w.memory.Stats().Recorded >= end {
			return nil
		}
	}
}

// commit writes a group, if there is anything to write, and wakes the callers that wait
// for it.
func (w *writer) commit() error {
	g := w.memory.gather()
	if g == nil {
		return nil
	}
	g.number = w.commits + 1
	now := w.now()
	minute := now.Unix() / 60
	for _, h := range g.holds {
		if h.key != nil && h.key.minute != minute {
			h.key.minute = minute
			g.used[h.key.k.ID] = now.UnixMilli()
		}
	}
	w.at("before commit")
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	err := w.store.commit(ctx, g)
	if err != nil {
		// The commit may have succeeded although its answer was lost.
		if n, rerr := w.store.commits(ctx); rerr == nil && n == g.number {
			err = nil
		}
	}
	w.at("after commit")
	if err == nil {
		w.commits = g.number
	}
	w.memory.advance(g, err)
	g.ticket.end(err)
	return err
}
