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
	mu     sync.Mutex // guards the following fields; locked after memory.mu
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

// again signals one feed, unless it has ended.
func (f *feeds) again(feed *Feed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, open := f.all[feed]; open {
		signal(feed.woken)
	}
}

// add adds a feed. Errors: unavailable (too many feeds, or end was called).
func (f *feeds) add(feed *Feed) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.closed:
		return cay.Errorf(cay.Unavailable, "the gateway is stopping")
	case len(f.all) >= maxFeeds:
		return cay.Errorf(cay.Unavailable, "there are %d clients that follow requests; try again later", maxFeeds)
	}
	if f.all == nil {
		f.all = make(map[*Feed]struct{})
	}
	f.all[feed] = struct{}{}
	return nil
}

func (f *feeds) remove(feed *Feed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.all, feed)
}

// end ends all feeds, and refuses new ones.
func (f *feeds) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for feed := range f.all {
		delete(f.all, feed)
		close(feed.woken)
	}
}

// Feed reads records in the order in which they became durable, and waits for more. No
// records are queued for a feed: the writer wakes the feed, which reads the table from
// its last position, so that a slow client costs no memory and misses nothing. A Feed
// must be used by one goroutine.
type Feed struct {
	records       *records
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
func (r *records) Follow(ctx context.Context, team, project string, f gateway.RequestFilter, after string) (*Feed, error) {
	f.Since, f.Until = time.Time{}, time.Time{}
	feed := &Feed{records: r, team: team, project: project, filter: f, woken: make(chan struct{}, 1)}
	if err := r.feeds.add(feed); err != nil {
		return nil, err
	}
	err := r.writer.flush(ctx, true)
	if err == nil {
		feed.seq, err = r.store.position(ctx, team, project, after)
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
	if err := f.records.writer.fold(ctx, 0); err != nil {
		return err
	}
	more, err := f.records.store.after(ctx, f)
	if more {
		f.records.feeds.again(f)
	}
	return err
}

// Close ends the feed. Close does not interrupt a running Next; cancel its ctx.
func (f *Feed) Close() { f.records.feeds.remove(f) }

// EndFeeds ends all feeds and refuses new ones, because a stopping server would otherwise
// wait for their clients.
func (r *records) EndFeeds() { r.feeds.end() }
