package ledger

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
)

const (
	// maxFeeds is how many feeds there may be at once; each is a client that watches.
	maxFeeds = 256
	// feedPage is how many records a feed reads at once.
	feedPage = 200
	// settling is how long a feed that was woken waits for more, so that a busy
	// gateway has its records read in batches.
	settling = 50 * time.Millisecond
)

// feeds are those that are told of records that have become durable.
type feeds struct {
	mu     sync.Mutex // guards what follows; below Book.mu
	all    map[*Feed]struct{}
	closed bool
}

// wake tells all feeds that there may be something new. It does not wait for them.
func (f *feeds) wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for feed := range f.all {
		signal(feed.woken)
	}
}

// Feed reads records in the order in which they became durable, and waits for more.
// Nothing is queued for it: it is woken, and reads the table from where it was, so
// that a slow one costs no memory and misses nothing. It is for one goroutine.
type Feed struct {
	book          *Book
	team, project string
	filter        gateway.RequestFilter
	seq           int64 // of the last that was looked at
	woken         chan struct{}
	have          []gateway.Request
}

// Follow returns a feed of the records of a team, or of one project of it, that f
// selects (its times, limit and cursor do not): those after the one with the id
// after, or from now on if that is empty, or of no record that is kept. Close it.
// Errors: unavailable (too many feeds, or the book is closed).
func (b *Book) Follow(ctx context.Context, team, project string, f gateway.RequestFilter, after string) (*Feed, error) {
	f.Since, f.Until = time.Time{}, time.Time{}
	feed := &Feed{book: b, team: team, project: project, filter: f, woken: make(chan struct{}, 1)}
	b.feeds.mu.Lock()
	full := len(b.feeds.all) >= maxFeeds
	if !full && !b.feeds.closed {
		if b.feeds.all == nil {
			b.feeds.all = make(map[*Feed]struct{})
		}
		b.feeds.all[feed] = struct{}{}
	}
	closed := b.feeds.closed
	b.feeds.mu.Unlock()
	switch {
	case closed:
		return nil, cay.Errorf(cay.Unavailable, "the gateway is stopping")
	case full:
		return nil, cay.Errorf(cay.Unavailable, "there are %d clients that follow requests; try again later", maxFeeds)
	}
	err := b.flush(ctx, true)
	if err == nil {
		feed.seq, err = b.store.position(ctx, team, project, after)
	}
	if err != nil {
		feed.Close()
		return nil, err
	}
	signal(feed.woken) // what came after that record is there
	return feed, nil
}

// Next returns the next record, and waits for it. It returns io.EOF when the book
// ends its feeds, and ctx's error.
func (f *Feed) Next(ctx context.Context) (*gateway.Request, error) {
	for len(f.have) == 0 {
		select {
		case _, open := <-f.woken:
			if !open {
				return nil, io.EOF
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if err := f.read(ctx); err != nil {
			return nil, err
		}
	}
	r := &f.have[0]
	f.have = f.have[1:]
	return r, nil
}

// read reads what is new.
func (f *Feed) read(ctx context.Context) error {
	pause := time.NewTimer(settling)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := f.book.fold(ctx, 0); err != nil {
		return err
	}
	more, err := f.book.store.after(ctx, f)
	if more {
		f.book.feeds.mu.Lock()
		if _, open := f.book.feeds.all[f]; open {
			signal(f.woken)
		}
		f.book.feeds.mu.Unlock()
	}
	return err
}

// Close ends the feed. A Next under way is ended by its ctx.
func (f *Feed) Close() {
	f.book.feeds.mu.Lock()
	defer f.book.feeds.mu.Unlock()
	delete(f.book.feeds.all, f)
}

// EndFeeds ends all feeds, and lets no other begin: a server that stops would wait
// for their clients.
func (b *Book) EndFeeds() {
	b.feeds.mu.Lock()
	defer b.feeds.mu.Unlock()
	b.feeds.closed = true
	for feed := range b.feeds.all {
		delete(b.feeds.all, feed)
		close(feed.woken)
	}
}
