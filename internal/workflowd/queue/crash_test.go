package queue_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/internal/seedtest"
	"github.com/cayhq/cay/internal/workflowd/queue"
	"github.com/cayhq/cay/internal/workflowd/sqlstore"
)

// childEnv makes this test program a process that can be killed.
const childEnv = "CAY_QUEUE_CHILD"

func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		if err := beChild(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leaktest.Main(m)
}

// order tells a child the database, and the write before or after which the child kills
// itself; 0 for none.
type order struct {
	Path  string `json:"path"`
	At    int64  `json:"at,omitempty"`
	After bool   `json:"after,omitempty"`
}

// crashMessages is how many messages a child publishes, each with a key.
const crashMessages = 12

// bomb is a Store that kills its process.
type bomb struct {
	queue.Store
	order
	writes atomic.Int64
}

func (b *bomb) Write(ctx context.Context, batch *queue.Batch) error {
	if b.writes.Add(1) != b.At {
		return b.Store.Write(ctx, batch)
	}
	if b.After {
		if err := b.Store.Write(ctx, batch); err != nil {
			return err
		}
	}
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way
}

// worker is an app that acknowledges, fails or postpones messages, depending on their
// keys, and prints each outcome.
type worker struct {
	q     *queue.Queue
	acked chan struct{} // signalled after each acknowledgement
	mu    sync.Mutex    // guards the output
}

func (w *worker) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Printf(format+"\n", args...)
}

func (w *worker) Check(context.Context, queue.Deployment) error { return nil }

func (w *worker) Push(ctx context.Context, to queue.Deployment, m queue.Message) error {
	w.say("delivered %s %s %d", m.Key, m.ID, m.Attempt)
	switch {
	case m.Key == "k1" && m.Attempt == 1:
		return w.q.Extend(ctx, project, m.Receipt, 10*time.Millisecond)
	case m.Key == "k2" && m.Attempt == 1:
		return fmt.Errorf("the app answered 500")
	}
	if err := w.q.Acknowledge(ctx, project, m.Receipt); err != nil {
		return err
	}
	w.say("acknowledged %s %s", m.Key, m.ID)
	w.acked <- struct{}{}
	return nil
}

func beChild(text string) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := sqlstore.OpenSQLite(ctx, o.Path, sqlstore.SQLiteOptions{})
	if err != nil {
		return err
	}
	defer s.Close()
	q, err := queue.Open(ctx, queue.Config{Store: &bomb{Store: s.Queue(), order: o}})
	if err != nil {
		return err
	}
	defer q.Close()
	w := &worker{q: q, acked: make(chan struct{}, 2*crashMessages)}
	q.SetPusher(w)
	if _, err := q.Register(ctx, queue.Deployment{Project: project, ID: "d", URL: "http://127.0.0.1:1", Secret: fmt.Sprint(os.Getpid())}); err != nil {
		return err
	}
	var all sync.WaitGroup
	errs := make(chan error, crashMessages)
	for i := range crashMessages {
		all.Go(func() {
			m := queue.Message{Project: project, Deployment: "d", Topic: "t", Run: fmt.Sprint("wrun_", i%3), Key: fmt.Sprint("k", i), Body: []byte("x")}
			id, err := q.Publish(ctx, m)
			w.say("published %s %s", m.Key, id)
			errs <- err
		})
	}
	all.Wait()
	for range crashMessages {
		if err := <-errs; err != nil {
			return err
		}
	}
	for {
		pending, err := q.Messages(ctx, project, "", 0)
		if err != nil || len(pending) == 0 {
			return err
		}
		select {
		case <-w.acked:
		case <-ctx.Done():
			return fmt.Errorf("%d messages are pending: %+v", len(pending), pending)
		}
	}
}

// child runs a process to its end, and returns its output; killed means that it killed
// itself.
func child(t *testing.T, o order) (said []string, killed bool) {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out, stderr bytes.Buffer
	c := exec.Command(self)
	c.Env = append(os.Environ(), childEnv+"="+string(text))
	c.Stdout, c.Stderr = &out, &stderr
	err = c.Run()
	status, _ := c.ProcessState.Sys().(syscall.WaitStatus)
	killed = status.Signaled() && status.Signal() == syscall.SIGKILL
	if err != nil && !killed {
		t.Fatalf("%v: %s", err, &stderr)
	}
	for line := range strings.Lines(out.String()) {
		said = append(said, strings.TrimSpace(line))
	}
	return said, killed
}

// A process is killed before or after any of its writes: the next process delivers
// published messages, but not acknowledged ones.
func TestCrash(t *testing.T) {
	checktest.Long(t)
	rounds := seedtest.Rounds(t, 8)
	kills := 0
	for round := range rounds {
		o := order{Path: filepath.Join(t.TempDir(), "workflows.db"), At: int64(2 + round), After: round%2 == 1}
		said, killed := child(t, o)
		if killed {
			kills++
			o.At = 0
			more, killed := child(t, o)
			if killed {
				t.Fatal("the second process was killed")
			}
			said = append(said, more...)
		}
		checkCrash(t, o, said)
	}
	if kills == 0 {
		t.Error("no process was killed")
	}
}

func checkCrash(t *testing.T, o order, said []string) {
	t.Helper()
	ids, delivered, done := map[string]string{}, map[string]bool{}, map[string]bool{}
	for _, line := range said {
		f := strings.Fields(line)
		if len(f) < 3 {
			t.Fatalf("a process said %q", line)
		}
		key, id := f[1], f[2]
		if was, ok := ids[key]; ok && was != id {
			t.Errorf("%+v: %s is message %s and %s", o, key, was, id)
		}
		ids[key] = id
		switch f[0] {
		case "delivered":
			delivered[id] = true
			if done[id] {
				t.Errorf("%+v: %s was delivered after it was acknowledged", o, key)
			}
		case "acknowledged":
			done[id] = true
		}
	}
	for key, id := range ids {
		if !delivered[id] {
			t.Errorf("%+v: %s was published and not delivered", o, key)
		}
	}
	if len(ids) != crashMessages {
		t.Errorf("%+v: %d messages", o, len(ids))
	}
	if t.Failed() {
		t.Logf("%s", strings.Join(said, "\n"))
	}
}
