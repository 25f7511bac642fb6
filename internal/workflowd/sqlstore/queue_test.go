package sqlstore_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db/pgtest"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/queue"
	"github.com/cayhq/cay/internal/workflowd/queue/queuetest"
	"github.com/cayhq/cay/internal/workflowd/sqlstore"
)

func TestSQLite_Queue(t *testing.T) {
	queuetest.Run(t, queuetest.Config{Open: func(t testing.TB) queue.Store {
		return openSQLite(t, sqlstore.SQLiteOptions{}).Queue()
	}})
}

func TestPostgres_Queue(t *testing.T) {
	queuetest.Run(t, queuetest.Config{Open: func(t testing.TB) queue.Store {
		return openPostgres(t, pgtest.DSN(t), sqlstore.PostgresOptions{Conns: 4}).Queue()
	}})
}

// queued is a store of runs that also has a store of messages.
type queued interface {
	workflowd.Store
	Queue() queue.Store
}

// Messages of a group are stored with the group, or not at all, and are deleted with
// their run.
func TestQueue_Records(t *testing.T) {
	for name, open := range map[string]func(t testing.TB) queued{
		"SQLite":   func(t testing.TB) queued { return openSQLite(t, sqlstore.SQLiteOptions{}) },
		"Postgres": func(t testing.TB) queued { return openPostgres(t, pgtest.DSN(t), sqlstore.PostgresOptions{Conns: 4}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			now := time.Now().UnixMilli()
			message := func(id, key string) queue.Message {
				return queue.Message{
					ID: "msg_" + id, Project: "p", Deployment: "d", Topic: "t", Run: "wrun_1", Key: key, Body: []byte("body"),
					CreatedAt: now, Due: now,
				}
			}
			pending := func(want ...string) {
				t.Helper()
				var got []string
				for _, m := range checktest.Must(s.Queue().Messages(t.Context(), "p", "", 0))(t) {
					got = append(got, m.ID)
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("pending %v, want %v", got, want)
				}
			}
			commit := func(r workflowd.Records) error {
				return s.Commit(t.Context(), &workflowd.Group{Settle: func() workflowd.Records { return r }})
			}
			run := history.Run{ID: "wrun_1", Project: "p", Workflow: "w", Status: history.Pending, CreatedAt: now, UpdatedAt: now, Events: 1}
			checktest.OK(t, commit(workflowd.Records{
				Logs:     []workflowd.Log{{Run: &run, Events: []history.Event{{Slot: 1, Type: history.RunCreated, At: now, Name: "w", Payload: []byte("json1")}}}},
				Messages: []queue.Message{message("1", "k"), message("2", "k")}, // the second has the first one's key
			}))
			pending("msg_1")
			// A group with messages only.
			checktest.OK(t, commit(workflowd.Records{Messages: []queue.Message{message("3", "")}}))
			pending("msg_1", "msg_3")
			// A refused group: its event does not follow the stored ones.
			bad := run
			bad.Events = 1
			err := commit(workflowd.Records{
				Logs:     []workflowd.Log{{Run: &bad, Events: []history.Event{{Slot: 1, Type: history.RunStarted, At: now}}}},
				Messages: []queue.Message{message("4", "")},
			})
			if err == nil {
				t.Fatal("an event was stored twice")
			}
			pending("msg_1", "msg_3")
			// In a step's transaction.
			run.Status, run.Events, run.CompletedAt = history.Completed, 2, now
			end := workflowd.Records{
				Logs:     []workflowd.Log{{Run: &run, Events: []history.Event{{Slot: 2, Type: history.RunCompleted, At: now, Payload: []byte("json2")}}}},
				Messages: []queue.Message{message("5", "")},
			}
			checktest.OK(t, s.Transact(t.Context(), &workflowd.Group{Settle: func() workflowd.Records { return end }}, func(workflowd.Tx) error { return nil }))
			pending("msg_1", "msg_3", "msg_5")
			checktest.OK(t, s.Delete(t.Context(), []string{"wrun_1"}))
			pending()
		})
	}
}

// peer is a process with a queue on a shared database.
type peer struct {
	store *sqlstore.Postgres
	*queue.Queue
	got chan queue.Message
}

// Push hands a message to the test, which acknowledges it.
func (p *peer) Check(context.Context, queue.Deployment) error { return nil }

func (p *peer) Push(ctx context.Context, to queue.Deployment, m queue.Message) error {
	p.got <- m
	<-ctx.Done()
	return fmt.Errorf("%w: %w", queue.ErrBroken, ctx.Err())
}

func newPeer(t *testing.T, dsn string, pushes bool) *peer {
	t.Helper()
	p := &peer{store: openPostgres(t, dsn, sqlstore.PostgresOptions{Conns: 4}), got: make(chan queue.Message, 1000)}
	c := queue.Config{Store: p.store.Queue(), Visibility: 2 * time.Second, InFlight: 100}
	if pushes {
		c.Pusher = p
	}
	p.Queue = checktest.Must(queue.Open(t.Context(), c))(t)
	t.Cleanup(func() { checktest.OK(t, p.Close()) })
	return p
}

func (p *peer) publish(t *testing.T) string {
	t.Helper()
	return checktest.Must(p.Publish(t.Context(), queue.Message{Project: "p", Deployment: "d", Topic: "t", Body: []byte("x")}))(t)
}

func (p *peer) delivered(t *testing.T) queue.Message {
	t.Helper()
	select {
	case m := <-p.got:
		return m
	case <-time.After(time.Minute):
		t.Fatal("nothing was delivered")
		return queue.Message{}
	}
}

// Each of two processes delivers the messages that it has leased; either accepts
// acknowledgements, and delivers the messages that the other has given up.
func TestPostgres_QueuePeers(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	a, b := newPeer(t, dsn, true), newPeer(t, dsn, true)
	checktest.Must(a.Register(t.Context(), queue.Deployment{Project: "p", ID: "d", URL: "http://a", Secret: "s1"}))(t)
	const n = 50
	want := map[string]bool{}
	for i := range n {
		p := []*peer{a, b}[i%2]
		want[p.publish(t)] = true
	}
	for range n {
		var m queue.Message
		by := a
		select {
		case m = <-a.got:
		case m = <-b.got:
			by = b
		case <-time.After(time.Minute):
			t.Fatalf("%d messages were not delivered", len(want))
		}
		if !want[m.ID] || m.Attempt != 1 {
			t.Errorf("%s was delivered, attempt %d", m.ID, m.Attempt)
		}
		delete(want, m.ID)
		other := a
		if by == a {
			other = b
		}
		checktest.OK(t, other.Acknowledge(t.Context(), "p", m.Receipt))
	}
}

// If a process cannot push, another delivers its messages, and the expired leases of an
// ended process are taken over.
func TestPostgres_QueueHandedOver(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	a := newPeer(t, dsn, true)
	b := newPeer(t, dsn, false)
	checktest.Must(b.Register(t.Context(), queue.Deployment{Project: "p", ID: "d", URL: "http://a", Secret: "s1"}))(t)
	id := b.publish(t)
	m := a.delivered(t)
	if m.ID != id || m.Attempt != 1 {
		t.Fatalf("%+v", m)
	}
	// The lease is extended through the other process.
	checktest.OK(t, b.Extend(t.Context(), "p", m.Receipt, 2*time.Second))
	b.SetPusher(b)
	checktest.OK(t, a.Close())
	again := b.delivered(t)
	if again.ID != id || again.Attempt != 2 {
		t.Fatalf("%+v", again)
	}
	checktest.OK(t, b.Acknowledge(t.Context(), "p", again.Receipt))
	checktest.Code(t, b.Acknowledge(t.Context(), "p", m.Receipt), cay.NotFound)
}

// A registration at one process voids the leases of another process, and ends its pushes.
func TestPostgres_QueueReplaced(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	a, b := newPeer(t, dsn, true), newPeer(t, dsn, false)
	checktest.Must(b.Register(t.Context(), queue.Deployment{Project: "p", ID: "d", URL: "http://a", Secret: "s1"}))(t)
	id := b.publish(t)
	a.delivered(t)
	checktest.Must(b.Register(t.Context(), queue.Deployment{Project: "p", ID: "d", URL: "http://a", Secret: "s2"}))(t)
	if m := a.delivered(t); m.ID != id || m.Attempt != 2 {
		t.Errorf("%+v", m)
	}
}

// BenchmarkQueue publishes, delivers and acknowledges messages of many runs.
func BenchmarkQueue(b *testing.B) {
	s := checktest.Must(sqlstore.OpenSQLite(b.Context(), filepath.Join(b.TempDir(), "workflows.db"), sqlstore.SQLiteOptions{}))(b)
	defer s.Close()
	for _, n := range []int{1, 20} {
		b.Run(fmt.Sprintf("publishers=%d", n), func(b *testing.B) {
			p := &acknowledger{done: make(chan struct{}, 1000)}
			q := checktest.Must(queue.Open(b.Context(), queue.Config{Store: s.Queue(), Pusher: p}))(b)
			defer q.Close()
			p.q = q
			checktest.Must(q.Register(b.Context(), queue.Deployment{Project: "p", ID: "d", URL: "http://a", Secret: "s"}))(b)
			room := make(chan struct{}, n)
			b.ResetTimer()
			go func() {
				for i := range b.N {
					room <- struct{}{}
					go func() {
						m := queue.Message{Project: "p", Deployment: "d", Topic: "t", Run: fmt.Sprint(i % 100), Key: fmt.Sprint(n, "/", b.N, "/", i), Body: make([]byte, 1000)}
						if _, err := q.Publish(context.Background(), m); err != nil {
							b.Error(err)
						}
					}()
				}
			}()
			for range b.N {
				<-p.done
				<-room
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}

type acknowledger struct {
	q    *queue.Queue
	done chan struct{}
}

func (a *acknowledger) Check(context.Context, queue.Deployment) error { return nil }

func (a *acknowledger) Push(ctx context.Context, to queue.Deployment, m queue.Message) error {
	err := a.q.Acknowledge(ctx, "p", m.Receipt)
	a.done <- struct{}{}
	return err
}
