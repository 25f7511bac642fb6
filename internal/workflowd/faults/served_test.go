package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/workflow"
)

// served is the job of a child process without programs of its own: it serves the engine
// of a site at a socket, or works for the engine there.
type served struct {
	Socket string `json:"socket"`
	Worker bool   `json:"worker,omitempty"`
}

// be serves, or works, until it is killed.
func (s served) be(ctx context.Context, at site) error {
	if s.Worker {
		n, err := s.work(ctx, at)
		if err != nil {
			return err
		}
		<-ctx.Done()
		return n.close()
	}
	e, err := at.engine(ctx, opening{})
	if err != nil {
		return err
	}
	socket, err := workflowd.ServeSocket(s.Socket, e, nil)
	if err != nil {
		return err
	}
	<-ctx.Done()
	if err := socket.Close(); err != nil {
		return err
	}
	return e.Close()
}

// work starts a worker for the engine at the socket, once an engine is served there for
// long enough.
func (s served) work(ctx context.Context, at site) (*session, error) {
	for {
		n, err := s.workNow(ctx, at)
		if code := cay.CodeOf(err); err == nil || code != cay.NotFound && code != cay.Unavailable {
			return n, err
		}
		if e := sleep(ctx, time.Millisecond); e != nil {
			return nil, err
		}
	}
}

func (s served) workNow(ctx context.Context, at site) (*session, error) {
	b, err := workflowd.DialSocket(ctx, s.Socket)
	if err != nil {
		return nil, err
	}
	w, err := openWorld(at.World)
	if err != nil {
		return nil, err
	}
	return workOn(ctx, workflow.NewClient(b, workflow.ClientOptions{}), w, nil)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestKill_Served kills the process with the engine, and one of two with workers, again
// and again while programs run. The surviving processes reconnect.
func TestKill_Served(t *testing.T) {
	t.Parallel()
	for _, database := range databases {
		t.Run(database, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(rounds(t, 1, 20)) {
				killServed(t, database, 6000+seed)
			}
		})
	}
}

func killServed(t *testing.T, database string, seed uint64) {
	// Transactional steps need a worker that has the database.
	programs := programsOf(seed, 20, doTx)
	o := order{Site: newSite(t, database)}
	s := served{Socket: filepath.Join(filepath.Dir(o.Site.World), "s")}
	daemon, worker := o, o
	daemon.Served, worker.Served = &s, &served{Socket: s.Socket, Worker: true}
	ctx, cancel := context.WithTimeout(t.Context(), childLife)
	defer cancel()

	var done sync.WaitGroup
	finished := make(chan struct{})
	keepKilling := func(o order, pcg uint64) {
		r := rand.New(rand.NewPCG(seed, pcg))
		kills := 0
		// Lives become longer, so that a slow machine finishes, too.
		for mean := 20 * time.Millisecond; ; mean += mean / 4 {
			c := child(t, o)
			life := time.NewTimer(time.Duration(r.ExpFloat64() * float64(mean)))
			select {
			case <-life.C:
			case <-finished:
			case <-c.exited:
			}
			life.Stop()
			c.Process.Kill()
			<-c.exited
			if c.ProcessState.Exited() {
				t.Errorf("seed %d: a process ended by itself: %v\n%s", seed, c.err, &c.stderr)
				return
			}
			select {
			case <-finished:
				t.Logf("seed %d: killed %d times", seed, kills)
				return
			default:
				kills++
			}
		}
	}
	done.Go(func() { keepKilling(daemon, 5) })
	done.Go(func() { keepKilling(worker, 6) })
	stop := sync.OnceFunc(func() { close(finished); done.Wait() })
	defer stop()

	n, err := s.work(ctx, o.Site)
	if err != nil {
		t.Fatal(err)
	}
	v, err := n.answers(ctx, programs)
	if e := n.close(); err == nil {
		err = e
	}
	stop()
	if err == nil {
		err = o.Site.check(programs, v)
	}
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
}

// answers is finishAnyway without rows, for the client of a daemon that is killed and
// restarted.
func (n *session) answers(ctx context.Context, programs []program) (verdict, error) {
	for {
		said, err := n.runAll(ctx, programs, false)
		if err == nil {
			return verdict{Said: said}, nil
		}
		if cay.CodeOf(err) != cay.Unavailable {
			return verdict{}, err
		}
		if sleep(ctx, 5*time.Millisecond) != nil {
			return verdict{}, fmt.Errorf("%w\n%s", err, n.unfinished())
		}
	}
}
