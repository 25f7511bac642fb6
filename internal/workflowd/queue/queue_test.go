package queue_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/workflowd/queue"
	"github.com/cayhq/cay/internal/workflowd/sqlstore"
)

// app is a Pusher: pushed messages come out of got, and each push ends as the test
// decides.
type app struct {
	got chan *delivery

	mu    sync.Mutex // guards the fields below
	down  error      // error of pushes while no app answers
	n     int        // number of pushes
	other string     // an address at which another program answers
	gone  string     // an address at which nothing answers
}

type delivery struct {
	queue.Message
	to  queue.Deployment
	end chan error // the result of Push
}

func newApp() *app { return &app{got: make(chan *delivery, 1000)} }

func (a *app) Push(ctx context.Context, to queue.Deployment, m queue.Message) error {
	a.mu.Lock()
	a.n++
	down := a.down
	if to.URL == a.gone {
		down = errRefused
	}
	a.mu.Unlock()
	if down != nil {
		return down
	}
	d := &delivery{m, to, make(chan error, 1)}
	a.got <- d
	select {
	case err := <-d.end:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", queue.ErrBroken, ctx.Err())
	}
}

// Check implements queue.Pusher.
func (a *app) Check(_ context.Context, d queue.Deployment) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if d.URL == a.other {
		return fmt.Errorf("no app answers at %s", d.URL)
	}
	return nil
}

// leave lets nothing answer at an address from now on.
func (a *app) leave(address string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone = address
}

func (a *app) setDown(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.down = err
}

func (a *app) pushes() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.n
}

// fixture is a queue on a database, and the app that it delivers to.
type fixture struct {
	*testing.T
	*queue.Queue
	app    *app
	path   string
	config queue.Config
	store  *sqlstore.SQLite
	wrap   func(queue.Store) queue.Store // nil: the store as it is
}

// bubble runs a test in simulated time.
func bubble(t *testing.T, test func(f *fixture), change ...func(*queue.Config)) {
	path := filepath.Join(t.TempDir(), "workflows.db")
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{T: t, app: newApp(), path: path}
		for _, c := range change {
			c(&f.config)
		}
		f.open()
		defer f.close()
		test(f)
	})
}

func (f *fixture) open() {
	f.Helper()
	f.store = checktest.Must(sqlstore.OpenSQLite(f.Context(), f.path, sqlstore.SQLiteOptions{}))(f)
	f.config.Store, f.config.Pusher = f.store.Queue(), f.app
	if f.wrap != nil {
		f.config.Store = f.wrap(f.config.Store)
	}
	f.Queue = checktest.Must(queue.Open(f.Context(), f.config))(f)
}

func (f *fixture) close() {
	f.Helper()
	checktest.OK(f, f.Close())
	checktest.OK(f, f.store.Close())
}

func (f *fixture) reopen() {
	f.Helper()
	f.close()
	f.open()
}

const project = "p"

func (f *fixture) publish(change ...func(*queue.Message)) string {
	f.Helper()
	m := queue.Message{Project: project, Deployment: "dpl_1", Topic: "__wkf_workflow_order", Run: "wrun_1", ContentType: "application/cbor", Body: []byte("body")}
	for _, c := range change {
		c(&m)
	}
	return checktest.Must(f.Publish(f.Context(), m))(f)
}

func (f *fixture) register(secret string, change ...func(*queue.Deployment)) queue.Deployment {
	f.Helper()
	d := queue.Deployment{Project: project, ID: "dpl_1", URL: "http://127.0.0.1:3000", Secret: secret}
	for _, c := range change {
		c(&d)
	}
	return checktest.Must(f.Register(f.Context(), d))(f)
}

// delivered waits for the next delivery, for an hour at most.
func (f *fixture) delivered() *delivery {
	f.Helper()
	select {
	case d := <-f.app.got:
		return d
	case <-time.After(time.Hour):
		f.Fatal("nothing was delivered")
		return nil
	}
}

// nothing fails if a message is delivered within a time.
func (f *fixture) nothing(within time.Duration) {
	f.Helper()
	select {
	case d := <-f.app.got:
		f.Fatalf("%s was delivered, attempt %d", d.ID, d.Attempt)
	case <-time.After(within):
	}
}

func (f *fixture) acknowledge(d *delivery) {
	f.Helper()
	checktest.OK(f, f.Acknowledge(f.Context(), project, d.Receipt))
	d.end <- nil
}

func (f *fixture) pending() []queue.Message {
	f.Helper()
	return checktest.Must(f.Messages(f.Context(), project, "", 0))(f)
}

func TestQueue_Deliver(t *testing.T) {
	bubble(t, func(f *fixture) {
		f.register("s1")
		id := f.publish(func(m *queue.Message) { m.Step = "step_1" })
		d := f.delivered()
		if d.ID != id || string(d.Body) != "body" || d.Attempt != 1 || d.Topic != "__wkf_workflow_order" || d.Run != "wrun_1" ||
			d.Step != "step_1" || d.ContentType != "application/cbor" || d.to.Secret != "s1" || d.to.URL != "http://127.0.0.1:3000" ||
			d.LeaseUntil != time.Now().Add(300*time.Second).UnixMilli() || d.CreatedAt != time.Now().UnixMilli() {
			f.Errorf("%+v", d)
		}
		checktest.Code(f, f.Acknowledge(f.Context(), "other", d.Receipt), cay.NotFound)
		checktest.Code(f, f.Acknowledge(f.Context(), project, d.ID+"-guessed"), cay.NotFound)
		f.acknowledge(d)
		checktest.Code(f, f.Extend(f.Context(), project, d.Receipt, time.Second), cay.NotFound)
		f.nothing(24 * time.Hour)
		if p := f.pending(); len(p) != 0 {
			f.Errorf("%+v", p)
		}
		checktest.Code(f, f.Acknowledge(f.Context(), project, d.Receipt), cay.NotFound)
	})
}

// A message that is due tomorrow costs nothing until then.
func TestQueue_Sleep(t *testing.T) {
	bubble(t, func(f *fixture) {
		f.register("s1")
		begin := time.Now()
		f.publish(func(m *queue.Message) { m.Due = begin.Add(24 * time.Hour).UnixMilli() })
		f.nothing(24*time.Hour - time.Millisecond)
		d := f.delivered()
		if late := time.Since(begin) - 24*time.Hour; late < 0 || late > time.Millisecond {
			f.Errorf("it was %s late", late)
		}
		if n := f.app.pushes(); n != 1 {
			f.Errorf("%d pushes", n)
		}
		f.acknowledge(d)
	})
}

func TestQueue_Again(t *testing.T) {
	for name, c := range map[string]struct {
		do       func(f *fixture, d *delivery) // the push ends when it returns
		min, max time.Duration
	}{
		"Failed":   {func(f *fixture, d *delivery) { d.end <- fmt.Errorf("the app answered 500") }, 750 * time.Millisecond, 1250 * time.Millisecond},
		"Broken":   {func(f *fixture, d *delivery) { d.end <- queue.ErrBroken }, 750 * time.Millisecond, 1250 * time.Millisecond},
		"Gone":     {func(f *fixture, d *delivery) { d.end <- queue.ErrGone }, 0, 0},
		"Answered": {func(f *fixture, d *delivery) { d.end <- nil }, 750 * time.Millisecond, 1250 * time.Millisecond},
		"Retry": {func(f *fixture, d *delivery) {
			checktest.OK(f, f.Extend(f.Context(), project, d.Receipt, 17*time.Second))
			d.end <- nil
		}, 17 * time.Second, 17 * time.Second},
		"RetryNow": {func(f *fixture, d *delivery) {
			checktest.OK(f, f.Extend(f.Context(), project, d.Receipt, 0))
			d.end <- nil
		}, 0, 0},
		// An extension that was sent before the retry and arrives after it has no effect.
		"Overtaken": {func(f *fixture, d *delivery) {
			checktest.OK(f, f.Extend(f.Context(), project, d.Receipt, 17*time.Second))
			checktest.OK(f, f.Extend(f.Context(), project, d.Receipt, 300*time.Second))
			d.end <- nil
		}, 17 * time.Second, 17 * time.Second},
		"Silent": {func(f *fixture, d *delivery) {}, 300 * time.Second, 300 * time.Second},
		"Extended": {func(f *fixture, d *delivery) {
			for range 10 {
				f.nothing(time.Minute)
				checktest.OK(f, f.Extend(f.Context(), project, d.Receipt, 300*time.Second))
			}
		}, 900 * time.Second, 900 * time.Second},
		"ExtendedThenFailed": {func(f *fixture, d *delivery) {
			checktest.OK(f, f.Extend(f.Context(), project, d.Receipt, 300*time.Second))
			d.end <- fmt.Errorf("the app answered 500")
		}, 750 * time.Millisecond, 1250 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(f *fixture) {
				f.register("s1")
				f.publish()
				d := f.delivered()
				begin := time.Now()
				c.do(f, d)
				again := f.delivered()
				if took := time.Since(begin); took < c.min || took > c.max+time.Millisecond {
					f.Errorf("it was delivered again after %s", took)
				}
				if again.ID != d.ID || again.Attempt != 2 || again.Receipt == d.Receipt || string(again.Body) != "body" {
					f.Errorf("%+v after %+v", again.Message, d.Message)
				}
				checktest.Code(f, f.Acknowledge(f.Context(), project, d.Receipt), cay.NotFound)
				f.acknowledge(again)
				f.nothing(time.Hour)
			})
		})
	}
}
