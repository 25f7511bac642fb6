package workflowd_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/workflow"
)

// wireCutter is a proxy that cuts the connections between clients and a server.
type wireCutter struct {
	l  net.Listener
	to string

	mu    sync.Mutex // guards the fields below
	conns map[net.Conn]bool
	done  sync.WaitGroup
}

// cutter returns a cutter in front of a server that can be reached at to.
func cutter(t *testing.T, to string) *wireCutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &wireCutter{l: l, to: to, conns: make(map[net.Conn]bool)}
	c.done.Go(c.serve)
	t.Cleanup(func() {
		l.Close()
		c.cut()
		c.done.Wait()
	})
	return c
}

func (c *wireCutter) serve() {
	for {
		in, err := c.l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", c.to)
		if err != nil {
			in.Close()
			continue
		}
		c.mu.Lock()
		c.conns[in], c.conns[out] = true, true
		c.mu.Unlock()
		for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
			c.done.Go(func() {
				io.Copy(way[0], way[1])
				way[0].Close()
				way[1].Close()
				c.mu.Lock()
				defer c.mu.Unlock()
				delete(c.conns, way[1])
			})
		}
	}
}

// cut breaks all connections, as a reset does.
func (c *wireCutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.conns {
		conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	}
}

func (c *wireCutter) dial(t *testing.T) workflow.Backend {
	t.Helper()
	tr := &http.Transport{}
	b, err := workflow.Dial(workflow.RemoteOptions{URL: "http://" + c.l.Addr().String(), Token: "prj_a", HTTPClient: &http.Client{Transport: tr}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.CloseIdleConnections)
	return b
}

// Runs, their results, and followed logs and streams are the same when the network breaks
// again and again.
func TestRemote_BrokenConnections(t *testing.T) {
	t.Parallel()
	s := serve(t)
	wire := cutter(t, s.server.Listener.Addr().String())
	c := workflow.NewClient(wire.dial(t), workflow.ClientOptions{})
	const steps = 60
	slow := workflow.Define("slow", func(ctx workflow.Context, n int) (int, error) {
		sum := 0
		for range n {
			v, err := workflow.Do(ctx, "add", func(ctx context.Context) (int, error) {
				out := workflow.Stream[string](ctx, "steps")
				// The stream may get a chunk twice: steps run at least once.
				return 1, out.Send(workflow.StepInfo(ctx).StepID)
			}, workflow.MaxRetries(50), workflow.RetryPolicy{Initial: time.Millisecond})
			if err != nil {
				return 0, err
			}
			sum += v
			if err := workflow.Sleep(ctx, 2*time.Millisecond); err != nil {
				return 0, err
			}
		}
		return sum, nil
	})
	w := workflow.NewWorker(c, workflow.WorkerConfig{Definitions: workflow.Definitions(slow), Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer w.Stop()

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var runs []*workflow.Run[int]
	for i := range 3 {
		run, err := slow.Start(ctx, c, steps, workflow.Key(fmt.Sprint("k", i)))
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, run)
	}
	stop, reached := make(chan struct{}), make(chan struct{}, 2*len(runs))
	var cutting sync.WaitGroup
	cutting.Go(func() {
		for range cap(reached) { // a failed first connect is not retried
			select {
			case <-reached:
			case <-stop:
				return
			}
		}
		for range 15 {
			select {
			case <-time.After(time.Duration(5+rand.IntN(25)) * time.Millisecond):
				wire.cut()
			case <-stop:
				return
			}
		}
	})
	var reading sync.WaitGroup
	last := make([]int64, len(runs)) // slots
	for i, run := range runs {
		reading.Go(func() {
			slot := int64(0)
			for e, err := range c.Follow(ctx, run.ID, 1) {
				if err != nil {
					t.Errorf("follow after slot %d: %v", slot, err)
					return
				}
				if slot++; e.Slot != slot {
					t.Errorf("slot %d after %d", e.Slot, slot-1)
				}
				if slot == 1 {
					reached <- struct{}{}
				}
			}
			last[i] = slot
		})
		reading.Go(func() {
			index := int64(0)
			for chunk, err := range c.ReadChunks(ctx, run.ID, "steps", 0) {
				if err != nil {
					t.Errorf("read after chunk %d: %v", index, err)
					return
				}
				if chunk.Index != index {
					t.Errorf("chunk %d after %d", chunk.Index, index-1)
				}
				if index++; index == 1 {
					reached <- struct{}{}
				}
			}
			if index < steps {
				t.Errorf("only %d chunks", index)
			}
		})
	}
	for _, run := range runs {
		n, err := run.Result(ctx)
		for cay.CodeOf(err) == cay.Unavailable && ctx.Err() == nil { // the first connect failed
			n, err = run.Result(ctx)
		}
		if err != nil || n != steps {
			t.Errorf("run %s: %d, %v", run.ID, n, err)
		}
	}
	close(stop)
	cutting.Wait()
	reading.Wait()
	for i, run := range runs {
		if info, err := run.Info(ctx); err != nil || info.Events != last[i] {
			t.Errorf("the last slot is %d of %+v, %v", last[i], info, err)
		}
	}
}

// A daemon that stops and starts again goes on with its workers.
func TestRemote_Restart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "workflows.db")
	front := checktest.NewFront(t)
	begin := func() (end func()) {
		e := open(t, path, workflowd.Config{})
		mux := api.NewMux(tokens{})
		routes := workflowd.NewRoutes(mux, e, tokens{})
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		front.Lead(l.Addr().String())
		server := &http.Server{Handler: api.Log(slog.New(slog.DiscardHandler), mux)}
		served := make(chan error, 1)
		go func() { served <- server.Serve(l) }()
		return func() {
			server.Close()
			routes.Close()
			<-served
			front.Lead("")
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	end := begin()
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	c, err := workflow.Connect(workflow.RemoteOptions{URL: "http://" + front.Addr, Token: "prj_a", HTTPClient: &http.Client{Transport: tr}})
	if err != nil {
		t.Fatal(err)
	}
	wait := workflow.Define("wait", func(ctx workflow.Context, token string) (string, error) {
		hook, err := workflow.NewHook[string](ctx, token)
		if err != nil {
			return "", err
		}
		return hook.Receive(ctx)
	})
	w := workflow.NewWorker(c, workflow.WorkerConfig{Definitions: workflow.Definitions(wait), Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	run, err := wait.Start(ctx, c, "go")
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range c.Follow(ctx, run.ID, 3) {
		if err != nil || e.Token != "go" {
			t.Fatalf("%+v, %v", e, err)
		}
		break
	}
	result := make(chan error, 1)
	go func() {
		out, err := run.Result(ctx)
		for cay.CodeOf(err) == cay.Unavailable && ctx.Err() == nil { // the daemon was down at first
			out, err = run.Result(ctx)
		}
		if err == nil && out != "there" {
			err = fmt.Errorf("the result is %q", out)
		}
		result <- err
	}()
	end()
	end = begin()
	defer func() { end() }()
	if err := workflow.ResumeHook(ctx, c, "go", "there"); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// eager is a backend that has a run for each worker before the worker knows that
// it is attached.
type eager struct{ workflow.Backend }

func (e eager) For(string) workflow.Backend { return e }

func (e eager) Attach(ctx context.Context, w workflow.WorkerInfo, r workflow.Runner) (workflow.Session, error) {
	if w.Name == "" {
		return nil, cay.Errorf(cay.Invalid, "a worker without a name")
	}
	r.Assign(workflow.Assignment{Run: workflow.RunInfo{ID: "early"}, Lease: 1})
	r.Revoke("early", 1)
	return e.Backend.Attach(ctx, w, r)
}

// heard is a Runner that records its calls.
type heard chan string

func (h heard) Assign(a workflow.Assignment)                     { h <- "assign " + a.Run.ID }
func (h heard) Deliver(run string, _ uint64, _ []workflow.Event) { h <- "deliver " + run }
func (h heard) Revoke(run string, _ uint64)                      { h <- "revoke " + run }

func TestRemote_Attach(t *testing.T) {
	t.Parallel()
	mux := api.NewMux(tokens{})
	routes := workflowd.NewRoutes(mux, eager{open(t, filepath.Join(t.TempDir(), "workflows.db"), workflowd.Config{}).For("")}, tokens{})
	server := httptest.NewServer(mux)
	defer server.Close()
	b, err := workflow.Dial(workflow.RemoteOptions{URL: server.URL, Token: "prj_a"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Attach(t.Context(), workflow.WorkerInfo{}, make(heard)); cay.CodeOf(err) != cay.Invalid || err.Error() != "a worker without a name" {
		t.Errorf("a refused worker: %v", err)
	}
	h := make(heard, 10)
	s, err := b.Attach(t.Context(), workflow.WorkerInfo{Name: "w", Definitions: []workflow.DefinitionInfo{{Name: "d"}}}, h)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"assign early", "revoke early"} {
		if got := <-h; got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
	}
	routes.Close() // ends it, and waits
	<-s.Lost()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := b.Attach(t.Context(), workflow.WorkerInfo{Name: "w", Definitions: []workflow.DefinitionInfo{{Name: "d"}}}, h); cay.CodeOf(err) != cay.Unavailable {
		t.Errorf("a daemon that stops: %v", err)
	}
}

// A step that is running whenever the connection of its worker breaks does not make its
// run a suspect, because the worker reconnects.
func TestRemote_LostConnectionIsNoDeath(t *testing.T) {
	t.Parallel()
	e := open(t, filepath.Join(t.TempDir(), "workflows.db"), workflowd.Config{})
	wire := cutter(t, serveEngine(t, e).server.Listener.Addr().String())
	c := workflow.NewClient(wire.dial(t), workflow.ClientOptions{})
	const cuts = 2 * history.SuspectAfter
	began := make(chan int)
	long := workflow.Define("long", func(ctx workflow.Context, _ string) (int, error) {
		return workflow.Do(ctx, "long", func(ctx context.Context) (int, error) {
			n := workflow.StepInfo(ctx).Attempt
			select {
			case began <- n:
			case <-ctx.Done():
				return 0, context.Cause(ctx)
			}
			if n > cuts {
				return n, nil
			}
			<-ctx.Done()
			return 0, context.Cause(ctx)
		})
	})
	w := workflow.NewWorker(c, workflow.WorkerConfig{Definitions: workflow.Definitions(long), Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	run, err := long.Start(ctx, c, "")
	if err != nil {
		t.Fatal(err)
	}
	for {
		var n int
		select {
		case n = <-began:
		case <-ctx.Done():
			t.Fatal("the step is not tried again")
		}
		if info, err := e.For("prj_a").GetRun(ctx, run.ID); err != nil || info.Recoveries != 0 {
			t.Errorf("attempt %d: %+v, %v", n, info, err)
		}
		if n > cuts {
			break
		}
		wire.cut()
	}
	if n, err := run.Result(ctx); err != nil || n != cuts+1 {
		t.Errorf("%d, %v", n, err)
	}
}
