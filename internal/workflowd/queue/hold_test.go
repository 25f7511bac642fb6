package queue_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/workflowd/queue"
)

var errRefused = fmt.Errorf("%w at http://127.0.0.1:3000: connection refused", queue.ErrUnreachable)

// Messages wait until their app registers, with a LastError that says so.
func TestQueue_Unregistered(t *testing.T) {
	bubble(t, func(f *fixture) {
		f.publish()
		f.nothing(24 * time.Hour)
		p := f.pending()
		if len(p) != 1 || p[0].LastError != "no app has registered for deployment dpl_1" {
			f.Fatalf("%+v", p)
		}
		checktest.Code(f, func() error { _, err := f.Latest(f.Context(), project); return err }(), cay.NotFound)
		f.register("s1", func(d *queue.Deployment) { d.ID = "dpl_2" })
		f.nothing(time.Hour)
		f.register("s1")
		f.acknowledge(f.delivered())
	})
}

// While no app answers, the queue tries a single message, and delivers all when that one
// gets through.
func TestQueue_Held(t *testing.T) {
	bubble(t, func(f *fixture) {
		f.register("s1")
		f.register("s1", func(d *queue.Deployment) { d.ID = "dpl_2" })
		f.app.setDown(errRefused)
		for range 5 {
			f.publish()
		}
		f.nothing(2 * time.Hour)
		if n := f.app.pushes(); n > 5+10+2*120 {
			f.Errorf("%d pushes in two hours", n)
		}
		for _, m := range f.pending() {
			if m.LastError != errRefused.Error() || m.Attempt != 0 || m.LeaseUntil != 0 {
				f.Errorf("%+v", m)
			}
		}
		d := checktest.Must(f.Deployment(f.Context(), project, "dpl_1"))(f)
		if d.Error != errRefused.Error() {
			f.Errorf("%+v", d)
		}
		if l := checktest.Must(f.Latest(f.Context(), project))(f); l.ID != "dpl_2" {
			f.Errorf("the latest is %+v", l)
		}
		f.app.setDown(nil)
		begin := time.Now()
		first := f.delivered()
		if took := time.Since(begin); took > 30*time.Second {
			f.Errorf("it was tried after %s", took)
		}
		begin = time.Now()
		f.delivered()
		if took := time.Since(begin); took < time.Second || took > time.Second+time.Millisecond {
			f.Errorf("the others were tried after %s", took)
		}
		f.acknowledge(first)
	})
	// A call by the app shows at once that the app is there.
	for name, speak := range map[string]func(f *fixture, d *delivery) error{
		"Acknowledge": func(f *fixture, d *delivery) error { return f.Acknowledge(f.Context(), project, d.Receipt) },
		"Extend": func(f *fixture, d *delivery) error {
			return f.Extend(f.Context(), project, d.Receipt, 300*time.Second)
		},
		"Answer": func(f *fixture, d *delivery) error { d.end <- nil; return nil },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(f *fixture) {
				f.app.setDown(errRefused)
				f.register("s1")
				f.publish()
				f.publish()
				f.nothing(time.Hour)
				f.app.setDown(nil)
				d := f.delivered()
				checktest.OK(f, speak(f, d))
				begin := time.Now()
				if again := f.delivered(); again.ID == d.ID || time.Since(begin) > time.Millisecond {
					f.Errorf("%s after %s", again.ID, time.Since(begin))
				}
			})
		})
	}
}

// When the app registers again, held messages are delivered at once, and deliveries that
// reached no app do not count.
func TestQueue_HeldUntilRegistered(t *testing.T) {
	bubble(t, func(f *fixture) {
		f.register("s1")
		f.app.setDown(errRefused)
		for range 5 {
			f.publish()
		}
		f.nothing(time.Hour)
		f.reopen() // the deployment is still known
		f.nothing(20 * time.Second)
		if p := f.pending(); p[0].LastError != errRefused.Error() {
			f.Errorf("%+v", p[0])
		}
		f.app.setDown(nil)
		begin := time.Now()
		f.register("s1")
		for range 5 {
			d := f.delivered()
			if d.Attempt != 1 {
				f.Errorf("attempt %d", d.Attempt)
			}
			f.acknowledge(d)
		}
		if took := time.Since(begin); took > time.Millisecond {
			f.Errorf("it took %s", took)
		}
		synctest.Wait()
		if d := checktest.Must(f.Deployment(f.Context(), project, "dpl_1"))(f); d.Error != "" {
			f.Errorf("%+v", d)
		}
	})
}

// An absent app does not block other deployments.
func TestQueue_Others(t *testing.T) {
	bubble(t, func(f *fixture) {
		f.register("s1")
		f.register("s1", func(d *queue.Deployment) { d.ID = "dpl_2" })
		var stuck []*delivery
		for range 40 {
			f.publish()
		}
		for range 32 {
			stuck = append(stuck, f.delivered())
		}
		f.nothing(time.Minute)
		for range 10 {
			f.publish(func(m *queue.Message) { m.Deployment = "dpl_2" })
			if d := f.delivered(); d.to.ID != "dpl_2" {
				f.Fatalf("%+v", d.Message)
			} else {
				f.acknowledge(d)
			}
		}
		f.acknowledge(stuck[0])
		if d := f.delivered(); d.to.ID != "dpl_1" {
			f.Errorf("%+v", d.Message)
		}
	})
}

// Two builds work at once, the daemon restarts, and one of them has a new process. Each gets
// the messages of its own runs only.
func TestQueue_TwoBuilds(t *testing.T) {
	bubble(t, func(f *fixture) {
		const each = 50
		builds := []string{"dpl_old", "dpl_new"}
		for half, secret := range []string{"s1", "s2"} {
			for i, build := range builds {
				f.register([]string{secret, "s1"}[i], func(d *queue.Deployment) { d.ID, d.URL = build, "http://127.0.0.1/"+build })
			}
			for i := range each {
				for _, build := range builds {
					f.publish(func(m *queue.Message) { m.Deployment, m.Run = build, fmt.Sprint(build, half, "-", i) })
				}
			}
			for range each * len(builds) {
				d := f.delivered()
				if d.to.ID != d.Deployment || !strings.HasPrefix(d.Run, d.to.ID) || d.to.URL != "http://127.0.0.1/"+d.Deployment {
					f.Errorf("%s of %s goes to %s", d.Run, d.Deployment, d.to.URL)
				}
				f.acknowledge(d)
			}
			f.reopen()
		}
	}, func(c *queue.Config) { c.InFlight = 3 })
}

// Runs take turns.
func TestQueue_FairToRuns(t *testing.T) {
	bubble(t, func(f *fixture) {
		for i := range 20 {
			f.publish(func(m *queue.Message) { m.Run = "wrun_busy"; m.Step = fmt.Sprint(i) })
		}
		f.publish(func(m *queue.Message) { m.Run = "wrun_other" })
		f.register("s1")
		first, second := f.delivered(), f.delivered()
		if first.Run == second.Run {
			f.Errorf("%s twice", first.Run)
		}
		// Messages of a run do not wait for each other.
		f.acknowledge(first)
		f.acknowledge(second)
		third, fourth := f.delivered(), f.delivered()
		if third.Run != "wrun_busy" || fourth.Run != "wrun_busy" {
			f.Errorf("%s, %s", third.Run, fourth.Run)
		}
	}, func(c *queue.Config) { c.InFlight = 2 })
}

// A new process of the app gets the previous process's messages at once.
func TestQueue_NewProcess(t *testing.T) {
	for name, c := range map[string]struct {
		before func(f *fixture, d *delivery)
	}{
		"Working":   {func(f *fixture, d *delivery) {}},
		"Broken":    {func(f *fixture, d *delivery) { d.end <- queue.ErrBroken }},
		"Failed":    {func(f *fixture, d *delivery) { d.end <- fmt.Errorf("500") }},
		"Restarted": {func(f *fixture, d *delivery) { f.reopen() }},
		"Restarted and refused": {func(f *fixture, d *delivery) {
			f.reopen()
			f.app.setDown(errRefused)
			f.publish()
			synctest.Wait()
			f.app.setDown(nil)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(f *fixture) {
				f.register("s1")
				f.publish()
				d := f.delivered()
				c.before(f, d)
				synctest.Wait()
				begin := time.Now()
				f.register("s2")
				again := f.delivered()
				if again.ID != d.ID {
					again = f.delivered()
				}
				if took := time.Since(begin); took > time.Millisecond {
					f.Errorf("it took %s", took)
				}
				if again.ID != d.ID || again.to.Secret != "s2" || again.Attempt != 2 {
					f.Errorf("%+v to %+v", again.Message, again.to)
				}
				checktest.Code(f, f.Acknowledge(f.Context(), project, d.Receipt), cay.NotFound)
				checktest.Code(f, f.Extend(f.Context(), project, d.Receipt, time.Second), cay.NotFound)
				f.acknowledge(again)
			})
		})
	}
}

// A process that registers again keeps its leases; so does a process whose address still
// answers when the app registers another address.
func TestQueue_SameProcess(t *testing.T) {
	bubble(t, func(f *fixture) {
		f.register("s1")
		f.publish()
		d := f.delivered()
		f.register("s1")
		f.nothing(299 * time.Second)
		f.acknowledge(d)
	})
}

func TestQueue_OtherAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	checktest.OK(t, err)
	defer l.Close()
	living, dead := "http://"+l.Addr().String(), ""
	if l, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
		dead = "http://" + l.Addr().String()
		l.Close()
	}
	for name, c := range map[string]struct {
		old   string
		moved bool
	}{"Living": {living, false}, "Dead": {dead, true}} {
		t.Run(name, func(t *testing.T) {
			// This test runs in real time, because it dials the address.
			f := &fixture{T: t, app: newApp(), path: t.TempDir() + "/workflows.db"}
			f.open()
			defer func() { f.close() }()
			f.register("s1", func(d *queue.Deployment) { d.URL = c.old })
			f.publish()
			d := f.delivered()
			f.reopen() // the push ends, the lease stays
			f.register("s2", func(d *queue.Deployment) { d.URL = "http://127.0.0.1:3001" })
			if !c.moved {
				conn := checktest.Must(l.Accept())(f) // the check whether the address answers
				conn.Close()
			}
			other := f.publish()
			for range 2 {
				var again *delivery
				select {
				case again = <-f.app.got:
				case <-time.After(time.Minute): // the lease ends a little later
					f.Fatal("the lease is not void")
				}
				if again.to.URL != "http://127.0.0.1:3001" || !c.moved && again.ID != other {
					f.Errorf("%s to %+v", again.ID, again.to)
				}
				f.acknowledge(again)
				if !c.moved {
					break
				}
			}
			if c.moved {
				checktest.Code(f, f.Acknowledge(f.Context(), project, d.Receipt), cay.NotFound)
			} else {
				checktest.OK(f, f.Acknowledge(f.Context(), project, d.Receipt))
			}
		})
	}
}

// A deployment with several processes gets its messages when the process that registered
// last ends, whether that process says so or not. An address at which another program
// answers by then gets none.
func TestQueue_EarlierProcess(t *testing.T) {
	for name, end := range map[string]func(*fixture){
		"Deregistered": func(f *fixture) { checktest.OK(f, f.Deregister(f.Context(), project, "dpl_1", "s3")) },
		"Killed":       func(f *fixture) { f.app.leave("http://127.0.0.1:3001") },
	} {
		t.Run(name, func(t *testing.T) {
			// This test runs in real time, because the queue dials the addresses.
			listen := func() (net.Listener, string) {
				l := checktest.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
				t.Cleanup(func() { l.Close() })
				return l, "http://" + l.Addr().String()
			}
			firstListener, first := listen()
			secondListener, second := listen()
			f := &fixture{T: t, app: newApp(), path: t.TempDir() + "/workflows.db"}
			f.app.other = second
			f.open()
			defer func() { f.close() }()
			at := func(url string) func(*queue.Deployment) { return func(d *queue.Deployment) { d.URL = url } }
			f.register("s1", at(first))
			f.register("s2", at(second))
			checktest.Must(firstListener.Accept())(f).Close() // the queue asks whether the first one is still there
			f.register("s3", at("http://127.0.0.1:3001"))
			checktest.Must(secondListener.Accept())(f).Close()
			end(f)
			f.publish()
			if d := <-f.app.got; d.to.URL != first || d.to.Secret != "s1" {
				f.Errorf("the message goes to %+v", d.to)
			}
		})
	}
}

// A message that the Pusher parks is not tried again until its run is hastened, or for a
// day; a new process of the app, or of the daemon, changes nothing. A run that is hastened
// during the delivery is tried again at once.
func TestQueue_Parked(t *testing.T) {
	bubble(t, func(f *fixture) {
		f.register("s1")
		park := &queue.ParkedError{Reason: "it waits"}
		f.publish()
		f.delivered().end <- park
		f.nothing(time.Hour)
		f.register("s2")
		f.reopen()
		f.register("s3")
		f.nothing(time.Hour)
		if m := f.pending(); len(m) != 1 || m[0].LastError != "it waits" || m[0].Attempt != 0 {
			f.Errorf("it is %+v", m)
		}
		hasten := func(due, leased int) {
			f.Helper()
			if d, l, err := f.Hasten(f.Context(), project, "wrun_1", 0); d != due || l != leased || err != nil {
				f.Errorf("%d messages are due and %d leased, want %d and %d: %v", d, l, due, leased, err)
			}
		}
		hasten(1, 0)
		d := f.delivered()
		hasten(0, 1)
		if d.Attempt != 1 {
			f.Errorf("attempt %d", d.Attempt)
		}
		d.end <- park
		f.delivered().end <- park
		begin := time.Now()
		f.nothing(23 * time.Hour)
		f.nothing(59 * time.Minute)
		d = f.delivered()
		if took := time.Since(begin); took < 24*time.Hour || took > 24*time.Hour+time.Minute {
			f.Errorf("it is tried again after %s", took)
		}
		f.acknowledge(d)
		hasten(0, 0)
	})
}

// The daemon restarts while the app works: extended messages keep their leases, the
// others are delivered again after a minute.
func TestQueue_Reopen(t *testing.T) {
	bubble(t, func(f *fixture) {
		f.register("s1")
		f.publish()
		working, lost := f.delivered(), f.publish()
		_ = f.delivered()
		later := f.publish(func(m *queue.Message) { m.Due = time.Now().Add(2 * time.Hour).UnixMilli() })
		f.reopen()
		f.nothing(60 * time.Second)
		checktest.OK(f, f.Extend(f.Context(), project, working.Receipt, 300*time.Second))
		f.nothing(4 * time.Second)
		d := f.delivered()
		if d.ID != lost || d.Attempt != 2 {
			f.Errorf("%+v", d.Message)
		}
		f.acknowledge(d)
		f.nothing(200 * time.Second)
		checktest.OK(f, f.Acknowledge(f.Context(), project, working.Receipt))
		f.nothing(time.Hour)
		if d := f.delivered(); d.ID != later || d.Attempt != 1 {
			f.Errorf("%+v", d.Message)
		}
	})
}

// An app that reports its messages in progress gets the others at once.
func TestQueue_Working(t *testing.T) {
	bubble(t, func(f *fixture) {
		f.register("s1")
		f.publish()
		working, lost := f.delivered(), f.publish()
		_ = f.delivered()
		f.reopen()
		checktest.Code(f, f.Working(f.Context(), project, "dpl_none", "s1", nil), cay.NotFound)
		checktest.OK(f, f.Working(f.Context(), project, "dpl_1", "s0", nil))
		f.nothing(30 * time.Second)
		begin := time.Now()
		checktest.OK(f, f.Working(f.Context(), project, "dpl_1", "s1", []string{working.Receipt, "nonsense"}))
		d := f.delivered()
		if d.ID != lost || time.Since(begin) > time.Millisecond {
			f.Errorf("%s after %s", d.ID, time.Since(begin))
		}
		// A running delivery is not repeated, whatever the app reports.
		checktest.OK(f, f.Working(f.Context(), project, "dpl_1", "s1", []string{working.Receipt}))
		f.nothing(30 * time.Second)
		f.acknowledge(d)
		checktest.OK(f, f.Acknowledge(f.Context(), project, working.Receipt))
		f.nothing(time.Hour)
	})
}

// Only the newest process can deregister an app.
func TestQueue_Deregister(t *testing.T) {
	bubble(t, func(f *fixture) {
		f.register("s1")
		f.register("s2")
		checktest.OK(f, f.Deregister(f.Context(), project, "dpl_1", "s1"))
		f.publish()
		f.acknowledge(f.delivered())
		checktest.OK(f, f.Deregister(f.Context(), project, "dpl_1", "s2"))
		f.publish()
		f.nothing(time.Hour)
		if p := f.pending(); !strings.Contains(p[0].LastError, "no app has registered") {
			f.Errorf("%+v", p)
		}
		checktest.Code(f, f.Deregister(f.Context(), project, "dpl_none", ""), cay.NotFound)
		f.register("s3")
		f.acknowledge(f.delivered())
	})
}

func TestQueue_Latest(t *testing.T) {
	bubble(t, func(f *fixture) {
		latest := func(want string) {
			f.Helper()
			if d := checktest.Must(f.Latest(f.Context(), project))(f); d.ID != want {
				f.Errorf("the latest is %s, want %s", d.ID, want)
			}
		}
		f.publish() // this creates a deployment that never registered
		f.register("s", func(d *queue.Deployment) { d.ID = "dpl_old" })
		time.Sleep(time.Second)
		f.register("s", func(d *queue.Deployment) { d.ID = "dpl_new" })
		time.Sleep(time.Second)
		f.register("s2", func(d *queue.Deployment) { d.ID = "dpl_old" })
		latest("dpl_new")
		d := checktest.Must(f.Drain(f.Context(), project, "dpl_new", true))(f)
		if !d.Draining || d.URL == "" {
			f.Errorf("%+v", d)
		}
		latest("dpl_old")
		checktest.Must(f.Drain(f.Context(), project, "dpl_new", false))(f)
		latest("dpl_new")
		checktest.OK(f, f.Deregister(f.Context(), project, "dpl_new", ""))
		latest("dpl_old")
		all := checktest.Must(f.Deployments(f.Context(), project))(f)
		if len(all) != 3 || all[0].ID != "dpl_new" || all[2].ID != "dpl_1" || all[2].CreatedAt != 0 {
			f.Errorf("%+v", all)
		}
	})
}

// An unused deployment is deleted after a month.
func TestQueue_Sweep(t *testing.T) {
	bubble(t, func(f *fixture) {
		f.register("s1")
		f.register("s1", func(d *queue.Deployment) { d.ID = "dpl_2" })
		f.publish(func(m *queue.Message) {
			m.Deployment = "dpl_2"
			m.Due = time.Now().Add(40 * 24 * time.Hour).UnixMilli()
		})
		time.Sleep(29 * 24 * time.Hour)
		if all := checktest.Must(f.Deployments(f.Context(), ""))(f); len(all) != 2 {
			f.Errorf("%+v", all)
		}
		time.Sleep(3 * 24 * time.Hour)
		if all := checktest.Must(f.Deployments(f.Context(), ""))(f); len(all) != 1 || all[0].ID != "dpl_2" {
			f.Errorf("%+v", all)
		}
		f.publish()
		f.register("s1")
		f.acknowledge(f.delivered())
	})
}

// Processes that connect share one address and one secret: a new process takes no
// messages from the others.
func TestQueue_Pulled(t *testing.T) {
	bubble(t, func(f *fixture) {
		pulled := func(d *queue.Deployment) { d.URL = queue.Pulled }
		f.register("s1", pulled)
		f.publish()
		d := f.delivered()
		if d.to.URL != queue.Pulled {
			f.Errorf("it is delivered to %q", d.to.URL)
		}
		f.register("s1", pulled)
		f.nothing(time.Minute)
		f.acknowledge(d)
		d.end <- nil
		// An app with an address takes over the messages that no process works on.
		f.register("s2")
		f.publish()
		if d := f.delivered(); d.to.URL == queue.Pulled {
			f.Errorf("it is delivered to %q", d.to.URL)
		}
	})
}
