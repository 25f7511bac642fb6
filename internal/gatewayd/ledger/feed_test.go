package ledger

import (
	"context"
	"errors"
	"io"
	"reflect"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/checktest"
)

// settle has a request of a project recorded, and returns its id.
func (f *fixture) settle(project string, change ...func(r *gateway.Request)) string {
	f.t.Helper()
	c := &Caller{TeamID: "team", ProjectID: project, KeyID: "k"}
	r := request(c, cent)
	for _, ch := range change {
		ch(r)
	}
	f.admit(c, Need{}).Settle(r)
	return r.ID
}

// next reads n records of a feed, and returns their ids.
func (f *fixture) next(feed *Feed, n int) (ids []string) {
	f.t.Helper()
	for range n {
		r, err := feed.Next(f.t.Context())
		checktest.OK(f.t, err)
		ids = append(ids, r.ID)
	}
	return ids
}

func (f *fixture) follow(project string, filter gateway.RequestFilter, after string) *Feed {
	f.t.Helper()
	feed, err := f.Follow(f.t.Context(), "team", project, filter, after)
	checktest.OK(f.t, err)
	f.t.Cleanup(feed.Close)
	return feed
}

// A feed returns the records written after its start, in order, each once, and only those
// of its project; a feed can resume after any record.
func TestFeed(t *testing.T) {
	t.Parallel()
	f := setup(t)
	before := []string{f.settle("p1"), f.settle("p2")}
	all, one := f.follow("", gateway.RequestFilter{}, ""), f.follow("p1", gateway.RequestFilter{}, "")
	var want, ofOne []string
	for i := range 3 * feedPage {
		id := f.settle([]string{"p1", "p2", "p2"}[i%3])
		if want = append(want, id); i%3 == 0 {
			ofOne = append(ofOne, id)
		}
	}
	if got := f.next(all, len(want)); !reflect.DeepEqual(got, want) {
		t.Errorf("got %d: %v", len(got), got)
	}
	if got := f.next(one, len(ofOne)); !reflect.DeepEqual(got, ofOne) {
		t.Errorf("of a project, got %d: %v", len(got), got)
	}
	// Feeds wait, and are woken.
	done := make(chan string)
	go func() {
		r, err := all.Next(t.Context())
		if err != nil {
			done <- err.Error()
			return
		}
		done <- r.ID
	}()
	if id := f.settle("p3"); <-done != id {
		t.Error("the next record is another one")
	}
	// A feed resumes after a given record, also a record older than the first feed.
	// Another project's record is not found.
	again := f.follow("", gateway.RequestFilter{}, before[0])
	if got := f.next(again, 3); !reflect.DeepEqual(got, []string{before[1], want[0], want[1]}) {
		t.Errorf("after the first record there are %v", got)
	}
	foreign := f.follow("p1", gateway.RequestFilter{}, want[1]) // a record of p2, so the feed starts now
	if id := f.settle("p1"); !reflect.DeepEqual(f.next(foreign, 1), []string{id}) {
		t.Error("a record of another project says where to begin")
	}
	failed := f.follow("", gateway.RequestFilter{Status: gateway.Failed, User: "u"}, "")
	f.settle("p1")
	id := f.settle("p1", func(r *gateway.Request) { r.Status, r.User = gateway.Failed, "u" })
	if got := f.next(failed, 1); got[0] != id {
		t.Error("a filter lets others pass")
	}
}

// All records may be pruned while a feed is open.
func TestFeed_Pruned(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.settle("p1")
	f.settle("p1")
	feed := f.follow("", gateway.RequestFilter{}, "")
	_, err := f.db.Exec(t.Context(), `DELETE FROM gateway_requests`)
	checktest.OK(t, err)
	if id := f.settle("p1"); f.next(feed, 1)[0] != id {
		t.Error("the next record is another one")
	}
}

// Feeds are limited in number; they end with the book and when their clients leave.
func TestFeed_Ends(t *testing.T) {
	t.Parallel()
	f := setup(t)
	feed := f.follow("", gateway.RequestFilter{}, "")
	left, leave := context.WithCancel(t.Context())
	leave()
	if _, err := feed.Next(left); !errors.Is(err, context.Canceled) {
		t.Errorf("a client that leaves gets %v", err)
	}
	for range maxFeeds - 1 {
		f.follow("", gateway.RequestFilter{}, "")
	}
	_, err := f.Follow(t.Context(), "team", "", gateway.RequestFilter{}, "")
	checktest.Code(t, err, cay.Unavailable)
	feed.Close()
	feed.Close()
	f.follow("", gateway.RequestFilter{}, "").Close()
	last := f.follow("", gateway.RequestFilter{}, "")
	f.EndFeeds()
	f.EndFeeds()
	for {
		if _, err = last.Next(t.Context()); err != nil {
			break
		}
	}
	if err != io.EOF {
		t.Errorf("it ends with %v", err)
	}
	_, err = f.Follow(t.Context(), "team", "", gateway.RequestFilter{}, "")
	checktest.Code(t, err, cay.Unavailable)
	if len(f.records.feeds.all) != 0 {
		t.Error("feeds are left")
	}
}
