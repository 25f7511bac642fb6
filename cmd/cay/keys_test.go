package main

import (
	"errors"
	"io"
	"testing"

	"github.com/cayhq/cay"
)

// Keys typed after the sandbox's hibernation ended a request are all sent by the
// next request, although the first request is still reading.
func TestTypeOn(t *testing.T) {
	t.Parallel()
	in, terminal := io.Pipe()
	sends := 0
	stale := make(chan error, 1)
	var got []byte
	err := typeOn(t.Context(), in, func(r io.Reader) error {
		sends++
		if sends == 1 {
			b := make([]byte, 1)
			go io.WriteString(terminal, "a") // a terminal waits for nobody
			if _, err := io.ReadFull(r, b); err != nil || b[0] != 'a' {
				t.Errorf("the first request read %q, %v", b, err)
			}
			go func() {
				_, err := r.Read(b)
				stale <- err
				io.WriteString(terminal, "bc")
				terminal.Close()
			}()
			return cay.Errorf(cay.Unavailable, "the sandbox was hibernated")
		}
		var err error
		got, err = io.ReadAll(r)
		return err
	})
	if err != nil || sends != 2 || string(got) != "bc" {
		t.Errorf("%d requests, the last with %q, and then %v; want 2, the last with all that was typed since", sends, got, err)
	}
	if err := <-stale; !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("the first request went on to read: %v", err)
	}
}

// A request that fails for another reason is not retried.
func TestTypeOn_Refused(t *testing.T) {
	t.Parallel()
	in, terminal := io.Pipe()
	refused := cay.Errorf(cay.Conflict, "the command has exited")
	sends := 0
	err := typeOn(t.Context(), in, func(io.Reader) error {
		sends++
		terminal.Close() // as stop does
		return refused
	})
	if !errors.Is(err, refused) || sends != 1 {
		t.Errorf("%d requests, and then %v; want 1 and its error", sends, err)
	}
}
