package route_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// The answer of a long wait begins early, and its failure is still an error.
func TestClient_WaitLong(t *testing.T) {
	t.Parallel()
	for _, want := range []*cay.Error{nil, cay.Errorf(cay.Stopped, "it stopped")} {
		c, rec, srv := dialRecorder(t)
		release := make(chan struct{})
		rec.wait = func(ctx context.Context) error {
			<-release
			if want == nil {
				return nil
			}
			return want
		}
		conn, err := net.Dial("tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		done := make(chan error, 1)
		go func() {
			_, err := c.Wait(t.Context(), "s", "c")
			done <- err
		}()
		// The same without the client: the status comes before the answer.
		fmt.Fprintf(conn, "GET /v1/sandboxes/s/commands/c/wait HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer admin\r\n\r\n")
		line := make([]byte, 15)
		if _, err := io.ReadFull(conn, line); err != nil || string(line) != "HTTP/1.1 200 OK" {
			t.Fatalf("%q, %v", line, err)
		}
		close(release)
		err = <-done
		if want == nil && err != nil || want != nil && !errors.Is(err, want) {
			t.Errorf("error is %v, want %v", err, want)
		}
	}
}

// A client that leaves ends the service's call, at any point.
func TestRoutes_ClientLeaves(t *testing.T) {
	t.Parallel()
	c, rec, _ := dialRecorder(t)
	ended := make(chan struct{}, 16)
	watch := func(ctx context.Context) { context.AfterFunc(ctx, func() { ended <- struct{}{} }) }
	hang := func(ctx context.Context) (sandbox.Output, error) {
		watch(ctx)
		s := newEvents(ctx, someEvents()[:2]...)
		s.hang = true
		return s, nil
	}
	rec.output = hang
	out, err := c.Exec(t.Context(), "s", sandbox.CommandParams{Argv: []string{"a"}})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := out.Next(); err != nil {
			t.Fatal(err)
		}
	}
	unblocked := make(chan error, 1)
	go func() {
		_, err := out.Next()
		unblocked <- err
	}()
	out.Close()
	if err := <-unblocked; cay.CodeOf(err) != cay.Canceled {
		t.Errorf("Next after Close: %v", err)
	}
	<-ended

	begun := make(chan struct{}, 16)
	rec.wait = func(ctx context.Context) error {
		watch(ctx)
		begun <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	for limit := 50 * time.Millisecond; limit < time.Minute; limit *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		_, err = c.Wait(ctx, "s", "c")
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || cay.CodeOf(err) != cay.DeadlineExceeded {
			t.Errorf("Wait with a deadline: %v", err)
		}
		select {
		case <-begun:
			<-ended
			return
		default: // a slow machine: it did not get to the service in time
		}
	}
	t.Error("no call got to the service")
}

// A stream whose connection breaks continues from its cursor.
func TestClient_OutputReattaches(t *testing.T) {
	t.Parallel()
	_, rec, srv := dialRecorder(t)
	proxy := newBreakingProxy(t, srv.Listener.Addr().String())
	c := dialWire(t, "http://"+proxy.addr, nil)

	const chunk, chunks = 1000, 40
	text := make([]byte, chunk*chunks)
	for i := range text {
		text[i] = "abcdefghij"[i/7%10]
	}
	next := make(chan struct{}) // releases another chunk
	rec.output = func(ctx context.Context) (sandbox.Output, error) {
		rec.mu.Lock()
		last := rec.calls[len(rec.calls)-1]
		rec.mu.Unlock()
		var from int64
		if last.Method == "Output" {
			from = last.Args[2].(sandbox.OutputParams).Cursor
		}
		return &steppedOutput{ctx: ctx, text: text, at: from, chunk: chunk, next: next, start: last.Method == "Exec"}, nil
	}
	out, err := c.Exec(t.Context(), "s", sandbox.CommandParams{Argv: []string{"a"}})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	// A stream that breaks before the client knows the command cannot be resumed.
	if e, err := out.Next(); err != nil || e.Command == nil {
		t.Fatalf("%+v, %v", e, err)
	}
	go func() {
		defer close(next)
		for i := range chunks {
			if i%10 == 5 {
				proxy.breakNext(t.Context()) // the last may not be noticed yet
			}
			select {
			case next <- struct{}{}:
			case <-t.Context().Done():
				return
			}
		}
	}()
	var got []byte
	for {
		e, err := out.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e.Data...)
	}
	if !bytes.Equal(got, text) {
		t.Errorf("got %d bytes, which are not the %d that were written", len(got), len(text))
	}
	if n := proxy.broken(); n < 4 {
		t.Errorf("the connection broke %d times only", n)
	}
}

// A client attached to a command does not wake the command's hibernated sandbox, and
// reads the rest of the output once something else has woken it.
func TestClient_HibernatedReattaches(t *testing.T) {
	t.Parallel()
	hibernated := cay.Errorf(cay.Unavailable, "the sandbox was hibernated")
	setup := func(t *testing.T) (c *sandbox.Client, rec *recorder, calls *atomic.Int32) {
		c, rec, _ = dialRecorder(t)
		calls = new(atomic.Int32) // calls that would wake the sandbox
		var looks atomic.Int32
		rec.status = func() sandbox.Status {
			if looks.Add(1) == 3 {
				return sandbox.Running
			}
			if n := calls.Load(); n != 1 {
				t.Errorf("it was called %d times while it was hibernated", n)
			}
			return sandbox.Hibernated
		}
		return c, rec, calls
	}
	t.Run("Output", func(t *testing.T) {
		t.Parallel()
		c, rec, calls := setup(t)
		events := someEvents()
		rec.output = func(ctx context.Context) (sandbox.Output, error) {
			if calls.Add(1) == 1 {
				return &failingOutput{events[:3], hibernated}, nil
			}
			return newEvents(ctx, events[3:]...), nil
		}
		out, err := c.Exec(t.Context(), "s", sandbox.CommandParams{Argv: []string{"a"}})
		got, err := collectAll(out, err)
		if err != nil || !reflect.DeepEqual(got, any(events)) {
			t.Errorf("got %+v, %v, want what was before and what is after", got, err)
		}
		want := wireCall{"Output", []any{"s", events[0].Command.ID, sandbox.OutputParams{Cursor: events[3].Cursor, Follow: true}}}
		if last := rec.last(t); !reflect.DeepEqual(last, want) {
			t.Errorf("it went on with %+v, want %+v", last, want)
		}
	})
	t.Run("Wait", func(t *testing.T) {
		t.Parallel()
		c, rec, calls := setup(t)
		rec.wait = func(context.Context) error {
			if calls.Add(1) == 1 {
				return hibernated
			}
			return nil
		}
		if cmd, err := c.Wait(t.Context(), "s", "c"); err != nil || cmd.Exit == nil {
			t.Errorf("%+v, %v, want an exit", cmd, err)
		}
	})
}

// After another unavailable error the client tries again a few times, then gives up.
func TestClient_OutputGivesUp(t *testing.T) {
	t.Parallel()
	c, rec, _ := dialRecorder(t)
	gone := cay.Errorf(cay.Unavailable, "its guest is gone")
	var calls atomic.Int32
	rec.output = func(context.Context) (sandbox.Output, error) {
		if calls.Add(1) == 1 {
			return &failingOutput{someEvents()[:2], gone}, nil
		}
		return &failingOutput{someEvents()[1:2], gone}, nil // which is no progress
	}
	out, err := c.Exec(t.Context(), "s", sandbox.CommandParams{Argv: []string{"a"}})
	_, err = collectAll(out, err)
	if cay.CodeOf(err) != cay.Unavailable || !strings.Contains(err.Error(), "its guest is gone") {
		t.Errorf("it ended with %v", err)
	}
	if n := calls.Load(); n != 6 {
		t.Errorf("it was tried %d times, want 6", n)
	}
}

// failingOutput gives events, and then its error.
type failingOutput struct {
	events []sandbox.Event
	err    error
}

func (o *failingOutput) Next() (sandbox.Event, error) {
	if len(o.events) == 0 {
		return sandbox.Event{}, o.err
	}
	e := o.events[0]
	o.events = o.events[1:]
	return e, nil
}

func (o *failingOutput) Close() error { return nil }

// steppedOutput gives one chunk of text for each value of next, the rest when
// it is closed.
type steppedOutput struct {
	ctx   context.Context
	text  []byte
	at    int64
	chunk int64
	next  chan struct{}
	start bool
	ended bool
}

func (o *steppedOutput) Next() (sandbox.Event, error) {
	if o.start {
		o.start = false
		return sandbox.Event{Command: someCommand()}, nil
	}
	if o.ended {
		return sandbox.Event{}, io.EOF
	}
	if o.at == int64(len(o.text)) {
		o.ended = true
		return sandbox.Event{Exit: exited().Exit}, nil
	}
	select {
	case <-o.next:
	case <-o.ctx.Done():
		return sandbox.Event{}, o.ctx.Err()
	}
	end := min(o.at+o.chunk, int64(len(o.text)))
	e := sandbox.Event{Stream: sandbox.Stdout, Cursor: o.at, Data: o.text[o.at:end]}
	o.at = end
	return e, nil
}

func (o *steppedOutput) Close() error { return nil }

// A client that reads nothing does not make the daemon's memory grow.
func TestRoutes_SlowReaderIsBounded(t *testing.T) {
	t.Parallel()
	_, rec, srv := dialRecorder(t)
	produced := make(chan int64, 1)
	rec.output = func(ctx context.Context) (sandbox.Output, error) {
		return &flood{ctx: ctx, produced: produced}, nil
	}
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).SetReadBuffer(64 << 10); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET /v1/sandboxes/s/commands/c/output?follow=true HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer admin\r\n\r\n")
	// The service stalls when all buffers on the way are full: the next chunk is then
	// requested only after the connection has broken.
	stalled := time.NewTimer(time.Second)
	var total int64
	for full := false; !full; {
		select {
		case total = <-produced:
			stalled.Reset(time.Second)
		case <-stalled.C:
			full = true
		}
	}
	conn.Close()
	if total > 32<<20 {
		t.Errorf("%d bytes were taken for a client that reads nothing", total)
	}
}

// flood is endless output that counts the bytes taken.
type flood struct {
	ctx      context.Context
	at       int64
	produced chan int64
}

func (f *flood) Next() (sandbox.Event, error) {
	select {
	case f.produced <- f.at:
	case <-f.ctx.Done():
		return sandbox.Event{}, f.ctx.Err()
	}
	e := sandbox.Event{Stream: sandbox.Stdout, Cursor: f.at, Data: bytes.Repeat([]byte("flood "), 5000)}
	f.at += int64(len(e.Data))
	return e, nil
}

func (f *flood) Close() error { return nil }
