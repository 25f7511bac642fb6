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
	// maxFeeds is the maximum number of feeds at once; each belongs to a watching client.
	maxFeeds = 256
	// feedPage is the number of records that a feed reads per query.
	feedPage = 200
	// settling is how long a woken feed waits for more records, so that a busy gateway's
	// records are read in batches.
	settling = 50 * time.Millisecond
)

// feeds is the set of feeds to wake when records become durable.
type feeds struct {
	mu     sync.Mutex // guards the following fields; locked after Book.mu
	all    map[*Feed]struct{}
	closed bool
}

// wake signals all feeds that new records may exist. It does not block.
func (f *feeds) wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for feed := range f.all {
		signal(feed.woken)
	}
}

// Feed reads records in the order in which they became durable, and waits for more. No
// records are queued for a feed: the writer wakes the feed, which reads the table from
// its last position, so that a slow client costs no memory and misses nothing. A Feed
// must be used by one goroutine.
type Feed struct {
	book          *Book
	team, project string
	filter        gateway.RequestFilter
	seq           int64 // position of the last record looked at
	woken         chan struct{}
	have          []gateway.Request
}

// Follow returns a feed of the records of a team, or of one of its projects, that f
// selects (f's times, limit and cursor are ignored). The feed begins after the record
// with the id after, or now if after is empty or the record does not exist. The caller
// must Close the feed. Errors: unavailable (too many feeds, or the book is closed).
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
	signal(feed.woken) // records after that one may already exist
	return feed, nil
}

// Next returns the next record, waiting if necessary. It returns io.EOF after EndFeeds,
// or ctx's error.
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

// read reads the new records.
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

// Close ends the feed. Close does not interrupt a running Next; cancel its ctx.
func (f *Feed) Close() {
	f.book.feeds.mu.Lock()
	defer f.book.feeds.mu.Unlock()
	delete(f.book.feeds.all, f)
}

// EndFeeds ends all feeds and refuses new ones, because a stopping server would otherwise
// wait for their clients.
func (b *Book) EndFeeds() {
	b.feeds.mu.Lock()
	defer b.feeds.mu.Unlock()
	b.feeds.closed = true
	for feed := range b.feeds.all {
		delete(b.feeds.all, feed)
		close(feed.woken)
	}
}
