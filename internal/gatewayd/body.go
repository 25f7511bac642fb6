package gatewayd

import (
	"errors"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
)

// step is the number of body bytes that must arrive within each Config.BodyTime.
const step = 1 << 20

// arrive takes a slot of the key's concurrency, before the body is read. finish releases
// the slot if the call was not admitted.
func (c *call) arrive() *hub.Error {
	l, ok := c.e.cfg.Ledger.(interface {
		Arrive(*ledger.Caller) (*ledger.Arrival, error)
	})
	if !ok || c.rt.kind == "" {
		return nil
	}
	var err error
	if c.arrival, err = l.Arrive(c.caller); err != nil {
		return asError(err)
	}
	return nil
}

// leave releases the call's resources other than its hold.
func (c *call) leave() {
	if c.record.Cached {
		c.arrival.Forgive()
	}
	c.arrival.Leave()
	if c.taken > 0 {
		c.e.room.give(c.caller.KeyID, c.taken)
		c.taken = 0
	}
}

// readBody reads the whole request body. Memory is allocated as data arrives, not by
// Content-Length, and only if the room has space.
func (c *call) readBody() *hub.Error {
	size, most := c.r.ContentLength, c.e.cfg.MaxBody // size may be -1
	if size > most {
		return tooLargeBody(most)
	}
	if enc := c.r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return &hub.Error{Kind: hub.BadRequest, Param: "content-encoding", Message: "the body is compressed, which the gateway does not read; send it as it is"}
	}
	if err := c.arrive(); err != nil {
		return err
	}
	body, err := c.read(size, most)
	_ = c.out.rc.SetReadDeadline(time.Time{})
	if err != nil {
		return err
	}
	c.body, c.record.BytesIn = body, int64(len(body))
	return nil
}

// read reads a body of size bytes (-1: unknown), and at most most bytes.
func (c *call) read(size, most int64) ([]byte, *hub.Error) {
	want := int64(freeBody)
	if size >= 0 {
		want = min(size, step)
	}
	if bad := c.grow(want); bad != nil {
		return nil, bad
	}
	body := make([]byte, 0, want)
	due := 0 // where the next step begins
	var err error
	for err == nil {
		if len(body) >= due {
			// Without a deadline a disconnected client is noticed later.
			_ = c.out.rc.SetReadDeadline(time.Now().Add(c.e.cfg.BodyTime))
			due = len(body) + step
		}
		if int64(len(body)) == size { // the server wants to see the end
			var more [1]byte
			n := 0
			if n, err = c.r.Body.Read(more[:]); n > 0 {
				err = io.ErrUnexpectedEOF
			}
			continue
		}
		if len(body) == cap(body) {
			if int64(len(body)) > most {
				return nil, tooLargeBody(most)
			}
			limit := most + 1
			if size >= 0 {
				limit = size
			}
			want = min(limit, 2*int64(cap(body)))
			if bad := c.grow(want); bad != nil {
				return nil, bad
			}
			body = append(make([]byte, 0, want), body...)
		}
		var n int
		n, err = c.r.Body.Read(body[len(body):min(cap(body), due)])
		body = body[:len(body)+n]
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &hub.Error{Kind: hub.Timeout, Code: "slow_request", Message: "the request's body did not come in time", Cause: errClient}
	case err != io.EOF:
		return nil, canceled()
	}
	return body, nil
}

// grow takes space for a body of n bytes from the room.
func (c *call) grow(n int64) *hub.Error {
	n -= freeBody + c.taken
	if n <= 0 {
		return nil
	}
	if err := c.e.room.take(c.ctx, c.caller.KeyID, n); err != nil {
		return err
	}
	c.taken += n
	return nil
}

func tooLargeBody(most int64) *hub.Error {
	return &hub.Error{Kind: hub.TooLarge, Code: "request_too_large", Message: "the request is larger than " + strconv.FormatInt(most, 10) + " bytes"}
}
