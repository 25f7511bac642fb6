package storetest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
)

// testConcurrently commits groups of different runs from several goroutines while others
// read: readers see all committed events, and logs have no gaps.
func testConcurrently(f *fixture) {
	const writers, commits = 6, 60
	logs := make([]*history.Log, writers)
	for i := range logs {
		logs[i] = f.newRun()
		f.append(logs[i], created(), started())
	}
	now := f.now
	done := make(chan struct{})
	var write, read sync.WaitGroup
	for _, l := range logs {
		id := l.Run.ID
		write.Go(func() {
			for i := range commits {
				r := workflowd.Records{Logs: []workflowd.Log{apply(f, l, now+int64(i), []history.Event{step(fmt.Sprintf("step_a.%d", i+1))})}}
				if err := f.Commit(f.Context(), &workflowd.Group{Settle: func() workflowd.Records { return r }}); err != nil {
					f.Error(err)
					return
				}
				if i%7 != 0 {
					continue
				}
				run, err := f.Store.Run(f.Context(), id)
				if err != nil || run.Events != int64(i+3) {
					f.Errorf("the run is %+v (%v), want %d events", run, err, i+3)
				}
			}
		})
		read.Go(func() {
			last := 0
			for {
				events, err := f.Events(f.Context(), id, 1, 0)
				if err != nil {
					f.Error(err)
					return
				}
				if len(events) < last {
					f.Errorf("there were %d events, and now %d", last, len(events))
				}
				last = len(events)
				for i := range events {
					if events[i].Slot != int64(i+1) {
						f.Errorf("slot %d in place of %d", events[i].Slot, i+1)
						return
					}
				}
				if _, err := f.Runs(f.Context(), history.Query{}); err != nil {
					f.Error(err)
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	write.Wait()
	close(done)
	read.Wait()
	f.twice(func() {
		for _, l := range logs {
			if n := len(checktest.Must(f.Events(f.Context(), l.Run.ID, 1, 0))(f)); n != commits+2 {
				f.Errorf("%d events, want %d", n, commits+2)
			}
		}
	})
}

// model is the expected state of a store.
type model struct {
	logs   map[string]*history.Log
	events map[string][]history.Event
	tokens map[string]string // token -> run and hook, separated by a space
	order  []string
	asleep map[string]bool
	chunks map[string][]history.Chunk
}

// testModel commits random groups that an engine could commit, and compares all queries
// with a model.
func testModel(f *fixture) {
	seed := rand.Uint64()
	f.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	m := &model{
		logs: map[string]*history.Log{}, events: map[string][]history.Event{}, tokens: map[string]string{},
		asleep: map[string]bool{}, chunks: map[string][]history.Chunk{},
	}
	for i := range 400 {
		f.now += rnd.Int64N(3)
		m.step(f, rnd, i)
		switch {
		case i%40 == 39:
			m.compare(f)
		case rnd.IntN(60) == 0:
			f.reopen()
		}
		if f.Failed() {
			f.Fatalf("after %d commits", i+1)
		}
	}
	f.reopen()
	m.compare(f)
}

// step commits one group with events of some runs.
func (m *model) step(f *fixture, rnd *rand.Rand, i int) {
	var r workflowd.Records
	if i == 0 || rnd.IntN(5) == 0 {
		l := f.newRun(func(r *history.Run) {
			r.Workflow = []string{"order", "refund"}[rnd.IntN(2)]
			if rnd.IntN(4) == 0 {
				r.NotBefore = f.now + rnd.Int64N(50)
			}
		})
		e := created()
		e.Name = l.Run.Workflow
		e.Attributes = map[string]string{"n": fmt.Sprint(rnd.IntN(3))}
		r.Logs = append(r.Logs, f.log(l, e))
		m.logs[l.Run.ID] = l
		m.order = append(m.order, l.Run.ID)
	}
	var claims []*workflowd.Claim
	claimed := map[string]*workflowd.Claim{}
	for _, id := range pick(rnd, m.order, 1+rnd.IntN(4)) {
		if len(r.Logs) > 0 && r.Logs[0].Run.ID == id {
			continue
		}
		l := m.logs[id]
		var events []history.Event
		for j := range 1 + rnd.IntN(4) {
			e, token := m.event(f, rnd, l, fmt.Sprintf("%d_%d", i, j))
			if token != "" {
				// A hook is the only event of its run in the group, because its outcome
				// is known only in the commit.
				if len(events) == 0 {
					c := tokenClaim(l, "hook_"+fmt.Sprint(i), token)
					claims, claimed[id] = append(claims, c), c
				}
				break
			}
			if e.Type == 0 {
				continue
			}
			events = append(events, f.log(l, e).Events...)
			if l.Run.Status.Terminal() {
				break
			}
		}
		if len(events) > 0 {
			r.Logs = append(r.Logs, workflowd.Log{Run: &l.Run, Events: events})
		}
		if rnd.IntN(6) == 0 && !l.Run.Status.Terminal() {
			m.asleep[id] = !m.asleep[id]
			if m.asleep[id] {
				r.Asleep = append(r.Asleep, id)
			} else {
				r.Awake = append(r.Awake, id)
			}
		}
		if rnd.IntN(4) == 0 {
			key := id + " " + fmt.Sprint(rnd.IntN(2))
			c := workflowd.StreamChunks{Run: id, Stream: strings.Fields(key)[1]}
			for range 1 + rnd.IntN(3) {
				chunk := history.Chunk{Index: int64(len(m.chunks[key])), Data: []byte(fmt.Sprint("chunk ", rnd.Int()))}
				c.Chunks = append(c.Chunks, chunk)
				m.chunks[key] = append(m.chunks[key], chunk)
			}
			r.Chunks = append(r.Chunks, c)
		}
	}
	err := f.Commit(f.Context(), &workflowd.Group{Claims: claims, Settle: func() workflowd.Records {
		taken := map[string]string{}
		for _, id := range m.order { // in the order of claims
			c := claimed[id]
			if c == nil {
				continue
			}
			want := m.tokens[c.Token]
			if want == "" {
				want = taken[c.Token]
			}
			got := strings.TrimSpace(c.Owner + " " + c.OwnerHook)
			if first := slices.IndexFunc(claims, func(o *workflowd.Claim) bool { return o.Token == c.Token }); m.tokens[c.Token] == "" && claims[first] != c {
				want = claims[first].Run + " " + claims[first].Hook
			}
			if got != want {
				f.Errorf("token %s: %q has it, want %q", c.Token, got, want)
			}
			l := m.logs[id]
			e := hook(c.Hook, c.Token)
			if c.Owner != "" {
				e = history.Event{Type: history.HookConflict, ID: c.Hook, Token: c.Token, Reason: c.Owner}
			} else {
				taken[c.Token] = id + " " + c.Hook
			}
			r.Logs = append(r.Logs, f.log(l, e))
		}
		return r
	}})
	if err != nil {
		f.Fatal(err)
	}
	for _, log := range r.Logs {
		m.events[log.Run.ID] = append(m.events[log.Run.ID], log.Events...)
	}
	// Released tokens can be claimed only after the group.
	m.tokens = map[string]string{}
	for id, l := range m.logs {
		for o := range l.AllOpen() {
			if o.State == history.HookLive {
				m.tokens[o.Token] = id + " " + o.ID
			}
		}
	}
}

// event returns a random event that may follow in a run, or a token to claim for a hook.
func (m *model) event(f *fixture, rnd *rand.Rand, l *history.Log, n string) (e history.Event, token string) {
	switch l.Run.Status {
	case history.Pending:
		return started(), ""
	case history.Running:
	default:
		return e, ""
	}
	open := slices.SortedFunc(l.AllOpen(), func(a, b history.Open) int { return strings.Compare(a.ID, b.ID) })
	switch k := rnd.IntN(14); {
	case k < 3:
		return step("step_" + n), ""
	case k < 5:
		return wait("wait_"+n, f.now+rnd.Int64N(100)), ""
	case k == 5:
		return history.Event{Type: history.AttrSet, Attributes: map[string]string{"n": fmt.Sprint(rnd.IntN(3))}}, ""
	case k == 6:
		return history.Event{Type: history.StepRetrying, ID: "step_" + n, Name: "x", Input: []byte("json1"), Attempt: 1, Until: f.now + rnd.Int64N(100)}, ""
	case k < 9:
		return e, fmt.Sprint("token ", rnd.IntN(5))
	case k == 9 && rnd.IntN(3) == 0:
		return ended(), ""
	case len(open) > 0:
		switch o := open[rnd.IntN(len(open))]; o.State {
		case history.WaitOpen:
			return history.Event{Type: history.WaitCompleted, ID: o.ID}, ""
		case history.HookLive:
			return history.Event{Type: history.HookDisposed, ID: o.ID}, ""
		case history.StepPending:
			return history.Event{Type: history.StepStarted, ID: o.ID, Attempt: o.Attempt + 1}, ""
		case history.StepRunning:
			return history.Event{Type: history.StepFailed, ID: o.ID, Attempt: o.Attempt, Payload: []byte("jsonx")}, ""
		}
	}
	return e, ""
}

// pick returns n different elements.
func pick(rnd *rand.Rand, from []string, n int) []string {
	out := []string{}
	for _, i := range rnd.Perm(len(from))[:min(n, len(from))] {
		out = append(out, from[i])
	}
	return out
}

func (m *model) compare(f *fixture) {
	f.Helper()
	ctx := f.Context()
	var all []history.Run
	for q := (history.Query{Ascending: true, Limit: 37}); ; {
		page := checktest.Must(f.Runs(ctx, q))(f)
		all = append(all, page.Items...)
		if q.Cursor = page.Cursor; q.Cursor == "" {
			break
		}
	}
	// The order of runs with the same millisecond is arbitrary.
	slices.SortFunc(all, func(a, b history.Run) int { return strings.Compare(a.ID, b.ID) })
	var want []history.Run
	var due []string
	var owned []string
	byN := map[string][]string{}
	for _, id := range m.order {
		l := m.logs[id]
		r := l.Run
		want = append(want, r)
		got := *checktest.Must(f.Store.Run(ctx, id))(f)
		f.equal("run", got, r)
		f.equal("events of "+id, checktest.Must(f.Events(ctx, id, 1, 0))(f), m.events[id])
		byN[r.Attributes["n"]] = append(byN[r.Attributes["n"]], id)
		for o := range l.AllOpen() {
			if o.State == history.WaitOpen || o.State == history.StepPending {
				due = append(due, fmt.Sprintf("%s %s %d", id, o.ID, o.Until))
			}
		}
		switch {
		case r.Status == history.Pending && r.NotBefore > 0:
			due = append(due, fmt.Sprintf("%s  %d", id, r.NotBefore))
		case !r.Status.Terminal() && !m.asleep[id]:
			owned = append(owned, id)
		}
	}
	f.equal("runs", all, want)
	for n, want := range byN {
		got := checktest.Must(f.Runs(ctx, history.Query{Attributes: map[string]string{"n": n}, Limit: 1000}))(f)
		f.equal("runs with n="+n, sorted(ids(got.Items)), want)
	}
	var gotDue []string
	last := int64(0)
	for _, d := range checktest.Must(f.Due(ctx, time.UnixMilli(start+1_000_000_000), 10_000))(f) {
		gotDue = append(gotDue, fmt.Sprintf("%s %s %d", d.Run, d.ID, d.At))
		if d.At < last {
			f.Errorf("timers are not in order")
		}
		last = d.At
	}
	f.equal("timers", sorted(gotDue), sorted(due))
	f.equal("owned", ids(checktest.Must(f.Owned(ctx, "", 10_000))(f)), append([]string{}, owned...))
	hooks := map[string]string{}
	for _, h := range checktest.Must(f.Hooks(ctx, "", "", "", 1000))(f).Items {
		hooks[h.Token] = h.Run + " " + h.ID
	}
	f.equal("hooks", hooks, m.tokens)
	for token, holder := range m.tokens {
		if h := checktest.Must(f.Hook(ctx, "p", token))(f); h.Run+" "+h.ID != holder {
			f.Errorf("token %s: %s of %s has it, want %s", token, h.ID, h.Run, holder)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(m.chunks)) {
		part := strings.Fields(key)
		got, _, err := f.Chunks(ctx, part[0], part[1], 0, 1000)
		if err != nil {
			f.Fatal(err)
		}
		f.equal("chunks of "+key, got, m.chunks[key])
	}
}
