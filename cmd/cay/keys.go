package main

import (
	"context"
	"io"
	"sync"

	"github.com/cayhq/cay"
)

// typeOn sends typed keys until the input ends. Hibernation of the sandbox ends the
// request; the next key starts a new request, which wakes the sandbox. typeOn
// returns after its last Read of in, so the caller has to cancel in when ctx ends.
func typeOn(ctx context.Context, in io.Reader, send func(io.Reader) error) error {
	k := &keys{typed: make(chan []byte)}
	done := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(done)
	wg.Go(func() { k.read(in, done) })
	var first []byte
	for {
		over := make(chan struct{})
		err := send(&typing{keys: k, rest: first, over: over})
		close(over)
		if cay.CodeOf(err) != cay.Unavailable || ctx.Err() != nil {
			return err
		}
		var ok bool
		select {
		case first, ok = <-k.typed:
			if !ok {
				return nil
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// keys are the keys typed on a terminal.
type keys struct {
	typed chan []byte // closed at the end
	err   error       // why it was closed
}

func (k *keys) read(in io.Reader, done <-chan struct{}) {
	defer close(k.typed)
	for {
		b := make([]byte, 4096)
		n, err := in.Read(b)
		if n > 0 {
			select {
			case k.typed <- b[:n]:
			case <-done:
				return
			}
		}
		if err != nil {
			k.err = err
			return
		}
	}
}

// typing is the part of the keys that one request sends. It reads no more keys once
// the request is over, because the HTTP client may continue to read after the
// request has failed.
type typing struct {
	keys *keys
	rest []byte
	over <-chan struct{}
}

// Read implements io.Reader.
func (t *typing) Read(p []byte) (int, error) {
	select {
	case <-t.over:
		return 0, io.ErrClosedPipe
	default:
	}
	if len(t.rest) == 0 {
		select {
		case b, ok := <-t.keys.typed:
			if !ok {
				return 0, t.keys.err
			}
			t.rest = b
		case <-t.over:
			return 0, io.ErrClosedPipe
		}
	}
	n := copy(p, t.rest)
	t.rest = t.rest[n:]
	return n, nil
}
