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

// step is how much of a body has Config.BodyTime to come.
const step = 1 << 20

// arrive takes the call's place among those of its key, before anything large is
// read. finish gives it up, if the call was not admitted.
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

// leave gives up what the call has taken beside its hold.
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

// readBody reads all of the request's body. Memory is taken as it comes, not as the
// headers promise, and only if there is room for it.
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

// read reads a body of size bytes, or -1, and at most most.
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
			// Without a deadline it is slower to notice that the client is gone.
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

// grow takes room for a body of n bytes.
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
