// Package storetest is the test suite for implementations of workflowd.Store. The test of
// a store calls Run, and calls Crash to test the store's state after its process was
// killed.
package storetest

import (
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
)

// Config opens the store under test.
type Config struct {
	// Open opens a new, empty store. The test's clean-up closes the store.
	Open func(t testing.TB) workflowd.Store
	// Reopen closes a store that Open or Reopen returned, and opens its data again.
	Reopen func(t testing.TB, s workflowd.Store) workflowd.Store
}

// Run runs the suite.
func Run(t *testing.T, c Config) {
	for name, test := range map[string]func(*fixture){
		"Events":       testEvents,
		"LongLog":      testLongLog,
		"LargeGroup":   testLargeGroup,
		"Run":          testRun,
		"Tokens":       testTokens,
		"Keys":         testKeys,
		"Hooks":        testHooks,
		"Due":          testDue,
		"Owned":        testOwned,
		"External":     testExternal,
		"Runs":         testRuns,
		"RunsPages":    testRunsPages,
		"Counts":       testCounts,
		"Streams":      testStreams,
		"Blobs":        testBlobs,
		"Expired":      testExpired,
		"Chain":        testChain,
		"Delete":       testDelete,
		"Strip":        testStrip,
		"Schedules":    testSchedules,
		"Limits":       testLimits,
		"Transact":     testTransact,
		"Concurrently": testConcurrently,
		"Model":        testModel,
		"Closed":       testClosed,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(&fixture{T: t, config: c, Store: c.Open(t), now: start})
		})
	}
}

// start is the creation time of the tests' first runs.
const start = 1_790_000_000_000

// fixture is a store with the runs of a test.
type fixture struct {
	*testing.T
	workflowd.Store
	config Config
	now    int64
}

var runs atomic.Int64

// newRun returns a run that is not yet stored. Later runs have greater ids.
func (f *fixture) newRun(change ...func(*history.Run)) *history.Log {
	r := history.Run{ID: fmt.Sprintf("wrun_%026d", runs.Add(1)), Project: "p", Workflow: "order"}
	for _, c := range change {
		c(&r)
	}
	return history.NewLog(r)
}

// created returns the first event of a run.
func created() history.Event {
	return history.Event{Type: history.RunCreated, Name: "order", Payload: []byte("json{}")}
}

func started() history.Event { return history.Event{Type: history.RunStarted} }

func step(id string) history.Event {
	return history.Event{Type: history.StepCompleted, ID: id, Name: "step", Input: []byte("json1"), Payload: []byte("json2"), Attempt: 1}
}

func wait(id string, until int64) history.Event {
	return history.Event{Type: history.WaitCreated, ID: id, Until: until}
}

func hook(id, token string) history.Event {
	return history.Event{Type: history.HookCreated, ID: id, Token: token, Payload: []byte("json{}")}
}

func ended() history.Event {
	return history.Event{Type: history.RunCompleted, Payload: []byte("json3")}
}

// log applies events to a run and returns the Log to store.
func (f *fixture) log(l *history.Log, events ...history.Event) workflowd.Log {
	f.Helper()
	return apply(f, l, f.now, events)
}

func apply(t testing.TB, l *history.Log, now int64, events []history.Event) workflowd.Log {
	t.Helper()
	out := make([]history.Event, 0, len(events))
	for _, e := range events {
		if e.At == 0 {
			e.At = now
		}
		stored, err := l.Apply(&e)
		if err != nil || !stored {
			t.Fatalf("event %s of %s: stored %t, %v", e.Type, l.Run.ID, stored, err)
		}
		out = append(out, e)
	}
	return workflowd.Log{Run: &l.Run, Events: out}
}

// append stores events of one run.
func (f *fixture) append(l *history.Log, events ...history.Event) {
	f.Helper()
	f.commit(workflowd.Records{Logs: []workflowd.Log{f.log(l, events...)}})
}

// commit stores records and claims; Commit writes the outcome into the claims.
func (f *fixture) commit(r workflowd.Records, claims ...*workflowd.Claim) {
	f.Helper()
	if err := f.Commit(f.Context(), &workflowd.Group{Claims: claims, Settle: func() workflowd.Records { return r }}); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) reopen() {
	f.Helper()
	f.Store = f.config.Reopen(f.T, f.Store)
}

// twice runs a check on recently stored data, and again after the store was reopened.
func (f *fixture) twice(check func()) {
	f.Helper()
	check()
	f.reopen()
	check()
}

func (f *fixture) equal(what string, got, want any) {
	f.Helper()
	if !reflect.DeepEqual(got, want) {
		f.Errorf("%s:\ngot  %+v\nwant %+v", what, got, want)
	}
}

// ids returns the ids of runs, in order.
func ids(runs []history.Run) []string {
	out := []string{}
	for _, r := range runs {
		out = append(out, r.ID)
	}
	return out
}

func sorted(s []string) []string {
	s = slices.Clone(s)
	slices.Sort(s)
	return s
}

func testEvents(f *fixture) {
	l := f.newRun()
	var want []history.Event
	put := func(events ...history.Event) {
		log := f.log(l, events...)
		want = append(want, log.Events...)
		f.commit(workflowd.Records{Logs: []workflowd.Log{log}})
	}
	put(history.Event{Type: history.RunCreated, Name: "order", ID: "child_a.1", Payload: []byte("json{}"), Attributes: map[string]string{"a": "b"}}, started())
	f.now += 10
	put(step("step_a.1"))
	put(history.Event{Type: history.StepStarted, ID: "step_b.1", Name: "b", Input: []byte{}, Attempt: 1, StartedAt: f.now - 5})
	put(history.Event{Type: history.StepRetrying, ID: "step_b.1", Attempt: 1, Payload: []byte("jsonerr"), Until: f.now + 100, Code: "c"})
	put(hook("hook_a.1", "t"), history.Event{Type: history.HookReceived, ID: "hook_a.1", Payload: []byte{0, 1, 2, 0xff}, Key: "k"})
	put(history.Event{Type: history.AttrSet, Attributes: map[string]string{"a": "", "c": "d"}})
	f.now += 10
	put(history.Event{Type: history.RunCancelled, Reason: "why"})

	f.twice(func() {
		f.equal("all", checktest.Must(f.Events(f.Context(), l.Run.ID, 1, 0))(f), want)
		f.equal("from 0", checktest.Must(f.Events(f.Context(), l.Run.ID, 0, 0))(f), want)
		for from := range len(want) {
			for limit := range len(want) + 2 {
				some := want[from:]
				if limit > 0 && limit < len(some) {
					some = some[:limit]
				}
				f.equal(fmt.Sprint("from ", from+1, " at most ", limit), checktest.Must(f.Events(f.Context(), l.Run.ID, int64(from+1), limit))(f), some)
			}
		}
		if got := checktest.Must(f.Events(f.Context(), l.Run.ID, int64(len(want)+1), 0))(f); len(got) > 0 {
			f.Errorf("%d events behind the last", len(got))
		}
	})
	_, err := f.Events(f.Context(), "wrun_none", 1, 0)
	checktest.Code(f, err, cay.NotFound)
}

// testLongLog stores a log in many commits, and reads it during the commits and after
// them.
func testLongLog(f *fixture) {
	l := f.newRun()
	f.append(l, created(), started())
	const steps = 3000
	read := func(from int64, limit, want int) {
		f.Helper()
		events := checktest.Must(f.Events(f.Context(), l.Run.ID, from, limit))(f)
		if len(events) != want {
			f.Fatalf("%d events from slot %d on, want %d", len(events), from, want)
		}
		for i := range events {
			if events[i].Slot != from+int64(i) {
				f.Fatalf("slot %d in place of %d", events[i].Slot, from+int64(i))
			}
		}
	}
	for i := 0; i < steps; i += 10 {
		var events []history.Event
		for j := range 10 {
			events = append(events, step(fmt.Sprintf("step_a.%d", i+j+1)))
		}
		f.append(l, events...)
		if i%500 == 0 {
			read(1, 0, int(l.Run.Events))
			read(max(1, l.Run.Events-15), 7, 7)
			checktest.Must(f.Runs(f.Context(), history.Query{}))(f)
		}
	}
	f.twice(func() {
		read(1, 0, steps+2)
		read(1, 1000, 1000)
		read(steps-3, 100, 6)
		if got := checktest.Must(f.Store.Run(f.Context(), l.Run.ID))(f); got.Events != steps+2 {
			f.Errorf("the run has %d events", got.Events)
		}
	})
}

func testLargeGroup(f *fixture) {
	const n, each = 100, 100
	logs := make([]*history.Log, n)
	var r workflowd.Records
	for i := range logs {
		logs[i] = f.newRun()
		events := []history.Event{created(), started()}
		for j := range each {
			events = append(events, step(fmt.Sprintf("step_a.%d", j+1)))
		}
		r.Logs = append(r.Logs, f.log(logs[i], events...))
	}
	f.commit(r)
	f.twice(func() {
		for _, l := range logs {
			if got := checktest.Must(f.Events(f.Context(), l.Run.ID, 1, 0))(f); len(got) != each+2 || got[each+1].Slot != each+2 {
				f.Fatalf("run %s has %d events", l.Run.ID, len(got))
			}
		}
	})
}

func testRun(f *fixture) {
	l := f.newRun(func(r *history.Run) {
		r.Build, r.Key, r.Group, r.Priority = "b1", "k", "g", -3
		r.Parent, r.Root, r.Previous, r.First = "wrun_p", "wrun_r", "wrun_q", "wrun_f"
		r.NotBefore = f.now + 5
	})
	same := func() {
		f.Helper()
		got := checktest.Must(f.Store.Run(f.Context(), l.Run.ID))(f)
		want := l.Run
		if len(got.Attributes) == 0 && len(want.Attributes) == 0 {
			got.Attributes, want.Attributes = nil, nil
		}
		f.equal("run", *got, want)
	}
	e := created()
	e.Attributes = map[string]string{"a": "1", "b": "2"}
	f.append(l, e)
	same()
	f.now += 7
	f.append(l, started())
	same()
	f.reopen()
	same()
	f.append(l, history.Event{Type: history.AttrSet, Attributes: map[string]string{"a": "", "c": "3"}})
	f.append(l, step("step_a.1"))
	same()
	l.Run.Recoveries = 4
	f.commit(workflowd.Records{Runs: []history.Run{l.Run}})
	same()
	f.now += 7
	f.append(l, history.Event{Type: history.CancelRequested, Reason: "tired"})
	f.twice(same)
	f.now += 7
	f.append(l, history.Event{Type: history.RunFailed, Code: history.CodeUser, Payload: []byte("jsonx")})
	l.Run.ExpiresAt = f.now + 1000
	f.commit(workflowd.Records{Runs: []history.Run{l.Run}})
	f.twice(same)
	_, err := f.Store.Run(f.Context(), "wrun_none")
	checktest.Code(f, err, cay.NotFound)
}

func tokenClaim(l *history.Log, hook, token string) *workflowd.Claim {
	return &workflowd.Claim{Project: l.Run.Project, Token: token, Run: l.Run.ID, Hook: hook}
}

func testTokens(f *fixture) {
	a, b := f.newRun(), f.newRun()
	other := f.newRun(func(r *history.Run) { r.Project = "other" })
	f.append(a, created(), started())
	f.append(b, created(), started())
	f.append(other, created(), started())
	// claim claims a token, and makes the hook if the token is free.
	claim := func(l *history.Log, id, token, wantOwner string) {
		f.Helper()
		c := tokenClaim(l, id, token)
		settled := 0
		err := f.Commit(f.Context(), &workflowd.Group{Claims: []*workflowd.Claim{c}, Settle: func() workflowd.Records {
			settled++
			e := hook(id, token)
			if c.Owner != "" {
				e = history.Event{Type: history.HookConflict, ID: id, Token: token, Reason: c.Owner}
			}
			return workflowd.Records{Logs: []workflowd.Log{f.log(l, e)}}
		}})
		if err != nil || settled != 1 {
			f.Fatalf("settled %d times, %v", settled, err)
		}
		if c.Owner != wantOwner {
			f.Errorf("%s of %s: it has %q, want %q", token, l.Run.ID, c.Owner, wantOwner)
		}
	}
	claim(a, "hook_a.1", "t", "")
	claim(b, "hook_b.1", "t", a.Run.ID)
	claim(a, "hook_a.2", "t", a.Run.ID)
	claim(other, "hook_o.1", "t", "") // in another project
	f.reopen()
	claim(b, "hook_b.2", "t", a.Run.ID)
	claim(b, "hook_b.3", "u", "")

	// A claim without a hook in the same group has no effect.
	f.commit(workflowd.Records{}, tokenClaim(a, "hook_a.9", "v"))
	claim(b, "hook_b.4", "v", "")

	// Two claims in one group: the first gets the token.
	c1, c2 := tokenClaim(a, "hook_a.3", "w"), tokenClaim(b, "hook_b.5", "w")
	if err := f.Commit(f.Context(), &workflowd.Group{Claims: []*workflowd.Claim{c1, c2}, Settle: func() workflowd.Records {
		return workflowd.Records{Logs: []workflowd.Log{
			f.log(a, hook("hook_a.3", "w")),
			f.log(b, history.Event{Type: history.HookConflict, ID: "hook_b.5", Token: "w", Reason: c2.Owner}),
		}}
	}}); err != nil {
		f.Fatal(err)
	}
	if c1.Owner != "" || c2.Owner != a.Run.ID || c2.OwnerHook != "hook_a.3" {
		f.Errorf("owners are %q and %q (%q)", c1.Owner, c2.Owner, c2.OwnerHook)
	}

	// The tokens of disposed hooks and ended runs are free, both right after the commit
	// and much later.
	f.append(a, history.Event{Type: history.HookDisposed, ID: "hook_a.1"})
	claim(b, "hook_b.6", "t", "")
	f.append(b, ended())
	claim(a, "hook_a.4", "u", "")
	f.reopen()
	claim(a, "hook_a.5", "v", "")
	claim(a, "hook_a.6", "t", "")
	f.append(a, history.Event{Type: history.HookDisposed, ID: "hook_a.6"})
	f.reopen()
	c := f.newRun()
	f.append(c, created(), started())
	claim(c, "hook_c.1", "t", "")
	claim(c, "hook_c.2", "u", a.Run.ID)
	// Run a ends, and run c takes its token, before the store is read.
	f.append(a, ended())
	claim(c, "hook_c.3", "u", "")
	f.twice(func() {
		h := checktest.Must(f.Hook(f.Context(), "p", "u"))(f)
		if h.Run != c.Run.ID || h.ID != "hook_c.3" {
			f.Errorf("the token is %s's, of %s", h.ID, h.Run)
		}
		if got := checktest.Must(f.Hooks(f.Context(), "p", "", "", 0))(f); len(got.Items) != 2 {
			f.Errorf("%d hooks, want 2: %+v", len(got.Items), got.Items)
		}
	})
}

func testKeys(f *fixture) {
	start := func(key string, wantOwner *history.Log, change ...func(*history.Run)) *history.Log {
		f.Helper()
		l := f.newRun(append(change, func(r *history.Run) { r.Key = key })...)
		c := &workflowd.Claim{Project: l.Run.Project, Workflow: l.Run.Workflow, Key: key, Run: l.Run.ID}
		if err := f.Commit(f.Context(), &workflowd.Group{Claims: []*workflowd.Claim{c}, Settle: func() workflowd.Records {
			if c.Owner != "" {
				return workflowd.Records{}
			}
			e := created()
			e.Name = l.Run.Workflow
			log := f.log(l, e)
			return workflowd.Records{Runs: []history.Run{l.Run}, Logs: []workflowd.Log{log}}
		}}); err != nil {
			f.Fatal(err)
		}
		want := ""
		if wantOwner != nil {
			want = wantOwner.Run.ID
		}
		if c.Owner != want {
			f.Errorf("key %s: %q has it, want %q", key, c.Owner, want)
		}
		return l
	}
	a := start("k", nil)
	start("k", a)
	start("l", nil)
	start("k", nil, func(r *history.Run) { r.Workflow = "refund" })
	start("k", nil, func(r *history.Run) { r.Project = "q" })
	f.reopen()
	start("k", a)
	f.append(a, started(), ended()) // an ended run keeps its key
	start("k", a)
	f.reopen()
	start("k", a)
	if err := f.Delete(f.Context(), []string{a.Run.ID}); err != nil {
		f.Fatal(err)
	}
	b := start("k", nil)
	f.twice(func() { start("k", b) })
}

func testHooks(f *fixture) {
	a, b := f.newRun(), f.newRun()
	other := f.newRun(func(r *history.Run) { r.Project = "other" })
	var want []history.Hook
	for i, l := range []*history.Log{a, b, other} {
		f.append(l, created(), started())
		for j := range 3 {
			f.now++
			h := history.Hook{
				Run: l.Run.ID, ID: fmt.Sprintf("hook_a.%d", j+1), Project: l.Run.Project,
				Token: fmt.Sprintf("t%d.%d", i, j), Webhook: j == 1, CreatedAt: f.now,
			}
			if j > 0 {
				h.Metadata = []byte("json{}")
			}
			f.append(l, history.Event{Type: history.HookCreated, ID: h.ID, Token: h.Token, Webhook: h.Webhook, Payload: h.Metadata})
			want = append(want, h)
		}
	}
	f.twice(func() {
		for _, h := range want {
			f.equal("hook "+h.Token, *checktest.Must(f.Hook(f.Context(), h.Project, h.Token))(f), h)
		}
		f.equal("all", checktest.Must(f.Hooks(f.Context(), "", "", "", 0))(f).Items, want)
		f.equal("of a project", checktest.Must(f.Hooks(f.Context(), "p", "", "", 0))(f).Items, want[:6])
		f.equal("of a run", checktest.Must(f.Hooks(f.Context(), "p", b.Run.ID, "", 0))(f).Items, want[3:6])
		if got := checktest.Must(f.Hooks(f.Context(), "other", b.Run.ID, "", 0))(f); len(got.Items) > 0 || got.Cursor != "" {
			f.Errorf("hooks of another project's run: %+v", got)
		}
		var paged []history.Hook
		for page, cursor := 0, ""; page == 0 || cursor != ""; page++ {
			p := checktest.Must(f.Hooks(f.Context(), "p", "", cursor, 2))(f)
			paged, cursor = append(paged, p.Items...), p.Cursor
			if len(p.Items) != 2 || page > 3 {
				f.Fatalf("page %d has %d hooks", page, len(p.Items))
			}
		}
		f.equal("page by page", paged, want[:6])
		_, err := f.Hook(f.Context(), "p", "none")
		checktest.Code(f, err, cay.NotFound)
		_, err = f.Hook(f.Context(), "q", "t0.0")
		checktest.Code(f, err, cay.NotFound)
		_, err = f.Hooks(f.Context(), "p", "", "no cursor", 0)
		checktest.Code(f, err, cay.Invalid)
	})
	f.append(a, history.Event{Type: history.HookDisposed, ID: "hook_a.1"})
	f.append(b, ended())
	f.twice(func() {
		_, err := f.Hook(f.Context(), "p", "t0.0")
		checktest.Code(f, err, cay.NotFound)
		_, err = f.Hook(f.Context(), "p", "t1.0")
		checktest.Code(f, err, cay.NotFound)
		f.equal("that are left", checktest.Must(f.Hooks(f.Context(), "p", "", "", 0))(f).Items, want[1:3])
	})
}

func testDue(f *fixture) {
	due := func(before int64, limit int, want ...workflowd.Due) {
		f.Helper()
		got := checktest.Must(f.Due(f.Context(), time.UnixMilli(before), limit))(f)
		if len(got)+len(want) > 0 {
			f.equal("due", got, want)
		}
	}
	a, b, c := f.newRun(), f.newRun(), f.newRun(func(r *history.Run) { r.NotBefore = start + 300 })
	f.append(a, created(), started(), wait("wait_a.1", start+100), wait("wait_a.2", start+500))
	f.append(b, created(), started(),
		history.Event{Type: history.StepRetrying, ID: "step_b.1", Name: "b", Input: []byte("json1"), Attempt: 1, Until: start + 200},
		history.Event{Type: history.StepRetrying, ID: "step_b.2", Name: "b", Input: []byte("json1"), Attempt: 1, Until: start + 50})
	f.append(c, created())
	all := []workflowd.Due{
		{Run: b.Run.ID, ID: "step_b.2", At: start + 50},
		{Run: a.Run.ID, ID: "wait_a.1", At: start + 100},
		{Run: b.Run.ID, ID: "step_b.1", At: start + 200},
		{Run: c.Run.ID, ID: "", At: start + 300},
		{Run: a.Run.ID, ID: "wait_a.2", At: start + 500},
	}
	f.twice(func() {
		due(start+1000, 100, all...)
		due(start+1000, 2, all[:2]...)
		due(start+101, 100, all[:2]...)
		due(start+100, 100, all[:1]...)
		due(start, 100)
	})
	f.append(a, history.Event{Type: history.WaitCompleted, ID: "wait_a.1"})
	f.append(b, history.Event{Type: history.StepStarted, ID: "step_b.1", Attempt: 2},
		history.Event{Type: history.StepCompleted, ID: "step_b.2", Attempt: 2, Payload: []byte("json1")})
	f.append(c, started())
	f.twice(func() { due(start+1000, 100, all[4]) })
	f.append(a, ended())
	f.twice(func() { due(start+1000, 100) })
	// A timer that is set and removed between two reads never shows.
	f.append(b, wait("wait_b.1", start+1))
	f.append(b, history.Event{Type: history.WaitCompleted, ID: "wait_b.1"})
	d := f.newRun(func(r *history.Run) { r.NotBefore = start + 300 })
	f.append(d, created())
	f.append(d, started(), ended())
	f.twice(func() { due(start+1000, 100) })
}

func testOwned(f *fixture) {
	owned := func(want ...*history.Log) {
		f.Helper()
		var got []string
		for after := ""; ; {
			page := checktest.Must(f.Owned(f.Context(), after, 2))(f)
			got = append(got, ids(page)...)
			if len(page) < 2 {
				break
			}
			after = page[1].ID
		}
		var wanted []string
		for _, l := range want {
			wanted = append(wanted, l.Run.ID)
		}
		f.equal("owned", got, wanted)
	}
	var logs []*history.Log
	for range 7 {
		l := f.newRun()
		f.append(l, created(), started())
		logs = append(logs, l)
	}
	pending, later := f.newRun(), f.newRun(func(r *history.Run) { r.NotBefore = start + 100 })
	f.append(pending, created())
	f.append(later, created())
	f.twice(func() { owned(append(slices.Clone(logs), pending)...) })
	f.commit(workflowd.Records{Asleep: []string{logs[1].Run.ID, logs[3].Run.ID}})
	f.append(logs[2], ended())
	f.twice(func() { owned(logs[0], logs[4], logs[5], logs[6], pending) })
	f.append(logs[1], step("step_a.1")) // an event alone wakes no run
	f.commit(workflowd.Records{Awake: []string{logs[3].Run.ID}})
	f.append(later, started())
	f.twice(func() { owned(logs[0], logs[3], logs[4], logs[5], logs[6], pending, later) })
	// Asleep and Awake come in one group with events of the run.
	f.commit(workflowd.Records{Logs: []workflowd.Log{f.log(logs[0], wait("wait_a.1", start+9))}, Asleep: []string{logs[0].Run.ID}})
	f.commit(workflowd.Records{Logs: []workflowd.Log{f.log(logs[1], step("step_a.2"))}, Awake: []string{logs[1].Run.ID}})
	f.twice(func() { owned(logs[1], logs[3], logs[4], logs[5], logs[6], pending, later) })
}

// An external run has no timers, and is given to no worker. The runtime's Extra data is
// kept.
func testExternal(f *fixture) {
	l := f.newRun(func(r *history.Run) { r.Kind, r.Extra = history.JavaScript, []byte{0, 1, 255} })
	ev := created()
	ev.Extra = []byte{7}
	f.append(l, ev, started(), wait("wait_a.1", start+1),
		history.Event{Type: history.StepCreated, ID: "step_a", Name: "s", Input: []byte("devl")},
		history.Event{Type: history.StepRetrying, ID: "step_a", Payload: []byte("devl"), Until: start + 1})
	f.twice(func() {
		if due := checktest.Must(f.Due(f.Context(), time.UnixMilli(start+1000), 100))(f); len(due) > 0 {
			f.Errorf("it has timers: %+v", due)
		}
		if owned := checktest.Must(f.Owned(f.Context(), "", 100))(f); len(owned) > 0 {
			f.Errorf("it is to be given to a worker: %+v", owned)
		}
		run := checktest.Must(f.Store.Run(f.Context(), l.Run.ID))(f)
		f.equal("kind", run.Kind, history.JavaScript)
		f.equal("extra", run.Extra, []byte{0, 1, 255})
		f.equal("extra of an event", checktest.Must(f.Events(f.Context(), l.Run.ID, 1, 1))(f)[0].Extra, []byte{7})
	})
}

func testExpired(f *fixture) {
	ended := func(expires int64) string {
		l := f.newRun()
		f.append(l, created(), started())
		log := f.log(l, ended())
		l.Run.ExpiresAt = expires
		f.commit(workflowd.Records{Runs: []history.Run{l.Run}, Logs: []workflowd.Log{log}})
		return l.Run.ID
	}
	a, b, c := ended(start+30), ended(start+10), ended(start+20)
	ended(0)
	live := f.newRun(func(r *history.Run) { r.ExpiresAt = start + 1 })
	f.append(live, created(), started())
	strip := ended(-1)
	f.twice(func() {
		f.equal("early", checktest.Must(f.Expired(f.Context(), time.UnixMilli(start+9), 10))(f), []string{strip})
		f.equal("some", checktest.Must(f.Expired(f.Context(), time.UnixMilli(start+20), 10))(f), []string{strip, b, c})
		f.equal("all", sorted(checktest.Must(f.Expired(f.Context(), time.UnixMilli(start+1000), 10))(f)), sorted([]string{a, b, c, strip}))
		if got := checktest.Must(f.Expired(f.Context(), time.UnixMilli(start+1000), 2))(f); len(got) != 2 {
			f.Errorf("%d, want 2", len(got))
		}
	})
}

// testChain checks the queries by the first run of a chain.
func testChain(f *fixture) {
	var chain []string
	add := func(expires int64, last bool) {
		f.Helper()
		l := f.newRun(func(r *history.Run) {
			if len(chain) > 0 {
				r.First, r.Previous = chain[0], chain[len(chain)-1]
			}
		})
		f.append(l, created(), started())
		if !last {
			e := ended()
			e.Token = "wrun_next"
			log := f.log(l, e)
			l.Run.ExpiresAt = expires
			f.commit(workflowd.Records{Runs: []history.Run{l.Run}, Logs: []workflowd.Log{log}})
		}
		chain = append(chain, l.Run.ID)
	}
	_, err := f.Last(f.Context(), "wrun_none")
	checktest.Code(f, err, cay.NotFound)
	for range 3 {
		add(start+10, false)
	}
	add(0, true)
	f.twice(func() {
		f.equal("the last", checktest.Must(f.Last(f.Context(), chain[0]))(f).ID, chain[3])
		_, err := f.Last(f.Context(), chain[1])
		checktest.Code(f, err, cay.NotFound)
		f.equal("expired", sorted(checktest.Must(f.Expired(f.Context(), time.UnixMilli(start+1000), 10))(f)), sorted(slices.Clone(chain[1:3])))
	})
	if err := f.Delete(f.Context(), chain[1:3]); err != nil {
		f.Fatal(err)
	}
	f.twice(func() {
		f.equal("the last", checktest.Must(f.Last(f.Context(), chain[0]))(f).ID, chain[3])
		if ids := checktest.Must(f.Expired(f.Context(), time.UnixMilli(start+1000), 10))(f); len(ids) > 0 {
			f.Errorf("the first of a chain has expired before the last: %v", ids)
		}
	})
	// A run of a chain is kept while one of its children is live, and LiveChildren finds
	// the children.
	chain = nil
	add(start+10, false)
	add(start+10, false)
	add(0, true)
	child := f.newRun(func(r *history.Run) { r.Parent = chain[1] })
	over, other := f.newRun(func(r *history.Run) { r.Parent = chain[0] }), f.newRun(func(r *history.Run) { r.Parent = "wrun_other" })
	f.append(child, created())
	f.append(over, created(), started())
	f.append(over, ended())
	f.append(other, created())
	f.twice(func() {
		children := checktest.Must(f.LiveChildren(f.Context(), chain[0]))(f)
		f.equal("live children", ids(children), []string{child.Run.ID})
		f.equal("their parent", children[0].Parent, chain[1])
		if children := checktest.Must(f.LiveChildren(f.Context(), "wrun_none"))(f); len(children) > 0 {
			f.Errorf("nothing has children: %+v", children)
		}
		if ids := checktest.Must(f.Expired(f.Context(), time.UnixMilli(start+1000), 10))(f); len(ids) > 0 {
			f.Errorf("a run with a live child has expired: %v", ids)
		}
	})
	f.append(child, started())
	f.append(child, ended())
	f.twice(func() {
		f.equal("expired", checktest.Must(f.Expired(f.Context(), time.UnixMilli(start+1000), 10))(f), []string{chain[1]})
	})
	if err := f.Delete(f.Context(), []string{chain[1]}); err != nil {
		f.Fatal(err)
	}
	// Payloads are deleted at once, whether or not other runs follow.
	chain = nil
	add(-1, false)
	strip := []string{chain[0]}
	add(0, true)
	f.twice(func() {
		f.equal("to be stripped", checktest.Must(f.Expired(f.Context(), time.UnixMilli(start+1000), 10))(f), strip)
	})
}

// full makes a run with every kind of record.
func (f *fixture) full(end bool) *history.Log {
	f.Helper()
	l := f.newRun(func(r *history.Run) { r.Key = "key of " + r.ID })
	e := created()
	e.Attributes = map[string]string{"color": "red"}
	f.commit(workflowd.Records{
		Logs:   []workflowd.Log{f.log(l, e, started(), hook("hook_a.1", "token of "+l.Run.ID), wait("wait_a.1", start+1), step("step_a.1"))},
		Chunks: []workflowd.StreamChunks{{Run: l.Run.ID, Stream: "out", Chunks: []history.Chunk{{Index: 0, Data: []byte("one")}, {Index: 1, Data: []byte("two")}}}},
		Blobs:  []workflowd.Blob{{Run: l.Run.ID, Name: "b", Data: []byte("big")}},
	})
	if end {
		f.append(l, ended())
	}
	return l
}

func testDelete(f *fixture) {
	keep, gone, fresh := f.full(true), f.full(true), f.full(true)
	live := f.full(false)
	f.reopen()
	f.append(live, step("step_a.2"))
	if err := f.Delete(f.Context(), []string{gone.Run.ID, fresh.Run.ID, "wrun_none"}); err != nil {
		f.Fatal(err)
	}
	f.twice(func() {
		for _, l := range []*history.Log{gone, fresh} {
			id := l.Run.ID
			_, err := f.Store.Run(f.Context(), id)
			checktest.Code(f, err, cay.NotFound)
			_, err = f.Events(f.Context(), id, 1, 0)
			checktest.Code(f, err, cay.NotFound)
			_, err = f.Blob(f.Context(), id, "b")
			checktest.Code(f, err, cay.NotFound)
			chunks, info, err := f.Chunks(f.Context(), id, "out", 0, 0)
			if len(chunks) > 0 || info.Chunks != 0 || err != nil {
				f.Errorf("chunks of a deleted run: %v, %+v, %v", chunks, info, err)
			}
			if streams := checktest.Must(f.Streams(f.Context(), id))(f); len(streams) > 0 {
				f.Errorf("streams of a deleted run: %v", streams)
			}
		}
		all := checktest.Must(f.Runs(f.Context(), history.Query{Attributes: map[string]string{"color": "red"}, Ascending: true}))(f)
		f.equal("that are left", ids(all.Items), []string{keep.Run.ID, live.Run.ID})
		if got := checktest.Must(f.Events(f.Context(), keep.Run.ID, 1, 0))(f); len(got) != 6 {
			f.Errorf("one that was kept has %d events", len(got))
		}
	})
	err := f.Delete(f.Context(), []string{live.Run.ID})
	checktest.Code(f, err, cay.Conflict)
	if got := checktest.Must(f.Events(f.Context(), live.Run.ID, 1, 0))(f); len(got) != 6 {
		f.Errorf("one that is live has %d events", len(got))
	}
}

func testStrip(f *fixture) {
	l, live := f.full(true), f.full(false)
	l.Run.ExpiresAt = -1
	f.commit(workflowd.Records{Runs: []history.Run{l.Run}})
	was := checktest.Must(f.Events(f.Context(), l.Run.ID, 1, 0))(f)
	if err := f.Strip(f.Context(), []string{l.Run.ID}); err != nil {
		f.Fatal(err)
	}
	f.twice(func() {
		got := checktest.Must(f.Events(f.Context(), l.Run.ID, 1, 0))(f)
		want := slices.Clone(was)
		for i := range want {
			want[i].Payload, want[i].Input = nil, nil
		}
		f.equal("events", got, want)
		chunks, info, err := f.Chunks(f.Context(), l.Run.ID, "out", 0, 0)
		if err != nil || len(chunks) != 2 || info.Chunks != 2 || len(chunks[0].Data)+len(chunks[1].Data) != 0 {
			f.Errorf("chunks %v, %+v, %v", chunks, info, err)
		}
		_, err = f.Blob(f.Context(), l.Run.ID, "b")
		checktest.Code(f, err, cay.NotFound)
		if r := checktest.Must(f.Store.Run(f.Context(), l.Run.ID))(f); r.ExpiresAt != 0 || r.Status != history.Completed {
			f.Errorf("the run is %+v", r)
		}
		if ids := checktest.Must(f.Expired(f.Context(), time.UnixMilli(start+1000), 10))(f); len(ids) > 0 {
			f.Errorf("still to be stripped: %v", ids)
		}
	})
	checktest.Code(f, f.Strip(f.Context(), []string{live.Run.ID}), cay.Conflict)
}

func testSchedules(f *fixture) {
	a := history.Schedule{
		ID: "a", Project: "p", Workflow: "order", Cron: "* * * * *", Zone: "Europe/Berlin", Input: []byte("json{}"),
		Overlap: true, Paused: true, NextAt: 5, LastAt: 4, CreatedAt: 3, LastRun: "wrun_x",
	}
	b := history.Schedule{ID: "b", Project: "p", Workflow: "order", Cron: "@every 1s"}
	c := history.Schedule{ID: "a", Project: "q", Workflow: "order", Cron: "@every 2s"}
	for _, s := range []history.Schedule{b, {ID: "a", Project: "p"}, c, a} {
		if err := f.PutSchedule(f.Context(), s); err != nil {
			f.Fatal(err)
		}
	}
	f.twice(func() {
		f.equal("of a project", checktest.Must(f.Schedules(f.Context(), "p"))(f), []history.Schedule{a, b})
		f.equal("all", checktest.Must(f.Schedules(f.Context(), ""))(f), []history.Schedule{a, b, c})
		if got := checktest.Must(f.Schedules(f.Context(), "r"))(f); len(got) > 0 {
			f.Errorf("%v of a project that has none", got)
		}
	})
	if err := f.DeleteSchedule(f.Context(), "p", "a"); err != nil {
		f.Fatal(err)
	}
	checktest.Code(f, f.DeleteSchedule(f.Context(), "p", "a"), cay.NotFound)
	f.equal("that are left", checktest.Must(f.Schedules(f.Context(), ""))(f), []history.Schedule{b, c})
}

func testLimits(f *fixture) {
	a := history.Limit{Project: "p", Workflow: "workflow//./a//order", Concurrency: 3, Rate: 10, Period: time.Minute, Priority: 7}
	b := history.Limit{Project: "p", Workflow: "workflow//./b//order", Rate: 1, Period: time.Hour}
	c := history.Limit{Project: "q", Workflow: a.Workflow, Concurrency: 1}
	for _, l := range []history.Limit{b, {Project: "p", Workflow: a.Workflow, Concurrency: 1}, c, a} {
		checktest.OK(f, f.PutLimit(f.Context(), l))
	}
	f.twice(func() {
		f.equal("of a project", checktest.Must(f.Limits(f.Context(), "p"))(f), []history.Limit{a, b})
		f.equal("all", checktest.Must(f.Limits(f.Context(), ""))(f), []history.Limit{a, b, c})
	})
	checktest.OK(f, f.DeleteLimit(f.Context(), "p", a.Workflow))
	checktest.Code(f, f.DeleteLimit(f.Context(), "p", a.Workflow), cay.NotFound)
	f.equal("that are left", checktest.Must(f.Limits(f.Context(), ""))(f), []history.Limit{b, c})
}

func testClosed(f *fixture) {
	l := f.newRun()
	f.append(l, created())
	s := f.Store
	f.reopen() // closes s
	err := s.Commit(f.Context(), &workflowd.Group{Settle: func() workflowd.Records {
		return workflowd.Records{Logs: []workflowd.Log{f.log(l, started())}}
	}})
	checktest.Code(f, err, cay.Unavailable)
	if err := s.Close(); err != nil {
		f.Errorf("closed again: %v", err)
	}
	if _, err := s.Runs(f.Context(), history.Query{}); err == nil {
		f.Error("a closed store answered")
	}
}
