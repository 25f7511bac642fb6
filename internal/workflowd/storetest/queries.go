package storetest

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
)

func testRuns(f *fixture) {
	type change = func(*history.Run)
	create := func(events []history.Event, attributes map[string]string, c ...change) *history.Log {
		l := f.newRun(c...)
		e := created()
		e.Attributes, e.Name = attributes, l.Run.Workflow
		f.now += 10
		f.append(l, append([]history.Event{e}, events...)...)
		return l
	}
	all := []*history.Log{
		create(nil, nil),
		create([]history.Event{started()}, map[string]string{"a": "1", "b": "1"}, func(r *history.Run) { r.Workflow = "refund" }),
		create([]history.Event{started(), ended()}, map[string]string{"a": "1"}, func(r *history.Run) { r.Key = "k" }),
		create([]history.Event{started(), {Type: history.RunFailed}}, map[string]string{"a": "2"}, func(r *history.Run) { r.Parent = "wrun_p" }),
		create([]history.Event{{Type: history.RunCancelled}}, nil, func(r *history.Run) { r.Project = "q" }),
		create([]history.Event{started()}, map[string]string{"$schedule": "s", "a": "1"}),
	}
	at := func(i int) int64 { return all[i].Run.CreatedAt }
	cases := []struct {
		name string
		q    history.Query
		want []int
	}{
		{"All", history.Query{}, []int{0, 1, 2, 3, 4, 5}},
		{"Project", history.Query{Project: "p"}, []int{0, 1, 2, 3, 5}},
		{"OtherProject", history.Query{Project: "q"}, []int{4}},
		{"NoProject", history.Query{Project: "r"}, nil},
		{"Workflow", history.Query{Project: "p", Workflow: "refund"}, []int{1}},
		{"Status", history.Query{Project: "p", Statuses: []history.Status{history.Running}}, []int{1, 5}},
		{"Statuses", history.Query{Statuses: []history.Status{history.Running, history.Failed, history.Cancelled, history.Running}}, []int{1, 3, 4, 5}},
		{"Attribute", history.Query{Project: "p", Attributes: map[string]string{"a": "1"}}, []int{1, 2, 5}},
		{"Attributes", history.Query{Attributes: map[string]string{"a": "1", "b": "1"}}, []int{1}},
		{"HasAttribute", history.Query{Project: "p", HasAttributes: []string{"a"}}, []int{1, 2, 3, 5}},
		{"HasAttributes", history.Query{HasAttributes: []string{"a", "b"}}, []int{1}},
		{"HasAndAttribute", history.Query{HasAttributes: []string{"$schedule", "a"}, Attributes: map[string]string{"a": "1"}}, []int{5}},
		{"HasOneOfStatus", history.Query{HasAttributes: []string{"a"}, Statuses: []history.Status{history.Failed, history.Running}}, []int{1, 3, 5}},
		{"HasNone", history.Query{HasAttributes: []string{"c"}}, nil},
		{"HasValue", history.Query{HasAttributes: []string{"1"}}, nil},
		{"WorkflowOfStatus", history.Query{Workflow: "order", Statuses: []history.Status{history.Completed, history.Failed}}, []int{2, 3}},
		{"Key", history.Query{Project: "p", Key: "k"}, []int{2}},
		{"Parent", history.Query{Parent: "wrun_p"}, []int{3}},
		{"Schedule", history.Query{Schedule: "s", Attributes: map[string]string{"a": "1"}}, []int{5}},
		{"Since", history.Query{Project: "p", Since: at(2)}, []int{2, 3, 5}},
		{"Until", history.Query{Project: "p", Until: at(2)}, []int{0, 1}},
		{"Between", history.Query{Since: at(2), Until: at(5), Statuses: []history.Status{history.Failed, history.Cancelled}}, []int{3, 4}},
	}
	f.twice(func() {
		for _, c := range cases {
			wantCounts := noCounts(c.q)
			for _, i := range c.want {
				status := all[i].Run.Status
				wantCounts[status] = history.Count{Count: wantCounts[status].Count + 1}
			}
			f.equal("counts of "+c.name, checktest.Must(f.Count(f.Context(), c.q))(f), wantCounts)
			for _, ascending := range []bool{true, false} {
				var want []string
				for _, i := range c.want {
					want = append(want, all[i].Run.ID)
				}
				if !ascending {
					slices.Reverse(want)
				}
				c.q.Ascending = ascending
				page := checktest.Must(f.Runs(f.Context(), c.q))(f)
				if got := ids(page.Items); !slices.Equal(got, want) || page.Cursor != "" {
					f.Errorf("%s, ascending %t: %v %q, want %v", c.name, ascending, got, page.Cursor, want)
				}
				var paged []string
				for c.q.Limit = 2; ; {
					p := checktest.Must(f.Runs(f.Context(), c.q))(f)
					paged = append(paged, ids(p.Items)...)
					if c.q.Cursor = p.Cursor; p.Cursor == "" || len(paged) > len(all) {
						break
					}
				}
				c.q.Limit = 0
				if !slices.Equal(paged, want) {
					f.Errorf("%s, ascending %t, by pages: %v, want %v", c.name, ascending, paged, want)
				}
			}
		}
	})
	// A changed attribute is found by its new value.
	f.append(all[1], history.Event{Type: history.AttrSet, Attributes: map[string]string{"a": "3", "b": ""}})
	f.twice(func() {
		for value, want := range map[string][]string{"1": {all[2].Run.ID, all[5].Run.ID}, "3": {all[1].Run.ID}} {
			got := checktest.Must(f.Runs(f.Context(), history.Query{Attributes: map[string]string{"a": value}, Ascending: true}))(f)
			f.equal("with a="+value, ids(got.Items), want)
		}
		if got := checktest.Must(f.Runs(f.Context(), history.Query{Attributes: map[string]string{"b": "1"}}))(f); len(got.Items) > 0 {
			f.Errorf("found by an attribute it no longer has: %v", ids(got.Items))
		}
		full := checktest.Must(f.Runs(f.Context(), history.Query{Attributes: map[string]string{"a": "3"}}))(f)
		f.equal("run", full.Items[0], all[1].Run)
	})
	_, err := f.Runs(f.Context(), history.Query{Cursor: "no cursor"})
	checktest.Code(f, err, cay.Invalid)
}

// noCounts are the counts of a query that selects no runs.
func noCounts(q history.Query) history.Counts {
	counts := make(history.Counts)
	for _, status := range q.Statuses {
		counts[status] = history.Count{}
	}
	if len(q.Statuses) == 0 {
		for _, status := range history.Statuses {
			counts[status] = history.Count{}
		}
	}
	return counts
}

// testCounts counts, and lists by attributes, with more runs than the limit of the count.
func testCounts(f *fixture) {
	const most = 10_000
	const total = most + 200
	var failed, pending, rare int
	for first := 0; first < total; first += 1000 {
		var r workflowd.Records
		for i := first; i < min(first+1000, total); i++ {
			f.now++
			attributes := map[string]string{"often": fmt.Sprint(i % 2), "each": fmt.Sprint(i)}
			if i%5000 == 0 {
				attributes["rare"] = "x"
				rare++
			}
			l := f.newRun(func(r *history.Run) { r.Parent = "wrun_p" })
			e := created()
			e.Attributes = attributes
			events := []history.Event{e, started(), ended()}
			switch i {
			case 3, total - 4:
				events[2] = history.Event{Type: history.RunFailed}
				failed++
			case 5:
				events = events[:1]
				pending++
			}
			log := f.log(l, events...)
			r.Logs, r.Runs = append(r.Logs, log), append(r.Runs, l.Run)
		}
		f.commit(r)
	}
	exact := func(n int) history.Count { return history.Count{Count: n} }
	counts := func(q history.Query) history.Counts { return checktest.Must(f.Count(f.Context(), q))(f) }
	f.equal("all", counts(history.Query{}), history.Counts{
		history.Pending: exact(pending), history.Running: exact(0), history.Cancelled: exact(0),
		history.Completed: {Count: most, More: true}, history.Failed: exact(failed),
	})
	f.equal("of a workflow", counts(history.Query{Project: "p", Workflow: "order", Statuses: []history.Status{history.Completed, history.Failed}}),
		history.Counts{history.Completed: {Count: most, More: true}, history.Failed: exact(failed)})
	f.equal("by a rare attribute", counts(history.Query{HasAttributes: []string{"rare"}, Statuses: []history.Status{history.Completed}}),
		history.Counts{history.Completed: exact(rare)})
	f.equal("by one of each", counts(history.Query{Attributes: map[string]string{"each": "3"}, Statuses: []history.Status{history.Failed}}),
		history.Counts{history.Failed: exact(1)})
	// Only the newest 10,000 completed runs are examined, but all runs in other states.
	f.equal("by one that many have", counts(history.Query{Attributes: map[string]string{"often": "1"}}), history.Counts{
		history.Pending: exact(1), history.Running: exact(0), history.Cancelled: exact(0),
		history.Completed: {Count: most/2 + 1, More: true}, history.Failed: exact(1),
	})
	for status, n := range counts(history.Query{Parent: "wrun_p"}) {
		if !n.More || n.Count > most {
			f.Errorf("of one that has more children than are counted, %s: %+v", status, n)
		}
	}
	for name, q := range map[string]history.Query{
		"often": {HasAttributes: []string{"often"}, Statuses: []history.Status{history.Failed}},
		"equal": {Attributes: map[string]string{"often": "1"}, HasAttributes: []string{"each"}, Statuses: []history.Status{history.Failed, history.Pending}},
	} {
		if page := checktest.Must(f.Runs(f.Context(), q))(f); len(page.Items) != 2 {
			f.Errorf("%s: %d runs, want 2", name, len(page.Items))
		}
	}
}

// testRunsPages lists runs, many of them created in one millisecond, while more runs are
// added.
func testRunsPages(f *fixture) {
	var r workflowd.Records
	var want []string
	for i := range 250 {
		l := f.newRun()
		if i%50 == 0 {
			f.now++
		}
		r.Logs = append(r.Logs, f.log(l, created()))
		want = append(want, l.Run.ID)
	}
	f.commit(r)
	if got := checktest.Must(f.Runs(f.Context(), history.Query{}))(f); len(got.Items) != 100 || got.Cursor == "" {
		f.Errorf("%d runs on a page, cursor %q", len(got.Items), got.Cursor)
	}
	if got := checktest.Must(f.Runs(f.Context(), history.Query{Limit: 5000}))(f); len(got.Items) != 250 || got.Cursor != "" {
		f.Errorf("%d runs on a page, cursor %q", len(got.Items), got.Cursor)
	}
	var got []string
	q := history.Query{Project: "p", Limit: 30}
	for {
		page := checktest.Must(f.Runs(f.Context(), q))(f)
		got = append(got, ids(page.Items)...)
		if q.Cursor = page.Cursor; q.Cursor == "" {
			break
		}
		f.now += 100
		f.append(f.newRun(), created())
	}
	slices.Sort(got)
	f.equal("page by page", got, want)
}

func testStreams(f *fixture) {
	l := f.newRun()
	f.append(l, created(), started())
	id := l.Run.ID
	next := map[string]int64{}
	want := map[string][]history.Chunk{}
	write := func(stream string, closeIt bool, data ...string) {
		f.Helper()
		c := workflowd.StreamChunks{Run: id, Stream: stream, Close: closeIt}
		for _, d := range data {
			chunk := history.Chunk{Index: next[stream], Data: []byte(d)}
			next[stream]++
			c.Chunks = append(c.Chunks, chunk)
			want[stream] = append(want[stream], chunk)
		}
		f.commit(workflowd.Records{Chunks: []workflowd.StreamChunks{c}})
	}
	chunks := func(stream string, from int64, limit int) ([]history.Chunk, history.StreamInfo) {
		f.Helper()
		got, info, err := f.Chunks(f.Context(), id, stream, from, limit)
		if err != nil {
			f.Fatal(err)
		}
		return got, info
	}
	if got, info := chunks("out", 0, 10); len(got) > 0 || info.Chunks != 0 || info.Closed || info.Name != "out" {
		f.Errorf("one that nobody wrote to: %v, %+v", got, info)
	}
	write("out", false, "a", "b")
	write("out", false, "c")
	write("err", false, "\x00\xff")
	f.reopen()
	write("out", false, "d", "e", "f")
	write("empty", true)
	f.twice(func() {
		for name, all := range want {
			for from := range len(all) + 1 {
				for limit := range 4 {
					some := all[from:]
					if limit > 0 {
						some = some[:min(limit, len(some))]
					}
					got, info := chunks(name, int64(from), limit)
					if !slices.EqualFunc(got, some, func(a, b history.Chunk) bool { return a.Index == b.Index && bytes.Equal(a.Data, b.Data) }) {
						f.Errorf("%s from %d at most %d: %v, want %v", name, from, limit, got, some)
					}
					if info != (history.StreamInfo{Name: name, Chunks: int64(len(all))}) {
						f.Errorf("%s: %+v", name, info)
					}
				}
			}
		}
		f.equal("streams", checktest.Must(f.Streams(f.Context(), id))(f), []history.StreamInfo{
			{Name: "empty", Closed: true}, {Name: "err", Chunks: 1}, {Name: "out", Chunks: 6},
		})
	})
	write("out", true, "last")
	f.append(l, ended())
	write("err", false, "after the end of the run") // steps may outlive the run
	f.twice(func() {
		f.equal("streams", checktest.Must(f.Streams(f.Context(), id))(f), []history.StreamInfo{
			{Name: "empty", Closed: true}, {Name: "err", Chunks: 2}, {Name: "out", Chunks: 7, Closed: true},
		})
	})
	if got := checktest.Must(f.Streams(f.Context(), "wrun_none"))(f); len(got) > 0 {
		f.Errorf("streams of no run: %v", got)
	}
	f.twice(func() { f.equal("who has it", checktest.Must(f.StreamRun(f.Context(), "p", "err"))(f), id) })
	for _, ask := range [][2]string{{"p", "none"}, {"q", "err"}} {
		_, err := f.StreamRun(f.Context(), ask[0], ask[1])
		checktest.Code(f, err, cay.NotFound)
	}
}

func testBlobs(f *fixture) {
	l := f.newRun()
	f.append(l, created(), started())
	big := bytes.Repeat([]byte{1, 2, 3, 0}, 300_000)
	for _, data := range [][]byte{big, []byte("one of that name is there")} {
		f.commit(workflowd.Records{
			Logs: []workflowd.Log{f.log(l, step(fmt.Sprintf("step_a.%d", len(data))))},
			Blobs: []workflowd.Blob{
				{Run: l.Run.ID, Name: "x", Data: data},
				{Run: "wrun_other", Name: "x", Data: []byte("y")},
			},
		})
	}
	f.commit(workflowd.Records{Blobs: []workflowd.Blob{{Run: l.Run.ID, Name: "alone", Data: []byte("z")}}})
	f.twice(func() {
		if got := checktest.Must(f.Blob(f.Context(), l.Run.ID, "x"))(f); !bytes.Equal(got, big) {
			f.Errorf("%d bytes came back, of %d", len(got), len(big))
		}
		if got := checktest.Must(f.Blob(f.Context(), l.Run.ID, "alone"))(f); string(got) != "z" {
			f.Errorf("got %q", got)
		}
		_, err := f.Blob(f.Context(), l.Run.ID, "y")
		checktest.Code(f, err, cay.NotFound)
	})
}

func testTransact(f *fixture) {
	l := f.newRun()
	f.append(l, created(), started())
	ctx := f.Context()
	exec := func(tx workflowd.Tx, query string) {
		f.Helper()
		if _, err := tx.ExecContext(ctx, query); err != nil {
			f.Fatal(err)
		}
	}
	count := func() (n int) {
		f.Helper()
		err := f.Transact(ctx, &workflowd.Group{Settle: func() workflowd.Records { return workflowd.Records{} }}, func(tx workflowd.Tx) error {
			return tx.QueryRowContext(ctx, `SELECT count(*) FROM accounts`).Scan(&n)
		})
		if err != nil {
			f.Fatal(err)
		}
		return n
	}
	group := func(called *bool, id string) *workflowd.Group {
		return &workflowd.Group{Settle: func() workflowd.Records {
			*called = true
			return workflowd.Records{Logs: []workflowd.Log{f.log(l, step(id))}}
		}}
	}
	events := func() int { return len(checktest.Must(f.Events(ctx, l.Run.ID, 1, 0))(f)) }

	var settled bool
	err := f.Transact(ctx, group(&settled, "step_a.1"), func(tx workflowd.Tx) error {
		if settled {
			f.Error("settled before the call")
		}
		exec(tx, `CREATE TABLE accounts (id INTEGER PRIMARY KEY, name TEXT)`)
		exec(tx, `INSERT INTO accounts (id, name) VALUES (1, 'a'), (2, 'b')`)
		rows, err := tx.QueryContext(ctx, `SELECT id FROM accounts ORDER BY id`)
		if err != nil {
			return err
		}
		defer rows.Close()
		n := 0
		for rows.Next() {
			n++
		}
		if n != 2 {
			f.Errorf("it sees %d of its rows", n)
		}
		return rows.Err()
	})
	if err != nil || !settled {
		f.Fatalf("settled %t, %v", settled, err)
	}
	f.twice(func() {
		if count() != 2 || events() != 3 {
			f.Errorf("%d rows and %d events, want 2 and 3", count(), events())
		}
	})

	fault := cay.Errorf(cay.QuotaExceeded, "not today")
	settled = false
	err = f.Transact(ctx, group(&settled, "step_a.2"), func(tx workflowd.Tx) error {
		exec(tx, `INSERT INTO accounts (id, name) VALUES (3, 'c')`)
		return fault
	})
	if err != error(fault) || settled {
		f.Errorf("got %v, settled %t; want its own error, and not to be settled", err, settled)
	}
	func() {
		defer func() {
			if recover() == nil {
				f.Error("its panic was swallowed")
			}
		}()
		_ = f.Transact(ctx, group(&settled, "step_a.2"), func(tx workflowd.Tx) error {
			exec(tx, `INSERT INTO accounts (id, name) VALUES (4, 'd')`)
			panic("no")
		})
	}()
	err = f.Transact(ctx, group(&settled, "step_a.2"), func(tx workflowd.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO accounts (id, name) VALUES (1, 'again')`)
		return err
	})
	if err == nil {
		f.Error("a row that cannot be was stored")
	}
	if settled || count() != 2 || events() != 3 {
		f.Errorf("settled %t, %d rows and %d events, want 2 and 3", settled, count(), events())
	}
	// The store works normally after that.
	f.append(l, step("step_a.3"))
	if err := f.Transact(ctx, group(&settled, "step_a.4"), func(tx workflowd.Tx) error {
		exec(tx, `INSERT INTO accounts (id, name) VALUES (5, 'e')`)
		return nil
	}); err != nil {
		f.Fatal(err)
	}
	f.twice(func() {
		if count() != 3 || events() != 5 {
			f.Errorf("%d rows and %d events, want 3 and 5", count(), events())
		}
	})
}

var _ testing.TB = (*fixture)(nil)
