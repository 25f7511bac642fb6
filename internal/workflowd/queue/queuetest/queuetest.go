// Package queuetest is the test suite for implementations of queue.Store. The test of a
// store calls Run.
package queuetest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/workflowd/queue"
)

// Config opens the store under test.
type Config struct {
	// Open opens a new, empty store. The test's clean-up closes the store.
	Open func(t testing.TB) queue.Store
}

// Run runs the suite.
func Run(t *testing.T, c Config) {
	for name, test := range map[string]func(*fixture){
		"Publish":      testPublish,
		"Keys":         testKeys,
		"Pending":      testPending,
		"Priority":     testPriority,
		"Lease":        testLease,
		"Acknowledge":  testAcknowledge,
		"Extend":       testExtend,
		"Settle":       testSettle,
		"Register":     testRegister,
		"Void":         testVoid,
		"Forget":       testForget,
		"Hasten":       testHasten,
		"Sweep":        testSweep,
		"OneBatch":     testOneBatch,
		"Concurrently": testConcurrently,
		"Text":         testText,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(&fixture{T: t, Store: c.Open(t)})
		})
	}
}

// start is when tests begin, in Unix milliseconds.
const start = 1_790_000_000_000

type fixture struct {
	*testing.T
	queue.Store
}

var ids atomic.Int64

func message(change ...func(*queue.Message)) queue.Message {
	m := queue.Message{
		ID: fmt.Sprintf("msg_%026d", ids.Add(1)), Project: "p", Deployment: "d", Topic: "t", Run: "wrun_1", Step: "step_1",
		ContentType: "application/cbor", Body: []byte("body"), CreatedAt: start, Due: start,
	}
	for _, c := range change {
		c(&m)
	}
	return m
}

func (f *fixture) write(b queue.Batch) {
	f.Helper()
	if b.Now == 0 {
		b.Now = start
	}
	checktest.OK(f, f.Write(f.Context(), &b))
}

func (f *fixture) publish(change ...func(*queue.Message)) (m queue.Message, first string) {
	f.Helper()
	m = message(change...)
	return m, f.publishAt(start, m)
}

func (f *fixture) publishAt(now int64, m queue.Message) (first string) {
	f.Helper()
	p := &queue.Publish{Message: m}
	f.write(queue.Batch{Now: now, Publish: []*queue.Publish{p}})
	return p.First
}

func (f *fixture) lease(id, receipt string, now, until int64) *queue.Lease {
	f.Helper()
	l := &queue.Lease{ID: id, Receipt: receipt, Until: until}
	f.write(queue.Batch{Now: now, Lease: []*queue.Lease{l}})
	return l
}

func (f *fixture) acknowledge(id, receipt string, now int64) bool {
	f.Helper()
	a := &queue.Acknowledge{ID: id, Project: "p", Receipt: receipt}
	f.write(queue.Batch{Now: now, Acknowledge: []*queue.Acknowledge{a}})
	return a.Done
}

func (f *fixture) register(do queue.RegisterKind, d queue.Deployment) *queue.Register {
	f.Helper()
	if d.Project == "" {
		d.Project = "p"
	}
	r := &queue.Register{Do: do, Deployment: d}
	f.write(queue.Batch{Register: []*queue.Register{r}})
	return r
}

// message returns a message without its body.
func (f *fixture) message(id string) queue.Message {
	f.Helper()
	for _, m := range checktest.Must(f.Messages(f.Context(), "p", "", 0))(f) {
		if m.ID == id {
			return m
		}
	}
	f.Fatalf("there is no message %s", id)
	return queue.Message{}
}

func testPublish(f *fixture) {
	m, first := f.publish()
	if first != m.ID {
		f.Errorf("first %q", first)
	}
	got := f.message(m.ID)
	m.Body = nil
	if fmt.Sprint(got) != fmt.Sprint(m) {
		f.Errorf("%+v, want %+v", got, m)
	}
	e := checktest.Must(f.Entry(f.Context(), m.ID))(f)
	if want := (queue.Entry{ID: m.ID, Project: "p", Deployment: "d", Run: "wrun_1", Due: start, Size: 4}); e == nil || *e != want {
		f.Errorf("%+v, want %+v", e, want)
	}
	if e := checktest.Must(f.Entry(f.Context(), "msg_none"))(f); e != nil {
		f.Errorf("%+v", e)
	}
	d := checktest.Must(f.Deployments(f.Context(), ""))(f)
	if len(d) != 1 || d[0] != (queue.Deployment{Project: "p", ID: "d", SeenAt: start}) {
		f.Errorf("%+v", d)
	}
	empty, _ := f.publish(func(m *queue.Message) { m.Body = nil; m.Run = "wrun_2" })
	if l := f.lease(empty.ID, "r", start, start+1); l.Message == nil || len(l.Message.Body) != 0 {
		f.Errorf("%+v", l.Message)
	}
	large := make([]byte, queue.MaxBody)
	for i := range large {
		large[i] = byte(i)
	}
	m, _ = f.publish(func(m *queue.Message) { m.Body = large })
	if l := f.lease(m.ID, "r", start, start+1); l.Message == nil || !slices.Equal(l.Message.Body, large) {
		f.Error("a large body is not what it was")
	}
	if list := checktest.Must(f.Messages(f.Context(), "p", "wrun_2", 0))(f); len(list) != 1 || list[0].ID != empty.ID {
		f.Errorf("%+v", list)
	}
	if list := checktest.Must(f.Messages(f.Context(), "p", "", 2))(f); len(list) != 2 {
		f.Errorf("%+v", list)
	}
	if list := checktest.Must(f.Messages(f.Context(), "q", "", 0))(f); len(list) != 0 {
		f.Errorf("%+v", list)
	}
}

func testKeys(f *fixture) {
	key := func(m *queue.Message) { m.Key = "k" }
	m, first := f.publish(key)
	if first != m.ID {
		f.Fatalf("first %q", first)
	}
	if _, first := f.publish(key); first != m.ID {
		f.Errorf("first %q, want %q", first, m.ID)
	}
	for name, other := range map[string]func(*queue.Message){
		"project": func(m *queue.Message) { m.Project = "q" },
		"topic":   func(m *queue.Message) { m.Topic = "u" },
		"key":     func(m *queue.Message) { m.Key = "l" },
	} {
		if o, first := f.publish(key, other); first != o.ID {
			f.Errorf("another %s: first %q", name, first)
		}
	}
	f.lease(m.ID, "r", start, start+1)
	if !f.acknowledge(m.ID, "r", start+10) {
		f.Fatal("not acknowledged")
	}
	end := start + 10 + queue.KeyMemory.Milliseconds()
	if first := f.publishAt(end-1, message(key)); first != m.ID {
		f.Errorf("first %q, want %q", first, m.ID)
	}
	if list := checktest.Must(f.Messages(f.Context(), "p", "", 0))(f); len(list) != 2 {
		f.Errorf("%+v", list)
	}
	n := message(key)
	if first := f.publishAt(end, n); first != n.ID {
		f.Errorf("first %q, want %q", first, n.ID)
	}
	// The same holds within one batch.
	a, b := &queue.Publish{Message: message(key)}, &queue.Publish{Message: message(key, func(m *queue.Message) { m.Topic = "v" })}
	c := &queue.Publish{Message: message(key, func(m *queue.Message) { m.Topic = "v" })}
	f.write(queue.Batch{Publish: []*queue.Publish{a, b, c}})
	if a.First != n.ID || b.First != b.Message.ID || c.First != b.Message.ID {
		f.Errorf("%q, %q, %q", a.First, b.First, c.First)
	}
}

func testPending(f *fixture) {
	var want []string
	for i := range 10 {
		m, _ := f.publish(func(m *queue.Message) { m.Due = start + int64(i)*1000; m.Body = make([]byte, i) })
		want = append(want, m.ID)
	}
	f.publish(func(m *queue.Message) { m.Deployment = "other" })
	f.publish(func(m *queue.Message) { m.Project = "q" })
	for _, c := range []struct {
		before int64
		limit  int
		n      int
		rest   int64 // there are none with a priority
	}{
		{start, 100, 0, start}, {start + 1, 100, 1, start + 1000}, {start + 5000, 100, 5, start + 5000}, {start + 5001, 3, 3, start + 3000},
		{math.MaxInt64, 10, 10, math.MaxInt64}, {math.MaxInt64, 9, 9, start + 9000},
	} {
		got, rest, err := f.Pending(f.Context(), "p", "d", c.before, c.limit)
		checktest.OK(f, err)
		var ids []string
		for i, e := range got {
			ids = append(ids, e.ID)
			if e.Size != i || e.Due != start+int64(i)*1000 || e.Project != "p" || e.Deployment != "d" || e.Run != "wrun_1" {
				f.Errorf("%+v", e)
			}
		}
		if !slices.Equal(ids, want[:c.n]) || rest != (queue.Rest{Urgent: math.MaxInt64, Other: c.rest}) {
			f.Errorf("before %d, limit %d: %v and %d, want %v and %d", c.before, c.limit, ids, rest, want[:c.n], c.rest)
		}
	}
}

// Messages with a priority are listed before the others, each soonest first.
func testPriority(f *fixture) {
	var ids []string
	for i, priority := range []int{0, 2, 0, 1, 0} {
		m, _ := f.publish(func(m *queue.Message) { m.Due, m.Priority = start+int64(i), priority; m.Run = fmt.Sprint("wrun_", i) })
		ids = append(ids, m.ID)
		if got := f.message(m.ID); got.Priority != priority {
			f.Errorf("%+v, want the priority %d", got, priority)
		}
		if e := checktest.Must(f.Entry(f.Context(), m.ID))(f); e.Priority != priority {
			f.Errorf("%+v, want the priority %d", e, priority)
		}
	}
	pending := func(before int64, limit int, rest queue.Rest, want ...int) {
		f.Helper()
		entries, got, err := f.Pending(f.Context(), "p", "d", before, limit)
		checktest.OK(f, err)
		var found []int
		for _, e := range entries {
			found = append(found, slices.Index(ids, e.ID))
		}
		if !slices.Equal(found, want) || got != rest {
			f.Errorf("before %d, limit %d: %v and %+v, want %v and %+v", before-start, limit, found, got, want, rest)
		}
	}
	const none = math.MaxInt64
	pending(start+5, 10, queue.Rest{Urgent: none, Other: none}, 1, 3, 0, 2, 4)
	pending(start+5, 3, queue.Rest{Urgent: none, Other: start + 2}, 1, 3, 0)
	pending(start+5, 2, queue.Rest{Urgent: none, Other: start}, 1, 3)
	pending(start+5, 1, queue.Rest{Urgent: start + 3, Other: start}, 1)
	pending(start+2, 10, queue.Rest{Urgent: start + 3, Other: start + 2}, 1, 0)
	h := []*queue.Hasten{{Project: "p", Run: "wrun_4", Priority: 5}, {Project: "p", Run: "wrun_1"}}
	f.write(queue.Batch{Now: start, Hasten: h})
	if e := h[0].Entries; len(e) != 1 || e[0].Priority != 5 || e[0].Due != start {
		f.Errorf("%+v", e)
	}
	pending(start+5, 10, queue.Rest{Urgent: none, Other: none}, 4, 3, 0, 1, 2)
	if l := f.lease(ids[4], "r", start, start+100); l.Message == nil || l.Message.Priority != 5 {
		f.Errorf("%+v", l.Message)
	}
}

func testLease(f *fixture) {
	m, _ := f.publish(func(m *queue.Message) { m.Due = start + 100 })
	if l := f.lease(m.ID, "r1", start+99, start+200); l.Message != nil || l.Next != start+100 {
		f.Errorf("%+v", l)
	}
	l := f.lease(m.ID, "r1", start+100, start+200)
	want := m
	want.Due, want.Attempt, want.Receipt, want.LeaseUntil = start+200, 1, "r1", start+200
	if l.Message == nil || fmt.Sprint(*l.Message) != fmt.Sprint(want) {
		f.Errorf("%+v, want %+v", l.Message, want)
	}
	if l := f.lease(m.ID, "r2", start+199, start+300); l.Message != nil || l.Next != start+200 {
		f.Errorf("%+v", l)
	}
	// A process that does not know whether it got the lease asks again.
	if l := f.lease(m.ID, "r1", start+150, start+250); l.Message == nil || l.Message.Attempt != 1 || l.Message.LeaseUntil != start+250 {
		f.Errorf("%+v", l.Message)
	}
	if l := f.lease(m.ID, "r3", start+250, start+400); l.Message == nil || l.Message.Attempt != 2 || l.Message.Receipt != "r3" {
		f.Errorf("%+v", l.Message)
	}
	if l := f.lease("msg_none", "r", start, start+1); l.Message != nil || l.Next != 0 {
		f.Errorf("%+v", l)
	}
}

func testAcknowledge(f *fixture) {
	m, _ := f.publish()
	if f.acknowledge(m.ID, "", start) {
		// A message that was never leased has the receipt "", which no caller may use.
		f.Log("acknowledged without a lease")
	}
	m, _ = f.publish()
	f.lease(m.ID, "r1", start, start+100)
	other := &queue.Acknowledge{ID: m.ID, Project: "q", Receipt: "r1"}
	f.write(queue.Batch{Acknowledge: []*queue.Acknowledge{other}})
	if other.Done || f.acknowledge(m.ID, "r0", start) {
		f.Error("acknowledged by another")
	}
	f.lease(m.ID, "r2", start+100, start+200)
	if f.acknowledge(m.ID, "r1", start+150) {
		f.Error("acknowledged by the lease before")
	}
	if !f.acknowledge(m.ID, "r2", start+500) || f.acknowledge(m.ID, "r2", start+500) {
		f.Error("not acknowledged once")
	}
	if e := checktest.Must(f.Entry(f.Context(), m.ID))(f); e != nil {
		f.Errorf("%+v", e)
	}
}

func testExtend(f *fixture) {
	m, _ := f.publish()
	f.lease(m.ID, "r1", start, start+100)
	extend := func(project, receipt string, due int64, lease bool) bool {
		x := &queue.Extend{ID: m.ID, Project: project, Receipt: receipt, Due: due, Lease: lease}
		f.write(queue.Batch{Extend: []*queue.Extend{x}})
		return x.Done
	}
	if extend("q", "r1", start+1, true) || extend("p", "r2", start+1, true) {
		f.Error("extended by another")
	}
	if !extend("p", "r1", start+200, true) {
		f.Error("not extended")
	}
	if got := f.message(m.ID); got.Due != start+200 || got.LeaseUntil != start+200 || got.Receipt != "r1" {
		f.Errorf("%+v", got)
	}
	if !extend("p", "r1", start+300, false) {
		f.Error("not put off")
	}
	if got := f.message(m.ID); got.Due != start+300 || got.LeaseUntil != 0 || got.Receipt != "r1" || got.Attempt != 1 {
		f.Errorf("%+v", got)
	}
}

func testSettle(f *fixture) {
	m, _ := f.publish()
	settle := func(s queue.Settle) int64 {
		s.ID = m.ID
		f.write(queue.Batch{Settle: []*queue.Settle{&s}})
		return s.Next
	}
	f.lease(m.ID, "r1", start, start+100)
	if next := settle(queue.Settle{Receipt: "r0", Due: start + 1}); next != start+100 {
		f.Errorf("next %d", next)
	}
	if next := settle(queue.Settle{Receipt: "r1", Due: start + 50, LastError: "why"}); next != start+50 {
		f.Errorf("next %d", next)
	}
	if got := f.message(m.ID); got.Due != start+50 || got.LeaseUntil != 0 || got.LastError != "why" || got.Attempt != 1 || got.Receipt != "r1" {
		f.Errorf("%+v", got)
	}
	// Settle does not undo an Extend of the app.
	if next := settle(queue.Settle{Receipt: "r1", Due: start + 70}); next != start+50 {
		f.Errorf("next %d", next)
	}
	if l := f.lease(m.ID, "r2", start+50, start+150); l.Message.Attempt != 2 || l.Message.LastError != "" {
		f.Errorf("%+v", l.Message)
	}
	if next := settle(queue.Settle{Receipt: "r2", Due: start + 60, Uncounted: true}); next != start+60 {
		f.Errorf("next %d", next)
	}
	if got := f.message(m.ID); got.Due != start+60 || got.Attempt != 1 || got.Receipt != "" || got.LeaseUntil != 0 {
		f.Errorf("%+v", got)
	}
	f.lease(m.ID, "r3", start+60, start+150)
	f.acknowledge(m.ID, "r3", start+61)
	if next := settle(queue.Settle{Receipt: "r3", Due: start + 70}); next != 0 {
		f.Errorf("next %d", next)
	}
}

func testRegister(f *fixture) {
	for _, do := range []queue.RegisterKind{queue.RegisterLeave, queue.RegisterState, queue.RegisterDrain} {
		if r := f.register(do, queue.Deployment{ID: "none"}); r.Old != nil || r.Void {
			f.Errorf("%+v", r)
		}
	}
	check := func(r *queue.Register, want queue.Deployment) {
		f.Helper()
		want.Project, want.ID = "p", "d"
		if r.Deployment != want || r.Void {
			f.Errorf("%+v, void %t, want %+v", r.Deployment, r.Void, want)
		}
		all := checktest.Must(f.Deployments(f.Context(), "p"))(f)
		if len(all) != 1 || all[0] != want {
			f.Errorf("%+v, want %+v", all, want)
		}
	}
	f.publish()
	d := queue.Deployment{ID: "d", URL: "http://a", Secret: "s1", CreatedAt: start + 1, SeenAt: start + 1}
	check(f.register(queue.RegisterApp, d), d)
	d.CreatedAt, d.SeenAt = start+2, start+2
	want := d
	want.CreatedAt = start + 1
	check(f.register(queue.RegisterApp, d), want)
	check(f.register(queue.RegisterDrain, queue.Deployment{ID: "d", Draining: true}), queue.Deployment{URL: "http://a", Secret: "s1", CreatedAt: start + 1, SeenAt: start + 2, Draining: true})
	want.Draining = true
	check(f.register(queue.RegisterApp, d), want) // it stays unchanged
	check(f.register(queue.RegisterState, queue.Deployment{ID: "d", URL: "http://a", Secret: "s0", Error: "no"}), want)
	want.Error, want.SeenAt = "why", start+3
	check(f.register(queue.RegisterState, queue.Deployment{ID: "d", URL: "http://a", Secret: "s1", Error: "why", SeenAt: start + 3}), want)
	check(f.register(queue.RegisterLeave, queue.Deployment{ID: "d", Secret: "s0"}), want)
	want.URL, want.Error = "", ""
	check(f.register(queue.RegisterLeave, queue.Deployment{ID: "d", Secret: "s1"}), want)
	d.URL, d.Secret = "http://b", "s2"
	want.URL, want.Secret, want.SeenAt = "http://b", "s2", start+2
	r := f.register(queue.RegisterApp, d)
	check(r, want)
	if r.Old == nil || r.Old.Secret != "s1" || r.Old.URL != "" {
		f.Errorf("%+v", r.Old)
	}
	f.register(queue.RegisterApp, queue.Deployment{ID: "newer", URL: "http://c", CreatedAt: start + 10})
	f.publish(func(m *queue.Message) { m.Deployment = "never" })
	var order []string
	for _, d := range checktest.Must(f.Deployments(f.Context(), "p"))(f) {
		order = append(order, d.ID)
	}
	if !slices.Equal(order, []string{"newer", "d", "never"}) {
		f.Errorf("%v", order)
	}
}

func testVoid(f *fixture) {
	leased, _ := f.publish()
	failed, _ := f.publish()
	putOff, _ := f.publish()
	later, _ := f.publish(func(m *queue.Message) { m.Due = start + 5000 })
	other, _ := f.publish(func(m *queue.Message) { m.Deployment = "other" })
	for _, m := range []queue.Message{leased, failed, putOff, other} {
		f.lease(m.ID, "r"+m.ID, start, start+1000)
	}
	f.write(queue.Batch{
		Extend: []*queue.Extend{{ID: putOff.ID, Project: "p", Receipt: "r" + putOff.ID, Due: start + 3000}},
		Settle: []*queue.Settle{{ID: failed.ID, Receipt: "r" + failed.ID, Due: start + 4000, LastError: "why"}},
	})
	check := func(m queue.Message, due int64, receipt, leased bool) {
		f.Helper()
		got := f.message(m.ID)
		if got.Due != due || got.Receipt != "" != receipt || got.LeaseUntil != 0 != leased {
			f.Errorf("%+v", got)
		}
	}
	d := queue.Deployment{ID: "d", URL: "http://a", Secret: "s1"}
	f.register(queue.RegisterApp, d)
	f.register(queue.RegisterApp, d)
	d.URL = "http://b"
	if r := f.register(queue.RegisterApp, d); r.Void {
		f.Error("void at another address")
	}
	check(leased, start+1000, true, true)
	f.write(queue.Batch{Now: start, Void: []*queue.Void{{Project: "p", Deployment: "d", Until: start + 500}}})
	check(leased, start+500, true, true)
	check(failed, start+4000, true, false)
	check(putOff, start+3000, true, false)
	check(later, start+5000, false, false)
	f.write(queue.Batch{Now: start + 1, Void: []*queue.Void{{Project: "p", Deployment: "d", Except: []string{leased.ID}}}})
	check(leased, start+500, true, true)
	check(failed, start+1, false, false)
	d.Secret = "s2"
	if r := f.register(queue.RegisterApp, d); !r.Void {
		f.Error("not void")
	}
	check(leased, start, false, false)
	check(putOff, start+3000, true, false)
	check(later, start+5000, false, false)
	check(other, start+1000, true, true)
	if f.acknowledge(leased.ID, "r"+leased.ID, start) {
		f.Error("a receipt is not void")
	}
	if got := f.message(failed.ID); got.Attempt != 1 || got.LastError != "" {
		f.Errorf("%+v", got)
	}
}

func testForget(f *fixture) {
	m, _ := f.publish(func(m *queue.Message) { m.Key = "k" })
	f.publish()
	other, _ := f.publish(func(m *queue.Message) { m.Run = "wrun_2" })
	elsewhere, _ := f.publish(func(m *queue.Message) { m.Project = "q" })
	f.publish(func(m *queue.Message) { m.Run = "" })
	f.write(queue.Batch{Forget: []*queue.Forget{{Project: "p", Run: "wrun_1"}, {Project: "p", Run: "wrun_none"}, {Project: "p"}}})
	list := checktest.Must(f.Messages(f.Context(), "p", "", 0))(f)
	if len(list) != 2 || !slices.ContainsFunc(list, func(m queue.Message) bool { return m.ID == other.ID }) {
		f.Errorf("%+v", list)
	}
	if list := checktest.Must(f.Messages(f.Context(), "q", "", 0))(f); len(list) != 1 || list[0].ID != elsewhere.ID {
		f.Errorf("%+v", list)
	}
	if n, first := f.publish(func(m *queue.Message) { m.Key = "k" }); first != n.ID || first == m.ID {
		f.Errorf("the key is %q's", first)
	}
}

func testHasten(f *fixture) {
	parked, _ := f.publish()
	f.lease(parked.ID, "r1", start, start+1)
	f.write(queue.Batch{Now: start, Settle: []*queue.Settle{{ID: parked.ID, Receipt: "r1", Due: start + 90_000, Uncounted: true, LastError: "it waits"}}})
	f.write(queue.Batch{Now: start, Void: []*queue.Void{{Project: "p", Deployment: "d"}}})
	if m := f.message(parked.ID); m.Due != start+90_000 || m.LastError != "it waits" || m.Receipt != "" || m.Attempt != 0 {
		f.Errorf("a parked message is %+v", m)
	}
	leased, _ := f.publish()
	f.lease(leased.ID, "r2", start, start+5000)
	other, _ := f.publish(func(m *queue.Message) { m.Run, m.Due = "wrun_2", start+70_000 })
	h := &queue.Hasten{Project: "p", Run: "wrun_1"}
	f.write(queue.Batch{Now: start + 10, Hasten: []*queue.Hasten{h, {Project: "q", Run: "wrun_2"}, {Project: "p"}}})
	want := []queue.Entry{{ID: parked.ID, Project: "p", Deployment: "d", Run: "wrun_1", Due: start + 10, Size: len(parked.Body)}}
	if !slices.Equal(h.Entries, want) || h.Leased != 1 {
		f.Errorf("%+v, want %+v", h, want)
	}
	for id, due := range map[string]int64{parked.ID: start + 10, leased.ID: start + 5000, other.ID: start + 70_000} {
		if m := f.message(id); m.Due != due {
			f.Errorf("%s is due at %d, want %d", id, m.Due-start, due-start)
		}
	}
}

func testSweep(f *fixture) {
	f.register(queue.RegisterApp, queue.Deployment{ID: "old", URL: "http://a", SeenAt: start - 2})
	f.register(queue.RegisterApp, queue.Deployment{ID: "new", URL: "http://a", SeenAt: start})
	f.register(queue.RegisterApp, queue.Deployment{ID: "d", URL: "http://a", SeenAt: start - 2})
	m, _ := f.publish(func(m *queue.Message) { m.Key = "k" })
	removed := checktest.Must(f.Sweep(f.Context(), start-1, start))(f)
	if len(removed) != 1 || removed[0].ID != "old" {
		f.Errorf("%+v", removed)
	}
	if all := checktest.Must(f.Deployments(f.Context(), ""))(f); len(all) != 2 {
		f.Errorf("%+v", all)
	}
	f.lease(m.ID, "r", start, start+1)
	f.acknowledge(m.ID, "r", start)
	end := start + queue.KeyMemory.Milliseconds()
	checktest.Must(f.Sweep(f.Context(), 0, end-1))(f)
	if first := f.publishAt(start, message(func(m *queue.Message) { m.Key = "k" })); first != m.ID {
		f.Errorf("the key is %q's, want %q", first, m.ID)
	}
	checktest.Must(f.Sweep(f.Context(), 0, end))(f)
	if n, first := f.publish(func(m *queue.Message) { m.Key = "k" }); first != n.ID {
		f.Errorf("the key is %q's, want %q", first, n.ID)
	}
}

// A batch is written in the order of its parts.
func testOneBatch(f *fixture) {
	a, b := message(), message()
	f.publishAt(start, a)
	f.lease(a.ID, "r1", start, start+100)
	ack := &queue.Acknowledge{ID: a.ID, Project: "p", Receipt: "r1"}
	settle := &queue.Settle{ID: a.ID, Receipt: "r1", Due: start + 1, LastError: "why"}
	lease := &queue.Lease{ID: b.ID, Receipt: "r2", Until: start + 100}
	gone := &queue.Lease{ID: a.ID, Receipt: "r3", Until: start + 100}
	r := &queue.Register{Deployment: queue.Deployment{Project: "p", ID: "d", URL: "http://a", Secret: "s"}}
	f.write(queue.Batch{
		Publish: []*queue.Publish{{Message: b}}, Acknowledge: []*queue.Acknowledge{ack}, Settle: []*queue.Settle{settle},
		Register: []*queue.Register{r}, Lease: []*queue.Lease{gone, lease},
	})
	if !ack.Done || settle.Next != 0 || lease.Message == nil || gone.Message != nil || gone.Next != 0 || r.Old == nil {
		f.Errorf("%+v, %+v, %+v, %+v, %+v", ack, settle, lease, gone, r)
	}
}

// Exactly one of many concurrent Leases of a message succeeds, and the first of many
// concurrent Publishes with one key.
func testConcurrently(f *fixture) {
	var m []queue.Message
	for range 20 {
		x, _ := f.publish()
		m = append(m, x)
	}
	const n = 8
	var wg sync.WaitGroup
	got, firsts := make([][]string, n), make([]string, n)
	for i := range n {
		wg.Go(func() {
			for j := range m {
				x := m[(j+3*i)%len(m)] // in different orders
				if i%2 == 1 {
					x = m[len(m)-1-j]
				}
				for {
					l := &queue.Lease{ID: x.ID, Receipt: fmt.Sprint("r", i), Until: start + 1000}
					if err := f.Write(context.Background(), &queue.Batch{Now: start, Lease: []*queue.Lease{l}}); err != nil {
						f.Error(err)
						return
					}
					if l.Message != nil {
						got[i] = append(got[i], x.ID)
					}
					if l.Next > start || l.Next == 0 {
						break // otherwise another process was about to lease it
					}
				}
			}
			p := &queue.Publish{Message: message(func(m *queue.Message) { m.Key = "k" })}
			if err := f.Write(context.Background(), &queue.Batch{Now: start, Publish: []*queue.Publish{p}}); err != nil {
				f.Error(err)
			}
			firsts[i] = p.First
		})
	}
	wg.Wait()
	all := slices.Concat(got...)
	slices.Sort(all)
	if len(all) != len(m) || len(slices.Compact(all)) != len(m) {
		f.Errorf("%d leases of %d messages", len(all), len(m))
	}
	if slices.Sort(firsts); len(slices.Compact(firsts)) != 1 || firsts[0] == "" {
		f.Errorf("the first is %v", firsts)
	}
}

func testText(f *fixture) {
	odd := "\u00fc \" ' % = & +\n\t\U0001F600 " + strings.Repeat("x", 900)
	m, _ := f.publish(func(m *queue.Message) { m.Project, m.Deployment, m.Topic, m.Key, m.Step = "p", odd, odd, odd, odd })
	f.register(queue.RegisterApp, queue.Deployment{ID: odd, URL: "http://a", Secret: odd})
	l := f.lease(m.ID, "r", start, start+1)
	if l.Message == nil || l.Message.Deployment != odd || l.Message.Topic != odd || l.Message.Key != odd || l.Message.Step != odd {
		f.Errorf("%+v", l.Message)
	}
	f.write(queue.Batch{Settle: []*queue.Settle{{ID: m.ID, Receipt: "r", Due: start, LastError: odd}}})
	if got := f.message(m.ID); got.LastError != odd {
		f.Errorf("%+v", got)
	}
}
