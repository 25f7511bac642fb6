package guest_test

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/sandbox"
)

// No call waits for ever for a guest that takes requests and does not answer.
func TestClient_noAnswer(t *testing.T) {
	for name, test := range map[string]struct {
		answer func(net.Conn) // after the request
		still  time.Duration  // it stands still for that long
		busy   float64        // the part of the time in which something waits for a CPU
		want   time.Duration  // until a call fails
	}{
		"silent":                                 {func(net.Conn) {}, 0, 0, 10 * time.Second},
		"silent, half of the time without a CPU": {func(net.Conn) {}, 0, 0.5, 35 * time.Second},
		"silent, without a CPU":                  {func(net.Conn) {}, 0, 1, 60 * time.Second},
		"silent, a clock that jumps":             {func(net.Conn) {}, 0, 100, 60 * time.Second},
		"silent, a counter that goes back":       {func(net.Conn) {}, 0, -1, 10 * time.Second},
		"slow": {func(c net.Conn) {
			for _, b := range []byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n") {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(7 * time.Second)
			}
		}, 0, 0, 60 * time.Second},
		"paused": {func(net.Conn) {}, time.Hour, 0, time.Hour + 10*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var guests sync.WaitGroup
				defer guests.Wait()
				c := guest.NewClient(func(context.Context) (net.Conn, error) {
					ours, theirs := net.Pipe()
					guests.Go(func() { io.Copy(io.Discard, theirs) })
					guests.Go(func() { test.answer(theirs) })
					return ours, nil
				}, "token")
				c.StandsStill = func() bool { return time.Since(began) < test.still }
				start := time.Now()
				c.CPUWait = func() time.Duration { return time.Duration(test.busy * float64(time.Since(start))) }
				defer c.CloseIdleConnections()
				for call, do := range map[string]func() error{
					"stat":  func() error { _, err := c.Stat(t.Context(), "/", false); return err },
					"start": func() error { _, err := c.Start(t.Context(), sandbox.CommandParams{Argv: []string{"x"}}); return err },
					"exec":  func() error { _, err := c.Exec(t.Context(), sandbox.CommandParams{Argv: []string{"x"}}); return err },
				} {
					began = time.Now()
					err := do()
					// Every 10 s the client checks whether the guest is still paused, or
					// has sent anything.
					if took := time.Since(began); cay.CodeOf(err) != cay.Unavailable || took < test.want || took > test.want+10*time.Second {
						t.Errorf("%s failed after %v, want %v: %v", call, took, test.want, err)
					}
				}
			})
		})
	}
}

// On a host whose CPUs are all busy, the client waits for a guest whose connections or
// answers are slow; a slow guest is not reported as unresponsive.
func TestClient_lateAnswer(t *testing.T) {
	for name, late := range map[string]struct{ dial, answer time.Duration }{
		"answer": {0, 50 * time.Second}, "connection": {50 * time.Second, 0}, "both": {25 * time.Second, 25 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var guests sync.WaitGroup
				defer guests.Wait()
				c := guest.NewClient(func(ctx context.Context) (net.Conn, error) {
					select {
					case <-time.After(late.dial):
					case <-ctx.Done():
						return nil, ctx.Err()
					}
					ours, theirs := net.Pipe()
					guests.Go(func() { io.Copy(io.Discard, theirs) })
					guests.Go(func() {
						time.Sleep(late.answer)
						io.WriteString(theirs, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
					})
					return ours, nil
				}, "token")
				start := time.Now()
				c.CPUWait = func() time.Duration { return time.Since(start) }
				defer c.CloseIdleConnections()
				if _, err := c.Health(t.Context()); err != nil {
					t.Errorf("after %v: %v", time.Since(start), err)
				}
			})
		})
	}
}
