package workflowd

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

func newFeed() *feed {
	f := new(feed)
	f.init()
	return f
}

// watching adds a watch that has reported Ready.
func watching(t *testing.T, f *feed, q history.Query) *runWatch {
	t.Helper()
	w := newWatch(f, q)
	w.ready = true
	if err := f.add(w); err != nil {
		t.Fatal(err)
	}
	return w
}

// reported returns the changes that a watch reports at a time.
func reported(t *testing.T, w *runWatch, at time.Time) []history.Change {
	t.Helper()
	changes, _, err := w.take(at)
	if err != nil {
		t.Fatal(err)
	}
	return changes
}

func named(changes []history.Change) string {
	var s string
	for _, c := range changes {
		s += " " + string(c.Type)
		if c.ID != "" {
			s += ":" + c.ID
		}
	}
	return s
}

func wantTypes(t *testing.T, what string, got []history.Change, want string) {
	t.Helper()
	if s := named(got); s != want {
		t.Errorf("%s:%s, want%s", what, s, want)
	}
}

// A slow reader costs a bounded amount of memory, and gets Missed.
func TestFeed_SlowReader(t *testing.T) {
	t.Parallel()
	f := newFeed()
	w := watching(t, f, history.Query{Project: "p"})
	for i := range changesAhead {
		for n := range 3 {
			f.changed(&history.Run{ID: fmt.Sprint(i), Project: "p", Events: int64(n)}, moved{})
		}
	}
	f.changed(&history.Run{ID: "theirs", Project: "q"}, moved{isNew: true})
	if len(w.queue) != changesAhead || w.missed.asked {
		t.Fatalf("%d wait, missed: %t", len(w.queue), w.missed.asked)
	}
	for _, c := range w.queue {
		if c.Run.Events != 2 {
			t.Fatalf("%+v is not as it was last", c.Run)
		}
	}
	f.hooks("p")
	f.changed(&history.Run{ID: "one more", Project: "p"}, moved{})
	f.changed(&history.Run{ID: "and another", Project: "p"}, moved{})
	now := time.Now()
	wantTypes(t, "after too many", reported(t, w, now), " missed")
	if len(w.place) != 0 || len(w.queue) != 0 {
		t.Errorf("%d, %d are kept of what is not reported", len(w.place), len(w.queue))
	}
	f.changed(&history.Run{ID: "later", Project: "p"}, moved{})
	wantTypes(t, "later", reported(t, w, now), " changed:later")

	// Missed is reported at most once a second, and no other change in between.
	f.miss()
	f.changed(&history.Run{ID: "meanwhile", Project: "p"}, moved{})
	_, wake, err := w.take(now.Add(againPace - time.Millisecond))
	if err != nil || !wake.Equal(now.Add(againPace)) {
		t.Errorf("it is to look again at %v, want %v, %v", wake, now.Add(againPace), err)
	}
	wantTypes(t, "a second later", reported(t, w, now.Add(againPace)), " missed")
}

func TestFeed_Pace(t *testing.T) {
	t.Parallel()
	f := newFeed()
	w := watching(t, f, history.Query{Project: "p"})
	now := time.Now()
	change := func(id string, events int64) {
		f.changed(&history.Run{ID: id, Project: "p", Events: events}, moved{})
	}
	change("a", 1)
	wantTypes(t, "at once", reported(t, w, now), " changed:a")
	change("a", 2)
	change("b", 1)
	change("a", 3)
	changes, wake, _ := w.take(now.Add(changesPace - 1))
	if len(changes) != 0 || !wake.Equal(now.Add(changesPace)) {
		t.Errorf("too soon: %v, until %v", changes, wake)
	}
	changes = reported(t, w, now.Add(changesPace))
	wantTypes(t, "then", changes, " changed:a changed:b")
	if changes[0].Run.Events != 3 {
		t.Errorf("a is reported as %+v, not as it was last", changes[0].Run)
	}
	if changes, wake, _ = w.take(now.Add(time.Hour)); len(changes) != 0 || !wake.IsZero() {
		t.Errorf("with nothing to report: %v, until %v", changes, wake)
	}

	for range 100 {
		f.hooks("p")
		f.schedules("p")
		f.hooks("q")
	}
	now = now.Add(2 * time.Hour)
	wantTypes(t, "lists", reported(t, w, now), " hooks schedules")
	f.hooks("p")
	f.schedules("q")
	wantTypes(t, "lists, too soon", reported(t, w, now.Add(againPace-1)), "")
	wantTypes(t, "lists, later", reported(t, w, now.Add(againPace)), " hooks")
	f.schedules("")
	wantTypes(t, "schedules of any project", reported(t, w, now.Add(2*againPace)), " schedules")
}

// A run that leaves a list is reported as deleted, and a run that cannot have been in the
// list is not reported.
func TestFeed_Selects(t *testing.T) {
	t.Parallel()
	run := func(change func(r *history.Run)) *history.Run {
		r := &history.Run{ID: "r", Project: "p", Workflow: "w", Status: history.Running, Key: "k", Parent: "up", CreatedAt: 100, Attributes: map[string]string{"a": "1"}}
		change(r)
		return r
	}
	same := func(*history.Run) {}
	ended := func(r *history.Run) { r.Status = history.Completed }
	bare := func(r *history.Run) { r.Attributes = nil }
	running := []history.Status{history.Running}
	for name, tt := range map[string]struct {
		q    history.Query
		run  *history.Run
		by   moved
		want string
	}{
		"all":                    {history.Query{}, run(same), moved{}, " changed:r"},
		"project":                {history.Query{Project: "p"}, run(same), moved{}, " changed:r"},
		"other project":          {history.Query{Project: "q"}, run(same), moved{status: true}, ""},
		"workflow":               {history.Query{Workflow: "w"}, run(same), moved{}, " changed:r"},
		"other workflow":         {history.Query{Workflow: "v", Statuses: running}, run(ended), moved{status: true}, ""},
		"other key":              {history.Query{Key: "l"}, run(same), moved{}, ""},
		"other parent":           {history.Query{Parent: "down"}, run(same), moved{}, ""},
		"since then":             {history.Query{Since: 100, Until: 101}, run(same), moved{}, " changed:r"},
		"later":                  {history.Query{Since: 101}, run(same), moved{}, ""},
		"earlier":                {history.Query{Until: 100}, run(same), moved{}, ""},
		"status":                 {history.Query{Statuses: running}, run(same), moved{}, " changed:r"},
		"status no more":         {history.Query{Statuses: running}, run(ended), moved{status: true}, " deleted:r"},
		"status, not moved":      {history.Query{Statuses: running}, run(ended), moved{attributes: true}, ""},
		"status of a new one":    {history.Query{Statuses: []history.Status{history.Pending}}, run(same), moved{isNew: true, status: true}, ""},
		"how it may end":         {history.Query{Statuses: []history.Status{history.Failed, history.Cancelled}}, run(ended), moved{status: true}, ""},
		"attribute":              {history.Query{Attributes: map[string]string{"a": "1"}, HasAttributes: []string{"a"}}, run(same), moved{}, " changed:r"},
		"another value":          {history.Query{Attributes: map[string]string{"a": "2"}}, run(same), moved{attributes: true}, " deleted:r"},
		"no attribute":           {history.Query{HasAttributes: []string{"a"}}, run(bare), moved{attributes: true}, " deleted:r"},
		"never had it":           {history.Query{HasAttributes: []string{"a"}}, run(bare), moved{status: true}, ""},
		"empty is not a value":   {history.Query{Attributes: map[string]string{"b": ""}}, run(same), moved{}, ""},
		"status, none with such": {history.Query{Statuses: running, HasAttributes: []string{"b"}}, run(same), moved{status: true}, " deleted:r"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFeed()
			w := watching(t, f, tt.q)
			f.changed(tt.run, tt.by)
			wantTypes(t, "one change", reported(t, w, time.Now()), tt.want)
		})
	}

	// A change that was not reported in time is dropped when it is obsolete.
	f := newFeed()
	w := watching(t, f, history.Query{Statuses: running})
	f.changed(run(same), moved{isNew: true, status: true})
	f.changed(run(ended), moved{status: true})
	wantTypes(t, "came and went", reported(t, w, time.Now()), " deleted:r")
	f.deleted("p", "s")
	f.deleted("q", "t")
	wantTypes(t, "deleted", reported(t, w, time.Now().Add(time.Hour)), " deleted:s deleted:t")
}

func TestFeed_Bounds(t *testing.T) {
	t.Parallel()
	f := newFeed()
	if f.watched() {
		t.Error("nobody watches")
	}
	var all []*runWatch
	for range maxWatches {
		all = append(all, watching(t, f, history.Query{Project: "p"}))
	}
	if err := f.add(newWatch(f, history.Query{Project: "p"})); cay.CodeOf(err) != cay.QuotaExceeded {
		t.Errorf("one more: %v", err)
	}
	watching(t, f, history.Query{Project: "q"})
	for range 2 { // closing twice frees one place
		if err := all[0].Close(); err != nil {
			t.Error(err)
		}
	}
	watching(t, f, history.Query{Project: "p"})
	if err := f.add(newWatch(f, history.Query{Project: "p"})); cay.CodeOf(err) != cay.QuotaExceeded {
		t.Errorf("one more again: %v", err)
	}
	for i := 2; f.count.Load() < maxAllWatches; i++ {
		watching(t, f, history.Query{Project: fmt.Sprint(i)})
	}
	if err := f.add(newWatch(f, history.Query{Project: "late"})); cay.CodeOf(err) != cay.QuotaExceeded {
		t.Errorf("of all projects: %v", err)
	}
	if _, err := all[0].ReadChanges(t.Context()); err != errWatchClosed {
		t.Errorf("reading a closed one: %v", err)
	}
	f.close()
	if _, err := all[1].ReadChanges(t.Context()); err != errClosed {
		t.Errorf("reading when the engine has ended: %v", err)
	}
	if err := f.add(newWatch(f, history.Query{})); err != errClosed {
		t.Errorf("watching then: %v", err)
	}
	if f.watched() || len(f.watches) != 0 {
		t.Errorf("%d watches of %d projects are left", f.count.Load(), len(f.watches))
	}
}

// A waiting reader is woken by changes, by the end of its context, and by Close.
func TestFeed_Wakes(t *testing.T) {
	t.Parallel()
	f := newFeed()
	w := watching(t, f, history.Query{})
	type read struct {
		changes []history.Change
		err     error
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := make(chan read)
	ask := func() {
		go func() {
			changes, err := w.ReadChanges(ctx)
			got <- read{changes, err}
		}()
	}
	for _, wake := range []func(){
		func() { f.changed(&history.Run{ID: "a"}, moved{}) },
		func() { f.deleted("", "b") }, // after the pace
		func() { f.hooks("") },
		func() { f.schedules("") },
		func() { f.miss() },
	} {
		ask()
		wake()
		if r := <-got; r.err != nil || len(r.changes) != 1 {
			t.Errorf("%+v", r)
		}
	}
	ask()
	cancel()
	if r := <-got; cay.CodeOf(r.err) != cay.Canceled {
		t.Errorf("canceled: %+v", r)
	}
	ctx = t.Context()
	ask()
	w.Close()
	if r := <-got; r.err != errWatchClosed {
		t.Errorf("closed: %+v", r)
	}
}

// Without watches the feed costs nothing.
func BenchmarkFeed(b *testing.B) {
	r := &liveRun{log: history.NewLog(history.Run{ID: "r", Project: "p", Attributes: map[string]string{"a": "1"}})}
	events := []history.Event{{Type: history.StepCompleted}}
	for _, watches := range []int{0, 1, maxWatches} {
		b.Run(fmt.Sprint(watches), func(b *testing.B) {
			f := newFeed()
			for range watches {
				if err := f.add(newWatch(f, history.Query{Project: "p", HasAttributes: []string{"a"}})); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				if f.watched() {
					f.publish(r, events)
				}
			}
		})
	}
}
