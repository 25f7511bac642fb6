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

// Nothing waits for ever for a guest that takes requests and does not answer.
func TestClient_noAnswer(t *testing.T) {
	for name, test := range map[string]struct {
		answer func(net.Conn) // after what was asked
		still  time.Duration  // it stands still for that long
		want   time.Duration  // until a call fails
	}{
		"silent": {func(net.Conn) {}, 0, 10 * time.Second},
		"slow": {func(c net.Conn) {
			for _, b := range []byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n") {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(7 * time.Second)
			}
		}, 0, 60 * time.Second},
		"paused": {func(net.Conn) {}, time.Hour, time.Hour + 10*time.Second},
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
				defer c.CloseIdleConnections()
				for call, do := range map[string]func() error{
					"stat":  func() error { _, err := c.Stat(t.Context(), "/", false); return err },
					"start": func() error { _, err := c.Start(t.Context(), sandbox.CommandParams{Argv: []string{"x"}}); return err },
					"exec":  func() error { _, err := c.Exec(t.Context(), sandbox.CommandParams{Argv: []string{"x"}}); return err },
				} {
					began = time.Now()
					err := do()
					// It is looked at every 10 s whether it still stands still, or says something.
					if took := time.Since(began); cay.CodeOf(err) != cay.Unavailable || took < test.want || took > test.want+10*time.Second {
						t.Errorf("%s failed after %v, want %v: %v", call, took, test.want, err)
					}
				}
			})
		})
	}
}
