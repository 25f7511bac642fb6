package route

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// halfPipe is an end of a pipe whose CloseWrite does not tell the other side.
type halfPipe struct{ net.Conn }

func (halfPipe) CloseWrite() error { return nil }

// A connection may be quiet for less than the bound, in both directions.
func TestSplice_Idle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, client := net.Pipe()
		guest, program := net.Pipe()
		over := make(chan struct{})
		go func() {
			splice(halfPipe{near}, halfPipe{guest}, time.Minute)
			close(over)
		}()
		for range 3 {
			time.Sleep(59 * time.Second)
			go func() {
				if _, err := program.Write([]byte("x")); err != nil {
					t.Error(err)
				}
			}()
			if _, err := io.ReadFull(client, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		start := time.Now()
		<-over
		if quiet := time.Since(start); quiet != time.Minute {
			t.Errorf("it ended after %v", quiet)
		}
		for _, c := range []net.Conn{client, program} {
			if _, err := c.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("a side was left open: %v", err)
			}
		}
	})
}
