package queue_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/seedtest"
	"github.com/cayhq/cay/internal/workflowd/queue"
)

func TestQueue_Refused(t *testing.T) {
	bubble(t, func(f *fixture) {
		for name, c := range map[string]struct {
			change func(m *queue.Message)
			want   cay.Code
		}{
			"no deployment": {func(m *queue.Message) { m.Deployment = "" }, cay.Invalid},
			"no topic":      {func(m *queue.Message) { m.Topic = "" }, cay.Invalid},
			"large":         {func(m *queue.Message) { m.Body = make([]byte, queue.MaxBody+1) }, cay.TooLarge},
			"long key":      {func(m *queue.Message) { m.Key = strings.Repeat("k", 1025) }, cay.TooLarge},
			"no text":       {func(m *queue.Message) { m.Run = "\xff" }, cay.Invalid},
			"zero byte":     {func(m *queue.Message) { m.Step = "a\x00b" }, cay.Invalid},
			"too late":      {func(m *queue.Message) { m.Due = time.Now().Add(queue.MaxDelay + time.Second).UnixMilli() }, cay.Invalid},
		} {
			m := queue.Message{Project: project, Deployment: "dpl_1", Topic: "t"}
			c.change(&m)
			_, err := f.Publish(f.Context(), m)
			checktest.Code(f, err, c.want, name)
		}
		f.publish(func(m *queue.Message) {
			m.Body, m.Due = make([]byte, queue.MaxBody), time.Now().Add(queue.MaxDelay).UnixMilli()
		})
		for _, d := range []queue.Deployment{{URL: "http://a"}, {ID: "d"}, {ID: "d", URL: "ftp://a"}, {ID: "d", URL: "http://"}, {ID: "d", URL: "127.0.0.1:80"}} {
			_, err := f.Register(f.Context(), d)
			checktest.Code(f, err, cay.Invalid, d.URL)
		}
		checktest.Code(f, f.Extend(f.Context(), project, "r", -time.Second), cay.Invalid)
		checktest.Code(f, f.Extend(f.Context(), project, "r", time.Second), cay.NotFound)
	})
}

// An idempotency key belongs to one message, even when two are published at the same
// time.
func TestQueue_Key(t *testing.T) {
	bubble(t, func(f *fixture) {
		f.register("s1")
		var wg sync.WaitGroup
		ids := make([]string, 10)
		for i := range ids {
			wg.Go(func() { ids[i] = f.publish(func(m *queue.Message) { m.Key = "k" }) })
		}
		wg.Wait()
		d := f.delivered()
		for _, id := range ids {
			if id != d.ID {
				f.Errorf("%s is not %s", id, d.ID)
			}
		}
		f.acknowledge(d)
		f.nothing(23 * time.Hour)
		if id := f.publish(func(m *queue.Message) { m.Key = "k" }); id != d.ID {
			f.Errorf("%s is not %s", id, d.ID)
		}
		f.nothing(time.Hour)
		if id := f.publish(func(m *queue.Message) { m.Key = "k" }); id == d.ID {
			f.Error("the key is remembered for ever")
		}
		f.acknowledge(f.delivered())
	})
}

// Many more messages than fit in memory are all delivered, the soonest first.
func TestQueue_MoreThanMemory(t *testing.T) {
	bubble(t, func(f *fixture) {
		const n = 200
		begin := time.Now()
		for i := range n {
			f.publish(func(m *queue.Message) {
				m.Due = begin.Add(time.Duration(i%50) * 10 * time.Minute).UnixMilli()
				m.Run = fmt.Sprint("wrun_", i%7)
			})
		}
		f.register("s1")
		seen := map[string]bool{}
		for range n {
			d := f.delivered()
			if late := time.Since(begin).Milliseconds() - (d.Message.LeaseUntil - 300_000 - begin.UnixMilli()); late < 0 {
				f.Errorf("%d ms early", -late)
			}
			if seen[d.ID] || d.Attempt != 1 {
				f.Errorf("%s again, attempt %d", d.ID, d.Attempt)
			}
			seen[d.ID] = true
			f.acknowledge(d)
		}
		if took := time.Since(begin); took < 49*10*time.Minute || took > 49*10*time.Minute+time.Second {
			f.Errorf("it took %s", took)
		}
		f.nothing(24 * time.Hour)
	}, func(c *queue.Config) { c.Loaded = 10; c.InFlight = 3 })
}

// A thousand runs sleep while the daemon restarts, or CAY_ROUNDS thousands. Each is woken once, when it is due, and
// the memory holds few of them.
func TestQueue_Sleepers(t *testing.T) {
	bubble(t, func(f *fixture) {
		const publishers = 100
		n := 1000 * seedtest.Rounds(f.T, 1)
		begin := time.Now()
		due := func(i int) time.Duration { return time.Hour + time.Duration(i%3600)*time.Second }
		var all sync.WaitGroup
		for p := range publishers {
			all.Go(func() {
				for i := p; i < n; i += publishers {
					m := queue.Message{
						Project: project, Deployment: "dpl_1", Topic: "__wkf_workflow_order",
						Run: fmt.Sprint("wrun_", i), Due: begin.Add(due(i)).UnixMilli(),
					}
					if _, err := f.Publish(f.Context(), m); err != nil {
						f.Error(err)
					}
				}
			})
		}
		all.Wait()
		f.register("s1")
		f.nothing(30 * time.Minute)
		f.reopen()
		f.register("s1")
		woken := map[string]bool{}
		for range n {
			d := f.delivered()
			var i int
			if _, err := fmt.Sscanf(d.Run, "wrun_%d", &i); err != nil {
				f.Fatal(err)
			}
			if late := time.Since(begin) - due(i); late < 0 || late > time.Second || woken[d.Run] || d.Attempt != 1 {
				f.Fatalf("%s is %s late, attempt %d", d.Run, late, d.Attempt)
			}
			woken[d.Run] = true
			f.acknowledge(d)
		}
		f.nothing(24 * time.Hour)
		if pushes := f.app.pushes(); pushes != n {
			f.Errorf("%d pushes for %d sleepers", pushes, n)
		}
	}, func(c *queue.Config) { c.Loaded = 100 })
}

// Messages that are due are delivered although more messages than fit in memory wait for a
// later time: when they are published, when they are due again, and after a restart.
func TestQueue_DueBeforeSleepers(t *testing.T) {
	bubble(t, func(f *fixture) {
		f.register("s1")
		const loaded = 10
		begin := time.Now()
		sleep := func() {
			for i := range 3 * loaded {
				f.publish(func(m *queue.Message) {
					m.Run, m.Due = fmt.Sprint("wrun_asleep_", i), begin.Add(30*time.Minute).UnixMilli()
				})
			}
		}
		sleep()
		var under []*delivery
		for i := range 5 { // more than may be in flight
			f.publish(func(m *queue.Message) { m.Run = fmt.Sprint("wrun_", i) })
		}
		for range 2 {
			under = append(under, f.delivered())
		}
		for range 3 {
			f.acknowledge(under[0])
			under = append(under[1:], f.delivered())
		}
		under[0].end <- errors.New("it failed")
		f.acknowledge(under[1])
		again := f.delivered()
		if again.ID != under[0].ID {
			f.Errorf("%s is delivered again, want %s", again.ID, under[0].ID)
		}
		again.end <- errors.New("it failed again")
		f.reopen()
		f.register("s2")
		f.acknowledge(f.delivered())
		if took := time.Since(begin); took > time.Minute {
			f.Errorf("it took %s", took)
		}
		for range 3 * loaded {
			f.acknowledge(f.delivered())
		}
		if took := time.Since(begin); took < 30*time.Minute || took > 31*time.Minute {
			f.Errorf("the sleepers took %s", took)
		}
	}, func(c *queue.Config) { c.Loaded, c.InFlight = 10, 2 })
}

// Of the messages that an app has no room for, those of a higher priority are delivered
// first: also when more messages than fit in memory were there before, after a restart, when
// they become due later, and when the priority changes.
func TestQueue_Priority(t *testing.T) {
	bubble(t, func(f *fixture) {
		publish := func(run string, priority int, due time.Duration) {
			f.publish(func(m *queue.Message) {
				m.Run, m.Priority = run, priority
				if due > 0 {
					m.Due = time.Now().Add(due).UnixMilli()
				}
			})
		}
		const low = 60
		for i := range low {
			publish(fmt.Sprint("wrun_low_", i), 0, 0)
		}
		expect := func(want ...string) {
			f.Helper()
			for _, run := range want {
				d := f.delivered()
				if d.Run != run {
					f.Errorf("%s is delivered, want %s", d.Run, run)
				}
				f.acknowledge(d)
			}
		}
		publish("wrun_1", 1, 0)
		publish("wrun_2", 2, 0)
		publish("wrun_2", 2, 0)
		f.register("s1")
		first := f.delivered()
		if first.Run != "wrun_2" {
			f.Errorf("%s is delivered first", first.Run)
		}
		publish("wrun_3", 3, 0)
		publish("wrun_late", 1, 2*time.Hour)
		f.acknowledge(first)
		expect("wrun_3", "wrun_2", "wrun_1")
		begin := time.Now()
		for n := 0; ; n++ {
			d := f.delivered()
			late := time.Since(begin) - 2*time.Hour
			if d.Run == "wrun_late" {
				if late < 0 || late > 5*time.Minute || n == 0 {
					f.Errorf("it is delivered %s late, after %d others", late, n)
				}
				f.acknowledge(d)
				break
			}
			if late > 0 {
				f.Fatalf("%s is delivered before it", d.Run)
			}
			time.Sleep(4 * time.Minute)
			f.acknowledge(d)
		}
		under := f.delivered()
		if due, _, err := f.Hasten(f.Context(), project, fmt.Sprint("wrun_low_", low-1), 1); due != 1 || err != nil {
			f.Errorf("%d messages are hastened: %v", due, err)
		}
		f.acknowledge(under)
		expect(fmt.Sprint("wrun_low_", low-1))
		f.delivered() // its lease stays
		publish("wrun_4", 1, 0)
		f.reopen()
		expect("wrun_4")
	}, func(c *queue.Config) { c.Loaded, c.InFlight = 10, 1 })
}

// No delivery begins while the bodies of running deliveries are too large.
func TestQueue_Bytes(t *testing.T) {
	bubble(t, func(f *fixture) {
		f.register("s1")
		for range 5 {
			f.publish(func(m *queue.Message) { m.Body = make([]byte, 600) })
		}
		a, b := f.delivered(), f.delivered()
		f.nothing(time.Minute)
		f.acknowledge(a)
		c := f.delivered()
		f.nothing(time.Minute)
		f.acknowledge(b)
		f.acknowledge(c)
		f.acknowledge(f.delivered())
		f.acknowledge(f.delivered())
	}, func(c *queue.Config) { c.InFlightBytes = 1000 })
}

// faulty is a Store whose writes fail on demand, without effect or after they were made.
type faulty struct {
	queue.Store
	fail, late atomic.Int64 // number of writes
}

var errStore = cay.Errorf(cay.Unavailable, "the database does not answer")

func (s *faulty) Write(ctx context.Context, b *queue.Batch) error {
	if s.fail.Add(-1) >= 0 {
		return errStore
	}
	err := s.Store.Write(ctx, b)
	if s.late.Add(-1) >= 0 {
		return errStore
	}
	return err
}

// The database may fail at any time; the queue goes on.
func TestQueue_StoreFails(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("late=%t", late), func(t *testing.T) {
			bubble(t, func(f *fixture) {
				checktest.OK(f, f.Close())
				s := &faulty{Store: f.store.Queue()}
				fail := func(n int64) {
					if late {
						s.late.Store(n)
					} else {
						s.fail.Store(n)
					}
				}
				f.config.Store = s
				f.Queue = checktest.Must(queue.Open(f.Context(), f.config))(f)
				f.register("s1")
				// Publish, and with it the lease.
				fail(1)
				m := queue.Message{Project: project, Deployment: "dpl_1", Topic: "t", Key: "k"}
				_, err := f.Publish(f.Context(), m)
				if !errors.Is(err, errStore) {
					f.Fatal(err)
				}
				_ = checktest.Must(f.Publish(f.Context(), m))(f)
				d := f.delivered()
				f.acknowledge(d)
				f.nothing(time.Hour)
				// A lease.
				f.publish(func(m *queue.Message) { m.Due = time.Now().Add(time.Second).UnixMilli() })
				synctest.Wait()
				fail(3)
				d = f.delivered()
				if d.Attempt != 1 {
					f.Errorf("attempt %d", d.Attempt)
				}
				// The end of the delivery.
				fail(3)
				d.end <- fmt.Errorf("the app answered 500")
				again := f.delivered()
				if again.ID != d.ID || again.Attempt != 2 {
					f.Errorf("%+v", again.Message)
				}
				// An acknowledgement.
				fail(1)
				if err := f.Acknowledge(f.Context(), project, again.Receipt); !errors.Is(err, errStore) {
					f.Error(err)
				}
				checktest.OK(f, f.Acknowledge(f.Context(), project, again.Receipt))
				again.end <- nil
				f.nothing(time.Hour)
			})
		})
	}
}

// After Close the queue refuses messages, and no call blocks.
func TestQueue_Closed(t *testing.T) {
	bubble(t, func(f *fixture) {
		f.register("s1")
		f.publish()
		d := f.delivered()
		checktest.OK(f, f.Close())
		checktest.OK(f, f.Close())
		_, err := f.Publish(f.Context(), queue.Message{Project: project, Deployment: "d", Topic: "t"})
		checktest.Code(f, err, cay.Unavailable)
		checktest.Code(f, f.Acknowledge(f.Context(), project, d.Receipt), cay.Unavailable)
		_, err = f.Register(f.Context(), queue.Deployment{Project: project, ID: "d", URL: "http://a"})
		checktest.Code(f, err, cay.Unavailable)
	})
}

// The messages of a deleted run are deleted, and its app is not called.
func TestQueue_Forget(t *testing.T) {
	bubble(t, func(f *fixture) {
		f.register("s1")
		f.publish()
		d := f.delivered()
		f.publish(func(m *queue.Message) { m.Due = time.Now().Add(time.Minute).UnixMilli() })
		other := f.publish(func(m *queue.Message) { m.Run = "wrun_2"; m.Due = time.Now().Add(time.Minute).UnixMilli() })
		checktest.OK(f, f.Forget(f.Context(), project, "wrun_1"))
		f.acknowledge(d)
		if d := f.delivered(); d.ID != other {
			f.Errorf("%+v", d.Message)
		} else {
			f.acknowledge(d)
		}
		f.nothing(time.Hour)
	})
}

// Messages that the engine stores with a group of its own.
func TestQueue_Added(t *testing.T) {
	bubble(t, func(f *fixture) {
		f.register("s1")
		m := queue.Message{Project: project, Deployment: "dpl_1", Topic: "t", Run: "wrun_1", Body: []byte("body")}
		checktest.OK(f, f.Prepare(&m))
		unstored := m
		checktest.OK(f, f.Prepare(&unstored))
		p := &queue.Publish{Message: m}
		checktest.OK(f, f.store.Queue().Write(f.Context(), &queue.Batch{Now: time.Now().UnixMilli(), Publish: []*queue.Publish{p}}))
		f.nothing(time.Hour)
		f.Added([]queue.Message{m, unstored})
		d := f.delivered()
		if d.ID != m.ID || string(d.Body) != "body" {
			f.Errorf("%+v", d.Message)
		}
		f.acknowledge(d)
		f.nothing(time.Hour)
	})
}

// slowReads is a store of which what is read can be held up, as in a slow database.
type slowReads struct {
	queue.Store
	// The results of Pending and Deployments wait until the test receives from these; nil:
	// they do not wait.
	messages, deployments chan struct{}
	changes               chan queue.Change
}

func (s *slowReads) Pending(ctx context.Context, project, deployment string, before int64, limit int) ([]queue.Entry, queue.Rest, error) {
	entries, rest, err := s.Store.Pending(ctx, project, deployment, before, limit)
	return entries, rest, errors.Join(err, hold(ctx, s.messages))
}

func (s *slowReads) Deployments(ctx context.Context, project string) ([]queue.Deployment, error) {
	all, err := s.Store.Deployments(ctx, project)
	return all, errors.Join(err, hold(ctx, s.deployments))
}

func (s *slowReads) Changes() <-chan queue.Change { return s.changes }

func hold(ctx context.Context, c chan struct{}) error {
	if c == nil {
		return nil
	}
	select {
	case c <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A priority that is set while messages are read from the store is not lost.
func TestQueue_HastenDuringLoad(t *testing.T) {
	bubble(t, func(f *fixture) {
		for _, run := range []string{"wrun_1", "wrun_2", "wrun_3"} {
			f.publish(func(m *queue.Message) { m.Run = run })
		}
		f.app.leave("http://127.0.0.1:3000")
		f.register("s1")
		f.app.leave("")
		slow := &slowReads{messages: make(chan struct{})}
		f.wrap = func(s queue.Store) queue.Store { slow.Store = s; return slow }
		f.reopen()
		synctest.Wait() // the messages are read
		for _, run := range []string{"wrun_2", "wrun_3"} {
			if due, _, err := f.Hasten(f.Context(), project, run, 5); due != 1 || err != nil {
				f.Errorf("%d messages are hastened: %v", due, err)
			}
		}
		first := f.delivered()
		<-slow.messages
		synctest.Wait()
		f.acknowledge(first)
		if next := f.delivered(); first.Run != "wrun_2" || next.Run != "wrun_3" {
			f.Errorf("%s is delivered, then %s", first.Run, next.Run)
		}
	}, func(c *queue.Config) { c.InFlight = 1 })
}

// An app that registers while the change by another process is read stays registered.
func TestQueue_RegisterDuringChange(t *testing.T) {
	bubble(t, func(f *fixture) {
		slow := &slowReads{changes: make(chan queue.Change)}
		f.wrap = func(s queue.Store) queue.Store { slow.Store = s; return slow }
		f.reopen()
		f.register("s1")
		checktest.OK(f, f.Deregister(f.Context(), project, "dpl_1", ""))
		slow.deployments = make(chan struct{})
		slow.changes <- queue.Change{}
		synctest.Wait() // the deployment is read
		f.register("s1")
		<-slow.deployments
		<-slow.deployments // it is read again
		synctest.Wait()
		f.publish()
		f.acknowledge(f.delivered())
	})
}
