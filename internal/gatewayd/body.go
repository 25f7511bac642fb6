package gatewayd

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
)

// step is the number of body bytes that must arrive within each Config.BodyTime.
const step = 1 << 20

// intake is what a request takes of the gateway from its arrival to its end: a slot of its
// key's concurrency, and space for its body.
type intake struct {
	arrival *ledger.Arrival // nil if the ledger has no such slots
	room    *room
	key     string
	taken   int64 // bytes taken from room
}

// arrive takes a slot of the key's concurrency, before the body is read. leave releases
// the slot if the call was not admitted.
func (in *intake) arrive(l ledger.Ledger, caller *ledger.Caller) *hub.Error {
	arriving, ok := l.(interface {
		Arrive(*ledger.Caller) (*ledger.Arrival, error)
	})
	if !ok {
		return nil
	}
	var err error
	if in.arrival, err = arriving.Arrive(caller); err != nil {
		return asError(err)
	}
	return nil
}

// leave releases all that the intake holds. A request that was answered from the cache
// does not count for the key's rates.
func (in *intake) leave(cached bool) {
	if cached {
		in.arrival.Forgive()
	}
	in.arrival.Leave()
	if in.taken > 0 {
		in.room.give(in.key, in.taken)
		in.taken = 0
	}
}

// grow takes space for a body of n bytes from the room.
func (in *intake) grow(ctx context.Context, n int64) *hub.Error {
	n -= freeBody + in.taken
	if n <= 0 {
		return nil
	}
	if err := in.room.take(ctx, in.key, n); err != nil {
		return err
	}
	in.taken += n
	return nil
}

// receive reads the whole body of a request. Memory is allocated as data arrives, not by
// Content-Length, and only if the room has space.
func (e *Engine) receive(ctx context.Context, rq *request, caller *ledger.Caller, rc *http.ResponseController, in *intake) ([]byte, *hub.Error) {
	size, most := rq.http.ContentLength, e.cfg.MaxBody // size may be -1
	if size > most {
		return nil, tooLargeBody(most)
	}
	if enc := rq.http.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return nil, &hub.Error{Kind: hub.BadRequest, Param: "content-encoding", Message: "the body is compressed, which the gateway does not read; send it as it is"}
	}
	in.room, in.key = e.room, caller.KeyID
	if rq.rt.kind != "" {
		if err := in.arrive(e.cfg.Ledger, caller); err != nil {
			return nil, err
		}
	}
	r := receiver{ctx: ctx, from: rq.http.Body, rc: rc, in: in, pace: e.cfg.BodyTime}
	body, err := r.read(size, most)
	_ = rc.SetReadDeadline(time.Time{})
	return body, err
}

// receiver reads a body.
type receiver struct {
	ctx  context.Context
	from io.Reader
	rc   *http.ResponseController
	in   *intake
	pace time.Duration // for each step
}

// read reads a body of size bytes (-1: unknown), and at most most bytes.
func (r *receiver) read(size, most int64) ([]byte, *hub.Error) {
	want := int64(freeBody)
	if size >= 0 {
		want = min(size, step)
	}
	if bad := r.in.grow(r.ctx, want); bad != nil {
		return nil, bad
	}
	body := make([]byte, 0, want)
	due := 0 // where the next step begins
	var err error
	for err == nil {
		if len(body) >= due {
			// Without a deadline a disconnected client is noticed later.
			_ = r.rc.SetReadDeadline(time.Now().Add(r.pace))
			due = len(body) + step
		}
		if int64(len(body)) == size { // the server wants to see the end
			var more [1]byte
			n := 0
			if n, err = r.from.Read(more[:]); n > 0 {
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
			if bad := r.in.grow(r.ctx, want); bad != nil {
				return nil, bad
			}
			body = append(make([]byte, 0, want), body...)
		}
		var n int
		n, err = r.from.Read(body[len(body):min(cap(body), due)])
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

func tooLargeBody(most int64) *hub.Error {
	return &hub.Error{Kind: hub.TooLarge, Code: "request_too_large", Message: "the request is larger than " + strconv.FormatInt(most, 10) + " bytes"}
}
